"""The recurrent trainer on tasks whose answers are known, and its checkpoints to the bit."""

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
from hotloop.rl.envs.ricochet.env import RicochetVectorEnv
from hotloop.rl.train.make_envs import RolloutState
from hotloop.rl.train.networks.convlstm import RecurrentActorCritic
from hotloop.rl.train.recurrent_ppo import (
    Memory,
    RecurrentPPOConfig,
    RecurrentPPOResult,
    SequenceBuffer,
    collect_rollout,
    make_network,
    train,
)
from hotloop.rl.train.runs import CheckpointError, load_checkpoint, save_checkpoint
from tests.old_files import written_by_0_1

WEIGHTS_OF_0_1 = 351.5950754917867  # sum of absolute weights in the checkpoint that hotloop 0.1 wrote


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
    total_timesteps=6_000, channels=8, features=32, layers=1, n_steps=16, num_minibatches=2,
    learning_rate=5e-3, gamma=0.9, quiet=True,
)  # fmt: skip


def cues(count: int = 16, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> SyncVectorEnv:
    return SyncVectorEnv([Cue] * count, autoreset_mode=mode)


RICOCHET = RecurrentPPOConfig(channels=8, features=16, layers=1, n_steps=8, n_epochs=1, quiet=True)


def boards() -> RicochetVectorEnv:
    return RicochetVectorEnv(4, obs_mode="rgb_image", autoreset_mode="SameStep", copy=False)


def run(config: RecurrentPPOConfig, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> RecurrentPPOResult:
    return train(config, cues(mode=mode))


@torch.inference_mode()
def mean_return(network: RecurrentActorCritic, episodes: int) -> float:
    """Mean return of sampled actions, an episode for each env."""
    envs, rng, total = cues(episodes), np.random.default_rng(1), np.zeros(episodes)
    observations, state = envs.reset(seed=1)[0], network.initial_state(episodes)
    for step in range(Cue.delay + 1):
        starts = torch.full((episodes,), step == 0)
        uniforms = torch.from_numpy(rng.random(episodes, dtype=np.float32))
        output = network.act(torch.from_numpy(observations), state, starts, uniforms)
        state = output.state
        observations, rewards, *_ = envs.step(output.actions.numpy())
        total += rewards
    return float(total.mean())


@pytest.mark.long
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_a_task_that_needs_memory_is_solved_with_memory(mode: AutoresetMode) -> None:
    result = run(SMALL, mode)
    assert mean_return(result.network, 200) > 0.9
    assert SMALL.total_timesteps <= result.env_steps < SMALL.total_timesteps + 16 * 16 + 1


def test_without_memory_the_same_task_stays_a_guess() -> None:
    result = run(dataclasses.replace(SMALL, encoder="conv", total_timesteps=3_000))
    assert abs(mean_return(result.network, 300)) < 0.3


def test_replayed_sequences_equal_the_rollout() -> None:
    policy = make_network(SMALL, (1, 16, 16), 2)
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
    envs = cues(mode=mode)
    network = make_network(SMALL, (1, 16, 16), 2)
    memory, rng = Memory(network, 16), np.random.default_rng(0)
    buffer = SequenceBuffer(7, envs, memory.lstm_state)  # episodes of 3 steps: they reach over rollouts
    rollout = RolloutState(envs, 0, 7 * 16)
    for _ in range(3):
        collect_rollout(network, buffer, rollout, memory, rng)
        with torch.no_grad():
            logits, values, _ = network(
                torch.from_numpy(buffer.observations[:-1]),
                buffer.first_lstm_state.clone(),
                torch.from_numpy(buffer.episode_starts),
            )
        chosen = torch.log_softmax(logits, -1).gather(2, torch.from_numpy(buffer.actions)[..., None])[..., 0]
        torch.testing.assert_close(chosen, torch.from_numpy(buffer.log_probabilities))
        torch.testing.assert_close(values, torch.from_numpy(buffer.values[:-1]))
    assert buffer.episode_starts.any() and not buffer.episode_starts[0].all()
    assert (buffer.first_lstm_state != 0).any()


def test_the_same_seed_gives_the_same_weights_and_another_does_not() -> None:
    short = dataclasses.replace(SMALL, total_timesteps=600)
    first, second, other = run(short), run(short), run(dataclasses.replace(short, seed=1))
    a, b, c = (torch.cat([p.flatten() for p in r.network.parameters()]) for r in (first, second, other))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_a_resumed_run_gives_the_numbers_of_one_that_was_not_interrupted(tmp_path: Path) -> None:
    whole = dataclasses.replace(RICOCHET, total_timesteps=96)
    through = train(whole, boards())
    path = tmp_path / "agent.safetensors"
    train(dataclasses.replace(whole, total_timesteps=32, checkpoint=path), boards())
    resumed = train(dataclasses.replace(whole, checkpoint=path, resume=True), boards())
    assert resumed.env_steps == through.env_steps and resumed.updates == through.updates
    for a, b in zip(through.network.parameters(), resumed.network.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(CheckpointError, match="features"):
        other = dataclasses.replace(whole, checkpoint=path, resume=True, features=24)
        train(other, boards())


def test_a_run_of_hotloop_0_1_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written_by_0_1("recurrent_ppo.safetensors", tmp_path)
    config = dataclasses.replace(SMALL, channels=4, features=8, checkpoint=path, resume=True)
    loaded = run(dataclasses.replace(config, total_timesteps=512))  # nothing is left to do
    assert loaded.env_steps == loaded.resumed_at == 512 and loaded.updates == 12 and loaded.episodes == 160
    assert "starts new episodes" in capsys.readouterr().err
    total = sum(float(weight.detach().double().abs().sum()) for weight in loaded.network.parameters())
    assert total == pytest.approx(WEIGHTS_OF_0_1, rel=1e-6)
    more = run(dataclasses.replace(config, total_timesteps=768))  # the file has today's names now
    assert more.resumed_at == 512 and more.env_steps == 768 and more.updates == 18


def test_envs_and_memory_of_hotloop_0_1_are_restored(tmp_path: Path) -> None:
    whole, path = dataclasses.replace(RICOCHET, total_timesteps=96), tmp_path / "agent.safetensors"
    through = train(whole, boards())
    train(dataclasses.replace(whole, total_timesteps=32, checkpoint=path), boards())
    saved = load_checkpoint(path)
    names = [name for name, _ in through.network.named_parameters()]
    running = [saved.arrays[f"rollout.running_{name}"] for name in ("returns", "lengths")]
    arrays: dict[str, Any] = {
        "running": np.stack(running).astype(float),
        "over": saved.arrays["rollout.over"],
    }
    arrays |= {"state": saved.arrays["memory.lstm_state"], "start": saved.arrays["memory.episode_starts"]}
    arrays |= {f"weights.{name}": saved.arrays[f"learner.weights.{name}"] for name in names}
    for index, name in enumerate(names):
        arrays[f"adam.{index}.exp_avg"] = saved.arrays[f"learner.first.{name}"]
        arrays[f"adam.{index}.exp_avg_sq"] = saved.arrays[f"learner.second.{name}"]
        arrays[f"adam.{index}.step"] = saved.arrays["learner.steps"].astype(np.float32)
    arrays |= {f"env.{name}": array for name, array in saved.part("rollout.envs").items()}
    state = saved.state | {"finished": saved.state.pop("episodes")}
    save_checkpoint(path, arrays, state, saved.config)
    resumed = train(dataclasses.replace(whole, checkpoint=path, resume=True), boards())
    assert resumed.mean_return == through.mean_return and resumed.episodes == through.episodes
    for a, b in zip(through.network.parameters(), resumed.network.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"num_minibatches": 17}, "between 1 and .* 16"),
        ({"n_steps": 0}, "at least 1"),
        ({"resume": True}, "needs a checkpoint"),
    ],
)
def test_invalid_settings_are_one_sentence(change: dict[str, Any], word: str) -> None:
    with pytest.raises(HotloopError, match=word):
        run(dataclasses.replace(SMALL, **change))


def test_pictures_of_the_wrong_size_are_refused() -> None:
    with pytest.raises(HotloopError, match="multiples of 16"):
        make_network(SMALL, (3, 100, 100), 4)
