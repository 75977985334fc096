"""Clone how people drive a forklift. Each line of the log is one moment: lidar, speed, load and the driver's commands."""
import argparse
import json
import math
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

BEAMS = 24


def write_log(path, n, seed):
    """Stands in for the recorder of the forklift."""
    rng = np.random.default_rng(seed)
    heading, speed, load = 0.0, 0.0, 0.0
    with open(path, "w") as f:
        for i in range(n):
            beams = 4 + 3 * np.sin(np.linspace(0, math.tau, BEAMS) + heading) + 0.3 * rng.standard_normal(BEAMS)
            free = beams[:12].mean() - beams[12:].mean()
            steer = float(np.clip(0.4 * free + 0.1 * rng.standard_normal(), -1, 1))
            gas = float(np.clip(beams.min() / 4 - speed + 0.1 * rng.standard_normal(), -1, 1))
            heading += 0.2 * steer
            speed = 0.9 * speed + 0.1 * gas
            load = 1.0 - load if rng.random() < 0.01 else load
            row = {"t": i / 10, "lidar": [round(float(b), 3) for b in beams], "speed": round(speed, 4), "load": load,
                   "driver": {"steer": round(steer, 4), "gas": round(gas, 4)}}
            f.write(json.dumps(row) + "\n")


def read_log(path):
    """Observations and commands of a recording, as two tensors."""
    obs, act = [], []
    with open(path) as f:
        for line in f:
            row = json.loads(line)
            obs.append([*row["lidar"], row["speed"], row["load"]])
            act.append([row["driver"]["steer"], row["driver"]["gas"]])
    return torch.tensor(obs), torch.tensor(act)


class Driver(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(BEAMS + 2, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2), nn.Tanh()
        )

    def forward(self, obs):
        return self.body(obs)


class Trainer:
    def __init__(self, logs, lr, batch_size):
        self.logs, self.batch_size = logs, batch_size
        self.net = Driver()
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=lr, weight_decay=1e-4, fused=True)
        self.updates = 0

    def batches(self):
        """One pass over all recordings, in random order."""
        for path in random.sample(self.logs, len(self.logs)):
            obs, act = read_log(path)
            for idx in torch.randperm(len(obs)).split(self.batch_size):
                yield obs[idx], act[idx]

    def epoch(self):
        total, n = torch.zeros(()), 0
        for obs, act in self.batches():
            loss = F.smooth_l1_loss(self.net(obs), act)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total += loss.detach()
            n += 1
        self.updates += n
        return total.item() / n, n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=60)
    ap.add_argument("--recordings", type=int, default=5)
    ap.add_argument("--rows", type=int, default=1200)
    ap.add_argument("--batch-size", type=int, default=128)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(2)
    random.seed(2)
    with tempfile.TemporaryDirectory() as tmp:
        logs = [Path(tmp) / f"shift_{i}.jsonl" for i in range(args.recordings)]
        for i, path in enumerate(logs):
            write_log(path, args.rows, i)
        trainer = Trainer(logs, args.lr, args.batch_size)
        done = 0
        for e in range(args.epochs):
            if e == args.epochs // 5:
                began, done = time.perf_counter(), 0
            loss, n = trainer.epoch()
            done += n
            if e % 5 == 0:
                print(f"epoch {e:3d}  loss {loss:.5f}")
        rate = done / (time.perf_counter() - began)
    check = sum(p.detach().double().abs().sum().item() for p in trainer.net.parameters())
    print(json.dumps({"env_steps": None, "updates": trainer.updates, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main()
