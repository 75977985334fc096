"""PPO on a batch of double integrators; every seed trains in its own process."""

import argparse
import json
import multiprocessing as mp
import time

import numpy as np
import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--iterations", type=int, default=12)
parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
parser.add_argument("--hidden", type=int, default=64)

N_ENVS, HORIZON, BATCH, EPOCHS = 32, 64, 128, 2


class DoubleIntegrators:
    def __init__(self, n, rng):
        self.n, self.rng = n, rng

    def reset(self):
        self.s = self.rng.uniform(-1, 1, (self.n, 4)).astype(np.float32)
        return self.s.copy()

    def step(self, u):
        u = np.clip(u, -1, 1)
        self.s[:, :2] += 0.1 * self.s[:, 2:]
        self.s[:, 2:] += 0.1 * u
        return self.s.copy(), -np.square(self.s).sum(1) - 0.01 * np.square(u).sum(1)


def mlp(n_in, n_hidden, n_out):
    return nn.Sequential(
        nn.Linear(n_in, n_hidden),
        nn.Tanh(),
        nn.Linear(n_hidden, n_hidden),
        nn.Tanh(),
        nn.Linear(n_hidden, n_out),
    )


def run_seed(seed, args, results):
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    env = DoubleIntegrators(N_ENVS, np.random.default_rng(seed))
    pi, vf = mlp(4, args.hidden, 2), mlp(4, args.hidden, 1)
    log_std = nn.Parameter(torch.full((2,), -0.7))
    params = [*pi.parameters(), *vf.parameters(), log_std]
    opt = torch.optim.Adam(params, lr=3e-4)
    updates, start = 0, 0.0
    for it in range(args.iterations):
        if it == args.iterations // 5:
            start = time.perf_counter()
        obs = env.reset()
        Obs, U, L = (
            torch.zeros(HORIZON, N_ENVS, 4),
            torch.zeros(HORIZON, N_ENVS, 2),
            torch.zeros(HORIZON, N_ENVS),
        )
        R = np.zeros((HORIZON, N_ENVS), np.float32)
        with torch.no_grad():
            for t in range(HORIZON):
                Obs[t] = torch.from_numpy(obs)
                dist = torch.distributions.Normal(pi(Obs[t]), log_std.exp())
                U[t] = dist.sample()
                L[t] = dist.log_prob(U[t]).sum(1)
                obs, R[t] = env.step(U[t].numpy())
            V = torch.cat([vf(Obs), vf(torch.from_numpy(obs))[None]]).squeeze(-1).numpy()
        A, last = np.zeros_like(R), np.zeros(N_ENVS, np.float32)
        for t in range(HORIZON - 1, -1, -1):
            last = R[t] + 0.97 * V[t + 1] - V[t] + 0.97 * 0.95 * last
            A[t] = last
        G = torch.from_numpy(A + V[:-1]).flatten()
        adv = torch.from_numpy(A).flatten()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        o, u, old = Obs.flatten(0, 1), U.flatten(0, 1), L.flatten()
        for _ in range(EPOCHS):
            for mb in torch.randperm(len(adv)).split(BATCH):
                logp = torch.distributions.Normal(pi(o[mb]), log_std.exp()).log_prob(u[mb]).sum(1)
                ratio = (logp - old[mb]).exp()
                loss = -torch.min(ratio * adv[mb], ratio.clamp(0.8, 1.2) * adv[mb]).mean()
                loss = loss + 0.5 * (vf(o[mb]).squeeze(1) - G[mb]).square().mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
                updates += 1
    speed = (args.iterations - args.iterations // 5) / (time.perf_counter() - start)
    results.put((seed, updates, speed, float(sum(p.double().sum() for p in params))))


if __name__ == "__main__":
    args = parser.parse_args()
    ctx = mp.get_context("spawn")
    results = ctx.Queue()
    jobs = [ctx.Process(target=run_seed, args=(seed, args, results)) for seed in args.seeds]
    for job in jobs:
        job.start()
    done = sorted(results.get() for _ in jobs)
    for job in jobs:
        job.join()
    print(
        json.dumps(
            {
                "env_steps": None,
                "updates": sum(row[1] for row in done),
                "units_per_s": sum(row[2] for row in done),
                "checksum": sum(row[3] for row in done),
            }
        )
    )
