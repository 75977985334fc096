"""Q-learning with a small conv net on pictures of a maze."""

import argparse
import json
import random
import time

import numpy as np
import torch
import torch.nn as nn

CELL = 3
SIZE = 15
COLOURS = {"floor": (235, 235, 220), "wall": (60, 60, 70), "agent": (200, 40, 40), "goal": (40, 160, 60)}


class Maze:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.walls = {(r, c) for r in range(SIZE) for c in range(SIZE) if r % 2 and self.rng.random() < 0.5}
        self.free = [(r, c) for r in range(SIZE) for c in range(SIZE) if (r, c) not in self.walls]

    def reset(self):
        self.agent, self.goal = self.rng.sample(self.free, 2)
        self.clock = 0
        return self.picture()

    def step(self, action):
        dr, dc = ((0, 1), (1, 0), (0, -1), (-1, 0))[action]
        r, c = self.agent[0] + dr, self.agent[1] + dc
        if 0 <= r < SIZE and 0 <= c < SIZE and (r, c) not in self.walls:
            self.agent = (r, c)
        self.clock += 1
        won = self.agent == self.goal
        return self.picture(), 1.0 if won else -0.01, won, self.clock >= 120

    def picture(self):
        image = np.zeros((SIZE * CELL, SIZE * CELL, 3), dtype=np.uint8)
        for r in range(SIZE):
            for c in range(SIZE):
                if (r, c) == self.agent:
                    kind = "agent"
                elif (r, c) == self.goal:
                    kind = "goal"
                else:
                    kind = "wall" if (r, c) in self.walls else "floor"
                image[r * CELL : (r + 1) * CELL, c * CELL : (c + 1) * CELL] = COLOURS[kind]
        return image


def make_net():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=3),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 13 * 13, 64),
        nn.ReLU(),
        nn.Linear(64, 4),
    )


def to_input(images):
    return torch.from_numpy(images).permute(0, 3, 1, 2).float().div_(255)


def train(args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(args.seed)
    maze, net, target = Maze(args.seed), make_net(), make_net()
    target.load_state_dict(net.state_dict())
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)
    shape = (args.frames + 1, SIZE * CELL, SIZE * CELL, 3)
    frames, next_frames = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
    acts = np.zeros(args.frames, np.int64)
    rews, ends = np.zeros(args.frames, np.float32), np.zeros(args.frames, np.float32)
    frame, updates, tic = maze.reset(), 0, None
    for n in range(args.frames):
        if n == args.frames // 5:
            tic = time.perf_counter()
        if rng.random() < max(0.1, 1 - n / args.frames):
            act = int(rng.integers(4))
        else:
            with torch.inference_mode():
                act = int(net(to_input(frame[None])).argmax())
        new, rew, won, late = maze.step(act)
        frames[n], next_frames[n], acts[n], rews[n], ends[n] = frame, new, act, rew, won
        frame = maze.reset() if won or late else new
        if n >= 200 and n % args.train_every == 0:
            pick = rng.integers(0, n + 1, 32)
            with torch.no_grad():
                best = target(to_input(next_frames[pick])).max(1).values
                y = torch.from_numpy(rews[pick]) + 0.95 * (1 - torch.from_numpy(ends[pick])) * best
            q = net(to_input(frames[pick])).gather(1, torch.from_numpy(acts[pick])[:, None]).squeeze(1)
            loss = nn.functional.smooth_l1_loss(q, y)
            adam.zero_grad(set_to_none=True)
            loss.backward()
            adam.step()
            updates += 1
            if updates % 100 == 0:
                target.load_state_dict(net.state_dict())
    toc = time.perf_counter()
    return updates, (args.frames - args.frames // 5) / (toc - tic), net


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--frames", type=int, default=16_000)
    cli.add_argument("--train-every", type=int, default=16)
    cli.add_argument("--seed", type=int, default=4)
    args = cli.parse_args()
    updates, speed, net = train(args)
    print(
        json.dumps(
            {
                "env_steps": args.frames,
                "updates": updates,
                "units_per_s": speed,
                "checksum": float(sum(p.double().sum() for p in net.parameters())),
            }
        )
    )
