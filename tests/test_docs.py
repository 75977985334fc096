"""Every command and snippet of the documentation is run."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotloop.measure.profiler import default
from tests.cli import hotloop

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs").glob("guides/*.md")),
]
# Pages that compile every environment, start many processes, compare many runs or train for long.
SLOW_PAGES = (
    *("environments.md", "collect.md", "boost.md", "imitate.md", "lab.md", "mario.md", "run-libraries.md"),
    *("petri.md", "training.md", "start.md", "loggers.md", "make-your-env-fast.md", "ppo.md"),
)
NEEDS = {
    "loggers.md": ("wandb",),
    "jax.md": ("jax", "optax"),
    "lightning.md": ("lightning",),
    "rllib.md": ("ray", "pandas", "tree"),
}
BLOCK = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

FIRST_RUN = """
import hotloop
hotloop.start("runs/first")
for i in range(300):
    with hotloop.profile("env_step"):
        sum(range(200))
    hotloop.progress(env_steps=1)
hotloop.stop()
"""


RUN_BLOCKS = """
import json, sys
for name, source in json.load(sys.stdin):
    exec(compile(source, name, "exec"), {"__name__": "__main__"})
"""
NEEDS_A_SHELL = re.compile(r"[|<>;&$]|^\w+=")


def environment() -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HOTLOOP")}
    return clean | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def run(words: list[str], folder: Path, what: str, given: str = "") -> None:
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment(),
        input=given,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{what}\n{done.stdout}\n{done.stderr}"


def run_command(command: str, folder: Path) -> None:
    words = shlex.split(command)
    if words[0] == "make":
        assert words[1] in MAKE_TARGETS, command
    elif words[0] == "hotloop" and not NEEDS_A_SHELL.search(command):
        done = hotloop(*words[1:], cwd=folder, env=environment())
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    else:
        run(["bash", "-c", command], folder, command)


def steps(page: Path) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The page's blocks in order, those of the same language that follow each other together.

    A block with a title is a file of that name, which the reader saves: it comes as the language "file".
    """
    blocks = [
        ("file" if title else language, title or f"{page.name}, block {number}", body)
        for number, (language, title, body) in enumerate(BLOCK.findall(page.read_text()), start=1)
        if title or language in ("python", "sh")
    ]
    for language, group in itertools.groupby(blocks, key=lambda block: block[0]):
        yield language, [(name, body) for _, name, body in group]


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first")
    run([sys.executable, "-c", FIRST_RUN], folder, "first run")
    return folder / "runs"


@pytest.fixture
def folder(tmp_path: Path, first_run: Path) -> Iterator[Path]:
    """Where a page is followed: with one capture in it (runs/first)."""
    shutil.copytree(first_run, tmp_path / "runs")
    yield tmp_path
    default.start()  # an empty recording takes the place of the last one, whose files it keeps
    default.stop()


def is_slow(page: Path) -> bool:
    return page.name in SLOW_PAGES or page.parent.name == "guides"


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.long if is_slow(page) else ()) for page in PAGES],
    ids=[page.name for page in PAGES],
)
def test_every_command_and_snippet_runs(page: Path, folder: Path) -> None:
    """Python blocks that follow each other share a process, each with variables of its own."""
    if missing := [name for name in NEEDS.get(page.name, ()) if importlib.util.find_spec(name) is None]:
        pytest.skip(f"LOUD: {page.name} was not followed: not installed: {', '.join(missing)}")
    if 'start("runs/first")' in page.read_text():
        shutil.rmtree(folder / "runs")
    for language, blocks in steps(page):
        if language == "file":
            for name, body in blocks:
                (folder / name).write_text(body)
        elif language == "python":
            run([sys.executable, "-c", RUN_BLOCKS], folder, blocks[0][0], given=json.dumps(blocks))
        else:
            for line in "".join(body for _, body in blocks).splitlines():
                if command := line.split("  #")[0].strip():
                    run_command(command, folder)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_first_screen_of_the_readme_has_the_two_commands() -> None:
    first_screen = (ROOT / "README.md").read_text().splitlines()[:12]
    assert any("make demo" in line for line in first_screen)
    assert any("make test" in line for line in first_screen)


def test_the_readmes_lines_for_loggers_are_those_of_the_page_that_is_run() -> None:
    page = (ROOT / "docs/loggers.md").read_text()
    section = (ROOT / "README.md").read_text().split("## In TensorBoard")[1].split("```")[1]
    for line in section.strip().splitlines():
        call = line.split("  #")[0].strip().split("(")[0]
        assert call in page


def test_the_examples_run(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/01_profile_a_training_loop.py")]
    run([*command, "--iterations", "3", "--capture", "runs/example"], tmp_path, "example")
    run(["hotloop", "show", "runs/example"], tmp_path, "show")
