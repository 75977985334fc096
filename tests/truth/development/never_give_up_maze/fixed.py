"""Episodic novelty (as in Never Give Up) for an actor-critic in a large maze of rooms with hardly any reward."""
import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class Rooms:
    """Four-connected rooms with one door per wall; observation: position, walls around, one-hot room row and column."""

    def __init__(self, seed, rooms=5, size=7, length=700):
        rng = np.random.default_rng(seed)
        n = rooms * (size + 1) + 1
        self.n, self.rooms, self.size, self.length = n, rooms, size, length
        self.free = np.ones((n, n), bool)
        self.free[::size + 1] = False
        self.free[:, ::size + 1] = False
        for i in range(rooms):
            for j in range(rooms - 1):
                self.free[i * (size + 1) + 1 + rng.integers(size), (j + 1) * (size + 1)] = True
                self.free[(j + 1) * (size + 1), i * (size + 1) + 1 + rng.integers(size)] = True
        self.goal = (n - 2, n - 2)
        self.obs_dim = 2 + 4 + 2 * rooms

    def reset(self):
        self.y, self.x, self.t = 1, 1, 0
        return self.observe()

    def observe(self):
        out = np.zeros(self.obs_dim, np.float32)
        y, x, k = self.y, self.x, self.size + 1
        out[0], out[1] = y / self.n, x / self.n
        out[2], out[3], out[4], out[5] = self.free[y - 1, x], self.free[y + 1, x], self.free[y, x - 1], self.free[y, x + 1]
        out[6 + min(y // k, self.rooms - 1)] = out[6 + self.rooms + min(x // k, self.rooms - 1)] = 1.0
        return out

    def step(self, action):
        self.t += 1
        y, x = self.y + (-1, 1, 0, 0)[action], self.x + (0, 0, -1, 1)[action]
        if self.free[y, x]:
            self.y, self.x = y, x
        found = (self.y, self.x) == self.goal
        return self.observe(), float(found), found or self.t >= self.length


class Net(nn.Module):
    def __init__(self, obs_dim):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_dim, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.pi, self.v = nn.Linear(64, 4), nn.Linear(64, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.v(h).squeeze(-1)


class EpisodicMemory:
    """Novelty of a state: how far its embedding is from the nearest ones seen in this episode."""

    def __init__(self, width, capacity, neighbours=10):
        self.width, self.capacity, self.k = width, capacity, neighbours
        self.mean_distance = 1.0
        self.memory = torch.zeros(capacity, width)
        self.clear()

    def clear(self):
        self.count = 0

    def remember(self, embedding):
        self.memory[self.count] = embedding
        self.count += 1

    def bonus(self, embedding):
        if self.count < self.k:
            self.remember(embedding)
            return 0.0
        known = self.memory[:self.count]
        distances = (known - embedding).square().sum(1)
        nearest = distances.topk(self.k, largest=False).values.numpy()
        self.mean_distance += 0.01 * (float(nearest.mean()) - self.mean_distance)
        kernel = 0.01 / (nearest / max(self.mean_distance, 1e-6) + 0.01)
        self.remember(embedding)
        return float(1.0 / (np.sqrt(kernel.sum()) + 0.1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--episodes", type=int, default=40)
    ap.add_argument("--rollout", type=int, default=50)
    args = ap.parse_args()
    torch.manual_seed(16)
    rng = np.random.default_rng(16)
    env = Rooms(16)
    net = Net(env.obs_dim)
    embed = nn.Sequential(nn.Linear(env.obs_dim, 64), nn.ReLU(), nn.Linear(64, 32)).requires_grad_(False)
    memory = EpisodicMemory(32, env.length + 1)
    opt = torch.optim.Adam(net.parameters(), lr=7e-4)
    steps = updates = found = counted = 0
    start, visits = None, np.zeros((env.n, env.n), np.int64)
    for episode in range(args.episodes):
        if episode == args.episodes // 5:
            start, counted = time.perf_counter(), steps
        memory.clear()
        obs, done = env.reset(), False
        while not done:
            seen, acts, rewards = [], [], []
            while len(seen) < args.rollout and not done:
                x = torch.from_numpy(obs)
                with torch.no_grad():
                    logits = net.pi(net.body(x)).numpy()
                act = int((logits + rng.gumbel(size=4)).argmax())
                seen.append(x)
                obs, reward, done = env.step(act)
                with torch.no_grad():
                    code = embed(torch.from_numpy(obs))
                rewards.append(10.0 * reward + 0.1 * memory.bonus(code))
                acts.append(act)
                visits[env.y, env.x] += 1
                found += int(reward > 0)
                steps += 1
            logits, v = net(torch.stack(seen))
            with torch.no_grad():
                run = 0.0 if done else float(net(torch.from_numpy(obs))[1])
            returns = []
            for r in reversed(rewards):
                run = r + 0.98 * run
                returns.append(run)
            g = torch.tensor(returns[::-1])
            logp = F.log_softmax(logits, 1)
            picked = logp.gather(1, torch.tensor(acts)[:, None]).squeeze(1)
            loss = -(picked * (g - v).detach()).mean() + 0.5 * F.mse_loss(v, g) + 0.02 * (logp.exp() * logp).sum(1).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            updates += 1
        if episode % 5 == 0:
            print(f"episode {episode:3d}: {int((visits > 0).sum())} cells seen so far, goal reached {found} times", flush=True)
    rate = (steps - counted) / (time.perf_counter() - start)
    checksum = float(sum(p.detach().double().abs().sum() for p in net.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
