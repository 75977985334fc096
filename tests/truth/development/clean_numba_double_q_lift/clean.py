# Double Q-learning for a ski lift: how many chairs per minute? Compiled by numba, one episode per call.
import json
import sys
import time

import numpy as np
from numba import njit

QUEUE, WIND, SPEED = 40, 8, 5
N_STATES = QUEUE * WIND * SPEED
ACTIONS = 3  # slower, same, faster
MINUTES = 600


@njit(cache=False)
def episode(qa, qb, seed, epsilon, alpha, gamma):
    np.random.seed(seed)
    queue, wind, speed = 5, 2, 2
    state = (queue * WIND + wind) * SPEED + speed
    total = 0.0
    for minute in range(MINUTES):
        if np.random.random() < epsilon:
            action = np.random.randint(ACTIONS)
        else:
            action = 0
            best = qa[state, 0] + qb[state, 0]
            for k in range(1, ACTIONS):
                v = qa[state, k] + qb[state, k]
                if v > best:
                    best, action = v, k
        speed = min(SPEED - 1, max(0, speed + action - 1))
        rush = 2.0 + 1.5 * np.sin(minute / 60)
        arrived = np.random.poisson(rush)
        carried = min(queue, speed * 2)
        queue = min(QUEUE - 1, queue - carried + arrived)
        r = np.random.random()
        if r < 0.1:
            wind = max(0, wind - 1)
        elif r > 0.9:
            wind = min(WIND - 1, wind + 1)
        reward = carried - 0.1 * queue - 0.2 * speed
        if wind > 5 and speed > 2:
            reward -= 5.0 * (speed - 2)
        after = (queue * WIND + wind) * SPEED + speed
        if np.random.random() < 0.5:
            pick = 0
            for k in range(1, ACTIONS):
                if qa[after, k] > qa[after, pick]:
                    pick = k
            qa[state, action] += alpha * (reward + gamma * qb[after, pick] - qa[state, action])
        else:
            pick = 0
            for k in range(1, ACTIONS):
                if qb[after, k] > qb[after, pick]:
                    pick = k
            qb[state, action] += alpha * (reward + gamma * qa[after, pick] - qb[state, action])
        state = after
        total += reward
    return total


def main():
    episodes = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
    qa, qb = np.zeros((N_STATES, ACTIONS)), np.zeros((N_STATES, ACTIONS))
    # compiles
    episode(qa.copy(), qb.copy(), 0, 0.1, 0.1, 0.95)
    mean = 0.0
    for e in range(episodes):
        if e == episodes // 5:
            began = time.perf_counter()
        total = episode(qa, qb, 1000 + e, max(0.05, 1 - 2 * e / episodes), 0.05, 0.95)
        mean = 0.999 * mean + 0.001 * total
        if (e + 1) % (episodes // 10) == 0:
            print(f"day {e + 1}: mean reward of a day {mean:.1f}")
    rate = (episodes - episodes // 5) / (time.perf_counter() - began)
    check = float(np.abs(qa).sum() + np.abs(qb).sum())
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main()
