"""Recurrent PPO for a pendulum whose speed is hidden. The pendulums are simulated side by side in numpy."""

import argparse
import json
import math
import time

import numpy as np
import torch
from torch import nn
from torch.nn.functional import softplus

torch.set_num_threads(1)


class HiddenSpeedPendulums:
    def __init__(self, count: int, horizon: int, seed: int):
        self.count, self.horizon = count, horizon
        self.rng = np.random.default_rng(seed)

    def reset(self) -> np.ndarray:
        self.angle = self.rng.uniform(-math.pi, math.pi, self.count)
        self.speed = self.rng.uniform(-1.0, 1.0, self.count)
        self.torque = np.zeros(self.count)
        return self.observe()

    def observe(self) -> np.ndarray:
        return np.stack([np.cos(self.angle), np.sin(self.angle), self.torque], axis=1).astype(np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.torque = np.clip(action, -2.0, 2.0)
        wrapped = (self.angle + math.pi) % (2 * math.pi) - math.pi
        cost = wrapped**2 + 0.1 * self.speed**2 + 0.001 * self.torque**2
        self.speed = np.clip(self.speed + (15.0 * np.sin(self.angle) + 3.0 * self.torque) * 0.05, -8.0, 8.0)
        self.angle = self.angle + self.speed * 0.05
        return self.observe(), (-cost / 8.0).astype(np.float32)


class Agent(nn.Module):
    def __init__(self, hidden: int):
        super().__init__()
        self.core = nn.LSTM(3, hidden)
        self.head = nn.Linear(hidden, 3)  # mean, width and value

    def heads(self, features):
        mean, width, value = self.head(features).unbind(-1)
        return mean, softplus(width) + 0.05, value

    def forward(self, obs):
        """Whole sequences from their beginning: (time, batch, 3)."""
        return self.heads(self.core(obs)[0])

    def step(self, obs, state):
        """One time step, which is cheaper as a cell than as a sequence of length one."""
        core = self.core
        state = torch.lstm_cell(
            obs, state, core.weight_ih_l0, core.weight_hh_l0, core.bias_ih_l0, core.bias_hh_l0
        )
        return *self.heads(state[0]), state


def log_density(action, mean, std):
    return -0.5 * ((action - mean) / std) ** 2 - std.log() - 0.9189385


def advantages_of(rewards, values, last_value, gamma=0.97, lam=0.95):
    result = np.zeros_like(rewards)
    running, following = np.zeros_like(last_value), last_value
    for t in range(len(rewards) - 1, -1, -1):
        delta = rewards[t] + gamma * following - values[t]
        running = delta + gamma * lam * running
        result[t] = running
        following = values[t]
    return result


def collect(pendulums, agent):
    """One unroll from fresh starting positions."""
    horizon, count = pendulums.horizon, pendulums.count
    obs = torch.empty(horizon, count, 3)
    actions, means, stds, values = (torch.empty(horizon, count) for _ in range(4))
    rewards = np.empty((horizon, count), np.float32)
    seen = torch.from_numpy(pendulums.reset())
    state = (torch.zeros(count, agent.core.hidden_size), torch.zeros(count, agent.core.hidden_size))
    with torch.no_grad():
        for t in range(horizon):
            means[t], stds[t], values[t], state = agent.step(seen, state)
            obs[t] = seen
            actions[t] = torch.normal(means[t], stds[t])
            following, rewards[t] = pendulums.step(actions[t].numpy())
            seen = torch.from_numpy(following)
        last_value = agent.step(seen, state)[2]
        log_probs = log_density(actions, means, stds)
    advantages = torch.from_numpy(advantages_of(rewards, values.numpy(), last_value.numpy()))
    returns = advantages + values
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    return obs, actions, log_probs, advantages, returns, float(rewards.mean())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=120)
    parser.add_argument("--pendulums", type=int, default=64)
    parser.add_argument("--horizon", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minibatches", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    pendulums = HiddenSpeedPendulums(args.pendulums, args.horizon, args.seed)
    agent = Agent(args.hidden)
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
    updates, first, began = 0, args.iterations // 5, time.perf_counter()

    for iteration in range(args.iterations):
        if iteration == first:
            began = time.perf_counter()
        obs, actions, old_log_probs, advantages, returns, reward = collect(pendulums, agent)
        for _ in range(args.epochs):
            for columns in np.array_split(rng.permutation(args.pendulums), args.minibatches):
                mean, std, value = agent(obs[:, columns])
                ratio = (log_density(actions[:, columns], mean, std) - old_log_probs[:, columns]).exp()
                gain = advantages[:, columns]
                surrogate = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                loss = (
                    0.5 * (value - returns[:, columns]).pow(2).mean() - surrogate - 0.001 * std.log().mean()
                )
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
                updates += 1
        if iteration % 10 == 0:
            print(f"iteration {iteration}: mean reward {reward:.3f}")

    elapsed = time.perf_counter() - began
    result = {
        "env_steps": None,
        "updates": updates,
        "units_per_s": (args.iterations - first) / elapsed,
        "checksum": sum(p.detach().abs().sum().item() for p in agent.parameters()),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
