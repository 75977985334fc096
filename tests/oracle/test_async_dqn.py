"""The asynchronous DQN learner against plain torch: networks, accumulation, precision, state, targets."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.replay import ReplayBuffer
from hotloop.rl.collect.protocol import Spaces
from hotloop.rl.train.async_dqn import AsyncDQNConfig, FrameLearner, check_config, train
from hotloop.rl.train.devices import choose_device, choose_precision, cpu_has_bfloat16
from hotloop.rl.train.frame_actor import FrameActor, make_actor
from hotloop.rl.train.networks.frame_q import (
    ROWS_AT_ONCE,
    FoldedNetwork,
    FrameQNetwork,
    flat_size,
    flatten_into,
    load_flat,
    training_values,
)
from hotloop.rl.train.networks.space_to_depth import plain_space_to_depth, space_to_depth
from hotloop.rl.train.runs import CheckpointError, freed_memory_kept, load_checkpoint, torch_threads
from hotloop.rl.train.second_thread import SecondThread
from tests.frame_game import make_corridor
from tests.old_files import written_by_0_1

SHAPE, ACTIONS = (4, 36, 36), 5
SMALL: dict[str, Any] = {"channels": (8, 8, 8), "features_dim": 16}


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    with torch_threads(1):
        yield


def network(batch_norm: bool = True, seed: int = 0) -> FrameQNetwork:
    torch.manual_seed(seed)
    made = FrameQNetwork(SHAPE, ACTIONS, batch_norm=batch_norm, **SMALL)
    with torch.no_grad():  # statistics and scales as after some training
        for layer in made.norms:
            layer.running_mean.uniform_(-0.5, 0.5)
            layer.running_var.uniform_(0.5, 2.0)
            layer.weight.uniform_(0.5, 1.5)
            layer.bias.uniform_(-0.2, 0.2)
    return made


def settings(**given: Any) -> AsyncDQNConfig:
    small = {"batch_size": 16, "accumulate_grad_batches": 1, "device": "cpu", "precision": "float32", **SMALL}
    return AsyncDQNConfig(**small | given)


def fields(rows: int, seed: int = 1) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(seed)
    frames = torch.randint(0, 256, (rows, 5, 36, 36), dtype=torch.uint8, generator=made)
    return {
        "observations": frames[:, :4],
        "next_observations": frames[:, 1:],
        "actions": torch.randint(0, ACTIONS, (rows,), generator=made),
        "rewards": torch.randn(rows, generator=made),
        "discounts": torch.where(torch.rand(rows, generator=made) < 0.2, 0.0, 0.97),
    }


def part(whole: dict[str, Tensor], begin: int, end: int) -> dict[str, Tensor]:
    return {name: tensor[begin:end] for name, tensor in whole.items()}


def weights(learner: FrameLearner) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in learner.network.state_dict().items()}


def assert_close(a: dict[str, Tensor], b: dict[str, Tensor], **within: float) -> None:
    assert a.keys() == b.keys()
    options: dict[str, Any] = {"msg": None, **(within or {"rtol": 1e-4, "atol": 1e-5})}
    for name in a:
        torch.testing.assert_close(a[name], b[name], **options | {"msg": name})


# ---- the network


@pytest.mark.parametrize("norm", [True, False])
def test_convolutions_have_a_bias_only_without_normalisation_and_he_weights(norm: bool) -> None:
    torch.manual_seed(0)
    made = FrameQNetwork((4, 84, 84), 7, batch_norm=norm)
    assert [layer.bias is None for layer in made.convolutions] == [norm] * 3
    assert made.hidden.in_features == 64 * 7 * 7  # Mnih et al., 2015
    for layer in (*made.convolutions, made.hidden):
        weight: Any = layer.weight
        wanted = (2.0 / (weight[0].numel())) ** 0.5  # He et al., 2015, equation 10
        assert float(weight.detach().std()) == pytest.approx(wanted, rel=0.05)
    assert sum(p.numel() for p in made.convolutions.parameters()) == 77_824 + (0 if norm else 160)


@pytest.mark.parametrize("norm", [True, False])
def test_the_fast_forms_give_the_network_s_own_values(norm: bool) -> None:
    made, observations = network(norm), fields(12)["observations"]
    ready = space_to_depth(observations)
    with torch.no_grad():
        torch.testing.assert_close(
            FoldedNetwork(made)(observations), made(observations), rtol=1e-4, atol=1e-5
        )
        many = fields(300)["observations"]  # more than are computed at once
        torch.testing.assert_close(FoldedNetwork(made)(many), made(many), rtol=1e-4, atol=1e-5)
    twin = copy.deepcopy(made)
    fast, plain = training_values(made, ready), twin(observations, batch_statistics=True)
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)
    fast.square().sum().backward()
    plain.square().sum().backward()
    for (name, a), b in zip(made.named_parameters(), twin.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4 * float(b.grad.abs().max()), msg=name)
    assert_close(dict(made.named_buffers()), dict(twin.named_buffers()))  # running statistics followed alike


def test_folded_weights_in_half_precision_give_what_autocast_gives() -> None:
    made, observations = network(), fields(12)["observations"]
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = FoldedNetwork(made)(observations)
        found = FoldedNetwork(made, torch.bfloat16)(observations)
    assert found.dtype == torch.bfloat16 and torch.equal(found, wanted)


@pytest.mark.parametrize("contiguous", [True, False])
def test_the_kernel_prepares_pixels_as_torch_does(contiguous: bool) -> None:
    observations = fields(6)["observations"]
    if contiguous:
        observations = observations.contiguous()
    wanted = plain_space_to_depth(observations)
    memory = torch.full((8, 9, 9, 64), 7.0)
    for found in (
        space_to_depth(observations),
        space_to_depth(observations, memory),
        space_to_depth(observations.mT.clone().mT),
    ):
        assert torch.equal(found, wanted) and found.is_contiguous(memory_format=torch.channels_last)
    assert bool((memory[6:] == 7.0).all())
    in_half = space_to_depth(observations, dtype=torch.bfloat16)
    assert in_half.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(in_half, wanted.to(torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frames_that_begin_at_any_byte_are_prepared(dtype: Any) -> None:
    made = torch.Generator().manual_seed(2)
    memory = torch.randint(0, 256, (3 * 4 * 36 * 36 + 9,), dtype=torch.uint8, generator=made)
    for offset, step in ((1, 4 * 36 * 36), (0, 4 * 36 * 36 + 3)):
        observations = memory.as_strided((3, 4, 36, 36), (step, 36 * 36, 36, 1), offset)
        wanted = plain_space_to_depth(observations).to(dtype)
        assert torch.equal(space_to_depth(observations, dtype=dtype), wanted)


def test_prepared_pixels_are_the_blocks_of_the_frames() -> None:
    observations = fields(2)["observations"]
    ready = space_to_depth(observations)
    assert ready.shape == (2, 64, 9, 9)
    for frame, y, x in ((0, 0, 0), (3, 35, 35), (2, 17, 30)):
        channel = 16 * frame + 4 * (y % 4) + x % 4
        assert float(ready[1, channel, y // 4, x // 4]) == pytest.approx(
            int(observations[1, frame, y, x]) / 255
        )


def test_weights_travel_as_one_vector_with_the_running_statistics() -> None:
    made, other = network(seed=1), network(seed=2)
    vector = flatten_into(made, np.zeros(flat_size(made), dtype=np.float32))
    load_flat(other, vector)
    assert_close(dict(made.named_parameters()), dict(other.named_parameters()), rtol=0, atol=0)
    observations = fields(3)["observations"]
    with torch.no_grad():
        assert torch.equal(made(observations), other(observations))
    with pytest.raises(HotloopError, match=f"of {vector.size - 1} weights does not fit"):
        load_flat(other, vector[1:])


def test_frames_that_are_too_small_are_refused() -> None:
    with pytest.raises(HotloopError, match=r"\(4, 20, 84\) are not supported"):
        FrameQNetwork((4, 20, 84), 7)


def test_learning_with_freed_memory_kept_leaves_the_process_as_before() -> None:
    with freed_memory_kept():
        block = torch.ones(40 << 20, dtype=torch.uint8)
        del block
        with freed_memory_kept():
            pass
    assert int(torch.ones(40 << 20, dtype=torch.uint8).sum()) == 40 << 20


def test_compiling_the_kernels_leaves_the_learner_as_it_was() -> None:
    for precision in ("float32", "bfloat16"):
        learner = FrameLearner(network(), settings(precision=precision))
        before = learner.state()
        learner.compile_kernels(fields(2)["observations"])
        after = learner.state()
        assert all(np.array_equal(before[name], after[name]) for name in before)


# ---- updates


def reference_loss(made: FrameQNetwork, config: AsyncDQNConfig, groups: list[dict[str, Tensor]]) -> Tensor:
    """The loss of one batch made of all groups in the plainest torch, normalised group by group."""
    target = copy.deepcopy(made)
    whole = {name: torch.cat([group[name] for group in groups]) for name in groups[0]}
    rows = torch.arange(len(whole["actions"]))
    with torch.no_grad():
        later = target(whole["next_observations"])
        best = (made(whole["next_observations"]) if config.double else later).argmax(1)
        wanted = whole["rewards"] * config.reward_scale + whole["discounts"] * later[rows, best]
    values = torch.cat([made(group["observations"], batch_statistics=True) for group in groups])
    return nn.functional.smooth_l1_loss(values[rows, whole["actions"]], wanted)


@pytest.mark.parametrize("layout", ["plain", "fast"])
def test_accumulated_batches_make_the_update_of_one_large_batch(layout: Any) -> None:
    config = settings(
        accumulate_grad_batches=4, layout=layout, reward_scale=0.5, batch_norm=False, max_grad_norm=0.5
    )
    whole = fields(64)
    learner, plain = FrameLearner(network(batch_norm=False), config), network(batch_norm=False)
    for n in range(4):
        learner.add_gradient(part(whole, 16 * n, 16 * n + 16))
    learner.update()
    adam = torch.optim.Adam(plain.parameters(), lr=config.learning_rate, eps=config.adam_eps)
    reference_loss(plain, config, [whole]).backward()
    nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
    adam.step()
    assert_close(weights(learner), dict(plain.state_dict()))
    assert learner.batches == 4 and learner.updates == 1


@pytest.mark.parametrize("layout", ["plain", "fast"])
def test_with_normalisation_the_large_batch_is_normalised_in_groups_of_a_batch(layout: Any) -> None:
    # The choice of the next action reads running statistics, which move with every batch: left out here.
    config = settings(accumulate_grad_batches=4, double=False, layout=layout)
    whole = fields(64)
    groups = [part(whole, 16 * n, 16 * n + 16) for n in range(4)]
    learner, plain = FrameLearner(network(), config), network()
    for group in groups:
        learner.add_gradient(group)
    reference_loss(plain, config, groups).backward()
    for (name, mine), theirs in zip(learner.network.named_parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None
        most = float(theirs.grad.abs().max())
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4 * most, msg=name)


@pytest.mark.parametrize("layout", ["plain", "fast"])
@pytest.mark.parametrize("double", [True, False])
def test_targets_by_the_batch_s_statistics_are_those_of_networks_in_training_mode(
    layout: Any, double: bool
) -> None:
    config = settings(layout=layout, double=double, target_statistics="batch")
    learner, plain, batch = FrameLearner(network(), config), network(), fields(16)
    statistics = {name: tensor.clone() for name, tensor in learner.target.named_buffers()}
    learner.add_gradient(batch)
    later_network, rows = copy.deepcopy(plain), torch.arange(16)
    with torch.no_grad():  # on copies, whose running statistics may move
        later = later_network(batch["next_observations"], batch_statistics=True)
        best = later.argmax(1)  # the online network is still equal to the target
        wanted = batch["rewards"] * config.reward_scale + batch["discounts"] * later[rows, best]
    values = plain(batch["observations"], batch_statistics=True)
    nn.functional.smooth_l1_loss(values[rows, batch["actions"]], wanted).backward()
    for (name, mine), theirs in zip(learner.network.named_parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None
        most = float(theirs.grad.abs().max())
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4 * most, msg=name)
    assert_close(dict(learner.network.named_buffers()), dict(plain.named_buffers()))  # only the values' own
    assert_close(dict(learner.target.named_buffers()), statistics, rtol=0, atol=0)


def assert_same_learning(**switch: Any) -> None:
    plain = FrameLearner(network(), settings(layout="plain"))
    other = FrameLearner(network(), settings(**{"layout": "plain"} | switch))
    for seed in range(3):
        for learner in (plain, other):
            learner.add_gradient(fields(16, seed))
            learner.update()
    assert other.statistics() == pytest.approx(plain.statistics(), rel=1e-3)
    assert_close(weights(other), weights(plain), rtol=1e-2, atol=2e-4)


@pytest.mark.parametrize("switch", [{"layout": "fast"}, {"data_parallel": True}])
def test_a_switch_changes_the_speed_and_not_the_numbers(switch: dict[str, Any]) -> None:
    assert_same_learning(**switch)


@pytest.mark.long
@pytest.mark.parametrize("layout", ["plain", "fast"])
@pytest.mark.usefixtures("torch_compiles_here")
def test_torch_compile_changes_the_speed_and_not_the_numbers(layout: str) -> None:
    assert_same_learning(compile=True, layout=layout)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("layout", ["plain", "fast"])
def test_half_precision_follows_single_precision_and_keeps_single_weights(
    precision: Any, layout: Any
) -> None:
    single = FrameLearner(network(), settings(layout=layout))
    half = FrameLearner(network(), settings(layout=layout, precision=precision))
    single.add_gradient(fields(16))
    half.add_gradient(fields(16))
    scale = half._scaler.get_scale() if precision == "float16" else 1.0
    a = torch.cat([p.grad.flatten() for p in single.network.parameters() if p.grad is not None])
    b = torch.cat([p.grad.flatten() for p in half.network.parameters() if p.grad is not None]) / scale
    assert float(nn.functional.cosine_similarity(a, b, dim=0)) > 0.99
    assert float(b.norm()) == pytest.approx(float(a.norm()), rel=0.05)
    half.update()
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in half.network.parameters())
    assert half.statistics()["loss"] == pytest.approx(single.statistics()["loss"], rel=0.05)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("double", [True, False])
def test_a_second_thread_changes_the_speed_and_not_one_bit(precision: Any, double: bool) -> None:
    rows = 2 * ROWS_AT_ONCE + 16  # three parts
    config = settings(batch_size=rows, precision=precision, double=double)
    alone, shared = (FrameLearner(network(), config) for _ in range(2))
    with SecondThread() as second:
        shared.share_with(second)
        for seed in range(2):
            for learner in (alone, shared):
                learner.add_gradient(fields(rows, seed))
                learner.update()
        assert shared._second is second
    a, b = alone.state(), shared.state()
    assert all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    "other", [{"layout": "plain"}, {"target_statistics": "batch"}, {"threads": 2}, {"compile": True}]
)
def test_other_settings_leave_the_second_thread_alone(other: dict[str, Any]) -> None:
    learner = FrameLearner(network(), settings(**other))
    with SecondThread() as second:
        learner.share_with(second)
    assert learner._second is None


def test_a_step_that_overflows_half_precision_is_skipped_and_the_scale_falls() -> None:
    learner = FrameLearner(network(), settings(precision="float16"))
    before, scale = weights(learner), learner._scaler.get_scale()
    learner.add_gradient(fields(16) | {"rewards": torch.full((16,), 1e30)})
    next(learner.network.parameters()).grad.fill_(float("inf"))
    learner.update()
    kept = dict(learner.network.named_parameters())
    assert all(torch.equal(before[name], kept[name]) for name in kept)
    assert learner._scaler.get_scale() < scale


def test_targets_end_with_termination_only_and_use_the_target_network() -> None:
    config = settings(layout="plain", target_every_updates=2, accumulate_grad_batches=1)
    learner = FrameLearner(network(), config)
    first = weights(learner)
    learner.add_gradient(fields(16))
    learner.update()
    now = dict(learner.target.state_dict())
    assert all(torch.equal(first[name], now[name]) for name in first)
    learner.add_gradient(fields(16))
    learner.update()
    now = {name: tensor for name, tensor in learner.target.state_dict().items() if "num_batches" not in name}
    assert all(torch.equal(now[name], weights(learner)[name]) for name in now)


@pytest.mark.parametrize("layout", ["plain", "fast"])
def test_a_learner_continues_from_its_state_with_the_same_numbers(layout: Any) -> None:
    config = settings(accumulate_grad_batches=2, layout=layout, target_every_updates=2)
    one, two = FrameLearner(network(), config), FrameLearner(network(seed=5), config)
    for seed in range(3):  # one batch is under way
        one.add_gradient(fields(16, seed))
        if one.batches % 2 == 0:
            one.update()
    two.load(one.state())
    for seed in range(3, 6):
        for learner in (one, two):
            learner.add_gradient(fields(16, seed))
            if learner.batches % 2 == 0:
                learner.update()
    a, b = one.state(), two.state()
    assert a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_it_learns_from_a_replay_of_single_frames() -> None:
    space, rng = Box(0, 255, SHAPE, np.uint8), np.random.default_rng(0)
    buffer = ReplayBuffer(256, 2, space, Discrete(ACTIONS), frame_stack=4, gamma=0.0, seed=3)
    stacks = np.zeros((2, *SHAPE), dtype=np.uint8)
    stacks[:] = rng.integers(0, 256, (2, 1, 36, 36))
    buffer.start(stacks)
    no = np.zeros(2, dtype=np.bool_)
    for _ in range(60):
        stacks[:, :-1], stacks[:, -1] = stacks[:, 1:].copy(), rng.integers(0, 256, (2, 36, 36))
        buffer.push(rng.integers(0, ACTIONS, 2), rng.random(2), no, no, stacks)
    learner = FrameLearner(network(), settings(accumulate_grad_batches=2, batch_size=32, learning_rate=1e-3))
    batch = learner.make_batch(buffer)
    losses = []
    for _ in range(6):
        for _ in range(8):
            learner.learn(buffer, batch)
        losses.append(learner.statistics()["loss"])
    assert losses[-1] < 0.5 * losses[0] and learner.updates == 24


# ---- acting


@pytest.mark.parametrize("fast", [True, False])
def test_an_actor_takes_the_best_action_of_the_weights_it_was_given(fast: bool) -> None:
    made, observations = network(seed=3), fields(20)["observations"].numpy()
    actor = FrameActor(network(seed=4), fast=fast)
    actor.load(flatten_into(made, np.zeros(flat_size(made), dtype=np.float32)))
    with torch.no_grad():
        best = made(torch.from_numpy(np.ascontiguousarray(observations))).argmax(1).numpy()
    assert np.array_equal(actor.act(observations, 0.0, np.random.default_rng(0)), best)
    drawn = np.concatenate([actor.act(observations, 1.0, np.random.default_rng(n)) for n in range(50)])
    counts = np.bincount(drawn, minlength=ACTIONS) / len(drawn)
    assert len(counts) == ACTIONS and counts == pytest.approx(np.full(ACTIONS, 1 / ACTIONS), abs=0.05)
    half = np.mean(
        [np.mean(actor.act(observations, 0.5, np.random.default_rng(n)) == best) for n in range(50)]
    )
    assert half == pytest.approx(0.5 + 0.5 / ACTIONS, abs=0.06)


def test_an_actor_in_half_precision_values_actions_as_in_single_precision() -> None:
    made, observations = network(seed=3), fields(64)["observations"].numpy()
    single, half = FrameActor(network(seed=3)), FrameActor(network(seed=3), dtype=torch.bfloat16)
    with torch.no_grad():
        wanted = made(torch.from_numpy(np.ascontiguousarray(observations))).numpy()
    size = np.abs(wanted).max()
    for actor, within in ((single, 1e-5), (half, 0.02)):
        found = actor.values(observations)
        assert found.dtype == np.float32 and np.abs(found - wanted).max() < within * size
    values = half.values(observations)
    assert len(np.unique(values)) > 0.9 * values.size  # not rounded to the 8 bits of bfloat16
    best = wanted.argmax(axis=1)
    chosen = half.act(observations, 0.0, np.random.default_rng(0))
    lost = wanted[np.arange(64), best] - wanted[np.arange(64), chosen]
    assert np.mean(chosen == best) > 0.9 and lost.max() < 0.04 * size


@pytest.mark.parametrize(
    ("fast", "precision", "dtype"),
    [(True, "bfloat16", torch.bfloat16), (True, "float16", torch.float32), (True, "float32", torch.float32)],
)
def test_collectors_act_in_the_precision_of_products_on_the_cpu(
    fast: bool, precision: Any, dtype: Any
) -> None:
    spaces = Spaces(Box(0, 255, SHAPE, np.uint8), Discrete(ACTIONS), 2, 4)
    actor = make_actor(spaces, (8, 8, 8), 16, batch_norm=True, fast=fast, precision=precision)
    assert actor._folded is not None
    assert [w.dtype for w in actor._folded.weights] == [dtype] * 8 + [torch.float32] * 2
    plain = make_actor(spaces, (8, 8, 8), 16, batch_norm=True, fast=False, precision=precision)
    assert plain._folded is None


# ---- settings


def test_auto_precision_depends_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    cpu = torch.device("cpu")
    with_it, without = tmp_path / "a", tmp_path / "b"
    with_it.write_text("flags : fpu avx512f avx512_bf16\n")
    without.write_text("flags : fpu avx512f\n")
    assert (
        cpu_has_bfloat16(with_it) and not cpu_has_bfloat16(without) and not cpu_has_bfloat16(tmp_path / "c")
    )
    virtual = tmp_path / "d"
    virtual.write_text("flags : fpu hypervisor avx512_bf16 amx_bf16\n")
    assert not cpu_has_bfloat16(virtual)  # AMX cannot be relied on there
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    assert cpu_has_bfloat16(virtual)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    assert choose_precision("auto", cpu) == ("bfloat16" if cpu_has_bfloat16() else "float32")
    assert choose_precision("auto", torch.device("cuda")) == "float16"
    assert choose_precision("bfloat16", cpu) == "bfloat16"


def test_a_missing_device_is_one_sentence() -> None:
    with pytest.raises(HotloopError, match="device='tpu' is unknown"):
        choose_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(HotloopError, match="needs a GPU"):
            choose_device("cuda")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"total_timesteps": 0}, "total_timesteps=0 must be at least 1"),
        ({"stop_at_epochs": 0}, "stop_at_epochs=0 must be at least 1"),
        ({"replay_ratio": -1.0}, "replay_ratio=-1.0 must be at least 0"),
        ({"gamma": 1.5}, "gamma=1.5 must be between 0 and 1"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be above 0"),
        ({"channels": (8, 8)}, r"channels=\(8, 8\) must be three widths"),
        ({"buffer_size": 40, "n_collectors": 4}, "no room for two steps of 32 environments"),
        ({"resume": True}, "needs a checkpoint to resume from"),
        ({"device": "tpu"}, "device='tpu' is unknown; use auto, cpu or cuda"),
    ],
)
def test_invalid_settings_are_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(HotloopError, match=sentence):
        check_config(AsyncDQNConfig(**given))


# ---- collecting in this process


def corridor(**given: Any) -> AsyncDQNConfig:
    tiny: dict[str, Any] = {
        "channels": (4, 4, 4),
        "features_dim": 8,
        "batch_size": 16,
        "accumulate_grad_batches": 1,
        "envs_per_collector": 2,
    }
    tiny |= {
        "transport": "serial",
        "n_collectors": 2,
        "learning_starts": 32,
        "buffer_size": 2000,
        "queue_size": 64,
    }
    tiny |= {
        "epoch_steps": 16,
        "total_timesteps": 12 * 16,
        "weights_every_epochs": 1,
        "device": "cpu",
        "quiet": True,
    }
    return AsyncDQNConfig(**tiny | {"exploration_steps": 100} | given)


def test_a_checkpoint_of_hotloop_0_1_is_resumed(tmp_path: Path) -> None:
    path = written_by_0_1("async_dqn.safetensors", tmp_path)
    before = load_checkpoint(path)
    resumed = corridor(checkpoint=path, resume=True, total_timesteps=before.state["env_steps"] + 64)
    done = train(resumed, make_corridor)
    assert done.epochs > before.state["epochs"] and done.env_steps >= before.state["env_steps"] + 64
    assert done.batches >= int(before.arrays["learner.counts"][0])
    with pytest.raises(CheckpointError, match="batch_size was 16, is 8"):
        train(replace(resumed, batch_size=8), make_corridor)


def test_every_hand_over_of_weights_is_played_with(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_at_load: list[int] = []
    steps = 0

    class Counting(FrameActor):
        def load(self, weights: Any) -> None:
            steps_at_load.append(steps)
            super().load(weights)

        def act(self, observations: Any, control: float, rng: np.random.Generator) -> Any:
            nonlocal steps
            steps += len(observations)
            return super().act(observations, control, rng)

    monkeypatch.setattr("hotloop.rl.train.frame_actor.FrameActor", Counting)
    done = train(corridor(n_collectors=1), make_corridor)
    assert done.epochs == 12 and len(steps_at_load) == 12  # the last epoch's weights find nobody to play
    between = np.diff(steps_at_load)
    assert between.min() >= 16 - 2 and between.max() <= 16 + 4


def test_a_slow_machine_makes_the_same_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        def __init__(self) -> None:
            self.now_s = 0.0

        def monotonic(self) -> float:
            self.now_s += 10.0  # longer than any wait
            return self.now_s

    usual = train(corridor(), make_corridor)
    monkeypatch.setattr("hotloop.rl.collect.serial.time", Slow())
    slow = train(corridor(), make_corridor)
    assert slow.env_steps == usual.env_steps and slow.updates == usual.updates > 0
    assert_close(dict(slow.network.state_dict()), dict(usual.network.state_dict()), rtol=0, atol=0)


def test_the_learning_rate_falls_linearly_to_its_final_value(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    monkeypatch.setattr(FrameLearner, "set_learning_rate", lambda learner, rate: rates.append(rate))
    train(corridor(total_timesteps=64, learning_rate=1e-3, final_learning_rate=1e-4), make_corridor)
    steps = np.arange(0, 68, 4)  # 4 envs
    assert sorted(set(rates), reverse=True) == pytest.approx(1e-3 - 9e-4 * steps / 64)
    rates.clear()
    train(corridor(total_timesteps=32, learning_rate=1e-3), make_corridor)
    assert set(rates) == {1e-3}


@pytest.mark.parametrize("layout", ["plain", "fast"])
def test_running_statistics_follow_by_their_momentum(layout: Any) -> None:
    after = []
    for momentum in (0.0, 0.02, 1.0):
        learner = FrameLearner(network(), settings(layout=layout, batch_norm_momentum=momentum))
        learner.add_gradient(fields(16))
        after.append([layer.running_mean.clone() for layer in learner.network.norms])
    start = [layer.running_mean for layer in network().norms]
    for none, little, all_the_way, before in zip(*after, start, strict=True):
        assert torch.equal(none, before)
        torch.testing.assert_close(little, 0.98 * none + 0.02 * all_the_way)


def test_updates_use_the_learning_rate_that_was_set_last() -> None:
    learner = FrameLearner(network(batch_norm=False), settings(batch_norm=False))
    learner.set_learning_rate(0.0)
    before = weights(learner)
    learner.add_gradient(fields(16))
    learner.update()
    assert_close(weights(learner), before, rtol=0, atol=0)
    learner.set_learning_rate(1e-3)
    learner.add_gradient(fields(16))
    learner.update()
    assert any(not torch.equal(before[name], now) for name, now in weights(learner).items())
