"""Sarsa(lambda) with tile coding for a canal with three locks; the whole loop is compiled by Numba."""

import argparse
import json
import time

import numba
import numpy as np

LOCKS, TILINGS, TILES, ACTIONS, STEPS = 3, 8, 8, 4, 300
FEATURES = TILINGS * TILES**LOCKS


@numba.njit(cache=False)
def tiles(levels, offsets, out):
    """Index of the active tile of each tiling."""
    for k in range(TILINGS):
        index = 0
        for i in range(LOCKS):
            cell = int(levels[i] * (TILES - 1) + offsets[k, i])
            index = index * TILES + min(TILES - 1, max(0, cell))
        out[k] = k * TILES**LOCKS + index


@numba.njit(cache=False)
def flow(levels, action, inflow):
    """Open one gate (or none) for a while; the reward is minus the distance of the levels from the middle."""
    levels[0] += inflow
    for i in range(LOCKS):
        if action == i + 1:
            passed = min(0.12, levels[i])
            levels[i] -= passed
            if i + 1 < LOCKS:
                levels[i + 1] += passed
    levels[LOCKS - 1] -= 0.02
    cost = 0.0
    for i in range(LOCKS):
        levels[i] = min(1.0, max(0.0, levels[i]))
        cost += abs(levels[i] - 0.5)
    return -cost


@numba.njit(cache=False)
def choose(weights, active, epsilon, rng):
    if rng.random() < epsilon:
        return rng.integers(0, ACTIONS)
    best, which = -1e30, 0
    for action in range(ACTIONS):
        value = 0.0
        for k in active:
            value += weights[action, k]
        if value > best:
            best, which = value, action
    return which


@numba.njit(cache=False)
def episodes(number, weights, offsets, rng, rate, lam, epsilon):
    """Learn from `number` episodes; the traces of the last steps are kept as a short list."""
    keep = 12
    past = np.zeros((keep, TILINGS), np.int64)
    past_actions = np.zeros(keep, np.int64)
    active, following = np.zeros(TILINGS, np.int64), np.zeros(TILINGS, np.int64)
    levels, total = np.zeros(LOCKS), 0.0
    for _ in range(number):
        for i in range(LOCKS):
            levels[i] = rng.random()
        tiles(levels, offsets, active)
        action = choose(weights, active, epsilon, rng)
        for t in range(STEPS):
            past[t % keep], past_actions[t % keep] = active, action
            reward = flow(levels, action, 0.04 * rng.random())
            tiles(levels, offsets, following)
            next_action = choose(weights, following, epsilon, rng)
            error = reward
            for k in range(TILINGS):
                error += 0.95 * weights[next_action, following[k]] - weights[action, active[k]]
            trace = rate / TILINGS
            for back in range(min(t + 1, keep)):
                row = (t - back) % keep
                for k in range(TILINGS):
                    weights[past_actions[row], past[row, k]] += trace * error
                trace *= 0.95 * lam
            active[:] = following
            action = next_action
            total += reward
    return total


def main(chunks):
    rng = np.random.default_rng(8)
    offsets = rng.random((TILINGS, LOCKS))
    weights = np.zeros((ACTIONS, FEATURES))
    marks, returns = [], []
    for _ in range(chunks):
        marks.append(time.perf_counter())
        returns.append(episodes(500, weights, offsets, rng, 0.1, 0.8, 0.1) / 500)
    marks.append(time.perf_counter())
    print(f"return of an episode: {returns[0]:.1f} at first, {returns[-1]:.1f} at last")
    first = chunks // 5
    rate = (chunks - first) / (marks[-1] - marks[first])
    print(
        json.dumps(
            {"env_steps": None, "updates": None, "units_per_s": rate, "checksum": float(weights.sum())}
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--chunks", type=int, default=350)
    main(parser.parse_args().chunks)
