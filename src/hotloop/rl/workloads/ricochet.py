"""`hotloop train ricochet`: an agent learns to solve Ricochet Robots boards, from pictures or from symbols.

torch and numba take seconds to load, and `hotloop train --help` only needs the settings. So the modules that
need them, ours included, are imported in functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from hotloop import profile
from hotloop._util.errors import HotloopError
from hotloop._util.extras import require_extra
from hotloop.rl.workloads.outcome import Note, Outcome

if TYPE_CHECKING:
    from hotloop.rl.train.ppo import PPOConfig
    from hotloop.rl.train.recurrent_ppo import RecurrentPPOConfig

_evaluate = profile("evaluate")

EVALUATION_SEED = 1_000_000  # away from the seeds of training
BOARDS_AT_ONCE = 256  # of an evaluation


@dataclass(frozen=True)
class Ricochet:
    """Train an agent on Ricochet Robots with PPO: from pictures with a ConvLSTM, or from symbols."""

    total_timesteps: int = 50_000
    """Env steps to train for."""
    n_envs: int = 32
    """Number of boards played in parallel."""
    obs_mode: Literal["rgb_image", "image", "symbolic"] = "rgb_image"
    """Observations: pictures of 128 x 128 pixels, planes of the board, or a vector."""
    lookahead: Literal[0, 1, 2] = 0
    """Add to symbolic observations: 1, where each move ends and whether it solves the board; 2, also whether
    one more move would solve it."""
    convlstm: bool = True
    """With pictures, use a ConvLSTM encoder, which remembers; otherwise plain convolutions."""
    rendering: Literal["compiled", "pil"] = "compiled"
    """How pictures are drawn; the pixels are the same."""
    trainer: Literal["hotloop", "sb3"] = "hotloop"
    """Our PPO, or Stable-Baselines3's (there the ConvLSTM is a feature extractor without memory)."""
    board_size: int = 8
    """Cells along a side, 7 to 16."""
    robots: int = 4
    """Number of robots, 1 to 5."""
    max_solution_moves: int = 3
    """Upper limit of the shortest solution of a board, in moves."""
    max_episode_steps: int = 100
    """Moves after which an episode is truncated."""
    channels: int = 16
    """Channels of the encoder, with pictures."""
    net_arch: tuple[int, ...] = (128, 128)
    """Hidden layer widths, without pictures."""
    n_steps: int = 16
    """Length of a rollout on each board."""
    n_epochs: int = 3
    """Passes over a rollout."""
    batch_size: int | None = None
    """Samples of one gradient step; a quarter of a rollout when not given."""
    learning_rate: float = 1e-3
    """Adam's learning rate."""
    gamma: float = 0.95
    """Discount factor."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation."""
    ent_coef: float = 0.01
    """Weight of the entropy bonus."""
    compile: bool = False
    """Train with torch.compile, with pictures; the regions inside the network are then not recorded."""
    threads: int = 1
    """Torch threads, with pictures; `hotloop tune ricochet` measures whether more help."""
    n_eval_episodes: int = 0
    """Boards to evaluate the agent on after training, none of them seen before."""
    seed: int = 0
    """Same seed and settings, same agent."""
    checkpoint: Path | None = None
    """File to save the agent to; also written on Ctrl-C."""
    resume: bool = False
    """Continue from the checkpoint."""

    @property
    def num_minibatches(self) -> int:
        """Gradient steps per pass over a rollout."""
        samples = self.n_envs * self.n_steps
        if self.batch_size is not None:
            return max(1, samples // self.batch_size)
        if self.obs_mode == "rgb_image":  # whole rollouts of boards
            return min(4, self.n_envs)
        return 4 if samples % 4 == 0 else 1


def check(config: Ricochet) -> None:
    """Raise HotloopError for the first invalid setting."""
    from hotloop.rl.train import runs

    runs.check_at_least(config, 1, "total_timesteps", "n_envs", "n_steps", "n_epochs", "threads")
    runs.check_at_least(config, 0, "n_eval_episodes")
    runs.check_checkpoint(config)
    if config.n_eval_episodes and config.trainer == "sb3":
        raise HotloopError(
            f"n_eval_episodes={config.n_eval_episodes} needs trainer='hotloop'; leave it out with sb3."
        )
    if (
        config.batch_size is not None
        and config.obs_mode == "rgb_image"
        and config.num_minibatches > config.n_envs
    ):
        raise HotloopError(
            f"batch_size={config.batch_size} is less than n_steps={config.n_steps}; with pictures a batch "
            "holds whole rollouts, so use a multiple of n_steps."
        )


def env_settings(config: Ricochet) -> dict[str, Any]:
    """Keyword arguments of the environment."""
    names = ("obs_mode", "lookahead", "rendering", "board_size", "robots", "max_solution_moves")
    return {name: getattr(config, name) for name in (*names, "max_episode_steps")}


def make_envs(config: Ricochet) -> Any:
    """The boards of a training."""
    from hotloop.rl.envs.ricochet.env import RicochetVectorEnv

    return RicochetVectorEnv(config.n_envs, autoreset_mode="SameStep", copy=False, **env_settings(config))


def prepare(config: Ricochet) -> None:
    """Compile the kernels before anything is timed."""
    from hotloop.rl.train.make_envs import compile_kernels

    if config.trainer == "hotloop":
        compile_kernels(make_envs(config)).close()


# ---- training


def run(config: Ricochet, note: Note | None = None, quiet: bool = False) -> Outcome:
    check(config)
    if config.trainer == "sb3":
        require_extra("stable_baselines3", "sb3")
        from hotloop.rl.workloads.ricochet_sb3 import train_sb3

        return train_sb3(config, env_settings(config), quiet)
    if config.obs_mode == "rgb_image":
        return _train_on_pictures(config, note, quiet)
    return _train_on_symbols(config, note, quiet)


def recurrent_ppo_config(config: Ricochet, quiet: bool = False) -> RecurrentPPOConfig:
    """Settings for pictures."""
    from hotloop.rl.train.recurrent_ppo import RecurrentPPOConfig

    return RecurrentPPOConfig(
        total_timesteps=config.total_timesteps,
        seed=config.seed,
        encoder="convlstm" if config.convlstm else "conv",
        channels=config.channels,
        n_steps=config.n_steps,
        n_epochs=config.n_epochs,
        num_minibatches=config.num_minibatches,
        learning_rate=config.learning_rate,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        ent_coef=config.ent_coef,
        compile=config.compile,
        threads=config.threads,
        checkpoint=config.checkpoint,
        resume=config.resume,
        quiet=quiet,
    )


def ppo_config(config: Ricochet, quiet: bool = False) -> PPOConfig:
    """Settings for planes and symbols."""
    from hotloop.rl.train.ppo import PPOConfig

    return PPOConfig(
        env="Ricochet",
        total_timesteps=config.total_timesteps,
        seed=config.seed,
        n_envs=config.n_envs,
        n_steps=config.n_steps,
        n_epochs=config.n_epochs,
        batch_size=config.batch_size or config.n_envs * config.n_steps // config.num_minibatches,
        learning_rate=config.learning_rate,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        ent_coef=config.ent_coef,
        net_arch=config.net_arch,
        checkpoint=config.checkpoint,
        resume=config.resume,
        quiet=quiet,
    )


def _train_on_pictures(config: Ricochet, note: Note | None, quiet: bool) -> Outcome:
    from hotloop.rl.train.make_envs import compile_kernels
    from hotloop.rl.train.recurrent_ppo import train

    result = train(recurrent_ppo_config(config, quiet), compile_kernels(make_envs(config)), note=note)
    remarks = _evaluation(config, recurrent_policy(result.network)) if result.stopped_by is None else ()
    if config.compile:
        remarks += ("the network was compiled: only its outer regions were recorded",)
    if config.rendering == "compiled":
        remarks += ("pictures were drawn by a kernel: only their outer region was recorded",)
    return Outcome.of_run(result, config.checkpoint, remarks)


def _train_on_symbols(config: Ricochet, note: Note | None, quiet: bool) -> Outcome:
    from hotloop.rl.train.make_envs import compile_kernels
    from hotloop.rl.train.ppo import train

    result = train(ppo_config(config, quiet), envs=compile_kernels(make_envs(config)), note=note)
    remarks = _evaluation(config, sampled_policy(result.network)) if result.stopped_by is None else ()
    return Outcome.of_run(result, config.checkpoint, (*remarks, f"learner: {result.learner}"))


# ---- evaluation

Policy = Callable[[NDArray[Any], NDArray[np.bool_]], NDArray[np.int64]]
"""Observations, and which of them start an episode -> actions."""


def _evaluation(config: Ricochet, policy: Policy) -> tuple[str, ...]:
    """Remarks on how many unseen boards the agent solves, and how many random actions solve."""
    if not config.n_eval_episodes:
        return ()
    agent = play(policy, config, config.n_eval_episodes)
    chance = play(random_policy(config), config, config.n_eval_episodes)
    return f"the agent {agent.summary}", f"random actions: {100 * chance.fraction:.1f} %"


@dataclass(frozen=True, slots=True)
class Solved:
    """Result of an evaluation, one episode per board."""

    max_episode_steps: int
    """Steps after which a board counts as not solved."""
    boards: dict[int, int]
    """Number of boards, by the moves of their shortest solutions."""
    solved: dict[int, int]
    """How many of them were solved."""
    mean_steps: float | None
    """Mean number of steps on the solved boards; None when there is none."""

    @property
    def fraction(self) -> float:
        """Solved boards of all boards."""
        return sum(self.solved.values()) / sum(self.boards.values())

    @property
    def summary(self) -> str:
        each = ", ".join(f"{100 * self.solved[n] / self.boards[n]:.0f} % of {n}" for n in self.boards)
        return (
            f"solves {100 * self.fraction:.1f} % of {sum(self.boards.values())} unseen boards within "
            f"{self.max_episode_steps} steps ({each} moves)"
        )


def play(policy: Policy, config: Ricochet, boards: int, seed: int = EVALUATION_SEED) -> Solved:
    """One episode on each of `boards` boards, up to BOARDS_AT_ONCE of them at a time."""
    from hotloop.rl.train.runs import torch_threads  # torch is slow to import

    optimal, steps = np.zeros(boards, dtype=np.int64), np.zeros(boards, dtype=np.int64)
    with _evaluate, torch_threads(config.threads):
        for first in range(0, boards, BOARDS_AT_ONCE):
            some = slice(first, min(first + BOARDS_AT_ONCE, boards))
            optimal[some], steps[some] = _play_some(policy, config, some.stop - some.start, seed + first)
    moves = sorted(set(optimal.tolist()))
    return Solved(
        max_episode_steps=config.max_episode_steps,
        boards={n: int((optimal == n).sum()) for n in moves},
        solved={n: int(((optimal == n) & (steps > 0)).sum()) for n in moves},
        mean_steps=float(steps[steps > 0].mean()) if steps.any() else None,
    )


def _play_some(policy: Policy, config: Ricochet, count: int, seed: int) -> tuple[Any, Any]:
    """Moves of the shortest solutions, and steps taken or 0 where a board was not solved, [count] each."""
    envs = make_envs(dataclasses.replace(config, n_envs=count))
    observations, infos = envs.reset(seed=seed)
    optimal, steps = infos["optimal_moves"].copy(), np.zeros(count, dtype=np.int64)
    episode_starts, running = np.ones(count, dtype=np.bool_), np.ones(count, dtype=np.bool_)
    for number in range(1, config.max_episode_steps + 1):
        observations, _, terminated, truncated, _ = envs.step(policy(observations, episode_starts))
        steps[terminated & running] = number
        episode_starts = terminated | truncated
        running &= ~episode_starts
        if not running.any():
            break
    envs.close()
    return optimal, steps


def random_policy(config: Ricochet, seed: int = 0) -> Policy:
    rng = np.random.default_rng(seed)
    return lambda observations, _: rng.integers(0, 4 * config.robots, len(observations))


def sampled_policy(network: Any, seed: int = 0) -> Policy:
    """Actions sampled from an `ActorCritic`; always taking the most likely one may go in circles."""
    import torch

    rng = np.random.default_rng(seed)

    def act(observations: NDArray[Any], _: NDArray[np.bool_]) -> NDArray[np.int64]:
        with torch.inference_mode():
            logits = network.logits(torch.from_numpy(observations)).numpy()
        chosen: NDArray[np.int64] = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        return chosen

    return act


def recurrent_policy(network: Any, seed: int = 0) -> Policy:
    """Actions sampled from a `RecurrentActorCritic`, whose memory starts anew with each episode."""
    import torch

    rng, state = np.random.default_rng(seed), network.initial_state(0)

    def act(observations: NDArray[Any], episode_starts: NDArray[np.bool_]) -> NDArray[np.int64]:
        nonlocal state
        if episode_starts.all():
            state = network.initial_state(len(observations))
        uniforms = torch.from_numpy(rng.random(len(observations), dtype=np.float32))
        with torch.inference_mode():
            output = network.act(
                torch.from_numpy(observations), state, torch.from_numpy(episode_starts), uniforms
            )
        state = output.state
        chosen: NDArray[np.int64] = output.actions.numpy()
        return chosen

    return act
