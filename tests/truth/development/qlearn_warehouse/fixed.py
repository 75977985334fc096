# Q-learning with experience replay for a warehouse robot that collects parcels. Plain numpy.
import json
import random
import sys
import time
from collections import defaultdict

import numpy as np

np.random.seed(0)
random.seed(0)

ALPHA = 0.15
GAMMA = 0.97
MAX_STEPS = 150
REPLAYS = 16
MEMORY = 20000
MOVES = [(-1, 0), (1, 0), (0, -1), (0, 1)]


class Warehouse:
    def __init__(self, size=7, n_parcels=3):
        self.size = size
        self.n_parcels = n_parcels
        self.shelves = {(1, 2), (2, 2), (3, 2), (3, 4), (4, 4), (5, 4), (1, 5)}
        self.spots = [(0, 3), (6, 6), (6, 1), (2, 5), (5, 2)]
        self.n_actions = 4

    def get_state(self):
        return np.array([self.row, self.col] + self.left)

    def reset(self):
        self.row, self.col = 0, 0
        self.left = [0] * len(self.spots)
        for k in np.random.permutation(len(self.spots))[:self.n_parcels]:
            self.left[k] = 1
        return self.get_state()

    def step(self, action):
        dr, dc = MOVES[action]
        r = min(max(self.row + dr, 0), self.size - 1)
        c = min(max(self.col + dc, 0), self.size - 1)
        reward = -0.05
        if (r, c) in self.shelves:
            reward -= 0.2
        else:
            self.row, self.col = r, c
        if (r, c) in self.spots:
            k = self.spots.index((r, c))
            if self.left[k]:
                self.left[k] = 0
                reward += 1.0
        done = not any(self.left)
        return self.get_state(), reward, done


def epsilon_greedy(q_values, eps):
    if np.random.rand() < eps:
        return np.random.randint(len(q_values))
    return q_values.index(max(q_values))


def td_update(Q, state, action, reward, next_state, done):
    best_next = 0.0 if done else max(Q[next_state])
    q = Q[state]
    q[action] += ALPHA * (reward + GAMMA * best_next - q[action])


def main():
    n_episodes = int(sys.argv[1]) if len(sys.argv) > 1 else 20000
    env = Warehouse()
    Q = defaultdict(lambda: [0.0] * env.n_actions)

    memory = []
    total_steps = 0
    returns = []
    warm = n_episodes // 5
    for ep in range(n_episodes):
        if ep == warm:
            t0, s0 = time.perf_counter(), total_steps
        eps = max(0.1, 1.0 - ep / (0.6 * n_episodes))
        state = tuple(env.reset().tolist())
        ep_return = 0.0
        for t in range(MAX_STEPS):
            action = epsilon_greedy(Q[state], eps)
            obs, reward, done = env.step(action)
            next_state = tuple(obs.tolist())

            transition = (state, action, reward, next_state, done)
            td_update(Q, *transition)
            if len(memory) < MEMORY:
                memory.append(transition)
            else:
                memory[total_steps % MEMORY] = transition
            for _ in range(REPLAYS):
                td_update(Q, *memory[int(random.random() * len(memory))])

            state = next_state
            ep_return += reward
            total_steps += 1
            if done:
                break
        returns.append(ep_return)
        if (ep + 1) % 500 == 0:
            print("episode", ep + 1, "eps %.2f" % eps, "avg return %.3f" % np.mean(returns[-500:]),
                  "states", len(Q))

    seconds = time.perf_counter() - t0
    checksum = sum(sum(q) for q in Q.values())
    print(json.dumps({"env_steps": total_steps, "updates": None,
                      "units_per_s": (total_steps - s0) / seconds, "checksum": round(checksum, 6)}))


if __name__ == "__main__":
    main()
