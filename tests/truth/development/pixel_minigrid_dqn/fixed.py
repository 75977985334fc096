"""DQN from pixels of a small paddle game. Frames are stacked by four; replay in preallocated arrays."""
import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
SIDE = 40


class Paddle(gym.Env):
    """A ball bounces in a box with the lower side open; the paddle must be there. 40x40 grey image."""

    def __init__(self):
        self.observation_space = gym.spaces.Box(0, 255, (4, SIDE, SIDE), np.uint8)
        self.action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.y = self.np_random.uniform(8, 32), 6.0
        self.vx, self.vy = self.np_random.choice([-1.7, -0.9, 0.9, 1.7]), 1.6
        self.paddle, self.t = SIDE // 2, 0
        self.frames = np.zeros((4, SIDE, SIDE), dtype=np.uint8)
        self.draw()
        return self.frames.copy(), {}

    def draw(self):
        self.frames[:-1] = self.frames[1:]
        f = self.frames[-1]
        f[:] = 0
        f[SIDE - 2:, max(0, self.paddle - 4):self.paddle + 4] = 160
        i, j = int(self.y), int(self.x)
        f[max(0, i - 1):i + 2, max(0, j - 1):j + 2] = 255

    def step(self, a):
        self.paddle = int(np.clip(self.paddle + 2 * (a - 1), 4, SIDE - 4))
        self.x += self.vx
        self.y += self.vy
        self.t += 1
        if self.x < 2 or self.x > SIDE - 3:
            self.vx = -self.vx
        if self.y < 2:
            self.vy = abs(self.vy)
        reward, done = 0.0, False
        if self.y > SIDE - 4:
            if abs(self.x - self.paddle) < 6:
                self.vy, reward = -abs(self.vy), 1.0
            else:
                reward, done = -1.0, True
        self.draw()
        return self.frames.copy(), reward, done, self.t >= 500, {}


class Replay:
    def __init__(self, size, shape):
        self.obs = np.zeros((size, *shape), dtype=np.uint8)
        self.nxt = np.zeros((size, *shape), dtype=np.uint8)
        self.act = np.zeros(size, dtype=np.int64)
        self.rew = np.zeros(size, dtype=np.float32)
        self.done = np.zeros(size, dtype=np.float32)
        self.size, self.n = size, 0

    def add(self, obs, act, rew, nxt, done):
        i = self.n % self.size
        self.obs[i], self.act[i], self.rew[i], self.nxt[i], self.done[i] = obs, act, rew, nxt, done
        self.n += 1

    def sample(self, k, rng):
        i = rng.integers(min(self.n, self.size), size=k)
        obs = torch.from_numpy(self.obs[i]).float() / 255.0
        nxt = torch.from_numpy(self.nxt[i]).float() / 255.0
        return (obs, torch.from_numpy(self.act[i]), torch.from_numpy(self.rew[i]), nxt, torch.from_numpy(self.done[i]))


def network():
    return nn.Sequential(nn.Conv2d(4, 8, 8, stride=8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(),
                         nn.Flatten(), nn.Linear(16 * 3 * 3, 64), nn.ReLU(), nn.Linear(64, 3))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=2000)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--memory", type=int, default=3000)
    args = ap.parse_args()
    rng = np.random.default_rng(12)
    torch.manual_seed(12)
    env = Paddle()
    q, target = network(), network()
    target.load_state_dict(q.state_dict())
    opt = torch.optim.Adam(q.parameters(), lr=3e-4, fused=True)
    memory = Replay(args.memory, env.observation_space.shape)
    obs, _ = env.reset(seed=12)
    updates, episodes, score, scores, t0 = 0, 0, 0.0, [], None
    for t in range(args.steps):
        if t == args.steps // 5:
            t0 = time.perf_counter()
        eps = max(0.05, 1 - 2 * t / args.steps)
        if rng.random() < eps:
            a = int(rng.integers(3))
        else:
            with torch.no_grad():
                a = int(q(torch.from_numpy(obs)[None].float() / 255.0).argmax())
        nxt, r, term, trunc, _ = env.step(a)
        memory.add(obs, a, r, nxt, term)
        score, obs = score + r, nxt
        if term or trunc:
            scores.append(score)
            obs, _ = env.reset()
            score = 0.0
            if len(scores) % 20 == 0:
                print(f"step {t:6d}  episode {len(scores):4d}  mean score {np.mean(scores[-20:]):.2f}")
        if t >= 200:
            o, act, rew, o2, d = memory.sample(args.batch, rng)
            with torch.no_grad():
                y = rew + 0.98 * (1 - d) * target(o2).max(1).values
            loss = F.smooth_l1_loss(q(o).gather(1, act[:, None]).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            updates += 1
            if updates % 400 == 0:
                target.load_state_dict(q.state_dict())
    rate = (args.steps - args.steps // 5) / (time.perf_counter() - t0)
    print(json.dumps({"env_steps": args.steps, "updates": updates, "units_per_s": rate,
                      "checksum": loss.item() + sum(scores)}))


if __name__ == "__main__":
    main()
