"""Secrets in command lines are neither stored nor shown, and a placeholder is never run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hotloop import Profiler
from hotloop._util.errors import HotloopError
from hotloop._util.redact import PLACEHOLDER, redact, redact_settings, redact_variables
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.series import Run, append, begin_run, create, read
from hotloop.workflows.secrets import command_with_secrets, plan_with_secrets
from tests.cli import hotloop

X = PLACEHOLDER


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("t.py --api-key=abc --lr 3", f"t.py --api-key={X} --lr 3"),
        ("t.py --api-key abc --lr 3", f"t.py --api-key {X} --lr 3"),
        ("t.py --wandbApiKey abc", f"t.py --wandbApiKey {X}"),
        ("t.py password=abc +db.secret=x", f"t.py password={X} +db.secret={X}"),
        ("t.py --hf_token abc --credentials /a/b", f"t.py --hf_token {X} --credentials {X}"),
        ("WANDB_API_KEY=abc t.py", f"WANDB_API_KEY={X} t.py"),
        ("t.py --some-key 0123456789abcdef", f"t.py --some-key {X}"),
        ("t.py sk-abcdefghijklmnopqrst x=ghp_abcdefghijklmnopqrstuvwx", f"t.py {X} x={X}"),
        ("t.py https://joe:pw@host/data", f"t.py https://{X}@host/data"),
        # no secrets
        ("t.py --max-tokens 512 --tokenizer gpt2 --token-limit 3", ""),
        ("t.py --key-size 64 --obs-key image --monkey 1", ""),
        ("t.py --rev 0123456789012345678901234567890123456789", ""),
        ("t.py --token --lr 3", ""),
    ],
)
def test_what_is_secret_is_replaced_and_nothing_else(words: str, shown: str) -> None:
    found = redact(words.split())
    assert list(found.words) == (shown or words).split()
    assert bool(found.names) == (X in shown)
    assert redact(found.words).words == found.words and redact(found.words).names == ()


def test_a_command_line_inside_a_word_is_looked_into() -> None:
    found = redact(["bash", "-c", "cd x && python t.py --api-key abc -H 'Authorization: Bearer abcdefghij'"])
    assert "abc " not in found.words[2] and "abcdefghij" not in found.words[2]
    assert found.values == ("abcdefghij", "abc")


def test_variables_and_settings_are_redacted_too() -> None:
    assert redact_variables({"A": "1", "MY_TOKEN": "x"}) == {"A": "1", "MY_TOKEN": X}
    names: list[str] = []
    settings = {"lr": 0.1, "wandb": {"api_key": "abc", "tags": ["hf_abcdefghijklmnopqrstuvwxyz"]}, "key": 3}
    expected = {"lr": 0.1, "wandb": {"api_key": X, "tags": [X]}, "key": 3}
    assert redact_settings(settings, names) == expected
    assert names == ["config.wandb.api_key", "config.wandb.tags"]


def test_users_add_patterns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOTLOOP_REDACT", "corp-[0-9]+ --tenant")
    assert redact(["t.py", "--tenant", "me", "x=corp-123"]).words == ("t.py", "--tenant", X, f"x={X}")
    monkeypatch.delenv("HOTLOOP_REDACT")
    monkeypatch.chdir(tmp_path)
    Path("hotloop.toml").write_text('redact = ["--tenant"]\n')
    Path("train.py").write_text("import hotloop\nwith hotloop.profile('a'): pass\n")
    done = hotloop("run", "--capture", "run", "train.py", "--tenant", "me-and-you", cwd=tmp_path)
    assert "values are not stored because they look like secrets: --tenant" in done.stderr
    assert "me-and-you" not in (tmp_path / "run" / "capture.json").read_text()
    Path("hotloop.toml").write_text('redact = ["("]\n')
    done = hotloop("show", "run", cwd=tmp_path)
    assert done.returncode == 2 and "no regular expression" in done.stderr


SECRET = "correct-horse-battery"


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", f"--api-key={SECRET}"])
    profiler = Profiler().start(tmp_path / "run", config={"password": SECRET})
    for _ in range(20):
        with profiler.profile("env_step", "environment"):
            pass
        profiler.progress(env_steps=1)
    profiler.stop()
    return tmp_path / "run"


def test_no_secret_is_in_a_capture_or_in_anything_made_from_it(capture: Path, tmp_path: Path) -> None:
    for file in capture.rglob("*"):
        assert file.is_dir() or SECRET.encode() not in file.read_bytes(), file
    for words in (["show"], ["show", "--json"], ["report"], ["report", "--json"]):
        done = hotloop(words[0], capture, *words[1:])
        assert SECRET not in done.stdout + done.stderr
        said = " ".join((done.stdout + done.stderr).split())
        assert "look like secrets: --api-key, config.password" in said
    for name in ("x.html", "x.txt", "x.json", "x.svg", "x.capture.json", "x.trace.json", "x.speedscope.json"):
        assert hotloop("report", capture, "-o", tmp_path / name).returncode == 0
        assert SECRET not in (tmp_path / name).read_text()


def test_a_capture_by_an_older_hotloop_is_shown_without_its_secrets(capture: Path) -> None:
    file = capture / "capture.json"
    facts = json.loads(file.read_text())
    facts["command"] = ["python", "train.py", f"--api-key={SECRET}"]
    for new in ("checksum", "redacted"):
        del facts[new]
    file.write_text(json.dumps(facts))
    done = hotloop("show", capture, "--json")
    assert SECRET not in done.stdout and json.loads(done.stdout)["command"][2] == f"--api-key={X}"


def test_a_series_stores_no_secret_and_runs_with_it(tmp_path: Path) -> None:
    command = ("python", "train.py", "--password", SECRET)
    secret = (("MY_TOKEN", SECRET),)
    plan = Plan((Variant("A", command), Variant("B", command, (f"api_key={SECRET}",), secret)))
    series = create(tmp_path / "s", plan, {})
    number, _ = begin_run(series)
    tail = f"wrong password {SECRET}"
    series = append(series, Run(number, "A", 0, 0, 0, command, stderr_tail=tail))
    assert series.plan == plan and series.runs[0].command == command, "what is run"
    for file in (tmp_path / "s").rglob("*.json"):
        assert SECRET not in file.read_text()
    stored = read(tmp_path / "s")
    assert stored.plan.variants[1].environment == (("MY_TOKEN", X),)
    assert stored.runs[0].stderr_tail == f"wrong password {X}"
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt.split(" (")[0])
        return SECRET

    assert plan_with_secrets(stored.plan, ask) == plan
    assert asked == ["value of --password", "value of MY_TOKEN", "value of api_key"]


def test_a_placeholder_is_never_run(capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(HotloopError, match="The value of --api-key was not stored"):
        command_with_secrets(("python", "train.py", f"--api-key={X}"))
    done = hotloop("run", "--capture", "again", "--", "python", "train.py", "--api-key", X, cwd=tmp_path)
    assert done.returncode == 2 and "The value of --api-key was not stored" in done.stderr
    assert not Path("again").exists()
    command = f'["{sys.executable}", "-c", "open(\'ran\', \'w\')", "--token", "{X}"]'
    Path("plan.toml").write_text(f'command = {command}\n[[suspects]]\nname = "b"\nset = ["x=1"]\n')
    done = hotloop("lab", "run", "plan.toml", "--series", "s", cwd=tmp_path)
    assert done.returncode == 2 and "The value of --token was not stored" in done.stderr
    done = hotloop("prove", capture, "1", "--set", "x=1", cwd=tmp_path)
    assert done.returncode == 2
    assert not Path("ran").exists()
