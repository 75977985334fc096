"""The recurrent trainer on tasks whose answers are known, its losses by hand, its checkpoints to the bit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from hotloop._util.errors import HotloopError
from hotloop.rl.train import recurrent_ppo
from hotloop.rl.train.recurrent_ppo import (
    RecurrentPPOConfig,
    RecurrentPPOResult,
    clipped_losses,
    evaluate,
    make_policy,
    train,
)
from hotloop.rl.train.runs import CheckpointError


class Cue(gymnasium.Env[Any, Any]):
    """A light on the left or right, then darkness; the last action must name the side."""

    observation_space = Box(0, 255, (1, 16, 16), np.uint8)
    action_space = Discrete(2)
    delay = 2

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.side, self.at = int(self.np_random.integers(2)), 0
        return self.seen(), {}

    def seen(self) -> Any:
        picture = np.zeros((1, 16, 16), dtype=np.uint8)
        if self.at == 0:
            picture[:, :, 8 * self.side : 8 * self.side + 8] = 255
        return picture

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1
        last = self.at > self.delay
        reward = (1.0 if action == self.side else -1.0) if last else 0.0
        return self.seen(), reward, last, False, {}


SMALL = RecurrentPPOConfig(
    total_steps=6_000, channels=8, features=32, layers=1, steps=16, groups=2, learning_rate=5e-3, discount=0.9
)


def cues(count: int = 16, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> SyncVectorEnv:
    return SyncVectorEnv([Cue] * count, autoreset_mode=mode)


def run(config: RecurrentPPOConfig, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> RecurrentPPOResult:
    return train(config, cues(mode=mode), quiet=True)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_memory_solves_what_needs_memory(mode: AutoresetMode) -> None:
    result = run(SMALL, mode)
    assert evaluate(result.policy, cues(), 200, seed=1).mean() > 0.9
    assert SMALL.total_steps <= result.env_steps < SMALL.total_steps + 16 * 16 + 1


def test_without_memory_the_same_task_stays_a_guess() -> None:
    result = run(dataclasses.replace(SMALL, encoder="conv", total_steps=3_000))
    assert abs(evaluate(result.policy, cues(), 300, seed=1).mean()) < 0.3


def test_sequences_replay_exactly_what_was_acted() -> None:
    policy = make_policy(SMALL, (1, 16, 16), 2)
    rng = np.random.default_rng(0)
    seen = torch.from_numpy(rng.integers(0, 255, (6, 3, 1, 16, 16), dtype=np.uint8))
    starts = torch.from_numpy(rng.random((6, 3)) < 0.3)
    state = torch.randn(3, *policy.encoder.state_shape)
    logits, values, end = policy(seen, state, starts)
    by_step = state
    for step in range(6):
        one_logits, one_values, by_step = policy(seen[step][None], by_step, starts[step][None])
        torch.testing.assert_close(one_logits[0], logits[step])
        torch.testing.assert_close(one_values[0], values[step])
    torch.testing.assert_close(by_step, end)
    fresh = policy(seen[:1], torch.zeros_like(state), starts[:1])[0]
    forgotten = policy(seen[:1], state, torch.ones(1, 3, dtype=torch.bool))[0]
    torch.testing.assert_close(fresh, forgotten)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_before_the_first_update_a_rollout_replays_to_the_numbers_that_were_acted_on(
    mode: AutoresetMode,
) -> None:
    config = dataclasses.replace(SMALL, steps=7, groups=1)  # episodes of 3 steps: they reach over rollouts
    training = recurrent_ppo._Run(config, cues(mode=mode))
    for _ in range(3):
        training.collect()
        buffer = training.buffer
        with torch.no_grad():
            logits, values, _ = training.policy(
                torch.from_numpy(buffer.observations[:-1]),
                training.first_state.clone(),
                torch.from_numpy(training.starts),
            )
        chosen = torch.log_softmax(logits, -1).gather(2, torch.from_numpy(buffer.actions)[..., None])[..., 0]
        torch.testing.assert_close(chosen, torch.from_numpy(buffer.log_probabilities))
        torch.testing.assert_close(values, torch.from_numpy(buffer.values[:-1]))
    assert training.starts.any() and not training.starts[0].all()
    assert (training.first_state != 0).any()


def test_losses_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.5], [0.2, 0.8]]))
    old = torch.log(torch.tensor([0.25, 0.8]))
    losses = clipped_losses(
        logits,
        values=torch.tensor([1.0, 2.0]),
        actions=torch.tensor([0, 1]),
        old_log_probs=old,
        advantages=torch.tensor([1.0, -1.0]),
        returns=torch.tensor([0.0, 2.0]),
        clip=0.2,
    )
    # ratios 2 and 1: the first is cut at 1.2, the second is not
    assert losses.policy.item() == pytest.approx((-1.2 + 1.0) / 2)
    assert losses.value.item() == pytest.approx(0.5 * (1.0 + 0.0) / 2)
    entropies = [-2 * 0.5 * np.log(0.5), -(0.2 * np.log(0.2) + 0.8 * np.log(0.8))]
    assert losses.entropy.item() == pytest.approx(float(np.mean(entropies)), rel=1e-6)


def test_the_same_seed_gives_the_same_weights_and_another_does_not() -> None:
    short = dataclasses.replace(SMALL, total_steps=600)
    first, second, other = run(short), run(short), run(dataclasses.replace(short, seed=1))
    a, b, c = (torch.cat([p.flatten() for p in r.policy.parameters()]) for r in (first, second, other))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_a_resumed_run_gives_the_numbers_of_one_that_was_not_interrupted(tmp_path: Path) -> None:
    from hotloop.rl.envs.ricochet.env import RicochetVectorEnv

    def envs() -> Any:
        return RicochetVectorEnv(4, obs_mode="rgb_image", autoreset_mode=AutoresetMode.SAME_STEP, copy=False)

    whole = RecurrentPPOConfig(total_steps=96, channels=8, features=16, layers=1, steps=8, epochs=1)
    through = train(whole, envs(), quiet=True)
    path = tmp_path / "agent.safetensors"
    train(dataclasses.replace(whole, total_steps=32, checkpoint=path), envs(), quiet=True)
    resumed = train(dataclasses.replace(whole, checkpoint=path, resume=True), envs(), quiet=True)
    assert resumed.env_steps == through.env_steps and resumed.updates == through.updates
    for a, b in zip(through.policy.parameters(), resumed.policy.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(CheckpointError, match="features"):
        other = dataclasses.replace(whole, checkpoint=path, resume=True, features=24)
        train(other, envs(), quiet=True)


@pytest.mark.parametrize(
    ("change", "word"),
    [({"groups": 17}, "1 to 16"), ({"steps": 0}, "at least 1"), ({"resume": True}, "needs a checkpoint")],
)
def test_settings_that_cannot_be_are_one_sentence(change: dict[str, Any], word: str) -> None:
    with pytest.raises(HotloopError, match=word):
        run(dataclasses.replace(SMALL, **change))


def test_pictures_of_the_wrong_size_are_refused() -> None:
    with pytest.raises(HotloopError, match="multiples of 16"):
        make_policy(SMALL, (3, 100, 100), 4)
