"""Batch normalisation and ReLU in one step, beside torch's own in float64 and in bfloat16."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hotloop.rl.train.networks import norm_relu as fused
from hotloop.rl.train.networks.norm_relu import can_fuse, norm_relu

SHAPES = [(6, 8, 5, 7), (1, 3, 4, 4), (40, 4, 9, 3)]  # the last has more lines than are summed in float32


def made(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor, nn.BatchNorm2d]:
    """A convolution's output with means away from 0, a gradient, and a layer as after some training."""
    torch.manual_seed(seed)
    x = torch.randn(shape) * torch.linspace(0.2, 3.0, shape[1])[:, None, None] + torch.randn(shape[1], 1, 1)
    norm = nn.BatchNorm2d(shape[1])
    norm.momentum = 0.3
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            assert tensor is not None
            tensor.uniform_(0.5, 1.5)
    return _half(x), _half(torch.randn(shape)), norm


def _half(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).to(memory_format=torch.channels_last)


def torch_s_own(x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    running = norm.running_mean, norm.running_var
    return functional.relu(
        functional.batch_norm(x, *running, norm.weight, norm.bias, True, norm.momentum or 0.0, norm.eps)
    )


def difference(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).detach().abs().max() / exact.detach().abs().max())


@pytest.mark.parametrize("shape", SHAPES)
def test_one_step_is_as_near_to_exact_numbers_as_torch_s_three(shape: tuple[int, ...]) -> None:
    x, gradient, norm = made(shape)
    plain, exact = copy.deepcopy(norm), copy.deepcopy(norm).double()
    inputs = [x.clone().requires_grad_(), x.clone().requires_grad_(), x.double().requires_grad_()]
    outputs = [norm_relu(inputs[0], norm), torch_s_own(inputs[1], plain), torch_s_own(inputs[2], exact)]
    for output in outputs:
        output.backward(gradient.to(output.dtype))
    assert outputs[0].dtype == torch.bfloat16
    assert outputs[0].is_contiguous(memory_format=torch.channels_last)
    rows = [
        (output, given.grad, layer.weight.grad, layer.bias.grad, layer.running_mean, layer.running_var)
        for output, given, layer in zip(outputs, inputs, (norm, plain, exact), strict=True)
    ]
    for found, by_torch, wanted in zip(*rows, strict=True):
        assert found is not None and by_torch is not None and wanted is not None
        assert found.dtype == by_torch.dtype and found.shape == by_torch.shape
        assert difference(found, wanted) <= 1.2 * difference(by_torch, wanted) + 1e-6


def test_gradients_in_another_order_of_memory_are_taken() -> None:
    x, gradient, norm = made(SHAPES[0])
    found = []
    for given in (gradient, gradient.contiguous()):
        leaf = x.clone().requires_grad_()
        norm_relu(leaf, norm).backward(given)
        found.append(leaf.grad)
    assert found[0] is not None and found[1] is not None and torch.equal(found[0], found[1])


def test_running_statistics_stay_if_they_should() -> None:
    x, _, norm = made(SHAPES[0])
    before = copy.deepcopy(norm.state_dict())
    with torch.no_grad():
        norm_relu(x, norm, update_running=False)
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())


def test_a_nan_goes_through_as_in_torch() -> None:
    x, gradient, norm = made(SHAPES[0])
    x[0, 2, 0, 0] = float("nan")
    leaf = x.clone().requires_grad_()
    output = norm_relu(leaf, norm)
    output.backward(gradient)
    broken = output.isnan().all(dim=0).all(dim=1).all(dim=1)
    assert broken.tolist() == [place == 2 for place in range(8)]
    assert leaf.grad is not None and bool(leaf.grad[:, 2].isnan().all())


@pytest.mark.parametrize(
    "refused",
    [
        lambda x: x.float(),
        lambda x: x.contiguous(),
        lambda x: x.half(),
    ],
)
def test_other_tensors_are_left_to_torch(refused: Any) -> None:
    x, _, _ = made(SHAPES[0])
    assert can_fuse(x) and not can_fuse(refused(x))


def test_rounding_is_torch_s() -> None:
    torch.manual_seed(1)
    numbers = torch.cat([torch.randn(500), torch.tensor([0.0, -0.0, 1e-40, 3e38, float("inf")])])
    halfway = torch.arange(0x3F80_8000, 0x3FA0_8000, 0x1_0000, dtype=torch.int32).view(torch.float32)
    numbers = torch.cat([numbers, halfway])
    wanted = numbers.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    found = np.array([fused.rounded(number) for number in numbers.numpy()], dtype=np.uint16)
    assert np.array_equal(found, wanted)
    back = np.array([fused.number_of(bits) for bits in wanted], dtype=np.float32)
    assert np.array_equal(back, numbers.to(torch.bfloat16).float().numpy())
