"""One node of a Ray cluster, as the lab uses it: makes runs and sends their captures home.

Loaded on the node, in an actor that holds it for the lab (`ray_nodes.py`). Nothing here needs Ray.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hotloop._util import HOTLOOP_VERSION
from hotloop._util.files import host_name
from hotloop.capture.folder import CAPTURE_VARIABLE
from hotloop.lab.machine_lock import machine_lock
from hotloop.lab.process import Job, MakeRun, Outcome
from hotloop.machine.facts import machine_facts
from hotloop.machine.health import memory_available_bytes
from hotloop.machine.load_snapshot import load_snapshot

NODE_FOLDER_VARIABLE = "HOTLOOP_NODE_FOLDER"  # environment of a node: where it keeps what it makes
HOME = Path(__file__).parents[2]  # folder that holds our package
MOST_BYTES = 200 << 20  # of a working folder that is copied to nodes
LEFT_OUT = {"__pycache__", "node_modules", "hotloop-runs", "venv", "site-packages"}
# What a program needs to start is different on another computer; all else comes from the user's shell.
OWN_VARIABLES = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "PWD", "TMPDIR", "XDG_RUNTIME_DIR"),
    *("LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONHOME", "SSL_CERT_FILE"),
)
Identity = tuple[int, tuple[tuple[str, int], ...]]  # inode of a folder, and those of what is in it


class Made(NamedTuple):
    """One run that a node has made."""

    outcome: Outcome
    files: bytes | None  # a tar file of its capture and what is beside it; None: the lab's folder has them


def identity(folder: Path) -> Identity | None:
    """What tells whether two computers see the same folder; None if there is none."""
    try:
        with os.scandir(folder) as entries:
            return os.stat(folder).st_ino, tuple(sorted((entry.name, entry.inode()) for entry in entries))
    except OSError:
        return None


class LabNode:
    """Answers the lab's questions on this node."""

    def __init__(self) -> None:
        chosen = os.environ.get(NODE_FOLDER_VARIABLE)
        self.apart = bool(chosen)  # shares no folder with the lab
        self.folder = Path(tempfile.mkdtemp(prefix="hotloop-lab-", dir=chosen))
        self._copies: dict[str, Path] = {}  # working folder of the lab -> its copy here
        self._guard = _guard()
        self._group = 0  # of the processes of the run under way; 0: none
        self._lock = threading.Lock()

    def hello(self) -> dict[str, Any]:
        """Facts that do not change."""
        machine = {**machine_facts(), "memory_available_bytes": memory_available_bytes()}
        return {"version": HOTLOOP_VERSION, "host": host_name(), "machine": machine}

    def sees(self, folder: str, expected: Identity) -> bool:
        """Whether this is a folder of this node, too."""
        return not self.apart and identity(Path(folder)) == expected

    def unpack(self, folder: str, packed: bytes) -> None:
        """Copy a working folder of the lab, which this node does not see."""
        place = self.folder / f"copy-{len(self._copies)}"
        unpack(packed, place)
        self._copies[folder] = place

    def run(self, job: Job, home: str, python: str, shared: bool, make: MakeRun) -> Made:
        """Make one run with `make`; `home` and `python` are our package and the interpreter of the lab.

        With `shared`, this node sees the series and records into it.
        """
        capture = job.environment.get(CAPTURE_VARIABLE)
        here = None if capture is None or shared else self.folder / "run" / "capture"
        job = self._fitted(job, home, python, here)
        with self._lock, machine_lock(lambda sentence: None):
            self._clear_run(here)
            before = load_snapshot()
            try:
                outcome = make(job, self._tell_guard)
            finally:
                self._tell_guard(0)
            outcome = replace(outcome, before=before, after=load_snapshot())
        packed = pack(here.parent, _all_files(here.parent)) if here is not None and here.is_dir() else None
        self._clear_run(None)
        return Made(outcome, packed)

    def end(self, insist: bool) -> None:
        """End the run under way."""
        if self._group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL if insist else signal.SIGTERM)

    def forget(self) -> None:
        """Delete everything that was put here."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _tell_guard(self, group: int) -> None:
        self._group = group
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError):  # the guard is gone; the run is still ended at its end
            print(group, file=self._guard.stdin, flush=True)

    def _clear_run(self, capture: Path | None) -> None:
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        if capture is not None:
            capture.parent.mkdir(parents=True)

    def _fitted(self, job: Job, home: str, python: str, capture: Path | None) -> Job:
        """The job as this node can run it: folders, interpreter and variables of this computer."""
        copy = self._copies.get(str(job.folder))
        variables = dict(job.environment)
        if capture is not None:
            variables[CAPTURE_VARIABLE] = str(capture)
        if os.environ.get("CUDA_VISIBLE_DEVICES"):
            variables["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]  # as Ray has assigned them
        if copy is None:
            return replace(job, environment=variables)
        variables = own_environment(variables, {str(job.folder): str(copy), home: str(HOME)})
        first, *rest = job.command
        if Path(first).is_absolute() and first == python:
            first = sys.executable
        elif Path(first).is_absolute() and Path(first).parent == Path(python).parent:
            first = str(Path(sys.executable).with_name(Path(first).name))  # such as hotloop, of the same venv
        return replace(job, command=(first, *rest), environment=variables, folder=copy)


def own_environment(given: Mapping[str, str], moved: Mapping[str, str]) -> dict[str, str]:
    """The variables of the lab's shell on this computer; `moved` has folders there and what they are here."""
    kept = {name: value for name, value in given.items() if name not in OWN_VARIABLES}
    for name in ("PYTHONPATH", "HOTLOOP_HOME"):
        if name in kept:
            kept[name] = os.pathsep.join(_moved(path, moved) for path in kept[name].split(os.pathsep))
    own = {name: os.environ[name] for name in OWN_VARIABLES if name in os.environ}
    own["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), own.get("PATH", os.defpath)])
    return kept | own


def _moved(path: str, moved: Mapping[str, str]) -> str:
    for there in sorted(moved, key=len, reverse=True):
        if path == there or path.startswith(there.rstrip("/") + "/"):
            return moved[there] + path[len(there) :]
    return path


# -- folders -------------------------------------------------------------------------------------


def project_files(folder: Path) -> list[Path]:
    """Files of a working folder that a run may need, relative to it: those that git does not ignore.

    Raises ValueError if they are too many to be copied.
    """
    try:
        done = subprocess.run(
            ["git", "ls-files", "-coz", "--exclude-standard"],
            cwd=folder,
            capture_output=True,
            check=True,
            timeout=60,
        )
        names: Iterator[Path] = map(Path, filter(None, os.fsdecode(done.stdout).split("\0")))
    except (OSError, subprocess.SubprocessError):
        names = (file.relative_to(folder) for file in _all_files(folder))
    found, total = [], 0
    for name in names:
        file = folder / name
        if not file.is_file() or any(part in LEFT_OUT or part == ".git" for part in name.parts):
            continue
        total += file.stat().st_size
        if total > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES >> 20} MB")
        found.append(name)
    return found


def _all_files(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT and not name.startswith(".")]
        yield from (Path(place) / name for name in files)


def pack(folder: Path, files: Iterator[Path] | list[Path]) -> bytes:
    """A compressed tar file of these files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1, dereference=True) as tar:
        for file in files:
            tar.add(folder / file, (folder / file).relative_to(folder), recursive=False)
    return out.getvalue()


def unpack(packed: bytes, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as tar:
        tar.extractall(folder, filter="data")


# -- runs do not outlive their node --------------------------------------------------------------
# Ray ends an actor with SIGKILL, and a run has its own process group. A small process without a parent
# reads a pipe from the actor; when the actor is gone, it kills the group named last.

_GUARD = """
import os, signal, sys
if os.fork():
    os._exit(0)
group = 0
for line in sys.stdin:
    group = int(line)
if group:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


def _guard() -> subprocess.Popen[str]:
    guard = subprocess.Popen(
        [sys.executable, "-S", "-c", _GUARD], stdin=subprocess.PIPE, text=True, start_new_session=True
    )
    guard.wait()  # it has forked
    return guard
