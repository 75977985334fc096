"""Causal transformer that imitates an adaptive expert over many bandit-like tasks (algorithm distillation in small)."""
import argparse
import json
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Shape:
    arms: int = 8
    length: int = 64
    width: int = 128
    heads: int = 4
    depth: int = 2


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c.heads
        self.n1, self.n2 = nn.LayerNorm(c.width), nn.LayerNorm(c.width)
        self.qkv, self.proj = nn.Linear(c.width, 3 * c.width), nn.Linear(c.width, c.width)
        self.ff = nn.Sequential(nn.Linear(c.width, 4 * c.width), nn.ReLU(), nn.Linear(4 * c.width, c.width))

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, w))
        return x + self.ff(self.n2(x))


class Policy(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.token = nn.Linear(c.arms + 1, c.width)
        self.place = nn.Parameter(0.02 * torch.randn(c.length, c.width))
        self.blocks = nn.Sequential(*[Block(c) for _ in range(c.depth)])
        self.head = nn.Linear(c.width, c.arms)

    def forward(self, x):
        return self.head(self.blocks(self.token(x) + self.place))


def histories(n, c, gen):
    """Thompson sampling on n tasks at once: tokens (last arm, last reward) and the arm the expert pulls next."""
    p = torch.rand(n, c.arms, generator=gen)
    wins, losses = torch.ones(n, c.arms), torch.ones(n, c.arms)
    tokens, labels = torch.zeros(n, c.length, c.arms + 1), torch.zeros(n, c.length, dtype=torch.long)
    rows = torch.arange(n)
    for t in range(c.length):
        mean = wins / (wins + losses)
        spread = (mean * (1 - mean) / (wins + losses + 1)).sqrt()
        arm = (mean + spread * torch.randn(n, c.arms, generator=gen)).argmax(1)
        labels[:, t] = arm
        reward = (torch.rand(n, generator=gen) < p[rows, arm]).float()
        wins[rows, arm] += reward
        losses[rows, arm] += 1 - reward
        if t + 1 < c.length:
            tokens[rows, t + 1, arm] = 1.0
            tokens[:, t + 1, -1] = reward
    return tokens, labels


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--updates", type=int, default=95)
    cli.add_argument("--batch", type=int, default=32)
    cli.add_argument("--tasks", type=int, default=2000)
    args = cli.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(33)
    gen = torch.Generator().manual_seed(33)
    shape = Shape()
    tokens, labels = histories(args.tasks, shape, gen)
    net = Policy(shape)
    opt = torch.optim.AdamW(net.parameters(), 1e-3, fused=True)
    for k in range(args.updates):
        if k == args.updates // 5:
            t0 = time.perf_counter()
        i = torch.randint(0, args.tasks, (args.batch,), generator=gen)
        loss = F.cross_entropy(net(tokens[i]).flatten(0, 1), labels[i].flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if k % 20 == 0:
            print("update", k, "loss", round(loss.item(), 4))
    rate = (args.updates - args.updates // 5) / (time.perf_counter() - t0)
    print(json.dumps({"env_steps": None, "updates": args.updates, "units_per_s": rate,
                      "checksum": sum(p.detach().double().sum().item() for p in net.parameters())}))
