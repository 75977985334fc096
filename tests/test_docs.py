"""Every command and snippet of the documentation is run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
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


def environment() -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HOTLOOP")}
    return clean | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def run(words: list[str], folder: Path, what: str) -> None:
    done = subprocess.run(
        words, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{what}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_snippet_runs(page: Path, tmp_path: Path) -> None:
    """In a folder with one capture in it (runs/first), unless the page makes that itself."""
    text = page.read_text()
    if 'start("runs/first")' not in text:
        run([sys.executable, "-c", FIRST_RUN], tmp_path, "first run")
    for language, body in BLOCK.findall(text):
        if language == "python":
            run([sys.executable, "-c", body], tmp_path, body)
        elif language == "sh":
            for line in body.splitlines():
                command = line.split("  #")[0].strip()
                if command.startswith("make "):
                    assert command.split()[1] in MAKE_TARGETS, command
                elif command:
                    run(["bash", "-c", command], tmp_path, command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_first_screen_of_the_readme_has_the_two_commands() -> None:
    first_screen = (ROOT / "README.md").read_text().splitlines()[:12]
    assert any("make demo" in line for line in first_screen)
    assert any("make test" in line for line in first_screen)


def test_the_examples_run(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/01_profile_a_training_loop.py")]
    run([*command, "--iterations", "3", "--capture", "runs/example"], tmp_path, "example")
    run(["hotloop", "show", "runs/example"], tmp_path, "show")
