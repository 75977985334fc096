"""Behaviour cloning from 200,000 expert samples that fit into memory: batches are slices of a shuffled tensor."""

import json
import time
from argparse import ArgumentParser

import torch
import torch.nn as nn


def expert_data(n, generator):
    x = torch.randn(n, 24, generator=generator)
    w = torch.randn(24, 3, generator=generator) / 5
    return x, torch.tanh(x @ w + 0.3 * torch.sin(2 * x[:, :3]))


class Cloner:
    def __init__(self, lr):
        self.net = nn.Sequential(
            nn.Linear(24, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3)
        )
        self.opt = torch.optim.Adam(self.net.parameters(), lr=lr, fused=True)
        self.updates = 0

    def epoch(self, x, y, batch):
        order = torch.randperm(len(x))
        total = torch.zeros(())
        for pick in order.split(batch):
            loss = (self.net(x[pick]) - y[pick]).square().mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total += loss.detach()
            self.updates += 1
        return total / len(order.split(batch))


if __name__ == "__main__":
    args = ArgumentParser()
    args.add_argument("--epochs", type=int, default=10)
    args.add_argument("--batch", type=int, default=512)
    args = args.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = expert_data(200_000, torch.Generator().manual_seed(0))
    cloner = Cloner(3e-4)
    stamps = [time.perf_counter()]
    for epoch in range(args.epochs):
        loss = cloner.epoch(x, y, args.batch)
        print(f"epoch {epoch} loss {loss:.5f}")
        stamps.append(time.perf_counter())
    first = args.epochs // 5
    speed = (args.epochs - first) / (stamps[-1] - stamps[first])
    total = float(sum(p.double().sum() for p in cloner.net.parameters()))
    print(json.dumps({"env_steps": None, "updates": cloner.updates, "units_per_s": speed, "checksum": total}))
