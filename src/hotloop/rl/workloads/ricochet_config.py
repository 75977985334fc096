"""Settings of `hotloop train ricochet`, and the environments that they describe.

torch and numba take seconds to load, and `hotloop train --help` only needs the settings. So the modules that
need them, ours included, are imported in functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hotloop._util.errors import HotloopError


@dataclass(frozen=True)
class Ricochet:
    """Train an agent on Ricochet Robots, from pictures or symbols, with PPO or by imitation of the solver."""

    total_timesteps: int = 50_000
    """Env steps to train for."""
    n_envs: int = 32
    """Number of boards played in parallel."""
    obs_mode: Literal["rgb_image", "image", "symbolic"] = "rgb_image"
    """Observations: pictures of 128 x 128 pixels, planes of the board, or a vector."""
    lookahead: Literal[0, 1, 2] = 0
    """Add to symbolic observations: 1, where each move ends and whether it solves the board; 2, also whether
    one more move would solve it."""
    algo: Literal["ppo", "dagger", "bc"] = "ppo"
    """ppo learns from rewards. With pictures, dagger learns the solver's moves in games that the agent plays,
    bc (behaviour cloning) in games that the solver plays."""
    convlstm: bool = True
    """With pictures, use a ConvLSTM encoder, which remembers; otherwise plain convolutions."""
    encoder: Literal["auto", "scan"] = "auto"
    """With pictures, scan is an encoder without memory whose gated scans reach along whole rows and columns;
    auto is what convlstm says."""
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
    place_coef: float = 0.5
    """Weight of an auxiliary loss of dagger and bc with scan: where robots, target and ends of moves are."""
    curriculum: bool = False
    """With dagger and bc, begin with boards of one move; longer solutions join until half of the training."""
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
    eval_every_steps: int = 0
    """Env steps between two short evaluations of dagger and bc, for a learning curve; 0 for none."""
    seed: int = 0
    """Same seed and settings, same agent."""
    start_from: Path | None = None
    """Start PPO from the agent that dagger or bc saved in this file; needs encoder scan."""
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
    """Raise HotloopError for the first invalid setting of the boards, or that does not fit the others."""
    from hotloop.rl.envs.ricochet.config import RicochetConfig
    from hotloop.rl.train import runs

    runs.check_at_least(
        config, 1, "total_timesteps", "n_envs", "n_steps", "n_epochs", "threads", "batch_size"
    )
    runs.check_at_least(config, 0, "n_eval_episodes", "eval_every_steps", "place_coef")
    RicochetConfig(**env_settings(config))
    _check_imitation(config)
    for name in ("n_eval_episodes", "checkpoint"):
        if getattr(config, name) and config.trainer == "sb3":
            raise HotloopError(
                f"{name}={getattr(config, name)} needs trainer='hotloop'; leave it out with sb3."
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


def _check_imitation(config: Ricochet) -> None:
    """Raise HotloopError for the first setting that does not fit the algorithm."""
    imitates, scan = config.algo != "ppo", config.encoder == "scan"
    for name, wanted in (("algo", imitates), ("encoder", scan)):
        given = f"{name}={getattr(config, name)!r}"
        if wanted and (config.obs_mode != "rgb_image" or config.trainer != "hotloop"):
            raise HotloopError(f"{given} needs obs_mode='rgb_image' and trainer='hotloop'.")
    if imitates and not scan and config.convlstm:
        raise HotloopError(
            f"algo={config.algo!r} trains encoders without memory; use encoder='scan', or convlstm=False."
        )
    if scan and config.board_size not in (8, 16):
        raise HotloopError(
            f"board_size={config.board_size} does not divide pictures of 128 pixels into whole cells; "
            "encoder='scan' needs 8 or 16."
        )
    for name in ("curriculum", "eval_every_steps"):
        if getattr(config, name) and not imitates:
            raise HotloopError(f"{name}={getattr(config, name)} needs algo='dagger' or 'bc'.")
    if config.start_from is not None and (imitates or not scan):
        raise HotloopError(
            f"start_from={config.start_from} is where PPO starts; it needs algo='ppo' and encoder='scan'."
        )


def env_settings(config: Ricochet) -> dict[str, Any]:
    """Keyword arguments of the environment."""
    names = ("obs_mode", "lookahead", "rendering", "board_size", "robots", "max_solution_moves")
    return {name: getattr(config, name) for name in (*names, "max_episode_steps")}


def make_envs(config: Ricochet) -> Any:
    """The boards of a training."""
    from hotloop.rl.envs.ricochet.env import RicochetVectorEnv

    return RicochetVectorEnv(config.n_envs, autoreset_mode="SameStep", copy=False, **env_settings(config))
