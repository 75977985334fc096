"""Reads a running Python process from outside: stacks with py-spy, states of its threads from /proc.

Nothing is put into the process, and it is not stopped: py-spy reads its memory (`--nonblocking`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop._util.interrupts import is_users
from hotloop.capture.attached import Attached, AttachedThread, Frame
from hotloop.machine.facts import machine_facts

RATE_PER_S = 50
_SEE = "see the running ones with: ps -e | grep python"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCH_NUM_THREADS")
_PROFILE = re.compile(r'Process (\d+) Thread (\d+) "(.*)"$')


def watch(pid: int, seconds: float, begins: Callable[[], None] = lambda: None) -> Attached:
    """Watch a process and its children; `begins` is called once it is known that they can be watched.

    Raises HotloopError when they cannot.
    """
    tool = _tool()
    command = _command(pid)
    _check_readable(tool, pid)
    begins()
    before = _schedstat(pid)
    began = time.monotonic()
    everything, holders = _sample(tool, pid, seconds)
    length = time.monotonic() - began
    after = _schedstat(pid)
    held = {(p, t): count for (p, t, _), stacks in holders.items() for count in [sum(stacks.values())]}
    threads = []
    for (process, native, name), stacks in everything.items():
        used = None
        if (process, native) in before and (process, native) in after:
            first, last = before[process, native], after[process, native]
            used = (last[0] - first[0]) / 1e9, (last[1] - first[1]) / 1e9
        threads.append(
            AttachedThread(
                process,
                native,
                name,
                tuple(sorted(stacks.items(), key=lambda one: -one[1])),
                held.get((process, native), 0),
                used[0] if used else None,
                used[1] if used else None,
            )
        )
    if not threads:
        raise HotloopError(
            f"Process {pid} ended before a stack was read, or runs no Python code; name the process that "
            "runs the training."
        )
    settings = _settings(pid)
    ordered = tuple(sorted(threads, key=lambda t: (t.pid != pid, t.pid, t.native_id != t.pid, t.native_id)))
    return Attached(pid, command, length, RATE_PER_S, _cores(), settings, ordered)


def _cores() -> float:
    return float(machine_facts().get("cores_granted") or 1)


def _tool() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise HotloopError(
            "hotloop attach needs py-spy, which is not installed; install it with: "
            "pip install 'hotloop[attach]'"
        )
    return found


def _command(pid: int) -> tuple[str, ...]:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        raise HotloopError(f"There is no process {pid}; {_SEE}") from None
    except OSError as error:
        raise HotloopError(f"Process {pid} cannot be read ({error.strerror}); use one of your own.") from None
    return tuple(word.decode("utf-8", "replace") for word in words if word)


def _check_readable(tool: str, pid: int) -> None:
    """Raise HotloopError unless the named process itself is a Python process that may be read.

    Sampling includes its children: without this, naming a shell would read every Python process below it.
    """
    words = [tool, "dump", "--pid", str(pid), "--nonblocking"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        raise HotloopError(f"Process {pid} could not be read within 30 s; try again.") from None
    if done.returncode:
        raise HotloopError(_explained(pid, done.stderr))


def _sample(tool: str, pid: int, seconds: float) -> tuple[_Stacks, _Stacks]:
    """Stacks of all threads, and of those that held the GIL, sampled at the same time."""
    with tempfile.TemporaryDirectory(prefix="hotloop-attach-") as folder:
        runs = []
        for name, more in (("all", ["--idle"]), ("gil", ["--gil"])):
            words = [tool, "record", "--pid", str(pid), "--duration", str(max(round(seconds), 1)), "--rate"]
            words += [
                str(RATE_PER_S),
                "--nonblocking",
                "--format",
                "speedscope",
                "--threads",
                "--subprocesses",
            ]
            words += ["--full-filenames", "--output", str(Path(folder) / name), *more]
            runs.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        try:
            problems = [run.communicate()[1] for run in runs]
        finally:
            for run in runs:
                if run.poll() is None:
                    run.kill()
                    run.wait()
        if runs[0].returncode != 0 and not (Path(folder) / "all").exists():
            raise HotloopError(_explained(pid, problems[0]))
        everything, holders = (_read(Path(folder) / name) for name in ("all", "gil"))
        return everything, holders


def _explained(pid: int, problem: str) -> str:
    """One sentence for what py-spy said."""
    text = problem.lower()
    if "permission denied" in text or "operation not permitted" in text:
        return (
            f"Process {pid} may not be read (no permission); run hotloop attach as the same user or with "
            "sudo, and in a container allow SYS_PTRACE (docker run --cap-add SYS_PTRACE)."
        )
    if "python version" in text or "failed to find" in text or "no python process" in text:
        return f"Process {pid} is not a Python process; name the process that runs the training."
    if "no such" in text or "is running" in text:
        return f"There is no process {pid}; {_SEE}"
    first = next((line for line in problem.splitlines() if line.strip()), "py-spy gave no reason")
    return f"Process {pid} cannot be read: {first.removeprefix('Error: ')}"


def _read(file: Path) -> _Stacks:
    try:
        return parse_speedscope(json.loads(file.read_text(encoding="utf-8", errors="replace")))
    except (OSError, ValueError, KeyError, TypeError) as error:  # nothing was seen, or py-spy was killed
        if is_users(error):
            raise
        return {}


_Key = tuple[int, int, str]
_Stacks = dict[_Key, dict[tuple[Frame, ...], int]]


def parse_speedscope(data: dict[str, Any]) -> _Stacks:
    """Stacks by thread from py-spy's speedscope format, which has one profile for each thread.

    Its raw format is one line per stack, and breaks at a command with a newline or a semicolon.
    """
    frames = [
        Frame(str(one["name"]), str(one.get("file") or ""), int(one.get("line") or 0))
        for one in data["shared"]["frames"]
    ]
    found: _Stacks = {}
    for profile in data["profiles"]:
        owner = _PROFILE.match(profile["name"])
        if owner is None:
            continue
        stacks = found.setdefault((int(owner[1]), int(owner[2]), owner[3]), {})
        for sample in profile["samples"]:
            stack = tuple(frames[at] for at in sample if frames[at].file)  # others name process and thread
            stacks[stack] = stacks.get(stack, 0) + 1
    return found


def _schedstat(pid: int) -> dict[tuple[int, int], tuple[int, int]]:
    """Nanoseconds on a core and in the run queue of every thread of a process and its descendants."""
    return {
        (process, thread): (numbers[0], numbers[1])
        for process in _family(pid)
        for thread, numbers in _numbers_of_threads(process, "schedstat")
        if len(numbers) == 3
    }


def _family(pid: int) -> list[int]:
    """A process and its descendants."""
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        found.append(one)
        for _, children in _numbers_of_threads(one, "children"):
            todo += children
    return found


def _numbers_of_threads(pid: int, file: str) -> Iterator[tuple[int, list[int]]]:
    """Numbers in a file of /proc for each thread of a process; none for what has ended by now."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError as error:
        if is_users(error):
            raise
        return
    for thread in threads:
        try:
            text = Path(f"/proc/{pid}/task/{thread}/{file}").read_text(encoding="ascii")
        except OSError as error:
            if is_users(error):
                raise
            continue
        yield int(thread), [int(word) for word in text.split()]


def _settings(pid: int) -> dict[str, str]:
    """Only the variables about threads are read; the rest of the environment is nobody's business."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError as error:
        if is_users(error):
            raise
        return {}
    pairs = (word.decode("utf-8", "replace").partition("=") for word in words)
    return {name: value for name, _, value in pairs if name in THREAD_VARIABLES}
