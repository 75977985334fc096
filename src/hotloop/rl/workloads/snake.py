"""`hotloop train snake`: deep Q-learning on many games at once, every suspect of a slow run a switch.

A variant names a setting for every switch; a switch given by name takes the place of the variant's. All
settings of `push`, `transfers`, `logging`, `learner`, `loop` and `split`, and of `flood_fill` but `off` and
`every_k`, do the same training: the same numbers, up to rounding where the learner differs.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hotloop import profile, progress
from hotloop._util.errors import HotloopError
from hotloop.rl.workloads.episodes import EpisodeLine, sanity_figures
from hotloop.rl.workloads.outcome import Note, Outcome

_start_up = profile("start_up", "other")
_compile = profile("compile_kernels", "other")
_log = profile("log")

Push = Literal["items", "batch"]
FloodFill = Literal["off", "python", "cached", "every_k", "compiled", "every_k_compiled"]
Transfers = Literal["items", "batch"]
Switch = Literal["on", "off"]
Learner = Literal["torch", "compiled", "fused"]
Loop = Literal["python", "kernel"]


@dataclass(frozen=True)
class Switches:
    """A setting for every suspect."""

    push: Push
    updates: str
    flood_fill: FloodFill
    transfers: Transfers
    logging: Switch
    learner: Learner
    loop: Loop
    split: Switch


FAST = Switches("batch", "n/4", "compiled", "batch", "off", "fused", "kernel", "off")
VARIANTS = {
    "original": Switches("items", "n/4", "python", "items", "on", "torch", "python", "on"),
    "fast": FAST,
    "fewer": dataclasses.replace(FAST, updates="n/16"),
}

# Hyper-parameters, the same for every variant and trainer. The number of exploring steps does not hang on
# the length of the run, so that a longer run begins like a shorter one.
HIDDEN = (128, 128)
LEARNING_STARTS = 256
TARGET_EVERY = 2_560
EXPLORING_STEPS = 15_000
LAST_EPSILON = 0.01
MOST_STEPS = 1_000_000_000  # of a run that ends by its episodes


@dataclass(frozen=True)
class Snake:
    """Train an agent to play Snake by deep Q-learning, with every suspect of a slow run as a switch."""

    episodes: int = 1024
    """Train until so many episodes have ended."""
    envs: int = 256
    """Games played at the same time."""
    steps: int = 0
    """End after so many env steps, if the episodes take longer; 0 for no such end."""
    variant: Literal["original", "fast", "fewer"] = "fast"
    """original: every switch at its slow setting; fast: the same updates, everything fast; fewer: fast with
    a quarter of the updates (n/16), which is a different amount of work."""
    push: Push | None = None
    """Into the replay game by game, or a whole step at once."""
    updates: str | None = None
    """Updates for each step of all games: n/4 and n/16 with n games, 4, 1, or 1/4 for every 4th step."""
    flood_fill: FloodFill | None = None
    """Who finds the reachable areas, three more features; off: nobody."""
    flood_every: int = 4
    """With both flood fills every_k: on every so many steps of an episode; old values in between."""
    transfers: Transfers | None = None
    """How rows become tensors for the torch learner: one by one or together; the fused learner has none."""
    logging: Switch | None = None
    """Write all metrics after every step of all games."""
    learner: Learner | None = None
    """torch: eager; compiled: torch.compile; fused: our kernels."""
    loop: Loop | None = None
    """kernel: where the other switches allow it, all steps run in one kernel, which has one region."""
    split: Switch | None = None
    """The loop and the env's step in parts that the report shows apart."""
    training: Literal["on", "skipped"] = "on"
    """skipped: act and store only."""
    trainer: Literal["hotloop", "sb3"] = "hotloop"
    """Ours, or Stable-Baselines3's DQN with the same network and hyper-parameters (but no double targets)."""
    size: int = 10
    """Cells along a side of the board, 4 to 64."""
    batch_size: int = 64
    """Transitions of an update."""
    capacity: int = 50_000
    """Transitions that the replay keeps."""
    learning_rate: float = 1e-3
    """Of Adam."""
    learning_check: int = 0
    """First train the fast twin of these settings for so many env steps and let it play; the report's return
    is then that of its games, so that learning can be compared after a run too short to learn. 0: not."""
    seed: int = 0
    """Same seed, same settings: same agent."""
    log: Path | None = None
    """Where logging writes, a JSON line for each step; nowhere lasting when not given."""
    metrics: Path | None = None
    """Folder for TensorBoard."""
    checkpoint: Path | None = None
    """Where to keep the agent; also written on Ctrl-C."""
    resume: bool = False
    """Go on from the checkpoint."""

    @property
    def timesteps(self) -> int:
        """About how many env steps there will be."""
        return self.steps or 100 * self.episodes

    @property
    def switches(self) -> Switches:
        """What is given, and the variant's setting for the rest."""
        found = VARIANTS[self.variant]
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(found)}
        found = dataclasses.replace(found, **{name: value for name, value in given.items() if value})
        if self.transfers is None and found.learner != "torch":
            found = dataclasses.replace(found, transfers="batch")  # only eager torch moves rows one by one
        return found


def make_envs(config: Snake, count: int | None = None) -> Any:
    """The games, as our trainers want them: arrays of one step are overwritten by the next."""
    from hotloop.rl.envs.snake.env import SnakeVectorEnv

    switches = config.switches
    return SnakeVectorEnv(
        count or config.envs,
        size=config.size,
        flood_fill=switches.flood_fill,
        flood_every=config.flood_every,
        split_regions=switches.split == "on",
        autoreset_mode="SameStep",
        copy=False,
    )


def dqn_settings(config: Snake) -> Any:
    """The settings of our DQN; they check themselves when training begins."""
    from hotloop.rl.train.dqn_config import DQNConfig

    switches = config.switches
    most = config.steps or MOST_STEPS
    return DQNConfig(
        env="Snake",
        seed=config.seed,
        total_steps=most,
        stop_at_episodes=config.episodes,
        num_envs=config.envs,
        learning_rate=config.learning_rate,
        capacity=config.capacity,
        learning_starts=LEARNING_STARTS,
        batch_size=config.batch_size,
        updates=switches.updates,
        learn=config.training == "on",
        target_every=TARGET_EVERY,
        epsilon_end=LAST_EPSILON,
        epsilon_fraction=min(EXPLORING_STEPS / most, 1.0),
        hidden=HIDDEN,
        push=switches.push,
        transfers=switches.transfers,
        learner=switches.learner,
        loop="python" if switches.loop == "python" or switches.split == "on" else "auto",
        log_every=1 if switches.logging == "on" else 0,
        checkpoint=config.checkpoint,
        resume=config.resume,
        metrics=config.metrics,
        quiet=True,
    )


def prepare(config: Snake) -> None:
    """Compile the kernels, before anybody looks at the time."""
    if config.trainer == "hotloop":
        envs = make_envs(config)
        compile_kernels(dqn_settings(config), envs)
        envs.close()


def run(config: Snake, note: Note | None = None, quiet: bool = False) -> Outcome:
    """Train as the config says."""
    check(config)
    remarks = _remarks(config)
    if config.learning_check:
        from hotloop.rl.workloads.snake_play import learn_and_play

        played = learn_and_play(config, config.learning_check)
        progress(episode_return=played.mean_return)
        remarks = (*remarks, f"learning check: {played.says}")
    if config.trainer == "sb3":
        from hotloop.rl.workloads.snake_sb3 import train_with_sb3

        outcome = train_with_sb3(config)
    else:
        outcome = _with_dqn(config, note, quiet)
    figures = sanity_figures(outcome.env_steps, outcome.episodes)
    return dataclasses.replace(outcome, remarks=(figures, *remarks, *outcome.remarks))


def _with_dqn(config: Snake, note: Note | None, quiet: bool) -> Outcome:
    with _start_up:
        from hotloop.rl.train.dqn import IN_ONE_KERNEL, fits_one_kernel, train

        settings, envs = dqn_settings(config), make_envs(config)
        compile_kernels(settings, envs)
    in_kernel = settings.loop != "python" and fits_one_kernel(settings, settings.learner, envs)
    note = (lambda: f"{IN_ONE_KERNEL}; --split on shows its parts") if in_kernel else note
    line = EpisodeLine(None if config.resume else config.episodes, quiet=quiet, note=note)

    def report(**done: Any) -> None:
        if config.learning_check:
            done["episode_return"] = None  # the check has told one
        progress(**done)
        line.add(done["env_steps"], done["episodes"], done["episode_return"])

    try:
        with _writer(config) as write:
            done = train(settings, envs=envs, after_record=write, report=report)
    finally:
        line.close()
        envs.close()
    return Outcome(
        done.env_steps,
        done.updates,
        done.episodes,
        done.mean_return,
        done.seconds,
        done.stopped_by,
        config.checkpoint,
    )


def compile_kernels(settings: Any, envs: Any) -> None:
    """Call once what the training will call, so that none of its phases is charged with compilation."""
    import numpy as np

    from hotloop.rl.envs.streams import make_streams
    from hotloop.rl.train.dqn_learners import make_learner, update_ms
    from hotloop.rl.train.networks.q import QNetwork

    with _compile:
        envs.reset(seed=0)
        envs.actions[:] = 0
        envs._step_rows(0, envs.num_envs)  # `step` would be counted by whoever counts steps
        if settings.learner != "fused":
            return
        space, actions = envs.single_observation_space, int(envs.single_action_space.n)
        network = QNetwork(space.shape[0], actions, settings.hidden, settings.activation)
        update_ms("fused", settings, network, space, actions)
        learner = make_learner("fused", network, settings)
        learner.act(envs.observations, 0.0, make_streams(1), np.zeros(envs.num_envs, dtype=np.int64))
        learner.follow()


@contextmanager
def _writer(config: Snake) -> Iterator[Callable[[int, dict[str, float]], None] | None]:
    """What writes the metrics of a step, as scripts do: one line, at once; None without logging."""
    if config.switches.logging == "off":
        yield None
        return
    with config.log.open("w") if config.log else tempfile.TemporaryFile("w") as file:

        def write(env_steps: int, statistics: dict[str, float]) -> None:
            with _log:
                print(json.dumps({"env_steps": env_steps, **statistics}), file=file, flush=True)

        yield write


def _remarks(config: Snake) -> tuple[str, ...]:
    """What a reader must know to read the figures right."""
    from hotloop.rl.envs.snake.config import EVERY_K

    said = []
    if config.training == "skipped":
        said.append("training was skipped: the agent only acts and stores")
    elif config.switches.updates != VARIANTS["original"].updates:
        said.append(
            f"{config.switches.updates} updates for each step of all games, not the original's n/4: "
            "a different amount of work"
        )
    if config.switches.flood_fill in EVERY_K:
        said.append(f"flood fill on every {config.flood_every}. step: the agent sees old values in between")
    return tuple(said)


def check(config: Snake) -> None:
    """Raise HotloopError with one sentence for the first setting that cannot be."""
    for name, least in (("episodes", 1), ("envs", 1), ("steps", 0), ("learning_check", 0)):
        if getattr(config, name) < least:
            raise HotloopError(f"{name}={getattr(config, name)} must be at least {least}.")
    if config.log is not None and not config.log.absolute().parent.is_dir():
        raise HotloopError(
            f"there is no folder {config.log.absolute().parent} for {config.log.name}; make it."
        )
    if config.trainer == "sb3" and (config.learning_check or config.checkpoint or config.metrics):
        raise HotloopError(
            "learning_check, checkpoint and metrics are for our own trainer; leave them out, or use "
            "trainer hotloop."
        )
