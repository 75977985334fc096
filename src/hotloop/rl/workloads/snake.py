"""`hotloop train snake`: deep Q-learning on many games of Snake, with everything that makes such runs slow.

A variant is a named set of settings; a setting given by flag overrides the variant's. All values of `push`,
`transfers`, `logging`, `learner`, `loop` and `split`, and those of `flood_fill` except `off` and `every_k`,
train the same agent: the same numbers, up to rounding where the learner differs. docs/snake.md investigates
them one by one.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from hotloop import profile, progress
from hotloop._util import strict_json
from hotloop._util.errors import HotloopError
from hotloop._util.extras import require_extra
from hotloop.rl.envs.snake.config import EVERY_K, FloodFill, SnakeConfig
from hotloop.rl.envs.snake.env import SnakeEnv, SnakeVectorEnv
from hotloop.rl.train.dqn import DQNConfig, check_config, make_network, saved_run, train, warm_up
from hotloop.rl.train.runs import StopRequests, check_at_least, torch_threads
from hotloop.rl.workloads.outcome import Note, Outcome
from hotloop.rl.workloads.turns import Report, Turn

_start_up = profile("start_up", "other")
_compile = profile("compile_kernels", "other")
_evaluate = profile("evaluate")
_learning_check = profile("learning_check", "evaluation")
_log = profile("log")

OnOff = Literal["on", "off"]


@dataclass(frozen=True)
class Variant:
    """A value for everything that is slow in some scripts and fast in others."""

    push: Literal["items", "batch"]
    env_steps_per_gradient_step: int
    flood_fill: FloodFill
    transfers: Literal["items", "batch"]
    logging: OnOff
    learner: Literal["torch", "compiled", "fused"]
    loop: Literal["python", "kernel"]
    split: OnOff


FAST = Variant("batch", 4, "compiled", "batch", "off", "fused", "kernel", "off")
VARIANTS = {
    "original": Variant("items", 4, "python", "items", "on", "torch", "python", "on"),
    "fast": FAST,
    "fewer": dataclasses.replace(FAST, env_steps_per_gradient_step=16),
}

# Hyper-parameters of every variant and trainer. Exploration lasts a fixed number of steps whatever the length
# of the run, so that a longer run begins like a shorter one.
NET_ARCH = (128, 128)
LEARNING_STARTS = 256
TARGET_UPDATE_INTERVAL = 2_560
EXPLORATION_STEPS = 15_000
EXPLORATION_FINAL_EPS = 0.01
DEFAULT_TIMESTEPS = 102_400
UNLIMITED = 1_000_000_000  # env steps of a run that stops by its episodes

EXPECTED_EPISODE_STEPS = (50, 200)  # of an agent that plays
EVAL_GAMES = 128
EVAL_SEED = 1_000_000  # away from the seeds of training
FAST_FLOOD_FILL: dict[str, FloodFill] = {
    "off": "off",
    "every_k": "every_k_compiled",
    "every_k_compiled": "every_k_compiled",
}


@dataclass(frozen=True)
class Snake:
    """Train a DQN agent on Snake, with every setting that can make such a run slow."""

    total_timesteps: int | None = None
    """Env steps to train for; 102,400 by default, or no limit with --stop-at-episodes."""
    stop_at_episodes: int | None = None
    """Stop once this many episodes have finished."""
    n_envs: int = 256
    """Number of games played in parallel; a vector step is one step of each."""
    variant: Literal["original", "fast", "fewer"] = "fast"
    """original: every setting slow; fast: the same gradient steps, everything else fast; fewer: fast with a
    quarter of the gradient steps, which is a different amount of work."""
    train_freq: int | None = None
    """Vector steps between two rounds of gradient steps."""
    gradient_steps: int | None = None
    """Gradient steps per round; by default one per 4 env steps (fewer: 16). 0 collects without learning."""
    push: Literal["items", "batch"] | None = None
    """Push to the replay buffer game by game, or a whole vector step at once."""
    flood_fill: FloodFill | None = None
    """How the areas the snake can reach are computed, three more features of an observation."""
    flood_every_steps: int = 4
    """With flood_fill every_k: compute it every this many steps of an episode, and keep it in between."""
    transfers: Literal["items", "batch"] | None = None
    """Turn rows into tensors one by one, or together; only the torch learner needs tensors."""
    logging: OnOff | None = None
    """Write all metrics after every vector step."""
    learner: Literal["torch", "compiled", "fused"] | None = None
    """torch: eager; compiled: torch.compile; fused: our kernels."""
    loop: Literal["python", "kernel"] | None = None
    """kernel: run the whole loop in one kernel where the other settings allow it, as one region."""
    split: OnOff | None = None
    """Split the env step into regions of its own, to be seen in the report."""
    trainer: Literal["hotloop", "sb3"] = "hotloop"
    """hotloop, or Stable-Baselines3's DQN with the same network and hyper-parameters (without double Q)."""
    size: int = 10
    """Cells along a side of the board, 4 to 64."""
    batch_size: int = 64
    """Transitions of one gradient step."""
    buffer_size: int = 50_000
    """Transitions in the replay buffer."""
    learning_rate: float = 1e-3
    """Adam's learning rate."""
    learning_check_steps: int = 0
    """Before the run, train its fast twin for this many env steps and evaluate it; the report's return is
    then the twin's, so that learning can be compared after a run too short to learn. 0: no check."""
    seed: int = 0
    """Same seed and settings, same agent."""
    log: Path | None = None
    """File for --logging on, one JSON line per vector step; by default a temporary file."""
    tensorboard_log: Path | None = None
    """Folder for TensorBoard."""
    checkpoint: Path | None = None
    """File to save the agent to, also on Ctrl-C."""
    resume: bool = False
    """Continue from the checkpoint."""

    @property
    def expected_timesteps(self) -> int:
        """About how many env steps the run will take."""
        return self.total_timesteps or 100 * (self.stop_at_episodes or DEFAULT_TIMESTEPS // 100)

    @property
    def timesteps_limit(self) -> int:
        return self.total_timesteps or (UNLIMITED if self.stop_at_episodes else DEFAULT_TIMESTEPS)

    @property
    def settings(self) -> Variant:
        """The settings given by flag, and the variant's for the rest."""
        found = VARIANTS[self.variant]
        given = {f.name: getattr(self, f.name, None) for f in dataclasses.fields(found)}
        found = dataclasses.replace(found, **{name: value for name, value in given.items() if value})
        if self.transfers is None and found.learner != "torch":
            found = dataclasses.replace(found, transfers="batch")  # only eager torch moves rows one by one
        return found

    @property
    def gradient_steps_per_vector_step(self) -> Fraction:
        """As given, or the variant's: the same number per env step with any number of games."""
        if self.train_freq is None and self.gradient_steps is None:
            return Fraction(self.n_envs, self.settings.env_steps_per_gradient_step)
        steps = 1 if self.gradient_steps is None else self.gradient_steps
        freq = self.train_freq or 1
        return Fraction(self.n_envs if steps == -1 else Fraction(steps, freq))


def make_envs(config: Snake, count: int | None = None) -> SnakeVectorEnv:
    """The games; each step overwrites the arrays of the one before."""
    return SnakeVectorEnv(
        count or config.n_envs,
        split_regions=config.settings.split == "on",
        autoreset_mode="SameStep",
        copy=False,
        **env_settings(config),
    )


def env_settings(config: Snake) -> dict[str, Any]:
    """The rules of the game and its observations."""
    flood_fill = config.settings.flood_fill
    return {"size": config.size, "flood_fill": flood_fill, "flood_every": config.flood_every_steps}


def dqn_config(config: Snake, quiet: bool = True) -> DQNConfig:
    settings, rate = config.settings, config.gradient_steps_per_vector_step
    return DQNConfig(
        env="Snake",
        seed=config.seed,
        total_timesteps=config.timesteps_limit,
        stop_at_episodes=config.stop_at_episodes,
        n_envs=config.n_envs,
        learning_rate=config.learning_rate,
        buffer_size=config.buffer_size,
        learning_starts=LEARNING_STARTS,
        batch_size=config.batch_size,
        train_freq=config.train_freq or rate.denominator,
        gradient_steps=rate.numerator if config.gradient_steps is None else config.gradient_steps,
        target_update_interval=TARGET_UPDATE_INTERVAL,
        exploration_final_eps=EXPLORATION_FINAL_EPS,
        exploration_fraction=min(EXPLORATION_STEPS / config.timesteps_limit, 1.0),
        net_arch=NET_ARCH,
        push=settings.push,
        transfers=settings.transfers,
        learner=settings.learner,
        loop="python" if settings.loop == "python" or settings.split == "on" else "auto",
        log_every_steps=1 if settings.logging == "on" else None,
        checkpoint=config.checkpoint,
        resume=config.resume,
        tensorboard_log=config.tensorboard_log,
        quiet=quiet,
    )


def prepare(config: Snake) -> None:
    """Compile the kernels before the recording starts."""
    if config.trainer == "hotloop":
        envs = make_envs(config)
        compile_kernels(dqn_config(config), envs)
        envs.close()


def compile_kernels(settings: DQNConfig, envs: SnakeVectorEnv) -> None:
    """Call what the training will call, so that compilation is not charged to it."""
    with _compile:
        envs.reset(seed=0)
        envs.actions[:] = 0
        envs._step_rows(0, envs.num_envs)  # `step` would count as a step of the run
        if settings.learner == "fused":
            warm_up("fused", make_network(settings, envs), settings, envs)


def run(config: Snake, note: Note | None = None, quiet: bool = False) -> Outcome:
    """Train as `config` says."""
    check(config)
    remarks = _remarks(config)
    if config.learning_check_steps:
        checked = check_learning(config, config.learning_check_steps)
        progress(episode_return=checked.mean_return)
        remarks = (*remarks, f"learning check: {checked}")
    outcome = _train_with_sb3(config) if config.trainer == "sb3" else _train(config, note, quiet)
    figures = sanity_figures(outcome.env_steps, outcome.episodes, config.n_envs)
    return dataclasses.replace(outcome, remarks=(figures, *remarks, *outcome.remarks))


def _train(config: Snake, note: Note | None, quiet: bool) -> Outcome:
    with _start_up:
        settings, envs = dqn_config(config, quiet), make_envs(config)
        compile_kernels(settings, envs)

    def report(**done: Any) -> None:
        if config.learning_check_steps:
            done["episode_return"] = None  # the check has reported its own
        progress(**done)

    try:
        with _metrics_writer(config) as write:
            done = train(settings, envs=envs, after_record=write, report=report, note=note)
    finally:
        envs.close()
    return Outcome.of_run(done, config.checkpoint)


@contextmanager
def _metrics_writer(config: Snake) -> Iterator[Callable[[int, dict[str, float]], None] | None]:
    """Writes the metrics of each step as scripts do, one line at a time; None without logging."""
    if config.settings.logging == "off":
        yield None
        return
    with config.log.open("w") if config.log else tempfile.TemporaryFile("w") as file:

        def write(env_steps: int, statistics: dict[str, float]) -> None:
            with _log, suppress(OSError):  # a full disk is no reason to end a training
                print(strict_json.dumps({"env_steps": env_steps, **statistics}), file=file, flush=True)

        yield write


def _train_with_sb3(config: Snake) -> Outcome:
    """Stable-Baselines3's DQN, with games stepped one by one."""
    require_extra("stable_baselines3", "sb3")
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

    settings = dqn_config(config)

    def make() -> SnakeEnv:
        return SnakeEnv(split_regions=config.settings.split == "on", **env_settings(config))

    class StopAtEpisodes(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.returns: list[float] = []

        def _on_step(self) -> bool:
            ended = [info["episode"] for info in self.locals["infos"] if "episode" in info]
            self.returns += [float(episode["r"]) for episode in ended]
            enough = config.stop_at_episodes is not None and len(self.returns) >= config.stop_at_episodes
            return not enough and stop.by is None

    with torch_threads(1), StopRequests() as stop:
        model = DQN(
            "MlpPolicy",
            VecMonitor(DummyVecEnv([make] * config.n_envs)),
            learning_rate=settings.learning_rate,
            buffer_size=settings.buffer_size,
            learning_starts=settings.learning_starts,
            batch_size=settings.batch_size,
            gamma=settings.gamma,
            train_freq=settings.train_freq,
            gradient_steps=settings.gradient_steps,
            target_update_interval=settings.target_update_interval,
            exploration_fraction=settings.exploration_fraction,
            exploration_final_eps=settings.exploration_final_eps,
            max_grad_norm=10.0,
            policy_kwargs={"net_arch": list(settings.net_arch), "activation_fn": torch.nn.ReLU},
            seed=config.seed,
        )
        episodes = StopAtEpisodes()
        began_s = time.perf_counter()
        model.learn(settings.total_timesteps, callback=episodes)
        seconds = time.perf_counter() - began_s
    recent = episodes.returns[-100:]
    return Outcome(
        env_steps=model.num_timesteps,
        updates=model._n_updates,
        episodes=len(episodes.returns),
        mean_return=sum(recent) / len(recent) if recent else None,
        seconds=seconds,
        stopped_by=stop.by,
        remarks=(
            "Stable-Baselines3's DQN: no double Q-learning; push, transfers, logging and learner are its own",
        ),
    )


# ---- does it learn?


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well an agent plays with its greedy actions."""

    games: int
    mean_length: float
    """Cells of the snakes when their games ended."""
    mean_return: float
    trained_steps: int
    """Env steps that it was trained for."""
    updates: int
    """Gradient steps that it was trained for."""

    def __str__(self) -> str:
        return (
            f"after {self.trained_steps:,} env steps and {self.updates:,} gradient steps, snakes reach "
            f"{self.mean_length:.1f} cells, return {self.mean_return:.1f} ({self.games} games)"
        )


def check_learning(config: Snake, steps: int) -> Evaluation:
    """Train the fast twin of `config` for `steps` env steps and evaluate it; none of it counts as work."""
    with _learning_check:
        twin = fast_twin(config, steps)
        settings, envs = dqn_config(twin), make_envs(twin)
        compile_kernels(settings, envs)
        done = train(settings, envs=envs, report=lambda **work: None)
        envs.close()
        length, mean_return = evaluate(done.network, twin)
    return Evaluation(EVAL_GAMES, length, mean_return, done.env_steps, done.updates)


def endless_training(config: Snake) -> Callable[[Report], None]:
    """A training without an end, for variants that take turns inside one process."""
    config = dataclasses.replace(config, total_timesteps=UNLIMITED, stop_at_episodes=None)

    def train_on(report: Report) -> None:
        settings, envs = dqn_config(config), make_envs(config)
        compile_kernels(settings, envs)
        try:
            with _metrics_writer(config) as write:
                train(settings, envs=envs, after_record=write, report=report)
        finally:
            envs.close()

    check(config)
    if config.trainer != "hotloop" or config.checkpoint or config.tensorboard_log:
        raise HotloopError(
            "Variants that take turns cannot have --trainer sb3, --checkpoint or --tensorboard-log."
        )
    return train_on


def is_warm(config: Snake, turn: Turn) -> bool:
    """Whether learning has begun."""
    learns = config.gradient_steps_per_vector_step > 0
    return turn.env_steps >= 2 * max(LEARNING_STARTS, config.n_envs) and bool(turn.updates or not learns)


def learning_return(config: Snake) -> float | None:
    """The return of the agent that `check_learning` trains; None without a check."""
    if not config.learning_check_steps:
        return None
    twin = fast_twin(config, config.learning_check_steps)
    if twin not in _checked:
        _checked[twin] = check_learning(config, config.learning_check_steps).mean_return
    return _checked[twin]


_checked: dict[Snake, float] = {}


def fast_twin(config: Snake, steps: int) -> Snake:
    """The fast config that learns the same from `steps` env steps.

    It keeps what decides learning: gradient steps, games, hyper-parameters, what the agent sees, the seed.
    """
    return dataclasses.replace(
        config,
        total_timesteps=steps,
        stop_at_episodes=None,
        variant="fewer" if config.variant == "fewer" else "fast",
        push=None,
        flood_fill=FAST_FLOOD_FILL.get(config.settings.flood_fill, "compiled"),
        transfers=None,
        logging=None,
        learner=None,
        loop=None,
        split=None,
        learning_check_steps=0,
        log=None,
        tensorboard_log=None,
        checkpoint=None,
        resume=False,
    )


def evaluate(
    network: Any, config: Snake, games: int = EVAL_GAMES, seed: int = EVAL_SEED
) -> tuple[float, float]:
    """Mean final length and mean return of `games` games, played in parallel with greedy actions."""
    envs = make_envs(config, games)
    returns, lengths = np.zeros(games), np.zeros(games)
    playing = np.ones(games, dtype=np.bool_)
    with _evaluate, torch.inference_mode(), torch_threads(1):
        observations, _ = envs.reset(seed=seed)
        while playing.any():
            actions = network(torch.from_numpy(observations)).numpy().argmax(axis=1)
            observations, rewards, terminated, truncated, infos = envs.step(actions)
            returns += rewards * playing
            ended = (terminated | truncated) & playing
            if ended.any():
                lengths[ended] = infos["final_info"]["length"][ended]
            playing &= ~ended
    envs.close()
    return float(lengths.mean()), float(returns.mean())


# ---- what the outcome says


def sanity_figures(env_steps: int, episodes: int, n_envs: int = 1) -> str:
    """Env steps, episodes and steps per episode, against what an agent that plays should need.

    The steps include those of the games under way, one for each env, which count only beside many episodes.
    """
    low, high = EXPECTED_EPISODE_STEPS
    work = f"{env_steps:,} env steps in {episodes:,} episodes"
    if not episodes:
        return f"{work}: no episode finished, so steps per episode are unknown"
    mean = env_steps / episodes
    if episodes < n_envs:
        return (
            f"{work}: {mean:.0f} steps per episode with those of up to {n_envs:,} unfinished games, too "
            f"early to compare with the expected {low} to {high}"
        )
    where = "below" if mean < low else "above" if mean > high else "within"
    return f"{work}: {mean:.0f} steps per episode, {where} the expected {low} to {high}"


def _remarks(config: Snake) -> tuple[str, ...]:
    """What a reader must know to compare this run with others."""
    remarks = []
    rate = config.gradient_steps_per_vector_step
    usual = VARIANTS["original"].env_steps_per_gradient_step
    if rate == 0:
        remarks.append("no gradient steps: the agent only acts and stores transitions")
    elif rate != Fraction(config.n_envs, usual):
        remarks.append(
            f"one gradient step per {float(config.n_envs / rate):g} env steps instead of the original's "
            f"{usual}: a different amount of work"
        )
    if config.settings.flood_fill in EVERY_K:
        remarks.append(
            f"flood fill every {config.flood_every_steps} steps: the agent sees old values in between"
        )
    return tuple(remarks)


def check(config: Snake) -> None:
    """Raise HotloopError for the first invalid setting, or a checkpoint that does not fit them."""
    names = ("n_envs", "total_timesteps", "stop_at_episodes", "train_freq", "flood_every_steps")
    check_at_least(config, 1, *names)
    check_at_least(config, -1, "gradient_steps")
    check_at_least(config, 0, "learning_check_steps")
    SnakeConfig(**env_settings(config))
    check_config(dqn_config(config))
    if config.log is not None and not config.log.absolute().parent.is_dir():
        raise HotloopError(f"log={config.log}: there is no folder {config.log.absolute().parent}; create it.")
    if config.log is not None and config.log.is_dir():
        raise HotloopError(f"log={config.log} is a folder; name a file in it.")
    if config.trainer == "sb3" and (
        config.learning_check_steps or config.checkpoint or config.tensorboard_log
    ):
        raise HotloopError(
            "learning_check_steps, checkpoint and tensorboard_log need trainer hotloop; leave them out, or "
            "change the trainer."
        )
    saved_run(dqn_config(config))
