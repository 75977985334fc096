"""`hotloop train mario`: collectors in their own processes feed one learner, through a lock or without.

    from hotloop.rl.workloads.mario import Mario, run
    outcome = run(Mario(epochs=5))

`original` is the design people start with, done as well as it can be: two collectors that play one game each
and put every transition into one shared queue under a lock; the learner runs the network as it is written.
`fast` gives each collector a ring without a lock and several games at once. Both learn from the same number
of transitions for each one collected, with the same network and loss.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hotloop._util.errors import HotloopError
from hotloop.machine.facts import cores_granted
from hotloop.rl.workloads.outcome import Note, Outcome

VariantName = Literal["original", "fast"]


@dataclass(frozen=True)
class Machinery:
    """What a variant is made of."""

    transport: Literal["rings", "locked", "serial"]
    collectors: int
    envs: int  # games in each collector
    capacity: int
    batch_size: int
    accumulate: int
    episodes_per_epoch: int
    weights_every: int
    layout: Literal["fast", "plain"]


VARIANTS = {
    "original": Machinery("locked", 2, 1, 10_000, 256, 1, 8, 3, "plain"),
    "fast": Machinery("rings", 4, 16, 50_000, 512, 4, 16, 5, "fast"),
}

REWARD_SCALE = 1 / 15  # rewards lie in -15 .. 15


@dataclass(frozen=True)
class Mario:
    """Train an agent to run through a side-scroller by double DQN, collectors in their own processes."""

    variant: VariantName = "fast"
    """original: 2 collectors, one locked queue, replay 10,000, batch 256, 8 episodes an epoch, weights every
    3 epochs; fast: 4 collectors with a ring each (fewer where that would leave the learner no core), 50,000,
    512 x 4, 16, 5."""
    env: Literal["platformer", "mario"] = "platformer"
    """platformer: ours, compiled; mario: Super Mario Bros in the emulator (the extra `mario`)."""
    epochs: int = 20
    """Epochs to train for."""
    episodes_per_epoch: int | None = None
    """An epoch ends when so many episodes have ended in it."""
    epoch_steps: int = 0
    """An epoch ends after so many env steps instead; 0: by its episodes."""
    collectors: int | None = None
    """Processes that play."""
    envs: int | None = None
    """Games in each collector, stepped together."""
    transport: Literal["rings", "locked", "serial"] | None = None
    """How experience travels: a ring for each collector, one locked queue, or no processes at all."""
    experience_batch_size: int = 1000
    """Most transitions the learner takes at once."""
    ring: int = 1024
    """Transitions that wait between a collector and the learner."""
    drop: bool = False
    """Throw transitions away (counted) where there is no room, instead of holding the collector up."""
    weights_every: int | None = None
    """Epochs between two hand-overs of weights to the collectors."""
    capacity: int | None = None
    """Transitions that the replay keeps."""
    batch_size: int | None = None
    """Transitions of a batch."""
    accumulate: int | None = None
    """Batches whose gradients make one update."""
    learn_per_step: float = 0.5
    """Transitions learnt from for each one collected."""
    learning_starts: int = 2_000
    """Transitions collected before the first batch."""
    learning_rate: float = 2.5e-4
    """Of Adam."""
    learning_rate_end: float | None = None
    """The same in the last epoch, reached in a straight line; when not given it stays."""
    discount: float = 0.97
    """What a reward one step later is worth; 0.9 is learnt sooner, and looks some 10 steps ahead."""
    n_step: int = 1
    """Rewards summed before a value is asked for."""
    target_every: int = 10
    """Updates between two copies of the network to the target."""
    epsilon_start: float = 1.0
    """Chance of a random action at the beginning."""
    epsilon_end: float = 0.05
    """The same once it has fallen."""
    epsilon_steps: int = 50_000
    """Env steps over which it falls."""
    layout: Literal["fast", "plain"] | None = None
    """fast: channels last, first convolution rearranged, normalisation folded where no gradient is needed;
    plain: the network as it is written. Same numbers up to rounding."""
    compile: bool = False
    """The learner's forward and backward pass through torch.compile."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the network's products; auto: bfloat16 or float16 where the device has them."""
    data_parallel: bool = False
    """Spread batches over all GPUs."""
    norm: bool = True
    """Batch normalisation after each convolution."""
    norm_momentum: float = 0.1
    """How far its running statistics move towards those of each batch; less for small batches."""
    channels: tuple[int, int, int] = (32, 64, 64)
    """Of the three convolutions."""
    hidden: int = 512
    """Width of the dense layer."""
    threads: int = 1
    """Threads of the learner's arithmetic."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    skip: int = 4
    """Frames an action is held for."""
    size: int = 84
    """Height and width of a frame after resizing."""
    stack: int = 4
    """Frames the agent sees at once."""
    level: int | None = None
    """Always this level of the platformer; a new one in each episode when not given."""
    difficulty: Literal["easy", "normal", "hard"] = "easy"
    """Of the platformer's levels."""
    max_episode_steps: int | None = None
    """Truncate episodes after so many steps."""
    world: str = "1-1"
    """World and stage, with env mario."""
    start_method: Literal["spawn", "fork", "forkserver"] = "spawn"
    """How collectors are started."""
    hang_timeout: float = 60.0
    """Start a collector anew when nothing was heard of it for so many seconds."""
    play: int = 0
    """Games of the platformer that are played after training, by the agent and by chance, to tell how far
    each comes."""
    seed: int = 0
    """Decides weights, samples and the collectors' seeds."""
    metrics: Path | None = None
    """Folder for TensorBoard."""
    checkpoint: Path | None = None
    """Where to keep the agent; also written on Ctrl-C."""
    resume: bool = False
    """Go on from the checkpoint."""

    @property
    def machinery(self) -> Machinery:
        """What is given, and the variant's setting for the rest.

        `fast` leaves a core to the learner: with fewer than 5 it plays the same games in fewer collectors.
        """
        found = VARIANTS[self.variant]
        if self.variant == "fast" and self.collectors is None and self.envs is None:
            few = min(max(int(cores_granted()) - 1, 1), found.collectors)
            found = dataclasses.replace(found, collectors=few, envs=found.collectors * found.envs // few)
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(found)}
        return dataclasses.replace(found, **{n: value for n, value in given.items() if value is not None})

    @property
    def timesteps(self) -> int:
        """About how many env steps there will be."""
        return self.epochs * (self.epoch_steps or 150 * self.machinery.episodes_per_epoch)


def settings_of(config: Mario, quiet: bool = True) -> Any:
    """The settings of our asynchronous DQN; they check themselves when training begins."""
    from hotloop.rl.train.async_dqn_config import AsyncDQNConfig

    same = {f.name for f in dataclasses.fields(AsyncDQNConfig)} & {f.name for f in dataclasses.fields(Mario)}
    chosen = {name: getattr(config, name) for name in same} | dataclasses.asdict(config.machinery)
    return AsyncDQNConfig(
        **chosen,
        hang_s=config.hang_timeout,
        reward_scale=REWARD_SCALE,
        quiet=quiet,
    )


def make_env(config: Mario, seed: int) -> Any:
    """The games of one collector: a vector env of the platformer, or one game in the emulator."""
    from gymnasium.vector import AutoresetMode

    from hotloop.rl.envs.chain import Chain

    chain = Chain(skip=config.skip, size=config.size, stack=config.stack)
    if config.env == "mario":
        from hotloop.rl.envs.mario import MarioEnv

        world, stage = _world(config.world)
        return MarioEnv(world=world, stage=stage, chain=chain, max_episode_steps=config.max_episode_steps)
    from hotloop.rl.envs.platformer.env import PlatformerVectorEnv

    return PlatformerVectorEnv(
        config.machinery.envs,
        level=config.level,
        difficulty=config.difficulty,
        chain=chain,
        max_episode_steps=config.max_episode_steps,
        autoreset_mode=AutoresetMode.SAME_STEP,
        copy=False,
    )


def _world(text: str) -> tuple[int, int]:
    world, _, stage = text.partition("-")
    if not (world.isdigit() and stage.isdigit() and 1 <= int(world) <= 8 and 1 <= int(stage) <= 4):
        raise HotloopError(f"world={text!r} is not known; give world and stage from 1-1 to 8-4.")
    return int(world), int(stage)


def run(config: Mario, note: Note | None = None, quiet: bool = False) -> Outcome:
    """Train as the config says."""
    check(config)
    from hotloop.rl.train.async_dqn import train

    settings = settings_of(config, quiet=quiet)
    done = train(settings, partial(make_env, config), distance="x_pos", note=note)
    said, found = remarks(config, done), figures(done)
    if config.play and done.stopped_by is None:
        from hotloop.rl.workloads.mario_play import beside_chance

        both = beside_chance(config, done.network, config.play)
        said, found = (*said, both.says), found | both.figures
    return Outcome(
        done.env_steps,
        done.updates,
        done.episodes,
        done.mean_return,
        done.seconds,
        done.stopped_by,
        config.checkpoint,
        said,
        found,
    )


def figures(done: Any) -> dict[str, float | None]:
    """The pipeline's figures, for `--json` and the recording."""
    return {
        "epochs": done.epochs,
        "env_steps_per_s": done.steps_per_s,
        "batches_per_s": done.batches_per_s,
        "mean_epoch_s": sum(done.epoch_s) / len(done.epoch_s) if done.epoch_s else None,
        "mean_distance": done.mean_distance,
        "learner_busy_fraction": done.learner_busy_fraction,
        "collector_busy_fraction": done.collector_busy_fraction,
        "lock_wait_s": done.lock_wait_s,
        "drops": done.drops,
        "versions_behind": done.staleness,
        "restarts": done.restarts,
    }


def remarks(config: Mario, done: Any) -> tuple[str, ...]:
    """What the pipeline did, and what a reader must know to read the figures right."""
    from hotloop._util.units import duration, percent

    machinery = config.machinery
    busy, stale = done.collector_busy_fraction, done.staleness
    distance = f"mean distance {done.mean_distance:.0f}" if done.mean_distance is not None else "no distance"
    wait = duration(1e9 * done.lock_wait_s) if done.lock_wait_s else "none"
    said = [
        f"{done.epochs} epochs, {distance}; {done.batches:,} batches of {machinery.batch_size} "
        f"({done.batches_per_s:.2f}/s), {machinery.accumulate} to an update, in {done.precision}",
        f"learner busy {percent(done.learner_busy_fraction)}, collectors busy "
        f"{'-' if busy is None else percent(busy)}; lock wait {wait}, drops {done.drops:,}, weights "
        f"{'-' if stale is None else f'{stale:.1f}'} versions old",
    ]
    if done.restarts:
        said.append(f"{done.restarts} collectors ended before their time and were started anew")
    return tuple(said)


def check(config: Mario) -> None:
    """Raise HotloopError with one sentence for the first setting that cannot be."""
    from hotloop.rl.train.async_dqn_config import check as check_settings

    _world(config.world)
    if config.size % 4 or config.size < 36:
        raise HotloopError(f"size={config.size} must be a multiple of 4 of at least 36, such as 84.")
    if config.stack < 2:
        raise HotloopError(f"stack={config.stack} must be at least 2: one frame does not show what moves.")
    if config.play < 0:
        raise HotloopError(f"play={config.play} must be at least 0 games.")
    if config.play and config.env != "platformer":
        raise HotloopError(
            f"play={config.play} plays the platformer only; leave it out with env {config.env}."
        )
    check_settings(settings_of(config))
