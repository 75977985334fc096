"""Independent learners with shared weights: a pack of hunters chases one prey on a torus."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Pursuit:
    """PettingZoo-like parallel API: dicts keyed by agent name."""

    MOVES = np.array([[0, 0], [0, 1], [0, -1], [1, 0], [-1, 0]])

    def __init__(self, n_agents, size=12, seed=0):
        self.agents = [f"hunter_{i}" for i in range(n_agents)]
        self.size = size
        self.rng = np.random.default_rng(seed)
        self.t = 0

    def reset(self):
        self.pos = self.rng.integers(0, self.size, (len(self.agents), 2))
        self.prey = self.rng.integers(0, self.size, 2)
        self.t = 0
        return self.observe()

    def observe(self):
        half = self.size / 2
        prey = (self.prey - self.pos + half) % self.size - half
        centre = (self.pos.mean(0) - self.pos + half) % self.size - half
        table = np.concatenate([prey / half, centre / half, self.pos / self.size], axis=1).astype(np.float32)
        return dict(zip(self.agents, table, strict=True))

    def step(self, actions):
        moves = self.MOVES[[actions[a] for a in self.agents]]
        self.pos = (self.pos + moves) % self.size
        self.prey = (self.prey + self.MOVES[self.rng.integers(5)]) % self.size
        half = self.size / 2
        gap = np.abs((self.prey - self.pos + half) % self.size - half).sum(1)
        reward = (-gap / self.size + (gap == 0) * 2.0).astype(np.float32)
        self.t += 1
        caught = int((gap <= 1).sum()) >= 3
        return self.observe(), dict(zip(self.agents, reward.tolist(), strict=True)), caught or self.t >= 40


class SharedQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))

    def forward(self, x):
        return self.net(x)


class Memory:
    def __init__(self, cap):
        self.o, self.o2 = np.zeros((cap, 6), np.float32), np.zeros((cap, 6), np.float32)
        self.a, self.r, self.d = np.zeros(cap, np.int64), np.zeros(cap, np.float32), np.zeros(cap, np.float32)
        self.cap, self.n = cap, 0

    def store(self, o, a, r, o2, d):
        k = len(a)
        idx = np.arange(self.n, self.n + k) % self.cap
        self.o[idx], self.a[idx], self.r[idx], self.o2[idx], self.d[idx] = o, a, r, o2, d
        self.n += k

    def draw(self, rng, k):
        i = rng.integers(0, min(self.n, self.cap), k)
        return [torch.from_numpy(x[i]) for x in (self.o, self.a, self.r, self.o2, self.d)]


def act(q, obs, agents, rng, eps):
    actions = {}
    for name in agents:
        with torch.no_grad():
            values = q(torch.from_numpy(obs[name]))
        greedy = int(values.argmax())
        actions[name] = int(rng.integers(5)) if rng.random() < eps else greedy
    return actions


def learn(q, target, opt, memory, rng):
    o, a, r, o2, d = memory.draw(rng, 128)
    with torch.no_grad():
        y = r + 0.95 * (1 - d) * target(o2).max(1).values
    loss = F.mse_loss(q(o).gather(1, a[:, None]).squeeze(1), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--env-steps", type=int, default=12000)
    cli.add_argument("--agents", type=int, default=12)
    args = cli.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    env = Pursuit(args.agents)
    q, target = SharedQ(), SharedQ()
    target.load_state_dict(q.state_dict())
    opt = torch.optim.Adam(q.parameters(), lr=5e-4)
    memory = Memory(50_000)
    updates = 0
    obs = env.reset()
    t0, s0 = time.perf_counter(), 0
    for step in range(args.env_steps):
        if step == args.env_steps // 5:
            t0, s0 = time.perf_counter(), step
        eps = max(0.05, 1.0 - 1.5 * step / args.env_steps)
        actions = act(q, obs, env.agents, rng, eps)
        nxt, rewards, over = env.step(actions)
        memory.store(
            np.stack([obs[n] for n in env.agents]),
            [actions[n] for n in env.agents],
            [rewards[n] for n in env.agents],
            np.stack([nxt[n] for n in env.agents]),
            float(over),
        )
        obs = env.reset() if over else nxt
        if step >= 100 and step % 4 == 0:
            loss = learn(q, target, opt, memory, rng)
            updates += 1
            if updates % 250 == 0:
                target.load_state_dict(q.state_dict())
                print(f"step {step} loss {loss.item():.4f}")
    rate = (args.env_steps - s0) / (time.perf_counter() - t0)
    checksum = sum(p.detach().double().sum().item() for p in q.parameters())
    print(
        json.dumps(
            {"env_steps": args.env_steps, "updates": updates, "units_per_s": rate, "checksum": checksum}
        )
    )


if __name__ == "__main__":
    main()
