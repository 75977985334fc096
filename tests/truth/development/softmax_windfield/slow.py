# One-step actor-critic with tabular softmax policy on a windy grid.  Sutton & Barto ch. 13, my own grid.
import json
import sys
import time

import numpy as np

EPISODES = int(sys.argv[1]) if len(sys.argv) > 1 else 90000
W, H = 11, 8
WIND = np.array([0, 0, 0, 1, 1, 1, 2, 2, 1, 0, 0]).tolist()
GOAL = (8, 3)
MOVES = [(0, 1), (1, 0), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1)]
GAMMA, ALPHA_PI, ALPHA_V = 0.98, 0.25, 0.2
MAX_T = 90

rng = np.random.RandomState(11)
prefs = np.zeros((W * H, len(MOVES)))
values = [0.0] * (W * H)


def move(x, y, a):
    dx, dy = MOVES[a]
    gust = WIND[x]
    nx = min(max(x + dx, 0), W - 1)
    ny = min(max(y + dy + gust, 0), H - 1)
    if (nx, ny) == GOAL:
        return nx, ny, 0.0, True
    return nx, ny, -1.0, False


def softmax(row):
    e = np.exp(row - row.max())
    return e / e.sum()


def act(s):
    pi = softmax(prefs[s])
    a = rng.choice(len(MOVES), p=pi)
    return a, pi


lengths = []
began = None
for ep in range(EPISODES):
    if ep == EPISODES // 5:
        began = time.perf_counter()
        steps_then = sum(lengths)
    x, y = 0, 3
    decay = 1.0
    for t in range(MAX_T):
        s = x * H + y
        a, pi = act(s)
        x, y, r, done = move(x, y, a)
        target = r if done else r + GAMMA * values[x * H + y]
        delta = target - values[s]
        values[s] += ALPHA_V * delta
        step = ALPHA_PI * decay * delta
        prefs[s] -= step * pi
        prefs[s, a] += step
        decay *= 0.999
        if done:
            break
    lengths.append(t + 1)
    if (ep + 1) % 10000 == 0:
        print("episode", ep + 1, "mean length", np.mean(lengths[-200:]))

seconds = time.perf_counter() - began
print(json.dumps(dict(env_steps=None, updates=None, units_per_s=(sum(lengths) - steps_then) / seconds,
                      checksum=float(np.abs(prefs).sum() + sum(values) + sum(lengths)))))
