"""Implicit Q-learning from logged data (Kostrikov et al. 2021). All data fits into memory as tensors."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from itertools import pairwise

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn


@dataclass
class Batch:
    obs: torch.Tensor
    action: torch.Tensor
    reward: torch.Tensor
    next_obs: torch.Tensor
    not_terminal: torch.Tensor

    def __len__(self) -> int:
        return len(self.obs)

    def rows(self, index: torch.Tensor) -> Batch:
        return Batch(
            self.obs[index],
            self.action[index],
            self.reward[index],
            self.next_obs[index],
            self.not_terminal[index],
        )


def collect(n: int, seed: int) -> Batch:
    """Log a mediocre controller on MountainCarContinuous: push in the direction of motion, with noise."""
    env = gym.make("MountainCarContinuous-v0")
    rng = np.random.default_rng(seed)
    obs, _ = env.reset(seed=seed)
    columns: list[list] = [[], [], [], [], []]
    for _ in range(n):
        action = np.clip([np.sign(obs[1]) * 0.8 + rng.normal(0.0, 0.5)], -1.0, 1.0).astype(np.float32)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        row = (obs, action, reward / 10.0, next_obs, 1.0 - terminated)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
        obs = env.reset()[0] if terminated or truncated else next_obs
    env.close()
    tensors = [torch.from_numpy(np.array(column, dtype=np.float32)) for column in columns]
    scale = torch.tensor([1.0, 15.0])  # position and speed have very different ranges
    tensors[0] *= scale
    tensors[3] *= scale
    return Batch(*tensors)


def mlp(sizes: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers[:-1])


class IQL(nn.Module):
    def __init__(
        self, obs_dim: int, act_dim: int, width: int, expectile: float, beta: float, gamma: float
    ) -> None:
        super().__init__()
        self.q1 = mlp([obs_dim + act_dim, width, width, 1])
        self.q2 = mlp([obs_dim + act_dim, width, width, 1])
        self.v = mlp([obs_dim, width, width, 1])
        self.policy = mlp([obs_dim, width, width, act_dim])
        self.log_std = nn.Parameter(torch.zeros(act_dim))
        self.q1_target = mlp([obs_dim + act_dim, width, width, 1]).requires_grad_(False)
        self.q2_target = mlp([obs_dim + act_dim, width, width, 1]).requires_grad_(False)
        self.q1_target.load_state_dict(self.q1.state_dict())
        self.q2_target.load_state_dict(self.q2.state_dict())
        self.expectile, self.beta, self.gamma = expectile, beta, gamma
        self.online = [*self.q1.parameters(), *self.q2.parameters()]
        self.slow = [*self.q1_target.parameters(), *self.q2_target.parameters()]

    def loss(self, batch: Batch) -> torch.Tensor:
        pair = torch.cat([batch.obs, batch.action], dim=1)
        with torch.no_grad():
            q = torch.minimum(self.q1_target(pair), self.q2_target(pair)).squeeze(1)
            next_v = self.v(batch.next_obs).squeeze(1)
            goal = batch.reward + self.gamma * batch.not_terminal * next_v
        advantage = q - self.v(batch.obs).squeeze(1)
        side = torch.where(advantage > 0, self.expectile, 1.0 - self.expectile)
        v_loss = (side * advantage.square()).mean()
        q_loss = (self.q1(pair).squeeze(1) - goal).square().mean() + (
            self.q2(pair).squeeze(1) - goal
        ).square().mean()
        weight = (self.beta * advantage.detach()).exp().clamp(max=100.0)
        error = (batch.action - torch.tanh(self.policy(batch.obs))) * torch.exp(-self.log_std)
        log_prob = (-0.5 * error.square() - self.log_std).sum(1)
        return v_loss + q_loss - (weight * log_prob).mean()

    @torch.no_grad()
    def move_targets(self, tau: float) -> None:
        torch._foreach_lerp_(self.slow, self.online, tau)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--transitions", type=int, default=20_000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    data = collect(args.transitions, args.seed)
    agent = IQL(data.obs.shape[1], data.action.shape[1], args.width, expectile=0.8, beta=3.0, gamma=0.99)
    learnt = [p for p in agent.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(learnt, lr=3e-4, fused=True)

    mark = args.updates // 5
    for update in range(args.updates):
        if update == mark:
            start = time.perf_counter()
        loss = agent.loss(data.rows(torch.randint(len(data), (args.batch_size,))))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        agent.move_targets(0.005)
        if (update + 1) % 200 == 0:
            print(f"update {update + 1}: loss {loss.item():.3f}")
    rate = (args.updates - mark) / (time.perf_counter() - start)

    checksum = sum(p.double().abs().sum().item() for p in learnt)
    out = {"env_steps": args.transitions, "updates": args.updates, "units_per_s": rate, "checksum": checksum}
    print(json.dumps(out))


if __name__ == "__main__":
    main()
