"""Gradients of parameters that nobody trains, as recordings saw them in a few backward passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hotloop._util.units import percent
from hotloop.analysis.advice.recommendation import LEAST_SAVED, Change, about, advise
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.advice.sampled_passes import backward_paths, fact
from hotloop.analysis.findings import Claim, Recommendation, Safety, short_site

# Parts that are saved of nodes that lead to untrained parameters alone, and of those that lead to others as
# well: a layer's gradients of weights cost as much as those of its input. The forward pass gets cheaper, too,
# since it builds no graph: for a target network with one hidden layer, by another 0.29 of what the backward
# pass saves (benchmarks/RESULTS.md).
ALONE, SHARED = (0.85, 1.05, 1.3), (0.25, 0.5, 0.6)
# Where networks are frozen that the loss only goes through, 0.57 to 0.59 was measured
# (benchmarks/discarded_gradients.py)
SHARED_DISCARDED = (0.3, 0.57, 0.67)
LEAST_ELEMENTS = 0.3  # of a pass that could not be timed
LEAST_UNTIMED = 0.2  # of training, in such passes


def looked_at_gradients(run: RunView) -> bool:
    """Whether the recording knows what becomes of the gradients."""
    found = fact(run, "gradients")
    return found is not None and found["windows"] > 1


def untrained_gradients(run: RunView) -> list[Recommendation]:
    """Backward passes that compute gradients of parameters which no optimizer steps."""
    lines = run.unbiased_lines
    found = fact(run, "gradients")
    if lines is None or found is None:
        return []
    unused = [one for one in found["unused"] if one["modules"] and not one.get("discarded")]
    advice = [(one, backward_paths(lines, one["frames"])) for one in unused]
    made = [_recommendation(run, one, paths) for one, paths in advice]
    known = [one for one in made if one is not None]
    return sorted(known, key=lambda one: -(one.gain.value if one.gain is not None else 1.0))[:1]


def measured_parts(found: Any) -> tuple[float, float]:
    """Parts of a pass that led to unused parameters alone, and to others as well."""
    total = max(found["total_ns"], 1)
    return found["needless_ns"] / total, found["weights_ns"] / total


def saved_of_pass(found: Any) -> tuple[float, float, float]:
    """Least, likely and largest part of these passes that goes away with their unused gradients."""
    often = found["passes"] / max(found["of_passes"], 1)
    alone, shared = measured_parts(found)
    of_shared = SHARED_DISCARDED if found.get("discarded") else SHARED
    low, likely, high = (
        often * min(a * alone + b * shared, 0.99) for a, b in zip(ALONE, of_shared, strict=True)
    )
    return low, likely, high


def timed_evidence(found: Any) -> list[str]:
    """How the saved part of a pass was measured."""
    alone, shared = measured_parts(found)
    low, likely, high = saved_of_pass(found)
    parts = f"{percent(alone)} of such a pass led to these parameters alone"
    parts += f", another {percent(shared)} to others as well" if shared >= 0.01 else ""
    return [
        f"{parts} (each operation was timed).",
        f"So {about(likely)} of the pass is saved (between {about(low)} and {about(high)}).",
    ]


def _recommendation(run: RunView, found: Any, backward: frozenset[int]) -> Recommendation | None:
    lines = run.unbiased_lines
    if lines is None or not backward:
        return None
    share, of_all = lines.share_of(backward), found["elements"] / max(found["of_elements"], 1)
    is_timed = found["total_ns"] > 0
    often = found["passes"] / max(found["of_passes"], 1)
    alone, shared = measured_parts(found)
    low, likely, high = saved_of_pass(found)
    if is_timed and share * likely < LEAST_SAVED:
        return None
    if not is_timed and (share < LEAST_UNTIMED or of_all * often < LEAST_ELEMENTS):
        return None
    names = " and ".join(found["modules"][:3]) + (" and others" if len(found["modules"]) > 3 else "")
    file, _, row = found["frames"][-1]
    line = short_site(f"{file}:{row}")
    leads_on = is_timed and shared > alone
    clips = any(other.name == "clip_grad_norm" for other in run.rows)
    evidence = [
        f"{line} took {percent(share)} of training.",
        f"{found['passes']} of {found['of_passes']} backward passes that were looked at computed gradients "
        f"of {names}: {percent(of_all)} of all elements. No optimizer steps these parameters, and they "
        f"{'only change when others are copied over them' if found['changes'] else 'do not change'}.",
    ]
    if is_timed:
        evidence += timed_evidence(found)
    freeze = "; ".join(f"{name}.requires_grad_(False)" for name in found["modules"][:3])
    remedy = f"Call {freeze} once, before training"
    if leads_on:
        remedy += ". Not no_grad: the loss goes through there to parameters that are trained."
    else:
        remedy += ", or evaluate it under `with torch.no_grad():`."
    remedy += " The gradients of all other parameters stay the same"
    if found["attention"]:
        remedy += " (up to rounding, for attention layers in eval mode)"
    if clips:
        remedy += (
            ", but if clip_grad_norm_ gets these parameters too, they count in the norm today: then the "
            "steps change"
        )
    remedy += ". If they are meant to be trained, give them to the optimizer instead."
    safety: Safety = "semantic" if clips else "rounding" if found["attention"] else "safe"
    made = advise(
        run,
        "untrained_gradients",
        None,
        f"Do not compute gradients of {names}, which nobody trains ({line})",
        evidence,
        remedy,
        lines.gain(backward, (low, likely, high)) if is_timed else None,
        Change(freeze, "minutes", safety),
    )
    claim = Claim(sampled=tuple(sorted(backward)))
    return replace(made, site=f"{file}:{row}", claim=claim, changed_elsewhere=True)
