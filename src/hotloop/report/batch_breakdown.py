"""A training batch by its parts, and what a comparison of two modes means, as text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from hotloop._util.units import duration, percent
from hotloop.analysis.batch_breakdown import COLLECTION, BatchBreakdown, Explanation, Impact, Part
from hotloop.analysis.findings import Estimate, Recommendation, Tier
from hotloop.analysis.verdict import ComponentVerdict
from hotloop.report.palette import colour_of
from hotloop.report.pen import Pen, table
from hotloop.report.safe_text import columns, words
from hotloop.report.to_json import json_object
from hotloop.report.verdict import component_lines

_COLOURS = {  # part -> the category it mostly belongs to
    COLLECTION: "framework",
    "env_step": "environment",
    "env_reset": "environment",
    "policy_forward": "policy",
    "tensordict": "framework",
    "storing": "replay",
    "replay_buffer": "replay",
}
_NOT_WORTH = "not_worth_optimising"
_REMEDIES = {
    "env_step": "a compiled simulator (--turbo), or more envs per call",
    "env_reset": "reset inside the step (same-step autoreset), or longer episodes",
    "policy_forward": "more envs per policy call, or a smaller network",
    "tensordict": "more envs per step of the collector",
    "storing": "write into preallocated arrays",
    "advantage": "one pass over arrays per batch",
    "replay_buffer": "index arrays instead of a buffer object; a larger batch_size",
    "loss": "a larger batch_size or fewer n_epochs (changes learning)",
    "backward": "a larger batch_size or fewer n_epochs (changes learning)",
    "optimizer": "a fused optimizer; a larger batch_size (changes learning)",
    "fused_rollout": "a smaller network",
    "fused_update": "fewer n_epochs or a smaller network (changes learning)",
}


def breakdown_text(found: BatchBreakdown, pen: Pen, title: str = "A training batch") -> str:
    """Time per batch, share and a bar for each part; the parts of collection are indented."""
    number = f"{found.batches} batches" if found.batches > 1 else "1 batch"
    lines = [pen.heading(title, f"{number}, {duration(found.mean_ns)} each")]
    drawn: list[tuple[Part, str]] = []
    for part in found.parts:
        drawn += [(part, ""), *((inner, "  ") for inner in part.inner)]
    rows = [
        (f"{before}{words(part.name)}", _seconds(part.own_ns / found.batches), percent(part.share))
        for part, before in drawn
    ]
    made = table(pen, [("part", "per batch", "share"), *_kept(rows)], spare=12)
    lines.append(pen.paint(made[0], "dim"))
    room = pen.width - max(columns(line) for line in made) - 2
    largest = max(part.share for part, _ in drawn) or 1.0
    for line, (part, _) in zip(made[1:], drawn, strict=True):
        colour = colour_of(_COLOURS.get(part.name, part.name))
        lines.append(f"{line}  {pen.bar(part.share / largest, room, colour)}".rstrip())
    said = (
        f"The fastest batch took {duration(found.min_ns)}, the slowest {duration(found.max_ns)}, without the "
        "warm-up batch. Collection is measured as its own region, not as the remainder."
    )
    lines.append(pen.dim(pen.wrap(said, "  ")))
    return "\n".join(lines)


def _seconds(ns: float) -> str:
    """Seconds, or a smaller unit below a millisecond."""
    return f"{ns / 1e9:.4f} s" if ns >= 1e6 else duration(ns)


def _kept(rows: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Indent with `- `: tables strip leading blanks."""
    return [(name.replace("  ", "- ", 1) if name.startswith("  ") else name, *rest) for name, *rest in rows]  # type: ignore[misc]


def totals_text(found: Sequence[ComponentVerdict], pen: Pen) -> str:
    """Sums of parts with their verdicts; "" without any."""
    if not found:
        return ""
    heading = pen.heading("Totals", "sums of the parts above; the policy's forward pass is in both")
    return "\n".join([heading, *component_lines(found, pen)])


def explanation_text(found: Explanation, pen: Pen) -> str:
    """Predicted against measured gain, in sentences."""
    return "\n".join(
        [pen.heading("Where the gain comes from"), *(pen.wrap(s, "  ") for s in found.sentences)]
    )


def impacts_text(found: Sequence[Impact], pen: Pen, aside: str, last: str = "") -> str:
    """What to optimise next, by tier; `last` is a closing sentence."""
    lines = [pen.heading("What to optimise next", aside)]
    for tier in get_args(Tier):
        rows = [one for one in found if one.tier == tier]
        if not rows:
            continue
        lines.append(pen.paint(f"  {words(tier)}" if tier == _NOT_WORTH else f"  {tier} impact", "bold"))
        if tier == _NOT_WORTH:
            names = ", ".join(f"{words(one.name)} ({percent(one.share.value)})" for one in rows)
            lines.append(pen.wrap(names, "    "))
            continue
        for one in rows:
            gain = factor(one.gain_if_twice_as_fast)
            said = f"{words(one.name)}, {percent(one.share.value)}: making it twice as fast would give {gain}"
            remedy = _REMEDIES.get(one.name, "")
            after = f" {remedy[:1].upper()}{remedy[1:]}." if remedy else ""
            lines.append(pen.wrap(f"{said}.{after}", "    ", "      "))
    return "\n".join([*lines, *([pen.wrap(last, "  ")] if last else [])])


def advice_text(found: Sequence[Recommendation], pen: Pen) -> str:
    """Recommendations about regions of a batch, one line each; "" for none."""
    if not found:
        return ""
    lines = [pen.heading("Advice", "predicted gain of the whole run")]
    for one in found:
        gain = f", {factor(one.gain)}" if one.gain is not None else ""
        worth = words(one.tier) if one.tier == _NOT_WORTH else f"{one.tier} impact"
        lines.append(pen.wrap(f"{one.title} ({worth}{gain})", "  ", "    "))
    return "\n".join(lines)


def factor(speed_up: Estimate) -> str:
    """`1.23x [1.20, 1.27]`."""
    return f"{speed_up.value:.2f}x [{speed_up.low:.2f}, {speed_up.high:.2f}]"


def breakdown_json(found: BatchBreakdown) -> dict[str, Any]:
    """The breakdown for `--json`."""
    return json_object("breakdown", found)
