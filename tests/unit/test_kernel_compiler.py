"""Kernels that other kernels call: linked into their callers, callable from Python all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from hotloop.measure.profiler import default
from hotloop.rl.envs.compiled import compiled, kernel
from hotloop.rl.envs.kernel_compiler import is_linked


def halve(number: float) -> float:
    if number < 0:
        raise ValueError("below zero")
    return number / 2.0


def made_anew(monkeypatch: pytest.MonkeyPatch, folder: Path, **options: Any) -> tuple[Any, Any]:
    """A kernel and one that it calls, compiled by nobody yet."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folder))
    inner: Any = compiled(halve, **options)

    @kernel
    def outer(numbers: Any) -> None:
        for i in range(numbers.size):
            numbers[i] = inner(numbers[i])

    return inner, outer


def test_what_a_kernel_calls_is_linked_and_saved_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inner, outer = made_anew(monkeypatch, tmp_path)
    numbers = np.array([3.0, 5.0])
    outer(numbers)
    assert numbers.tolist() == [1.5, 2.5]
    assert [is_linked(made) for made in inner.overloads.values()] == [True]
    assert [is_linked(made) for made in outer.overloads.values()] == [False]
    assert len(list(tmp_path.rglob("*.nbc"))) == 1


def test_compiling_has_a_region_wherever_it_happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, outer = made_anew(monkeypatch, tmp_path)
    default.start()
    with default.profile("env_step"):
        outer(np.array([3.0]))
        outer(np.array([5.0]))
    default.stop()
    (step,) = default.capture().tree.children
    assert [(child.name, child.calls) for child in step.children] == [("compile", 1)]


def test_python_can_call_it_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inner, outer = made_anew(monkeypatch, tmp_path)
    outer(np.array([3.0]))
    assert inner(7.0) == 3.5
    assert [is_linked(made) for made in inner.overloads.values()] == [False]
    assert len(list(tmp_path.rglob("*.nbc"))) == 2
    numbers = np.array([9.0])
    outer(numbers)
    assert numbers[0] == 4.5


def test_its_errors_reach_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inner, outer = made_anew(monkeypatch, tmp_path)
    for _ in range(2):
        with pytest.raises(ValueError, match="below zero"):
            outer(np.array([-1.0]))
    with pytest.raises(ValueError, match="below zero"):
        inner(-1.0)


def test_large_kernels_are_optimised_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inner, outer = made_anew(monkeypatch, tmp_path, linked=False)
    outer(np.array([3.0]))
    assert [is_linked(made) for made in inner.overloads.values()] == [False]
    assert len(list(tmp_path.rglob("*.nbc"))) == 2


def test_a_slice_of_another_shape_is_an_error_without_numbas_strings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    @kernel
    def ours(target: Any, source: Any) -> None:
        target[1:] = source

    @numba.njit
    def users(target: Any, source: Any) -> None:
        target[1:] = source

    target = np.zeros(3)
    ours(target, np.array([4.0, 5.0]))
    assert target.tolist() == [0.0, 4.0, 5.0]
    with pytest.raises(ValueError, match="cannot assign slice from input of different size"):
        ours(target, np.zeros(5))
    compiled_kernel: Any = ours
    (code,) = compiled_kernel.inspect_llvm().values()
    assert "unicode" not in code
    with pytest.raises(ValueError, match=r"slice of shape \(2,\) from input of shape \(5,\)"):  # as ever
        users(target, np.zeros(5))
