"""Population-based training of actor-critic agents that follow a moving target."""

import argparse
import json
import os
import time

import numpy as np
import torch
from torch import nn

MEMBERS, ENVS, ROLL, ROUND = 6, 16, 5, 3


class Chase:
    """Agents in the plane follow targets on noisy circles; all copies are stepped as arrays."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.place = self.rng.uniform(-1, 1, (ENVS, 2)).astype(np.float32)
        self.phase = self.rng.uniform(0, 2 * np.pi, ENVS).astype(np.float32)

    def observe(self):
        target = np.stack([np.cos(self.phase), np.sin(self.phase)], axis=1)
        return np.concatenate([self.place, target, target - self.place], axis=1)

    def step(self, actions):
        self.place = np.clip(self.place + 0.1 * np.clip(actions, -1, 1), -2, 2)
        self.phase = self.phase + 0.05 + 0.02 * self.rng.standard_normal(ENVS, dtype=np.float32)
        obs = self.observe()
        return obs, -np.square(obs[:, 4:]).sum(axis=1)


class Net(nn.Module):
    def __init__(self, hidden=320):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.mean, self.value = nn.Linear(hidden, 2), nn.Linear(hidden, 1)
        self.log_std = nn.Parameter(torch.full((2,), -0.5))

    def forward(self, obs):
        x = self.body(obs)
        return torch.distributions.Normal(self.mean(x), self.log_std.exp()), self.value(x).squeeze(-1)


class Member:
    """One agent with its own learning rate and discount."""

    def __init__(self, number, rng):
        self.number, self.env, self.net = number, Chase(100 + number), Net()
        self.rate, self.gamma = float(10 ** rng.uniform(-4, -3)), float(rng.uniform(0.8, 0.97))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=self.rate, fused=True)
        self.obs, self.score = self.env.observe(), 0.0

    def train(self):
        """One A2C update on ROLL steps."""
        obs = np.empty((ROLL, ENVS, 6), np.float32)
        actions, rewards = np.empty((ROLL, ENVS, 2), np.float32), np.empty((ROLL, ENVS), np.float32)
        for t in range(ROLL):
            with torch.no_grad():
                action = self.net(torch.from_numpy(self.obs))[0].sample().numpy()
            obs[t], actions[t] = self.obs, action
            self.obs, rewards[t] = self.env.step(action)
        with torch.no_grad():
            running = self.net(torch.from_numpy(self.obs))[1].numpy()
        returns = np.empty_like(rewards)
        for t in reversed(range(ROLL)):
            running = returns[t] = rewards[t] + self.gamma * running
        policy, value = self.net(torch.from_numpy(obs))
        advantage = torch.from_numpy(returns) - value
        gain = policy.log_prob(torch.from_numpy(actions)).sum(-1) * advantage.detach()
        loss = 0.5 * advantage.square().mean() - gain.mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.score = 0.9 * self.score + 0.1 * float(rewards.mean())

    def set_rate(self):
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate


def checkpoint(number):
    return os.path.join("population", f"member_{number}.pt")


def exchange(members, rng):
    """The worst third take over weights, optimizer and settings of the best third, with a change."""
    for member in members:
        state = {"net": member.net.state_dict(), "optimizer": member.optimizer.state_dict()}
        torch.save(state, checkpoint(member.number))
    order = sorted(members, key=lambda member: member.score)
    third = MEMBERS // 3
    parents = {member.number: member for member in members}
    for loser, winner in zip(order[:third], order[-third:], strict=True):
        parents[loser.number] = winner
        loser.rate = winner.rate * float(rng.choice([0.8, 1.25]))
        loser.gamma = float(np.clip(winner.gamma + rng.normal(0, 0.01), 0.7, 0.99))
    for member in members:
        state = torch.load(checkpoint(parents[member.number].number))
        member.net.load_state_dict(state["net"])
        member.optimizer.load_state_dict(state["optimizer"])
        member.set_rate()


def main(rounds):
    torch.manual_seed(7)
    torch.set_num_threads(1)
    os.makedirs("population", exist_ok=True)
    rng = np.random.default_rng(7)
    members, marks = [Member(i, rng) for i in range(MEMBERS)], []
    for _ in range(rounds):
        marks.append(time.perf_counter())
        for member in members:
            for _ in range(ROUND):
                member.train()
        exchange(members, rng)
    marks.append(time.perf_counter())
    first = rounds // 5
    rate = (rounds - first) / (marks[-1] - marks[first])
    checksum = float(sum(p.detach().abs().sum() for m in members for p in m.net.parameters()))
    updates = rounds * ROUND * MEMBERS
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=150)
    main(parser.parse_args().rounds)
