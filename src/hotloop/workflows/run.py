"""`hotloop run`: start a script nobody edited, record it and all it starts, whatever its end."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hotloop
from hotloop._util.errors import CaptureError, HotloopError
from hotloop._util.files import create_exclusively
from hotloop.capture.folder import CAPTURE_VARIABLE, new_folder, update_facts
from hotloop.capture.model import Capture
from hotloop.instrument.bootstrap import RUN_VARIABLE
from hotloop.instrument.gap_names import GAPS, MINOR
from hotloop.measure.capture_facts import new_facts

PACKAGE = Path(hotloop.__file__).parent
STARTUP = PACKAGE / "instrument" / "startup"
BLINDING_FLAGS = {"I": "ignores PYTHONPATH", "E": "ignores PYTHONPATH", "S": "skips sitecustomize"}


@dataclass(frozen=True)
class Ran:
    """How the script ended."""

    folder: Path
    command: tuple[str, ...]
    exit_code: int  # the script's own, negative when a signal ended it
    interrupted: bool  # by Ctrl-C or SIGTERM

    @property
    def ending(self) -> str:
        """In words, for people and for capture.json."""
        if self.exit_code >= 0:
            return "finished" if self.exit_code == 0 else f"exit code {self.exit_code}"
        return f"ended by {signal.Signals(-self.exit_code).name}"

    @property
    def told_ending(self) -> str:
        """The same as the end of a sentence about the script."""
        return f"ended with {self.ending}" if self.exit_code > 0 else f"was {self.ending}"


def run_recorded(words: tuple[str, ...], folder: Path | None, options: dict[str, Any], quiet: bool) -> Ran:
    """Run the command to its end, recording it; with `quiet` its stdout goes to stderr."""
    command = normal_command(words)
    target = folder or new_folder(name_of(command))
    begin_capture(target, command)
    environment = recording_environment(target, options=options)
    child = subprocess.Popen(command, env=environment, stdout=sys.stderr if quiet else None)
    interrupted = wait_for(child)
    ran = Ran(target, tuple(command), child.returncode, interrupted)
    with contextlib.suppress(OSError, ValueError):
        update_facts(target, {"ended_at_ns": time.time_ns(), "exit_status": ran.ending})
    return ran


def recording_environment(
    folder: Path, base: Mapping[str, str] | None = None, options: dict[str, Any] | None = None
) -> dict[str, str]:
    """Environment in which any Python, unmodified, and everything it starts records into `folder`."""
    return startup_environment(base, options) | {CAPTURE_VARIABLE: str(folder.absolute())}


def startup_environment(
    base: Mapping[str, str] | None = None, options: dict[str, Any] | None = None
) -> dict[str, str]:
    """Environment in which any Python records into the capture that HOTLOOP_CAPTURE names.

    Our start-up folder goes first on PYTHONPATH; its sitecustomize runs the user's own afterwards.
    """
    environment = dict(os.environ if base is None else base)
    environment[RUN_VARIABLE] = json.dumps(options or {"on": True})
    environment["HOTLOOP_HOME"] = str(PACKAGE.parent)
    before = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(STARTUP), *([before] if before else [])])
    return environment


def did_nothing(capture: Capture) -> bool:
    """Whether a script came no further than its imports: a wrong argument, a file that is not there."""
    names = {node.name for thread in capture.threads for node in thread.root.children}
    return all(name in MINOR or name.startswith(GAPS) for name in names)


def begin_capture(folder: Path, command: list[str]) -> None:
    """Make the capture folder that the script's processes will join."""
    if (folder / "capture.json").exists():
        raise CaptureError(
            f"{folder} holds a capture already; name another folder, or delete that one first."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        create_exclusively(folder / "capture.json", json.dumps(new_facts(command=command), indent=2))
    except OSError as error:
        raise CaptureError(f"{folder} cannot be written ({error.strerror}); choose another place.") from error


def wait_for(child: subprocess.Popen[bytes]) -> bool:
    """Wait for the child's end. Ctrl-C reaches it by itself; SIGTERM is passed on; a third one kills."""
    asked = 0

    def pass_on(number: int, frame: object) -> None:
        nonlocal asked
        asked += 1
        if child.poll() is None and (number != signal.SIGINT or asked > 1):
            child.send_signal(signal.SIGKILL if asked > 2 else number)

    with handling((signal.SIGINT, signal.SIGTERM), pass_on):
        while True:
            with contextlib.suppress(InterruptedError):
                child.wait()
                return asked > 0 or child.returncode in (-signal.SIGINT, 128 + signal.SIGINT)


@contextlib.contextmanager
def handling(signals: tuple[signal.Signals, ...], handler: Any) -> Iterator[None]:
    """Handle signals for a while; outside the main thread that is not ours to do."""
    try:
        before = {number: signal.signal(number, handler) for number in signals}
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


# -- the command -----------------------------------------------------------------------------------


def normal_command(words: tuple[str, ...]) -> list[str]:
    """`train.py ...`, `-m module ...` or a whole command line as something that can be started."""
    if not words:
        raise HotloopError("Name the script to run, as in: hotloop run train.py --its arguments")
    first = words[0]
    if first == "-m" or first.endswith(".py"):
        if first.endswith(".py") and not Path(first).is_file():
            raise HotloopError(f"There is no script {first!r}{_did_you_mean(first)}.")
        return [sys.executable, *words]
    program = shutil.which(first)
    if program is None:
        if Path(first).is_file():
            return [sys.executable, *words]
        raise HotloopError(
            f"There is no script and no command {first!r}{_did_you_mean(first)}; "
            "name a .py file, -m and a module, or a command on PATH."
        )
    refuse_blind_python([first, *words[1:]], program)
    return list(words)


def refuse_blind_python(command: list[str], program: str) -> None:
    """A Python started with -I, -E or -S never sees our start-up hook: say so, and what works."""
    if Path(program).name.startswith("python"):
        flags, script = _python_flags(command[1:])
        where, instead = " ".join([command[0], *flags]), script
    else:
        interpreter = _shebang(program)
        flags, _ = _python_flags(interpreter[1:])
        where, instead = (
            f"{command[0]} (its first line is #!{' '.join(interpreter)})",
            [program, *command[1:]],
        )
    for flag in flags:
        blind = "" if flag.startswith("--") else next((c for c in flag[1:] if c in BLINDING_FLAGS), "")
        if blind:
            raise HotloopError(
                f"{where} cannot be recorded: -{blind} {BLINDING_FLAGS[blind]}, where the recording begins. "
                f"Run it without: hotloop run {shlex.join(instead)}"
            )


def _python_flags(words: list[str]) -> tuple[list[str], list[str]]:
    """The interpreter's own flags, and the rest from the script, -m or -c on."""
    flags: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        flag = rest.pop(0)
        flags.append(flag)
        if flag in ("-W", "-X") and rest:
            rest.pop(0)
    return flags, rest


def _shebang(program: str) -> list[str]:
    try:
        with open(program, "rb") as file:
            line = file.readline(300)
    except OSError:
        return []
    words = line[2:].decode("utf-8", "replace").split() if line.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if word != "-S"]
    return words if words and "python" in Path(words[0]).name else []


def _did_you_mean(name: str) -> str:
    here = [str(path) for path in Path().glob("*.py")] + [str(path) for path in Path().glob("*/*.py")]
    close = difflib.get_close_matches(name, here, 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def name_of(command: list[str]) -> str:
    """A short name for the capture folder: the script's or module's."""
    for at, word in enumerate(command[1:], 1):
        if word == "-m" and at + 1 < len(command):
            return command[at + 1]
        if not word.startswith("-"):
            return Path(word).stem
    return os.path.basename(command[0])
