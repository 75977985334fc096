"""`hotloop bisect` in a real repository, and the other words that help on the command line."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.cli import compare
from hotloop.cli.main import read_arguments
from tests.cli import hotloop as run_verb
from tests.processes.test_compare import environment

ROOT = Path(__file__).parents[2]
SCRIPT = """
import time
import hotloop
from pause import PAUSE_S
for step in range(25):
    with hotloop.profile("env_step"):
        time.sleep(PAUSE_S)
    hotloop.progress(env_steps=1)
"""


def git(*words: str) -> str:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", *who, *words], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Revisions of a repository in the current folder; from the fourth on, training is slower."""
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    revisions = []
    for number in range(6):
        Path("train.py").write_text(SCRIPT)
        Path("pause.py").write_text(f"PAUSE_S = {0.002 if number < 3 else 0.02}\n")
        Path("notes.txt").write_text(str(number))
        git("add", "."), git("commit", "-q", "-m", f"change {number}")
        revisions.append(git("rev-parse", "HEAD"))
    git("tag", "v1.2", revisions[0]), git("update-ref", "refs/remotes/origin/main", revisions[0])
    return revisions


def commands_of_the_page() -> dict[str, list[str]]:
    """The commands of docs/ci.md, by verb."""
    found = re.findall(r"^\$ hotloop (.*)$", (ROOT / "docs/ci.md").read_text(), re.MULTILINE)
    return {words[0]: words for words in map(shlex.split, found)}


@pytest.mark.long
def test_the_commit_that_made_training_slower_is_found(history: list[str]) -> None:
    words = commands_of_the_page()["bisect"]
    done = run_verb("bisect", "--json", *words[1:], env=environment())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kind"] == "hotloop-bisect" and found["first_slow"] == history[3] and found["is_sure"]
    assert "step 1: " in done.stderr and f"next: git show {history[3][:10]}" in done.stderr
    assert git("worktree", "list").count("\n") == 0
    assert not git("status", "--porcelain", "--untracked-files=no")


def test_a_slower_branch_fails_the_job_and_writes_its_comment(history: list[str]) -> None:
    done = run_verb(*commands_of_the_page()["compare"], env=environment())
    assert done.returncode == 3, done.stderr
    assert "slower" in Path("comment.md").read_text()


def test_the_workflow_to_copy_uses_options_that_exist() -> None:
    text = (ROOT / "examples/ci/hotloop.yml").read_text()
    command = re.search(r"hotloop (compare.*?)\n\s+- name", text, re.DOTALL)
    assert command is not None
    words = shlex.split(command[1], comments=True)
    own = read_arguments(compare, "compare", words[1:])
    assert own.fail_if == "slower:5%" and own.command[:2] == ("python", "train.py")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["bisect", "--", "true"], "needs a fast commit and a command"),
        (["bisect", "--good", "HEAD~1"], "needs a fast commit and a command"),
        (["bisect", "--good", "nosuch", "--", "true"], "'nosuch' does not exist in this project"),
        (["bisect", "--good", "HEAD", "--bad", "HEAD~2", "--", "true"], "is not an earlier commit"),
        (["reprot"], "did you mean: hotloop report"),
        (["train.py"], "hotloop run train.py"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(history: list[str], words: list[str], sentence: str) -> None:
    done = run_verb(*words, env=environment())
    assert done.returncode == 2 and sentence in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_command_that_fails_everywhere_is_not_blamed_on_a_commit(history: list[str]) -> None:
    done = run_verb("bisect", "--good", history[0], "--", sys.executable, "missing.py", env=environment())
    assert done.returncode == 5 and "The command failed" in done.stdout


@pytest.mark.parametrize("words", [["help"], ["-h"], ["--help"]])
def test_help_is_where_people_look(words: list[str]) -> None:
    done = run_verb(*words)
    assert done.returncode == 0 and "usage: hotloop VERB" in done.stdout
    assert "usage: hotloop compare" in run_verb("help", "compare").stdout


@pytest.mark.parametrize("words", [["version"], ["-V"], ["--version"]])
def test_the_version_is_where_people_look(words: list[str]) -> None:
    done = run_verb(*words)
    assert done.returncode == 0 and done.stdout.startswith("hotloop ")


def test_bash_completes_verbs_options_and_files(tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("LOUD: no bash here")
    (tmp_path / "complete.sh").write_text(run_verb("completion", "bash").stdout)
    (tmp_path / "train.py").write_text("")

    def completed(*words: str) -> set[str]:
        line = " ".join(f"'{word}'" for word in words)
        ask = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _hotloop; echo ${{COMPREPLY[@]}}"
        ask = f". ./complete.sh; {ask}"
        done = subprocess.run(["bash", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True)
        return set(done.stdout.split())

    assert completed("hotloop", "re") == {"report"}
    assert completed("hotloop", "compare", "--rev") == {"--rev-a", "--rev-b"}
    assert completed("hotloop", "run", "tr") == {"train.py"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_the_same_words(shell: str) -> None:
    found = run_verb("completion", shell).stdout
    assert "report" in found and "rev-a" in found and "boost" in found
