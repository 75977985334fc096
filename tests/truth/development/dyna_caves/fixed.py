#!/usr/bin/env python3
# Dyna-Q+ finds the way out of a cave with slippery ground.
import json
import random
import sys
import time
from collections import defaultdict

EPISODES = int(sys.argv[1]) if len(sys.argv) > 1 else 45000
PLANNING = 6
ALPHA, GAMMA, EPS, KAPPA = 0.2, 0.97, 0.12, 1e-4
WIDTH, HEIGHT = 15, 12
MOVES = [(0, 1), (1, 0), (0, -1), (-1, 0)]


def dig(rng):
    """Cellular-automaton cave: True is rock."""
    rock = [[rng.random() < 0.36 for _ in range(WIDTH)] for _ in range(HEIGHT)]
    for _ in range(3):
        nxt = [[False] * WIDTH for _ in range(HEIGHT)]
        for y in range(HEIGHT):
            for x in range(WIDTH):
                n = 0
                for dy in (-1, 0, 1):
                    for dx in (-1, 0, 1):
                        yy, xx = y + dy, x + dx
                        if not (0 <= yy < HEIGHT and 0 <= xx < WIDTH) or rock[yy][xx]:
                            n += 1
                nxt[y][x] = n >= 5
        rock = nxt
    return rock


class Cave:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.rock = dig(self.rng)
        free = [(y, x) for y in range(HEIGHT) for x in range(WIDTH) if not self.rock[y][x]]
        self.start = free[len(free) // 3]
        seen, todo = {self.start}, [self.start]
        while todo:
            y, x = todo.pop()
            for dy, dx in MOVES:
                c = (y + dy, x + dx)
                if c not in seen and self.open(c):
                    seen.add(c)
                    todo.append(c)
        self.goal = max(seen, key=lambda c: (abs(c[0] - self.start[0]) + abs(c[1] - self.start[1]), c))

    def open(self, c):
        y, x = c
        return 0 <= y < HEIGHT and 0 <= x < WIDTH and not self.rock[y][x]

    def reset(self):
        self.pos = self.start
        return self.pos

    def step(self, a):
        if self.rng.random() < 0.05:
            a = self.rng.randrange(4)
        c = (self.pos[0] + MOVES[a][0], self.pos[1] + MOVES[a][1])
        if self.open(c):
            self.pos = c
        if self.pos == self.goal:
            return self.pos, 1.0, True
        return self.pos, -0.002, False


class DynaQ:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.q = defaultdict(lambda: [0.0] * 4)
        self.model = {}
        self.pairs = []
        self.clock = 0

    def act(self, s):
        if self.rng.random() < EPS:
            return self.rng.randrange(4)
        row = self.q[s]
        best = max(row)
        return self.rng.choice([a for a in range(4) if row[a] == best])

    def backup(self, s, a, r, s2, done):
        target = r if done else r + GAMMA * max(self.q[s2])
        self.q[s][a] += ALPHA * (target - self.q[s][a])

    def learn(self, s, a, r, s2, done):
        self.clock += 1
        self.backup(s, a, r, s2, done)
        if (s, a) not in self.model:
            self.pairs.append((s, a))
        self.model[(s, a)] = (r, s2, done, self.clock)
        self.plan()

    def plan(self):
        for _ in range(PLANNING):
            s, a = self.rng.choice(self.pairs)
            r, s2, done, when = self.model[(s, a)]
            self.backup(s, a, r + KAPPA * (self.clock - when) ** 0.5, s2, done)


def main():
    cave = Cave(11)
    agent = DynaQ(5)
    print(f"cave {WIDTH}x{HEIGHT}, from {cave.start} to {cave.goal}")
    steps = counted = 0
    t0 = None
    for ep in range(EPISODES):
        if ep == EPISODES // 5:
            t0, counted = time.perf_counter(), 0
        s, done, length = cave.reset(), False, 0
        while not done and length < 2000:
            a = agent.act(s)
            s2, r, done = cave.step(a)
            agent.learn(s, a, r, s2, done)
            s = s2
            length += 1
        steps += length
        counted += length
        if ep % 5000 == 4999:
            print(f"episode {ep + 1:5d}  length {length:5d}  known pairs {len(agent.model)}")
    rate = counted / (time.perf_counter() - t0)
    total = sum(sum(row) for row in agent.q.values())
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": total + steps}))


if __name__ == "__main__":
    main()
