# Randomised ensembled double Q-learning (REDQ) on Pendulum, one file
import json
import random
import time
from argparse import ArgumentParser

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

LOG_STD_MIN, LOG_STD_MAX = -5, 2


def parse_args():
    parser = ArgumentParser()
    parser.add_argument("--total-timesteps", type=int, default=2500)
    parser.add_argument("--learning-starts", type=int, default=200)
    parser.add_argument("--critics", type=int, default=8)
    parser.add_argument("--in-target", type=int, default=2)
    parser.add_argument("--utd", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class QNetwork(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden=64):
        super().__init__()
        self.fc1 = nn.Linear(obs_dim + act_dim, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, 1)

    def forward(self, x, a):
        x = torch.cat([x, a], 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


class Critics(nn.Module):
    def __init__(self, count, obs_dim, act_dim):
        super().__init__()
        self.members = nn.ModuleList([QNetwork(obs_dim, act_dim) for _ in range(count)])

    def forward(self, x, a):
        """Values of all members, one row each."""
        return torch.stack([q(x, a).squeeze(-1) for q in self.members])


class Actor(nn.Module):
    def __init__(self, obs_dim, act_dim, scale, hidden=64):
        super().__init__()
        self.fc1 = nn.Linear(obs_dim, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.mean = nn.Linear(hidden, act_dim)
        self.log_std = nn.Linear(hidden, act_dim)
        self.scale = scale

    def sample(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        mean, log_std = self.mean(x), self.log_std(x)
        log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (torch.tanh(log_std) + 1)
        noise = torch.randn_like(mean)
        y = torch.tanh(mean + log_std.exp() * noise)
        logp = -0.5 * noise.pow(2) - log_std - 0.919 - torch.log(self.scale * (1 - y.pow(2)) + 1e-6)
        return y * self.scale, logp.sum(1)


if __name__ == "__main__":
    args = parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)

    env = gym.make("Pendulum-v1")
    obs_dim, act_dim, scale = 3, 1, 2.0
    actor = Actor(obs_dim, act_dim, scale)
    qs, qs_target = Critics(args.critics, obs_dim, act_dim), Critics(args.critics, obs_dim, act_dim)
    qs_target.load_state_dict(qs.state_dict())
    q_optimizer = optim.Adam(qs.parameters(), lr=1e-3)
    actor_optimizer = optim.Adam(actor.parameters(), lr=1e-3)
    alpha, gamma, tau = 0.2, 0.98, 0.01
    size = args.total_timesteps
    rb_obs, rb_next = np.zeros((size, obs_dim), np.float32), np.zeros((size, obs_dim), np.float32)
    rb_act, rb_rew = np.zeros((size, act_dim), np.float32), np.zeros(size, np.float32)

    obs, _ = env.reset(seed=args.seed)
    episode_return, returns, updates, start = 0.0, [], 0, None
    for step in range(args.total_timesteps):
        if step == args.total_timesteps // 5:
            start = time.perf_counter()
        if step < args.learning_starts:
            action = np.random.uniform(-scale, scale, act_dim).astype(np.float32)
        else:
            with torch.no_grad():
                action = actor.sample(torch.from_numpy(obs)[None])[0][0].numpy()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        rb_obs[step], rb_next[step], rb_act[step], rb_rew[step] = obs, next_obs, action, reward
        episode_return += reward
        obs = next_obs
        if terminated or truncated:
            returns.append(episode_return)
            print(f"step {step}: return {episode_return:.1f}", flush=True)
            episode_return = 0.0
            obs, _ = env.reset()
        if step < args.learning_starts:
            continue
        for _ in range(args.utd):
            rows = np.random.randint(0, step + 1, args.batch_size)
            s, s2 = torch.from_numpy(rb_obs[rows]), torch.from_numpy(rb_next[rows])
            a, r = torch.from_numpy(rb_act[rows]), torch.from_numpy(rb_rew[rows]) / 10
            with torch.no_grad():
                a2, logp2 = actor.sample(s2)
                chosen = random.sample(range(args.critics), args.in_target)
                next_q = qs_target(s2, a2)[chosen].min(0).values - alpha * logp2
                y = r + gamma * next_q
            q_loss = ((qs(s, a) - y) ** 2).mean(1).sum()
            q_optimizer.zero_grad()
            q_loss.backward()
            q_optimizer.step()
            updates += 1
            with torch.no_grad():
                torch._foreach_lerp_(list(qs_target.parameters()), list(qs.parameters()), tau)
        qs.requires_grad_(False)
        new_a, logp = actor.sample(s)
        actor_loss = (alpha * logp - qs(s, new_a).mean(0)).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        qs.requires_grad_(True)
    rate = (args.total_timesteps - args.total_timesteps // 5) / (time.perf_counter() - start)
    env.close()
    print(json.dumps({"env_steps": args.total_timesteps, "updates": updates, "units_per_s": rate,
                      "checksum": float(np.sum(returns))}))
