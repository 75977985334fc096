"""`hotloop scale`: one command at several sizes, in random order, and the law its time follows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hotloop._util.errors import HotloopError
from hotloop.analysis.scaling import Scaling
from hotloop.analysis.sizes import scaling_of
from hotloop.capture.plan import Plan, Variant
from hotloop.workflows.experiments import Done, Progress, begin, carry_out, lanes_for, resume


@dataclass(frozen=True)
class Scaled:
    """The runs and the law; None when fewer than two sizes have a finished run."""

    done: Done
    scaling: Scaling | None


def scale_plan(
    command: tuple[str, ...], sizes: tuple[int, ...], repeats: int, budget_s: float | None
) -> Plan:
    """Every size `repeats` times."""
    if not command:
        raise HotloopError("There is no command; write it after --, as in: hotloop scale -- python x.py {n}")
    if len(set(sizes)) < 2 or min(sizes) < 1:
        raise HotloopError(f"The sizes are {list(sizes)}; give two or more different ones above 0.")
    return Plan(
        variants=(Variant("as it is", command),),
        kind="scale",
        sizes=tuple(sorted(set(sizes))),
        repeats=repeats,
        budget_s=budget_s,
    )


def scale(plan: Plan, folder: Path | None, progress: Progress, jobs: int = 1) -> Scaled:
    """Run the sizes in a new series, `jobs` rounds of them at a time."""
    lanes = lanes_for(jobs)
    return _scaled(carry_out(begin(plan, folder, "scale"), progress, lanes=lanes))


def scale_again(
    folder: Path | None, progress: Progress, budget_s: float | None = None, jobs: int = 1
) -> Scaled:
    """Go on with a series of sizes."""
    series, lanes = resume(folder, budget_s), lanes_for(jobs)
    return _scaled(carry_out(series, progress, lanes=lanes))


def _scaled(done: Done) -> Scaled:
    return Scaled(done, scaling_of(done.series))
