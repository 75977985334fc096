"""Expected SARSA on a large windy gridworld, many walkers side by side. Numpy only."""
import json
import sys
import time

import numpy as np

ROWS, COLS = 40, 60
N_STATES = ROWS * COLS
N_ACTIONS = 4
GOAL = 20 * COLS + 50
N_WALKERS = 1024
ALPHA, GAMMA = 0.2, 0.995
BLOCK = 100


def build_transitions():
    """Next state for every (state, action, gust) triple; gust pushes up by 0..2 extra cells."""
    state = np.arange(N_STATES)
    row, col = np.divmod(state, COLS)
    wind = np.where((col > 15) & (col < 40), 1, 0)
    table = np.empty((N_STATES, N_ACTIONS, 3), dtype=np.int64)
    for a, (dr, dc) in enumerate([(-1, 0), (1, 0), (0, -1), (0, 1)]):
        for gust in range(3):
            r = np.clip(row + dr - wind * gust, 0, ROWS - 1)
            c = np.clip(col + dc, 0, COLS - 1)
            table[:, a, gust] = r * COLS + c
    return table.reshape(-1)


def main():
    n_blocks = int(sys.argv[1]) if len(sys.argv) > 1 else 5500
    rng = np.random.default_rng(31)
    table = build_transitions()
    q = np.zeros(N_STATES * N_ACTIONS)
    q_rows = q.reshape(N_STATES, N_ACTIONS)
    state = rng.integers(0, N_STATES, N_WALKERS)
    action = rng.integers(0, N_ACTIONS, N_WALKERS)
    first = np.arange(N_WALKERS) * N_ACTIONS
    reached = 0
    warm = n_blocks // 5

    for block in range(n_blocks):
        if block == warm:
            t0 = time.perf_counter()
        eps = max(0.05, 0.5 * (1 - block / (0.7 * n_blocks)))
        explore_probs = np.full(N_ACTIONS, eps / N_ACTIONS)
        explore = rng.random((BLOCK, N_WALKERS), dtype=np.float32) < eps
        random_action = rng.integers(0, N_ACTIONS, (BLOCK, N_WALKERS), dtype=np.int32)
        gust = rng.integers(0, 3, (BLOCK, N_WALKERS), dtype=np.int32)
        restart = rng.integers(0, N_STATES, (BLOCK, N_WALKERS), dtype=np.int32)

        for t in range(BLOCK):
            sa = state * N_ACTIONS + action
            nxt = table.take(sa * 3 + gust[t])
            at_goal = nxt == GOAL
            q_next = q_rows.take(nxt, axis=0)
            greedy = q_next.argmax(axis=1)
            q_greedy = q_next.reshape(-1).take(first + greedy)
            expected = (1 - eps) * q_greedy + q_next @ explore_probs
            target = np.where(at_goal, 0.0, GAMMA * expected - 1.0)
            old = q.take(sa)
            q[sa] = old + ALPHA * (target - old)
            state = np.where(at_goal, restart[t], nxt)
            action = np.where(explore[t] | at_goal, random_action[t], greedy)
            reached += np.count_nonzero(at_goal)

        if block % 100 == 0:
            print(f"block {block:5d}  eps {eps:.2f}  goals {reached}  mean value {q_rows.max(axis=1).mean():.3f}")

    seconds = time.perf_counter() - t0
    print(json.dumps({"env_steps": None, "updates": None,
                      "units_per_s": (n_blocks - warm) * BLOCK / seconds,
                      "checksum": round(float(q.sum()), 6)}))


if __name__ == "__main__":
    main()
