"""Value decomposition (VDN) for a team of dogs that herd sheep; all dogs share one network."""
import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
MOVES = np.array([[0, 0], [0, 1], [0, -1], [1, 0], [-1, 0]], dtype=np.float32)


class Meadow:
    """Dogs move in five ways, sheep run from near dogs and drift; the team is paid for sheep close to the pen."""

    def __init__(self, dogs, sheep, seed):
        self.dogs_n, self.sheep_n = dogs, sheep
        self.rng = np.random.default_rng(seed)
        self.obs_dim = 2 + 2 * 3 + 2 + dogs
        self.ids = np.eye(dogs, dtype=np.float32)

    def reset(self):
        self.dogs = self.rng.uniform(-1, 1, (self.dogs_n, 2)).astype(np.float32)
        self.sheep = self.rng.uniform(-1, 1, (self.sheep_n, 2)).astype(np.float32)
        self.t = 0
        return self.observe()

    def observe(self):
        gap = self.sheep[None] - self.dogs[:, None]
        near = np.argpartition((gap ** 2).sum(-1), 3, axis=1)[:, :3]
        sheep = np.take_along_axis(gap, near[..., None], axis=1).reshape(self.dogs_n, -1)
        return np.concatenate([self.dogs, sheep, -self.dogs, self.ids], axis=1)

    def step(self, actions):
        self.t += 1
        self.dogs = np.clip(self.dogs + 0.08 * MOVES[actions], -1.2, 1.2)
        gap = self.sheep[:, None] - self.dogs[None]
        dist = np.sqrt((gap ** 2).sum(-1, keepdims=True)) + 1e-3
        push = (gap / dist * np.exp(-8 * dist)).sum(1)
        drift = self.rng.normal(0, 0.01, self.sheep.shape).astype(np.float32)
        self.sheep = np.clip(self.sheep + 0.1 * push + drift, -1.2, 1.2)
        reward = -float(np.sqrt((self.sheep ** 2).sum(1)).mean())
        return self.observe(), reward, self.t >= 60


class Team:
    def __init__(self, env, lr=1e-3):
        self.env = env
        make = lambda: nn.Sequential(nn.Linear(env.obs_dim, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, len(MOVES)))
        self.q, self.target = make(), make()
        self.target.load_state_dict(self.q.state_dict())
        self.opt = torch.optim.Adam(self.q.parameters(), lr=lr)
        self.rng = np.random.default_rng(77)

    def act(self, obs, epsilon):
        explore = self.rng.random(self.env.dogs_n) < epsilon
        randoms = self.rng.integers(0, len(MOVES), self.env.dogs_n)
        with torch.no_grad():
            greedy = self.q(torch.from_numpy(obs)).argmax(1).numpy()
        return np.where(explore, randoms, greedy)

    def learn(self, obs, act, reward, nxt, final):
        with torch.no_grad():
            y = reward + 0.96 * (1 - final) * self.target(nxt).max(2).values.sum(1)
        chosen = self.q(obs).gather(2, act[..., None]).squeeze(2).sum(1)
        loss = F.smooth_l1_loss(chosen, y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()


class Memory:
    def __init__(self, size, dogs, obs_dim):
        self.data = [np.zeros((size, dogs, obs_dim), np.float32), np.zeros((size, dogs), np.int64), np.zeros(size, np.float32),
                     np.zeros((size, dogs, obs_dim), np.float32), np.zeros(size, np.float32)]
        self.size, self.at, self.n = size, 0, 0

    def add(self, *row):
        for store, value in zip(self.data, row):
            store[self.at] = value
        self.at = (self.at + 1) % self.size
        self.n = min(self.n + 1, self.size)

    def sample(self, rng, count):
        rows = rng.integers(0, self.n, count)
        return [torch.from_numpy(store[rows]) for store in self.data]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--episodes", type=int, default=120)
    ap.add_argument("--dogs", type=int, default=8)
    ap.add_argument("--sheep", type=int, default=12)
    ap.add_argument("--train-every", type=int, default=8)
    args = ap.parse_args()
    torch.manual_seed(77)
    env = Meadow(args.dogs, args.sheep, 77)
    team, memory, rng = Team(env), Memory(20000, args.dogs, env.obs_dim), np.random.default_rng(78)
    steps = updates = 0
    start, totals = None, []
    for episode in range(args.episodes):
        if episode == args.episodes // 5:
            start = time.perf_counter()
        epsilon = max(0.05, 1.0 - 2.5 * episode / args.episodes)
        obs, done, total = env.reset(), False, 0.0
        while not done:
            act = team.act(obs, epsilon)
            nxt, reward, done = env.step(act)
            memory.add(obs, act, reward, nxt, done)
            obs, total = nxt, total + reward
            steps += 1
            if memory.n >= 256 and steps % args.train_every == 0:
                team.learn(*memory.sample(rng, 64))
                updates += 1
        if episode % 10 == 0:
            team.target.load_state_dict(team.q.state_dict())
            print(f"episode {episode:4d}: team return {total:.2f}", flush=True)
        totals.append(total)
    rate = (args.episodes - args.episodes // 5) * 60 / (time.perf_counter() - start)
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": float(np.sum(totals))}))


if __name__ == "__main__":
    main()
