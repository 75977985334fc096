"""Snake by Stable-Baselines3's DQN: the same network and hyper-parameters, games stepped one by one."""

from __future__ import annotations

import time
from typing import Any

from hotloop._util.extras import require_extra
from hotloop.rl.workloads.outcome import Outcome
from hotloop.rl.workloads.snake import (
    EXPLORING_STEPS,
    HIDDEN,
    LAST_EPSILON,
    LEARNING_STARTS,
    MOST_STEPS,
    TARGET_EVERY,
    Snake,
    dqn_settings,
)

RECENT = 100  # episodes whose mean return is told


def train_with_sb3(config: Snake) -> Outcome:
    """Train until the episodes or the steps are done."""
    require_extra("stable_baselines3", "sb3")
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

    from hotloop.rl.envs.snake.env import SnakeEnv

    switches, most = config.switches, config.steps or MOST_STEPS

    def make() -> Any:
        return SnakeEnv(
            size=config.size,
            flood_fill=switches.flood_fill,
            flood_every=config.flood_every,
            split_regions=switches.split == "on",
        )

    class UntilEpisodes(BaseCallback):
        """Counts episodes, and stops after as many as were wanted."""

        def __init__(self) -> None:
            super().__init__()
            self.returns: list[float] = []

        def _on_step(self) -> bool:
            ended = [info["episode"] for info in self.locals["infos"] if "episode" in info]
            self.returns += [float(episode["r"]) for episode in ended]
            return len(self.returns) < config.episodes

    rate = dqn_settings(config).updates_per_step
    torch.set_num_threads(1)
    model = DQN(
        "MlpPolicy",
        VecMonitor(DummyVecEnv([make] * config.envs)),
        learning_rate=config.learning_rate,
        buffer_size=config.capacity,
        learning_starts=LEARNING_STARTS if config.training == "on" else most,
        batch_size=config.batch_size,
        gamma=0.99,
        train_freq=max(rate.denominator // rate.numerator, 1),
        gradient_steps=max(rate.numerator // rate.denominator, 1),
        target_update_interval=TARGET_EVERY,
        exploration_fraction=min(EXPLORING_STEPS / most, 1.0),
        exploration_final_eps=LAST_EPSILON,
        max_grad_norm=10.0,
        policy_kwargs={"net_arch": list(HIDDEN), "activation_fn": torch.nn.ReLU},
        seed=config.seed,
    )
    counted = UntilEpisodes()
    began = time.perf_counter()
    model.learn(most, callback=counted)
    seconds = time.perf_counter() - began
    recent = counted.returns[-RECENT:]
    return Outcome(
        env_steps=model.num_timesteps,
        updates=model._n_updates,
        episodes=len(counted.returns),
        mean_return=sum(recent) / len(recent) if recent else None,
        seconds=seconds,
        remarks=(
            "Stable-Baselines3's DQN: no double targets; push, transfers, logging and learner are its own",
        ),
    )
