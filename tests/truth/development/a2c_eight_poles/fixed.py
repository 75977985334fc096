"""Advantage actor-critic, n-step returns, eight CartPoles side by side."""

from __future__ import annotations

import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--updates", type=int, default=2000)
    p.add_argument("--n-envs", type=int, default=8)
    p.add_argument("--n-steps", type=int, default=8)
    p.add_argument("--gamma", type=float, default=0.99)
    p.add_argument("--lr", type=float, default=7e-4)
    p.add_argument("--seed", type=int, default=11)
    return p.parse_args()


class Policy(nn.Module):
    def __init__(self, obs_dim: int, n_actions: int, hidden: int = 64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_dim, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.actor = nn.Linear(hidden, n_actions)
        self.critic = nn.Linear(hidden, 1)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.body(obs)
        return self.actor(h), self.critic(h).squeeze(-1)


class Runner:
    def __init__(self, args: argparse.Namespace, policy: Policy):
        self.args, self.policy = args, policy
        self.envs = [gym.make("CartPole-v1") for _ in range(args.n_envs)]
        self.obs = np.stack([e.reset(seed=args.seed + i)[0] for i, e in enumerate(self.envs)])
        self.rng = np.random.default_rng(args.seed)

    @torch.no_grad()
    def act(self) -> np.ndarray:
        draws = self.rng.random(self.args.n_envs)
        logits, _ = self.policy(torch.from_numpy(self.obs))
        right = torch.softmax(logits, dim=-1)[:, 1].numpy()
        return (draws < right).astype(np.int64)

    def rollout(self):
        all_obs, all_actions, all_rewards, all_dones = [], [], [], []
        for _ in range(self.args.n_steps):
            actions = self.act()
            all_obs.append(self.obs)
            rewards = np.zeros(self.args.n_envs, dtype=np.float32)
            dones = np.zeros(self.args.n_envs, dtype=np.float32)
            nxt = np.empty_like(self.obs)
            for i, env in enumerate(self.envs):
                nxt[i], rewards[i], terminated, truncated, _ = env.step(int(actions[i]))
                if terminated or truncated:
                    dones[i] = 1.0
                    nxt[i], _ = env.reset()
            self.obs = nxt
            all_actions.append(actions)
            all_rewards.append(rewards)
            all_dones.append(dones)
        return np.stack(all_obs), np.stack(all_actions), np.stack(all_rewards), np.stack(all_dones)


def returns_of(rewards, dones, last_value, gamma):
    out = np.zeros_like(rewards)
    running = last_value
    for t in range(len(rewards) - 1, -1, -1):
        running = rewards[t] + gamma * (1 - dones[t]) * running
        out[t] = running
    return out


def main() -> None:
    args = parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    policy = Policy(4, 2)
    runner = Runner(args, policy)
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=args.lr, alpha=0.99, eps=1e-5)
    clock = 0.0
    for update in range(args.updates):
        if update == args.updates // 5:
            clock = time.perf_counter()
        obs, actions, rewards, dones = runner.rollout()
        with torch.no_grad():
            _, last = policy(torch.from_numpy(runner.obs))
        targets = torch.from_numpy(returns_of(rewards, dones, last.numpy(), args.gamma)).flatten()
        logits, values = policy(torch.from_numpy(obs).flatten(0, 1))
        logp = F.log_softmax(logits, -1)
        chosen = logp.gather(1, torch.from_numpy(actions).flatten()[:, None]).squeeze(1)
        adv = targets - values
        entropy = -(logp.exp() * logp).sum(-1).mean()
        loss = -(chosen * adv.detach()).mean() + 0.5 * adv.pow(2).mean() - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
    rate = (args.updates - args.updates // 5) / (time.perf_counter() - clock)
    result = {
        "env_steps": args.updates * args.n_envs * args.n_steps,
        "updates": args.updates,
        "units_per_s": rate,
        "checksum": float(sum(p.double().sum() for p in policy.parameters())),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
