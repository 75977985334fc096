"""Expected SARSA on a large windy cliff, compiled with numba."""

import argparse
import json
import time

import numpy as np
from numba import njit

ROWS, COLS = 40, 120


@njit
def seed(value):
    np.random.seed(value)


@njit
def train(q, row, col, steps, alpha, gamma, epsilon):
    """Runs `steps` steps from (row, col), changes q in place and returns the last place and the number of goals."""
    goals = 0
    for _ in range(steps):
        s = q[row, col]
        if np.random.random() < epsilon:
            a = np.random.randint(4)
        else:
            a = 0
            for k in range(1, 4):
                if s[k] > s[a]:
                    a = k
        r2, c2 = row, col
        if a == 0:
            r2 -= 1
        elif a == 1:
            r2 += 1
        elif a == 2:
            c2 -= 1
        else:
            c2 += 1
        if np.random.random() < 0.1:
            r2 += 1
        r2 = min(ROWS - 1, max(0, r2))
        c2 = min(COLS - 1, max(0, c2))
        if r2 == ROWS - 1 and c2 > 0:
            fell = c2 < COLS - 1
            s[a] += alpha * ((-100.0 if fell else 0.0) - s[a])
            goals += not fell
            row, col = ROWS - 1, 0
            continue
        n = q[r2, c2]
        best = n[0]
        total = n[0]
        for k in range(1, 4):
            total += n[k]
            best = max(best, n[k])
        expected = epsilon * total / 4 + (1 - epsilon) * best
        s[a] += alpha * (-1.0 + gamma * expected - s[a])
        row, col = r2, c2
    return row, col, goals


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--chunks", type=int, default=500)
    ap.add_argument("--chunk", type=int, default=1_000_000)
    args = ap.parse_args()
    seed(0)
    q = np.zeros((ROWS, COLS, 4))
    row, col = ROWS - 1, 0
    train(q, row, col, 1, 0.1, 0.99, 0.1)
    skip, goals = args.chunks // 5, 0
    for chunk in range(args.chunks):
        if chunk == skip:
            start = time.perf_counter()
        row, col, n = train(q, row, col, args.chunk, 0.1, 0.99, 0.1)
        goals += n
    rate = (args.chunks - skip) * args.chunk / (time.perf_counter() - start)
    print(f"{goals} goals")
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": float(q.sum())}))


if __name__ == "__main__":
    main()
