"""`hotloop train WORKLOAD`: trains a reference pipeline under the profiler."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop._util.errors import CaptureError, FileError, HotloopError
from hotloop._util.extras import require_extra
from hotloop.capture.export import save_json
from hotloop.capture.folder import new_folder, update_facts
from hotloop.capture.model import Capture
from hotloop.capture.open_capture import read_export
from hotloop.instrument import libraries
from hotloop.instrument.bootstrap import record_ray_workers
from hotloop.instrument.live_metrics import Meter
from hotloop.measure.profiler import default
from hotloop.rl.workloads.outcome import Outcome as Outcome
from hotloop.workflows.record import start, stop

# workload -> class of its settings in hotloop/rl/workloads/<workload>.py, which also has `run` and `check`
WORKLOADS = {
    "ricochet": "Ricochet",
    "petri": "Petri",
    "snake": "Snake",
    "mario": "Mario",
    "imitate": "Imitate",
}
NOTE_EVERY_S = 2.0


@dataclass(frozen=True)
class Recording:
    """How a training run is recorded."""

    capture: Path | None = None
    profiling: bool = True
    summary_every_steps: int = 0
    timeline: bool = False


@dataclass(frozen=True, slots=True)
class Trained:
    """Result of a training run and the folder of its capture."""

    outcome: Outcome
    folder: Path | None  # None: it was not recorded


def config_class(name: str) -> type[Any]:
    """The settings of a workload."""
    if name not in WORKLOADS:
        raise HotloopError(f"{name!r} is not a workload; use one of {', '.join(WORKLOADS)}.")
    require_extra("torch", "rl")
    found: type[Any] = getattr(importlib.import_module(f"hotloop.rl.workloads.{name}"), WORKLOADS[name])
    return found


def lab_command(name: str, config: Any) -> tuple[str, ...]:
    """The command line of a run of the lab with these settings; {seed} stands for the seed of the pair."""
    words = [sys.executable, "-m", "hotloop", "train", name, "--no-profiling", "--seed", "{seed}"]
    for field in dataclasses.fields(config):
        value, flag = getattr(config, field.name), field.name.replace("_", "-")
        if field.name in ("seed", "checkpoint", "resume", "tensorboard_log") or value is None or value == "":
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, tuple):
            words += [f"--{flag}", *map(str, value)]
        else:
            words += [f"--{flag}", str(value)]
    return tuple(words)


def check_config(name: str, config: Any) -> None:
    """Raise HotloopError for invalid settings, before anything is planned or compiled."""
    importlib.import_module(f"hotloop.rl.workloads.{name}").check(config)


def train(name: str, config: Any, recording: Recording, quiet: bool = False) -> Trained:
    """Run the workload; its capture is complete no matter how it ends."""
    workload = importlib.import_module(f"hotloop.rl.workloads.{name}")
    workload.check(config)
    if not recording.profiling:
        return Trained(workload.run(config, None, quiet), None)
    check_capture_folder(recording.capture)
    if hasattr(workload, "prepare"):
        workload.prepare(config)  # compilation happens once on a machine and is not part of the training
    wanted = recording.capture or new_folder(f"train-{name}")
    plain = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    made = start(
        wanted,
        config=plain,
        seeds={"seed": config.seed},
        summary_every_steps=recording.summary_every_steps,
        timeline=recording.timeline,
    )
    folder = wanted if made is None or made == wanted.absolute() else made
    try:
        others = getattr(config, "trainer", "hotloop") != "hotloop"
        on_ray = record_ray_workers() if getattr(config, "on", "") else nullcontext()
        with on_ray, _libraries_wrapped(others):
            outcome = workload.run(config, _bottleneck_note(), quiet)
        if outcome.figures and default.folder is not None:
            try:
                update_facts(folder, {"figures": outcome.figures})
            except (OSError, FileError) as error:  # the outcome is printed all the same
                print(f"hotloop: {folder} does not hold the figures of the run ({error})", file=sys.stderr)
    finally:
        stop()
    return Trained(outcome, folder)


def check_capture_folder(folder: Path | None) -> None:
    """Raise CaptureError if a recording cannot go there because there is one already."""
    if folder is not None and (folder / "capture.json").exists():
        raise CaptureError(f"{folder} already has a capture; choose another folder, or delete it.")


def check_export(file: Path) -> None:
    """Raise HotloopError before a long training run if its report cannot be written at the end."""
    if not file.absolute().parent.is_dir():
        raise HotloopError(
            f"{file} cannot be written: the folder {file.absolute().parent} does not exist; create it."
        )
    if file.exists():
        try:
            read_export(file)
        except HotloopError:
            raise HotloopError(
                f"{file} exists and was not written by hotloop; choose another name, or move it."
            ) from None


def save_export(capture: Capture, file: Path) -> None:
    """Write the whole capture as one JSON file; replaces an older report."""
    try:
        save_json(capture, file)
    except OSError as error:
        raise HotloopError(
            f"{file} cannot be written ({error.strerror}); the capture is complete, export it with: "
            f"hotloop report {capture.path} -o NAME.capture.json"
        ) from error


@contextmanager
def _libraries_wrapped(wanted: bool) -> Iterator[None]:
    """While another library trains, record its calls as `hotloop run` does."""
    if not wanted or libraries.current is not None:
        yield
        return
    libraries.current = libraries.Instrumentation()
    libraries.current.install()
    try:
        yield
    finally:
        libraries.current.remove()
        libraries.current = None


def _bottleneck_note() -> Callable[[], str]:
    """A function that returns the current bottleneck for the progress line."""
    meter: Meter | None = None
    due_s, words = 0.0, ""

    def note() -> str:
        nonlocal meter, due_s, words
        if not default.is_recording:
            return ""
        if meter is None:
            meter, due_s = Meter(wrap=False), time.monotonic() + NOTE_EVERY_S
        elif time.monotonic() >= due_s:
            words, due_s = meter.read().diagnosis, time.monotonic() + NOTE_EVERY_S
        return words

    return note
