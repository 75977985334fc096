"""Implicit quantile network (IQN) that keeps a windmill turning: pitch and brake against gusts."""
import argparse
import copy
import json
import math
import random
import time

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)


class Windmill:
    ACTIONS = [(-0.05, 0.0), (0.0, 0.0), (0.05, 0.0), (0.0, 0.3)]

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def reset(self):
        self.speed, self.pitch, self.wind, self.heat, self.t = 0.5, 0.4, self.rng.uniform(0.4, 0.8), 0.0, 0
        return self._obs()

    def _obs(self):
        return (self.speed, self.pitch, self.wind, self.heat, self.t / 200)

    def step(self, action):
        dp, brake = self.ACTIONS[action]
        self.pitch = min(1.0, max(0.0, self.pitch + dp))
        self.wind = min(1.5, max(0.0, self.wind + self.rng.gauss(0, 0.05)))
        torque = self.wind * self.wind * math.sin(math.pi * self.pitch) - 0.5 * self.speed - brake
        self.speed = max(0.0, self.speed + 0.1 * torque)
        self.heat = 0.95 * self.heat + 0.1 * brake * self.speed
        self.t += 1
        broken = self.speed > 1.4 or self.heat > 0.5
        return self._obs(), -10.0 if broken else min(self.speed, 1.0), broken or self.t == 200


class IQN(nn.Module):
    def __init__(self, n_obs, n_act, width=64, n_cos=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_obs, width), nn.ReLU())
        self.phi = nn.Sequential(nn.Linear(n_cos, width), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, n_act))
        self.register_buffer("pi_i", math.pi * torch.arange(n_cos))

    def forward(self, x, n_taus):
        """Quantiles (rows, n_taus, actions) and the fractions they belong to (rows, n_taus)."""
        tau = torch.rand(len(x), n_taus)
        embedding = self.phi(torch.cos(tau.unsqueeze(-1) * self.pi_i))
        return self.head(self.body(x).unsqueeze(1) * embedding), tau


class Agent:
    def __init__(self, args):
        self.args = args
        self.net = IQN(5, 4)
        self.target = copy.deepcopy(self.net).requires_grad_(False)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=5e-4, fused=True)
        self.updates = 0

    def act(self, obs, eps):
        if random.random() < eps:
            return random.randrange(4)
        with torch.inference_mode():
            return int(self.net(torch.tensor([obs]), 16)[0].mean(1).argmax())

    def quantile_loss(self, theta, tau, goal):
        """Quantile Huber loss; theta, tau: (rows, n), goal: (rows, m)."""
        loss = 0.0
        for i in range(theta.shape[1]):
            td = goal - theta[:, i : i + 1]
            huber = torch.where(td.abs() <= 1.0, 0.5 * td.pow(2), td.abs() - 0.5)
            weight = (tau[:, i : i + 1] - (td.detach() < 0).float()).abs()
            loss = loss + (weight * huber).mean(1)
        return loss.mean()

    def update(self, s, a, r, s2, d):
        n = self.args.quantiles
        with torch.no_grad():
            q2, _ = self.target(s2, n)
            best = q2.mean(1).argmax(1)
            after = q2.gather(2, best.view(-1, 1, 1).expand(-1, n, 1)).squeeze(2)
            goal = r.unsqueeze(1) + 0.97 * (1 - d).unsqueeze(1) * after
        q, tau = self.net(s, n)
        theta = q.gather(2, a.view(-1, 1, 1).expand(-1, n, 1)).squeeze(2)
        loss = self.quantile_loss(theta, tau, goal)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.updates += 1
        if self.updates % 250 == 0:
            self.target.load_state_dict(self.net.state_dict())
        return loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=9000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--quantiles", type=int, default=12)
    parser.add_argument("--start", type=int, default=300)
    args = parser.parse_args()
    random.seed(5)
    torch.manual_seed(5)
    rng = np.random.default_rng(5)
    env, agent = Windmill(5), Agent(args)
    S, S2 = np.zeros((args.steps, 5), np.float32), np.zeros((args.steps, 5), np.float32)
    A, R, D = np.zeros(args.steps, np.int64), np.zeros(args.steps, np.float32), np.zeros(args.steps, np.float32)
    obs, score, scores = env.reset(), 0.0, []
    for step in range(args.steps):
        if step == args.steps // 5:
            began = time.perf_counter()
        action = agent.act(obs, max(0.05, 1 - 2 * step / args.steps))
        nxt, reward, done = env.step(action)
        S[step], A[step], R[step], S2[step], D[step] = obs, action, reward, nxt, done
        score += reward
        obs = nxt
        if done:
            scores.append(score)
            obs, score = env.reset(), 0.0
        if step >= args.start:
            i = rng.integers(0, step + 1, args.batch)
            agent.update(*(torch.from_numpy(x[i]) for x in (S, A, R, S2, D)))
        if step % 1000 == 999:
            print(f"step {step + 1}: episodes {len(scores)}, score {np.mean(scores[-10:]):.1f}")
    rate = (args.steps - args.steps // 5) / (time.perf_counter() - began)
    check = sum(p.detach().double().abs().sum().item() for p in agent.net.parameters())
    print(json.dumps({"env_steps": None, "updates": agent.updates, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main()
