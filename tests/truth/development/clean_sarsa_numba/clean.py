"""Expected SARSA on a windy gridworld, the whole loop compiled with Numba."""

import argparse
import json
import time

import numpy as np
from numba import njit

H, W, N_ACT = 20, 30, 4


@njit(cache=False)
def next_random(state):
    # xorshift64*, one stream for everything
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return np.float64((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@njit(cache=False)
def train(q, wind, episodes, alpha, gamma, eps, max_steps, state):
    steps = 0
    for _ in range(episodes):
        r, c = H // 2, 0
        for _ in range(max_steps):
            s = r * W + c
            if next_random(state) < eps:
                a = int(next_random(state) * N_ACT)
            else:
                a = 0
                for k in range(1, N_ACT):
                    if q[s, k] > q[s, a]:
                        a = k
            nr, nc = r - wind[c], c
            if a == 0:
                nr -= 1
            elif a == 1:
                nr += 1
            elif a == 2:
                nc -= 1
            else:
                nc += 1
            nr = min(max(nr, 0), H - 1)
            nc = min(max(nc, 0), W - 1)
            steps += 1
            done = nr == H // 2 and nc == W - 6
            s2 = nr * W + nc
            best, total = q[s2, 0], q[s2, 0]
            for k in range(1, N_ACT):
                total += q[s2, k]
                best = max(best, q[s2, k])
            expected = eps * total / N_ACT + (1.0 - eps) * best
            target = -1.0 if done else -1.0 + gamma * expected
            q[s, a] += alpha * (target - q[s, a])
            r, c = nr, nc
            if done:
                break
    return steps


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1100)
    parser.add_argument("--episodes-per-round", type=int, default=20000)
    args = parser.parse_args()
    wind = np.zeros(W, dtype=np.int64)
    wind[8:20] = 1
    wind[12:16] = 2
    q = np.zeros((H * W, N_ACT))
    state = np.array([88172645463325252], dtype=np.uint64)
    train(q.copy(), wind, 1, 0.1, 0.99, 0.1, 10, state.copy())  # compile

    total = 0
    t0, i0 = time.perf_counter(), 0
    for i in range(args.rounds):
        if i == args.rounds // 5:
            t0, i0 = time.perf_counter(), i
        n = train(q, wind, args.episodes_per_round, 0.1, 0.99, 0.1, 400, state)
        total += n
        if i % 50 == 0:
            print(f"round {i}: {n / args.episodes_per_round:.1f} steps per episode")
    rate = (args.rounds - i0) / (time.perf_counter() - t0)
    print(json.dumps({"env_steps": total, "updates": total, "units_per_s": rate, "checksum": float(q.sum())}))


if __name__ == "__main__":
    main()
