"""DAgger for a lane keeper: every epoch sees the camera pictures turned, brightened and blurred anew by a loader with workers."""
import argparse
import json
import time

import cv2
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

cv2.setNumThreads(1)
torch.set_num_threads(1)


class Road:
    """A winding lane seen from above by a car that drives at constant speed."""

    def __init__(self, seed, size=160):
        self.rng = np.random.default_rng(seed)
        self.size = size
        self.rows = np.arange(size)

    def reset(self):
        self.phase, self.bend = self.rng.uniform(0, 6.28), self.rng.uniform(0.5, 1.5)
        self.x, self.heading, self.t = self.rng.uniform(-0.3, 0.3), 0.0, 0
        return self.picture()

    def centre(self, ahead):
        return self.bend * np.sin(0.05 * (self.t + ahead) + self.phase)

    def picture(self):
        ahead = (self.size - self.rows) * 0.3
        mid = self.size / 2 + self.size / 5 * (self.centre(ahead) - self.x - 0.1 * self.heading * ahead)
        columns = np.arange(self.size)[None]
        lane = np.abs(columns - mid[:, None]) < self.size / 8
        stripe = (np.abs(columns - mid[:, None]) < 1.0) & ((self.rows[:, None] + self.t) % 12 < 6)
        frame = np.full((self.size, self.size), 60, np.uint8)
        frame[lane] = 140
        frame[stripe] = 255
        return frame

    def expert(self):
        return float(np.clip(1.5 * (self.centre(4.0) - self.x) - 0.8 * self.heading, -1.0, 1.0))

    def step(self, steer):
        self.t += 1
        self.heading = 0.9 * self.heading + 0.25 * steer
        self.x += 0.2 * self.heading
        off = abs(self.x - self.centre(0.0))
        return self.picture(), off, off > 1.5 or self.t >= 80


class Drives(Dataset):
    def __init__(self):
        self.pictures, self.labels = [], []

    def add(self, frame, label):
        self.pictures.append(frame)
        self.labels.append(label)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        frame, (turn, light, shift) = self.pictures[i], (2.0 * torch.rand(3) - 1.0).tolist()
        half = len(frame) / 2
        turned = cv2.warpAffine(frame, cv2.getRotationMatrix2D((half, half), 2.0 * turn, 1.0), frame.shape)
        lit = cv2.convertScaleAbs(turned, alpha=1.0 + 0.3 * light, beta=10.0 * shift)
        small = cv2.resize(cv2.GaussianBlur(lit, (5, 5), 0), (32, 32), interpolation=cv2.INTER_AREA)
        return small[None].astype(np.float32) / 255.0, np.float32(self.labels[i])


def make_net():
    return nn.Sequential(nn.Conv2d(1, 8, 5, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(), nn.Flatten(),
                         nn.Linear(16 * 36, 64), nn.ReLU(), nn.Linear(64, 1), nn.Tanh())


def steer_of(net, frame):
    small = cv2.resize(cv2.GaussianBlur(frame, (5, 5), 0), (32, 32), interpolation=cv2.INTER_AREA)
    with torch.no_grad():
        return float(net(torch.from_numpy(small[None, None].astype(np.float32) / 255.0)))


def fit(net, opt, drives, epochs, workers):
    loader = DataLoader(drives, batch_size=64, shuffle=True, num_workers=workers, persistent_workers=True)
    updates, total = 0, 0.0
    for _ in range(epochs):
        for frames, labels in loader:
            loss = (net(frames).squeeze(1) - labels).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
            updates += 1
    return updates, total / updates


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=6)
    ap.add_argument("--epochs", type=int, default=10)
    ap.add_argument("--drives", type=int, default=6)
    ap.add_argument("--workers", type=int, default=2)
    args = ap.parse_args()
    torch.manual_seed(31)
    road, drives, net = Road(31), Drives(), make_net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    updates, start, checksum, rng = 0, None, 0.0, np.random.default_rng(31)
    counted = 0
    for it in range(args.iterations):
        if it == max(1, args.iterations // 5):
            start, counted = time.perf_counter(), updates
        offs = []
        for _ in range(args.drives):
            frame, done = road.reset(), False
            while not done:
                label = road.expert()
                drives.add(frame, label)
                steer = label if it == 0 or rng.random() < 0.8 ** it else steer_of(net, frame)
                frame, off, done = road.step(steer)
                offs.append(off)
        count, loss = fit(net, opt, drives, args.epochs, args.workers)
        updates += count
        checksum += loss
        print(f"iteration {it}: {len(drives)} pictures, mean distance {np.mean(offs):.3f}, loss {loss:.4f}", flush=True)
    rate = (updates - counted) / (time.perf_counter() - start)
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
