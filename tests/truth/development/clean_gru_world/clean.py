"""A recurrent world model of Acrobot, learnt from random play in windows of 32 steps."""
import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn


class World(nn.Module):
    def __init__(self, n_obs, n_act, width):
        super().__init__()
        self.n_act = n_act
        self.enc = nn.Sequential(nn.Linear(n_obs + n_act, width), nn.ELU())
        self.rnn = nn.GRU(width, width)
        self.dec = nn.Sequential(nn.Linear(width, width), nn.ELU(), nn.Linear(width, n_obs + 1))

    def forward(self, obs, act):
        h, _ = self.rnn(self.enc(torch.cat([obs, act], -1)))
        out = self.dec(h)
        return obs + out[..., :-1], out[..., -1]


def record(steps, seed):
    env = gym.make("Acrobot-v1")
    env.action_space.seed(seed)
    obs, act, rew = np.zeros((steps + 1, 6), np.float32), np.zeros(steps, np.int64), np.zeros(steps, np.float32)
    obs[0], _ = env.reset(seed=seed)
    for t in range(steps):
        act[t] = a = env.action_space.sample()
        obs[t + 1], rew[t], term, trunc, _ = env.step(a)
        if term or trunc:
            obs[t + 1], _ = env.reset()
    return torch.from_numpy(obs), torch.from_numpy(act), torch.from_numpy(rew)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--updates", type=int, default=190)
    p.add_argument("--frames", type=int, default=8000)
    p.add_argument("--length", type=int, default=32)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--width", type=int, default=160)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(50)
    obs, act, rew = record(a.frames, 50)
    onehot = nn.functional.one_hot(act, 3).float()
    world = World(6, 3, a.width)
    opt = torch.optim.Adam(world.parameters(), 1e-3, fused=True)
    window = torch.arange(a.length)[:, None]
    t0 = 0.0
    for k in range(a.updates):
        if k == a.updates // 5:
            t0 = time.perf_counter()
        i = window + torch.randint(0, a.frames - a.length, (1, a.batch))
        pred, pred_r = world(obs[i], onehot[i])
        loss = (pred - obs[i + 1]).square().mean() + (pred_r - rew[i]).square().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(world.parameters(), 1.0)
        opt.step()
        if k % 50 == 0:
            print(k, round(loss.item(), 4))
    rate = (a.updates - a.updates // 5) / (time.perf_counter() - t0)
    check = sum(q.detach().double().sum().item() for q in world.parameters())
    print(json.dumps({"env_steps": a.frames, "updates": a.updates, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main()
