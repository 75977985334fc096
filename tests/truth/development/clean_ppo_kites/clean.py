"""PPO for 256 kites that are stepped as arrays; large minibatches."""

import json
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

KITES, ROLL, EPOCHS, MINIBATCH, OBS = 256, 32, 3, 2048, 5


class Kites:
    """A kite on a line: angle, turning rate and wind; the reward is its height."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.angle, self.rate = self.rng.uniform(-1, 1, (2, KITES)).astype(np.float32)
        self.wind = np.ones(KITES, np.float32)
        self.age = self.rng.integers(0, 200, KITES)

    def observe(self):
        return np.stack(
            [np.sin(self.angle), np.cos(self.angle), self.rate, self.wind, np.abs(self.rate)], axis=1
        )

    def step(self, pull):
        self.wind += 0.1 * (1 - self.wind) + 0.1 * self.rng.standard_normal(KITES, dtype=np.float32)
        self.rate += 0.1 * (pull * self.wind - np.sin(self.angle) - 0.3 * self.rate)
        self.angle += 0.1 * self.rate
        self.age += 1
        truncated = self.age >= 200
        old = np.flatnonzero(truncated)
        if len(old):
            self.angle[old], self.rate[old] = self.rng.uniform(-1, 1, (2, len(old)))
            self.age[old] = 0
        return self.observe(), -np.cos(self.angle) * self.wind, truncated


class Agent(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.heads = nn.Linear(hidden, 2)
        self.log_std = nn.Parameter(torch.tensor(-0.5))

    def forward(self, obs):
        mean, value = self.heads(self.body(obs)).unbind(-1)
        return mean, value

    def log_prob(self, mean, action):
        return -0.5 * ((action - mean) / self.log_std.exp()).square() - self.log_std


def gae(rewards, values, truncated, last_value, gamma=0.98, lam=0.95):
    """Advantages [ROLL, KITES]; an episode that was cut off is not continued."""
    advantages, running = np.empty_like(rewards), np.zeros(KITES, np.float32)
    following = last_value
    for t in reversed(range(ROLL)):
        going_on = ~truncated[t]
        delta = rewards[t] + gamma * following * going_on - values[t]
        running = advantages[t] = delta + gamma * lam * going_on * running
        following = values[t]
    return advantages


def main(iterations):
    torch.manual_seed(1)
    torch.set_num_threads(1)
    env, agent = Kites(1), Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=5e-4, fused=True)
    obs = np.empty((ROLL + 1, KITES, OBS), np.float32)
    actions, logs, rewards, values = np.empty((4, ROLL, KITES), np.float32)
    truncated = np.empty((ROLL, KITES), bool)
    obs[0], updates, marks = env.observe(), 0, []
    for _ in range(iterations):
        marks.append(time.perf_counter())
        with torch.inference_mode():
            for t in range(ROLL):
                mean, value = agent(torch.from_numpy(obs[t]))
                action = mean + agent.log_std.exp() * torch.randn(KITES)
                actions[t], values[t], logs[t] = action, value, agent.log_prob(mean, action)
                obs[t + 1], rewards[t], truncated[t] = env.step(actions[t])
            last_value = agent(torch.from_numpy(obs[ROLL]))[1].numpy()
        advantages = gae(rewards, values, truncated, last_value)
        returns = torch.from_numpy((advantages + values).ravel())
        normal = torch.from_numpy(((advantages - advantages.mean()) / (advantages.std() + 1e-8)).ravel())
        b_obs, b_actions = torch.from_numpy(obs[:ROLL].reshape(-1, OBS)), torch.from_numpy(actions.ravel())
        b_logs = torch.from_numpy(logs.ravel())
        for _ in range(EPOCHS):
            for index in torch.randperm(ROLL * KITES).split(MINIBATCH):
                mean, value = agent(b_obs[index])
                ratio = (agent.log_prob(mean, b_actions[index]) - b_logs[index]).exp()
                gain = normal[index]
                loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                loss = loss + 0.5 * F.mse_loss(value, returns[index])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
                updates += 1
        obs[0] = obs[ROLL]
    marks.append(time.perf_counter())
    first = iterations // 5
    rate = (iterations - first) / (marks[-1] - marks[first])
    checksum = float(sum(p.detach().abs().sum() for p in agent.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 120)
