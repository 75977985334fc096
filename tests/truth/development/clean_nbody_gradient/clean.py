"""A tug among drifting satellites (n-body forces in numba): REINFORCE with baseline; the simulation is what costs."""
import argparse
import json
import math
import time

import gymnasium as gym
import numpy as np
import torch
from numba import njit
from torch import nn


@njit(fastmath=True, error_model="numpy")
def advance(pos, vel, mass, thrust_x, thrust_y, dt, substeps):
    """Leapfrog with pairwise gravity, softened; body 0 has the engine. Each pair once."""
    n = pos.shape[0]
    acc = np.empty((n, 2), np.float32)
    soft, half = np.float32(0.05), np.float32(0.5) * dt
    for _ in range(substeps):
        for i in range(n):
            acc[i, 0] = acc[i, 1] = np.float32(0.0)
        for i in range(n):
            ax, ay = np.float32(0.0), np.float32(0.0)
            xi, yi, mi = pos[i, 0], pos[i, 1], mass[i]
            for j in range(i + 1, n):
                dx, dy = pos[j, 0] - xi, pos[j, 1] - yi
                d2 = dx * dx + dy * dy + soft
                f = np.float32(1.0) / (d2 * math.sqrt(d2))
                ax += f * mass[j] * dx
                ay += f * mass[j] * dy
                acc[j, 0] -= f * mi * dx
                acc[j, 1] -= f * mi * dy
            acc[i, 0] += ax
            acc[i, 1] += ay
        acc[0, 0] += thrust_x
        acc[0, 1] += thrust_y
        for i in range(n):
            vel[i, 0] += dt * acc[i, 0]
            vel[i, 1] += dt * acc[i, 1]
            pos[i, 0] += dt * vel[i, 0]
            pos[i, 1] += dt * vel[i, 1]


class Tug(gym.Env):
    def __init__(self, bodies=128, substeps=12, limit=50):
        self.bodies, self.substeps, self.limit = bodies, substeps, limit
        self.action_space = gym.spaces.Discrete(5)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (8,), np.float32)
        self.push = np.array([(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)], np.float32)
        self.mass = np.full(bodies, 0.3 / bodies, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.pos = self.np_random.normal(0, 1, (self.bodies, 2)).astype(np.float32)
        self.vel = np.stack([-0.3 * self.pos[:, 1], 0.3 * self.pos[:, 0]], 1)
        self.goal, self.t = self.np_random.uniform(-1, 1, 2).astype(np.float32), 0
        return self._obs(), {}

    def _obs(self):
        return np.concatenate([self.pos[0], self.vel[0], self.goal - self.pos[0], self.pos.mean(0)])

    def step(self, action):
        fx, fy = self.push[action]
        advance(self.pos, self.vel, self.mass, fx, fy, np.float32(0.005), self.substeps)
        self.t += 1
        obs = self._obs()
        return obs, -float(math.hypot(obs[4], obs[5])), False, self.t >= self.limit, {}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--episodes", type=int, default=420)
    args = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(60)
    env = Tug()
    policy = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 6))
    opt = torch.optim.Adam(policy.parameters(), 3e-3, fused=True)
    rng = np.random.default_rng(60)
    steps, t0 = 0, 0.0
    for ep in range(args.episodes):
        if ep == args.episodes // 5:
            t0, first = time.perf_counter(), steps
        w1, b1, w2, b2 = (q.detach().numpy() for q in policy.parameters())
        obs, _ = env.reset(seed=ep)
        xs, acts, rews, over = [], [], [], False
        while not over:
            logits = (w2 @ np.tanh(w1 @ obs + b1) + b2)[:5]
            a = int((logits + rng.gumbel(size=5)).argmax())
            xs.append(obs)
            obs, r, _, over, _ = env.step(a)
            acts.append(a)
            rews.append(r)
        steps += len(rews)
        ret, acc = np.zeros(len(rews), np.float32), 0.0
        for t in range(len(rews) - 1, -1, -1):
            ret[t] = acc = rews[t] + 0.97 * acc
        out = policy(torch.from_numpy(np.stack(xs)))
        R = torch.from_numpy(ret)
        adv = R - out[:, 5].detach()
        logp = out[:, :5].log_softmax(-1).gather(1, torch.tensor(acts)[:, None]).squeeze(1)
        loss = -(logp * adv).mean() + 0.5 * (out[:, 5] - R).square().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if ep % 100 == 0:
            print("episode", ep, "return", round(sum(rews), 2))
    rate = (steps - first) / (time.perf_counter() - t0)
    print(json.dumps({"env_steps": steps, "updates": args.episodes, "units_per_s": rate,
                      "checksum": sum(q.detach().double().sum().item() for q in policy.parameters())}))


if __name__ == "__main__":
    main()
