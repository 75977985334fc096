# Chase a dot, from pixels. Frames are drawn large for the videos and shrunk for the network.
import argparse
import json
import time

import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--frames", type=int, default=9000)
parser.add_argument("--scale", type=int, default=6)
args = parser.parse_args()

SIDE = 48
BIG = SIDE * args.scale
torch.set_num_threads(1)
torch.manual_seed(0)
rng = np.random.default_rng(0)


class Chase:
    moves = np.array([[0, 3], [3, 0], [0, -3], [-3, 0]])

    def reset(self):
        self.me, self.dot = rng.integers(4, SIDE - 4, 2), rng.integers(4, SIDE - 4, 2)
        self.t = 0
        return self.frame()

    def frame(self):
        canvas = np.zeros((BIG, BIG), dtype=np.uint8)
        for where, shade in ((self.me, 255), (self.dot, 128)):
            r, c = (where - 2) * args.scale
            canvas[r : r + 4 * args.scale, c : c + 4 * args.scale] = shade
        return canvas

    def step(self, a):
        self.me = np.clip(self.me + self.moves[a], 4, SIDE - 4)
        self.t += 1
        caught = bool(np.abs(self.me - self.dot).max() < 4)
        return self.frame(), float(caught) - 0.01, caught or self.t >= 60


def shrink(frame):
    blocks = frame.astype(np.float32).reshape(SIDE, args.scale, SIDE, args.scale)
    return blocks.mean(axis=(1, 3)).astype(np.uint8)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, 6, stride=3), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten()
        )
        self.head = nn.Linear(16 * 7 * 7, 4)

    def forward(self, x):
        return self.head(self.conv(x.unsqueeze(1).float() / 255))


env, q = Chase(), Net()
opt = torch.optim.Adam(q.parameters(), lr=5e-4)
mem, nxt = np.zeros((args.frames, SIDE, SIDE), np.uint8), np.zeros((args.frames, SIDE, SIDE), np.uint8)
act, rew, end = (
    np.zeros(args.frames, np.int64),
    np.zeros(args.frames, np.float32),
    np.zeros(args.frames, np.float32),
)
obs, updates = shrink(env.reset()), 0
for n in range(args.frames):
    if n == args.frames // 5:
        t0 = time.perf_counter()
    if rng.random() < 0.3:
        a = int(rng.integers(4))
    else:
        with torch.inference_mode():
            a = int(q(torch.from_numpy(obs[None])).argmax())
    frame, r, over = env.step(a)
    small = shrink(frame)
    mem[n], nxt[n], act[n], rew[n], end[n] = obs, small, a, r, over
    obs = shrink(env.reset()) if over else small
    if n >= 100 and n % 4 == 0:
        pick = rng.integers(0, n + 1, 32)
        with torch.no_grad():
            y = torch.from_numpy(rew[pick]) + 0.95 * (1 - torch.from_numpy(end[pick])) * q(
                torch.from_numpy(nxt[pick])
            ).amax(1)
        guess = q(torch.from_numpy(mem[pick])).gather(1, torch.from_numpy(act[pick])[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(guess, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        updates += 1
speed = (args.frames - args.frames // 5) / (time.perf_counter() - t0)
total = float(sum(p.double().sum() for p in q.parameters()))
print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": speed, "checksum": total}))
