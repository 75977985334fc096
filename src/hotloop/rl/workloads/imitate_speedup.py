"""How much faster each stage of `imitate` gets with more workers, measured at small size before the run.

All variants of a stage do the same work. They run in turn for a few rounds and the median is reported, so a
busy moment of the machine affects all of them. The start-up of processes is not counted; each stage's own
report has it.
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
from hotloop.rl.train import bc, sac
from hotloop.rl.workloads.imitate_bc import bc_settings
from hotloop.rl.workloads.imitate_config import Imitate
from hotloop.rl.workloads.imitate_rl import sac_settings, update_words
from hotloop.rl.workloads.stage_report import StageReport, table

ROUNDS = 3
EPISODES = 16  # of a round of demonstrations, for all workers together
SAMPLES = 16_384  # of an epoch
STEPS = 768  # env steps of a round of reinforcement learning
FIRST_STEPS = 8  # of them without updates: one step of all envs where there are most
WIDTH = 76  # of a line, before it is indented


@dataclass(frozen=True, slots=True)
class Measured:
    """The speed of one variant of a stage."""

    stage: str
    variant: str
    rate: float
    """Work per second, median of the rounds."""
    speedup: float
    """Against the stage's first variant: the median of the rounds' own ratios."""
    worker_memory: ProcessMemory | None
    """Of a worker process; None without one."""


Round = Callable[[], tuple[float, ProcessMemory | None]]  # work per second, memory per worker


def take_turns(stage: str, variants: dict[str, Round], rounds: int = ROUNDS) -> list[Measured]:
    """Run every variant once per round, in alternating order."""
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
    """The expert with 1, 2, 4 ... workers, up to the number of cores or the workers asked for."""
    most = max(int(cores_granted()), config.demonstration_workers)

    def of(workers: int) -> Round:
        def once() -> tuple[float, ProcessMemory | None]:
            store = DemonstrationStore(folder / str(workers))
            store.begin(track_schema(config.seed, {}), resume=False)
            done = collect(store, range(EPISODES), workers=workers, seed=config.seed, settings={})
            memory = max(
                (one.memory for one in done.episodes if one.memory),
                key=lambda one: one.private_bytes,
                default=None,
            )
            return sum(one.steps for one in done.episodes) / done.seconds, memory

        return once

    return {f"{n} worker{'s' if n > 1 else ''}": of(n) for n in worker_counts(most)}


def loading_variants(
    config: Imitate, samples: Samples, workers: tuple[int, ...] = (0, 1, 2)
) -> dict[str, Round]:
    """One epoch with each way of loading: the second one, when the loading processes are running."""
    small = Samples(samples.observations[:SAMPLES], samples.actions[:SAMPLES])
    held_out = Samples(samples.observations[:256], samples.actions[:256])

    def of(**settings: Any) -> Round:
        def once() -> tuple[float, ProcessMemory | None]:
            ends: list[float] = []
            done = bc.train(
                bc_settings(
                    config, n_epochs=2, checkpoint=None, resume=False, tensorboard_log=None, **settings
                ),
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
    """Our SAC with 1 to 8 envs: the same env steps, and the same updates per env step."""

    def of(n_envs: int) -> Round:
        def once() -> tuple[float, ProcessMemory | None]:
            settings = sac_settings(
                replace(config, n_envs=n_envs, start="scratch"),
                total_timesteps=STEPS,
                learning_starts=first_steps,
                actor_learning_starts=0,
                random_steps=0,
                eval_every_steps=0,
                checkpoint=None,
                resume=False,
                tensorboard_log=None,
            )
            done = sac.train(settings, report=lambda **_: None)
            return done.steps_here / done.seconds, None

        return once

    return {f"{n} env{'s' if n > 1 else ''}": of(n) for n in counts}


def measure(config: Imitate, quiet: bool = False) -> tuple[list[str], dict[str, float]]:
    """Speed-up tables of this run's stages as lines, and the rate of each stage's first variant."""
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
                work = f"{count(STEPS)} env steps, {update_words(config)} after the first {FIRST_STEPS}"
                unit = "steps/s"
            lines += speedup_lines(found, work, unit)
            sequential[stage] = found[0].rate
    return lines, sequential


def against_sequential(reports: Sequence[StageReport], sequential: dict[str, float]) -> list[str]:
    """A table of the time that each stage would take at its first variant's rate, and the time it took.

    Evaluation and logging, which no variant changes, are part of both.
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
        (stage, duration(1e9 * before), duration(1e9 * after), f"{before / after:.2f}x")
        for stage, before, after in found
    ]
    before, after = found[-1][1:]
    saved = f"{'saved' if before >= after else 'lost'} {duration(1e9 * abs(before - after))}"
    how = "from the rates measured before: 1 worker, DataLoader without workers, 1 env"
    return [
        *table(("stage", "sequential (predicted)", "this run (measured)", "speed-up"), rows),
        *_remark(f"predicted {how}; without start-up, evaluation and logging as in this run; {saved}"),
    ]


def speedup_lines(found: list[Measured], work: str, unit: str, rounds: int = ROUNDS) -> list[str]:
    """The speed-up table of one stage."""
    rows = [
        (
            one.variant,
            count(one.rate),
            f"{one.speedup:.2f}x",
            "-" if one.worker_memory is None else size(one.worker_memory.private_bytes),
        )
        for one in found
    ]
    head = (f"speed-up of {found[0].stage}", unit, "speed-up", "memory per worker")
    said = f"against {found[0].variant}; {work}; median of {rounds} rounds, start-up excluded"
    return [*table(head, rows), *_remark(said)]


def _remark(said: str) -> list[str]:
    return textwrap.wrap(f"({said})", WIDTH, initial_indent="  ", subsequent_indent="   ")


def _samples(config: Imitate, folder: Path) -> Samples:
    """Samples to load: the run's own demonstrations where there are some, else a few new ones."""
    if config.stage == "bc":
        return DemonstrationStore(config.demonstrations).load().samples()
    store = DemonstrationStore(folder / "for-cloning")
    store.begin(track_schema(config.seed, {}), resume=False)
    collect(store, range(EPISODES), workers=config.demonstration_workers, seed=config.seed, settings={})
    return store.load().samples()
