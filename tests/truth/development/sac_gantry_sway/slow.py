"""Soft actor-critic for a gantry crane: move the trolley to a target without letting the load sway."""
import argparse
import json
import math
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)


class GantryCrane(gym.Env):
    G, ROPE, DT, FORCE = 9.81, 1.5, 0.05, 4.0

    def __init__(self, horizon=150):
        self.horizon = horizon
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (6,), np.float64)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float64)

    def _obs(self):
        x, v, th, om = self.state
        return np.array([self.target - x, v, math.sin(th), math.cos(th), om, self.t / self.horizon])

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.state = (0.0, 0.0, float(self.np_random.normal(0, 0.05)), 0.0)
        self.target = float(self.np_random.uniform(-2, 2))
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        x, v, th, om = self.state
        a = self.FORCE * min(1.0, max(-1.0, float(action[0]))) - 0.3 * v
        alpha = -(self.G * math.sin(th) + a * math.cos(th)) / self.ROPE - 0.05 * om
        v += self.DT * a
        x += self.DT * v
        om += self.DT * alpha
        th += self.DT * om
        self.state = (x, v, th, om)
        self.t += 1
        reward = -abs(self.target - x) - 0.5 * abs(th) - 0.01 * float(action[0]) ** 2
        return self._obs(), reward, abs(th) > 1.2, self.t >= self.horizon, {}


class ReplayBuffer:
    def __init__(self, capacity, obs_dim, act_dim, rng):
        self.obs = np.zeros((capacity, obs_dim))
        self.next_obs = np.zeros((capacity, obs_dim))
        self.act = np.zeros((capacity, act_dim))
        self.rew = np.zeros(capacity)
        self.term = np.zeros(capacity)
        self.capacity, self.size, self.pos, self.rng = capacity, 0, 0, rng

    def add(self, obs, next_obs, act, rew, term):
        i = self.pos
        self.obs[i], self.next_obs[i], self.act[i], self.rew[i], self.term[i] = obs, next_obs, act, rew, term
        self.pos = (i + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, batch_size):
        idx = self.rng.integers(0, self.size, batch_size)
        return tuple(torch.from_numpy(x[idx]) for x in (self.obs, self.next_obs, self.act, self.rew, self.term))


def mlp(inp, out, width):
    return nn.Sequential(nn.Linear(inp, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))


class Actor(nn.Module):
    def __init__(self, obs_dim, act_dim, width):
        super().__init__()
        self.net = mlp(obs_dim, 2 * act_dim, width)

    def forward(self, obs):
        mean, log_std = self.net(obs).chunk(2, -1)
        log_std = torch.clamp(log_std, -5, 2)
        noise = torch.randn_like(mean)
        u = mean + log_std.exp() * noise
        a = torch.tanh(u)
        log_prob = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi) - torch.log(1 - a**2 + 1e-6)
        return a, log_prob.sum(-1)


class SAC:
    def __init__(self, obs_dim, act_dim, args):
        self.args = args
        self.actor = Actor(obs_dim, act_dim, args.width)
        self.q1, self.q2 = mlp(obs_dim + act_dim, 1, args.width), mlp(obs_dim + act_dim, 1, args.width)
        self.q1_target, self.q2_target = mlp(obs_dim + act_dim, 1, args.width), mlp(obs_dim + act_dim, 1, args.width)
        self.q1_target.load_state_dict(self.q1.state_dict())
        self.q2_target.load_state_dict(self.q2.state_dict())
        self.q_params = [*self.q1.parameters(), *self.q2.parameters()]
        self.target_params = [*self.q1_target.parameters(), *self.q2_target.parameters()]
        self.q_opt = torch.optim.Adam(self.q_params, lr=args.lr, fused=True)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=args.lr, fused=True)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.alpha_opt = torch.optim.Adam([self.log_alpha], lr=args.lr)
        self.target_entropy = -float(act_dim)

    @torch.no_grad()
    def act(self, obs):
        return self.actor(torch.from_numpy(obs))[0].numpy()

    def update(self, batch):
        obs, next_obs, act, rew, term = batch
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            next_a, next_logp = self.actor(next_obs)
            x = torch.cat([next_obs, next_a], -1)
            q_next = torch.min(self.q1_target(x), self.q2_target(x)).squeeze(-1)
            y = rew + self.args.gamma * (1 - term) * (q_next - alpha * next_logp)
        x = torch.cat([obs, act], -1)
        q_loss = F.mse_loss(self.q1(x).squeeze(-1), y) + F.mse_loss(self.q2(x).squeeze(-1), y)
        self.q_opt.zero_grad()
        q_loss.backward()
        self.q_opt.step()

        for p in self.q_params:
            p.requires_grad_(False)
        a, logp = self.actor(obs)
        x = torch.cat([obs, a], -1)
        actor_loss = (alpha * logp - torch.min(self.q1(x), self.q2(x)).squeeze(-1)).mean()
        self.actor_opt.zero_grad()
        actor_loss.backward()
        self.actor_opt.step()
        for p in self.q_params:
            p.requires_grad_(True)

        alpha_loss = -(self.log_alpha.exp() * (logp.detach() + self.target_entropy).mean())
        self.alpha_opt.zero_grad()
        alpha_loss.backward()
        self.alpha_opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.target_params, self.q_params, self.args.tau)
        return q_loss.detach()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--total-steps", type=int, default=60_000)
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--gamma", type=float, default=0.98)
    parser.add_argument("--tau", type=float, default=0.005)
    parser.add_argument("--capacity", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)

    env = GantryCrane()
    agent = SAC(6, 1, args)
    buffer = ReplayBuffer(args.capacity, 6, 1, rng)
    obs, _ = env.reset(seed=args.seed)
    ret, episode, updates, mark, q_loss = 0.0, 0, 0, None, None
    mark_at = args.warmup + (args.total_steps - args.warmup) // 5
    for step in range(args.total_steps):
        if step == mark_at:
            mark = time.perf_counter()
        act = rng.uniform(-1, 1, 1) if step < args.warmup else agent.act(obs)
        next_obs, reward, terminated, truncated, _ = env.step(act)
        buffer.add(obs, next_obs, act, reward, terminated)
        obs = next_obs
        ret += reward
        if terminated or truncated:
            episode += 1
            if episode % 2 == 0 and q_loss is not None:
                print(f"step={step} episode={episode} return={ret:.2f} q_loss={q_loss.item():.4f}")
            obs, _ = env.reset()
            ret = 0.0
        if step >= args.warmup:
            q_loss = agent.update(buffer.sample(args.batch_size))
            updates += 1
    speed = (args.total_steps - mark_at) / (time.perf_counter() - mark)
    checksum = sum(p.detach().double().abs().sum().item() for p in [*agent.actor.parameters(), *agent.q_params])
    print(json.dumps({"env_steps": args.total_steps, "updates": updates, "units_per_s": speed, "checksum": checksum}))


if __name__ == "__main__":
    main()
