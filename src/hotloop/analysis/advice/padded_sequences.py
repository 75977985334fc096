"""Batches of sequences that are padded beyond their longest one, as recordings saw them in a few passes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hotloop._util.units import percent
from hotloop.analysis.advice.recommendation import LEAST_SAVED, Change, about, advise
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.advice.sampled_passes import (
    Frames,
    backward_paths,
    below,
    fact,
    in_torch,
    same_function,
    statement_of,
)
from hotloop.analysis.findings import Claim, Recommendation, short_site

LEAST_CALLS = 3
LEAST_PADDING = 0.1  # of the steps
SAVED = (0.6, 0.95, 1.1)  # times the part of the steps: what else a batch costs goes with its length, too
LEAST_SPREAD = 0.02  # of the steps, between the longest sequence of a batch and the mean
UNEVEN = 0.7  # of the steps up to the longest sequence are used: below, lengths differ much


@dataclass
class _Batches:
    """Calls with padded sequences that lead to one backward pass."""

    backward: Frames
    calls: list[Any] = field(default_factory=list)
    targets: list[Any] = field(default_factory=list)  # without gradients

    @property
    def widest(self) -> Any:
        """The call that uses most of its steps."""
        return max(self.calls, key=lambda one: one["used"])


def padded_sequences(run: RunView) -> list[Recommendation]:
    """Sequences with steps at their end that no loss uses."""
    found = fact(run, "positions") or ()
    groups: dict[str, _Batches] = {}
    for one in found:
        if is_padding(one):
            groups.setdefault(str(one["backward"]), _Batches(one["backward"])).calls.append(one)
    for group in groups.values():
        steps = {round(one["steps"]) for one in group.calls}
        group.targets = [
            one
            for one in found
            if not one["gradients"]
            and round(one["steps"]) in steps
            and same_function(one["frames"], group.backward)
        ]
    made = [_recommendation(run, group) for group in groups.values()]
    known = [one for one in made if one is not None]
    return sorted(known, key=lambda one: -(one.gain.value if one.gain is not None else 1.0))[:1]


def is_padding(one: Any) -> bool:
    """Whether the loss leaves out the end of sequences because they are padded.

    The same end for all sequences at all times is a slice: what lies behind it may be read without gradients,
    as the targets of n-step returns are.
    """
    is_same = one["last"][0] == one["last"][1] and one["own_used"] > one["used"] - LEAST_SPREAD
    return bool(
        one["gradients"]
        and one["backward"]
        and not one["state_is_used"]
        and one["calls"] >= LEAST_CALLS
        and 1 - one["used"] >= LEAST_PADDING
        and not is_same
    )


def _recommendation(run: RunView, group: _Batches) -> Recommendation | None:
    lines = run.unbiased_lines
    if lines is None:
        return None
    backward = backward_paths(lines, group.backward)
    statements = [statement_of(one["frames"], group.backward) for one in group.calls + group.targets]
    forward = frozenset[int]().union(*(in_torch(lines, below(lines, frames)) for frames in statements))
    first = group.widest
    paths, padding = backward | forward, 1 - first["used"]
    # Recordings look at the 10th, 20th, 40th pass and so on. Lengths change while something is learnt, and
    # most batches may be like the shortest that were seen.
    shortest = 1 - first["last"][0] / first["steps"]
    low, likely, high = (
        min(part * steps, 0.97) for part, steps in zip(SAVED, (padding, padding, shortest), strict=True)
    )
    share = lines.share_of(paths)
    if share * likely < LEAST_SAVED:
        return None
    file, _, row = statement_of(first["frames"], group.backward)[-1]
    line = short_site(f"{file}:{row}")
    least, most = first["last"]
    evidence = [
        f"{line}, what computes targets from the same batch, and the backward pass took {percent(share)} of "
        "training."
        if group.targets
        else f"{line} and its backward pass took {percent(share)} of training.",
        f"In {first['calls']} batches that were looked at, sequences had {first['steps']:.0f} steps, and the "
        f"longest of a batch ended after {least} to {most}: all gradients of later steps are exactly zero. "
        f"So {percent(padding)} of the steps are padding beyond the longest sequence "
        f"({percent(1 - first['own_used'])} beyond each sequence's own end).",
        f"Assumption: {about(likely)} of that time is saved (between {about(low)} and {about(high)}).",
    ]
    remedy = (
        "Cut each batch to its longest sequence before it goes through the network: "
        "`longest = int(lengths.max()); x = x[:, :longest]`, masks and targets alike. Results agree up to "
        "rounding if the loss is divided by the number of real steps; in a mean over all steps, padding "
        "counts today."
    )
    if first["own_used"] < UNEVEN * first["used"]:
        remedy += (
            " Lengths differ much within a batch: put sequences of similar length together (sort or bucket "
            "them), or use torch.nn.utils.rnn.pack_padded_sequence."
        )
    made = advise(
        run,
        "padded_sequences",
        None,
        f"Cut the padding of each batch to its longest sequence ({line})",
        evidence,
        remedy,
        lines.gain(paths, (low, likely, high)),
        Change("cut each batch to its longest sequence", "minutes", "semantic"),
    )
    return replace(made, site=f"{file}:{row}", claim=Claim(sampled=tuple(sorted(paths))))
