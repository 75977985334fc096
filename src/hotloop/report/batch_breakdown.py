"""A training batch by its parts, and what a comparison of two modes means, as text and plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from hotloop._util.units import duration, percent
from hotloop.analysis.batch_breakdown import COLLECTION, BatchBreakdown, Explanation, Impact, Part
from hotloop.analysis.findings import Estimate, Recommendation, Tier
from hotloop.report.palette import colour_of
from hotloop.report.pen import Pen, table
from hotloop.report.safe_text import columns
from hotloop.report.to_json import plain

SCHEMA_VERSION = 1  # of `breakdown_json`
_COLOURS = {  # of the category each part mostly is
    COLLECTION: "framework",
    "env step": "environment",
    "env reset": "environment",
    "policy forward": "policy",
    "tensordict work": "framework",
    "storing": "replay",
    "replay buffer": "replay",
}
_NOT_WORTH = "not worth optimising"
_REMEDIES = {
    "env step": "a compiled simulator (--turbo), or more envs in one call",
    "env reset": "reset inside the step (same-step autoreset), or longer episodes",
    "policy forward": "more envs, so that one call serves more rows; a smaller network",
    "tensordict work": "more envs for each step of the collector",
    "storing": "write into arrays made once",
    "advantage": "one pass over arrays, once for each batch",
    "replay buffer": "index arrays instead of a buffer object; larger minibatches",
    "loss": "larger minibatches or fewer epochs (changes learning)",
    "backward": "larger minibatches or fewer epochs (changes learning)",
    "optimizer": "a fused optimizer; larger minibatches (changes learning)",
    "rollout, one kernel": "a smaller network",
    "learning, one kernel": "fewer epochs or a smaller network (changes learning)",
}


def breakdown_text(found: BatchBreakdown, pen: Pen, title: str = "A training batch") -> str:
    """Seconds per batch, percent and a bar for each part; what collection consists of is indented."""
    number = f"{found.batches} batches" if found.batches > 1 else "1 batch"
    lines = [pen.heading(title, f"{number}, {duration(found.mean_ns)} each")]
    drawn: list[tuple[Part, str]] = []
    for part in found.parts:
        drawn += [(part, ""), *((inner, "  ") for inner in part.inner)]
    rows = [
        (f"{before}{part.name}", _seconds(part.own_ns / found.batches), percent(part.share))
        for part, before in drawn
    ]
    made = table(pen, [("part", "per batch", "share"), *_kept(rows)], spare=12)
    lines.append(pen.paint(made[0], "dim"))
    room = pen.width - max(columns(line) for line in made) - 2
    largest = max(part.share for part, _ in drawn) or 1.0
    for line, (part, _) in zip(made[1:], drawn, strict=True):
        colour = colour_of(_COLOURS.get(part.name, part.name))
        lines.append(f"{line}  {pen.bar(part.share / largest, room, colour)}".rstrip())
    slowest = f"The fastest batch took {duration(found.min_ns)}, the slowest {duration(found.max_ns)}; "
    said = f"{slowest}one batch to warm up is left out. Collection is a region of its own, not what is left."
    lines.append(pen.dim(pen.wrap(said, "  ")))
    return "\n".join(lines)


def _seconds(ns: float) -> str:
    """Seconds where there are digits to show, else the unit that fits."""
    return f"{ns / 1e9:.4f} s" if ns >= 1e6 else duration(ns)


def _kept(rows: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Cells of a table are cleaned of leading blanks; a mark that stays takes their place."""
    return [(name.replace("  ", "- ", 1) if name.startswith("  ") else name, *rest) for name, *rest in rows]  # type: ignore[misc]


def explanation_text(found: Explanation, pen: Pen) -> str:
    """Predicted against measured, in sentences."""
    return "\n".join(
        [pen.heading("Why the whole gained this much"), *(pen.wrap(s, "  ") for s in found.says)]
    )


def impacts_text(found: Sequence[Impact], pen: Pen, aside: str, last: str = "") -> str:
    """What is worth working on next, by tier; `last` is a sentence that holds for all."""
    lines = [pen.heading("What is worth working on", aside)]
    for tier in get_args(Tier):
        rows = [one for one in found if one.tier == tier]
        if not rows:
            continue
        lines.append(pen.paint(f"  {tier}" if tier == _NOT_WORTH else f"  {tier} impact", "bold"))
        if tier == _NOT_WORTH:
            names = ", ".join(f"{one.name} ({percent(one.share.value)})" for one in rows)
            lines.append(pen.wrap(names, "    "))
            continue
        for one in rows:
            gain = factor(one.gain_if_twice_as_fast)
            said = f"{one.name}, {percent(one.share.value)}: twice as fast would give {gain}"
            remedy = _REMEDIES.get(one.name, "")
            after = f" {remedy[:1].upper()}{remedy[1:]}." if remedy else ""
            lines.append(pen.wrap(f"{said}.{after}", "    ", "      "))
    return "\n".join([*lines, *([pen.wrap(last, "  ")] if last else [])])


def rules_text(found: Sequence[Recommendation], pen: Pen) -> str:
    """The rules' findings about regions of a batch, one line each; "" for none."""
    if not found:
        return ""
    lines = [pen.heading("What the rules found", "predicted gain of the whole run")]
    for one in found:
        gain = f", {factor(one.gain)}" if one.gain is not None else ""
        worth = one.tier if one.tier == _NOT_WORTH else f"{one.tier} impact"
        lines.append(pen.wrap(f"{one.title} ({worth}{gain})", "  ", "    "))
    return "\n".join(lines)


def factor(speed_up: Estimate) -> str:
    """`1.23x [1.20, 1.27]`."""
    return f"{speed_up.value:.2f}x [{speed_up.low:.2f}, {speed_up.high:.2f}]"


def breakdown_json(found: BatchBreakdown) -> dict[str, Any]:
    """The breakdown as plain values, for `--json`."""
    return {"kind": "hotloop batch breakdown", "schema_version": SCHEMA_VERSION, **plain(found)}
