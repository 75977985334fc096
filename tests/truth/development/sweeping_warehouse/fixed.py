"""Prioritised sweeping (Moore & Atkeson 1993) for a forklift in a warehouse with slippery floor, all in plain Python."""
import argparse
import json
import random
import time
from collections import defaultdict
from heapq import heappop, heappush

ACTIONS = ("N", "E", "S", "W")
STEP = {"N": (0, -1), "E": (1, 0), "S": (0, 1), "W": (-1, 0)}


class Warehouse:
    def __init__(self, size, shelves, slip, rng):
        self.size, self.slip, self.rng = size, slip, rng
        self.shelves = set()
        for _ in range(shelves):
            x, y = rng.randrange(1, size - 4), rng.randrange(1, size - 1)
            self.shelves.update((x + i, y) for i in range(3))
        self.dock = (size - 1, size - 1)
        self.shelves.discard(self.dock)
        self.shelves.discard((0, 0))

    def reset(self):
        self.pos = (0, 0)
        return self.pos

    def step(self, action):
        if self.rng.random() < self.slip:
            action = self.rng.choice(ACTIONS)
        dx, dy = STEP[action]
        x, y = self.pos[0] + dx, self.pos[1] + dy
        if 0 <= x < self.size and 0 <= y < self.size and (x, y) not in self.shelves:
            self.pos = (x, y)
        return self.pos, (10.0 if self.pos == self.dock else -0.1), self.pos == self.dock


class Sweeper:
    """Deterministic latest-outcome model, a queue ordered by Bellman error."""

    def __init__(self, gamma, theta, backups):
        self.gamma, self.theta, self.backups = gamma, theta, backups
        self.q = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
        self.model = {}
        self.sources = defaultdict(set)
        self.queue = []
        self.done_backups = 0

    def error(self, s, a):
        r, s2, end = self.model[s, a]
        best = 0.0 if end else max(self.q[s2])
        return r + self.gamma * best - self.q[s][a]

    def push(self, s, a):
        e = abs(self.error(s, a))
        if e > self.theta:
            heappush(self.queue, (-e, s, a))

    def remember(self, s, a, r, s2, end):
        if (s, a) in self.model:
            self.sources[self.model[s, a][1]].discard((s, a))
        self.model[s, a] = (r, s2, end)
        self.sources[s2].add((s, a))
        self.push(s, a)

    def predecessors(self, state):
        return sorted(self.sources[state])

    def sweep(self):
        for _ in range(self.backups):
            if not self.queue:
                return
            _, s, a = heappop(self.queue)
            self.q[s][a] += 0.7 * self.error(s, a)
            self.done_backups += 1
            for ps, pa in self.predecessors(s):
                self.push(ps, pa)
        if len(self.queue) > 3000:
            self.queue = sorted(self.queue)[:1000]


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=80000)
    ap.add_argument("--size", type=int, default=9)
    ap.add_argument("--backups", type=int, default=12)
    args = ap.parse_args(argv)
    rng = random.Random(7)
    env = Warehouse(args.size, args.size // 2, 0.1, rng)
    agent = Sweeper(0.97, 1e-3, args.backups)
    s, trips, t0 = env.reset(), 0, 0.0
    for t in range(args.steps):
        if t == args.steps // 5:
            t0 = time.perf_counter()
        if rng.random() < 0.2:
            a = rng.randrange(4)
        else:
            row = agent.q[s]
            a = row.index(max(row))
        s2, r, end = env.step(ACTIONS[a])
        agent.remember(s, a, r, s2, end)
        agent.sweep()
        if end:
            trips += 1
            s = env.reset()
        else:
            s = s2
    rate = (args.steps - args.steps // 5) / (time.perf_counter() - t0)
    print("trips", trips, "backups", agent.done_backups)
    total = sum(sum(v) for v in agent.q.values())
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": round(total, 9)}))


if __name__ == "__main__":
    main()
