"""What recordings learnt by looking at a few backward passes, and the samples that belong to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.line_samples import LineSamples
from hotloop.capture.samples import SampledPath

Frames = Sequence[Sequence[Any]]  # outermost first: file, first line of the function, line
BACKWARD = (".backward", "_engine_run_backward", ".run_backward")


def fact(run: RunView, name: str) -> Any:
    """A fact that the driving process noted; None if it did not."""
    for entry in run.capture.facts.get("libraries") or ():
        if entry.get("pid") == run.process.pid and name in entry:
            return entry[name]
    return None


def is_backward(path: SampledPath) -> bool:
    return path.called.endswith(BACKWARD) or path.innermost.endswith(BACKWARD)


def backward_paths(lines: LineSamples, frames: Frames) -> frozenset[int]:
    """Samples in backward passes that were called from exactly there."""
    return frozenset(
        number
        for number in below(lines, frames)
        if is_backward(lines.paths[number]) and len(lines.paths[number].frames) == len(frames)
    )


def below(lines: LineSamples, frames: Frames) -> frozenset[int]:
    """Samples whose stack begins with these lines."""
    wanted = [tuple(frame) for frame in frames]
    return frozenset(
        number
        for number, path in enumerate(lines.paths)
        if len(path.frames) >= len(wanted)
        and all(
            (own.file, own.first_line, own.line) == one for own, one in zip(path.frames, wanted, strict=False)
        )
    )


def in_torch(lines: LineSamples, paths: Iterable[int]) -> frozenset[int]:
    """Those of the samples that ran in torch, but in no backward pass."""
    return frozenset(
        number
        for number in paths
        if lines.paths[number].called.startswith("torch.") and not is_backward(lines.paths[number])
    )


def statement_of(call: Frames, backward: Frames) -> Frames:
    """The lines down to the statement that calls something, in the function that runs the backward pass."""
    for depth, (one, other) in enumerate(zip(call, backward, strict=False)):
        if list(one) != list(other):
            return call[: depth + 1]
    return call[: len(backward)]


def same_function(call: Frames, backward: Frames) -> bool:
    """Whether the function that runs the backward pass led to a call."""
    depth = len(backward) - 1
    if depth < 0 or len(call) <= depth:
        return False
    above = [list(frame) for frame in call[:depth]] == [list(frame) for frame in backward[:depth]]
    return above and list(call[depth][:2]) == list(backward[depth][:2])
