"""SIGKILL at random instants of programs with threads, forks and spawned children, on both cores.

A program (`victims.py`) writes what it does into shared memory. Whenever it dies, its capture must be
readable, and name every region in full; the calls of each must be those that the program made. In some cases
the capture is read all the time until then, on a disk that is slow in others. Half of the cases die at a
counted moment in our own Python code, which the seed repeats exactly; the others after a delay.

    python -m tests.campaign --kinds kill --seed 17 --minutes 0     # repeats one case
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import hotloop
from hotloop._util.errors import CaptureError
from hotloop.capture.model import Capture, Node
from hotloop.capture.stats import by_name
from tests.campaign.case import Case, seeds
from tests.campaign.nursery import Nursery
from tests.campaign.truth_table import TruthTable

PROGRAMS = ("threads", "forks", "restarts", "threads", "forks", "restarts", "spawns")
CORES = ("compiled", "python")
NOTHING_YET = "no process has recorded anything yet"


def run(seed: int, seconds: float, count: int | None = None) -> Iterator[Case]:
    """One case for each seed from `seed` up, until `seconds` have passed or `count` are done."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hotloop-kill-", dir=memory)))
        nurseries = {core: Nursery("victims", HOTLOOP_CORE=core) for core in CORES}
        for nursery in nurseries.values():
            stack.callback(nursery.close)
        for number in seeds(seed, seconds, count):
            yield one_case(number, nurseries, folder / "case")


def one_case(seed: int, nurseries: dict[str, Nursery], place: Path) -> Case:
    """Start a program, kill it, and look at what it left."""
    rng = random.Random(seed)
    program, core = rng.choice(PROGRAMS), rng.choice(CORES)
    counted = rng.random() < 0.5
    request = {
        "program": program,
        "seed": seed,
        "slow_disk": rng.random() < 0.2,
        "die_at": int(10 ** rng.uniform(0, 3.7)) if counted else 0,
    }
    delay_s = 0.3 if counted else 10 ** rng.uniform(-4, -1.2)
    if program == "spawns":
        delay_s = rng.uniform(0, 0.4)
    readers = rng.random() < 0.3
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    truth = TruthTable(place / "truth", new=True)
    request |= {"folder": str(place / "run"), "truth": str(place / "truth"), "errors": str(place / "errors")}
    failure = None
    try:
        with nurseries[core].program(**request) as child:
            end_s = time.monotonic() + delay_s
            while time.monotonic() < end_s and failure is None and not _is_over(child):
                if readers and (place / "run" / "capture.json").exists():
                    failure = problem_of_live(place, truth)
                else:
                    time.sleep(min(0.005, max(end_s - time.monotonic(), 0)))
        failure = failure or problem_of_dead(place, truth)
    finally:
        truth.close()
    how = f"{program} on the {core} core"
    if failure is not None:
        kept = Path(tempfile.gettempdir()) / "hotloop-campaign" / f"kill-{seed}"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(place, kept)
        failure = f"{how}: {failure} (kept in {kept})"
    return Case(f"killed {program}", seed, failure)


def _is_over(child: int) -> bool:
    """Whether a program has ended by itself, or killed itself."""
    try:
        os.killpg(child, 0)
    except ProcessLookupError:
        return True
    return False


# -- judging -------------------------------------------------------------------------------------


def problem_of_live(place: Path, truth: TruthTable) -> str | None:
    """What is wrong with a capture that is being written."""
    _, ended = truth.by_name()
    try:
        captures = [hotloop.load(file.parent) for file in sorted(place.glob("run*/capture.json"))]
    except CaptureError as error:
        return f"while it runs: {error}"
    begun, _ = truth.by_name()
    return problem_of(captures, begun, ended, live=True)


def problem_of_dead(place: Path, truth: TruthTable) -> str | None:
    """What is wrong with what a killed program left."""
    begun, ended = truth.by_name()
    captures = []
    for folder in sorted(place.glob("run*")):
        if not (folder / "capture.json").exists():
            left = [file.name for file in folder.rglob("*") if not file.name.endswith(".unfinished")]
            if left:
                return f"{folder.name} has {left} and no capture.json"
            continue
        try:
            captures.append(hotloop.load(folder))
        except CaptureError as error:
            return str(error)
    errors = place / "errors"
    if errors.exists() and (said := errors.read_text()):
        return f"the program said {said[-300:]!r}"
    return problem_of(captures, begun, ended)


def problem_of(
    captures: list[Capture], begun: dict[str, int], ended: dict[str, int], live: bool = False
) -> str | None:
    calls: dict[str, int] = {}
    for capture in captures:
        for name, stats in by_name(capture.tree).items():
            calls[name] = calls.get(name, 0) + stats.calls
    for name in {*ended, *calls}:
        if not ended.get(name, 0) <= calls.get(name, 0) <= begun.get(name, 0):
            return (
                f"{calls.get(name, 0)} calls of {name!r} are recorded; {begun.get(name, 0)} have begun, "
                f"{ended.get(name, 0)} have ended"
            )
    for capture in captures:
        for warning in capture.all_warnings:
            if warning != NOTHING_YET:
                return f"a warning: {warning}"
        for process in capture.processes:
            if process.alive and not live:
                return "a dead process is shown as alive"
            for thread in process.threads:
                slack_ns = 100_000_000 if thread.uncertain and live else 0
                if thread.uncertain and not live:
                    slack_ns = 10_000_000  # one event
                if abs(_own_sum(thread.root) - thread.wall_ns) > slack_ns:
                    return f"own times of {thread.name} differ from its wall time by more than {slack_ns} ns"
    return None


def _own_sum(node: Node) -> int:
    return node.own_ns + sum(map(_own_sum, node.children))
