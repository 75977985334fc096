"""DQN with prioritised replay on CartPole, single file."""

import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class PrioritisedReplay:
    """Proportional prioritised replay; sums of priorities are kept in a binary tree."""

    def __init__(self, capacity, obs_size, alpha=0.6):
        self.capacity, self.alpha = capacity, alpha
        self.levels = capacity.bit_length() - 1
        if 2**self.levels != capacity:
            raise ValueError(f"capacity is {capacity}; give a power of two")
        self.tree = np.zeros(2 * capacity)
        self.obs = np.zeros((capacity, obs_size), dtype=np.float32)
        self.next_obs = np.zeros((capacity, obs_size), dtype=np.float32)
        self.actions = np.zeros(capacity, dtype=np.int64)
        self.rewards = np.zeros(capacity, dtype=np.float32)
        self.terminated = np.zeros(capacity, dtype=np.float32)
        self.at = self.size = 0
        self.highest = 1.0

    def write(self, leaves, priorities):
        nodes = leaves + self.capacity
        self.tree[nodes] = priorities
        for _ in range(self.levels):
            nodes = nodes >> 1
            self.tree[nodes] = self.tree[2 * nodes] + self.tree[2 * nodes + 1]

    def write_one(self, leaf, priority):
        tree, node = self.tree, leaf + self.capacity
        change = priority - tree[node]
        tree[node] = priority
        while node > 1:
            node >>= 1
            tree[node] += change

    def add(self, obs, action, reward, next_obs, terminated):
        i = self.at
        self.obs[i], self.next_obs[i] = obs, next_obs
        self.actions[i], self.rewards[i], self.terminated[i] = action, reward, terminated
        self.write_one(i, self.highest)
        self.at = (i + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, batch, beta, rng):
        mass = (rng.random(batch) + np.arange(batch)) / batch * self.tree[1] * 0.99999
        nodes = np.ones(batch, dtype=np.int64)
        for _ in range(self.levels):
            left = self.tree[2 * nodes]
            right = mass >= left
            mass = mass - left * right
            nodes = 2 * nodes + right
        leaves = np.minimum(nodes - self.capacity, self.size - 1)
        weights = (self.size * self.tree[leaves + self.capacity] / self.tree[1] + 1e-9) ** -beta
        return leaves, torch.from_numpy((weights / weights.max()).astype(np.float32))

    def update(self, leaves, errors):
        priorities = (np.abs(errors) + 1e-3) ** self.alpha
        self.highest = max(self.highest, float(priorities.max()))
        self.write(leaves, priorities)


def q_network(obs_size, actions):
    return nn.Sequential(
        nn.Linear(obs_size, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, actions)
    )


def learn(q, target, optimizer, replay, beta, rng):
    leaves, weights = replay.sample(128, beta, rng)
    obs, next_obs, actions, rewards, terminated = (
        torch.from_numpy(column[leaves])
        for column in (replay.obs, replay.next_obs, replay.actions, replay.rewards, replay.terminated)
    )
    with torch.no_grad():
        following = target(next_obs).gather(1, q(next_obs).argmax(1, keepdim=True)).squeeze(1)
        aim = rewards + 0.99 * (1 - terminated) * following
    chosen = q(obs).gather(1, actions.unsqueeze(1)).squeeze(1)
    loss = (weights * F.smooth_l1_loss(chosen, aim, reduction="none")).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    replay.update(leaves, (chosen.detach() - aim).numpy())


def main(steps):
    torch.manual_seed(1)
    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    env = gym.make("CartPole-v1")
    q, target = q_network(4, 2), q_network(4, 2)
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=5e-4, fused=True)
    replay = PrioritisedReplay(2**20, 4)
    obs, _ = env.reset(seed=1)
    updates, marks = 0, []
    for step in range(steps):
        marks.append(time.perf_counter())
        if rng.random() < max(0.05, 1 - step / (0.5 * steps)):
            action = int(rng.integers(2))
        else:
            with torch.no_grad():
                action = int(q(torch.from_numpy(obs)).argmax())
        next_obs, reward, terminated, truncated, _ = env.step(action)
        replay.add(obs, action, reward, next_obs, terminated)
        obs = env.reset()[0] if terminated or truncated else next_obs
        if step >= 500 and step % 8 == 0:
            learn(q, target, optimizer, replay, 0.4 + 0.6 * step / steps, rng)
            updates += 1
        if step % 500 == 0:
            target.load_state_dict(q.state_dict())
    marks.append(time.perf_counter())
    first = steps // 5
    rate = (steps - first) / (marks[-1] - marks[first])
    checksum = float(sum(p.detach().abs().sum() for p in q.parameters()))
    print(json.dumps({"env_steps": steps, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=36_000)
    main(parser.parse_args().steps)
