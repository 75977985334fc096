"""`hotloop train ricochet`: an agent that sees a board game as pictures and learns to solve it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hotloop._util.errors import HotloopError
from hotloop._util.extras import require_extra
from hotloop.rl.workloads.outcome import Note, Outcome
from hotloop.rl.workloads.warming import warm

Trainer = Literal["hotloop", "sb3"]


@dataclass(frozen=True)
class Ricochet:
    """Train an agent on Ricochet Robots: pictures, a ConvLSTM and PPO, or symbols and a small network."""

    timesteps: int = 50_000
    """Env steps of the training."""
    envs: int = 32
    """Boards played at the same time."""
    obs_mode: Literal["rgb_image", "image", "symbolic"] = "rgb_image"
    """What the agent sees: pictures of 128 x 128 pixels, planes of the board, or a vector."""
    lookahead: Literal[0, 1, 2] = 0
    """With symbols, 1: also where each move ends and whether it solves the board; 2: and whether one more
    move would."""
    convlstm: bool = True
    """With pictures: an encoder that remembers; otherwise plain convolutions."""
    rendering: Literal["compiled", "pil"] = "compiled"
    """Who draws the pictures; the pixels are the same."""
    trainer: Trainer = "hotloop"
    """Ours, or Stable-Baselines3's PPO (where the ConvLSTM is a feature extractor and does not remember)."""
    board_size: int = 8
    """Cells along a side, 7 to 16."""
    robots: int = 4
    """1 to 5."""
    max_solution_moves: int = 3
    """Every board can be solved in so many moves."""
    episode_steps: int = 100
    """Moves after which a board is given up."""
    channels: int = 16
    """Of the encoder's maps and memory, with pictures."""
    hidden: tuple[int, ...] = (128, 128)
    """Widths of the hidden layers, without pictures."""
    rollout_steps: int = 16
    """Env steps of each board between two rounds of learning."""
    epochs: int = 3
    """Passes over what was collected."""
    learning_rate: float = 1e-3
    """Of Adam."""
    discount: float = 0.95
    """What a reward one step later is worth."""
    entropy_weight: float = 0.01
    """Reward for undecided policies."""
    compile: bool = False
    """Compile the network; its inner regions are then not recorded."""
    threads: int = 1
    """Threads of torch, with pictures; `hotloop tune ricochet` finds out whether more help."""
    evaluation_boards: int = 0
    """Boards never seen in training to play after it; 0 for none."""
    seed: int = 0
    """Same seed, same settings: same agent."""
    checkpoint: Path | None = None
    """Where to keep the agent; also written on Ctrl-C."""
    resume: bool = False
    """Go on from the checkpoint."""


def make_envs(config: Ricochet, copy: bool = False) -> Any:
    """The boards, as our trainers want them."""
    from hotloop.rl.envs.ricochet.env import RicochetVectorEnv

    return RicochetVectorEnv(
        config.envs,
        obs_mode=config.obs_mode,
        lookahead=config.lookahead,
        rendering=config.rendering,
        board_size=config.board_size,
        robots=config.robots,
        max_solution_moves=config.max_solution_moves,
        max_episode_steps=config.episode_steps,
        autoreset_mode="SameStep",
        copy=copy,
    )


def prepare(config: Ricochet) -> None:
    """Compile the kernels, before anybody looks at the time."""
    if config.trainer == "hotloop":
        warm(make_envs(config)).close()


def check(config: Ricochet) -> None:
    """Raise HotloopError with one sentence for the first setting that cannot be."""
    for name in ("envs", "timesteps", "threads"):
        if getattr(config, name) < 1:
            raise HotloopError(f"{name}={getattr(config, name)} must be at least 1.")
    if config.evaluation_boards < 0 or (config.evaluation_boards and config.trainer == "sb3"):
        raise HotloopError(
            f"evaluation_boards={config.evaluation_boards} with trainer={config.trainer!r} cannot be; "
            "give at least 0, and with sb3 leave it out."
        )


def run(config: Ricochet, note: Note | None = None, quiet: bool = False) -> Outcome:
    """Train as the config says."""
    check(config)
    if config.trainer == "sb3":
        return _with_sb3(config)
    if config.obs_mode == "rgb_image":
        return _with_recurrent_ppo(config, note, quiet)
    return _with_ppo(config, note, quiet)


def recurrent_settings(config: Ricochet, quiet: bool = False) -> Any:
    """The settings of our PPO for pictures."""
    from hotloop.rl.train.recurrent_ppo import RecurrentPPOConfig

    return RecurrentPPOConfig(
        total_timesteps=config.timesteps,
        seed=config.seed,
        encoder="convlstm" if config.convlstm else "conv",
        channels=config.channels,
        n_steps=config.rollout_steps,
        n_epochs=config.epochs,
        num_minibatches=min(4, config.envs),
        learning_rate=config.learning_rate,
        gamma=config.discount,
        ent_coef=config.entropy_weight,
        compile=config.compile,
        threads=config.threads,
        checkpoint=config.checkpoint,
        resume=config.resume,
        quiet=quiet,
    )


def _with_recurrent_ppo(config: Ricochet, note: Note | None, quiet: bool) -> Outcome:
    from hotloop.rl.train.recurrent_ppo import train

    done = train(recurrent_settings(config, quiet), warm(make_envs(config)), note=note)
    remarks: list[str] = []
    if config.evaluation_boards and done.stopped_by is None:
        from hotloop.rl.workloads.ricochet_play import remembering

        remarks += _played(config, remembering(done.network))
    if config.compile:
        remarks.append("the network was compiled: only its outer regions were recorded")
    if config.rendering == "compiled":
        remarks.append("pictures were drawn compiled: only their outer region was recorded")
    return Outcome(
        done.env_steps,
        done.updates,
        done.episodes,
        done.mean_return,
        done.seconds,
        done.stopped_by,
        config.checkpoint,
        tuple(remarks),
    )


def ppo_settings(config: Ricochet, quiet: bool = False) -> Any:
    """The settings of our PPO for planes and symbols."""
    from hotloop.rl.train.ppo import PPOConfig

    samples = config.rollout_steps * config.envs
    return PPOConfig(
        env="Ricochet",
        total_timesteps=config.timesteps,
        seed=config.seed,
        n_envs=config.envs,
        n_steps=config.rollout_steps,
        batch_size=samples // 4 if samples % 4 == 0 else samples,
        n_epochs=config.epochs,
        learning_rate=config.learning_rate,
        gamma=config.discount,
        ent_coef=config.entropy_weight,
        net_arch=config.hidden,
        checkpoint=config.checkpoint,
        resume=config.resume,
        quiet=quiet,
    )


def _with_ppo(config: Ricochet, note: Note | None, quiet: bool) -> Outcome:
    from hotloop.rl.train.ppo import train

    done = train(ppo_settings(config, quiet), envs=warm(make_envs(config)), note=note)
    remarks: tuple[str, ...] = ()
    if config.evaluation_boards and done.stopped_by is None:
        from hotloop.rl.workloads.ricochet_play import sampled

        remarks = _played(config, sampled(done.network))
    return Outcome(
        done.env_steps,
        done.updates,
        done.episodes,
        done.mean_return,
        done.seconds,
        done.stopped_by,
        config.checkpoint,
        (*remarks, f"learner: {done.learner}"),
    )


def _played(config: Ricochet, act: Any) -> tuple[str, ...]:
    """What the agent does with boards it never saw, and what chance does."""
    from hotloop.rl.workloads.ricochet_play import at_random, play

    agent = play(act, config, config.evaluation_boards)
    chance = play(at_random(config), config, config.evaluation_boards)
    return f"the agent {agent.says}", f"at random: {100 * chance.fraction:.1f} %"


def _with_sb3(config: Ricochet) -> Outcome:
    """Stable-Baselines3's PPO with our network as its feature extractor: no memory between steps."""
    require_extra("stable_baselines3", "sb3")
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    from hotloop.rl.envs.ricochet.env import RicochetEnv
    from hotloop.rl.workloads.sb3_networks import extractor_for

    def make() -> Any:
        return RicochetEnv(
            obs_mode=config.obs_mode,
            lookahead=config.lookahead,
            rendering=config.rendering,
            board_size=config.board_size,
            robots=config.robots,
            max_solution_moves=config.max_solution_moves,
            max_episode_steps=config.episode_steps,
        )

    torch.set_num_threads(1)
    pictures = config.obs_mode == "rgb_image"
    policy: dict[str, Any] = {"net_arch": [] if pictures else list(config.hidden)}
    if pictures:
        policy |= extractor_for("convlstm" if config.convlstm else "conv", config.channels)
    model = PPO(
        "CnnPolicy" if pictures else "MlpPolicy",
        DummyVecEnv([make] * config.envs),
        n_steps=config.rollout_steps,
        batch_size=max(config.rollout_steps * config.envs // 4, 2),
        n_epochs=config.epochs,
        learning_rate=config.learning_rate,
        gamma=config.discount,
        ent_coef=config.entropy_weight,
        policy_kwargs=policy,
        seed=config.seed,
    )
    began = time.perf_counter()
    model.learn(config.timesteps)
    seconds = time.perf_counter() - began
    episodes = list(model.ep_info_buffer or [])
    return Outcome(
        env_steps=model.num_timesteps,
        updates=model._n_updates * 4,
        episodes=int(getattr(model, "_episode_num", len(episodes))) or len(episodes),
        mean_return=sum(e["r"] for e in episodes) / len(episodes) if episodes else None,
        seconds=seconds,
        remarks=("Stable-Baselines3's PPO: the ConvLSTM is a feature extractor and does not remember",)
        if pictures and config.convlstm
        else (),
    )
