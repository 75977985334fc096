"""PPO with random network distillation on a sparse map of islands, CleanRL style."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

ENVS, ROLL, EPOCHS, MINIBATCHES, SIDE = 16, 32, 4, 4, 24
VIEW = 9


class Islands:
    """A walker on a map with water; it sees VIEW x VIEW cells around it. All copies are stepped as arrays."""

    moves = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]])

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.map = (self.rng.random((SIDE, SIDE)) < 0.15).astype(np.float32)
        self.map[SIDE // 2, SIDE // 2] = 0.0
        self.padded = np.pad(self.map, VIEW // 2, constant_values=1.0)
        self.views = np.lib.stride_tricks.sliding_window_view(self.padded, (VIEW, VIEW))
        self.place = np.full((ENVS, 2), SIDE // 2)
        self.age = self.rng.integers(0, 100, ENVS)

    def observe(self):
        return self.views[self.place[:, 0], self.place[:, 1]].reshape(ENVS, VIEW * VIEW)

    def step(self, actions):
        wanted = np.clip(self.place + self.moves[actions], 0, SIDE - 1)
        dry = self.map[wanted[:, 0], wanted[:, 1]] == 0
        self.place = np.where(dry[:, None], wanted, self.place)
        reward = (self.place == 1).all(axis=1).astype(np.float32)
        self.age += 1
        ended = self.age >= 100
        self.place[ended], self.age[ended] = SIDE // 2, 0
        return self.observe(), reward, ended


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(VIEW * VIEW, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.policy, self.value = nn.Linear(64, 4), nn.Linear(64, 1)

    def forward(self, obs):
        x = self.body(obs)
        return torch.distributions.Categorical(logits=self.policy(x)), self.value(x).squeeze(-1)


def conv_features(channels, outputs):
    return nn.Sequential(
        nn.Unflatten(1, (1, VIEW, VIEW)),
        nn.Conv2d(1, channels, 3),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(channels * (VIEW - 4) ** 2, outputs),
    )


class Novelty(nn.Module):
    """Error of a learnt network at guessing the output of a fixed random one."""

    def __init__(self):
        super().__init__()
        self.predictor = nn.Sequential(nn.Linear(VIEW * VIEW, 128), nn.ReLU(), nn.Linear(128, 64))
        self.target = conv_features(32, 64).requires_grad_(False)

    def forward(self, obs, wanted):
        return (self.predictor(obs) - wanted).square().mean(dim=1)


def advantages_of(rewards, values, ended, last_value, gamma=0.98, lam=0.95):
    advantages, running = np.zeros_like(rewards), np.zeros(ENVS, np.float32)
    for t in reversed(range(ROLL)):
        following = last_value if t == ROLL - 1 else values[t + 1]
        delta = rewards[t] + gamma * following * ~ended[t] - values[t]
        running = advantages[t] = delta + gamma * lam * ~ended[t] * running
    return advantages


def main(iterations):
    torch.manual_seed(5)
    torch.set_num_threads(1)
    env, agent, novelty = Islands(5), Agent(), Novelty()
    trained = [*agent.parameters(), *novelty.predictor.parameters()]
    optimizer = torch.optim.Adam(trained, lr=3e-4, fused=True)
    obs, marks = env.observe(), []
    for _ in range(iterations):
        marks.append(time.perf_counter())
        seen = np.empty((ROLL, ENVS, VIEW * VIEW), np.float32)
        actions, ended = np.empty((ROLL, ENVS), np.int64), np.empty((ROLL, ENVS), bool)
        rewards, values, logs = (np.empty((ROLL, ENVS), np.float32) for _ in range(3))
        for t in range(ROLL):
            with torch.no_grad():
                policy, value = agent(torch.from_numpy(obs))
                action = policy.sample()
            seen[t], actions[t] = obs, action.numpy()
            values[t], logs[t] = value.numpy(), policy.log_prob(action).numpy()
            obs, rewards[t], ended[t] = env.step(actions[t])
        b_obs = torch.from_numpy(seen.reshape(-1, VIEW * VIEW))
        with torch.no_grad():
            b_wanted = novelty.target(b_obs)
            rewards += 0.5 * novelty(b_obs, b_wanted).numpy().reshape(ROLL, ENVS)
            last_value = agent(torch.from_numpy(obs))[1].numpy()
        advantages = advantages_of(rewards, values, ended, last_value)
        b_advantages = torch.from_numpy(advantages.ravel())
        b_returns = torch.from_numpy((advantages + values).ravel())
        b_actions, b_logs = torch.from_numpy(actions.ravel()), torch.from_numpy(logs.ravel())
        for _ in range(EPOCHS):
            for index in torch.randperm(ROLL * ENVS).chunk(MINIBATCHES):
                policy, value = agent(b_obs[index])
                ratio = (policy.log_prob(b_actions[index]) - b_logs[index]).exp()
                gain = b_advantages[index]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                policy_loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                value_loss = F.mse_loss(value, b_returns[index])
                distillation = novelty(b_obs[index], b_wanted[index]).mean()
                loss = policy_loss + 0.5 * value_loss - 0.01 * policy.entropy().mean() + distillation
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(trained, 0.5)
                optimizer.step()
    marks.append(time.perf_counter())
    first = iterations // 5
    rate = (iterations - first) / (marks[-1] - marks[first])
    checksum = float(sum(p.detach().abs().sum() for p in trained))
    updates = iterations * EPOCHS * MINIBATCHES
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=180)
    main(parser.parse_args().iterations)
