"""Compilation before training begins, so that no phase of the training is charged with it."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from hotloop import profile

Envs = TypeVar("Envs")
_compile = profile("compile_kernels", "other")


def warm(envs: Envs) -> Envs:
    """Reset and step the environments once; the trainer resets them again."""
    with _compile:
        envs.reset(seed=0)  # type: ignore[attr-defined]
        envs.step(np.zeros_like(envs.action_space.sample()))  # type: ignore[attr-defined]
    return envs
