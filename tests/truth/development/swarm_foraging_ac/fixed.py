"""Parameter-sharing actor-critic for a swarm that gathers food and avoids collisions.

All agents use one network; an observation holds the agent's own state, the mean offset of its neighbours and the
offset of the food patch.
"""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal


class Swarm:
    def __init__(self, n_agents, seed, sight=0.5, bump=0.06):
        self.n, self.sight, self.bump = n_agents, sight, bump
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.pos = self.rng.uniform(-1, 1, (self.n, 2))
        self.vel = np.zeros((self.n, 2))
        self.food = self.rng.uniform(-1, 1, 2)
        self.t = 0
        return self.observe()

    def neighbourhood(self):
        """Mean offset of the agents in sight, and the number of collisions, for every agent."""
        offset = self.pos[None] - self.pos[:, None]
        d = np.sqrt((offset**2).sum(-1))
        np.fill_diagonal(d, np.inf)
        seen = d < self.sight
        count = np.maximum(seen.sum(1), 1)
        mean = (offset * seen[..., None]).sum(1) / count[:, None]
        return mean, (d < self.bump).sum(1)

    def observe(self):
        self.mean, self.bumps = self.neighbourhood()
        return np.hstack([self.pos, self.vel, self.mean, self.food - self.pos]).astype(np.float32)

    def step(self, actions):
        self.vel = 0.9 * self.vel + 0.02 * np.clip(actions, -1, 1)
        self.pos = np.clip(self.pos + self.vel, -1, 1)
        self.t += 1
        obs = self.observe()
        distance = np.sqrt(((self.food - self.pos) ** 2).sum(1))
        return obs, (-distance - 0.5 * self.bumps).astype(np.float32), self.t >= 60


class ActorCritic(nn.Module):
    def __init__(self, n_obs=8, n_act=2, hidden=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_obs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.mu = nn.Linear(hidden, n_act)
        self.v = nn.Linear(hidden, 1)
        self.log_std = nn.Parameter(torch.zeros(n_act))

    def forward(self, x):
        h = self.body(x)
        return Normal(self.mu(h), self.log_std.exp(), validate_args=False), self.v(h).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--episodes", type=int, default=250)
    ap.add_argument("--agents", type=int, default=120)
    ap.add_argument("--horizon", type=int, default=20)
    args = ap.parse_args()
    torch.manual_seed(0)
    swarm, model = Swarm(args.agents, 0), ActorCritic()
    opt = torch.optim.Adam(model.parameters(), lr=7e-4)
    steps = updates = 0
    skip = args.episodes // 5
    for episode in range(args.episodes):
        if episode == skip:
            t0, before = time.perf_counter(), steps
        obs, done = torch.from_numpy(swarm.reset()), False
        while not done:
            log_probs, values, rewards, entropies = [], [], [], []
            while len(rewards) < args.horizon and not done:
                dist, value = model(obs)
                action = dist.sample()
                nxt, reward, done = swarm.step(action.numpy())
                log_probs.append(dist.log_prob(action).sum(-1))
                entropies.append(dist.entropy().sum(-1))
                values.append(value)
                rewards.append(torch.from_numpy(reward))
                obs = torch.from_numpy(nxt)
                steps += 1
            with torch.no_grad():
                ret = torch.zeros(args.agents) if done else model(obs)[1]
            returns = []
            for r in reversed(rewards):
                ret = r + 0.95 * ret
                returns.append(ret)
            returns = torch.stack(returns[::-1])
            values = torch.stack(values)
            adv = returns - values
            loss = -(torch.stack(log_probs) * adv.detach()).mean() + 0.5 * adv.pow(2).mean()
            loss = loss - 0.003 * torch.stack(entropies).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            updates += 1
    rate = (steps - before) / (time.perf_counter() - t0)
    checksum = float(sum(p.double().sum() for p in model.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
