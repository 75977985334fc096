"""A warm process that starts programs by forking: they begin within a millisecond, and import nothing.

`Nursery` is the end in the campaign, `serve` that in the process. A request is a line of JSON. The answer is
the program's id, which is also that of its process group, and a second line when the whole group has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hotloop

ROOT = Path(__file__).parent.parent.parent
OURS = str(Path(hotloop.__file__).parent)
_BECOME_SUBREAPER = 36  # prctl: orphans of ours become our children


class Nursery:
    """Starts programs of one module, one at a time."""

    def __init__(self, module: str, **environment: str):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HOTLOOP")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"tests.campaign.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=clean | environment,
        )
        self.killed = False
        """Whether the last program was ended by SIGKILL, and not by itself before."""

    @contextlib.contextmanager
    def program(self, **request: Any) -> Iterator[int]:
        """Start a program; yields its id. At the end it is killed, and all that it started."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        child = int(self._answer())
        try:
            yield child
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            self.killed = self._answer() == "killed"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process that starts programs has died")
        return line.strip()

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


# -- in the process that forks -------------------------------------------------------------------


def die_at(moment: int, files: tuple[str, ...] = ("",)) -> None:
    """Kill this process group at the n-th moment in our Python code (in these files), in any thread."""
    left = itertools.count(moment, -1)

    def watch(frame: Any, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if event in ("call", "c_return") and OURS in file and file.endswith(files) and next(left) == 0:
            os.killpg(0, signal.SIGKILL)

    threading.setprofile(watch)
    sys.setprofile(watch)


def fork_program(request: dict[str, Any], run: Callable[[dict[str, Any]], None]) -> int:
    """A child in a process group of its own; returns its id."""
    child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, 0)
            errors = os.open(request["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.dup2(errors, 1)
            os.dup2(errors, 2)
            os.close(0)
            run(request)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(3)
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    return child


def serve(
    run: Callable[[dict[str, Any]], None], prepare: Callable[[dict[str, Any]], object] = lambda request: None
) -> None:
    """Answer requests until the input ends; `prepare` is called before each fork."""
    ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, 1, 0, 0, 0)
    for line in sys.stdin:
        request = json.loads(line)
        prepare(request)
        child = fork_program(request, run)
        print(child, flush=True)
        killed = False
        with contextlib.suppress(ChildProcessError):
            while True:
                ended, status = os.waitpid(-child, 0)
                killed |= ended == child and os.WIFSIGNALED(status)
        print("killed" if killed else "ended", flush=True)
