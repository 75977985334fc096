"""Twin-critic actor-critic for a damped spring; the buffer keeps float rows."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn


class Spring:
    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.x, self.v, self.t = self.rng.uniform(-1, 1), 0.0, 0
        return np.array([self.x, self.v], dtype=np.float32)

    def step(self, force):
        self.v += 0.05 * (-2.0 * self.x - 0.1 * self.v + float(force))
        self.x += 0.05 * self.v
        self.t += 1
        return (
            np.array([self.x, self.v], dtype=np.float32),
            -abs(self.x) - 0.05 * abs(float(force)),
            self.t >= 100,
        )


class Buffer:
    def __init__(self, capacity, rng):
        self.rows = np.zeros((capacity, 2 + 1 + 1 + 2), dtype=np.float32)
        self.rng, self.n = rng, 0

    def push(self, s, a, r, s2):
        self.rows[self.n % len(self.rows)] = (*s, a, r, *s2)
        self.n += 1

    def sample(self, batch):
        picked = []
        indices = self.rng.integers(0, min(self.n, len(self.rows)), batch)
        for i in indices:
            row = self.rows[i]
            picked.append((row[0:2], row[2:3], row[3:4], row[4:6]))
        s, a, r, s2 = zip(*picked, strict=True)
        return tuple(torch.from_numpy(np.stack(part)) for part in (s, a, r, s2))


def mlp(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, n_out))


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--steps", type=int, default=4500)
    cli.add_argument("--batch", type=int, default=256)
    args = cli.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(4)
    rng = np.random.default_rng(4)
    env, buffer = Spring(rng), Buffer(10_000, rng)
    pi, qa, qb, ta, tb = mlp(2, 1), mlp(3, 1), mlp(3, 1), mlp(3, 1), mlp(3, 1)
    ta.load_state_dict(qa.state_dict())
    tb.load_state_dict(qb.state_dict())
    critics, targets = [*qa.parameters(), *qb.parameters()], [*ta.parameters(), *tb.parameters()]
    q_opt, pi_opt = torch.optim.Adam(critics, 1e-3), torch.optim.Adam(pi.parameters(), 1e-3)
    s, updates = env.reset(), 0
    for step in range(args.steps):
        if step == args.steps // 5:
            t0 = time.perf_counter()
        with torch.inference_mode():
            a = float(torch.tanh(pi(torch.from_numpy(s)))) + 0.2 * rng.standard_normal()
        s2, r, over = env.step(a)
        buffer.push(s, a, r, s2)
        s = env.reset() if over else s2
        if step < 300:
            continue
        bs, ba, br, bs2 = buffer.sample(args.batch)
        with torch.no_grad():
            x2 = torch.cat([bs2, torch.tanh(pi(bs2))], 1)
            y = br + 0.97 * torch.min(ta(x2), tb(x2))
        x = torch.cat([bs, ba], 1)
        q_loss = (qa(x) - y).square().mean() + (qb(x) - y).square().mean()
        q_opt.zero_grad()
        q_loss.backward()
        q_opt.step()
        pi_loss = -qa(torch.cat([bs, torch.tanh(pi(bs))], 1)).mean()
        pi_opt.zero_grad()
        pi_loss.backward()
        pi_opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(targets, critics, 0.01)
        updates += 1
    speed = (args.steps - args.steps // 5) / (time.perf_counter() - t0)
    total = float(sum(p.double().sum() for p in pi.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": speed, "checksum": total}))


if __name__ == "__main__":
    main()
