"""Off-policy REINFORCE for a recommender: a user tower and a table of item vectors, trained on logged slates.

Each log entry holds the user's last clicks, the item that was shown, the probability with which the old system
showed it and whether it was clicked. The policy is a softmax over the shown item and sampled competitors.
"""
from __future__ import annotations

import argparse
import json
import math
import time

import numpy as np
import torch
from torch import Tensor, nn


class LogReader:
    """Makes a synthetic log: items and users live in a small taste space."""

    def __init__(self, n_items: int, n_rows: int, history: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        taste = rng.normal(size=(n_items, 6)).astype(np.float32)
        popularity = 1.0 / np.arange(1, n_items + 1) ** 0.6
        popularity /= popularity.sum()
        cumulative = popularity.cumsum()
        self.clicks = np.searchsorted(cumulative, rng.random((n_rows, history))).clip(max=n_items - 1)
        self.shown = np.searchsorted(cumulative, rng.random(n_rows)).clip(max=n_items - 1)
        self.propensity = (popularity[self.shown] * n_items).astype(np.float32)
        affinity = (taste[self.clicks].mean(axis=1) * taste[self.shown]).sum(axis=1)
        self.clicked = (rng.random(n_rows) < 1 / (1 + np.exp(1.0 - 2.0 * affinity))).astype(np.float32)
        self.rng, self.n_items, self.n_rows = rng, n_items, n_rows

    def batch(self, size: int, competitors: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows = self.rng.integers(0, self.n_rows, size=size)
        others = self.rng.integers(0, self.n_items, size=(size, competitors))
        slate = np.concatenate([self.shown[rows, None], others], axis=1)
        return (torch.from_numpy(self.clicks[rows]), torch.from_numpy(slate),
                torch.from_numpy(self.propensity[rows]), torch.from_numpy(self.clicked[rows]))


class TwoTower(nn.Module):
    def __init__(self, n_items: int, dim: int) -> None:
        super().__init__()
        self.items = nn.Embedding(n_items, dim, sparse=True)
        nn.init.normal_(self.items.weight, std=1 / math.sqrt(dim))
        self.user = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, dim))

    def forward(self, clicks: Tensor, slate: Tensor) -> Tensor:
        who = self.user(self.items(clicks).mean(dim=1))
        return torch.bmm(self.items(slate), who.unsqueeze(2)).squeeze(2)


def corrected_loss(scores: Tensor, propensity: Tensor, clicked: Tensor, cap: float) -> Tensor:
    log_pi = torch.log_softmax(scores, dim=1)[:, 0]
    with torch.no_grad():
        weight = (log_pi.exp() * scores.shape[1] / propensity).clamp(max=cap)
        advantage = clicked - clicked.mean()
    return -(weight * advantage * log_pi).mean()


def train(opts: argparse.Namespace) -> dict:
    torch.manual_seed(opts.seed)
    log = LogReader(opts.items, opts.rows, opts.history, opts.seed)
    model = TwoTower(opts.items, opts.dim)
    optimizers = [torch.optim.SparseAdam(model.items.parameters(), lr=opts.lr),
                  torch.optim.Adam(model.user.parameters(), lr=opts.lr, fused=True)]
    warm, since, running = opts.batches // 5, 0.0, 0.0
    for b in range(opts.batches):
        if b == warm:
            since = time.perf_counter()
        clicks, slate, propensity, clicked = log.batch(opts.batch_size, opts.competitors)
        loss = corrected_loss(model(clicks, slate), propensity, clicked, opts.cap)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        running += 0.01 * (loss.item() - running)
        if b % 250 == 0:
            print(f"batch {b:6d}  loss {running:.5f}")
    speed = (opts.batches - warm) / (time.perf_counter() - since)
    checksum = sum(float(p.detach().double().abs().sum()) for p in model.user.parameters())
    return {"env_steps": None, "updates": opts.batches, "units_per_s": speed, "checksum": round(checksum, 4)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=160_000)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--history", type=int, default=8)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--competitors", type=int, default=31)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--cap", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=5)
    print(json.dumps(train(parser.parse_args())))
