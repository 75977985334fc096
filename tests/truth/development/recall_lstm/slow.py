# A2C with an LSTM on a T-maze: the cue at the start tells which way to turn at the end.
# Batched maze in numpy, all mazes have the same length, so an unroll is exactly one episode.
import json
import os
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

SEED = 0
EPISODES = int(sys.argv[1]) if len(sys.argv) > 1 else 170  # of the whole batch
N_ENVS = 16
LENGTH = 32
HIDDEN = 64
GAMMA = 0.99

torch.manual_seed(SEED)
torch.set_num_threads(1)


class TMazes:
    n_actions = 3  # left, right, forward
    obs_dim = 6

    def __init__(self, n, length, seed):
        self.n, self.length = n, length
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.cue = self.rng.integers(0, 2, self.n)
        self.pos = np.zeros(self.n)
        self.t = 0
        return self.observe()

    def observe(self):
        obs = np.zeros((self.n, self.obs_dim), np.float32)
        if self.t == 0:
            obs[np.arange(self.n), self.cue] = 1.0
        obs[:, 2] = self.pos / self.length
        obs[:, 3] = self.t / self.length
        obs[:, 4] = self.t == self.length - 1
        obs[:, 5] = self.rng.normal(0.0, 0.1, self.n)
        return obs

    def step(self, action):
        forward = action == 2
        last = self.t == self.length - 1
        if last:
            reward = np.where(action == self.cue, 1.0, -1.0) * (self.pos > 0.6 * self.length)
        else:
            self.pos += forward
            reward = np.where(forward, 0.02, -0.02)
        self.t += 1
        return self.observe(), reward.astype(np.float32), last


class RecurrentActorCritic(nn.Module):
    def __init__(self, obs_dim, n_actions):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(obs_dim, HIDDEN), nn.ReLU())
        self.lstm = nn.LSTM(HIDDEN, HIDDEN)
        self.pi = nn.Linear(HIDDEN, n_actions)
        self.v = nn.Linear(HIDDEN, 1)

    def forward(self, obs, state=None):
        """obs: (time, batch, features)"""
        x, state = self.lstm(self.encoder(obs), state)
        return self.pi(x), self.v(x).squeeze(-1), state


def play_episode(envs, model):
    obs_list, actions, rewards = [], [], []
    obs, state, last = envs.reset(), None, False
    with torch.no_grad():
        while not last:
            x = torch.from_numpy(obs)
            logits, _, state = model(x.unsqueeze(0), state)
            action = torch.multinomial(logits[0].softmax(-1), 1).squeeze(-1)
            obs, reward, last = envs.step(action.numpy())
            obs_list.append(x)
            actions.append(action)
            rewards.append(reward)
    return torch.stack(obs_list), torch.stack(actions), np.stack(rewards)


def evaluate(model, obs, actions):
    log_probs, values, entropies = [], [], []
    state = None
    for t in range(len(obs)):
        logits, value, state = model(obs[t : t + 1], state)
        dist = Categorical(logits=logits[0])
        log_probs.append(dist.log_prob(actions[t]))
        entropies.append(dist.entropy())
        values.append(value[0])
    return torch.stack(log_probs), torch.stack(values), torch.stack(entropies)


envs = TMazes(N_ENVS, LENGTH, SEED)
model = RecurrentActorCritic(TMazes.obs_dim, TMazes.n_actions)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
start = time.perf_counter()

for episode in range(EPISODES):
    if episode == EPISODES // 5:
        start = time.perf_counter()
    obs, actions, rewards = play_episode(envs, model)
    returns = np.zeros_like(rewards)
    g = np.zeros(N_ENVS, np.float32)
    for t in range(LENGTH - 1, -1, -1):
        g = rewards[t] + GAMMA * g
        returns[t] = g
    returns = torch.from_numpy(returns)

    for _ in range(2):
        log_probs, values, entropies = evaluate(model, obs, actions)
        advantages = (returns - values).detach()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        loss = (
            -(log_probs * advantages).mean()
            + 0.5 * (returns - values).pow(2).mean()
            - 0.01 * entropies.mean()
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    if episode % 50 == 0:
        print(episode, "return", round(float(rewards.sum(0).mean()), 3))

seconds = time.perf_counter() - start
print(
    json.dumps(
        {
            "env_steps": None,
            "updates": 2 * EPISODES,
            "units_per_s": (EPISODES - EPISODES // 5) / seconds,
            "checksum": sum(p.detach().abs().sum().item() for p in model.parameters()),
        }
    )
)
