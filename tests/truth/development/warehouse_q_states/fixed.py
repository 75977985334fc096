# Tabular Q-learning for a warehouse robot that fetches parcels from three shelves.
import argparse
import itertools
import json
import random
import time

import numpy as np

SIZE = 5
SHELVES = ((0, 4), (4, 0), (2, 2))
DEPOT = (4, 4)
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


class Warehouse:
    def reset(self):
        self.row, self.col = random.randrange(SIZE), random.randrange(SIZE)
        self.carrying = 0  # 0: nothing, otherwise 1 + shelf
        self.order = random.randrange(3)
        self.t = 0
        return self.row, self.col, self.carrying, self.order

    def step(self, action):
        dr, dc = MOVES[action]
        self.row = min(SIZE - 1, max(0, self.row + dr))
        self.col = min(SIZE - 1, max(0, self.col + dc))
        self.t += 1
        reward = -0.05
        if self.carrying == 0 and (self.row, self.col) == SHELVES[self.order]:
            self.carrying = 1 + self.order
            reward = 1.0
        done = self.carrying > 0 and (self.row, self.col) == DEPOT
        if done:
            reward = 5.0
        return (self.row, self.col, self.carrying, self.order), reward, done or self.t >= 200


class QLearner:
    def __init__(self, alpha=0.1, gamma=0.97, epsilon=0.1):
        self.alpha, self.gamma, self.epsilon = alpha, gamma, epsilon
        self.states = list(itertools.product(range(SIZE), range(SIZE), range(4), range(3)))
        self.numbers = {state: i for i, state in enumerate(self.states)}
        self.table = np.zeros((len(self.states), 4))

    def index(self, state):
        return self.numbers[state]

    def choose(self, state):
        if random.random() < self.epsilon:
            return random.randrange(4)
        return int(self.table[self.index(state)].argmax())

    def update(self, state, action, reward, following, done):
        best = 0.0 if done else self.table[self.index(following)].max()
        i = self.index(state)
        self.table[i, action] += self.alpha * (reward + self.gamma * best - self.table[i, action])


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--steps", type=int, default=1_200_000)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    random.seed(args.seed)
    env, learner = Warehouse(), QLearner()
    state = env.reset()
    returns, total = [], 0.0
    for step in range(args.steps):
        if step == args.steps // 5:
            start = time.perf_counter()
        action = learner.choose(state)
        following, reward, done = env.step(action)
        learner.update(state, action, reward, following, done)
        total += reward
        state = following
        if done:
            returns.append(total)
            total = 0.0
            state = env.reset()
    rate = (args.steps - args.steps // 5) / (time.perf_counter() - start)
    print("mean return of the last 100 episodes:", np.mean(returns[-100:]))
    checksum = float(learner.table.sum())
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
