"""PPO, continuous actions, on a batch of pendulums simulated with numpy."""

import json
import math
import sys
import time

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Normal

N_ENVS = 8
N_STEPS = 200
EPOCHS = 4
MINIBATCH = 400
GAMMA, LAM = 0.95, 0.95
CLIP = 0.2

torch.set_num_threads(1)


class Pendulums:
    def __init__(self, n, seed):
        self.rng = np.random.RandomState(seed)
        self.n = n
        self.reset()

    def reset(self):
        self.th = self.rng.uniform(-math.pi, math.pi, self.n)
        self.vel = self.rng.uniform(-1, 1, self.n)
        self.t = 0
        return self.obs()

    def obs(self):
        return np.stack([np.cos(self.th), np.sin(self.th), self.vel / 8], axis=1).astype(np.float32)

    def step(self, torque):
        u = np.clip(torque, -2, 2)
        angle = (self.th + math.pi) % (2 * math.pi) - math.pi
        cost = angle**2 + 0.1 * self.vel**2 + 0.001 * u**2
        self.vel = np.clip(self.vel + (15 * np.sin(self.th) + 3 * u) * 0.05, -8, 8)
        self.th = self.th + self.vel * 0.05
        self.t += 1
        return self.obs(), (-cost / 10).astype(np.float32)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        self.v = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        self.log_std = nn.Parameter(torch.zeros(1))

    def dist(self, x):
        return Normal(2 * torch.tanh(self.pi(x)), self.log_std.exp())

    def value(self, x):
        return self.v(x).squeeze(-1)


def compute_advantages(rewards, values, last_value):
    r, v, last = rewards.numpy(), values.numpy(), last_value.numpy()
    adv = np.zeros_like(r)
    running = np.zeros(N_ENVS, dtype=np.float32)
    for t in reversed(range(N_STEPS)):
        following = v[t + 1] if t + 1 < N_STEPS else last
        delta = r[t] + GAMMA * following - v[t]
        running = delta + GAMMA * LAM * running
        adv[t] = running
    adv = torch.from_numpy(adv)
    return adv, adv + values


def main(iterations=90):
    torch.manual_seed(1)
    envs = Pendulums(N_ENVS, 1)
    net = ActorCritic()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-4)
    n_updates = 0
    marks = []
    for _ in range(iterations):
        marks.append(time.perf_counter())
        obs = envs.reset()
        buf_obs = torch.zeros(N_STEPS, N_ENVS, 3)
        buf_act = torch.zeros(N_STEPS, N_ENVS, 1)
        buf_logp = torch.zeros(N_STEPS, N_ENVS)
        buf_rew = torch.zeros(N_STEPS, N_ENVS)
        with torch.no_grad():
            for t in range(N_STEPS):
                x = torch.from_numpy(obs)
                d = net.dist(x)
                a = d.sample()
                buf_obs[t], buf_act[t] = x, a
                buf_logp[t] = d.log_prob(a).squeeze(-1)
                obs, reward = envs.step(a.squeeze(-1).numpy())
                buf_rew[t] = torch.from_numpy(reward)
            values = net.value(buf_obs)
            advantages, returns = compute_advantages(buf_rew, values, net.value(torch.from_numpy(obs)))

        b_obs, b_act = buf_obs.reshape(-1, 3), buf_act.reshape(-1, 1)
        b_logp, b_adv, b_ret = buf_logp.reshape(-1), advantages.reshape(-1), returns.reshape(-1)
        b_adv = (b_adv - b_adv.mean()) / (b_adv.std() + 1e-8)
        for _ in range(EPOCHS):
            perm = torch.randperm(N_STEPS * N_ENVS)
            for start in range(0, len(perm), MINIBATCH):
                mb = perm[start : start + MINIBATCH]
                logp = net.dist(b_obs[mb]).log_prob(b_act[mb]).squeeze(-1)
                ratio = (logp - b_logp[mb]).exp()
                pg = -torch.min(ratio * b_adv[mb], ratio.clamp(1 - CLIP, 1 + CLIP) * b_adv[mb]).mean()
                vf = (net.value(b_obs[mb]) - b_ret[mb]).pow(2).mean()
                optimizer.zero_grad()
                (pg + 0.5 * vf).backward()
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                optimizer.step()
                n_updates += 1
    end = time.perf_counter()
    skip = iterations // 5
    print(
        json.dumps(
            {
                "env_steps": iterations * N_STEPS * N_ENVS,
                "updates": n_updates,
                "units_per_s": (iterations - skip) / (end - marks[skip]),
                "checksum": float(sum(p.double().sum() for p in net.parameters())),
            }
        )
    )


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
