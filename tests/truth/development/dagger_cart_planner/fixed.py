"""DAgger: a small network imitates a sampling-based planner that drives a cart with two linked poles of a simplified kind."""
import argparse
import json
import time

import numpy as np
import torch
from torch import nn

DT, HORIZON, CANDIDATES = 0.05, 12, 96


def dynamics(state, force):
    """state (..., 4): position, velocity, angle, angular velocity."""
    x, v, th, w = np.moveaxis(state, -1, 0)
    s, c = np.sin(th), np.cos(th)
    temp = (force + 0.05 * w * w * s) / 1.1
    acc_w = (9.8 * s - c * temp) / (0.5 * (4.0 / 3.0 - 0.1 * c * c / 1.1))
    acc_v = temp - 0.05 * acc_w * c / 1.1
    return np.stack([x + DT * v, v + DT * acc_v, th + DT * w, w + DT * acc_w], axis=-1)


class Planner:
    """The expert: best first force of a fixed set of piecewise constant plans."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        knots = rng.uniform(-10, 10, (CANDIDATES, HORIZON // 3))
        self.plans = np.repeat(knots, 3, axis=1)

    def label(self, state):
        s = np.broadcast_to(state, (CANDIDATES, 4))
        cost = np.zeros(CANDIDATES)
        for t in range(HORIZON):
            s = dynamics(s, self.plans[:, t])
            cost += s[:, 2] ** 2 + 0.1 * s[:, 0] ** 2 + 0.01 * s[:, 1] ** 2
        return self.plans[np.argmin(cost), 0] / 10.0


def student():
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1), nn.Tanh())


def drive(net, rng, steps, noise):
    """States the student visits."""
    visited, state = [], rng.uniform(-0.2, 0.2, 4)
    for _ in range(steps):
        visited.append(state)
        with torch.no_grad():
            force = net(torch.as_tensor(state, dtype=torch.float32)).item()
        state = dynamics(state, 10.0 * force + noise * rng.normal())
        if abs(state[2]) > 0.8 or abs(state[0]) > 3:
            state = rng.uniform(-0.2, 0.2, 4)
    return visited


def fit(net, opt, states, labels, epochs, gen):
    x = torch.as_tensor(np.array(states), dtype=torch.float32)
    y = torch.as_tensor(np.array(labels), dtype=torch.float32)[:, None]
    n = 0
    for _ in range(epochs):
        for idx in torch.randperm(len(x), generator=gen).split(256):
            loss = nn.functional.mse_loss(net(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
    return n, loss.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--epochs", type=int, default=24)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(8)
    gen = torch.Generator().manual_seed(8)
    rng = np.random.default_rng(8)
    expert, net = Planner(8), student()
    opt = torch.optim.Adam(net.parameters(), 2e-3)
    states, labels, updates, t0 = [], [], 0, None
    for k in range(a.rounds):
        if k == a.rounds // 5:
            t0 = time.perf_counter()
        visited = drive(net, rng, a.steps, noise=1.0)
        states += visited
        labels += [expert.label(s) for s in visited]
        n, loss = fit(net, opt, states, labels, a.epochs, gen)
        updates += n
        print(f"round {k}: {len(states)} states, loss {loss:.4f}")
    rate = (a.rounds - a.rounds // 5) / (time.perf_counter() - t0)
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate,
                      "checksum": sum(q.detach().double().sum().item() for q in net.parameters())}))


if __name__ == "__main__":
    main()
