import json
import sys
import time

import numpy as np

# SARSA(lambda) with replacing traces on a windy gridworld

ROWS, COLS, N_ACTIONS = 7, 10, 4
WIND = [0, 0, 0, 1, 1, 1, 2, 2, 1, 0]
START, GOAL = (3, 0), (3, 7)
ALPHA, GAMMA, LAMBDA, EPS = 0.2, 0.98, 0.8, 0.1
total_steps = int(sys.argv[1]) if len(sys.argv) > 1 else 800_000

rng = np.random.RandomState(0)
Q = np.zeros((ROWS * COLS, N_ACTIONS))
trace = np.zeros_like(Q)


def index(pos):
    return pos[0] * COLS + pos[1]


def move(pos, a):
    r, c = pos
    r += (-1, 1, 0, 0)[a] - WIND[c]
    c += (0, 0, -1, 1)[a]
    return min(max(r, 0), ROWS - 1), min(max(c, 0), COLS - 1)


def policy(s):
    if rng.rand() < EPS:
        return rng.randint(N_ACTIONS)
    return int(Q[s].argmax())


pos, episode, length = START, 0, 0
s = index(pos)
a = policy(s)
with open("train.log", "w") as log:
    for step in range(total_steps):
        if step == total_steps // 5:
            tick = time.perf_counter()
        pos = move(pos, a)
        s2 = index(pos)
        r = 0.0 if pos == GOAL else -1.0
        a2 = policy(s2)
        delta = r + (0.0 if pos == GOAL else GAMMA * Q[s2, a2]) - Q[s, a]
        trace[s] = 0.0
        trace[s, a] = 1.0
        Q += ALPHA * delta * trace
        trace *= GAMMA * LAMBDA
        length += 1
        if step % 1000 == 0:
            print(
                f"step {step:7d} episode {episode:5d} state {s:3d} action {a} reward {r:5.1f} delta {delta:9.5f} mean {Q.mean():.5f}",
                file=log,
                flush=True,
            )
        s, a = s2, a2
        if pos == GOAL or length >= 500:
            pos, length = START, 0
            s = index(pos)
            a = policy(s)
            trace[:] = 0.0
            episode += 1
seconds = time.perf_counter() - tick
print("episodes", episode)
result = {"env_steps": total_steps, "updates": None, "checksum": repr(float(Q.sum()))}
result["units_per_s"] = (total_steps - total_steps // 5) / seconds
print(json.dumps(result))
