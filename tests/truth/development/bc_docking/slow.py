"""
Behaviour cloning of a docking controller from logged demonstrations.

    python train_bc.py [epochs]
"""
import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

SEED = 7
STATE_DIM = 10
ACTION_DIM = 3


def make_demonstrations(n_episodes=100, length=120):
    """Roll the scripted controller in all episodes at once and log states and noisy actions."""
    rng = np.random.default_rng(SEED)
    pos = rng.uniform(-5, 5, (n_episodes, 3))
    vel = rng.normal(0, 0.3, (n_episodes, 3))
    att = rng.normal(0, 0.5, (n_episodes, 4))
    states, actions, rewards = [], [], []
    for _ in range(length):
        state = np.concatenate([pos, vel, att], axis=1)
        act = np.tanh(-0.8 * pos - 1.2 * vel + 0.2 * att[:, :3])
        act = act + rng.normal(0, 0.1, act.shape)
        vel = 0.98 * vel + 0.1 * act
        pos = pos + 0.1 * vel
        att = 0.97 * att + 0.02 * rng.normal(size=att.shape)
        states.append(state)
        actions.append(act)
        rewards.append(-np.linalg.norm(pos, axis=1))
    states = np.stack(states, axis=1).astype(np.float32)
    actions = np.stack(actions, axis=1).astype(np.float32)
    rewards = np.stack(rewards, axis=1)
    togo = np.cumsum(rewards[:, ::-1], axis=1)[:, ::-1]
    weights = np.exp((togo - togo.mean(0)) / (togo.std(0) + 1e-6)).clip(0, 5).astype(np.float32)
    return states.reshape(-1, STATE_DIM), actions.reshape(-1, ACTION_DIM), weights.reshape(-1)


class BCPolicy(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(STATE_DIM, hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU())
        self.mean = nn.Linear(hidden, ACTION_DIM)
        self.log_std = nn.Parameter(torch.full((ACTION_DIM,), -1.0))

    def neg_log_prob(self, states, actions):
        mean = self.mean(self.body(states))
        z = (actions - mean) * torch.exp(-self.log_std)
        return (0.5 * z.pow(2) + self.log_std).sum(dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("epochs", type=int, nargs="?", default=240)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(SEED)
    torch.set_num_threads(1)

    states, actions, weights = make_demonstrations()
    states = (states - states.mean(0)) / states.std(0)
    dataset = TensorDataset(torch.from_numpy(states), torch.from_numpy(actions), torch.from_numpy(weights))
    shuffle_rng = torch.Generator().manual_seed(SEED)
    sampler = RandomSampler(dataset, generator=shuffle_rng)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)

    policy = BCPolicy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=args.lr)
    updates = 0
    warm = args.epochs // 5
    for epoch in range(args.epochs):
        if epoch == warm:
            begin, done_before = time.perf_counter(), updates
        running = torch.zeros(())
        for batch_states, batch_actions, batch_weights in loader:
            nll = policy.neg_log_prob(batch_states, batch_actions)
            loss = (batch_weights * nll).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.detach()
            updates += 1
        if epoch % 5 == 0:
            print(f"epoch {epoch:3d}  loss {running.item() / len(loader):.4f}")

    seconds = time.perf_counter() - begin
    checksum = sum(p.detach().double().sum().item() for p in policy.parameters())
    print(json.dumps({"env_steps": None, "updates": updates,
                      "units_per_s": (updates - done_before) / seconds,
                      "checksum": round(checksum, 6)}))


if __name__ == "__main__":
    main()
