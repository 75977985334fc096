"""Offline AWAC on logged Pendulum data."""

import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

torch.set_num_threads(1)


def behaviour_action(obs, rng):
    """Noisy energy-based swing-up controller, the source of the logged data."""
    cos, sin, speed = obs
    angle = np.arctan2(sin, cos)
    if abs(angle) < 0.5:
        torque = -10.0 * angle - 2.0 * speed
    else:
        torque = np.sign(speed + 1e-3) * (5.0 - 0.5 * speed * speed - 5.0 * cos)
    return np.clip(np.array([torque + rng.normal(0, 0.7)]), -2.0, 2.0).astype(np.float32)


def log_data(steps, seed):
    env = gym.make("Pendulum-v1")
    rng = np.random.default_rng(seed)
    rows = []
    obs, _ = env.reset(seed=seed)
    for _ in range(steps):
        action = behaviour_action(obs, rng)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, action, 0.1 * reward, next_obs, float(terminated)))
        obs = env.reset()[0] if terminated or truncated else next_obs
    env.close()
    return [np.array(column, dtype=np.float32) for column in zip(*rows, strict=True)]


class TransitionDataset(Dataset):
    """Indexed with a list of rows, gives the whole batch."""

    def __init__(self, observations, actions, rewards, next_observations, terminals):
        self.tensors = [
            torch.from_numpy(a) for a in (observations, actions, rewards, next_observations, terminals)
        ]

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, rows):
        rows = torch.as_tensor(rows)
        return [t[rows] for t in self.tensors]


def mlp(inputs, outputs, width=64):
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
    )


class AWAC:
    def __init__(self, obs_dim, act_dim, gamma=0.99, tau=0.005, temperature=1.0, lr=3e-4):
        self.policy = mlp(obs_dim, act_dim)
        self.log_std = nn.Parameter(torch.full((act_dim,), -0.5))
        self.q = mlp(obs_dim + act_dim, 1)
        self.q_target = mlp(obs_dim + act_dim, 1)
        self.q_target.load_state_dict(self.q.state_dict())
        self.q_target.requires_grad_(False)
        self.policy_optimizer = torch.optim.Adam([*self.policy.parameters(), self.log_std], lr=lr, fused=True)
        self.q_optimizer = torch.optim.Adam(self.q.parameters(), lr=lr, fused=True)
        self.gamma, self.tau, self.temperature = gamma, tau, temperature

    def act(self, obs):
        mean = self.policy(obs)
        return (mean + self.log_std.exp() * torch.randn_like(mean)).clamp(-2.0, 2.0)

    def update(self, obs, action, reward, next_obs, terminal):
        with torch.no_grad():
            next_q = self.q_target(torch.cat([next_obs, self.act(next_obs)], dim=1)).squeeze(1)
            target = reward + self.gamma * (1.0 - terminal) * next_q
        q = self.q(torch.cat([obs, action], dim=1)).squeeze(1)
        q_loss = (q - target).square().mean()
        self.q_optimizer.zero_grad()
        q_loss.backward()
        self.q_optimizer.step()

        with torch.no_grad():
            value = self.q(torch.cat([obs, self.act(obs)], dim=1)).squeeze(1)
            weight = ((q - value) / self.temperature).clamp(max=3.0).exp()
        noise = (action - self.policy(obs)) * torch.exp(-self.log_std)
        log_prob = (-0.5 * noise.square() - self.log_std).sum(1)
        policy_loss = -(weight * log_prob).mean()
        self.policy_optimizer.zero_grad()
        policy_loss.backward()
        self.policy_optimizer.step()

        with torch.no_grad():
            for p, pt in zip(self.q.parameters(), self.q_target.parameters(), strict=True):
                pt.lerp_(p, self.tau)
        return policy_loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--transitions", type=int, default=6144)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    dataset = TransitionDataset(*log_data(args.transitions, args.seed))
    batches = BatchSampler(RandomSampler(dataset), args.batch_size, drop_last=True)
    loader = DataLoader(dataset, sampler=batches, batch_size=None)
    agent = AWAC(obs_dim=3, act_dim=1)

    mark = args.epochs // 5
    for epoch in range(args.epochs):
        if epoch == mark:
            start = time.perf_counter()
        for batch in loader:
            loss = agent.update(*batch)
        if (epoch + 1) % 20 == 0:
            print(f"epoch {epoch + 1}: policy loss {loss.item():.3f}")
    seconds = time.perf_counter() - start

    result = {
        "env_steps": args.transitions,
        "updates": None,
        "units_per_s": (args.epochs - mark) / seconds,
        "checksum": sum(
            p.double().abs().sum().item() for p in [*agent.policy.parameters(), *agent.q.parameters()]
        ),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
