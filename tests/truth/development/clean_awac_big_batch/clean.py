"""AWAC from a fixed log of a heating plant: data as tensors in memory, one index per batch, wide networks."""
import argparse
import copy
import json
import time

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)


def plant_log(n, seed):
    """Boiler, tank and house temperatures, outside weather, price of gas; the old controller's action."""
    rng = np.random.default_rng(seed)
    houses = 200
    state = rng.normal(size=(houses, 10)).astype(np.float32)
    mix = (0.9 * np.eye(10) + 0.08 * rng.normal(size=(10, 10)) / np.sqrt(10)).astype(np.float32)
    push = (rng.normal(size=(3, 10)) * 0.3).astype(np.float32)
    S, A, R, N = [], [], [], []
    for _ in range(n // houses):
        act = np.tanh(state[:, :3] * -0.6 + 0.5 * rng.normal(size=(houses, 3))).astype(np.float32)
        nxt = np.tanh(state @ mix + act @ push) + 0.05 * rng.normal(size=(houses, 10)).astype(np.float32)
        S.append(state)
        A.append(act)
        R.append(-(nxt[:, :4] ** 2).sum(1) - 0.1 * (act ** 2).sum(1))
        N.append(nxt.astype(np.float32))
        state = N[-1]
    return [torch.from_numpy(np.concatenate(z).astype(np.float32)) for z in (S, A, R, N)]


def mlp(i, o, h):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, o))


class AWAC:
    def __init__(self, width, lr, lam):
        self.q, self.pi = mlp(13, 1, width), mlp(10, 3, width)
        self.q_target = copy.deepcopy(self.q).requires_grad_(False)
        self.opt = torch.optim.Adam([*self.q.parameters(), *self.pi.parameters()], lr=lr, fused=True)
        self.slow, self.fast = list(self.q_target.parameters()), list(self.q.parameters())
        self.lam = lam

    def losses(self, s, a, r, s2):
        with torch.no_grad():
            a2 = torch.tanh(self.pi(s2))
            y = r + 0.98 * self.q_target(torch.cat([s2, a2], 1)).squeeze(1)
        q = self.q(torch.cat([s, a], 1)).squeeze(1)
        mean = torch.tanh(self.pi(s))
        with torch.no_grad():
            v = self.q_target(torch.cat([s, mean], 1)).squeeze(1)
            weight = torch.softmax((q - v) / self.lam, 0) * len(s)
        return ((q - y) ** 2).mean(), (weight.clamp(max=20.0) * ((mean - a) ** 2).sum(1)).mean()

    def update(self, *batch):
        lq, lpi = self.losses(*batch)
        self.opt.zero_grad()
        (lq + lpi).backward()
        self.opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.slow, self.fast, 0.01)
        return lq.detach(), lpi.detach()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=200)
    ap.add_argument("--batch", type=int, default=1024)
    ap.add_argument("--width", type=int, default=384)
    args = ap.parse_args()
    torch.manual_seed(20)
    S, A, R, N = plant_log(60000, 20)
    agent = AWAC(args.width, 3e-4, 1.0)
    seen_q, seen_pi, t0 = torch.zeros(()), torch.zeros(()), None
    for u in range(args.updates):
        if u == args.updates // 5:
            t0 = time.perf_counter()
        i = torch.randint(len(S), (args.batch,))
        lq, lpi = agent.update(S[i], A[i], R[i], N[i])
        seen_q += lq
        seen_pi += lpi
        if (u + 1) % 50 == 0:
            print(f"update {u + 1}: critic {seen_q.item() / 50:.4f}, policy {seen_pi.item() / 50:.4f}")
            seen_q.zero_()
            seen_pi.zero_()
    rate = (args.updates - args.updates // 5) / (time.perf_counter() - t0)
    print(json.dumps({"env_steps": 0, "updates": args.updates, "units_per_s": rate, "checksum": lq.item() + lpi.item()}))


if __name__ == "__main__":
    main()
