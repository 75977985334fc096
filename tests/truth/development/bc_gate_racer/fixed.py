"""Behaviour cloning for a racing drone from small grey camera frames, with image augmentation."""
import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def render_gates(n, size, rng):
    """Frames with one square gate of random place, size and brightness; the expert steers towards its centre."""
    cx, cy = rng.uniform(-0.7, 0.7, (2, n))
    half = rng.uniform(0.15, 0.5, n)
    grid = np.linspace(-1, 1, size)
    dx = np.abs(grid[None, None, :] - cx[:, None, None])
    dy = np.abs(grid[None, :, None] - cy[:, None, None])
    ring = np.maximum(dx, dy) - half[:, None, None]
    frames = np.exp(-((ring / 0.06) ** 2)) * rng.uniform(0.4, 1.0, (n, 1, 1))
    frames += rng.normal(0, 0.05, frames.shape)
    speed = np.clip(half * 2, 0, 1)
    command = np.stack([np.tanh(2 * cx), np.tanh(2 * cy), speed], 1)
    frames = (np.clip(frames, 0, 1) * 255).astype(np.uint8)
    return torch.from_numpy(frames).unsqueeze(1), torch.from_numpy(command.astype(np.float32))


class Augment:
    """Random shift, contrast and brightness, standardisation, cutout; different for every frame."""

    def __init__(self, pad=3, contrast=0.3, brightness=0.15, hole=6):
        self.pad, self.contrast, self.brightness, self.hole = pad, contrast, brightness, hole

    def __call__(self, frames):
        b, _, h, w = frames.shape
        shift = torch.randint(2 * self.pad + 1, (b, 2))
        contrast = 1 + self.contrast * (2 * torch.rand(b) - 1)
        brightness = self.brightness * (2 * torch.rand(b) - 1)
        corner = torch.randint(h - self.hole, (b, 2))
        padded = F.pad(frames, (self.pad,) * 4, mode="replicate")
        windows = padded.unfold(2, h, 1).unfold(3, w, 1)
        out = windows[torch.arange(b), :, shift[:, 0], shift[:, 1]]
        out = (out * contrast.view(b, 1, 1, 1) + brightness.view(b, 1, 1, 1)).clamp(0.0, 1.0)
        std, mean = torch.std_mean(out, (1, 2, 3), keepdim=True)
        out = (out - mean) / (std + 1e-3)
        y, x = torch.arange(h), torch.arange(w)
        in_y = (y >= corner[:, :1]) & (y < corner[:, :1] + self.hole)
        in_x = (x >= corner[:, 1:]) & (x < corner[:, 1:] + self.hole)
        hole = in_y.view(b, 1, h, 1) & in_x.view(b, 1, 1, w)
        return out.masked_fill(hole, 0.0)


class Pilot(nn.Module):
    def __init__(self, size, width):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, 6, stride=4, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten()
        )
        self.head = nn.Sequential(nn.Linear(16 * (size // 8) ** 2, width), nn.ReLU(), nn.Linear(width, 3))

    def forward(self, frames):
        return self.head(self.conv(frames))


@torch.no_grad()
def validate(pilot, frames, commands):
    frames = frames.float().div(255.0)
    std, mean = torch.std_mean(frames, (1, 2, 3), keepdim=True)
    return F.mse_loss(pilot((frames - mean) / (std + 1e-3)), commands).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=2)
    p.add_argument("--frames", type=int, default=6400)
    p.add_argument("--val-frames", type=int, default=500)
    p.add_argument("--size", type=int, default=24)
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--epochs", type=int, default=60)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    frames, commands = render_gates(args.frames, args.size, rng)
    val_frames, val_commands = render_gates(args.val_frames, args.size, rng)

    pilot, augment = Pilot(args.size, args.width), Augment()
    optimizer = torch.optim.AdamW(pilot.parameters(), lr=args.lr, fused=True)
    per_epoch = args.frames // args.batch_size
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * per_epoch)
    updates, mark, mark_at = 0, None, args.epochs * per_epoch // 5
    for epoch in range(args.epochs):
        order = torch.randperm(args.frames)
        total = torch.zeros(())
        for k in range(per_epoch):
            if updates == mark_at:
                mark = time.perf_counter()
            idx = order[k * args.batch_size : (k + 1) * args.batch_size]
            batch = augment(frames[idx].float().div(255.0))
            loss = F.mse_loss(pilot(batch), commands[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            updates += 1
            total += loss.detach()
        print(f"epoch {epoch + 1}: train {total.item() / per_epoch:.4f}  validation {validate(pilot, val_frames, val_commands):.4f}")
    speed = (updates - mark_at) / (time.perf_counter() - mark)
    checksum = sum(w.detach().double().abs().sum().item() for w in pilot.parameters())
    print(json.dumps({"env_steps": 0, "updates": updates, "units_per_s": speed, "checksum": checksum}))


if __name__ == "__main__":
    main()
