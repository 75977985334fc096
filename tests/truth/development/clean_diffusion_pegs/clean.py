"""Diffusion policy (DDPM over action chunks) cloned from logged peg insertions, state observations."""
import argparse
import json
import math
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def record_demos(n, length, rng):
    """Demonstrators go around the peg board on the left or on the right, then down into the hole."""
    side = rng.choice([-1.0, 1.0], n)
    pos = rng.normal(0, 0.1, (n, 2)) + np.array([0.0, 2.0])
    hole = rng.uniform(-0.5, 0.5, (n, 1))
    obs, act = np.zeros((n, length, 4), np.float32), np.zeros((n, length, 2), np.float32)
    for t in range(length):
        progress = t / length
        goal = np.where(progress < 0.5, np.stack([side * 1.2, np.full(n, 1.0)], 1), np.concatenate([hole, np.zeros((n, 1))], 1))
        a = np.clip(2.0 * (goal - pos) + rng.normal(0, 0.1, (n, 2)), -1, 1)
        obs[:, t] = np.concatenate([pos, hole, np.full((n, 1), progress)], 1)
        act[:, t] = a
        pos = pos + 0.1 * a
    return torch.from_numpy(obs), torch.from_numpy(act)


class Denoiser(nn.Module):
    def __init__(self, obs_dim, chunk_dim, width, steps):
        super().__init__()
        half = 16
        freq = torch.exp(-math.log(1000.0) * torch.arange(half) / half)
        phase = torch.arange(steps)[:, None] * freq
        self.register_buffer("time_features", torch.cat([phase.sin(), phase.cos()], 1))
        self.inp = nn.Linear(obs_dim + chunk_dim + 2 * half, width)
        self.hidden = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.out = nn.Linear(width, chunk_dim)

    def forward(self, obs, noisy, k):
        h = self.inp(torch.cat([obs, noisy, self.time_features[k]], -1))
        for layer in self.hidden:
            h = h + layer(F.mish(h))
        return self.out(F.mish(h))


class DDPM:
    def __init__(self, steps):
        beta = torch.linspace(1e-4, 0.1, steps)
        self.steps, self.beta, self.alpha = steps, beta, 1 - beta
        self.bar = torch.cumprod(self.alpha, 0)
        self.sqrt_bar, self.sqrt_rest = self.bar.sqrt(), (1 - self.bar).sqrt()

    def loss(self, net, obs, chunk):
        k = torch.randint(self.steps, (obs.shape[0],))
        noise = torch.randn_like(chunk)
        noisy = self.sqrt_bar[k, None] * chunk + self.sqrt_rest[k, None] * noise
        return F.mse_loss(net(obs, noisy, k), noise)

    @torch.no_grad()
    def sample(self, net, obs, dim):
        x = torch.randn(obs.shape[0], dim)
        for k in reversed(range(self.steps)):
            eps = net(obs, x, torch.full((obs.shape[0],), k))
            x = (x - self.beta[k] / self.sqrt_rest[k] * eps) / self.alpha[k].sqrt()
            if k:
                x = x + self.beta[k].sqrt() * torch.randn_like(x)
        return x


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=6)
    p.add_argument("--demos", type=int, default=800)
    p.add_argument("--length", type=int, default=60)
    p.add_argument("--chunk", type=int, default=8)
    p.add_argument("--width", type=int, default=256)
    p.add_argument("--diffusion-steps", type=int, default=32)
    p.add_argument("--batch-size", type=int, default=512)
    p.add_argument("--updates", type=int, default=20_000)
    p.add_argument("--lr", type=float, default=5e-4)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    obs, act = record_demos(args.demos, args.length, np.random.default_rng(args.seed))
    chunks = act.unfold(1, args.chunk, 1).transpose(2, 3)  # (demos, starts, chunk, 2)
    starts = chunks.shape[1]
    obs = obs[:, :starts].reshape(-1, obs.shape[-1])
    chunks = chunks.reshape(obs.shape[0], -1).contiguous()
    held_out = obs.shape[0] // 10

    net, ddpm = Denoiser(obs.shape[1], chunks.shape[1], args.width, args.diffusion_steps), DDPM(args.diffusion_steps)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=1e-5, fused=True)
    running, mark, mark_at = torch.zeros(()), None, args.updates // 5
    for i in range(args.updates):
        if i == mark_at:
            mark = time.perf_counter()
        idx = torch.randint(held_out, obs.shape[0], (args.batch_size,))
        loss = ddpm.loss(net, obs[idx], chunks[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss.detach()
        if (i + 1) % 100 == 0:
            print(f"update {i + 1}: denoising loss {running.item() / 100:.4f}")
            running.zero_()
    speed = (args.updates - mark_at) / (time.perf_counter() - mark)
    sampled = ddpm.sample(net, obs[:256], chunks.shape[1])
    print(f"distance of sampled chunks to held-out ones: {F.l1_loss(sampled, chunks[:256]).item():.3f}")
    checksum = sum(w.detach().double().abs().sum().item() for w in net.parameters())
    print(json.dumps({"env_steps": 0, "updates": args.updates, "units_per_s": speed, "checksum": checksum}))


if __name__ == "__main__":
    main()
