"""The result of `hotloop tune` as text and as JSON."""

from __future__ import annotations

import shlex
import statistics
import time
from collections.abc import Sequence
from typing import Any

from hotloop._util.redact import redact
from hotloop._util.units import percent, size
from hotloop.report.pen import Pen, table
from hotloop.report.series_text import comparison_json
from hotloop.report.to_json import json_object
from hotloop.report.verdict import headline, noise_floor_text
from hotloop.workflows.tune import (
    ALL,
    BASE_NAMES,
    SAFE,
    Settings,
    Tuned,
    Tuning,
    budget_for,
    too_few_probes,
    words_of,
)

MOST_ROWS = 8


def tuning_text(tuning: Tuning, pen: Pen) -> str:
    """The whole result as text."""
    lines = [*_table_lines(tuning, pen), *_model_lines(tuning, pen), ""]
    if tuning.interrupted and not tuning.compared:
        lines.append(pen.paint("Interrupted before the comparison with your settings.", "bold yellow"))
        return "\n".join(lines)
    lines += _verdict_lines(tuning, pen)
    return "\n".join([*lines, "", *_next_lines(tuning, pen)])


def _table_lines(tuning: Tuning, pen: Pen) -> list[str]:
    searched = tuning.searched
    made = len(searched.probes)
    probes = f"{made} probe{'' if made == 1 else 's'} in {searched.spent_s:.0f} s"
    about = f"{probes}, {searched.legal} combinations"
    lines = [pen.heading(f"Tuning {pen.clean(tuning.target.name, 40)}", about)]
    if tuning.node:
        lines.append(pen.wrap(f"All probes were made on node {pen.clean(tuning.node)}.", "  "))
    rows = [(f"{tuning.unit}s per second of the best settings", "predicted", "measured", "memory")]
    finalists = searched.finalists_by_speed()[:MOST_ROWS]
    common, remark = _common([settings for settings, _, _ in finalists], searched.space.current)
    for settings, predicted, measured in finalists:
        held = tuning.target.memory_bytes(settings, searched.probes)
        yours = "(yours)" if settings == searched.space.current else ""
        words = words_of(tuple(one for one in settings if one[0] not in common))
        rows.append((f"{words} {yours}".strip(), _rate(predicted), _rate(measured), size(held)))
    drawn = table(pen, rows)
    lines += [pen.paint(drawn[0], "dim"), *drawn[1:], *([pen.wrap(remark, "  ")] if remark else [])]
    failed = [p for p in searched.probes if p.failure]
    for probe in failed[:3]:
        lines.append(pen.wrap(f"failed: {words_of(probe.settings)}: {probe.failure}", "  "))
    if searched.too_large:
        words = (
            f"{searched.too_large} combinations were left out: they would need over half of the free memory."
        )
        lines.append(pen.wrap(words, "  "))
    return lines


def _common(finalists: Sequence[Settings], current: Settings) -> tuple[set[str], str]:
    """Names of settings with the same value in all finalists but the current one, and a sentence on them."""
    others = [settings for settings in finalists if settings != current]
    same = set.intersection(*(set(settings) for settings in others)) if len(others) > 1 else set()
    if not same:
        return set(), ""
    words = words_of(tuple(one for one in others[0] if one in same))
    who = "All" if current not in finalists or same <= set(current) else "All but yours"
    return {name for name, _ in same}, f"{who} have {words}."


def _rate(seconds: float | None) -> str:
    return "-" if not seconds else f"{1 / seconds:,.0f}/s" if seconds < 1 else f"{seconds:.3g} s"


def _model_lines(tuning: Tuning, pen: Pen) -> list[str]:
    model = tuning.searched.model
    if model is None:
        return []
    said = [f"The model misses the probes by {percent(model.error_fraction)} (median)."]
    if model.inference is not None:
        ceiling, half = model.inference
        said.append(
            f"Inference alone limits the rate to {ceiling:,.0f} env steps/s, and to half of that with "
            f"{half:,.0f} envs."
        )
    return [pen.wrap(" ".join(said), "  ")]


def _verdict_lines(tuning: Tuning, pen: Pen) -> list[str]:
    found = [
        (row, BASE_NAMES[done.series.plan.variants[0].name])
        for done in tuning.compared
        for row in done.comparison.compared
    ]
    if not found:
        made = len(tuning.searched.probes)
        if too_few_probes(tuning.searched):
            words = f"No result: there was only time to try {made} of {tuning.searched.legal} combinations"
            return pen.wrap(f"{words}{_more_time(tuning)}.").split("\n")
        return [pen.paint("Keep your settings: the search found nothing faster.", "bold")]
    lines = []
    for row, base in found:
        name = row.variant.name
        settings = " ".join(row.variant.overrides)
        kind = "same results" if row.variant.safety == "safe" else "may change learning"
        faster = row.verdict.word == "faster"
        said = headline(row.verdict, base, "this")
        if row.verdict.word == "undecided":
            said = f"Keep {base} for now. {said}; a larger --budget makes more pairs."
        elif not faster:
            said = f"Keep {base}. {said}."
        style = "bold green" if faster else "bold yellow" if row.verdict.word == "undecided" else "bold"
        lines += [pen.paint(line, "bold") for line in pen.wrap(f"{settings} ({kind})", "", "  ").split("\n")]
        lines += [pen.paint(line, style) for line in pen.wrap(said, "  ").split("\n")]
        lines.append(pen.wrap(noise_floor_text(row.verdict), "  "))
        if row.variant.safety == "semantic" and name in (ALL, SAFE):
            for key in (word.partition("=")[0] for word in row.variant.overrides):
                knob = tuning.searched.space.knob(key)
                if knob.invariant and knob.safety == "semantic":
                    lines.append(pen.wrap(f"{key}: {knob.invariant}.", "  "))
    return lines


def _more_time(tuning: Tuning) -> str:
    """The budget to give after a search that was too short, from the length of a probe."""
    spent_s = [probe.spent_s for probe in tuning.searched.probes]
    if not spent_s:
        return "; give a larger --budget"
    needed_s = budget_for(statistics.median(spent_s))
    return f"; each takes {max(spent_s):.0f} s here, so give about --budget {-(-needed_s // 60):.0f}m"


def _next_lines(tuning: Tuning, pen: Pen) -> list[str]:
    tuned, target = tuning.tuned, tuning.target
    lines = []
    if tuning.node and (tuned.safe or tuned.semantic):
        lines.append(pen.wrap("These are settings for the cluster; --tuned does not apply them."))
    if target.is_workload and not tuning.node:
        for wanted, flag in ((tuned.safe, "--tuned"), (tuned.semantic, "--tuned-semantic")):
            if wanted:
                lines.append(pen.command(f"next: {_shown(target.command_for(wanted))} {flag}"))
    else:
        for settings, wanted in (
            (tuning.searched.best_safe, tuned.safe),
            (tuning.searched.best, tuned.semantic),
        ):
            if wanted:
                variables = () if target.is_workload else target.variables(settings)
                before = [f"{name}={value}" for name, value in variables]
                lines.append(pen.command(f"next: {' '.join([*before, _shown(target.command(settings))])}"))
    for done in tuning.compared:
        lines.append(f"more: hotloop report {shlex.quote(str(done.series.path))}")
    return lines or [f"The probes are in {shlex.quote(str(tuning.folder))}."]


def tuning_json(tuning: Tuning) -> dict[str, Any]:
    """The whole result as JSON."""
    compared = [comparison_json(done.series, done.comparison) for done in tuning.compared]
    otherwise = "undecided" if too_few_probes(tuning.searched) else "keep_yours"
    data = {
        "target": tuning.target.name,
        "folder": str(tuning.folder),
        "interrupted": tuning.interrupted,
        "failed": tuning.failed or None,
        "unit": tuning.unit,
        "node": tuning.node or None,
        "search": tuning.searched.as_json(),
        "tuned": tuning.tuned,
        "decision": {name: tuning.decision(name) for name in (SAFE, ALL) if tuning.row(name)} or otherwise,
        "compare": compared,
    }
    return json_object("tuning", data)


def tuned_before_text(found: Tuned) -> str:
    """A cached result as text."""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.at_s))
    lines = [f"{found.target}, tuned on {when} on this machine with these versions"]
    for kind, settings, gain in (
        ("same results", found.safe, found.safe_gain),
        ("may change learning", found.semantic, found.semantic_gain),
    ):
        words = " ".join(f"{key}={value}" for key, value in settings.items())
        lines.append(f"  {kind}: {words}: {gain}" if settings else f"  {kind}: nothing faster was found")
    return "\n".join([*lines, *(f"  {sentence}" for sentence in found.invariants)])


def _shown(command: Sequence[str]) -> str:
    return shlex.join(redact(command).words)
