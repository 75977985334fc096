"""Simulated run times of a noisy machine: drift, outliers, a planted difference."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Noise:
    """Distribution of the log of run times."""

    sd: float
    neighbours: float = 0.0  # correlation of one run with the next
    outliers: float = 0.0  # fraction of runs whose log time gets an exponential increase


QUIET = Noise(0.02)
NOISY = Noise(0.10, neighbours=0.8)
VERY_NOISY = Noise(0.36, neighbours=0.8, outliers=0.05)


def log_times(rng: np.random.Generator, repeats: int, runs: int, noise: Noise) -> NDArray[np.float64]:
    """Return logs of run times around 0, in run order, [repeats, runs]."""
    fresh = rng.standard_normal((repeats, runs))
    fresh[:, 1:] *= math.sqrt(1 - noise.neighbours**2)
    drift = fresh
    for run in range(1, runs):
        drift[:, run] += noise.neighbours * drift[:, run - 1]
    struck = rng.random((repeats, runs)) < noise.outliers
    return noise.sd * drift + np.where(struck, rng.exponential(1.0, (repeats, runs)), 0.0)


def on_nodes(
    rng: np.random.Generator, times: NDArray[np.float64], nodes: int, spread: float = 0.3
) -> tuple[NDArray[np.float64], list[str]]:
    """One comparison [pairs, sides] on nodes of a cluster that differ by `spread`, and the node of each pair.

    Faster nodes make more pairs; which one makes which is random.
    """
    speeds = np.linspace(1.0, 1.0 + spread, nodes)
    at = rng.choice(nodes, size=len(times), p=(1 / speeds) / (1 / speeds).sum())
    return times * speeds[at, None], [f"node{number}" for number in at]


def paired_times(
    rng: np.random.Generator, repeats: int, pairs: int, noise: Noise, change: float = 0.0, variants: int = 1
) -> NDArray[np.float64]:
    """Return times [repeats, pairs, 1 + variants]: A first, then the variants, each slower by `change`.

    The order of the runs within a pair (or block) is random.
    """
    sides = 1 + variants
    logs = log_times(rng, repeats, pairs * sides, noise).reshape(repeats, pairs, sides)
    logs = rng.permuted(logs, axis=2)
    logs[:, :, 1:] += math.log1p(change)
    return np.asarray(np.exp(logs))
