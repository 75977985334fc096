"""One gradient step of DQN on the same weights and the same batch as Stable-Baselines3's DQN."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from hotloop.rl.buffers.replay import ReplayBuffer
from hotloop.rl.train.dqn import DQNConfig, make_learner
from hotloop.rl.train.networks.q import QNetwork

pytest.importorskip("stable_baselines3")

OBSERVATIONS, ACTIONS, BATCH, GAMMA = 5, 3, 64, 0.97
SPACE = Box(-9.0, 9.0, (OBSERVATIONS,), np.float32)


class Noise(gymnasium.Env[np.ndarray, Any]):
    """Only its spaces matter."""

    observation_space = SPACE
    action_space: Any = Discrete(ACTIONS)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(OBSERVATIONS, dtype=np.float32), {}


def filled_replay(n_steps: int) -> ReplayBuffer:
    rng = np.random.default_rng(0)
    buffer = ReplayBuffer(200, 2, SPACE, Discrete(ACTIONS), gamma=GAMMA, n_steps=n_steps, seed=1)

    def observations() -> np.ndarray:
        return rng.normal(size=(2, OBSERVATIONS)).astype(np.float32)

    buffer.start(observations())
    for _ in range(100):
        terminated, truncated = rng.random((2, 2)) < 0.1
        rewards = rng.normal(size=2) * 3  # on both sides of the knee of the loss
        actions = rng.integers(0, ACTIONS, 2)
        buffer.push(actions, rewards, terminated, truncated, observations(), observations())
    return buffer


def sb3_step(network: QNetwork, target: QNetwork, n_steps: int) -> tuple[float, list[np.ndarray]]:
    """The loss of Stable-Baselines3's gradient step, and the weights after it."""
    from stable_baselines3 import DQN
    from stable_baselines3.common.logger import Logger

    model = DQN(
        "MlpPolicy", Noise(), learning_rate=1e-3, gamma=GAMMA, max_grad_norm=1.0, buffer_size=10,
        policy_kwargs={"net_arch": [16, 16], "activation_fn": torch.nn.ReLU},
    )  # fmt: skip
    for theirs, ours in ((model.q_net, network), (model.q_net_target, target)):
        with torch.no_grad():
            for a, b in zip(theirs.parameters(), ours.parameters(), strict=True):
                a.copy_(b)
    buffer = filled_replay(n_steps)
    fields = buffer.sample(buffer.make_batch(BATCH)).tensors()
    columns = {name: fields[name][:, None] for name in ("actions", "rewards", "discounts")}
    # `dones` stays 0: our discounts are 0 where an episode terminated
    batch = SimpleNamespace(
        observations=fields["observations"], next_observations=fields["next_observations"],
        dones=torch.zeros(BATCH, 1), **columns,
    )  # fmt: skip
    model.replay_buffer = SimpleNamespace(sample=lambda *_, **__: batch)  # type: ignore[assignment]
    logger = Logger(None, [])
    model.set_logger(logger)
    model.train(gradient_steps=1, batch_size=BATCH)
    return logger.name_to_value["train/loss"], [p.detach().numpy() for p in model.q_net.parameters()]


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("learner", ["torch", "fused"])
def test_loss_and_weights_after_one_gradient_step(learner: str, n_steps: int) -> None:
    torch.manual_seed(0)
    network, target = (QNetwork(OBSERVATIONS, ACTIONS, (16, 16)) for _ in range(2))
    loss, weights = sb3_step(network, target, n_steps)

    config = DQNConfig(double=False, max_grad_norm=1.0, gamma=GAMMA, batch_size=BATCH, n_steps=n_steps)
    ours = make_learner(learner, network, config)
    names = [name for name, _ in target.named_parameters()]
    ours.load(ours.state() | {f"target.{n}": p.detach().numpy() for n, p in target.named_parameters()})
    buffer = filled_replay(n_steps)
    ours.update(buffer, buffer.make_batch(BATCH), 1)

    assert ours.statistics[0] == pytest.approx(loss, rel=1e-5)
    state = ours.state()
    for name, expected in zip(names, weights, strict=True):
        np.testing.assert_allclose(state[f"weights.{name}"], expected, rtol=1e-4, atol=1e-6, err_msg=name)
