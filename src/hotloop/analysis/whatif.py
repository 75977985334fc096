"""What a fix would gain: Amdahl's law on own time of the thread that drives training, with an interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.findings import Estimate
from hotloop.analysis.tree import FlatTree
from hotloop.analysis.windows import Spans

LEAST_WINDOWS = 8  # fewer give no interval, so no gain is reported
REPLICATES = 1000
SEED = 20240531  # so that the same capture gives the same interval

Floats = NDArray[np.float64]


def amdahl(share: float, saved_fraction: float) -> float:
    """Speed-up of the whole when a part with this share of the time loses `saved_fraction` of it."""
    return 1.0 / (1.0 - saved_fraction * share)


@lru_cache(maxsize=16)
def block_counts(windows: int, replicates: int = REPLICATES, seed: int = SEED) -> Floats:
    """Circular block bootstrap: how often each window is drawn in each replicate, [replicates, windows].

    Blocks of about windows^(1/3) neighbours keep correlated noise together.
    """
    length = max(round(windows ** (1 / 3)), 1)
    blocks = -(-windows // length)
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, windows, size=(replicates, blocks))
    drawn = (starts[:, :, None] + np.arange(length)).reshape(replicates, -1)[:, :windows] % windows
    flat = drawn + windows * np.arange(replicates)[:, None]
    counts = np.bincount(flat.ravel(), minlength=windows * replicates)
    table = counts.reshape(replicates, windows).astype(np.float64)
    table.setflags(write=False)  # it is cached
    return table


def gains(
    spans: Spans, shares: Mapping[str, float], groups: Sequence[Sequence[str]], saved_fraction: float
) -> list[Estimate | None]:
    """Speed-up of the whole for each group of names, if `saved_fraction` of its own time were saved.

    `shares` are the names' shares of the thread's wall time, net of our own cost; the windows only give their
    uncertainty. None with fewer than 8 windows and for groups without time.
    """
    if len(spans) < LEAST_WINDOWS:
        return [None] * len(groups)
    column = {name: i for i, name in enumerate(spans.names)}
    own = np.zeros((len(spans), len(groups)))
    whole = np.zeros(len(groups))
    for number, names in enumerate(groups):
        whole[number] = min(sum(shares.get(name, 0.0) for name in names), 1.0)
        columns = [column[name] for name in names if name in column]
        own[:, number] = spans.own_ns[:, columns].sum(axis=1)
    counts = block_counts(len(spans))
    drawn = (counts @ own) / (counts @ spans.span_ns)[:, None]
    # Windows include our own cost and end before the run does: scale them to the known share.
    seen = own.sum(axis=0) / spans.span_ns.sum()
    drawn *= np.divide(whole, seen, out=np.ones_like(whole), where=seen > 0)
    speedups = 1.0 / (1.0 - saved_fraction * np.clip(drawn, 0.0, 1.0))
    low, high = np.quantile(speedups, [0.025, 0.975], axis=0)
    found: list[Estimate | None] = []
    for number in range(len(groups)):
        if whole[number] <= 0 or seen[number] <= 0:
            found.append(None)
            continue
        value = amdahl(float(whole[number]), saved_fraction)
        found.append(Estimate(value, min(float(low[number]), value), max(float(high[number]), value)))
    return found


def shares_by_name(flat: FlatTree) -> dict[str, float]:
    """Each name's own time, net of our cost, as a share of the thread's wall time."""
    own: dict[str, int] = {}
    for node, own_ns in zip(flat.nodes, flat.own_ns, strict=True):
        own[node.name] = own.get(node.name, 0) + own_ns
    return {name: own_ns / flat.wall_ns for name, own_ns in own.items()} if flat.wall_ns else {}


def widened(gain: Estimate) -> Estimate:
    """The same gain when the time saved may only turn into waiting: the interval reaches down to 1."""
    return Estimate(gain.value, min(1.0, gain.low), gain.high)
