"""A binary tree of sums, to draw by priority in logarithmic time, and its plain twin.

`tree` is a float64 array of 2 * leaves numbers, leaves a power of two: node i is the sum of nodes 2 i and
2 i + 1, leaf j is node leaves + j, and node 1 is the total. A sum depends only on the leaves below it, never
on the order of updates, so both versions agree to the last bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.compiled import kernel
from hotloop.rl.envs.streams import Streams, next_double

Tree = NDArray[np.float64]


def make_tree(leaves: int) -> Tree:
    """A tree of zeros with at least `leaves` leaves."""
    size = 1
    while size < leaves:
        size *= 2
    return np.zeros(2 * size, dtype=np.float64)


@kernel
def set_leaves(tree: Tree, rows: NDArray[np.int64], values: Tree) -> None:
    """Set the leaves at `rows`; if a row appears twice, the last value counts."""
    half = tree.size // 2
    for place in range(rows.size):
        node = half + rows[place]
        tree[node] = values[place]
        node //= 2
        while node > 0:
            tree[node] = tree[2 * node] + tree[2 * node + 1]
            node //= 2


@kernel
def set_range(tree: Tree, first: int, values: Tree) -> None:
    """Set neighbouring leaves, computing each sum above them once."""
    low = tree.size // 2 + first
    high = low + values.size - 1
    for place in range(values.size):
        tree[low + place] = values[place]
    low //= 2
    high //= 2
    while low > 0:
        for node in range(low, high + 1):
            tree[node] = tree[2 * node] + tree[2 * node + 1]
        low //= 2
        high //= 2


@kernel
def find_leaves(tree: Tree, streams: Streams, rows: NDArray[np.int64], left_over: Tree) -> None:
    """Draw leaves in proportion to their values, one from each of rows.size equal parts of the total.

    All draws descend one level at a time, so their cache misses overlap; `left_over` is scratch space for
    one number each. A leaf of 0 is never drawn, whatever the rounding.
    """
    half = tree.size // 2
    for place in range(rows.size):
        left_over[place] = (place + next_double(streams, 0)) / rows.size * tree[1]
        rows[place] = 1
    level = 1
    while level < half:
        for place in range(rows.size):
            left = 2 * rows[place]
            if left_over[place] < tree[left] or tree[left + 1] == 0.0:
                rows[place] = left
            else:
                left_over[place] -= tree[left]
                rows[place] = left + 1
        level *= 2
    for place in range(rows.size):
        rows[place] -= half


def plain_set(tree: Tree, rows: NDArray[np.int64], values: Tree) -> None:
    """Twin of `set_leaves` and `set_range`: set the leaves, then sum up the whole tree again."""
    half = tree.size // 2
    for row, value in zip(rows, values, strict=True):
        tree[half + row] = value
    while half > 1:
        half //= 2
        tree[half : 2 * half] = tree[2 * half : 4 * half : 2] + tree[2 * half + 1 : 4 * half : 2]


def plain_find(tree: Tree, rng: np.random.Generator, count: int) -> list[int]:
    """Twin of `find_leaves`: descend from the root for each draw."""
    found = []
    for place in range(count):
        value, node = (place + rng.random()) / count * tree[1], 1
        while node < tree.size // 2:
            node *= 2
            if not (value < tree[node] or tree[node + 1] == 0.0):
                value -= tree[node]
                node += 1
        found.append(node - tree.size // 2)
    return found
