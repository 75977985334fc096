"""The kernels of the fused learner against numpy and torch."""

from __future__ import annotations

from collections.abc import Iterator

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop._util.errors import HotloopError
from hotloop.rl.train.fused import layers
from hotloop.rl.train.fused.flat import bind, lay_out, make_flat, views
from hotloop.rl.train.fused.tiles import LANES, multiply, padded, transpose
from hotloop.rl.train.networks.mlp import mlp
from hotloop.rl.train.runs import torch_threads

FEW = settings(derandomize=True, deadline=None, max_examples=40)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small products on two busy cores are much slower with torch's threads than without."""
    with torch_threads(1):
        yield


@numba.njit
def _tanh_all(x: np.ndarray, y: np.ndarray) -> None:
    for i in range(x.size):
        y[i] = layers.tanh(x[i])


def test_tanh_stays_within_its_stated_error() -> None:
    x = np.concatenate(
        [np.linspace(-12, 12, 400_001), np.geomspace(1e-30, 1e4, 5000), -np.geomspace(1e-30, 1e4, 5000)]
    ).astype(np.float32)
    y = np.empty_like(x)
    _tanh_all(x, y)
    exact = np.tanh(x.astype(np.float64))
    nonzero = exact != 0
    assert np.abs(y[nonzero] / exact[nonzero] - 1).max() < 4e-7
    assert y[x == 0] == 0
    _tanh_all(np.array([np.nan, np.inf, -np.inf], dtype=np.float32), y)
    assert np.isnan(y[0]) and abs(y[1] - 1) < 4e-7 and abs(y[2] + 1) < 4e-7


@FEW
@given(
    rows=st.integers(1, 70), vectors=st.integers(1, 9), depth=st.integers(1, 40),
    transposed=st.booleans(), add=st.booleans(), seed=st.integers(0, 999),
)  # fmt: skip
def test_products_of_every_shape_equal_numpy(
    rows: int, vectors: int, depth: int, transposed: bool, add: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    columns = vectors * LANES
    # Whole numbers: every sum is exact, so equality is too, whatever the order.
    a = rng.integers(-8, 9, (depth, rows) if transposed else (rows, depth)).astype(np.float32)
    b = rng.integers(-8, 9, (depth, columns)).astype(np.float32)
    c = rng.integers(-8, 9, (rows + 1, columns)).astype(np.float32)
    wanted = c.copy()
    wanted[:rows] = (a.T if transposed else a) @ b + (c[:rows] if add else 0)
    strides = (1, rows) if transposed else (depth, 1)
    multiply(
        a.ravel(), 0, *strides, b.ravel(), 0, columns, c.reshape(-1), 0, columns, rows, columns, depth, add
    )
    assert (c == wanted).all()


@FEW
@given(rows=st.integers(1, 70), columns=st.integers(1, 70), gap=st.integers(0, 20))
def test_a_turned_matrix_of_any_shape_is_numpys(rows: int, columns: int, gap: int) -> None:
    a = np.arange(3 + rows * columns, dtype=np.float32)
    b = np.full(5 + columns * (rows + gap), -1, dtype=np.float32)
    transpose(a, 3, rows, columns, b, 5, rows + gap)
    found = b[5:].reshape(columns, rows + gap)
    assert (found[:, :rows] == a[3:].reshape(rows, columns).T).all()
    assert (b[:5] == -1).all() and (found[:, rows:] == -1).all()


@FEW
@given(
    sizes=st.lists(st.integers(1, 70), min_size=2, max_size=4),
    activation=st.sampled_from(["tanh", "relu"]), rows=st.integers(1, layers.CHUNK), seed=st.integers(0, 999),
)  # fmt: skip
def test_forward_and_backward_agree_with_torch(
    sizes: list[int], activation: str, rows: int, seed: int
) -> None:
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    other = (7, 5, 3)  # a second network in the same arrays, which must not be touched
    (_, layout), work = lay_out((other, "relu"), (sizes, activation))
    flat = make_flat([layout])
    flat[:] = 7.0
    module = mlp(sizes, activation)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    bind(layout, module, flat)
    assert (flat[: layout.first] == 7.0).all() and layout.last == flat.size

    x = rng.standard_normal((rows, sizes[0]), dtype=np.float32)
    slope = rng.standard_normal((rows, sizes[-1]), dtype=np.float32)
    wanted = module(torch.from_numpy(x))
    wanted.backward(torch.from_numpy(slope))

    layers.pack(layout.table, flat, work.packed, work.packed_transposed)
    layers.forward(layout.table, work.packed, x.ravel(), 0, work.hidden, rows)
    at, columns = layout.table[-1, layers.HIDDEN], padded(sizes[-1])
    out = work.hidden[at : at + rows * columns].reshape(rows, columns)
    np.testing.assert_allclose(out[:, : sizes[-1]], wanted.detach().numpy(), rtol=2e-5, atol=2e-5)
    work.deltas[at : at + rows * columns].reshape(rows, columns)[:, : sizes[-1]] = slope
    layers.backward(
        layout.table, work.packed_transposed, x.ravel(), 0, work.hidden, work.deltas, rows, work.packed_grads
    )  # fmt: skip
    layers.unpack_grads(layout.table, work.packed_grads, work.grads)
    assert not work.packed_grads.any()
    found = views(layout, module, work.grads)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(found[name].numpy(), parameter.grad.numpy(), rtol=1e-4, atol=1e-4)


def test_adam_agrees_with_torch_over_many_steps() -> None:
    rng = np.random.default_rng(0)
    start = rng.standard_normal(1000, dtype=np.float32)
    own, first, second = start.copy(), np.zeros_like(start), np.zeros_like(start)
    weight = torch.nn.Parameter(torch.from_numpy(start.copy()))
    twin = torch.optim.Adam([weight], lr=3e-3, eps=1e-5)
    for step in range(1, 301):
        grads = rng.standard_normal(1000, dtype=np.float32)
        scale = float(rng.random())
        layers.adam(own, grads, first, second, step, 3e-3, 0.9, 0.999, 1e-5, scale)
        weight.grad = torch.from_numpy(grads) * scale
        twin.step()
    np.testing.assert_allclose(own, weight.detach().numpy(), rtol=0, atol=2e-5)


def test_a_bound_module_and_the_flat_array_are_the_same_memory() -> None:
    (layout,), _ = lay_out(((3, 4, 2), "tanh"))
    flat, module = make_flat([layout]), mlp((3, 4, 2))
    before = [parameter.detach().clone() for parameter in module.parameters()]
    bind(layout, module, flat)
    for parameter, old in zip(module.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
    flat[:] = np.arange(flat.size)
    assert module[0].weight[1, 2] == 2 * 4 + 1  # weights lie as [inputs, outputs]
    with torch.no_grad():
        module[2].bias[:] = -1.0
    assert (flat[-2:] == -1.0).all()
    torch.optim.Adam(module.parameters(), fused=True)
    with pytest.raises(HotloopError, match="do not match the layout"):
        bind(layout, mlp((3, 5, 2)), flat)


def test_impossible_networks_are_refused() -> None:
    for sizes, activation in (((4,), "tanh"), ((4, 0), "tanh"), ((4, 2), "sine")):
        with pytest.raises(HotloopError, match="is not supported"):
            lay_out((sizes, activation))


def test_another_batch_size_compiles_nothing() -> None:
    (layout,), work = lay_out(((4, 8, 2), "tanh"))
    compiled = []
    for rows in (1, 8, 64):
        layers.forward(layout.table, work.packed, np.zeros(rows * 4, dtype=np.float32), 0, work.hidden, rows)
        compiled.append(len(layers.forward.signatures))  # type: ignore[attr-defined]
    assert compiled[0] == compiled[-1]
