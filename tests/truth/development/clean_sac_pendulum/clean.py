"""Soft actor-critic on Pendulum, single file; both critics are one batched network."""

import argparse
import json
import math
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

BATCH, GAMMA, TAU = 256, 0.99, 0.005


class TwinCritic(nn.Module):
    """Two critics side by side: [batch, obs + action] -> [2, batch]."""

    def __init__(self, inputs, hidden=256):
        super().__init__()
        pairs = [(inputs, hidden), (hidden, hidden), (hidden, 1)]
        self.weights = nn.ParameterList(torch.empty(2, a, b).uniform_(-1, 1) / math.sqrt(a) for a, b in pairs)
        self.biases = nn.ParameterList(torch.zeros(2, 1, b) for _, b in pairs)

    def forward(self, obs, action):
        x = torch.cat([obs, action], dim=1).expand(2, -1, -1)
        for layer in range(3):
            x = torch.baddbmm(self.biases[layer], x, self.weights[layer])
            if layer < 2:
                x = F.relu(x)
        return x.squeeze(2)


class Actor(nn.Module):
    def __init__(self, obs, actions, hidden=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.out = nn.Linear(hidden, 2 * actions)

    def forward(self, obs):
        """A squashed sample in [-1, 1] and its log probability."""
        mean, log_std = self.out(self.body(obs)).chunk(2, dim=-1)
        log_std = log_std.clamp(-5, 2)
        noise = torch.randn_like(mean)
        raw = mean + log_std.exp() * noise
        log_prob = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        log_prob = log_prob - 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        return torch.tanh(raw), log_prob.sum(-1)


class Replay:
    """One float32 row a transition."""

    def __init__(self, capacity, obs, actions):
        self.split = (obs, actions, 1, obs)
        self.rows = np.zeros((capacity, sum(self.split)), np.float32)
        self.size = 0

    def add(self, obs, action, reward, next_obs):
        row = self.rows[self.size % len(self.rows)]
        o, a = self.split[0], self.split[0] + self.split[1]
        row[:o], row[o:a], row[a], row[a + 1 :] = obs, action, reward, next_obs
        self.size += 1

    def sample(self, rng):
        rows = self.rows[rng.integers(0, min(self.size, len(self.rows)), BATCH)]
        return torch.from_numpy(rows).split(self.split, dim=1)


def main(steps, start=300):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    env = gym.make("Pendulum-v1")
    actor, critic, target = Actor(3, 1), TwinCritic(4), TwinCritic(4)
    target.load_state_dict(critic.state_dict())
    target.requires_grad_(False)
    critic_parameters, target_parameters = list(critic.parameters()), list(target.parameters())
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4, fused=True)
    critic_optimizer = torch.optim.Adam(critic_parameters, lr=1e-3, fused=True)
    replay, alpha, updates, marks = Replay(100_000, 3, 1), 0.2, 0, []
    obs, _ = env.reset(seed=0)
    for step in range(steps):
        marks.append(time.perf_counter())
        if step < start:
            action = rng.uniform(-1, 1, 1).astype(np.float32)
        else:
            with torch.inference_mode():
                action = actor(torch.from_numpy(obs))[0].numpy()
        next_obs, reward, _, truncated, _ = env.step(2 * action)
        replay.add(obs, action, reward / 8, next_obs)
        obs = env.reset()[0] if truncated else next_obs
        if step < start:
            continue
        b_obs, b_actions, b_rewards, b_next = replay.sample(rng)
        with torch.no_grad():
            next_action, next_log = actor(b_next)
            aim = b_rewards.squeeze(1) + GAMMA * (target(b_next, next_action).amin(dim=0) - alpha * next_log)
        critic_loss = (critic(b_obs, b_actions) - aim).square().mean()
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        updates += 1
        if step % 2 == 0:
            critic.requires_grad_(False)
            action, log = actor(b_obs)
            actor_loss = (alpha * log - critic(b_obs, action).amin(dim=0)).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
            critic.requires_grad_(True)
            updates += 1
        with torch.no_grad():
            torch._foreach_lerp_(target_parameters, critic_parameters, TAU)
    marks.append(time.perf_counter())
    first = steps // 5
    rate = (steps - first) / (marks[-1] - marks[first])
    checksum = float(sum(p.detach().abs().sum() for p in actor.parameters()))
    print(json.dumps({"env_steps": steps, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2400)
    main(parser.parse_args().steps)
