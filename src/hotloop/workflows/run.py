"""`hotloop run`: runs an unmodified script and records it and every process it starts, however it ends."""

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
from hotloop._util.errors import CaptureError, FileError, HotloopError
from hotloop._util.files import create_exclusively
from hotloop._util.read_files import json_text
from hotloop.capture.folder import (
    CAPTURE_VARIABLE,
    FACTS,
    RUN_ID_VARIABLE,
    new_folder,
    new_run_id,
    update_facts,
)
from hotloop.capture.model import Capture
from hotloop.capture.secrets import REDACTED, describe
from hotloop.capture.virtual import FOLDER as VIRTUAL
from hotloop.capture.virtual import PLAN, VirtualPlan
from hotloop.instrument.bootstrap import RUN_VARIABLE
from hotloop.instrument.gap_names import GAPS, MINOR
from hotloop.measure.capture_facts import new_facts
from hotloop.workflows.merge import align_computers
from hotloop.workflows.run_progress import following
from hotloop.workflows.secrets import command_with_secrets

PACKAGE = Path(hotloop.__file__).parent
STARTUP = PACKAGE / "instrument" / "startup"
LAUNCH_OPTIONS = ("nnodes", "rdzv-id", "rdzv-endpoint", "master-addr", "master-port")
BLINDING_FLAGS = {"I": "ignores PYTHONPATH", "E": "ignores PYTHONPATH", "S": "skips sitecustomize"}


@dataclass(frozen=True)
class ScriptRun:
    """How a script ended, and where its capture is."""

    folder: Path
    command: tuple[str, ...]
    exit_code: int  # the script's own, negative when a signal ended it
    interrupted: bool  # by Ctrl-C or SIGTERM

    @property
    def ending(self) -> str:
        """How it ended, as shown to users and written to capture.json."""
        if self.exit_code >= 0:
            return "finished" if self.exit_code == 0 else f"exit code {self.exit_code}"
        return f"ended by {signal.Signals(-self.exit_code).name}"

    @property
    def ending_as_predicate(self) -> str:
        """The same for a sentence that begins with "the script"."""
        return f"ended with {self.ending}" if self.exit_code > 0 else f"was {self.ending}"


def run_recorded(
    words: tuple[str, ...],
    folder: Path | None,
    options: dict[str, Any],
    quiet: bool,
    what_if: VirtualPlan | None = None,
    progress: bool = False,
) -> ScriptRun:
    """Run a command and record it; with `quiet` its stdout goes to stderr.

    With `what_if`, regions are virtually faster in turn; the plan goes into the capture. With `progress`,
    a line on stderr now and then says how far it is.
    """
    command = resolve_command(words)
    target = folder or new_folder(script_name(command))
    run_id = begin_capture(target, command)
    if what_if is not None:
        options = options | {"what_if": what_if.as_json()}
        (target / VIRTUAL).mkdir(exist_ok=True)
        create_exclusively(target / VIRTUAL / PLAN, json_text(what_if.as_json()))
    environment = recording_environment(target, options=options, run_id=run_id)
    with following(target, command, progress):
        child = subprocess.Popen(command, env=environment, stdout=sys.stderr if quiet else None)
        interrupted = wait_for(child)
    ran = ScriptRun(target, tuple(command), child.returncode, interrupted)
    with contextlib.suppress(OSError, FileError):
        update_facts(target, {"ended_at_ns": time.time_ns(), "exit_status": ran.ending})
    if launch_key(command) is not None:  # other computers may have recorded into this capture
        with contextlib.suppress(OSError, HotloopError):
            for sentence in align_computers(target):
                print(f"hotloop: {sentence}", file=sys.stderr)
    return ran


def recording_environment(
    folder: Path,
    base: Mapping[str, str] | None = None,
    options: dict[str, Any] | None = None,
    run_id: str | None = None,
) -> dict[str, str]:
    """Environment in which any Python, unmodified, and everything it starts records into `folder`.

    All of it is one run: the one with this id, or a new one.
    """
    place = {CAPTURE_VARIABLE: str(folder.absolute()), RUN_ID_VARIABLE: run_id or new_run_id()}
    return startup_environment(base, options) | place


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
    """Whether a script got no further than its imports, such as with a wrong argument or a missing file."""
    names = {node.name for thread in capture.threads for node in thread.root.children}
    return all(name in MINOR or name.startswith(GAPS) for name in names)


def begin_capture(folder: Path, command: list[str]) -> str:
    """Create the capture folder that the processes of the script will join; returns the id of their run."""
    run_id = new_run_id()
    facts = new_facts(command=command, run_id=run_id)
    if (launch := launch_key(command)) is not None:
        facts["launch"] = launch
    if facts["working_folder"] is None and not folder.is_absolute():
        raise CaptureError(
            f"{folder} cannot be created: the working folder was deleted; change to another folder, or give "
            "--capture an absolute path."
        )
    if facts.get(REDACTED):
        print(f"hotloop: {describe(facts[REDACTED])}", file=sys.stderr)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        created = create_exclusively(folder / "capture.json", json_text(facts, indent=2))
    except OSError as error:
        raise CaptureError(
            f"{folder} cannot be written ({error.strerror}); choose another folder."
        ) from error
    if not created:
        joined = _run_of_same_launch(folder, facts.get("launch"))
        if joined is None:
            raise CaptureError(f"{folder} already has a capture; choose another folder, or delete it.")
        return joined
    return run_id


def launch_key(command: list[str]) -> str | None:
    """Options of torchrun that all nodes share: where its ranks meet; None for one node."""
    words = [word for given in command for word in given.split("=", 1)]
    names = [word.lstrip("-").replace("_", "-") if word.startswith("--") else word for word in words]
    is_torchrun = any(Path(word).name == "torchrun" or word == "torch.distributed.run" for word in words[:4])
    told = {name: words[at + 1] for at, name in enumerate(names[:-1]) if name in LAUNCH_OPTIONS}
    if not is_torchrun or told.pop("nnodes", "1") in ("1", "1:1") or not told:
        return None
    return " ".join(f"{name}={value}" for name, value in sorted(told.items()))


def _run_of_same_launch(folder: Path, launch: str | None) -> str | None:
    """The id of a run that another node of the same launch has begun in this folder."""
    if launch is None:
        return None
    found = FACTS.read_object(folder / "capture.json")
    same = found.get("launch") == launch and found.get("ended_at_ns") is None
    return found.get("run_id") if same else None


def wait_for(child: subprocess.Popen[bytes]) -> bool:
    """Wait for the child; returns whether it was interrupted.

    The terminal sends Ctrl-C to the child as well; SIGTERM is passed on; the third signal kills it.
    """
    asked = 0

    def pass_on(number: int, frame: object) -> None:
        nonlocal asked
        asked += 1
        if child.poll() is None and (number != signal.SIGINT or asked > 1):
            child.send_signal(signal.SIGKILL if asked > 2 else number)

    with signals_handled((signal.SIGINT, signal.SIGTERM), pass_on):
        while True:
            with contextlib.suppress(InterruptedError):
                child.wait()
                return asked > 0 or child.returncode in (-signal.SIGINT, 128 + signal.SIGINT)


@contextlib.contextmanager
def signals_handled(signals: tuple[signal.Signals, ...], handler: Any) -> Iterator[None]:
    """Handle signals for a while; does nothing outside of the main thread."""
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


def resolve_command(words: tuple[str, ...], verb: str = "run") -> list[str]:
    """The command to start, from `train.py ...`, `-m module ...` or a whole command line.

    `verb` is for messages: what the user typed after `hotloop`.
    """
    if not words:
        raise HotloopError(f"No script to run; name one, as in: hotloop {verb} train.py --its arguments")
    words = command_with_secrets(words)
    first = words[0]
    if first == "-m" or first.endswith(".py"):
        if first.endswith(".py") and not Path(first).is_file():
            raise HotloopError(f"The script {first!r} does not exist{_did_you_mean(first) or '.'}")
        return [sys.executable, *words]
    program = shutil.which(first)
    if program is None:
        if Path(first).is_file():
            return [sys.executable, *words]
        raise HotloopError(
            f"{first!r} is neither a script nor a command{_did_you_mean(first)}; "
            "name a .py file, -m and a module, or a command on PATH."
        )
    check_recordable([first, *words[1:]], program, verb)
    return list(words)


def check_recordable(command: list[str], program: str, verb: str = "run") -> None:
    """Raise HotloopError for a Python started with -I, -E or -S, which never loads our start-up hook."""
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
                f"{where} cannot be {'boosted' if verb == 'boost' else 'recorded'}: -{blind} "
                f"{BLINDING_FLAGS[blind]}, which starts {'it' if verb == 'boost' else 'the recording'}; "
                f"run it without: hotloop {verb} {shlex.join(instead)}"
            )


def _python_flags(words: list[str]) -> tuple[list[str], list[str]]:
    """The flags of the interpreter, and the rest, beginning with the script, -m or -c."""
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


def script_name(command: list[str]) -> str:
    """A short name for the capture folder: that of the script or module."""
    for at, word in enumerate(command[1:], 1):
        if word == "-m" and at + 1 < len(command):
            return command[at + 1]
        if not word.startswith("-"):
            return Path(word).stem
    return os.path.basename(command[0])
