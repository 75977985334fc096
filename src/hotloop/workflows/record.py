"""`hotloop.start`, `hotloop.stop` and `hotloop.summary`: the default profiler, with readable summaries."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from hotloop._util.errors import HotloopError
from hotloop._util.interrupts import is_users, suppress_own
from hotloop.capture.folder import new_folder
from hotloop.measure.device import Device, TorchDevice
from hotloop.measure.part import process_label
from hotloop.measure.profiler import default
from hotloop.report.region_tree import summary_table
from hotloop.workflows.project_settings import apply_redaction


def start(
    folder: str | os.PathLike[str] | None = None,
    *,
    summary_every_steps: int = 0,
    summary_every_s: float = 0.0,
    summary_to: TextIO | Callable[[str], Any] | None = None,
    memory: bool = True,
    timeline: bool = False,
    device: Device | str | None = None,
    config: dict[str, Any] | None = None,
    seeds: dict[str, int] | None = None,
    run_id: str | None = None,
) -> Path | None:
    """Start recording this process and its children; returns the capture folder, None if there is none.

    The default folder is `hotloop-runs/<time>-<script>`. A folder that holds the capture of another run is
    left alone, and a warning names the one used instead; processes that give the same `run_id` share a
    capture. Recording never ends a run: what goes wrong leads to a warning.

    With `summary_every_steps` (env steps) or `summary_every_s`, a table is written to `summary_to` (a stream
    or a function, default stderr) during training. `device` is "cuda", "xpu" or an object with the methods of
    `hotloop.measure.device.Device`.
    """
    if default.is_recording:
        call = f"start({str(folder)!r})" if folder is not None else "start()"
        place = default.folder or "memory"
        _say(f"{call} is ignored: this run is already recorded into {place}")
        return default.folder
    try:
        apply_redaction()
    except (HotloopError, OSError) as error:  # OSError: the current folder is gone
        print(f"hotloop: the settings of this project are not used: {error}", file=sys.stderr)
    target = Path(folder) if folder is not None else new_folder(process_label())
    default.start(
        target,
        memory=memory,
        timeline=timeline,
        device=_accelerator(device) if isinstance(device, str) else device,
        config=config,
        seeds=seeds,
        run_id=run_id,
    )
    if summary_every_steps or summary_every_s:
        default.summarise_every(
            lambda: _write(summary_to, summary()), env_steps=summary_every_steps, seconds=summary_every_s
        )
    return default.folder


def stop() -> Path | None:
    """Stop the recording; returns the capture folder."""
    return default.stop()


def summary() -> str:
    """A table of what this process has recorded so far, one line per region."""
    capture = default.capture()
    return summary_table(list(default.stats().values()), capture.progress)


def _accelerator(name: str) -> Device | None:
    try:
        return TorchDevice(name)
    except Exception as error:
        if is_users(error):
            raise
        _say(f"the time of {name!r} is not measured: {error}")
        return None


def _say(sentence: str) -> None:
    with suppress_own(Exception):  # stderr may be closed
        print(f"hotloop: {sentence}", file=sys.stderr)


def _write(target: TextIO | Callable[[str], Any] | None, text: str) -> None:
    if callable(target):
        target(text)
    else:
        print(text, file=target or sys.stderr, flush=True)
