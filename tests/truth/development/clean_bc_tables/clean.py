"""Behaviour cloning with a mixture of Gaussians from a dataset that fits into memory."""

import argparse
import json
import math
import time

import torch
from torch import nn

N_OBS, N_ACT, K = 48, 6, 4


class MixturePolicy(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(N_OBS, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, K * (2 * N_ACT + 1)),
        )

    def log_prob(self, obs, act):
        out = self.net(obs)
        logits, mu, log_std = out.split((K, K * N_ACT, K * N_ACT), -1)
        log_std = log_std.view(-1, K, N_ACT).clamp(-4, 1)
        z = (act[:, None] - mu.view(-1, K, N_ACT)) * torch.exp(-log_std)
        each = (-0.5 * z * z - log_std).sum(-1) - 0.5 * N_ACT * math.log(2 * math.pi)
        return torch.logsumexp(torch.log_softmax(logits, -1) + each, -1)


def demonstrations(n):
    obs = torch.randn(n, N_OBS)
    expert = torch.tanh(obs @ torch.randn(N_OBS, N_ACT) / 4)
    side = (torch.rand(n, 1) < 0.5).float() * 2 - 1
    return obs, expert * side + 0.05 * torch.randn(n, N_ACT)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=10)
    ap.add_argument("--samples", type=int, default=100_000)
    ap.add_argument("--batch", type=int, default=1024)
    ap.add_argument("--hidden", type=int, default=512)
    args = ap.parse_args()
    torch.manual_seed(0)
    obs, act = demonstrations(args.samples)
    policy = MixturePolicy(args.hidden)
    opt = torch.optim.AdamW(policy.parameters(), lr=3e-4, fused=True)
    per_epoch = args.samples // args.batch
    skip, updates = args.epochs * per_epoch // 5, 0
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for batch in torch.randperm(args.samples)[: per_epoch * args.batch].split(args.batch):
            if updates == skip:
                start = time.perf_counter()
            loss = -policy.log_prob(obs[batch], act[batch]).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.detach()
            updates += 1
        print(f"epoch {epoch}: {total.item() / per_epoch:.4f}")
    rate = (updates - skip) / (time.perf_counter() - start)
    checksum = float(sum(p.double().sum() for p in policy.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
