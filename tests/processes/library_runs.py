"""Runs a training script as it is and recorded, and reads what was recorded."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import hotloop
from hotloop.capture.model import Capture, Process
from hotloop.capture.stats import by_name
from hotloop.workflows.run import recording_environment
from tests.processes.scripts import environment

DIGEST = """
import hashlib
def digest(parameters):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in parameters)).hexdigest()
"""


def needs(*modules: str) -> pytest.MarkDecorator:
    """Skips where a library is not installed; the libraries are not imported here."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"LOUD: not installed: {', '.join(missing)}")


@dataclass(frozen=True)
class Run:
    """What a recorded script printed, and its capture."""

    out: str
    capture: Capture

    @property
    def main(self) -> Process:
        """The process the script itself ran in."""
        return min(self.capture.processes, key=lambda p: p.start_real_ns)

    def calls(self, *names: str) -> dict[str, int]:
        """Calls by name in the main process's main thread, 0 where there are none."""
        stats = by_name(self.main.threads[0].root)
        return {name: stats[name].calls if name in stats else 0 for name in names}

    def calls_in(self, process: Process, *names: str) -> dict[str, int]:
        """The same for another process."""
        return Run("", Capture(None, {}, (process,))).calls(*names)

    def attributed(self) -> float:
        """Share of the main thread's wall time in some region."""
        thread = self.main.threads[0]
        return 1 - thread.unattributed_ns / thread.wall_ns

    def under(self, outer: str) -> dict[str, int]:
        """Calls by name below a region, in the main process's main thread."""
        found: dict[str, Any] = {}
        todo = list(self.main.threads[0].root.children)
        while todo:
            node = todo.pop()
            if node.name == outer:
                for name, stats in by_name(node).items():
                    found[name] = found.get(name, 0) + stats.calls
            else:
                todo += node.children
        return found


def write(folder: Path, script: str) -> Path:
    file = folder / "train.py"
    file.write_text(DIGEST + textwrap.dedent(script))
    return file


def plain(folder: Path, script: str, *words: str) -> str:
    """Run without us; returns what was printed."""
    return _run(folder, script, words, environment("auto"))


def record(folder: Path, script: str, *words: str) -> Run:
    """Run recorded, into a new folder."""
    into = folder / f"capture{len(list(folder.glob('capture*')))}"
    out = _run(folder, script, words, recording_environment(into, environment("auto")))
    return Run(out, hotloop.load(into))


def _run(folder: Path, script: str, words: tuple[str, ...], env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, str(write(folder, script)), *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hotloop" not in done.stderr, done.stderr
    return done.stdout
