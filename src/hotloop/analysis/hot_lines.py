"""The table of hot lines in a report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hotloop.analysis.findings import Estimate, HotLine
from hotloop.analysis.line_samples import LineSamples, library_calls, line_of, waits
from hotloop.analysis.parsed_source import line_text
from hotloop.capture.samples import SLEEPING, SampledFrame, SampledPath


def hot_lines(
    lines: LineSamples,
    env_steps: int,
    updates: int,
    most: int = 20,
    whole_gain: Callable[[float], Estimate | None] | None = None,
) -> tuple[HotLine, ...]:
    """Lines of the user's code by the time they took, with the library calls they made.

    `whole_gain` returns the gain of the whole run if a share of the thread's time is saved.
    """
    by_line: dict[SampledFrame, list[int]] = {}
    for number, path in enumerate(lines.paths):
        frame = line_of(path)
        if frame is not None:
            by_line.setdefault(frame, []).append(number)
    texts = {(source.file, source.first_line): source for source in lines.sources}
    per, unit = (env_steps, "env_step") if env_steps else (updates, "update")
    found = []
    for frame, paths in by_line.items():
        share = lines.share_of(paths)
        if share <= 0:
            continue
        source = texts.get((frame.file, frame.first_line))
        called = library_calls(lines, paths)
        through = max(paths, key=lambda number: lines.weight_of([number]))
        found.append(
            HotLine(
                site=f"{frame.file}:{frame.line}",
                function=frame.function,
                text=line_text(source, frame.line) if source else "",
                called=called[0] if called else "",
                callers=tuple(f"{f.file}:{f.line}" for f in lines.paths[through].frames[:-1]),
                share=share,
                per=unit if per else "",
                ns_per_unit=share * lines.thread.wall_ns / per if per else None,
                gain_if_twice_as_fast=lines.gain(paths, (0.5, 0.5, 0.5)),
            )
        )
    ranked = sorted(found, key=lambda line: (-line.share, line.site))[:most]
    if whole_gain is None:
        return tuple(ranked)
    idle = np.isin(lines.path, lines.paths_where(waits)) & (lines.state == SLEEPING)
    made = []
    for line in ranked:
        mine = [n for n, path in enumerate(lines.paths) if _site_of(path) == line.site]
        part = float(lines.weight_ns[lines.among(mine) & ~idle].sum()) / max(lines.total_ns, 1.0)
        gain = whole_gain(part / 2) or line.gain_if_twice_as_fast
        made.append(replace(line, gain_if_twice_as_fast=gain))
    return tuple(made)


def _site_of(path: SampledPath) -> str:
    frame = line_of(path)
    return f"{frame.file}:{frame.line}" if frame is not None else ""
