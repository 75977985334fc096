"""Soft Q-learning for a tiny snake."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE = 6
DIRS = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]])


class Snake:
    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.body = [(SIZE // 2, SIZE // 2)]
        self.place_food()
        self.hunger = 0
        return self.encode()

    def place_food(self):
        free = [(r, c) for r in range(SIZE) for c in range(SIZE) if (r, c) not in self.body]
        self.food = free[int(self.rng.integers(len(free)))]

    def encode(self):
        grid = np.zeros((2, SIZE, SIZE), dtype=np.float32)
        for r, c in self.body:
            grid[0, r, c] = 0.5
        grid[0][self.body[0]] = 1.0
        grid[1][self.food] = 1.0
        return grid.reshape(-1)

    def step(self, action):
        head = (self.body[0][0] + int(DIRS[action][0]), self.body[0][1] + int(DIRS[action][1]))
        if not (0 <= head[0] < SIZE and 0 <= head[1] < SIZE) or head in self.body:
            return self.encode(), -1.0, True
        self.body.insert(0, head)
        self.hunger += 1
        if head == self.food:
            self.hunger = 0
            if len(self.body) == SIZE * SIZE:
                return self.encode(), 1.0, True
            self.place_food()
            return self.encode(), 1.0, False
        self.body.pop()
        return self.encode(), 0.0, self.hunger > 40


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--max_steps", type=int, default=5000)
    p.add_argument("--temperature", type=float, default=0.1)
    args = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(13)
    rng = np.random.default_rng(13)
    env = Snake(rng)
    dim = 2 * SIZE * SIZE
    q = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, 4))
    slow_q = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, 4))
    slow_q.load_state_dict(q.state_dict())
    opt = torch.optim.Adam(q.parameters(), lr=5e-4)
    S, S2 = np.zeros((args.max_steps, dim), np.float32), np.zeros((args.max_steps, dim), np.float32)
    A, R, D = (
        np.zeros(args.max_steps, np.int64),
        np.zeros(args.max_steps, np.float32),
        np.zeros(args.max_steps, np.float32),
    )
    s, updates = env.reset(), 0
    for i in range(args.max_steps):
        if i == args.max_steps // 5:
            t0 = time.perf_counter()
        with torch.inference_mode():
            prob = F.softmax(q(torch.from_numpy(s)) / args.temperature, -1).numpy()
        a = int(np.searchsorted(np.cumsum(prob), rng.random()).clip(0, 3))
        s2, r, d = env.step(a)
        S[i], A[i], R[i], S2[i], D[i] = s, a, r, s2, d
        s = s2
        if d:
            s = env.reset()
        if i >= 200:
            idx = rng.integers(0, i + 1, 64)
            with torch.no_grad():
                soft = args.temperature * torch.logsumexp(
                    slow_q(torch.from_numpy(S2[idx])) / args.temperature, 1
                )
                y = torch.from_numpy(R[idx]) + 0.95 * (1 - torch.from_numpy(D[idx])) * soft
            loss = F.mse_loss(
                q(torch.from_numpy(S[idx])).gather(1, torch.from_numpy(A[idx])[:, None]).squeeze(1), y
            )
            opt.zero_grad()
            loss.backward()
            opt.step()
            updates += 1
            if updates % 200 == 0:
                slow_q.load_state_dict(q.state_dict())
    speed = (args.max_steps - args.max_steps // 5) / (time.perf_counter() - t0)
    print(
        json.dumps(
            {
                "env_steps": None,
                "updates": updates,
                "units_per_s": speed,
                "checksum": float(sum(p.double().sum() for p in q.parameters())),
            }
        )
    )


if __name__ == "__main__":
    main()
