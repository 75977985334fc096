"""Clone the gait of a recorded dog robot with a causal transformer over the last 32 moments."""
import argparse
import json
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

JOINTS = 12


@dataclass
class Config:
    width: int = 192
    heads: int = 4
    layers: int = 3
    context: int = 32
    batch: int = 48
    lr: float = 4e-4


def record(n_runs, length, generator):
    """Joint angles and speeds of trotting dogs, and the torques of their controller."""
    phase = torch.tensor([0.0, 0.5, 0.5, 0.0]).repeat_interleave(3) * 6.283
    speed = 0.5 + torch.rand(n_runs, 1, 1, generator=generator)
    t = torch.arange(length).view(1, -1, 1) * 0.1
    angle = torch.sin(speed * t * 6.283 + phase) + 0.05 * torch.randn(n_runs, length, JOINTS, generator=generator)
    rate = torch.diff(angle, dim=1, prepend=angle[:, :1])
    torque = 2 * torch.sin(speed * (t + 0.1) * 6.283 + phase) - 2 * angle - 0.5 * rate
    return torch.cat([angle, rate], 2), torque.clamp(-1, 1)


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.norm1, self.norm2 = nn.LayerNorm(cfg.width), nn.LayerNorm(cfg.width)
        self.qkv = nn.Linear(cfg.width, 3 * cfg.width)
        self.out = nn.Linear(cfg.width, cfg.width)
        self.up, self.down = nn.Linear(cfg.width, 4 * cfg.width), nn.Linear(4 * cfg.width, cfg.width)

    def forward(self, x):
        rows, time_steps, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(rows, time_steps, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, time_steps, width))
        return x + self.down(F.relu(self.up(self.norm2(x))))


class Cloner(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.inp = nn.Linear(2 * JOINTS, cfg.width)
        self.pos = nn.Parameter(0.02 * torch.randn(cfg.context, cfg.width))
        self.blocks = nn.Sequential(*(Block(cfg) for _ in range(cfg.layers)))
        self.out = nn.Sequential(nn.LayerNorm(cfg.width), nn.Linear(cfg.width, JOINTS))

    def forward(self, seen):
        return self.out(self.blocks(self.inp(seen) + self.pos))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--runs", type=int, default=400)
    args = parser.parse_args()
    cfg = Config()
    torch.set_num_threads(1)
    torch.manual_seed(42)
    generator = torch.Generator().manual_seed(42)
    seen, torque = record(args.runs, 200, generator)
    window = torch.arange(cfg.context)
    model = Cloner(cfg)
    opt = torch.optim.AdamW(model.parameters(), cfg.lr, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, cfg.lr, total_steps=args.steps)
    total = torch.zeros(())
    for step in range(args.steps):
        if step == args.steps // 5:
            began = time.perf_counter()
        run = torch.randint(args.runs, (cfg.batch, 1), generator=generator)
        at = torch.randint(200 - cfg.context, (cfg.batch, 1), generator=generator) + window
        loss = F.mse_loss(model(seen[run, at]), torque[run, at])
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
        total += loss.detach()
        if step % 50 == 49:
            print(f"step {step + 1}: loss {total.item() / 50:.4f}")
            total.zero_()
    rate = (args.steps - args.steps // 5) / (time.perf_counter() - began)
    check = sum(p.detach().double().abs().sum().item() for p in model.parameters())
    print(json.dumps({"env_steps": None, "updates": args.steps, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main()
