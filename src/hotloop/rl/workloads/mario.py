"""`hotloop train mario`: collectors in separate processes feed one learner, with or without a lock.

    from hotloop.rl.workloads.mario import Mario, run
    outcome = run(Mario(total_timesteps=10_000))

`original` is the design people start with, done as well as it can be: two collectors that play one game each
and put every transition into one shared queue behind a lock; the learner runs the network as written. `fast`
gives each collector a lock-free ring and several games at once. Both have the same network, loss and replay
ratio (transitions learned from per transition collected).
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium.vector import AutoresetMode

from hotloop import profile
from hotloop._util.errors import HotloopError
from hotloop._util.units import counted, duration, percent
from hotloop.machine.facts import cores_granted
from hotloop.rl.envs.frame_preprocessing import FramePreprocessing
from hotloop.rl.envs.mario import MarioEnv
from hotloop.rl.envs.platformer.config import PlatformerConfig
from hotloop.rl.envs.platformer.env import PlatformerVectorEnv
from hotloop.rl.train.async_dqn import AsyncDQNConfig, AsyncDQNResult, check_config, saved_run, train
from hotloop.rl.train.frame_actor import FrameActor
from hotloop.rl.train.runs import (
    FinalEvaluation,
    check_at_least,
    end_if_stopped,
    shut_down,
    torch_threads,
)
from hotloop.rl.workloads.outcome import Note, Outcome

_evaluate = profile("evaluate")

VariantName = Literal["original", "fast"]


@dataclass(frozen=True)
class Variant:
    """The settings in which the variants differ."""

    transport: Literal["rings", "locked", "serial"]
    n_collectors: int
    envs_per_collector: int
    buffer_size: int
    batch_size: int
    accumulate_grad_batches: int
    episodes_per_epoch: int
    weights_every_epochs: int
    layout: Literal["fast", "plain"]


VARIANTS = {
    "original": Variant("locked", 2, 1, 10_000, 256, 1, 8, 3, "plain"),
    "fast": Variant("rings", 4, 16, 50_000, 512, 4, 16, 5, "fast"),
}

DEFAULT_TIMESTEPS = 50_000
N_ACTIONS = 7  # of both games
UNLIMITED = 1_000_000_000  # env steps of a run that stops by its epochs
REWARD_SCALE = 1 / 15  # rewards lie in -15 .. 15

# In evaluations one action in twenty is random, as in Mnih et al. (2015). Without `show_jump_button` it is
# needed: a jump begins when A goes down, and frames do not show whether A is already down. An agent in front
# of a wall with A down sees the same frames forever and repeats the same action; any action without A frees
# it.
EVAL_EPS = 0.05
EVAL_SEED = 1_000_000  # away from the seeds of training
EVAL_ENVS = 16
SELECTION_SEED, SELECTION_EPISODES = 2_000_000, 32  # of the evaluations that choose the best network


@dataclass(frozen=True)
class Mario:
    """Train a double DQN agent on a side-scroller, with collectors in separate processes."""

    variant: VariantName = "fast"
    """original: 2 collectors, one locked queue, replay 10,000, batch 256, 8 episodes per epoch, new weights
    every 3 epochs; fast: 4 collectors with a ring each (fewer if that left the learner no core), 50,000,
    512 x 4, 16, 5."""
    env: Literal["platformer", "mario"] = "platformer"
    """platformer: ours, compiled; mario: Super Mario Bros in the emulator (needs the extra `mario`)."""
    total_timesteps: int | None = None
    """Env steps to train for, rounded up to whole epochs; 50,000 by default, or no limit with
    --stop-at-epochs."""
    stop_at_epochs: int | None = None
    """Stop after this many epochs."""
    episodes_per_epoch: int | None = None
    """Episodes in an epoch, the interval of reports and of sending weights to the collectors."""
    epoch_steps: int = 0
    """Env steps in an epoch, instead of a number of episodes; 0 to count episodes."""
    n_collectors: int | None = None
    """Number of collector processes."""
    envs_per_collector: int | None = None
    """Parallel games in each collector."""
    transport: Literal["rings", "locked", "serial"] | None = None
    """How experience is sent: one ring per collector, one locked queue, or no processes at all."""
    on: str = ""
    """Ray cluster whose nodes run the collectors: ray, or ray://HOST:PORT; empty: this computer."""
    experience_batch_size: int = 1000
    """Most transitions that the learner takes at once."""
    queue_size: int = 1024
    """Transitions that can wait between a collector and the learner."""
    drop_when_full: bool = False
    """Drop and count transitions when the queue is full, instead of blocking the collector."""
    weights_every_epochs: int | None = None
    """Epochs between two times that the collectors get new weights."""
    weights_every_steps: int = 0
    """Env steps between two times, instead of a number of epochs; 0 to count epochs."""
    buffer_size: int | None = None
    """Transitions in the replay buffer."""
    batch_size: int | None = None
    """Transitions of a batch."""
    accumulate_grad_batches: int | None = None
    """Batches whose gradients are accumulated for one update."""
    replay_ratio: float = 0.5
    """Transitions to learn from for each transition collected."""
    learning_starts: int = 2_000
    """Transitions collected before the first batch."""
    learning_rate: float = 2.5e-4
    """Adam's learning rate."""
    final_learning_rate: float | None = None
    """Learning rate at total_timesteps, reached linearly; constant by default."""
    gamma: float = 0.97
    """Discount factor; 0.9 learns sooner, and looks about 10 steps ahead."""
    n_steps: int = 1
    """Rewards summed before bootstrapping (n-step returns)."""
    target_every_updates: int = 10
    """Updates between two updates of the target network."""
    tau: float = 1.0
    """How far each of these moves the target network; 1 copies the weights."""
    exploration_initial_eps: float = 1.0
    """Probability of a random action at the beginning."""
    exploration_final_eps: float = 0.05
    """Probability of a random action after --exploration-steps."""
    exploration_steps: int = 50_000
    """Env steps over which this probability falls linearly."""
    layout: Literal["fast", "plain"] | None = None
    """fast: channels last, first convolution on blocks of pixels, normalisation folded where no gradient is
    needed and in one step with ReLU where it is, freed memory kept in the process; plain: the network as
    written. Same numbers up to rounding."""
    compile: bool = False
    """Compile the learner's forward and backward pass with torch.compile."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of matrix products; auto: bfloat16 or float16 where the device has them."""
    data_parallel: bool = False
    """Spread batches over all GPUs."""
    batch_norm: bool = True
    """Batch normalisation after each convolution."""
    batch_norm_momentum: float = 0.1
    """How far its running statistics move towards those of each batch; use less for small batches."""
    target_statistics: Literal["running", "batch"] = "running"
    """Statistics that normalise the next observations for the targets: the running ones, which the agent
    acts on, or those of the batch, as for the values that are learned."""
    channels: tuple[int, int, int] = (32, 64, 64)
    """Channels of the three convolutions."""
    features_dim: int = 512
    """Width of the dense layer after them."""
    threads: int = 1
    """Torch's intra-op threads in the learner."""
    target_thread: bool = True
    """Share the passes over next observations with a second thread, if there are two cores. With layout fast,
    --threads 1 and --target-statistics running; same numbers."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    skip: int = 4
    """Frames that an action is repeated for."""
    size: int = 84
    """Height and width of a frame after resizing."""
    stack: int = 4
    """Frames in an observation."""
    show_jump_button: bool = False
    """Draw whether A is down into the top 4 rows of every frame; the game's own frames do not show it."""
    level: int | None = None
    """Always this level of the platformer; by default a new one in each episode."""
    difficulty: Literal["easy", "normal", "hard"] = "easy"
    """Difficulty of the platformer's levels."""
    max_episode_steps: int | None = None
    """Truncate episodes after this many steps."""
    world: str = "1-1"
    """World and stage, with env mario."""
    start_method: Literal["spawn", "fork", "forkserver"] = "spawn"
    """How collector processes are started."""
    hang_timeout_s: float = 60.0
    """Restart a collector that makes no progress for this many seconds."""
    allow_nonfinite: bool = False
    """Train on rewards that are NaN or infinite, instead of stopping."""
    eval_every_epochs: int = 0
    """Epochs of the platformer between two evaluations in the second half of the run; the best network is
    kept. 0 keeps the last one."""
    n_eval_episodes: int = 0
    """Episodes of the platformer to play after training, by the agent and at random, to compare how far
    each comes."""
    seed: int = 0
    """Seed of weights, samples and collectors."""
    tensorboard_log: Path | None = None
    """Folder for TensorBoard."""
    checkpoint: Path | None = None
    """File to save the agent to, also on Ctrl-C."""
    resume: bool = False
    """Continue from the checkpoint."""

    @property
    def settings(self) -> Variant:
        """The settings given by flag, and the variant's for the rest.

        With fewer than 5 cores, `fast` plays the same games in fewer collectors, to leave the learner a core.
        """
        found = VARIANTS[self.variant]
        if self.variant == "fast" and self.n_collectors is None and self.envs_per_collector is None:
            n_collectors = min(max(int(cores_granted()) - 1, 1), found.n_collectors)
            games = found.n_collectors * found.envs_per_collector
            found = replace(found, n_collectors=n_collectors, envs_per_collector=games // n_collectors)
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(found)}
        return replace(found, **{name: value for name, value in given.items() if value is not None})

    @property
    def expected_timesteps(self) -> int:
        """About how many env steps the run will take."""
        if self.total_timesteps is None and self.stop_at_epochs is not None:
            return self.stop_at_epochs * (self.epoch_steps or 150 * self.settings.episodes_per_epoch)
        return self.total_timesteps or DEFAULT_TIMESTEPS


def async_dqn_config(config: Mario, quiet: bool = True) -> AsyncDQNConfig:
    common = {f.name for f in dataclasses.fields(AsyncDQNConfig)} & {
        f.name for f in dataclasses.fields(Mario)
    }
    chosen = {name: getattr(config, name) for name in common} | dataclasses.asdict(config.settings)
    limit = config.total_timesteps or (UNLIMITED if config.stop_at_epochs else DEFAULT_TIMESTEPS)
    return AsyncDQNConfig(**chosen | {"total_timesteps": limit}, reward_scale=REWARD_SCALE, quiet=quiet)


def _preprocessing(config: Mario) -> FramePreprocessing:
    return FramePreprocessing(
        skip=config.skip,
        size=config.size,
        stack=config.stack,
        show_jump_button=config.show_jump_button,
    )


def make_env(config: Mario, seed: int) -> Any:
    """The games of one collector: a vector env of the platformer, or one game in the emulator."""
    preprocessing = _preprocessing(config)
    if config.env == "mario":
        world, stage = _world_and_stage(config.world)
        return MarioEnv(
            world=world, stage=stage, preprocessing=preprocessing, max_episode_steps=config.max_episode_steps
        )
    return PlatformerVectorEnv(
        config.settings.envs_per_collector,
        level=config.level,
        difficulty=config.difficulty,
        preprocessing=preprocessing,
        max_episode_steps=config.max_episode_steps,
        autoreset_mode=AutoresetMode.SAME_STEP,
        copy=False,
    )


def _world_and_stage(text: str) -> tuple[int, int]:
    world, _, stage = text.partition("-")
    if not (world.isdigit() and stage.isdigit() and 1 <= int(world) <= 8 and 1 <= int(stage) <= 4):
        raise HotloopError(f"world={text!r} is unknown; use a world and stage from 1-1 to 8-4.")
    return int(world), int(stage)


def run(config: Mario, note: Note | None = None, quiet: bool = False) -> Outcome:
    """Train as `config` says."""
    check(config)
    best = BestNetwork(config)
    settings = async_dqn_config(config, quiet)
    after_epoch = best.after_epoch if config.eval_every_epochs else None
    make = partial(make_env, config)
    done = train(settings, make, distance="x_pos", note=note, after_epoch=after_epoch)
    remarks, figures = _remarks(config, done), _figures(done)
    stopped_by = done.stopped_by
    if stopped_by is None:
        with shut_down, FinalEvaluation() as evaluation:
            if config.eval_every_epochs:
                remarks = (*remarks, best.restore(done.epochs, done.network))
            if config.n_eval_episodes:
                compared = compare_with_random(config, done.network, config.n_eval_episodes)
                remarks, figures = (*remarks, str(compared)), figures | compared.figures
        stopped_by = evaluation.by
    outcome = Outcome.of_run(done, config.checkpoint, remarks)
    return replace(outcome, figures=figures, stopped_by=stopped_by)


def _figures(done: AsyncDQNResult) -> dict[str, float | None]:
    """The pipeline's figures, for `--json` and the capture."""
    return {
        "epochs": done.epochs,
        "env_steps_per_s": done.steps_per_s,
        "batches_per_s": done.batches_per_s,
        "mean_epoch_s": sum(done.epoch_s) / len(done.epoch_s) if done.epoch_s else None,
        "mean_distance": done.mean_distance,
        "learner_busy_fraction": done.learner_busy_fraction,
        "collector_busy_fraction": done.collector_busy_fraction,
        "lock_wait_s": done.lock_wait_s,
        "drops": done.dropped,
        "versions_behind": done.versions_behind,
        "restarts": done.restarts,
    }


def _remarks(config: Mario, done: AsyncDQNResult) -> tuple[str, ...]:
    settings = config.settings
    if not done.loop_env_steps:
        return ("stopped before the collectors had played a step",) if done.stopped_by else ()
    busy, behind = done.collector_busy_fraction, done.versions_behind
    distance = f"mean distance {done.mean_distance:.0f}" if done.mean_distance is not None else "no distance"
    wait = duration(1e9 * done.lock_wait_s) if done.lock_wait_s else "none"
    remarks = [
        f"{counted(done.epochs, 'epoch')}, {distance}; {done.batches:,} batches of {settings.batch_size} "
        f"({done.batches_per_s:.2f}/s), {settings.accumulate_grad_batches} per update, in {done.precision}",
        f"learner busy {percent(done.learner_busy_fraction)}, collectors busy "
        f"{'-' if busy is None else percent(busy)}; lock wait {wait}, drops {done.dropped:,}, weights "
        f"{'-' if behind is None else f'{behind:.1f}'} versions behind",
    ]
    if done.restarts:
        remarks.append(f"{done.restarts} collectors died and were restarted")
    return tuple(remarks)


def check(config: Mario) -> None:
    """Raise HotloopError for the first invalid setting."""
    check_at_least(config, 1, "total_timesteps", "stop_at_epochs")
    check_at_least(config, 0, "n_eval_episodes", "eval_every_epochs")
    _world_and_stage(config.world)
    if config.size % 4 or config.size < 36:
        raise HotloopError(f"size={config.size} must be a multiple of 4 of at least 36, such as 84.")
    if config.stack < 2:
        raise HotloopError(f"stack={config.stack} must be at least 2: one frame does not show movement.")
    PlatformerConfig(config.level, config.difficulty, _preprocessing(config), config.max_episode_steps)
    for name in ("n_eval_episodes", "eval_every_epochs"):
        if getattr(config, name) and config.env != "platformer":
            raise HotloopError(
                f"{name}={getattr(config, name)} is for the platformer only; leave it out with env "
                f"{config.env}."
            )
    if config.final_learning_rate is not None and config.stop_at_epochs and not config.total_timesteps:
        raise HotloopError(
            f"final_learning_rate={config.final_learning_rate} is reached at total_timesteps; set that, too."
        )
    settings = async_dqn_config(config)
    check_config(settings)
    saved_run(settings)


# ---- does it learn?


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Figures of episodes played without learning."""

    episodes: int
    mean_distance: float
    """Pixels to the right."""
    mean_return: float
    flags: int
    """Episodes that reached the flag."""


@dataclass(frozen=True, slots=True)
class AgentAndRandom:
    """The agent and random actions on the same levels."""

    agent: Evaluation
    """With one action in twenty at random."""
    greedy: Evaluation
    """With no random action."""
    random: Evaluation

    @property
    def ratio(self) -> float:
        """How many times as far the agent comes."""
        return self.agent.mean_distance / self.random.mean_distance

    @property
    def greedy_ratio(self) -> float:
        """How many times as far the agent comes if it takes no random action."""
        return self.greedy.mean_distance / self.random.mean_distance

    def __str__(self) -> str:
        agent, random = self.agent, self.random
        return (
            f"evaluated on {agent.episodes} episodes: the agent's distance is {agent.mean_distance:.0f}, "
            f"{self.ratio:.2f}x that of random actions ({random.mean_distance:.0f}); it reaches the flag in "
            f"{agent.flags}, they in {random.flags}; always greedy, without one random action in twenty: "
            f"{self.greedy_ratio:.2f}x, {self.greedy.flags} flags"
        )

    @property
    def figures(self) -> dict[str, float | None]:
        return {
            "eval_episodes": self.agent.episodes,
            "agent_distance": self.agent.mean_distance,
            "greedy_distance": self.greedy.mean_distance,
            "random_distance": self.random.mean_distance,
            "agent_flags": self.agent.flags,
            "greedy_flags": self.greedy.flags,
            "random_flags": self.random.flags,
        }


class BestNetwork:
    """Keeps the network that came furthest in evaluations: deep Q-learning's last one is not always its best.

    Levels and random numbers are those of selection, so the final evaluation is on others.
    """

    def __init__(self, config: Mario):
        self._config = config
        self._half = max(
            config.expected_timesteps // (2 * (config.epoch_steps or config.expected_timesteps)), 1
        )
        self._best: tuple[float, int, dict[str, Any]] | None = None
        """Mean distance, epochs and weights."""
        self._seen: dict[int, float] = {}

    def after_epoch(self, epochs: int, network: Any) -> None:
        if epochs >= self._half and epochs % self._config.eval_every_epochs == 0:
            self._consider(epochs, network)

    def _consider(self, epochs: int, network: Any) -> None:
        selection = replace(self._config, seed=self._config.seed + SELECTION_SEED)
        found = evaluate(selection, network, SELECTION_EPISODES).mean_distance
        self._seen[epochs] = found
        if self._best is None or found > self._best[0]:
            self._best = found, epochs, copy.deepcopy(network.state_dict())

    def restore(self, epochs: int, network: Any) -> str:
        """Load the best weights into the network; returns a sentence about them."""
        if epochs not in self._seen:
            self._consider(epochs, network)
        assert self._best is not None
        distance, best_at, weights = self._best
        network.load_state_dict(weights)
        last = self._seen[epochs]
        if best_at == epochs:
            return f"the last network is the best of {len(self._seen)} evaluated (distance {distance:.0f})"
        return (
            f"kept the network after epoch {best_at} (distance {distance:.0f} on levels for selection; the "
            f"last one {last:.0f})"
        )


def compare_with_random(config: Mario, network: Any, episodes: int = 32) -> AgentAndRandom:
    return AgentAndRandom(
        evaluate(config, network, episodes),
        evaluate(config, network, episodes, epsilon=0.0),
        evaluate(config, None, episodes),
    )


def evaluate(
    config: Mario, network: Any | None, episodes: int = 32, *, epsilon: float = EVAL_EPS
) -> Evaluation:
    """Play episodes of the platformer with the network (a copy of it), or with random actions."""
    n_envs = min(EVAL_ENVS, episodes)
    envs = make_env(replace(config, env="platformer", envs_per_collector=n_envs), config.seed)
    rng = np.random.default_rng([config.seed, EVAL_SEED])
    actor = None if network is None else FrameActor(copy.deepcopy(network).cpu())
    # A share for each env, so that short episodes do not count more.
    left = np.full(n_envs, episodes // n_envs)
    left[: episodes % n_envs] += 1
    distances: list[float] = []
    returns: list[float] = []
    flags = 0
    try:
        with _evaluate, torch_threads(config.threads):
            observations, _ = envs.reset(seed=config.seed + EVAL_SEED)
            running = np.zeros(n_envs)
            while left.any():
                end_if_stopped()
                if actor is None:
                    actions = rng.integers(0, envs.single_action_space.n, n_envs)
                else:
                    actions = actor.act(observations, epsilon, rng)
                observations, rewards, terminated, truncated, infos = envs.step(actions)
                running += rewards
                for row in np.flatnonzero(terminated | truncated):
                    if left[row]:
                        left[row] -= 1
                        distances.append(float(infos["final_info"]["x_pos"][row]))
                        returns.append(float(running[row]))
                        flags += bool(infos["final_info"]["flag_get"][row])
                    running[row] = 0.0
    finally:
        envs.close()
    return Evaluation(len(distances), float(np.mean(distances)), float(np.mean(returns)), flags)
