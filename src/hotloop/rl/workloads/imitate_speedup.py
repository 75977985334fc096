"""How much faster each stage of `imitate` gets with more workers, measured at small size before the run.

All variants of a stage do the same work. They run in turn for a few rounds and the median is reported, so a
busy moment of the machine affects all of them. The start-up of processes is not counted; each stage's own
report has it.
"""

from __future__ import annotations

import math
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
from hotloop.rl.train.runs import stop_requested
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
LOADERS, ENVS = (0, 1, 2), (1, 2, 4, 8)  # that are tried
TORCH_INDEX, FUSED_INDEX = "index batches, torch", "index batches, fused"
CLEARLY_FASTER = 1.05


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


class StoppedMeasuring(Exception):
    """The run was asked to stop while it measured; it has nothing to keep yet."""


def check_stop() -> None:
    """Raise StoppedMeasuring if the run was asked to stop."""
    if stop_requested():
        raise StoppedMeasuring


def take_turns(stage: str, variants: dict[str, Round], rounds: int = ROUNDS) -> list[Measured]:
    """Run every variant once per round, in alternating order; raises StoppedMeasuring."""
    rates: dict[str, list[float]] = {name: [] for name in variants}
    memory: dict[str, ProcessMemory | None] = {}
    for number in range(rounds):
        for name in list(variants) if number % 2 == 0 else list(reversed(variants)):
            rate, memory[name] = variants[name]()
            check_stop()
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


def variant_settings(config: Imitate, stage: str) -> dict[str, dict[str, Any]]:
    """The variants of a stage by name, sequential first, and the settings that make a run use each."""
    if stage == "demos":
        most = max(int(cores_granted()), config.demonstration_workers)
        return {_counted(n, "worker"): {"workers": n} for n in worker_counts(most)}
    if stage == "rl":
        return {_counted(n, "env"): {"n_envs": n} for n in sorted({*ENVS, config.n_envs})}
    loaders = sorted({*LOADERS, config.dataloader_workers or 0})
    found: dict[str, dict[str, Any]] = {
        f"DataLoader, {_counted(n, 'worker')}": {"loading": "loader", "loading_workers": n} for n in loaders
    }
    return found | {
        TORCH_INDEX: {"loading": "index", "learner": "torch"},
        FUSED_INDEX: {"loading": "index", "loading_workers": None},
    }


def used_variant(config: Imitate, stage: str) -> str:
    """The variant that a run with this config uses."""
    if stage == "demos":
        return _counted(config.demonstration_workers, "worker")
    if stage == "rl":
        return _counted(config.n_envs, "env")
    if config.dataloader_workers is not None:
        return f"DataLoader, {_counted(config.dataloader_workers, 'worker')}"
    return TORCH_INDEX if config.learner == "torch" else FUSED_INDEX


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def demonstration_variants(config: Imitate, folder: Path) -> dict[str, Round]:
    """The expert with 1, 2, 4 ... workers, up to the number of cores or the workers asked for."""

    def of(workers: int) -> Round:
        def once() -> tuple[float, ProcessMemory | None]:
            store = DemonstrationStore(folder / str(workers))
            store.begin(track_schema(config.seed, {}), resume=False)
            done = collect(
                store, range(EPISODES), workers=workers, seed=config.seed, settings={}, stop=stop_requested
            )
            check_stop()
            memory = max(
                (one.memory for one in done.episodes if one.memory),
                key=lambda one: one.private_bytes,
                default=None,
            )
            return sum(one.steps for one in done.episodes) / done.seconds, memory

        return once

    return {name: of(**changes) for name, changes in variant_settings(config, "demos").items()}


def loading_variants(
    config: Imitate, samples: Samples, workers: tuple[int, ...] | None = None
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
            check_stop()  # before its second epoch, perhaps
            return len(small) / (ends[1] - ends[0]), done.worker_memory

        return once

    found = {
        name: of(loading="loader", loading_workers=changes["loading_workers"], learner="torch")
        for name, changes in variant_settings(config, "bc").items()
        if changes["loading"] == "loader" and (workers is None or changes["loading_workers"] in workers)
    }
    found[TORCH_INDEX] = of(loading="index", loading_workers=0, learner="torch")
    found[FUSED_INDEX] = of(loading="index", loading_workers=0, learner="fused")
    return found


def env_variants(
    config: Imitate, counts: tuple[int, ...] | None = None, first_steps: int = 256
) -> dict[str, Round]:
    """Our SAC with 1 to 8 envs: the same env steps, and the same updates per env step."""
    variants = variant_settings(config, "rl")

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
            check_stop()
            return done.steps_here / done.seconds, None

        return once

    return {
        name: of(changes["n_envs"])
        for name, changes in variants.items()
        if counts is None or changes["n_envs"] in counts
    }


@dataclass(frozen=True, slots=True)
class Speedups:
    """What was measured before a run, and the settings that it chose."""

    config: Imitate
    """With the fastest settings in the stages of `config.fastest`."""
    lines: tuple[str, ...]
    """A table for each stage, and what was chosen."""
    sequential: dict[str, float]
    """Rate of each stage's first variant."""
    predicted: dict[str, float]
    """Speed-up of each stage with the settings of `config`, against its first variant."""
    seconds: float
    """Wall time of measuring."""


def fastest_variant(config: Imitate, found: Sequence[Measured]) -> str:
    """The variant to use: the fastest, unless the one in use is almost as fast."""
    stage = found[0].stage
    usable = [one for one in found if one.variant != TORCH_INDEX]  # its learner would be that of rl, too
    now = used_variant(config, stage)
    mine = next((one.speedup for one in usable if one.variant == now), 0.0)
    best = max(usable, key=lambda one: one.speedup)
    return best.variant if best.speedup > CLEARLY_FASTER * mine else now


def choose_fastest(config: Imitate, found: Sequence[Measured]) -> tuple[Imitate, str]:
    """The config with the fastest settings of a stage, and a sentence about them."""
    stage = found[0].stage
    name = fastest_variant(config, found)
    speedup = next(one.speedup for one in found if one.variant == name)
    before = used_variant(config, stage)
    kept = "as chosen before" if name == before else f"instead of {before}"
    config = replace(config, **variant_settings(config, stage)[name])
    return config, f"{stage}: {name}, {kept}; predicted {speedup:.2f}x as fast as {found[0].variant}"


def measure(config: Imitate, quiet: bool = False) -> Speedups:
    """Measure the variants of this run's stages; in those of `config.fastest`, choose the fastest."""
    began_s = time.perf_counter()
    lines: list[str] = []
    sequential: dict[str, float] = {}
    predicted: dict[str, float] = {}
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
            if stage in config.fastest:
                config, chosen = choose_fastest(config, found)
                lines.append(chosen)
                if not quiet:
                    print(f"hotloop: {chosen}", file=sys.stderr, flush=True)
            sequential[stage] = found[0].rate
            used = used_variant(config, stage)
            predicted[stage] = next((one.speedup for one in found if one.variant == used), math.nan)
    return Speedups(config, tuple(lines), sequential, predicted, time.perf_counter() - began_s)


def against_sequential(
    reports: Sequence[StageReport],
    sequential: dict[str, float],
    predicted: dict[str, float] | None = None,
    measuring_s: float | None = None,
) -> list[str]:
    """A table of the time that each stage would take at its first variant's rate, and the time it took.

    Evaluation and logging, which no variant changes, are part of both. `predicted` has the speed-ups that
    were measured before the run; the table has them next to those that were achieved. `measuring_s` is the
    time that this took.
    """
    found: list[tuple[str, float, float, float]] = []  # stage; seconds sequential, of this run, predicted
    for one in reports:
        if one.seconds > 0:
            same_s = sum(one.parts_s.get(part, 0.0) for part in ("evaluation", "logging"))
            alone_s = one.work / sequential[one.stage]
            expected_s = alone_s / (predicted or {}).get(one.stage, math.nan) + same_s
            found.append((one.stage, alone_s + same_s, one.seconds, expected_s))
    if not found:
        return []
    if len(found) > 1:
        _, *columns = zip(*found, strict=True)
        before_s, after_s, expected_s = (sum(map(float, column)) for column in columns)
        found.append(("all", before_s, after_s, expected_s))
    rows = [
        (
            stage,
            duration(1e9 * before),
            duration(1e9 * after),
            f"{before / after:.2f}x",
            "-" if math.isnan(expected) else f"{before / expected:.2f}x",
        )
        for stage, before, after, expected in found
    ]
    before, after = found[-1][1:3]
    saved = f"{'saved' if before >= after else 'lost'} {duration(1e9 * abs(before - after))}"
    if measuring_s is not None:
        saved += f"; measuring took {duration(1e9 * measuring_s)}"
    how = "from the rates measured before: 1 worker, DataLoader without workers, 1 env"
    return [
        *table(("stage", "sequential (predicted)", "this run (measured)", "speed-up", "predicted"), rows),
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
    collect(
        store,
        range(EPISODES),
        workers=config.demonstration_workers,
        seed=config.seed,
        settings={},
        stop=stop_requested,
    )
    check_stop()
    return store.load().samples()
