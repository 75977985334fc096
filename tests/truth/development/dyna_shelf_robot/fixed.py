"""Homework 3: Dyna-Q for a robot that fetches parcels between shelves (Sutton & Barto, chapter 8)."""
import argparse
import json
import random
import time

HALL = [
    "S...........",
    ".##.##.##.#.",
    ".##.##.##.#.",
    "............",
    ".##.##.##.#.",
    ".##.##.##.#.",
    "............",
    ".##.##.##.#.",
    ".##.##.##.#.",
    "...........G",
]
MOVES = [(-1, 0), (0, 1), (1, 0), (0, -1)]


class Hall:
    def __init__(self, slip, rng):
        self.slip, self.rng = slip, rng
        self.height, self.width = len(HALL), len(HALL[0])
        self.free = {(r, c) for r in range(self.height) for c in range(self.width) if HALL[r][c] != "#"}
        self.start, self.goal = (0, 0), (self.height - 1, self.width - 1)
        self.cell = self.start

    def reset(self):
        self.cell = self.rng.choice(sorted(self.free)) if self.rng.random() < 0.1 else self.start
        return self.cell

    def step(self, action):
        if self.rng.random() < self.slip:
            action = self.rng.randrange(4)
        dr, dc = MOVES[action]
        target = (self.cell[0] + dr, self.cell[1] + dc)
        if target in self.free:
            self.cell = target
        if self.cell == self.goal:
            return self.cell, 1.0, True
        return self.cell, -0.01, False


class DynaAgent:
    def __init__(self, alpha, gamma, epsilon, planning, rng):
        self.alpha, self.gamma, self.epsilon, self.planning, self.rng = alpha, gamma, epsilon, planning, rng
        self.q = {}
        self.model = {}
        self.known = []

    def values(self, state):
        row = self.q.get(state)
        if row is None:
            row = self.q[state] = [0.0, 0.0, 0.0, 0.0]
        return row

    def act(self, state):
        if self.rng.random() < self.epsilon:
            return self.rng.randrange(4)
        row = self.values(state)
        best = max(row)
        return self.rng.choice([a for a in range(4) if row[a] == best])

    def backup(self, state, action, reward, following, done):
        goal = reward if done else reward + self.gamma * max(self.values(following))
        row = self.values(state)
        row[action] += self.alpha * (goal - row[action])

    def observe(self, state, action, reward, following, done):
        self.backup(state, action, reward, following, done)
        if (state, action) not in self.model:
            self.known.append((state, action))
        self.model[(state, action)] = (reward, following, done)
        for _ in range(self.planning):
            s, a = self.rng.choice(self.known)
            r, s2, d = self.model[(s, a)]
            self.backup(s, a, r, s2, d)


def run(args):
    rng = random.Random(args.seed)
    world = Hall(args.slip, rng)
    agent = DynaAgent(alpha=0.2, gamma=0.95, epsilon=0.1, planning=args.planning, rng=rng)
    state, episode, length, recent = world.reset(), 0, 0, []
    t0 = None
    for step in range(args.steps):
        if step == args.steps // 5:
            t0 = time.perf_counter()
        action = agent.act(state)
        following, reward, done = world.step(action)
        agent.observe(state, action, reward, following, done)
        state, length = following, length + 1
        if done:
            episode += 1
            recent.append(length)
            if episode % 500 == 0:
                print(f"episode {episode}: mean length {sum(recent) / len(recent):.1f}, model size {len(agent.model)}")
                recent.clear()
            state, length = world.reset(), 0
    speed = (args.steps - args.steps // 5) / (time.perf_counter() - t0)
    checksum = sum(sum(row) for row in agent.q.values())
    return {"env_steps": None, "updates": None, "units_per_s": speed, "checksum": round(checksum, 8)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--planning", type=int, default=5)
    parser.add_argument("--slip", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    print(json.dumps(run(parser.parse_args())))
