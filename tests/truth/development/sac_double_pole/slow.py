"""Soft actor-critic with automatic temperature, one file. Task: swing up and hold a driven double pendulum (own dynamics)."""
import argparse
import json
import math
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from gymnasium import spaces


class DoublePole(gym.Env):
    """Two coupled rods, a motor at the first joint only."""

    def __init__(self):
        self.observation_space = spaces.Box(-20.0, 20.0, (6,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def _obs(self):
        a, b, u, v = self.state
        return np.array([math.cos(a), math.sin(a), math.cos(b), math.sin(b), u, v], dtype=np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-0.1, 0.1, 4).tolist()
        return self._obs(), {}

    def step(self, action):
        a, b, u, v = self.state
        force = 3.0 * float(action[0])
        for _ in range(2):
            du = force - 4.0 * math.sin(a) + 1.5 * math.sin(b - a) - 0.1 * u
            dv = -3.0 * math.sin(b) - 1.5 * math.sin(b - a) - 0.1 * v
            u, v = u + 0.03 * du, v + 0.03 * dv
            a, b = a + 0.03 * u, b + 0.03 * v
        self.state = [a, b, u, v]
        height = -math.cos(a) - math.cos(b)
        return self._obs(), 0.5 * height - 0.01 * force * force, False, False, {}


class SoftQ(nn.Module):
    def __init__(self, obs_dim, act_dim, width=320):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs_dim + act_dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                                 nn.Linear(width, 1))

    def forward(self, obs, act):
        return self.net(torch.cat([obs, act], dim=1)).squeeze(-1)


class Actor(nn.Module):
    def __init__(self, obs_dim, act_dim, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs_dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                                 nn.Linear(width, 2 * act_dim))

    def get_action(self, obs):
        mean, log_std = self.net(obs).chunk(2, dim=1)
        log_std = log_std.clamp(-5.0, 1.0)
        noise = torch.randn_like(mean)
        raw = mean + log_std.exp() * noise
        log_prob = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        log_prob = log_prob - 2.0 * (math.log(2.0) - raw - F.softplus(-2.0 * raw))
        return torch.tanh(raw), log_prob.sum(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=3000)
    ap.add_argument("--start", type=int, default=300)
    ap.add_argument("--batch", type=int, default=256)
    ap.add_argument("--gamma", type=float, default=0.99)
    ap.add_argument("--tau", type=float, default=0.005)
    ap.add_argument("--lr", type=float, default=5e-4)
    args = ap.parse_args()
    torch.manual_seed(12)
    torch.set_num_threads(1)
    rng = np.random.default_rng(12)
    env = gym.wrappers.TimeLimit(DoublePole(), 250)

    actor = Actor(6, 1)
    q1, q2, q1_target, q2_target = SoftQ(6, 1), SoftQ(6, 1), SoftQ(6, 1), SoftQ(6, 1)
    q1_target.load_state_dict(q1.state_dict())
    q2_target.load_state_dict(q2.state_dict())
    critic_params = [*q1.parameters(), *q2.parameters()]
    target_params = [*q1_target.parameters(), *q2_target.parameters()]
    for p in target_params:
        p.requires_grad_(False)
    q_opt = torch.optim.Adam(critic_params, lr=args.lr, fused=True)
    actor_opt = torch.optim.Adam(actor.parameters(), lr=args.lr, fused=True)
    log_alpha = torch.zeros(1, requires_grad=True)
    alpha_opt = torch.optim.Adam([log_alpha], lr=args.lr)

    obs_buf, next_buf = torch.zeros(args.steps, 6), torch.zeros(args.steps, 6)
    act_buf, rew_buf = torch.zeros(args.steps, 1), torch.zeros(args.steps)
    obs, _ = env.reset(seed=12)
    ret, returns, updates, began = 0.0, [], 0, None
    for step in range(args.steps):
        if step == args.steps // 5:
            began = time.perf_counter()
        if step < args.start:
            action = rng.uniform(-1.0, 1.0, 1).astype(np.float32)
        else:
            with torch.no_grad():
                action = actor.get_action(torch.from_numpy(obs)[None])[0][0].numpy()
        nxt, reward, _, truncated, _ = env.step(action)
        obs_buf[step], next_buf[step] = torch.from_numpy(obs), torch.from_numpy(nxt)
        act_buf[step], rew_buf[step] = torch.from_numpy(action), reward
        obs, ret = nxt, ret + reward
        if truncated:
            returns.append(ret)
            print(f"step {step:5d}: return {ret:.1f}", flush=True)
            ret, (obs, _) = 0.0, env.reset()
        if step < args.start:
            continue

        rows = torch.from_numpy(rng.integers(0, step + 1, args.batch))
        o, a, r, o2 = obs_buf[rows], act_buf[rows], rew_buf[rows], next_buf[rows]
        alpha = log_alpha.exp().item()
        with torch.no_grad():
            a2, logp2 = actor.get_action(o2)
            y = r + args.gamma * (torch.min(q1_target(o2, a2), q2_target(o2, a2)) - alpha * logp2)
        q_loss = F.mse_loss(q1(o, a), y) + F.mse_loss(q2(o, a), y)
        q_opt.zero_grad()
        q_loss.backward()
        q_opt.step()

        pi, logp = actor.get_action(o)
        actor_loss = (alpha * logp - torch.min(q1(o, pi), q2(o, pi))).mean()
        actor_opt.zero_grad()
        actor_loss.backward()
        actor_opt.step()

        alpha_loss = -(log_alpha * (logp.detach().mean() - 1.0))
        alpha_opt.zero_grad()
        alpha_loss.backward()
        alpha_opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(target_params, critic_params, args.tau)
        updates += 1
    rate = (args.steps - args.steps // 5) / (time.perf_counter() - began)
    print(json.dumps({"env_steps": args.steps, "updates": updates, "units_per_s": rate, "checksum": float(np.sum(returns))}))


if __name__ == "__main__":
    main()
