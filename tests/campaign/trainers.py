"""Trainings of every algorithm that are killed at any instant, resumed, and compared bit by bit.

A case is one training that is killed one to three times (at a random instant, or at a counted moment while
it saves; some are asked to stop by SIGTERM before), and resumed to its end. Its last checkpoint (weights,
moments, replay, environments, random numbers, counters) must be that of a training that nobody disturbed.

    python -m tests.campaign --kinds trainers --seed 17 --minutes 0     # repeats one case
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop.rl.train.runs import Checkpoint, load_checkpoint
from tests.campaign.case import Case, seeds
from tests.campaign.nursery import Nursery

TRAININGS = (  # in turn; the first ones need no kernels that take long to compile
    "bc fused", "ppo torch", "bc torch", "dqn torch", "dqn prioritized", "dqn fused", "dqn kernel",
    "ppo fused", "sac torch", "sac fused", "recurrent_ppo",
)  # fmt: skip
PATIENCE_S = 120.0
KEPT = Path(tempfile.gettempdir()) / "hotloop-campaign"


@dataclass(frozen=True)
class Whole:
    """A training that nobody disturbed."""

    checkpoint: Checkpoint
    seconds: float


def run(seed: int, seconds: float, count: int | None = None) -> Iterator[Case]:
    """One case for each seed from `seed` up, until `seconds` have passed or `count` are done."""
    whole: dict[str, Whole] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hotloop-trainers-")))
        nursery = Nursery("trainings")
        stack.callback(nursery.close)
        for number in seeds(seed, seconds, count):
            yield one_case(number, nursery, whole, folder)


def one_case(seed: int, nursery: Nursery, whole: dict[str, Whole], folder: Path) -> Case:
    rng = random.Random(seed)
    training = TRAININGS[seed % len(TRAININGS)]
    if training not in whole:
        for _ in range(2):  # the first one compiles and loads what it needs
            place, began_s = _fresh(folder / "whole"), time.monotonic()
            ended = end_training(nursery, training, place)
            assert ended is None, f"{training} without a kill: {ended}"
        whole[training] = Whole(load_checkpoint(place / "agent"), time.monotonic() - began_s)
    place, kills, wanted = _fresh(folder / "case"), 0, rng.choice((1, 1, 2, 3))
    failure = stop_training(nursery, training, place, rng, whole[training]) if rng.random() < 0.2 else None
    while kills < wanted and failure is None:
        die_at = int(10 ** rng.uniform(0, 3)) if rng.random() < 0.4 else 0
        delay_s = PATIENCE_S if die_at else rng.uniform(0, whole[training].seconds)
        with nursery.program(training=training, die_at=die_at, **_files(place)) as child:
            wait_for_end(child, delay_s)
        failure = problem_of_killed(place)
        kills += nursery.killed
        if not nursery.killed:  # it came to its end before
            _fresh(place)
    failure = failure or end_training(nursery, training, place) or differs(place, whole[training].checkpoint)
    if failure is not None:
        kept = KEPT / f"trainers-{seed}"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(place, kept)
        failure = f"{failure} (kept in {kept})"
    return Case(f"killed {training}", seed, failure)


def stop_training(
    nursery: Nursery, training: str, place: Path, rng: random.Random, whole: Whole
) -> str | None:
    """Ask a training to stop; returns what went wrong."""
    with nursery.program(training=training, die_at=0, **_files(place)) as child:
        wait_for_end(child, rng.uniform(0.2, 1.0) * whole.seconds)
        _signal(child, signal.SIGTERM)
        if not wait_for_end(child, PATIENCE_S):
            return "it did not stop on SIGTERM"
    return problem_of_killed(place)


def _fresh(place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    return place


def _files(place: Path) -> dict[str, Any]:
    return {"checkpoint": str(place / "agent"), "errors": str(place / "errors")}


def wait_for_end(child: int, seconds: float) -> bool:
    """Whether a training ended within that time."""
    end_s = time.monotonic() + seconds
    while _signal(child, 0):
        if time.monotonic() >= end_s:
            return False
        time.sleep(min(0.002, max(end_s - time.monotonic(), 0.0)))
    return True


def _signal(child: int, number: int) -> bool:
    try:
        os.kill(child, number)
    except ProcessLookupError:
        return False
    return True


def end_training(nursery: Nursery, training: str, place: Path) -> str | None:
    """Train to the end, from the checkpoint if there is one; returns what went wrong."""
    with nursery.program(training=training, die_at=0, **_files(place)) as child:
        if not wait_for_end(child, PATIENCE_S):
            return f"it did not end within {PATIENCE_S:g} s"
    said = (place / "errors").read_text() if (place / "errors").exists() else ""
    if "Traceback" in said or not (place / "agent").exists():
        return f"the training said {said[-800:]!r}"
    left = [file.name for file in place.iterdir() if file.name not in ("agent", "errors")]
    return f"left behind: {left}" if left else None


def problem_of_killed(place: Path) -> str | None:
    """What is wrong with the files of a training that was killed."""
    if not (place / "agent").exists():
        return None
    try:
        load_checkpoint(place / "agent")
    except HotloopError as error:
        return f"after the kill: {error}"
    return None


def differs(place: Path, whole: Checkpoint) -> str | None:
    """What of the last checkpoint is not as in the training that nobody disturbed."""
    found = load_checkpoint(place / "agent")
    if found.state != whole.state:
        odd = [name for name in whole.state if found.state.get(name) != whole.state[name]]
        return f"the resumed training has other values of {odd}"
    if found.arrays.keys() != whole.arrays.keys():
        return f"the resumed training has other arrays: {sorted(found.arrays.keys() ^ whole.arrays.keys())}"
    for name, array in whole.arrays.items():
        if found.arrays[name].dtype != array.dtype or found.arrays[name].tobytes() != array.tobytes():
            return f"{name} differs after the resume"
    return None
