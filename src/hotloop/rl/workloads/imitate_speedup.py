"""How much faster each stage of `imitate` gets with more workers, measured at small size before the run.

Every variant of a stage does the same work; variants take turns for a few rounds and the median over the
rounds is told, so that a busy moment of the machine hits all of them. Start-up of processes is not
counted; it is told by the stage's own report.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hotloop._util.units import count, duration, size
from hotloop.machine.facts import cores_granted
from hotloop.machine.process_memory import ProcessMemory
from hotloop.rl.buffers.demonstrations import DemonstrationStore, Samples
from hotloop.rl.collect.experts import collect, track_schema
from hotloop.rl.workloads.imitate import Imitate
from hotloop.rl.workloads.imitate_stages import bc_settings, sac_settings
from hotloop.rl.workloads.stages import StageReport, table

ROUNDS = 3
EPISODES = 16  # of a round of demonstrations, for all workers together
SAMPLES = 16_384  # of an epoch
STEPS = 768  # env steps of a round of reinforcement learning
FIRST_STEPS = 8  # of them without updates: one step of all envs where there are most
WIDTH = 76  # of a line, before it is indented


@dataclass(frozen=True, slots=True)
class Measured:
    """One variant of a stage."""

    stage: str
    variant: str
    rate: float
    """Work per second, median over the rounds."""
    times_first: float
    """How many times the rate of the stage's first variant, median over the rounds."""
    worker_memory: ProcessMemory | None
    """Of a worker process; None without one."""


Round = Callable[[], tuple[float, ProcessMemory | None]]  # rate of the work, memory by worker


def take_turns(stage: str, variants: dict[str, Round], rounds: int = ROUNDS) -> list[Measured]:
    """Run every variant once in each round, forwards and backwards in turn."""
    rates: dict[str, list[float]] = {name: [] for name in variants}
    memory: dict[str, ProcessMemory | None] = {}
    for number in range(rounds):
        for name in list(variants) if number % 2 == 0 else list(reversed(variants)):
            rate, memory[name] = variants[name]()
            rates[name].append(rate)
    first = rates[next(iter(variants))]
    return [
        Measured(
            stage,
            name,
            statistics.median(found),
            statistics.median(one / base for one, base in zip(found, first, strict=True)),
            memory[name],
        )
        for name, found in rates.items()
    ]


def worker_counts(most: int) -> list[int]:
    """1, 2, 4 ... up to `most`, which is among them."""
    found = [1]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    return found if found[-1] == most else [*found, most]


def demonstration_variants(config: Imitate, folder: Path) -> dict[str, Round]:
    """The expert with 1, 2 .. workers, as many as there are cores, or as are wanted if that is more."""
    most = max(int(cores_granted()), config.demonstration_workers)

    def of(workers: int) -> Round:
        def once() -> tuple[float, ProcessMemory | None]:
            store = DemonstrationStore(folder / str(workers))
            store.begin(track_schema(config.seed, {}), resume=False)
            done = collect(store, range(EPISODES), workers=workers, seed=config.seed, settings={})
            memory = max(
                (one.memory for one in done.driven if one.memory),
                key=lambda one: one.private_bytes,
                default=None,
            )
            return sum(one.steps for one in done.driven) / done.seconds, memory

        return once

    return {f"{n} worker{'s' if n > 1 else ''}": of(n) for n in worker_counts(most)}


def loading_variants(
    config: Imitate, samples: Samples, workers: tuple[int, ...] = (0, 1, 2)
) -> dict[str, Round]:
    """One epoch with each way of loading; the second epoch counts, when loading processes run already."""
    from hotloop.rl.train.bc import train

    small = Samples(samples.observations[:SAMPLES], samples.actions[:SAMPLES])
    held_out = Samples(samples.observations[:256], samples.actions[:256])

    def of(**settings: Any) -> Round:
        def once() -> tuple[float, ProcessMemory | None]:
            ends: list[float] = []
            done = train(
                bc_settings(config, epochs=2, checkpoint=None, resume=False, metrics=None, **settings),
                small,
                held_out,
                after_epoch=lambda *_: ends.append(time.perf_counter()),
                report=lambda **_: None,
            )
            return len(small) / (ends[1] - ends[0]), done.worker_memory

        return once

    found = {
        f"DataLoader, {n} worker{'' if n == 1 else 's'}": of(
            loading="loader", loading_workers=n, learner="torch"
        )
        for n in workers
    }
    found["index batches, torch"] = of(loading="index", loading_workers=0, learner="torch")
    found["index batches, fused"] = of(loading="index", loading_workers=0, learner="fused")
    return found


def env_variants(
    config: Imitate, counts: tuple[int, ...] = (1, 2, 4, 8), first_steps: int = 256
) -> dict[str, Round]:
    """Our SAC with 1 to 8 envs: the same env steps, and the same updates for each after the first few."""
    from hotloop.rl.train.sac import train

    def of(envs: int) -> Round:
        def once() -> tuple[float, ProcessMemory | None]:
            settings = sac_settings(
                replace(config, envs=envs, start="scratch"),
                total_steps=STEPS,
                learning_starts=first_steps,
                actor_starts=0,
                random_steps=0,
                evaluate_every=0,
                checkpoint=None,
                resume=False,
                metrics=None,
            )
            done = train(settings, report=lambda **_: None)
            return done.steps_here / done.seconds, None

        return once

    return {f"{n} env{'s' if n > 1 else ''}": of(n) for n in counts}


def measure(config: Imitate, quiet: bool = False) -> tuple[list[str], dict[str, float]]:
    """The lines of the speed-up tables for the stages of this run, and the rate of each stage's first way."""
    lines: list[str] = []
    sequential: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as given:
        folder = Path(given)
        for stage in config.stages:
            if not quiet:
                print(f"hotloop: measuring the speed-up of {stage} ...", file=sys.stderr, flush=True)
            if stage == "demos":
                found = take_turns(stage, demonstration_variants(config, folder))
                work, unit = f"{EPISODES} episodes each", "steps/s"
            elif stage == "bc":
                found = take_turns(stage, loading_variants(config, _samples(config, folder)))
                work, unit = "the same samples in the same order", "samples/s"
            else:
                found = take_turns(stage, env_variants(config, first_steps=FIRST_STEPS))
                each = f"{config.updates} updates for each after the first {FIRST_STEPS}"
                work = f"{count(STEPS)} env steps, {each}"
                unit = "steps/s"
            lines += speedup_lines(found, work, unit)
            sequential[stage] = found[0].rate
    return lines, sequential


def against_sequential(reports: Sequence[StageReport], sequential: dict[str, float]) -> list[str]:
    """A table: the time of each stage by the rate of its first way, and the time it took.

    What a stage does the same in any way (evaluation, logging) is part of both.
    """
    found = []
    for one in reports:
        if one.seconds > 0:
            same_s = sum(one.parts_s.get(part, 0.0) for part in ("evaluation", "logging"))
            found.append((one.stage, one.work / sequential[one.stage] + same_s, one.seconds))
    if not found:
        return []
    if len(found) > 1:
        found.append(("all", sum(one[1] for one in found), sum(one[2] for one in found)))
    rows = [
        (stage, duration(1e9 * before), duration(1e9 * after), f"{before / after:.2f} x")
        for stage, before, after in found
    ]
    before, after = found[-1][1:]
    saved = f"{'saved' if before >= after else 'lost'} {duration(1e9 * abs(before - after))}"
    how = "by the rates measured before: 1 worker, DataLoader without workers, 1 env"
    return [
        *table(("stage", "sequential (predicted)", "this run (measured)", "speed-up"), rows),
        *_remark(f"predicted {how}; start-up apart, evaluation and logging as in this run; {saved}"),
    ]


def speedup_lines(found: list[Measured], work: str, unit: str, rounds: int = ROUNDS) -> list[str]:
    """A table of one stage."""
    rows = [
        (
            one.variant,
            count(one.rate),
            f"{one.times_first:.2f} x",
            "-" if one.worker_memory is None else size(one.worker_memory.private_bytes),
        )
        for one in found
    ]
    head = (f"speed-up of {found[0].stage}", unit, "speed-up", "memory by worker")
    said = f"against {found[0].variant}; {work}; median of {rounds} rounds in turn, start-up apart"
    return [*table(head, rows), *_remark(said)]


def _remark(said: str) -> list[str]:
    return textwrap.wrap(f"({said})", WIDTH, initial_indent="  ", subsequent_indent="   ")


def _samples(config: Imitate, folder: Path) -> Samples:
    """Samples to load: of the run's own demonstrations where there are some, else of a few new ones."""
    if config.stage == "bc":
        return DemonstrationStore(config.demonstrations).load().samples()
    store = DemonstrationStore(folder / "for-cloning")
    store.begin(track_schema(config.seed, {}), resume=False)
    collect(store, range(EPISODES), workers=config.demonstration_workers, seed=config.seed, settings={})
    return store.load().samples()
