"""Policy gradient on Acrobot, with a picture of the progress on disk."""
import json
import os
import sys
import tempfile
import time

import gymnasium as gym
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions import Categorical

EPISODES = int(sys.argv[1]) if len(sys.argv) > 1 else 400
GAMMA = 0.99
PICTURE = os.path.join(tempfile.gettempdir(), f"acrobot_{os.getpid()}.png")

torch.manual_seed(2)
torch.set_num_threads(1)
env = gym.make("Acrobot-v1", max_episode_steps=200)
policy = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3))
value = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = optim.Adam([*policy.parameters(), *value.parameters()], lr=4e-3)

episode_returns = []
episode_losses = []


def plot_progress():
    fig, (top, bottom) = plt.subplots(2, 1, figsize=(7, 6))
    top.set_title("Training...")
    top.set_ylabel("Return")
    top.plot(episode_returns, alpha=0.4)
    if len(episode_returns) >= 20:
        means = np.convolve(episode_returns, np.ones(20) / 20, mode="valid")
        top.plot(np.arange(19, len(episode_returns)), means)
    bottom.set_xlabel("Episode")
    bottom.set_ylabel("Loss")
    bottom.plot(episode_losses)
    fig.savefig(PICTURE)
    plt.close(fig)


def run_episode(seed):
    states, actions, rewards = [], [], []
    state, _ = env.reset(seed=seed)
    done = False
    while not done:
        with torch.no_grad():
            logits = policy(torch.from_numpy(state))
        action = int(Categorical(logits=logits, validate_args=False).sample())
        states.append(state)
        state, reward, terminated, truncated, _ = env.step(action)
        actions.append(action)
        rewards.append(reward)
        done = terminated or truncated
    return np.stack(states), actions, rewards


def learn(states, actions, rewards):
    returns, g = [], 0.0
    for r in reversed(rewards):
        g = r + GAMMA * g
        returns.append(g)
    returns = torch.tensor(returns[::-1], dtype=torch.float32) / 50.0
    x = torch.from_numpy(states)
    v = value(x).squeeze(-1)
    dist = Categorical(logits=policy(x))
    advantage = (returns - v).detach()
    loss = -(dist.log_prob(torch.tensor(actions)) * advantage).mean() + (returns - v).pow(2).mean() - 0.01 * dist.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


steps = counted = 0
for episode in range(EPISODES):
    if episode == EPISODES // 5:
        start, counted = time.perf_counter(), steps
    states, actions, rewards = run_episode(episode)
    steps += len(rewards)
    episode_losses.append(learn(states, actions, rewards))
    episode_returns.append(sum(rewards))
    if episode % 25 == 0:
        print(f"episode {episode}: return {np.mean(episode_returns[-25:]):.1f}", flush=True)

rate = (steps - counted) / (time.perf_counter() - start)
plot_progress()
env.close()
os.remove(PICTURE)
print(json.dumps({"env_steps": steps, "updates": EPISODES, "units_per_s": rate, "checksum": float(np.sum(episode_returns))}))
