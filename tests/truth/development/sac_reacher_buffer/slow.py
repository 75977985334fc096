"""Soft actor-critic for a planar reacher with ten joints."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal

N_JOINTS = 10
OBS_DIM = 2 * N_JOINTS + 4


class Reacher:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.q = self.rng.uniform(-0.3, 0.3, N_JOINTS)
        self.dq = np.zeros(N_JOINTS)
        self.goal = self.rng.uniform(-0.7, 0.7, 2)
        self.t = 0
        return self.obs()

    def tip(self):
        angle = np.cumsum(self.q)
        return np.array([np.cos(angle).mean(), np.sin(angle).mean()])

    def obs(self):
        return np.concatenate([self.q, self.dq, self.goal, self.goal - self.tip()])

    def step(self, action):
        self.dq = 0.8 * self.dq + 0.1 * action
        self.q = self.q + self.dq
        self.t += 1
        o = self.obs()
        return o, -float(np.hypot(o[-2], o[-1])), self.t >= 80


class Actor(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(OBS_DIM, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 2 * N_JOINTS),
        )

    def forward(self, obs):
        mu, log_std = self.body(obs).chunk(2, -1)
        dist = Normal(mu, log_std.clamp(-5, 2).exp(), validate_args=False)
        u = dist.rsample()
        logp = (dist.log_prob(u) - 2 * (np.log(2) - u - F.softplus(-2 * u))).sum(-1)
        return torch.tanh(u), logp


class Critic(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        n = OBS_DIM + N_JOINTS
        self.q = nn.Sequential(
            nn.Linear(n, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, obs, act):
        return self.q(torch.cat([obs, act], -1)).squeeze(-1)


class ReplayBuffer:
    def __init__(self, capacity):
        self.obs = np.zeros((capacity, OBS_DIM))
        self.act = np.zeros((capacity, N_JOINTS))
        self.rew = np.zeros(capacity)
        self.nxt = np.zeros((capacity, OBS_DIM))
        self.size, self.capacity = 0, capacity

    def store(self, o, a, r, o2):
        i = self.size % self.capacity
        self.obs[i], self.act[i], self.rew[i], self.nxt[i] = o, a, r, o2
        self.size += 1

    def sample(self, n, rng):
        i = rng.integers(0, min(self.size, self.capacity), n)
        return [torch.from_numpy(x[i]) for x in (self.obs, self.act, self.rew, self.nxt)]


class SAC:
    def __init__(self, hidden=256, lr=3e-4, alpha=0.1, gamma=0.98, tau=0.005):
        self.actor = Actor(hidden).double()
        self.q1, self.q2 = Critic(hidden).double(), Critic(hidden).double()
        self.t1, self.t2 = Critic(hidden).double(), Critic(hidden).double()
        self.t1.load_state_dict(self.q1.state_dict())
        self.t2.load_state_dict(self.q2.state_dict())
        self.critics = [*self.q1.parameters(), *self.q2.parameters()]
        self.targets = [*self.t1.parameters(), *self.t2.parameters()]
        self.pi_opt = torch.optim.Adam(self.actor.parameters(), lr, fused=True)
        self.q_opt = torch.optim.Adam(self.critics, lr, fused=True)
        self.alpha, self.gamma, self.tau = alpha, gamma, tau

    @torch.no_grad()
    def act(self, obs):
        return self.actor(torch.as_tensor(obs))[0].numpy()

    def update(self, o, a, r, o2):
        with torch.no_grad():
            a2, logp2 = self.actor(o2)
            y = r + self.gamma * (torch.min(self.t1(o2, a2), self.t2(o2, a2)) - self.alpha * logp2)
        q_loss = F.mse_loss(self.q1(o, a), y) + F.mse_loss(self.q2(o, a), y)
        self.q_opt.zero_grad()
        q_loss.backward()
        self.q_opt.step()
        for p in self.critics:
            p.requires_grad_(False)
        pi, logp = self.actor(o)
        pi_loss = (self.alpha * logp - torch.min(self.q1(o, pi), self.q2(o, pi))).mean()
        self.pi_opt.zero_grad()
        pi_loss.backward()
        self.pi_opt.step()
        for p in self.critics:
            p.requires_grad_(True)
        with torch.no_grad():
            torch._foreach_lerp_(self.targets, self.critics, self.tau)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=2000)
    ap.add_argument("--warmup", type=int, default=300)
    ap.add_argument("--batch", type=int, default=256)
    args = ap.parse_args()
    torch.manual_seed(3)
    rng = np.random.default_rng(3)
    env, agent, buffer = Reacher(3), SAC(), ReplayBuffer(100_000)
    obs, updates = env.reset(), 0
    skip = args.warmup + args.steps // 5
    for step in range(args.warmup + args.steps):
        if step == skip:
            start = time.perf_counter()
        act = rng.uniform(-1, 1, N_JOINTS) if step < args.warmup else agent.act(obs)
        nxt, rew, done = env.step(act)
        buffer.store(obs, act, rew, nxt)
        obs = env.reset() if done else nxt
        if step >= args.warmup:
            agent.update(*buffer.sample(args.batch, rng))
            updates += 1
    rate = (args.warmup + args.steps - skip) / (time.perf_counter() - start)
    checksum = float(sum(p.double().sum() for p in agent.actor.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
