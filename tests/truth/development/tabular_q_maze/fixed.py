#!/usr/bin/env python
# Dyna-Q in a maze. Only numpy.
import json
import sys
import time

import numpy as np

WIDTH = HEIGHT = 15
ACTIONS = [(-1, 0), (1, 0), (0, -1), (0, 1)]
ALPHA, GAMMA = 0.2, 0.98
EPISODES = 1000
PLANNING = 25
MAX_STEPS = 200
if "--episodes" in sys.argv:
    EPISODES = int(sys.argv[sys.argv.index("--episodes") + 1])

rng = np.random.default_rng(42)


def make_maze():
    walls = rng.random((HEIGHT, WIDTH)) < 0.18
    walls[0, 0] = walls[HEIGHT - 1, WIDTH - 1] = False
    return walls


class Maze:
    def __init__(self, walls):
        self.walls = walls.tolist()
        self.row = self.col = 0

    def reset(self):
        self.row = self.col = 0
        return 0

    def step(self, action):
        dr, dc = ACTIONS[action]
        r, c = self.row + dr, self.col + dc
        if 0 <= r < HEIGHT and 0 <= c < WIDTH and not self.walls[r][c]:
            self.row, self.col = r, c
        done = self.row == HEIGHT - 1 and self.col == WIDTH - 1
        return self.row * WIDTH + self.col, (10.0 if done else -0.05), done


class Stats:
    """Everything that happened, for the plots."""

    def __init__(self):
        self.rewards = []
        self.td_errors = []
        self.lengths = []

    def record(self, reward, td_error):
        self.rewards.append(reward)
        self.td_errors.append(td_error)

    def end_episode(self, length):
        self.lengths.append(length)

    def summary(self, n):
        return f"mean length {np.mean(self.lengths[-n:]):.1f}, reward {np.sum(self.rewards):.1f}, last |td| {np.abs(self.td_errors[-n:]).mean():.4f}"


def plan(q, model, visited):
    for k in rng.integers(0, len(visited), PLANNING).tolist():
        s, a = visited[k]
        s2, r, done = model[s, a]
        target = r if done else r + GAMMA * q[s2].max()
        q[s, a] += ALPHA * (target - q[s, a])


def main():
    env = Maze(make_maze())
    q = np.zeros((WIDTH * HEIGHT, len(ACTIONS)))
    model, visited, n_visits = {}, [], np.zeros(q.shape, dtype=int)
    stats = Stats()
    steps = 0
    t_start, ep_start = time.perf_counter(), 0
    for episode in range(EPISODES):
        if episode == EPISODES // 5:
            t_start, ep_start = time.perf_counter(), episode
        eps = max(0.05, 1.0 - episode / (0.6 * EPISODES))
        s = env.reset()
        n = 0
        for n in range(1, MAX_STEPS + 1):
            if rng.random() < eps:
                a = int(rng.integers(len(ACTIONS)))
            else:
                a = int(q[s].argmax())
            s2, r, done = env.step(a)
            target = r if done else r + GAMMA * q[s2].max()
            td = target - q[s, a]
            q[s, a] += ALPHA * td
            model[s, a] = (s2, r, done)
            if n_visits[s, a] == 0:
                visited.append((s, a))
            n_visits[s, a] += 1
            plan(q, model, visited)
            stats.record(r, td)
            s = s2
            if done:
                break
        steps += n
        stats.end_episode(n)
        if (episode + 1) % 100 == 0:
            print("episode", episode + 1, stats.summary(100))
    took = time.perf_counter() - t_start
    print(
        json.dumps(
            {
                "env_steps": steps,
                "updates": steps * (1 + PLANNING),
                "units_per_s": (EPISODES - ep_start) / took,
                "checksum": float(q.sum()),
            }
        )
    )


if __name__ == "__main__":
    main()
