# PPO on a stimulated tissue model; every subject has its own dense coupling matrix, simulated in its own process
import argparse
import json
import os
import time

# set before numpy is loaded, and inherited by the workers
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

CELLS = 800
ELECTRODES = 4
SENSORS = 12


class Tissue(gym.Env):
    """Rate model of coupled cells. The controller has to suppress the oscillation that it shows on its own."""

    def __init__(self, subject, substeps=40, horizon=64):
        rng = np.random.default_rng(subject)
        self.w = (1.3 * rng.normal(size=(CELLS, CELLS)) / np.sqrt(CELLS)).astype(np.float32)
        self.b = rng.normal(size=(CELLS, ELECTRODES)).astype(np.float32)
        self.c = (rng.normal(size=(SENSORS, CELLS)) / np.sqrt(CELLS)).astype(np.float32)
        self.substeps, self.horizon = substeps, horizon
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (SENSORS,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (ELECTRODES,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.standard_normal(CELLS, dtype=np.float32)
        self.t = 0
        return self.c @ self.x, {}

    def step(self, action):
        x, drive = self.x, self.b @ np.clip(action, -1, 1)
        for _ in range(self.substeps):
            x += 0.2 * (np.tanh(self.w @ x + drive) - x)
        self.t += 1
        reward = -float(x @ x) / CELLS - 0.01 * float(action @ action)
        return self.c @ x, reward, False, self.t >= self.horizon, {}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SENSORS, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.mu = nn.Linear(64, ELECTRODES)
        self.v = nn.Linear(64, 1)
        self.log_std = nn.Parameter(torch.full((ELECTRODES,), -0.7))

    def forward(self, obs):
        h = self.body(obs)
        return self.mu(h), self.v(h).squeeze(-1)


def log_prob(a, mu, log_std):
    return (-0.5 * ((a - mu) / log_std.exp()) ** 2 - log_std - 0.9189385).sum(-1)


def make(subject):
    return lambda: Tissue(subject)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iterations", type=int, default=38)
    p.add_argument("--subjects", type=int, default=4)
    p.add_argument("--n-steps", type=int, default=32)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--gamma", type=float, default=0.95)
    args = p.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    envs = AsyncVectorEnv(
        [make(i) for i in range(args.subjects)], shared_memory=True, autoreset_mode=AutoresetMode.SAME_STEP
    )
    model = Model()
    opt = torch.optim.Adam(model.parameters(), lr=3e-4)
    obs, _ = envs.reset(seed=0)
    updates, t0, first = 0, time.perf_counter(), args.iterations // 5

    for it in range(args.iterations):
        if it == first:
            t0 = time.perf_counter()
        S = torch.zeros(args.n_steps + 1, args.subjects, SENSORS)
        A = torch.zeros(args.n_steps, args.subjects, ELECTRODES)
        R = np.zeros((args.n_steps, args.subjects), np.float32)
        D = np.zeros((args.n_steps, args.subjects), np.float32)
        S[0] = torch.from_numpy(obs)
        with torch.no_grad():
            for t in range(args.n_steps):
                mu, _ = model(S[t])
                A[t] = torch.normal(mu, model.log_std.exp().expand_as(mu))
                obs, R[t], term, trunc, _ = envs.step(A[t].numpy())
                D[t] = term | trunc
                S[t + 1] = torch.from_numpy(obs)
            mu, V = model(S)
            old = log_prob(A, mu[:-1], model.log_std)
            V = V.numpy()
            adv, run = np.zeros_like(R), np.zeros(args.subjects, np.float32)
            for t in reversed(range(args.n_steps)):
                delta = R[t] + args.gamma * (1 - D[t]) * V[t + 1] - V[t]
                run = delta + args.gamma * 0.95 * (1 - D[t]) * run
                adv[t] = run
            ret = torch.from_numpy(adv + V[:-1])
            adv = torch.from_numpy((adv - adv.mean()) / (adv.std() + 1e-8))
        for _ in range(args.epochs):
            mu, v = model(S[:-1])
            ratio = (log_prob(A, mu, model.log_std) - old).exp()
            loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean() + 0.5 * (v - ret).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            updates += 1
        print(f"{it} reward {R.mean():.4f}")

    dt = time.perf_counter() - t0
    envs.close()
    print(
        json.dumps(
            {
                "env_steps": args.iterations * args.n_steps * args.subjects,
                "updates": updates,
                "units_per_s": (args.iterations - first) / dt,
                "checksum": sum(q.detach().abs().sum().item() for q in model.parameters()),
            }
        )
    )


if __name__ == "__main__":
    main()
