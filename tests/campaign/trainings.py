"""Tiny trainings of every algorithm, to be killed and resumed; see `nursery.py` for how they are started."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # a forked child has no threads of OpenMP

import numpy as np
import torch

from hotloop.rl.buffers.demonstrations import Samples
from hotloop.rl.envs.ricochet.env import RicochetVectorEnv
from hotloop.rl.train import bc, dqn, ppo, recurrent_ppo, sac
from tests.campaign.nursery import die_at, serve

sac.RECORD_EVERY_S = dqn.RECORD_EVERY_S = 0.0  # else there would be no checkpoint in so short a run

PPO = ppo.PPOConfig(
    n_envs=2, n_steps=8, total_timesteps=160, batch_size=8, net_arch=(8,), n_epochs=2, threads=1,
    checkpoint_every_steps=16, quiet=True,
)  # fmt: skip
RECURRENT = recurrent_ppo.RecurrentPPOConfig(
    total_timesteps=96, channels=4, features=8, layers=1, n_steps=4, n_epochs=1, num_minibatches=2,
    checkpoint_every_steps=8, quiet=True,
)  # fmt: skip
DQN = dqn.DQNConfig(
    n_envs=2, total_timesteps=200, buffer_size=80, learning_starts=20, batch_size=8, net_arch=(8,),
    train_freq=2, gradient_steps=1, target_update_interval=20, checkpoint_every_steps=10, quiet=True,
)  # fmt: skip
SAC = sac.SACConfig(
    env="Track", n_envs=2, total_timesteps=80, buffer_size=60, learning_starts=10, random_steps=10,
    batch_size=8, net_arch=(8,), eval_every_steps=0, checkpoint_every_steps=8, quiet=True,
)  # fmt: skip
BC = bc.BCConfig(n_epochs=8, batch_size=16, net_arch=(8,), checkpoint_every_epochs=1)


def _recurrent(config: recurrent_ppo.RecurrentPPOConfig) -> Any:
    envs = RicochetVectorEnv(4, obs_mode="rgb_image", autoreset_mode="SameStep", copy=False)
    return recurrent_ppo.train(config, envs)


def _clone(config: bc.BCConfig) -> Any:
    rng = np.random.default_rng(0)
    seen = rng.standard_normal((100, 3), dtype=np.float32)
    samples = Samples(seen, np.tanh(seen[:, :2]))
    return bc.train(config, samples, samples)


TRAININGS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "ppo torch": (ppo.train, replace(PPO, learner="torch")),
    "ppo fused": (ppo.train, replace(PPO, learner="fused", anneal_lr=True)),
    "recurrent_ppo": (_recurrent, RECURRENT),
    "dqn torch": (dqn.train, replace(DQN, learner="torch", log_every_steps=8)),
    "dqn prioritized": (
        dqn.train,
        replace(DQN, learner="torch", log_every_steps=8, prioritized=True, n_steps=3),
    ),
    "dqn fused": (dqn.train, replace(DQN, learner="fused", loop="python", log_every_steps=8)),
    "dqn kernel": (dqn.train, replace(DQN, learner="fused", loop="kernel", total_timesteps=20_000)),
    "sac torch": (sac.train, replace(SAC, learner="torch")),
    "sac fused": (sac.train, replace(SAC, learner="fused")),
    "bc torch": (_clone, replace(BC, learner="torch")),
    "bc fused": (_clone, replace(BC, learner="fused")),
}


def train(request: dict[str, Any]) -> None:
    """Train to the end, from the checkpoint if there is one."""
    run, config = TRAININGS[request["training"]]
    file = Path(request["checkpoint"])
    if request["die_at"]:
        die_at(request["die_at"], ("runs.py", "files.py"))
    run(replace(config, checkpoint=file, resume=file.exists()))
    os._exit(0)


_warm: set[str] = set()


def warm_up(request: dict[str, Any]) -> None:
    """Load or compile what a training needs once, for all children."""
    name = request["training"]
    if name not in _warm:
        run, config = TRAININGS[name]
        with tempfile.TemporaryDirectory(prefix="hotloop-warm-") as folder:
            run(replace(config, checkpoint=Path(folder) / "agent"))
        _warm.add(name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(train, warm_up)
