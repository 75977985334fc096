"""A rescue robot that cannot see where it is: Bayes filter over a floor plan, Q-learning on features of the belief."""
import argparse
import json
import time

import numpy as np

PLAN = """
####################
#......#...........#
#.####.#.#####.###.#
#.#....#.....#.#...#
#.#.######.###.#.###
#.#......#.#...#...#
#.######.#.#.#####.#
#........#.........#
####################
""".strip().splitlines()
MOVES = [(-1, 0), (0, 1), (1, 0), (0, -1)]


class Floor:
    def __init__(self):
        self.cells = [(r, c) for r, row in enumerate(PLAN) for c, ch in enumerate(row) if ch == "."]
        self.index = {rc: i for i, rc in enumerate(self.cells)}
        n = len(self.cells)
        self.T = np.zeros((4, n, n))
        self.walls = np.zeros((n, 4), dtype=int)
        for i, (r, c) in enumerate(self.cells):
            for a, (dr, dc) in enumerate(MOVES):
                j = self.index.get((r + dr, c + dc), i)
                self.walls[i, a] = j == i
                self.T[a, i, j] += 0.85
                self.T[a, i, i] += 0.15
        self.likelihood = np.ones((16, n))
        for z in range(16):
            for k in range(4):
                bit = (z >> k) & 1
                self.likelihood[z] *= np.where(self.walls[:, k] == bit, 0.9, 0.1)
        self.exit = self.index[(1, 18)]
        self.n = n


class Robot:
    def __init__(self, floor, rng):
        self.floor, self.rng = floor, rng

    def reset(self):
        self.at = int(self.rng.integers(self.floor.n))
        self.t = 0
        return self.sense()

    def sense(self):
        seen = self.floor.walls[self.at] ^ (self.rng.random(4) < 0.1)
        return int(seen @ (1, 2, 4, 8))

    def step(self, a):
        if self.rng.random() < 0.85:
            r, c = self.floor.cells[self.at]
            self.at = self.floor.index.get((r + MOVES[a][0], c + MOVES[a][1]), self.at)
        self.t += 1
        out = self.at == self.floor.exit
        return self.sense(), (10.0 if out else -0.1), out, self.t >= 24


class Tracker:
    """Where am I, given all that was done and sensed since the start?"""

    def __init__(self, floor):
        self.floor = floor

    def start(self, z):
        self.first = z
        self.history = []

    def observe(self, a, z):
        self.history.append((a, z))

    def belief(self):
        b = self.floor.likelihood[self.first] / self.floor.n
        b = b / b.sum()
        for a, z in self.history:
            b = (b @ self.floor.T[a]) * self.floor.likelihood[z]
            b = b / b.sum()
        return b


def features(b):
    entropy = -(b * np.log(b + 1e-12)).sum()
    return np.concatenate([b, np.sqrt(b), [entropy / 5.0, 1.0]])


def run(episodes, seed):
    rng = np.random.default_rng(seed)
    floor = Floor()
    robot, tracker = Robot(floor, rng), Tracker(floor)
    w = np.zeros((4, 2 * floor.n + 2))
    returns, steps, mark = [], 0, None
    for ep in range(episodes):
        if ep == episodes // 5:
            mark = (steps, time.perf_counter())
        tracker.start(robot.reset())
        x = features(tracker.belief())
        q = w @ x
        total, over, eps = 0.0, False, max(0.05, 0.6 * (1 - ep / (0.7 * episodes)))
        while not over:
            a = int(rng.integers(4)) if rng.random() < eps else int(q.argmax())
            z, r, out, late = robot.step(a)
            tracker.observe(a, z)
            x2 = features(tracker.belief())
            q2 = w @ x2
            target = r if out else r + 0.97 * q2.max()
            w[a] += 0.05 * (target - q[a]) * x
            x, q = x2, w @ x2
            total += r
            steps += 1
            over = out or late
        returns.append(total)
        if (ep + 1) % 1000 == 0:
            print(f"episode {ep + 1:5d}: return {np.mean(returns[-1000:]):6.2f}")
    rate = (steps - mark[0]) / (time.perf_counter() - mark[1])
    return {"env_steps": None, "updates": None, "units_per_s": rate, "checksum": float(w.sum()) + float(np.sum(returns))}


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--episodes", type=int, default=8000)
    ap.add_argument("--seed", type=int, default=19)
    args = ap.parse_args()
    print(json.dumps(run(args.episodes, args.seed)))
