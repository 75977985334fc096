"""Implicit Q-learning from a table of logged treatments (one row a transition)."""

import argparse
import copy
import json
import time

import numpy as np
import pandas as pd
import torch
import torch.nn as nn

STATE = [f"x{i}" for i in range(8)]
NEXT = [f"next_x{i}" for i in range(8)]
ACTION = ["dose", "interval"]


def load_log(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 8))
    a = np.tanh(0.4 * x[:, :2] + 0.5 * rng.standard_normal((n, 2)))
    x2 = 0.9 * x + 0.1 * rng.standard_normal((n, 8))
    x2[:, :2] += 0.2 * a
    df = pd.DataFrame(np.hstack([x, a, x2]).astype(np.float32), columns=STATE + ACTION + NEXT)
    df["reward"] = (-(x2[:, :2] ** 2).sum(1)).astype(np.float32)
    df["done"] = (rng.random(n) < 0.05).astype(np.float32)
    df["patient"] = [f"p{i // 20:05d}" for i in range(n)]
    df["visit"] = np.arange(n) % 20
    return df


def net(i, o):
    return nn.Sequential(nn.Linear(i, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, o))


class IQL:
    def __init__(self, expectile=0.7, beta=3.0, gamma=0.99, tau=0.005, lr=3e-4):
        self.q, self.v, self.pi = net(10, 1), net(8, 1), net(8, 2)
        self.q_target = copy.deepcopy(self.q)
        self.q_opt = torch.optim.Adam(self.q.parameters(), lr, fused=True)
        self.v_opt = torch.optim.Adam(self.v.parameters(), lr, fused=True)
        self.pi_opt = torch.optim.Adam(self.pi.parameters(), lr, fused=True)
        self.expectile, self.beta, self.gamma, self.tau = expectile, beta, gamma, tau

    def step(self, s, a, r, s2, d):
        sa = torch.cat([s, a], 1)
        with torch.no_grad():
            target_q = self.q_target(sa)
            y = r + self.gamma * (1 - d) * self.v(s2)
        adv = target_q - self.v(s)
        v_loss = (torch.abs(self.expectile - (adv < 0).float()) * adv**2).mean()
        self.v_opt.zero_grad()
        v_loss.backward()
        self.v_opt.step()
        q_loss = ((self.q(sa) - y) ** 2).mean()
        self.q_opt.zero_grad()
        q_loss.backward()
        self.q_opt.step()
        weight = torch.exp(self.beta * adv.detach()).clamp(max=100.0)
        pi_loss = (weight * ((torch.tanh(self.pi(s)) - a) ** 2)).mean()
        self.pi_opt.zero_grad()
        pi_loss.backward()
        self.pi_opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.q_target.parameters()), list(self.q.parameters()), self.tau)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=6000)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--batch-size", type=int, default=128)
    args = parser.parse_args()
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    log = load_log(args.rows)
    columns = [torch.tensor(log[names].values) for names in (STATE, ACTION, ["reward"], NEXT, ["done"])]
    agent = IQL()
    for update in range(args.updates):
        if update == args.updates // 5:
            start = time.perf_counter()
        rows = torch.from_numpy(rng.integers(0, len(log), args.batch_size))
        agent.step(*(column[rows] for column in columns))
    rate = (args.updates - args.updates // 5) / (time.perf_counter() - start)
    checksum = float(sum(p.double().sum() for p in agent.pi.parameters()))
    print(json.dumps({"env_steps": None, "updates": args.updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
