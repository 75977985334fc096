"""Starts small programs that record themselves, each in a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path


def environment(core: str, **more: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HOTLOOP")}
    return clean | {"HOTLOOP_CORE": core} | more


def run(
    program: str,
    core: str,
    *args: str | Path,
    fails: bool = False,
    cwd: Path | None = None,
    **env: str,
) -> str:
    """Run to the end; returns what it printed. Its exit code must be 0, or, with `fails`, not 0."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, args)],
        env=environment(core, **env),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode != 0) == fails, done.stderr
    return done.stdout + done.stderr


def begin(program: str, core: str, *args: str | Path) -> subprocess.Popen[str]:
    """Start, and return when the program has printed its first line."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, args)],
        env=environment(core),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    return process
