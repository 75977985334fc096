"""REINFORCE with a value baseline on CartPole."""

import json
import sys
from time import perf_counter

import gymnasium as gym
import numpy as np
import torch
from torch import nn, optim
from torch.distributions import Categorical

torch.set_num_threads(1)
torch.manual_seed(21)

BATCHES = int(sys.argv[1]) if len(sys.argv) > 1 else 120
STEPS_PER_BATCH = 500
env = gym.make("CartPole-v1")
val_env = gym.make("CartPole-v1")

actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
baseline = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = optim.Adam([*actor.parameters(), *baseline.parameters()], lr=3e-3)


def choose(obs, greedy=False):
    with torch.no_grad():
        logits = actor(torch.from_numpy(obs))
    return int(logits.argmax()) if greedy else int(Categorical(logits=logits).sample())


def collect():
    observations, actions, returns = [], [], []
    while len(actions) < STEPS_PER_BATCH:
        obs, _ = env.reset()
        rewards, over = [], False
        while not over and len(actions) < STEPS_PER_BATCH:
            action = choose(obs)
            observations.append(obs)
            actions.append(action)
            obs, reward, terminated, truncated, _ = env.step(action)
            rewards.append(float(reward))
            over = terminated or truncated
        total, backwards = 0.0, []
        for r in reversed(rewards):
            total = r + 0.99 * total
            backwards.append(total)
        returns.extend(reversed(backwards))
    return np.array(observations), np.array(actions), np.array(returns, dtype=np.float32)


def average_score(episodes):
    scores = []
    for k in range(episodes):
        obs, _ = val_env.reset(seed=1000 + k)
        score, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = val_env.step(choose(obs, greedy=True))
            score += float(reward)
            over = terminated or truncated
        scores.append(score)
    return sum(scores) / len(scores)


env.reset(seed=21)
best = 0.0
for batch in range(BATCHES):
    if batch == BATCHES // 5:
        since = perf_counter()
    obs, actions, returns = (torch.from_numpy(x) for x in collect())
    values = baseline(obs).squeeze(1)
    adv = returns - values.detach()
    logp = Categorical(logits=actor(obs)).log_prob(actions)
    loss = (
        -(logp * (adv - adv.mean()) / (adv.std() + 1e-6)).mean()
        + 0.5 * (returns - values).pow(2).mean() / 100
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if batch % 2 == 0:
        best = max(best, average_score(10))

print(f"best {best:.0f}")
print(
    json.dumps(
        {
            "env_steps": BATCHES * STEPS_PER_BATCH,
            "updates": BATCHES,
            "units_per_s": (BATCHES - BATCHES // 5) / (perf_counter() - since),
            "checksum": float(sum(p.double().sum() for p in [*actor.parameters(), *baseline.parameters()])),
        }
    )
)
