# Exploration by episodic novelty (nearest neighbours in an episodic memory) with a small Q-network.
# The maze is continuous, the reward sparse.
import argparse
import json
import math
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

WALLS = [(-0.5, -1.0, -0.4, 0.6), (0.1, -0.6, 0.2, 1.0), (0.6, -1.0, 0.7, 0.4)]


class Maze:
    def reset(self):
        self.x, self.y, self.t = -0.9, -0.9, 0
        return self.x, self.y

    def step(self, a):
        angle = a * math.pi / 4
        x = min(1.0, max(-1.0, self.x + 0.06 * math.cos(angle)))
        y = min(1.0, max(-1.0, self.y + 0.06 * math.sin(angle)))
        if not any(x0 < x < x1 and y0 < y < y1 for x0, y0, x1, y1 in WALLS):
            self.x, self.y = x, y
        self.t += 1
        found = self.x > 0.85 and self.y < -0.85
        return (self.x, self.y), float(found), found or self.t >= 4000


class EpisodicMemory:
    def __init__(self, capacity, dim, k=10):
        self.keys = np.zeros((capacity, dim), np.float32)
        self.k, self.n = k, 0

    def clear(self):
        self.n = 0

    def bonus(self, key):
        """1 / sqrt of the summed similarity to the nearest keys; then remembers the key."""
        reward = 1.0
        if self.n > self.k:
            d2 = ((self.keys[: self.n] - key) ** 2).sum(1)
            nearest = np.sort(np.partition(d2, self.k)[: self.k])
            similarity = (0.001 / (nearest / (nearest.mean() + 1e-8) + 0.001)).sum()
            reward = 1.0 / math.sqrt(similarity + 1e-3)
        self.keys[self.n] = key
        self.n += 1
        return reward


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.out = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x):
        return self.out(F.relu(self.fc2(F.relu(self.fc1(x)))))


def embed(p):
    x, y = p
    return np.array(
        [x, y, x * y, x * x, y * y, math.sin(3 * x), math.sin(3 * y), math.cos(3 * x * y)], np.float32
    )


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=50000)
parser.add_argument("--train-every", type=int, default=8)
args = parser.parse_args()
random.seed(0)
np.random.seed(0)
torch.manual_seed(0)

maze, memory = Maze(), EpisodicMemory(4001, 8)
q, q_target = Net(), Net()
q_target.load_state_dict(q.state_dict())
optimizer = torch.optim.Adam(q.parameters(), lr=5e-4)
S = np.zeros((args.steps, 8), np.float32)
S2 = np.zeros((args.steps, 8), np.float32)
A = np.zeros(args.steps, np.int64)
R = np.zeros(args.steps, np.float32)
D = np.zeros(args.steps, np.float32)
s = embed(maze.reset())
updates = 0
for step in range(args.steps):
    if step == args.steps // 5:
        t0 = time.perf_counter()
    if random.random() < 0.5:
        a = random.randrange(8)
    else:
        with torch.no_grad():
            a = int(q(torch.from_numpy(s)).argmax())
    p, r, done = maze.step(a)
    s2 = embed(p)
    S[step], A[step], R[step], S2[step], D[step] = s, a, r + 0.1 * memory.bonus(s2), s2, done
    s = s2
    if done:
        memory.clear()
        s = embed(maze.reset())
    if step > 500 and step % args.train_every == 0:
        i = np.random.randint(0, step, 64)
        with torch.no_grad():
            y = torch.from_numpy(R[i]) + 0.99 * (1 - torch.from_numpy(D[i])) * q_target(
                torch.from_numpy(S2[i])
            ).amax(1)
        pred = q(torch.from_numpy(S[i])).gather(1, torch.from_numpy(A[i])[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(pred, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        updates += 1
        if updates % 100 == 0:
            q_target.load_state_dict(q.state_dict())
rate = (args.steps - args.steps // 5) / (time.perf_counter() - t0)
checksum = float(sum(w.double().sum() for w in q.parameters()))
print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))
