"""PETS in a few lines: an ensemble of dynamics models and random shooting with the cross-entropy method.

Task: balance a pole on a cart with a continuous force (Gymnasium's CartPole physics, own step function).
"""
import json
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import nn


@dataclass
class Args:
    steps: int = 1500
    """real environment steps"""
    members: int = 7
    candidates: int = 48
    elites: int = 8
    horizon: int = 12
    cem_rounds: int = 2
    hidden: int = 40
    train_every: int = 10
    train_batches: int = 10
    batch: int = 64
    seed: int = 8


def physics(s, force):
    x, dx, th, dth = s
    f = 10.0 * force
    temp = (f + 0.05 * dth**2 * np.sin(th)) / 1.1
    ddth = (9.8 * np.sin(th) - np.cos(th) * temp) / (0.5 * (4 / 3 - 0.1 * np.cos(th) ** 2 / 1.1))
    ddx = temp - 0.05 * ddth * np.cos(th) / 1.1
    return np.array([x + 0.02 * dx, dx + 0.02 * ddx, th + 0.02 * dth, dth + 0.02 * ddth])


class Ensemble(nn.Module):
    """Predicts the change of state. Every member sees the same candidates but other training batches."""

    def __init__(self, members, n_in, n_out, hidden):
        super().__init__()
        sizes = [n_in, hidden, hidden, n_out]
        layers = [[nn.Linear(i, o) for i, o in zip(sizes, sizes[1:])] for _ in range(members)]
        self.weight = nn.ParameterList(torch.stack([m[k].weight.detach().t() for m in layers]) for k in range(3))
        self.bias = nn.ParameterList(torch.stack([m[k].bias.detach() for m in layers])[:, None] for k in range(3))

    def forward(self, x):
        """x: (members, rows, n_in)"""
        (w1, w2, w3), (b1, b2, b3) = self.weight, self.bias
        x = F.silu(torch.baddbmm(b1, x, w1))
        x = F.silu(torch.baddbmm(b2, x, w2))
        return torch.baddbmm(b3, x, w3)


def cost(s):
    return s[..., 0] ** 2 + 10 * s[..., 2] ** 2 + 0.1 * s[..., 3] ** 2


class Planner:
    def __init__(self, model, args):
        self.model, self.args = model, args
        self.mean = torch.zeros(args.horizon)

    @torch.inference_mode()
    def plan(self, state, scale):
        a = self.args
        mean = torch.cat([self.mean[1:], torch.zeros(1)])
        std = torch.full((a.horizon,), 0.6)
        for _ in range(a.cem_rounds):
            acts = (mean + std * torch.randn(a.candidates, a.horizon)).clamp(-1, 1)
            s = torch.from_numpy(state).float().expand(a.members, a.candidates, 4)
            total = torch.zeros(a.members, a.candidates)
            for t in range(a.horizon):
                u = acts[:, t, None].expand(a.members, a.candidates, 1)
                s = s + self.model(torch.cat([s, u], -1)) * scale
                total += cost(s)
            best = acts[total.mean(0).topk(a.elites, largest=False).indices]
            mean, std = best.mean(0), best.std(0) + 0.05
        self.mean = mean
        return float(mean[0])


def main():
    args = tyro.cli(Args)
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    model = Ensemble(args.members, 5, 4, args.hidden)
    opt = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    planner = Planner(model, args)
    inputs, deltas = torch.zeros(args.steps, 5), torch.zeros(args.steps, 4)
    scale = torch.tensor([0.02, 0.2, 0.02, 0.3])
    s, t, updates, lengths = rng.uniform(-0.05, 0.05, 4), 0, 0, []
    for step in range(args.steps):
        if step == args.steps // 5:
            began = time.perf_counter()
        force = planner.plan(s, scale) if step > 64 else rng.uniform(-1, 1)
        s2 = physics(s, force)
        inputs[step] = torch.from_numpy(np.append(s, force))
        deltas[step] = torch.from_numpy(s2 - s) / scale
        s, t = s2, t + 1
        if abs(s[0]) > 2.4 or abs(s[2]) > 0.3 or t == 200:
            lengths.append(t)
            s, t = rng.uniform(-0.05, 0.05, 4), 0
            planner.mean = torch.zeros(args.horizon)
        if step >= 64 and step % args.train_every == 0:
            for _ in range(args.train_batches):
                idx = torch.from_numpy(rng.integers(0, step + 1, (args.members, args.batch)))
                loss = (model(inputs[idx]) - deltas[idx]).pow(2).mean((1, 2)).sum()
                opt.zero_grad()
                loss.backward()
                opt.step()
                updates += 1
        if step % 100 == 99:
            print(f"step {step + 1}: episodes {len(lengths)}, longest {max(lengths, default=t)}")
    rate = (args.steps - args.steps // 5) / (time.perf_counter() - began)
    check = sum(p.detach().double().abs().sum().item() for p in model.parameters())
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main()
