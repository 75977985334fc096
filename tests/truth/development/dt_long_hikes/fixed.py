"""Decision transformer on logged hikes: offline RL with a Dataset and a DataLoader."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

OBS, ACTIONS, CONTEXT, WIDTH = 6, 4, 8, 32


def log_hikes(number, steps, seed):
    """Trajectories of a noisy hill climber: observations, actions and rewards."""
    rng = np.random.default_rng(seed)
    place = rng.uniform(-2, 2, (number, 2))
    step_of = np.array([[0.1, 0], [-0.1, 0], [0, 0.1], [0, -0.1]])
    observations, actions, rewards = [], [], []
    height = -np.square(place).sum(1)
    for t in range(steps):
        slope = -2 * place
        best = np.where(np.abs(slope[:, 0]) > np.abs(slope[:, 1]), slope[:, 0] < 0, 2 + (slope[:, 1] < 0))
        action = np.where(rng.random(number) < 0.4, rng.integers(0, ACTIONS, number), best)
        wind = np.full((number, 2), np.sin(t / 50) * 0.1)
        observations.append(np.concatenate([place, slope, wind], axis=1))
        place = place + step_of[action] + 0.3 * wind + rng.normal(0, 0.05, (number, 2))
        new_height = -np.square(place).sum(1)
        actions.append(action)
        rewards.append(new_height - height)
        height = new_height
    stacked = (np.stack(column, axis=1) for column in (observations, actions, rewards))
    return [(o.astype(np.float32), a, r.astype(np.float32)) for o, a, r in zip(*stacked, strict=True)]


def discount_cumsum(rewards, gamma):
    sums = np.zeros_like(rewards)
    sums[-1] = rewards[-1]
    for t in reversed(range(len(rewards) - 1)):
        sums[t] = rewards[t] + gamma * sums[t + 1]
    return sums


class Hikes(Dataset):
    """Windows of CONTEXT steps with the return still to come."""

    def __init__(self, hikes):
        self.hikes = hikes
        self.to_go = [discount_cumsum(rewards, gamma=0.99) for _, _, rewards in hikes]
        self.steps = len(hikes[0][1])

    def __len__(self):
        return len(self.hikes) * (self.steps - CONTEXT)

    def __getitem__(self, index):
        hike, start = divmod(index, self.steps - CONTEXT)
        observations, actions, _ = self.hikes[hike]
        window = slice(start, start + CONTEXT)
        to_go = self.to_go[hike][window]
        return observations[window], actions[window], to_go, np.arange(start, start + CONTEXT)


class DecisionTransformer(nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.obs, self.to_go = nn.Linear(OBS, WIDTH), nn.Linear(1, WIDTH)
        self.action, self.time = nn.Embedding(ACTIONS, WIDTH), nn.Embedding(steps, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, ACTIONS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(3 * CONTEXT))

    def forward(self, observations, actions, to_go, times):
        when = self.time(times)
        parts = (
            self.to_go(to_go.unsqueeze(-1)) + when,
            self.obs(observations) + when,
            self.action(actions) + when,
        )
        x = torch.stack(parts, dim=2).flatten(1, 2)
        x = self.blocks(x, mask=self.mask, is_causal=True)
        return self.head(x[:, 1::3])


def main(updates, steps=1000):
    torch.manual_seed(9)
    torch.set_num_threads(1)
    data = Hikes(log_hikes(60, steps, 9))
    loader = DataLoader(data, batch_size=64, shuffle=True, drop_last=True)
    model = DecisionTransformer(steps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    marks = []
    while len(marks) < updates:
        for observations, actions, to_go, times in loader:
            marks.append(time.perf_counter())
            logits = model(observations, actions, to_go, times)
            loss = F.cross_entropy(logits.flatten(0, 1), actions.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            if len(marks) == updates:
                break
    marks.append(time.perf_counter())
    first = updates // 5
    rate = (updates - first) / (marks[-1] - marks[first])
    checksum = float(sum(p.detach().abs().sum() for p in model.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=1000)
    main(parser.parse_args().updates)
