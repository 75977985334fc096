"""A2C on weather-radar pictures; six simulators run in processes of gymnasium's AsyncVectorEnv."""
import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from gymnasium.vector import AsyncVectorEnv

SIZE = 256


class RadarEnv(gym.Env):
    """A storm drifts over the map; the balloon (four directions or stay) should keep out of it."""

    observation_space = gym.spaces.Box(0.0, 1.0, (4, SIZE, SIZE), np.float32)
    action_space = gym.spaces.Discrete(5)
    MOVES = np.array([[0, 0], [-3, 0], [3, 0], [0, -3], [0, 3]])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        grid = np.linspace(0, 2 * np.pi, SIZE, endpoint=False, dtype=np.float32)
        a, b = self.np_random.integers(1, 4, size=2)
        self.storm = 0.5 + 0.5 * np.sin(a * grid)[:, None] * np.cos(b * grid)[None, :]
        self.storm = self.storm.astype(np.float32)
        self.drift = self.np_random.integers(-2, 3, size=2)
        self.shift = np.zeros(2, dtype=np.int64)
        self.balloon = self.np_random.integers(8, SIZE - 8, size=2)
        self.picture = np.zeros((4, SIZE, SIZE), np.float32)
        self.t = 0
        return self.draw(), {}

    def draw(self):
        dy, dx = self.shift % SIZE
        self.picture[1] = self.picture[0]
        now = self.picture[0]
        now[:dy], now[dy:] = self.storm[SIZE - dy:], self.storm[:SIZE - dy]
        if dx:
            now[:] = np.concatenate([now[:, SIZE - dx:], now[:, :SIZE - dx]], axis=1)
        self.picture[2] = 0.0
        y, x = self.balloon
        self.picture[2, y - 4:y + 5, x - 4:x + 5] = 1.0
        self.picture[3] = self.t / 200
        return self.picture

    def step(self, action):
        self.balloon = np.clip(self.balloon + self.MOVES[action], 4, SIZE - 5)
        self.shift += self.drift
        self.t += 1
        picture = self.draw()
        hit = float(picture[0, self.balloon[0], self.balloon[1]])
        return picture, 0.5 - hit, False, self.t >= 200, {}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(4 * 16 * 16, 128), nn.ReLU())
        self.policy, self.value = nn.Linear(128, 5), nn.Linear(128, 1)

    def forward(self, small):
        h = self.trunk(small)
        return self.policy(h), self.value(h).squeeze(-1)


def shrink(pictures):
    return torch.from_numpy(np.ascontiguousarray(pictures[:, :, ::16, ::16]))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=2000)
    ap.add_argument("--envs", type=int, default=6)
    ap.add_argument("--horizon", type=int, default=16)
    ap.add_argument("--seed", type=int, default=21)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    envs = AsyncVectorEnv([RadarEnv for _ in range(args.envs)])
    net = Net()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=7e-4, eps=1e-5)
    pictures, _ = envs.reset(seed=args.seed)
    obs = shrink(pictures)
    score, first, env_steps = 0.0, args.updates // 5, 0
    for update in range(args.updates):
        if update == first:
            tic = time.perf_counter()
        seen, acted, rewards, ends = [], [], [], []
        for _ in range(args.horizon):
            with torch.no_grad():
                logits, _ = net(obs)
            action = torch.multinomial(torch.softmax(logits, dim=1), 1).squeeze(1)
            pictures, reward, terminated, truncated, _ = envs.step(action.numpy())
            seen.append(obs), acted.append(action)
            rewards.append(torch.from_numpy(reward).float()), ends.append(torch.from_numpy(truncated).float())
            obs = shrink(pictures)
            env_steps += args.envs
        with torch.no_grad():
            follow = net(obs)[1]
        returns = []
        for reward, end in zip(reversed(rewards), reversed(ends)):
            follow = reward + 0.97 * (1 - end) * follow
            returns.append(follow)
        returns = torch.cat(returns[::-1])
        logits, values = net(torch.cat(seen))
        logp = torch.log_softmax(logits, dim=1)
        advantage = returns - values.detach()
        entropy = -(logp.exp() * logp).sum(dim=1).mean()
        chosen = logp.gather(1, torch.cat(acted).unsqueeze(1)).squeeze(1)
        loss = -(advantage * chosen).mean() + 0.5 * F.mse_loss(values, returns) - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        score += 0.05 * (float(torch.stack(rewards).mean()) - score)
        if update % 50 == 0:
            print(f"update {update} reward {score:.3f}", flush=True)
    speed = (args.updates - first) * args.horizon * args.envs / (time.perf_counter() - tic)
    envs.close()
    checksum = sum(float(p.detach().double().abs().sum()) for p in net.parameters())
    print(json.dumps({"env_steps": env_steps, "updates": args.updates, "units_per_s": speed, "checksum": round(checksum, 5)}))


if __name__ == "__main__":
    main()
