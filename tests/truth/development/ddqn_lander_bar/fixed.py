"""Double DQN with a dueling head for a small landing craft of my own (two thrusters, a pad, some wind)."""
import argparse
import json
import math
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from tqdm import tqdm


class Craft(gym.Env):
    metadata = {"render_modes": []}

    def __init__(self):
        self.observation_space = gym.spaces.Box(-10, 10, (5,), np.float32)
        self.action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-1, 1)
        self.y, self.vx, self.vy, self.fuel, self.t = 1.5, 0.0, 0.0, 1.0, 0
        self.gust = self.np_random.uniform(-0.02, 0.02)
        return self._look(), {}

    def _look(self):
        return np.array((self.x, self.y, self.vx, self.vy, self.fuel), np.float32)

    def step(self, action):
        before = math.hypot(self.x, self.y)
        self.vy -= 0.02
        self.vx += self.gust
        if self.fuel > 0:
            if action == 1:
                self.vy += 0.05
            elif action == 2:
                self.vx -= 0.03
            elif action == 3:
                self.vx += 0.03
            self.fuel -= 0.01 * (action > 0)
        self.x += 0.1 * self.vx
        self.y += 0.1 * self.vy
        self.t += 1
        reward = before - math.hypot(self.x, self.y)
        down = self.y <= 0.0
        if down:
            soft = abs(self.vy) < 0.25 and abs(self.x) < 0.3
            reward += 1.0 if soft else -1.0
        lost = abs(self.x) > 4 or self.y > 4
        return self._look(), reward, down or lost, self.t >= 200, {}


class Dueling(nn.Module):
    def __init__(self, n_obs, n_act, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_obs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.value, self.advantage = nn.Linear(width, 1), nn.Linear(width, n_act)

    def forward(self, x):
        h = self.body(x)
        adv = self.advantage(h)
        return self.value(h) + adv - adv.mean(-1, keepdim=True)


class Ring:
    def __init__(self, size, n_obs):
        self.size, self.n = size, 0
        self.obs, self.nxt = np.zeros((size, n_obs), np.float32), np.zeros((size, n_obs), np.float32)
        self.act, self.rew, self.end = np.zeros(size, np.int64), np.zeros(size, np.float32), np.zeros(size, np.float32)

    def put(self, o, a, r, n, e):
        i = self.n % self.size
        self.obs[i], self.act[i], self.rew[i], self.nxt[i], self.end[i] = o, a, r, n, e
        self.n += 1

    def draw(self, rng, k):
        i = rng.integers(0, min(self.n, self.size), k)
        return [torch.from_numpy(b[i]) for b in (self.obs, self.act, self.rew, self.nxt, self.end)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20000)
    ap.add_argument("--train-every", type=int, default=8)
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(2)
    rng = np.random.default_rng(2)
    env, ring = Craft(), Ring(20000, 5)
    online, target = Dueling(5, 4, 64), Dueling(5, 4, 64)
    target.load_state_dict(online.state_dict())
    opt = torch.optim.Adam(online.parameters(), 5e-4)
    obs, _ = env.reset(seed=2)
    ret, mean_ret, loss_value, updates, eps = 0.0, 0.0, 0.0, 0, 1.0
    bar = tqdm(range(a.steps), desc="craft", ncols=110)
    for step in bar:
        if step == a.steps // 5:
            t0 = time.perf_counter()
        eps = max(0.05, 1 - 1.5 * step / a.steps)
        if rng.random() < eps:
            action = int(rng.integers(4))
        else:
            with torch.no_grad():
                action = int(online(torch.from_numpy(obs)).argmax())
        nxt, r, term, trunc, _ = env.step(action)
        ring.put(obs, action, r, nxt, term)
        ret += r
        obs = nxt
        if term or trunc:
            mean_ret = 0.95 * mean_ret + 0.05 * ret
            obs, ret = env.reset()[0], 0.0
        if step > 1000 and step % a.train_every == 0:
            o, act, rew, n, end = ring.draw(rng, 64)
            with torch.no_grad():
                best = online(n).argmax(-1, keepdim=True)
                y = rew + 0.99 * (1 - end) * target(n).gather(1, best).squeeze(1)
            loss = nn.functional.smooth_l1_loss(online(o).gather(1, act[:, None]).squeeze(1), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            updates += 1
            loss_value = loss.item()
            if updates % 200 == 0:
                target.load_state_dict(online.state_dict())
        if step % 500 == 0:
            bar.set_postfix(ret=f"{mean_ret:.2f}", loss=f"{loss_value:.4f}", eps=f"{eps:.2f}")
    rate = (a.steps - a.steps // 5) / (time.perf_counter() - t0)
    total = sum(float(p.detach().double().sum()) for p in online.parameters())
    print(json.dumps({"env_steps": a.steps, "updates": updates, "units_per_s": rate, "checksum": total}))


if __name__ == "__main__":
    main()
