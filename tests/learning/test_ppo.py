"""PPO learns tasks with known solutions, with fixed seeds, and bootstraps where episodes are truncated."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

from hotloop._util.errors import HotloopError
from hotloop.rl.train.make_envs import evaluate_policy
from hotloop.rl.train.ppo import PPOConfig, PPOResult, train
from tests.learning.tasks import Corridor, Endless, Identity, MaskedIdentity

BOTH = pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
SMALL: dict[str, Any] = {
    "n_envs": 8, "n_steps": 32, "batch_size": 64, "net_arch": (32,), "learning_rate": 3e-3,
    "quiet": True, "learner": "fused",
}  # fmt: skip


def best_return(result: PPOResult, envs: Any, masked: bool = False) -> float:
    """Mean return over 40 episodes of the likeliest actions, by plain torch."""

    def act(observations: np.ndarray, masks: np.ndarray | None) -> np.ndarray:
        logits = result.network(torch.from_numpy(observations))[0].detach().numpy()
        assert (masks is not None) == masked
        return np.where(masks, logits, -np.inf).argmax(1) if masks is not None else logits.argmax(1)

    return float(evaluate_policy(act, envs, 40, seed=9)[0].mean())


def test_cartpole_is_solved() -> None:
    result = train(
        PPOConfig(
            total_timesteps=600_000, stop_at_return=475.0, n_eval_episodes=100, quiet=True, learner="fused"
        )
    )
    assert result.fused_rollout and result.stopped_by == "stop_at_return"
    assert result.mean_return is not None and result.mean_return >= 475.0
    assert result.evaluation_return is not None and result.evaluation_return >= 475.0


@pytest.mark.long
def test_cartpole_of_gymnasium_improves_with_the_torch_learner() -> None:
    result = train(
        PPOConfig(
            env="CartPole-v1", total_timesteps=16_384, learning_rate=1e-3, n_eval_episodes=10,
            quiet=True, learner="torch",
        )
    )  # fmt: skip
    assert not result.fused_rollout and result.learner == "torch" and result.env_steps == 16_384
    assert result.evaluation_return is not None and result.evaluation_return > 120.0  # random: about 22


@BOTH
def test_identity_is_learnt(mode: AutoresetMode) -> None:
    config = PPOConfig(**SMALL, total_timesteps=12_000, n_eval_episodes=20)
    result = train(config, envs=Identity(8, mode=mode))
    assert result.evaluation_return == 10.0
    assert best_return(result, Identity(8, mode=mode)) == 10.0


@BOTH
def test_the_corridors_end_is_found(mode: AutoresetMode) -> None:
    result = train(PPOConfig(**SMALL, total_timesteps=25_000), envs=Corridor(8, mode=mode))
    envs = Corridor(8, mode=mode)
    assert best_return(result, envs) == 1.0
    # The shortest way: five steps to the right; its value at the start is gamma ** 4.
    values = result.network(torch.eye(6))[1].detach().numpy()
    assert np.abs(values[:5] - 0.99 ** np.arange(4, -1, -1)).max() < 0.06


@pytest.mark.parametrize(
    ("learner", "mode"),
    [
        ("fused", AutoresetMode.SAME_STEP),
        ("fused", AutoresetMode.NEXT_STEP),
        pytest.param("torch", AutoresetMode.SAME_STEP, marks=pytest.mark.long),
        ("torch", AutoresetMode.NEXT_STEP),
    ],
)
def test_only_allowed_actions_are_taken_and_learnt(mode: AutoresetMode, learner: str) -> None:
    config = PPOConfig(**{**SMALL, "learner": learner}, total_timesteps=8_000)
    result = train(config, envs=MaskedIdentity(8, width=5, mode=mode))
    assert best_return(result, MaskedIdentity(8, width=5, mode=mode), masked=True) == 10.0


@BOTH
def test_a_truncated_episode_bootstraps_from_its_final_value(mode: AutoresetMode) -> None:
    # Reward 1 for ever, cut after 5 steps: a value of 1 / (1 - 0.9) = 10. Without bootstrapping: at most 5.
    config = PPOConfig(**SMALL, total_timesteps=50_000, gamma=0.9)
    result = train(config, envs=Endless(8, mode=mode))
    value = float(result.network(torch.tensor([[1.0, 0.0]]))[1].detach())
    assert value == pytest.approx(10.0, abs=0.3)


def test_resets_are_neither_samples_nor_steps() -> None:
    envs = Endless(8, mode=AutoresetMode.NEXT_STEP)
    result = train(PPOConfig(**SMALL, total_timesteps=1), envs=envs)
    # 32 calls of step: five steps, one reset, ...: 27 steps for each env
    assert result.env_steps == 8 * 27 and result.episodes == 8 * 5 and result.mean_return == 5.0


def test_gymnasiums_own_vector_env_with_next_step_autoreset_works() -> None:
    envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 4)
    result = train(PPOConfig(n_envs=4, n_steps=64, batch_size=64, total_timesteps=512, quiet=True), envs=envs)
    envs.close()
    assert 512 <= result.env_steps < 512 + 256 and result.episodes > 3


def test_any_network_can_be_given() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor = nn.Sequential(nn.Linear(4, 8), nn.ELU(), nn.Linear(8, 4))
            self.critic = nn.Linear(4, 1)

        def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
            return self.actor(observations), self.critic(observations)[:, 0]

    torch.manual_seed(0)
    config = PPOConfig(**{**SMALL, "learner": "auto"}, total_timesteps=12_000)
    result = train(config, envs=Identity(8), network=Small())
    assert result.learner == "torch" and best_return(result, Identity(8)) == 10.0
    with pytest.raises(HotloopError, match="learner='fused' needs the dense network"):
        train(PPOConfig(**SMALL, total_timesteps=100), envs=Identity(8), network=Small())


def test_the_same_seed_gives_the_same_weights() -> None:
    def weights(seed: int) -> list[Tensor]:
        found = train(PPOConfig(seed=seed, total_timesteps=8192, quiet=True, learner="fused"))
        return [parameter.detach().clone() for parameter in found.network.parameters()]

    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], other[0])
    assert torch.equal(torch.get_rng_state(), before)  # the user's random numbers are not touched


@pytest.mark.long
@pytest.mark.usefixtures("torch_compiles_here")
def test_the_compiled_learner_agrees_with_the_eager_one() -> None:
    runs = [
        train(PPOConfig(total_timesteps=4096, learner=learner, quiet=True))
        for learner in ("compiled", "torch")
    ]
    for own, twin in zip(runs[0].network.parameters(), runs[1].network.parameters(), strict=True):
        np.testing.assert_allclose(own.detach().numpy(), twin.detach().numpy(), rtol=0, atol=2e-4)
