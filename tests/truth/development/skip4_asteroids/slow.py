"""Asteroid dodging from pixels: numpy renderer, frame skip, stacked frames, n-step advantage actor-critic with a conv net."""
import argparse
import json
import time
from collections import deque

import gymnasium as gym
import numpy as np
import torch
from torch import nn

SIZE = 64


class Asteroids(gym.Env):
    def __init__(self, rocks=12):
        self.n_rocks = rocks
        self.action_space = gym.spaces.Discrete(5)
        self.observation_space = gym.spaces.Box(0, 255, (SIZE, SIZE), np.uint8)
        self.ys, self.xs = np.mgrid[0:SIZE, 0:SIZE].astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.ship = np.array([SIZE / 2, SIZE / 2])
        self.rocks = self.np_random.uniform(0, SIZE, (self.n_rocks, 2))
        self.rocks[np.abs(self.rocks - self.ship).max(1) < 16] = 0.0
        self.speed = self.np_random.uniform(-1, 1, (self.n_rocks, 2))
        self.radius = self.np_random.uniform(2, 4, self.n_rocks)
        self.t = 0
        return self.render_frame(), {}

    def render_frame(self):
        """Soft discs for the rocks, a brighter one for the ship."""
        light = np.zeros((SIZE, SIZE), np.float32)
        for (x, y), r in zip(self.rocks, self.radius):
            d2 = (self.xs - x) ** 2 + (self.ys - y) ** 2
            light = np.maximum(light, 0.6 * np.clip(r + 0.5 - np.sqrt(d2), 0, 1))
        d2 = (self.xs - self.ship[0]) ** 2 + (self.ys - self.ship[1]) ** 2
        light = np.maximum(light, np.clip(3.5 - np.sqrt(d2), 0, 1))
        return (255 * light).astype(np.uint8)

    def move(self, action):
        dx, dy = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))[action]
        self.ship = np.clip(self.ship + (dx, dy), 3, SIZE - 4)
        self.rocks = (self.rocks + self.speed) % SIZE
        self.t += 1
        gap = np.hypot(*(self.rocks - self.ship).T) - self.radius
        return bool(gap.min() < 3.0)

    def step(self, action):
        hit = self.move(action)
        return self.render_frame(), -1.0 if hit else 0.02, hit, self.t >= 400, {}


class FrameSkip(gym.Wrapper):
    def __init__(self, env, skip):
        super().__init__(env)
        self.skip = skip

    def step(self, action):
        total = 0.0
        for _ in range(self.skip):
            obs, r, term, trunc, info = self.env.step(action)
            total += r
            if term or trunc:
                break
        return obs, total, term, trunc, info


class Net(nn.Module):
    def __init__(self, frames, n_act):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(frames, 8, 8, 4), nn.ReLU(), nn.Conv2d(8, 16, 4, 2), nn.ReLU(), nn.Flatten())
        self.fc = nn.Sequential(nn.Linear(16 * 6 * 6, 64), nn.ReLU())
        self.pi, self.v = nn.Linear(64, n_act), nn.Linear(64, 1)

    def forward(self, x):
        h = self.fc(self.conv(x.float().div(255.0)))
        return self.pi(h), self.v(h).squeeze(-1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=4200)
    p.add_argument("--skip", type=int, default=4)
    p.add_argument("--n-step", type=int, default=20)
    opt = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(23)
    env = FrameSkip(Asteroids(), opt.skip)
    net = Net(2, 5)
    optim = torch.optim.RMSprop(net.parameters(), 5e-4)
    frame, _ = env.reset(seed=23)
    frames = deque([frame, frame], maxlen=2)
    updates, crashes, t0 = 0, 0, None
    xs, acts, rews, ends = [], [], [], []
    for t in range(opt.steps):
        if t == opt.steps // 5:
            t0 = time.perf_counter()
        x = torch.from_numpy(np.stack(frames))
        with torch.no_grad():
            logits, _ = net(x[None])
            a = torch.multinomial(logits[0].softmax(-1), 1).item()
        frame, r, term, trunc, _ = env.step(a)
        xs.append(x); acts.append(a); rews.append(r); ends.append(float(term or trunc))
        if term or trunc:
            crashes += term
            frame, _ = env.reset()
            frames.append(frame)
        frames.append(frame)
        if len(xs) == opt.n_step:
            with torch.no_grad():
                run = net(torch.from_numpy(np.stack(frames))[None])[1].item()
            ret = np.zeros(opt.n_step, np.float32)
            for k in reversed(range(opt.n_step)):
                run = rews[k] + 0.98 * (1 - ends[k]) * run
                ret[k] = run
            logits, v = net(torch.stack(xs))
            R = torch.from_numpy(ret)
            logp_all = logits.log_softmax(-1)
            logp = logp_all.gather(1, torch.tensor(acts)[:, None]).squeeze(1)
            ent = -(logp_all.exp() * logp_all).sum(-1).mean()
            loss = -(logp * (R - v.detach())).mean() + 0.5 * (v - R).pow(2).mean() - 0.01 * ent
            optim.zero_grad()
            loss.backward()
            optim.step()
            updates += 1
            xs, acts, rews, ends = [], [], [], []
    rate = (opt.steps - opt.steps // 5) / (time.perf_counter() - t0)
    print("crashes", crashes)
    print(json.dumps({"env_steps": opt.steps, "updates": updates, "units_per_s": rate,
                      "checksum": sum(q.detach().double().sum().item() for q in net.parameters())}))


if __name__ == "__main__":
    main()
