"""The picture networks before any learning: what reaches the heads, and the ConvLSTM by hand."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.ricochet.env import RicochetVectorEnv
from hotloop.rl.train.dagger import DaggerConfig
from hotloop.rl.train.dagger import make_network as make_imitator
from hotloop.rl.train.networks.convlstm import ConvLSTMEncoder, ConvLSTMLayer
from hotloop.rl.train.networks.gated_scan import GatedScanBlock, GatedScanEncoder
from hotloop.rl.train.recurrent_ppo import RecurrentPPOConfig, make_network

PICTURE = (3, 128, 128)


def boards(count: int) -> Tensor:
    return torch.from_numpy(RicochetVectorEnv(count, obs_mode="rgb_image").reset(seed=0)[0].copy())


@torch.no_grad()
@pytest.mark.parametrize("encoder", ["convlstm", "conv"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_other_boards_give_other_features_from_the_first_step_on(
    encoder: Literal["convlstm", "conv"], seed: int
) -> None:
    """With small first weights and a bright background, features of two boards differed by 0.3 % of their
    size: too little to learn from."""
    policy = make_network(RecurrentPPOConfig(encoder=encoder, channels=16, seed=seed), PICTURE, 16)
    starts = torch.ones(1, 64, dtype=torch.bool)
    features = policy.encoder(boards(64)[None], policy.initial_state(64), starts)[0][0]
    assert features.std(dim=0).mean() > 0.3 * features.abs().mean()


@pytest.mark.parametrize("encoder", ["convlstm", "conv"])
def test_every_weight_is_reached_by_the_gradient(encoder: Literal["convlstm", "conv"]) -> None:
    policy = make_network(RecurrentPPOConfig(encoder=encoder, channels=8, layers=2), PICTURE, 16)
    starts = torch.zeros(2, 8, dtype=torch.bool)
    logits, values, _ = policy(boards(16).view(2, 8, *PICTURE), policy.initial_state(8), starts)
    (logits.square().sum() + values.sum()).backward()
    for name, weight in policy.named_parameters():
        assert weight.grad is not None and weight.grad.norm() > 0, name


@torch.no_grad()
@pytest.mark.parametrize("encoder", ["convlstm", "conv"])
def test_the_background_makes_no_difference(encoder: Literal["convlstm", "conv"]) -> None:
    policy = make_network(RecurrentPPOConfig(encoder=encoder, channels=8), PICTURE, 4)
    dark = boards(2)[None] // 2
    starts = torch.ones(1, 2, dtype=torch.bool)
    found = [policy(picture, policy.initial_state(2), starts)[1] for picture in (dark, dark + 40)]
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_bytes_and_numbers_from_0_to_1_are_the_same_picture() -> None:
    policy = make_network(RecurrentPPOConfig(channels=8), PICTURE, 4)
    seen, starts = boards(2)[None], torch.ones(1, 2, dtype=torch.bool)
    found = [policy(picture, policy.initial_state(2), starts)[1] for picture in (seen, seen.float() / 255)]
    torch.testing.assert_close(*found)


@torch.no_grad()
def test_a_layer_is_one_convolution_over_all_that_it_sees() -> None:
    """The plain form: picture, maps below and own maps side by side, one convolution; pooled state added."""
    torch.manual_seed(0)
    layer, channels = ConvLSTMLayer(5, 4), 4
    seen, below, hidden, cell = (torch.randn(2, n, 6, 6) for n in (5, 4, 4, 4))
    weights = torch.cat([layer.seen.weight, layer.gates.weight], dim=1)
    gates = functional.conv2d(torch.cat([seen, below, hidden], dim=1), weights, layer.seen.bias, padding=1)
    pooled = torch.cat([hidden.flatten(2).mean(-1), hidden.flatten(2).max(-1).values], dim=1)
    gates = gates + (pooled @ layer.inject.weight.T)[:, :, None, None]
    enter, forget, leave = (torch.sigmoid(gates[:, n * channels : (n + 1) * channels]) for n in range(3))
    kept = forget * cell + enter * torch.tanh(gates[:, 3 * channels :])
    found = layer(layer.seen(seen), below, hidden, cell)
    torch.testing.assert_close(found[0], leave * torch.tanh(kept))
    torch.testing.assert_close(found[1], kept)


@torch.no_grad()
def test_more_repeats_are_more_ticks_on_the_same_picture() -> None:
    one, three = (ConvLSTMEncoder((1, 32, 32), 4, 8, layers=2, repeats=n) for n in (1, 3))
    three.load_state_dict(one.state_dict())
    seen, state = torch.rand(1, 2, 1, 32, 32), torch.randn(2, *one.state_shape)
    goes_on = torch.zeros(1, 2, dtype=torch.bool)
    features, after = three(seen, state, goes_on)
    for _ in range(3):
        by_one, state = one(seen, state, goes_on)
    torch.testing.assert_close(after, state)
    torch.testing.assert_close(features, by_one)


# ---- gated scans


@torch.no_grad()
def test_a_gated_scan_is_a_recurrence_along_each_row_and_column() -> None:
    torch.manual_seed(0)
    block, size, width = GatedScanBlock(6), 4, 3
    cells = torch.randn(size, size, 2, 6)
    gates, inputs = block.gates_and_inputs(block.norm(cells)).chunk(2, dim=-1)
    states = torch.zeros_like(inputs)
    for place in range(size * size):
        for direction, (down, right) in enumerate(((1, 0), (-1, 0), (0, 1), (0, -1))):
            part = slice(direction * width, (direction + 1) * width)
            row, column = place // size, place % size
            if down < 0 or right < 0:  # against the reading order
                row, column = size - 1 - row, size - 1 - column
            states[row, column, :, part] = inputs[row, column, :, part]
            if 0 <= row - down < size and 0 <= column - right < size:
                before = states[row - down, column - right, :, part]
                states[row, column, :, part] += torch.sigmoid(gates[row, column, :, part]) * before
    torch.testing.assert_close(block(cells), cells + block.output(torch.relu(states)))


def test_the_scan_encoder_sees_boards_and_all_its_weights_learn() -> None:
    policy = make_imitator(DaggerConfig(channels=16, layers=2), PICTURE, 8)
    starts = torch.zeros(2, 8, dtype=torch.bool)
    logits, values, _ = policy(boards(16).view(2, 8, *PICTURE), policy.initial_state(8), starts)
    (logits.square().sum() + values.sum()).backward()
    for name, weight in policy.named_parameters():
        assert weight.grad is not None and weight.grad.norm() > 0, name
    assert isinstance(policy.encoder, GatedScanEncoder)
    features, places = policy.encoder.read(boards(16))
    assert features.shape == (16, 256) and places.shape == (16, 11, 64)
    assert features.std(dim=0).mean() > 0.02 * features.abs().mean()


def test_pictures_must_have_whole_cells() -> None:
    with pytest.raises(HotloopError, match="cannot be cut into 7 x 7 cells"):
        GatedScanEncoder(PICTURE, 7, 16, 2, 11, 64)
