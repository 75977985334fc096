"""A capture in a few figures, cheap enough for a list of hundreds."""

from __future__ import annotations

from dataclasses import dataclass

from hotloop.analysis.categories import Resolver
from hotloop.analysis.tree import driving_thread
from hotloop.analysis.windows import time_series
from hotloop.capture.model import Capture


@dataclass(frozen=True, slots=True)
class Overview:
    """What a list of captures shows of one."""

    command: tuple[str, ...]
    started_at_ns: int | None  # since 1970
    wall_ns: int
    env_steps: int
    updates: int
    env_steps_per_s: float | None  # of the whole run; None: no env steps were reported
    rate_over_time: tuple[float, ...]  # env steps/s (updates/s without any) window by window
    running: bool
    exit_status: str | None


def overview(capture: Capture) -> Overview:
    """The figures of a capture, finished or still being written."""
    rates: tuple[float, ...] = ()
    found = driving_thread(capture)
    if found is not None:
        series = time_series(capture, *found, Resolver(()))
        rates = series.get("env_steps_per_s") or series.get("updates_per_s") or ()
    done, wall_s = capture.progress, capture.wall_ns / 1e9
    return Overview(
        command=tuple(capture.command),
        started_at_ns=capture.facts.get("started_at_ns"),
        wall_ns=capture.wall_ns,
        env_steps=done.env_steps,
        updates=done.updates,
        env_steps_per_s=done.env_steps / wall_s if done.env_steps and wall_s else None,
        rate_over_time=rates,
        running=any(process.alive for process in capture.processes),
        exit_status=capture.facts.get("exit_status"),
    )
