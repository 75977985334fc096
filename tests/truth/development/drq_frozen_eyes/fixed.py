"""Soft Q-learning from pictures: a pretrained, frozen encoder, randomly shifted pictures, a small head."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SIDE, ENVS, ACTIONS, BATCH = 32, 8, 5, 48


class Lawn:
    """A mower (bright square) looks for a patch of high grass (ring); pictures are drawn as arrays."""

    moves = np.array([[0, 2], [2, 0], [0, -2], [-2, 0], [0, 0]])

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.mower, self.patch = self.rng.integers(2, SIDE - 2, (2, ENVS, 2))
        self.age = self.rng.integers(0, 40, ENVS)
        self.rows, self.columns = np.arange(SIDE)[None, :, None], np.arange(SIDE)[None, None, :]

    def picture(self):
        def distance(what):
            return np.maximum(abs(self.rows - what[:, :1, None]), abs(self.columns - what[:, 1:, None]))

        ring = distance(self.patch) == 2
        return (255 * (distance(self.mower) <= 1) + 120 * ring).astype(np.uint8)[:, None]

    def step(self, actions):
        self.mower = np.clip(self.mower + self.moves[actions], 2, SIDE - 3)
        reward = -np.abs(self.mower - self.patch).sum(axis=1) / SIDE
        self.age += 1
        old = np.flatnonzero(self.age >= 40)
        if len(old):
            self.age[old] = 0
            self.patch[old] = self.rng.integers(2, SIDE - 2, (len(old), 2))
        return self.picture(), reward.astype(np.float32)


class Vision(nn.Module):
    """The encoder comes from another task and is not trained here."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 36, 64),
        )
        self.head = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, ACTIONS))

    def forward(self, pictures):
        with torch.no_grad():
            seen = self.encoder(pictures.float() / 255 - 0.5)
        return self.head(seen)


def random_shift(pictures, pad=2):
    """The whole batch is moved by the same random offset, new at every call."""
    x, y = torch.randint(0, 2 * pad + 1, (2,)).tolist()
    return F.pad(pictures, (pad,) * 4)[..., y : y + SIDE, x : x + SIDE]


class Replay:
    def __init__(self, capacity=6_400):
        self.pictures = np.zeros((2, capacity, 1, SIDE, SIDE), np.uint8)
        self.actions, self.rewards = np.zeros(capacity, np.int64), np.zeros(capacity, np.float32)
        self.at = self.size = 0

    def add(self, before, actions, rewards, after):
        rows = slice(self.at, self.at + ENVS)
        self.pictures[0, rows], self.pictures[1, rows] = before, after
        self.actions[rows], self.rewards[rows] = actions, rewards
        self.at = (self.at + ENVS) % len(self.actions)
        self.size = min(self.size + ENVS, len(self.actions))

    def sample(self, rng):
        index = rng.integers(0, self.size, BATCH)
        columns = (self.pictures[0], self.pictures[1], self.actions, self.rewards)
        return [torch.from_numpy(column[index]) for column in columns]


def main(steps):
    torch.manual_seed(19)
    torch.set_num_threads(1)
    rng = np.random.default_rng(19)
    env, replay, net, target = Lawn(19), Replay(), Vision(), Vision()
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.head.parameters(), lr=5e-4, fused=True)
    pictures, marks = env.picture(), []
    for step in range(steps):
        marks.append(time.perf_counter())
        with torch.no_grad():
            values = net(torch.from_numpy(pictures))
            actions = torch.distributions.Categorical(logits=values / 0.1).sample().numpy()
        after, rewards = env.step(actions)
        replay.add(pictures, actions, rewards, after)
        pictures = after
        before, after, actions, rewards = replay.sample(rng)
        with torch.no_grad():
            aim = rewards + 0.95 * 0.1 * torch.logsumexp(target(random_shift(after)) / 0.1, dim=1)
        chosen = net(random_shift(before)).gather(1, actions.unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(chosen, aim)
        net.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            target.head.load_state_dict(net.head.state_dict())
    marks.append(time.perf_counter())
    first = steps // 5
    rate = (steps - first) / (marks[-1] - marks[first])
    checksum = float(sum(p.detach().abs().sum() for p in net.parameters()))
    print(json.dumps({"env_steps": None, "updates": steps, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=700)
    main(parser.parse_args().steps)
