"""Behaviour cloning of a steering controller from recorded laps."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split


class Laps(Dataset):
    """Observations of a track-following expert: curvature ahead, offset, heading, speed."""

    def __init__(self, n, seed):
        g = np.random.default_rng(seed)
        self.x = g.normal(size=(n, 16)).astype(np.float32)
        steer = np.tanh(self.x[:, :8] @ g.normal(size=8) / 3 - 0.8 * self.x[:, 8] - 0.3 * self.x[:, 9])
        gas = np.clip(1 - np.abs(steer) - 0.2 * self.x[:, 10], 0, 1)
        self.y = np.stack([steer, gas], 1).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Steering(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)
        )

    def forward(self, x):
        return self.net(x)


def run_epoch(model, loader, loss_fn, opt):
    total = 0.0
    for x, y in loader:
        loss = loss_fn(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.detach()
    return float(total) / len(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--samples", type=int, default=2400)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train, _val = random_split(Laps(args.samples, 0), [0.9, 0.1])
    train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, num_workers=2, drop_last=True)
    model = Steering()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.SmoothL1Loss()
    start = None
    for epoch in range(args.epochs):
        if epoch == args.epochs // 5:
            start = time.perf_counter()
        run_epoch(model, train_loader, loss_fn, opt)
    speed = (args.epochs - args.epochs // 5) / (time.perf_counter() - start)
    result = {"env_steps": None, "updates": args.epochs * len(train_loader), "units_per_s": speed}
    result["checksum"] = float(sum(p.double().sum() for p in model.parameters()))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
