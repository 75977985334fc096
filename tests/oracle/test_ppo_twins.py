"""Known answers of PPO's parts, and the fused learner and rollout against their plain twins."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.rl.buffers.rollout import RolloutBuffer, compute_gae, gae_kernel
from hotloop.rl.envs.cartpole.env import CartPoleVectorEnv
from hotloop.rl.train.fused import ppo_kernels
from hotloop.rl.train.fused.ppo import FusedPPO
from hotloop.rl.train.make_envs import RolloutState
from hotloop.rl.train.networks.mlp import ActorCritic
from hotloop.rl.train.ppo import Batch, PPOConfig, TorchLearner, collect_rollout, ppo_loss, train
from hotloop.rl.train.runs import torch_threads

FEW = settings(derandomize=True, deadline=None, max_examples=12)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small products on two busy cores are much slower with torch's threads than without."""
    with torch_threads(1):
        yield


# ---- advantages


def test_advantages_of_a_rollout_worked_out_by_hand() -> None:
    # One env, four steps, gamma 1/2, gae_lambda 1/2; the second step is truncated, the third terminates.
    column = np.array([[1.0], [2.0], [3.0], [4.0]])
    values = np.array([[10.0], [20.0], [30.0], [40.0], [50.0]])
    terminated = np.array([[False], [False], [True], [False]])
    truncated = np.array([[False], [True], [False], [False]])
    finals = np.array([[0.0], [8.0], [0.0], [0.0]])
    advantages, returns = compute_gae(column, values, terminated, truncated, finals, 0.5, 0.5)
    # step 3: 4 + 25 - 40 = -11;  step 2: 3 - 30 = -27;  step 1: 2 + 4 - 20 = -14;
    # step 0: 1 + 10 - 10 = 1, plus 1/4 of -14
    assert advantages[:, 0].tolist() == [1 - 3.5, -14.0, -27.0, -11.0]
    assert returns[:, 0].tolist() == [7.5, 6.0, 3.0, 29.0]


@FEW
@given(steps=st.integers(1, 40), envs=st.integers(1, 9), seed=st.integers(0, 999))
def test_the_kernel_computes_the_plain_loops_advantages(steps: int, envs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rewards, finals = (rng.standard_normal((steps, envs), dtype=np.float32) for _ in range(2))
    values = rng.standard_normal((steps + 1, envs), dtype=np.float32)
    terminated, truncated = (rng.random((steps, envs)) < 0.15 for _ in range(2))
    advantages, returns = np.zeros_like(rewards), np.zeros_like(rewards)
    gae_kernel(rewards, values, terminated, truncated, finals, 0.97, 0.9, advantages, returns)
    exact = compute_gae(
        rewards.astype(float), values.astype(float), terminated, truncated, finals.astype(float), 0.97, 0.9
    )
    assert (advantages == exact[0].astype(np.float32)).all()
    assert (returns == exact[1].astype(np.float32)).all()


# ---- the loss


def by_hand(
    logits: list[float], action: int, old: float, advantage: float, clip: float
) -> tuple[float, float, float]:
    """Policy loss, entropy and KL of one sample with plain floats."""
    total = sum(math.exp(x) for x in logits)
    p = [math.exp(x) / total for x in logits]
    ratio = p[action] / math.exp(old)
    policy = -min(advantage * ratio, advantage * min(max(ratio, 1 - clip), 1 + clip))
    return policy, -sum(x * math.log(x) for x in p), ratio - 1 - math.log(ratio)


def test_ppo_loss_of_samples_worked_out_by_hand() -> None:
    rows = [([0.0, math.log(3.0)], 1, math.log(0.5), 2.0), ([1.0, -1.0], 1, math.log(0.4), -1.0)]
    rows += [([0.2, 0.1], 0, math.log(0.5), 1.0)]
    samples = Batch(
        torch.zeros(3, 1),
        torch.tensor([row[1] for row in rows]),
        torch.tensor([row[2] for row in rows]),
        torch.tensor([row[3] for row in rows]),
        torch.tensor([1.0, 2.0, 3.0]),
        torch.tensor([0.0, 2.5, 3.5]),
        None,
    )
    values = torch.tensor([0.5, 2.0, 5.0])
    found = ppo_loss(
        torch.tensor([row[0] for row in rows]), values, samples,
        clip_range=0.2, clip_range_vf=None, vf_coef=0.5, ent_coef=0.01,
    )  # fmt: skip
    parts = np.mean([by_hand(*row, clip=0.2) for row in rows], axis=0)
    assert by_hand(*rows[0], clip=0.2)[0] == pytest.approx(-2.0 * 1.2)  # ratio 1.5, cut at 1.2
    assert float(found.policy) == pytest.approx(parts[0], rel=1e-5)
    assert float(found.entropy) == pytest.approx(parts[1], rel=1e-5)
    assert float(found.approx_kl) == pytest.approx(parts[2], rel=1e-4)
    assert float(found.clip_fraction) == pytest.approx(2 / 3)
    assert float(found.value) == pytest.approx((0.25 + 0.0 + 4.0) / 3)
    total = parts[0] + 0.5 * 4.25 / 3 - 0.01 * parts[1]
    assert float(found.total) == pytest.approx(total, rel=1e-5)
    clipped = ppo_loss(
        torch.tensor([row[0] for row in rows]), values, samples,
        clip_range=0.2, clip_range_vf=0.25, vf_coef=0.5, ent_coef=0.01,
    )  # fmt: skip
    # the values within 0.25 of the old ones: 0.25, 2.25, 3.75
    assert float(clipped.value) == pytest.approx((0.75**2 + 0.25**2 + 0.75**2) / 3)


# ---- learners


def made_up(config: PPOConfig, width: int, actions: int, masked: bool, seed: int) -> RolloutBuffer:
    rng = np.random.default_rng(seed)
    buffer = RolloutBuffer(config.n_steps, config.n_envs, (width,), actions, masked=masked)
    shape = (config.n_steps, config.n_envs)
    buffer.observations[:] = rng.standard_normal(buffer.observations.shape)
    buffer.actions[:] = rng.integers(0, actions, shape)
    if masked:
        buffer.masks[:] = rng.random(buffer.masks.shape) < 0.6
        np.put_along_axis(buffer.masks, buffer.actions[:, :, None], True, axis=2)
    buffer.log_probabilities[:] = np.log(rng.uniform(0.2, 0.9, shape))
    buffer.advantages[:] = rng.standard_normal(shape)
    buffer.returns[:] = rng.standard_normal(shape)
    buffer.values[:] = rng.standard_normal(buffer.values.shape)
    return buffer


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "all the extras": {"clip_range_vf": 0.2, "ent_coef": 0.02, "clip_range": 0.1},
    "nothing clipped": {"max_grad_norm": None, "normalize_advantage": False, "activation": "relu"},
    "stops early": {"target_kl": 1e-4, "learning_rate": 3e-3},
    "odd widths": {"net_arch": (30, 17, 5), "ent_coef": 0.01},
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_fused_and_torch_learner_agree_over_many_updates(case: str, masked: bool) -> None:
    config = PPOConfig(n_envs=4, n_steps=50, batch_size=50, n_epochs=3, **CASES[case])
    torch.manual_seed(1)
    network = ActorCritic(6, 5, config.net_arch, config.activation)
    twin = TorchLearner(copy.deepcopy(network), config)
    fused = FusedPPO(network, config)
    rng = np.random.default_rng(3)
    start = {name: array.copy() for name, array in twin.state().items()}
    for iteration in range(8):
        buffer = made_up(config, 6, 5, masked, iteration)
        order = np.stack([rng.permutation(200) for _ in range(config.n_epochs)])
        edges = np.array([0, 50, 97, 150, 200])  # unequal, as with rows that are only resets
        wanted = twin.update(buffer, order, edges, config.learning_rate)
        found = fused.update(buffer, order, edges, config.learning_rate)
        assert found.keys() == wanted.keys()
        for name in wanted:
            assert found[name] == pytest.approx(wanted[name], rel=2e-3, abs=2e-5), (iteration, name)
    own = fused.state()
    moved = 0.0
    for name, array in twin.state().items():
        # Adam divides by the root of a sum of squares: where gradients nearly cancel, rounding shows.
        np.testing.assert_allclose(own[name], array, rtol=0, atol=1e-4 if "weights" in name else 1e-3)
        moved = max(moved, float(np.abs(array - start[name]).max())) if "weights" in name else moved
    assert moved > 10e-4  # and the weights did move


def test_learners_exchange_weights_and_moments_at_any_time() -> None:
    config = PPOConfig(n_envs=4, n_steps=32, batch_size=64, n_epochs=2)
    torch.manual_seed(0)
    network = ActorCritic(3, 2, config.net_arch)
    fused, twin = FusedPPO(network, config), TorchLearner(copy.deepcopy(network), config)
    rng = np.random.default_rng(0)
    orders = [np.stack([rng.permutation(128) for _ in range(2)]) for _ in range(4)]
    edges = np.array([0, 64, 128])
    fused.update(made_up(config, 3, 2, False, 0), orders[0], edges, 1e-3)
    twin.load(fused.state())
    for name, array in fused.state().items():
        assert (twin.state()[name] == array).all()
    twin.update(made_up(config, 3, 2, False, 1), orders[1], edges, 1e-3)
    fused.load(twin.state())
    for learner in (fused, twin):
        learner.update(made_up(config, 3, 2, False, 2), orders[2], edges, 1e-3)
    for name, array in twin.state().items():
        np.testing.assert_allclose(fused.state()[name], array, rtol=0, atol=2e-5)
    x = rng.standard_normal((5, 3), dtype=np.float32)
    np.testing.assert_allclose(fused.values(x), network(torch.from_numpy(x))[1].detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_fused_and_torch_learner_draw_the_same_actions(masked: bool) -> None:
    config = PPOConfig()
    torch.manual_seed(0)
    network = ActorCritic(6, 7, (32,))
    torch.nn.init.normal_(network.actor[-1].get_parameter("weight"))
    twin, fused = TorchLearner(copy.deepcopy(network), config), FusedPPO(network, config)
    rng = np.random.default_rng(0)
    rows = 3000
    x = rng.standard_normal((rows, 6), dtype=np.float32)
    masks = None
    if masked:
        masks = rng.random((rows, 7)) < 0.4
        masks[np.arange(rows), rng.integers(0, 7, rows)] = True
    uniforms = rng.random(rows, dtype=np.float32)
    found, wanted = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
    logs, wanted_logs = np.zeros(rows, dtype=np.float32), np.zeros(rows, dtype=np.float32)
    fused.act(x, masks, uniforms, found, logs)
    twin.act(x, masks, uniforms, wanted, wanted_logs)
    same = found == wanted
    assert same.mean() > 0.999  # a number within rounding of the border between two actions may differ
    np.testing.assert_allclose(logs[same], wanted_logs[same], atol=2e-5)
    if masks is not None:
        assert masks[np.arange(rows), found].all() and masks[np.arange(rows), wanted].all()
    # The frequencies are the probabilities: 3000 draws of one row.
    fused.act(np.tile(x[:1], (rows, 1)), None, uniforms, found, logs)
    p = torch.softmax(network(torch.from_numpy(x[:1]))[0], dim=1)[0].detach().numpy()
    share = np.bincount(found, minlength=7) / rows
    assert np.abs(share - p).max() < 5 * math.sqrt(0.25 / rows)
    greedy = fused.greedy_actions(x, masks)
    assert (greedy == twin.greedy_actions(x, masks)).mean() > 0.999


# ---- rollouts


@FEW
@given(envs=st.sampled_from([1, 3, 8, 70]), steps=st.integers(1, 60), limit=st.sampled_from([7, 500]))
def test_a_fused_rollout_stores_what_the_batched_path_stores(envs: int, steps: int, limit: int) -> None:
    config = PPOConfig(n_envs=envs, n_steps=steps)
    torch.manual_seed(0)
    network = ActorCritic(4, 2, (16, 16))
    torch.nn.init.normal_(network.actor[-1].get_parameter("weight"))
    learner = FusedPPO(network, config)
    rng = np.random.default_rng(steps)
    buffers, positions = [], []
    for fused in (True, False):
        made = CartPoleVectorEnv(
            envs, max_episode_steps=limit, autoreset_mode=AutoresetMode.SAME_STEP, copy=False
        )
        buffers.append(RolloutBuffer(steps, envs, (4,), 2))
        positions.append(RolloutState(made, 5, envs * steps))
        if fused:
            rollout = learner.compiled_rollout(made, buffers[0], positions[0].episodes)
            buffers[0].observations[-1] = positions[0].observations
    for _ in range(3):
        uniforms = rng.random((steps, envs), dtype=np.float32)
        assert rollout is not None
        rollout(uniforms)
        collect_rollout(learner, positions[1].envs, buffers[1], positions[1], uniforms)
        for name in (
            "observations", "actions", "log_probabilities", "rewards", "terminated", "truncated",
            "values", "final_values", "valid",
        ):  # fmt: skip
            found, wanted = getattr(buffers[0], name), getattr(buffers[1], name)
            if name in ("values", "final_values", "log_probabilities"):
                # rows in another place of a block are summed in another order
                np.testing.assert_allclose(found, wanted, atol=1e-5, err_msg=name)
            else:
                assert (found == wanted).all(), name
        ended = int(positions[0].episodes.count[0])
        assert ended == positions[1].episodes.count[0]
        for name in ("returns", "lengths"):
            a, b = (getattr(position.episodes, name)[:ended] for position in positions)
            assert (a == b).all()
    if limit == 7 and steps > 7:
        assert buffers[0].truncated.any() and buffers[0].final_values.any()


def test_whole_runs_with_either_learner_end_at_the_same_weights() -> None:
    results = [
        train(PPOConfig(learner=learner, total_timesteps=10 * 1024, quiet=True))
        for learner in ("fused", "torch")
    ]
    assert [result.fused_rollout for result in results] == [True, False]
    assert results[0].episodes == results[1].episodes and results[0].mean_return == results[1].mean_return
    for own, twin in zip(results[0].network.parameters(), results[1].network.parameters(), strict=True):
        np.testing.assert_allclose(own.detach().numpy(), twin.detach().numpy(), rtol=0, atol=2e-4)


def test_one_compilation_serves_every_size() -> None:
    for envs, steps, hidden in ((2, 8, (16,)), (5, 4, (8, 8))):
        train(
            PPOConfig(
                n_envs=envs,
                n_steps=steps,
                batch_size=4,
                net_arch=hidden,
                total_timesteps=50,
                learner="fused",
                quiet=True,
            )
        )
    for kernel in (ppo_kernels.update, ppo_kernels.cartpole_rollout):
        assert len(kernel.signatures) == 1
