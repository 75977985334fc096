"""Imitate couriers: a GRU learns from recorded rides which way the expert turns next (behaviour cloning).

Rides differ in length. Most last a few dozen steps, a few got lost and lasted very long.
"""
import argparse
import json
import time

import numpy as np
import torch
from torch import nn

FEATURES, TURNS = 12, 4


def record_rides(count, rng, longest):
    """Expert rides on a grid city: heads for the address, sometimes blocked, sometimes distracted."""
    rides = []
    for _ in range(count):
        lost = rng.random() < 0.006
        steps = int(rng.integers(longest // 2, longest)) if lost else int(rng.integers(12, 49))
        position, address = rng.uniform(-1, 1, 2), rng.uniform(-1, 1, 2)
        features = np.zeros((steps, FEATURES), np.float32)
        turns = np.zeros(steps, np.int64)
        noise = rng.normal(size=(steps, FEATURES - 4)).astype(np.float32)
        blocked = rng.random(steps) < 0.15
        for t in range(steps):
            gap = address - position
            features[t, :2], features[t, 2], features[t, 3] = gap, blocked[t], t / longest
            axis = int(abs(gap[1]) > abs(gap[0])) ^ int(blocked[t])
            turns[t] = 2 * axis + int(gap[axis] > 0)
            position[axis] += 0.08 * np.sign(gap[axis])
        features[:, 4:] = noise
        rides.append((torch.from_numpy(features), torch.from_numpy(turns)))
    return rides


def pad_rides(rides):
    length = max(len(turns) for _, turns in rides)
    x = torch.zeros(len(rides), length, FEATURES)
    y = torch.full((len(rides), length), -1)
    for i, (features, turns) in enumerate(rides):
        x[i, :len(turns)] = features
        y[i, :len(turns)] = turns
    return x, y


class CourierNet(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.inp = nn.Linear(FEATURES, hidden)
        self.memory = nn.GRU(hidden, hidden, batch_first=True)
        self.out = nn.Linear(hidden, TURNS)

    def forward(self, x):
        h, _ = self.memory(torch.relu(self.inp(x)))
        return self.out(h)


def accuracy(net, x, y):
    with torch.no_grad():
        guess = net(x).argmax(dim=-1)
    known = y >= 0
    return (guess[known] == y[known]).float().mean().item()


parser = argparse.ArgumentParser()
parser.add_argument("--rides", type=int, default=2000)
parser.add_argument("--longest", type=int, default=240)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch", type=int, default=24)
parser.add_argument("--hidden", type=int, default=64)
parser.add_argument("--seed", type=int, default=17)
args = parser.parse_args()

rng = np.random.default_rng(args.seed)
torch.manual_seed(args.seed)
all_rides = record_rides(args.rides, rng, args.longest)
held_back = max(24, args.rides // 50)
train_x, train_y = pad_rides(all_rides[held_back:])
test_x, test_y = pad_rides(all_rides[:held_back])
model = CourierNet(args.hidden)
optimiser = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
per_epoch = len(train_x) // args.batch
total, done = per_epoch * args.epochs, 0
print(f"{len(train_x)} rides, mean length {(train_y >= 0).sum().item() / len(train_y):.1f}, padded to {train_x.shape[1]}")

for epoch in range(args.epochs):
    order = torch.randperm(len(train_x))
    for k in range(per_epoch):
        if done == total // 5:
            tick = time.perf_counter()
        chosen = order[k * args.batch:(k + 1) * args.batch]
        x, y = train_x[chosen], train_y[chosen]
        logits = model(x)
        loss = nn.functional.cross_entropy(logits.reshape(-1, TURNS), y.reshape(-1), ignore_index=-1)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        done += 1
    if epoch % 2 == 0:
        print(f"epoch {epoch:3d} loss {loss.item():.3f} held-back accuracy {accuracy(model, test_x, test_y):.3f}")

speed = (total - total // 5) / (time.perf_counter() - tick)
checksum = sum(p.detach().double().abs().sum().item() for p in model.parameters())
print(json.dumps({"env_steps": None, "updates": done, "units_per_s": speed, "checksum": round(checksum, 2)}))
