"""Runs `hotloop VERB ...` inside the test's process, because a new process would spend most time on imports.

What the verb starts (scripts, probes, pairs of runs) still runs in separate processes. Tests about the
process itself (signals, exit, imports, the console script) start a real one.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from hotloop.cli.main import main


def hotloop(
    *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a verb as `subprocess.run([HOTLOOP, *words], cwd=cwd, env=env, capture_output=True)` would."""
    with contextlib.ExitStack() as stack:
        out, err = (stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(2))
        stack.enter_context(contextlib.chdir(cwd or "."))
        stack.enter_context(_environment(os.environ if env is None else env))
        with _printing_to(out, err):
            code = _exit_code([str(word) for word in words])
        out.seek(0), err.seek(0)
        return subprocess.CompletedProcess(["hotloop", *map(str, words)], code, out.read(), err.read())


def _exit_code(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as end:  # of the parser of arguments
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1


@contextlib.contextmanager
def _environment(env: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    changed = dict(env)
    try:
        os.environ.clear()
        os.environ.update(changed)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _printing_to(out: IO[str], err: IO[str]) -> Iterator[None]:
    """Send both streams there: ours, and those that processes started meanwhile inherit."""
    sys.stdout.flush(), sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    try:
        os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
        how: dict[str, Any] = {"mode": "w", "encoding": "utf-8", "closefd": False, "buffering": 1}
        with (
            open(1, **how) as stdout,
            open(2, **how) as stderr,
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            yield
    finally:
        for descriptor, before in zip((1, 2), kept, strict=True):
            os.dup2(before, descriptor)
            os.close(before)
