"""IQL on a fixed dataset of noisy pendulum play (offline RL)."""

import argparse
import json
import time
from itertools import islice

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


def make_dataset(n, seed):
    """Transitions of a damped swing-up controller with exploration noise."""
    rng = np.random.default_rng(seed)
    k = 200
    th, w = rng.uniform(-np.pi, np.pi, k), rng.uniform(-1, 1, k)
    cols = {name: [] for name in ("observations", "actions", "rewards", "next_observations", "terminals")}
    for t in range(n // k):
        obs = np.stack([np.cos(th), np.sin(th), w], 1)
        u = np.clip(np.sign(w) - 0.3 * th + rng.normal(0, 0.4, k), -1, 1)
        cost = ((th + np.pi) % (2 * np.pi) - np.pi) ** 2 + 0.1 * w**2 + 0.001 * u**2
        w = np.clip(w + (15 * np.sin(th) + 6 * u) * 0.05, -8, 8)
        th = th + 0.05 * w
        cols["observations"].append(obs)
        cols["actions"].append(u[:, None])
        cols["rewards"].append(-cost)
        cols["next_observations"].append(np.stack([np.cos(th), np.sin(th), w], 1))
        cols["terminals"].append(np.full(k, (t + 1) % 200 == 0))
    return {name: np.concatenate(parts).astype(np.float32) for name, parts in cols.items()}


class OfflineDataset(Dataset):
    def __init__(self, data):
        self.data = {k: torch.from_numpy(v) for k, v in data.items()}

    def __len__(self):
        return len(self.data["rewards"])

    def __getitem__(self, i):
        return {k: v[i] for k, v in self.data.items()}

    def __getitems__(self, idx):
        idx = torch.tensor(idx)
        return {k: v[idx] for k, v in self.data.items()}


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, o))


class IQL:
    def __init__(self, tau=0.7, beta=3.0, gamma=0.99):
        self.q, self.q_targ, self.v, self.pi = mlp(4, 2), mlp(4, 2), mlp(3, 1), mlp(3, 1)
        self.q_targ.load_state_dict(self.q.state_dict())
        self.tau, self.beta, self.gamma = tau, beta, gamma
        self.q_opt = torch.optim.Adam(self.q.parameters(), lr=3e-4)
        self.v_opt = torch.optim.Adam(self.v.parameters(), lr=3e-4)
        self.pi_opt = torch.optim.Adam(self.pi.parameters(), lr=3e-4)

    def update(self, b):
        oa = torch.cat([b["observations"], b["actions"]], 1)
        with torch.no_grad():
            q = self.q_targ(oa).min(1).values
        v = self.v(b["observations"]).squeeze(1)
        diff = q - v
        v_loss = (torch.where(diff > 0, self.tau, 1 - self.tau) * diff.pow(2)).mean()
        self.v_opt.zero_grad()
        v_loss.backward()
        self.v_opt.step()

        with torch.no_grad():
            next_v = self.v(b["next_observations"]).squeeze(1)
            y = b["rewards"] + self.gamma * (1 - b["terminals"]) * next_v
        q_loss = (self.q(oa) - y[:, None]).pow(2).mean()
        self.q_opt.zero_grad()
        q_loss.backward()
        self.q_opt.step()

        weight = (self.beta * diff.detach()).exp().clamp(max=100.0)
        mse = (torch.tanh(self.pi(b["observations"])) - b["actions"]).pow(2).sum(1)
        pi_loss = (weight * mse).mean()
        self.pi_opt.zero_grad()
        pi_loss.backward()
        self.pi_opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.q_targ.parameters()), list(self.q.parameters()), 0.005)
        return q_loss


def batches_forever(loader):
    while True:
        yield from loader


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--updates", type=int, default=1700)
    p.add_argument("--batch-size", type=int, default=256)
    p.add_argument("--seed", type=int, default=8)
    args = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    dataset = OfflineDataset(make_dataset(100_000, args.seed))
    shuffle = torch.Generator().manual_seed(args.seed)
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        generator=shuffle,
        collate_fn=lambda batch: batch,
    )
    algo = IQL()

    t0, i0 = time.perf_counter(), 0
    for i, batch in enumerate(islice(batches_forever(loader), args.updates)):
        if i == args.updates // 5:
            t0, i0 = time.perf_counter(), i
        q_loss = algo.update(batch)
        if i % 300 == 0:
            print(f"update {i}: q_loss {q_loss.item():.4f}")
    rate = (args.updates - i0) / (time.perf_counter() - t0)
    checksum = sum(
        p.detach().double().sum().item() for n in (algo.q, algo.v, algo.pi) for p in n.parameters()
    )
    print(json.dumps({"env_steps": None, "updates": args.updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
