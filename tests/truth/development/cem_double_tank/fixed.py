"""Model-based control of two coupled tanks: learn an ensemble of dynamics networks and plan with the cross-entropy method."""
import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
from gymnasium import spaces


class DoubleTank(gym.Env):
    """Two inflows, two levels that leak into each other; the set point changes every episode."""

    def __init__(self, horizon=60):
        self.observation_space = spaces.Box(-5.0, 5.0, (6,), np.float64)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float64)
        self.horizon = horizon

    def _obs(self):
        return np.concatenate([self.level, self.flow, self.goal])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.level = self.np_random.uniform(0.2, 1.0, 2)
        self.goal = self.np_random.uniform(0.3, 1.2, 2)
        self.flow = np.zeros(2)
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        self.flow += 0.3 * (np.clip(action, -1, 1) - self.flow)
        outflow = 0.12 * np.sqrt(self.level)
        exchange = 0.15 * (self.level[1] - self.level[0])
        self.level += 0.15 * (self.flow + 0.6) - outflow + np.array([exchange, -exchange])
        self.level = np.clip(self.level, 0.0, 3.0)
        self.t += 1
        reward = -float(np.abs(self.level - self.goal).sum())
        return self._obs(), reward, False, self.t >= self.horizon, {}


class EnsembleModel(nn.Module):
    """Members as one batched matrix product per layer; predicts the change of levels and flows."""

    def __init__(self, members, in_dim, out_dim, width):
        super().__init__()
        sizes = [in_dim, width, width, out_dim]
        self.weights = nn.ParameterList(
            [nn.Parameter(torch.randn(members, a, b) / a ** 0.5) for a, b in zip(sizes[:-1], sizes[1:])])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(members, 1, b)) for b in sizes[1:]])
        self.members = members

    def forward(self, x):
        for i, (w, b) in enumerate(zip(self.weights, self.biases)):
            x = torch.baddbmm(b, x, w)
            if i < len(self.weights) - 1:
                x = torch.relu(x)
        return x


class CEMPlanner:
    def __init__(self, model, args):
        self.model, self.args = model, args
        self.mean = torch.zeros(args.plan, 2)

    def start(self):
        self.mean = torch.zeros(self.args.plan, 2)

    @torch.no_grad()
    def plan(self, obs):
        a = self.args
        mean = torch.cat([self.mean[1:], self.mean[-1:]])
        std = torch.full_like(mean, 0.6)
        start = torch.as_tensor(obs).to(mean.dtype)
        per_member = a.population // self.model.members
        for _ in range(a.cem_iters):
            actions = (mean + std * torch.randn(a.population, a.plan, 2)).clamp(-1, 1)
            split = actions.view(self.model.members, per_member, a.plan, 2)
            state = start[:4].expand(self.model.members, per_member, 4)
            cost = torch.zeros(self.model.members, per_member)
            for h in range(a.plan):
                state = state + self.model(torch.cat([state, split[:, :, h]], -1))
                cost += (state[..., :2] - start[4:]).abs().sum(-1)
            elite = actions[cost.view(-1).topk(a.elites, largest=False).indices]
            mean, std = elite.mean(0), elite.std(0) + 0.02
        self.mean = mean
        return mean[0].numpy()


class Dataset:
    def __init__(self, capacity):
        self.x, self.y = torch.zeros(capacity, 6), torch.zeros(capacity, 4)
        self.n = 0

    def add(self, obs, action, after):
        self.x[self.n, :4] = torch.from_numpy(obs[:4])
        self.x[self.n, 4:] = torch.from_numpy(action)
        self.y[self.n] = torch.from_numpy(after[:4] - obs[:4])
        self.n += 1


def fit(model, optim, data, steps, batch):
    losses = []
    for _ in range(steps):
        idx = torch.randint(data.n, (model.members, batch))
        loss = (model(data.x[idx]) - data.y[idx]).pow(2).mean()
        optim.zero_grad()
        loss.backward()
        optim.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--episodes", type=int, default=50)
    p.add_argument("--plan", type=int, default=12)
    p.add_argument("--population", type=int, default=400)
    p.add_argument("--elites", type=int, default=40)
    p.add_argument("--cem-iters", type=int, default=3)
    p.add_argument("--members", type=int, default=4)
    p.add_argument("--width", type=int, default=96)
    p.add_argument("--fit-steps", type=int, default=100)
    p.add_argument("--batch-size", type=int, default=128)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    env = DoubleTank()
    env.action_space.seed(args.seed)
    model = EnsembleModel(args.members, 6, 4, args.width)
    optim = torch.optim.Adam(model.parameters(), lr=args.lr)
    planner, data = CEMPlanner(model, args), Dataset(args.episodes * env.horizon)
    env_steps, updates, started, marked = 0, 0, None, 0
    for episode in range(args.episodes):
        if episode == max(1, args.episodes // 5):
            started, marked = time.perf_counter(), env_steps
        obs, _ = env.reset(seed=args.seed if episode == 0 else None)
        planner.start()
        total, done = 0.0, False
        while not done:
            action = env.action_space.sample() if episode == 0 else planner.plan(obs)
            after, reward, _, done, _ = env.step(action)
            data.add(obs, action, after)
            obs, total = after, total + reward
            env_steps += 1
        loss = fit(model, optim, data, args.fit_steps, args.batch_size)
        updates += args.fit_steps
        print(f"episode {episode} return {total:.2f} model loss {loss:.5f}")
    speed = (env_steps - marked) / (time.perf_counter() - started)
    checksum = float(sum(q.detach().double().abs().sum() for q in model.parameters()))
    print(json.dumps({"env_steps": env_steps, "updates": updates, "units_per_s": speed, "checksum": checksum}))


if __name__ == "__main__":
    main()
