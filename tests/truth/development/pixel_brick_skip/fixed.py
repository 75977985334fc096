"""Actor-critic from pixels on a small paddle-and-bricks game with the usual chain of wrappers."""
import argparse
import json
import time
from collections import deque

import cv2
import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from gymnasium import spaces

cv2.setNumThreads(1)
torch.set_num_threads(1)


class Bricks(gym.Env):
    """210 x 160 RGB screen; actions: stay, left, right."""

    def __init__(self):
        self.observation_space = spaces.Box(0, 255, (210, 160, 3), np.uint8)
        self.action_space = spaces.Discrete(3)
        self.background = np.zeros((210, 160, 3), np.uint8)
        self.background[:20] = (90, 90, 90)
        self.background[:, :4] = self.background[:, -4:] = (142, 142, 142)
        self.full_wall = self.background.copy()
        for row, colour in enumerate([(200, 72, 72), (198, 108, 58), (180, 122, 48), (162, 162, 42)]):
            for col in range(8):
                self.full_wall[50 + 8 * row:57 + 8 * row, 5 + 19 * col:23 + 19 * col] = colour

    def _draw(self):
        screen = self.wall.copy()
        x, y = int(self.ball[0]), int(self.ball[1])
        screen[y:y + 4, x:x + 4] = 255
        screen[195:199, int(self.paddle):int(self.paddle) + 24] = (200, 72, 72)
        return screen

    def _serve(self):
        self.ball = np.array([self.np_random.uniform(30, 120), 100.0])
        self.speed = np.array([self.np_random.choice([-1.5, 1.5]), 2.0])

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.bricks = np.ones((4, 8), bool)
        self.wall = self.full_wall.copy()
        self.paddle, self.lives, self.t = 68.0, 3, 0
        self._serve()
        return self._draw(), {}

    def step(self, action):
        self.t += 1
        self.paddle = min(131.0, max(5.0, self.paddle + (0, -3, 3)[action]))
        self.ball += self.speed
        reward = 0.0
        if not 5 <= self.ball[0] <= 151:
            self.speed[0] = -self.speed[0]
            self.ball[0] = min(151.0, max(5.0, self.ball[0]))
        if self.ball[1] < 22:
            self.speed[1] = abs(self.speed[1])
        row, col = int(self.ball[1] - 50) // 8, int(self.ball[0] - 5) // 19
        if 0 <= row < 4 and 0 <= col < 8 and self.bricks[row, col]:
            self.bricks[row, col] = False
            self.wall[50 + 8 * row:57 + 8 * row, 5 + 19 * col:23 + 19 * col] = 0
            self.speed[1] = -self.speed[1]
            reward = 1.0
        if 191 <= self.ball[1] <= 196 and self.speed[1] > 0 and -4 <= self.ball[0] - self.paddle <= 24:
            self.speed[1] = -2.0
            self.speed[0] = (self.ball[0] - self.paddle - 10) / 8
        if self.ball[1] > 204:
            self.lives -= 1
            self._serve()
        done = self.lives == 0 or not self.bricks.any()
        return self._draw(), reward, done, self.t >= 4000, {}


class WarpFrame(gym.ObservationWrapper):
    def __init__(self, env, size=42):
        super().__init__(env)
        self.size = size
        self.observation_space = spaces.Box(0, 255, (size, size), np.uint8)

    def observation(self, frame):
        grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
        return cv2.resize(grey, (self.size, self.size), interpolation=cv2.INTER_AREA)


class RepeatAction(gym.Wrapper):
    def __init__(self, env, repeat=4):
        super().__init__(env)
        self.repeat = repeat

    def step(self, action):
        total = 0.0
        for _ in range(self.repeat):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += reward
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class StackFrames(gym.Wrapper):
    def __init__(self, env, count=2):
        super().__init__(env)
        self.frames = deque(maxlen=count)
        self.observation_space = spaces.Box(0, 255, (count, *env.observation_space.shape), np.uint8)

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        self.frames.extend([obs] * self.frames.maxlen)
        return np.stack(self.frames), info

    def step(self, action):
        obs, *rest = self.env.step(action)
        self.frames.append(obs)
        return np.stack(self.frames), *rest


def make_env():
    env = Bricks()
    env = RepeatAction(env)
    env = WarpFrame(env)
    return StackFrames(env)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 8, 8, 4), nn.ReLU(), nn.Conv2d(8, 16, 4, 2), nn.ReLU(), nn.Flatten(),
                                  nn.Linear(144, 64), nn.ReLU())
        self.pi, self.v = nn.Linear(64, 3), nn.Linear(64, 1)

    def forward(self, x):
        h = self.body(x.float() / 255.0)
        return self.pi(h), self.v(h).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=250)
    ap.add_argument("--rollout", type=int, default=64)
    args = ap.parse_args()
    torch.manual_seed(1)
    env, net = make_env(), Net()
    opt = torch.optim.RMSprop(net.parameters(), lr=7e-4, eps=1e-5)
    obs, _ = env.reset(seed=1)
    score, scores, start, rng = 0.0, [0.0], None, np.random.default_rng(1)
    for update in range(args.updates):
        if update == args.updates // 5:
            start = time.perf_counter()
        seen, acts, rewards, ends = [], [], [], []
        for _ in range(args.rollout):
            with torch.no_grad():
                logits, _ = net(torch.from_numpy(obs)[None])
            noisy = logits[0].numpy() + rng.gumbel(size=3)
            action = int(noisy.argmax())
            seen.append(obs)
            obs, reward, terminated, truncated, _ = env.step(action)
            score += reward
            acts.append(action)
            rewards.append(reward)
            ends.append(terminated or truncated)
            if ends[-1]:
                scores.append(score)
                score = 0.0
                obs, _ = env.reset()
        x = torch.from_numpy(np.stack(seen + [obs]))
        logits, v = net(x)
        ret, returns = v[-1].item(), []
        for reward, end in zip(reversed(rewards), reversed(ends)):
            ret = reward + 0.98 * ret * (not end)
            returns.append(ret)
        g = torch.tensor(returns[::-1])
        logp = F.log_softmax(logits[:-1], dim=1)
        adv = (g - v[:-1]).detach()
        picked = logp.gather(1, torch.tensor(acts)[:, None]).squeeze(1)
        loss = -(picked * adv).mean() + 0.5 * F.mse_loss(v[:-1], g) + 0.01 * (logp.exp() * logp).sum(1).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        if update % 50 == 0:
            print(f"update {update:4d}: score {np.mean(scores[-10:]):.2f}", flush=True)
    rate = (args.updates - args.updates // 5) * args.rollout / (time.perf_counter() - start)
    print(json.dumps({"env_steps": args.updates * args.rollout, "updates": args.updates, "units_per_s": rate,
                      "checksum": float(sum(p.detach().double().sum() for p in net.parameters()))}))


if __name__ == "__main__":
    main()
