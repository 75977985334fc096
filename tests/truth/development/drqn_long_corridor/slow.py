"""Recurrent Q-learning: remember a cue seen at the entrance of a corridor until its end."""

import json
import sys
import time
from collections import deque

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

ENVS, OBS, ACTIONS = 16, 8, 3
MAX_STEPS = 96  # the longest corridor that can occur
BATCH, GAMMA, ROLL = 32, 0.98, 12


class Corridors:
    """Corridors of random length; the cue is shown at the first step and asked for at the last."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.length = np.zeros(ENVS, dtype=int)
        self.t = np.zeros(ENVS, dtype=int)
        self.cue = np.zeros(ENVS, dtype=int)
        self.renew(np.arange(ENVS))

    def renew(self, which):
        n = len(which)
        self.length[which] = np.where(
            self.rng.random(n) < 0.004, self.rng.integers(40, MAX_STEPS + 1, n), self.rng.integers(8, 28, n)
        )
        self.cue[which] = self.rng.integers(0, ACTIONS, n)
        self.t[which] = 0

    def observe(self):
        obs = self.rng.normal(0, 0.1, (ENVS, OBS)).astype(np.float32)
        start = np.flatnonzero(self.t == 0)
        obs[start, self.cue[start]] += 1.0
        obs[:, 7] = self.t == self.length - 1
        return obs

    def step(self, actions):
        last = self.t == self.length - 1
        rewards = np.where(last, actions == self.cue, -0.01 * (actions == 2)).astype(np.float32)
        self.t += 1
        if last.any():
            self.renew(np.flatnonzero(last))
        return rewards, last


class RecurrentQ(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.lstm = nn.LSTM(OBS, hidden, batch_first=True)
        self.head = nn.Linear(hidden, ACTIONS)

    def forward(self, obs, state=None):
        out, state = self.lstm(obs, state)
        return self.head(out), state


def assemble(episodes):
    """Zero-padded arrays [episodes, steps] and the mask of real steps."""
    steps = MAX_STEPS
    obs = np.zeros((len(episodes), steps, OBS), dtype=np.float32)
    actions = np.zeros((len(episodes), steps), dtype=np.int64)
    rewards = np.zeros((len(episodes), steps), dtype=np.float32)
    mask = np.zeros((len(episodes), steps), dtype=np.float32)
    for i, (o, a, r) in enumerate(episodes):
        obs[i, : len(a)], actions[i, : len(a)], rewards[i, : len(a)] = o, a, r
        mask[i, : len(a)] = 1.0
    return [torch.from_numpy(x) for x in (obs, actions, rewards, mask)]


def learn(q, target, optimizer, episodes):
    obs, actions, rewards, mask = assemble(episodes)
    values, _ = q(obs)
    chosen = values.gather(2, actions.unsqueeze(2)).squeeze(2)
    with torch.no_grad():
        following = target(obs)[0].max(dim=2).values[:, 1:] * mask[:, 1:]
        goal = rewards + GAMMA * F.pad(following, (0, 1))
    loss = (F.smooth_l1_loss(chosen, goal, reduction="none") * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(q.parameters(), 5.0)
    optimizer.step()


def main(iterations):
    torch.manual_seed(3)
    torch.set_num_threads(1)
    rng = np.random.default_rng(3)
    env, q, target = Corridors(4), RecurrentQ(), RecurrentQ()
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
    replay = deque(maxlen=1500)
    parts = [([], [], []) for _ in range(ENVS)]
    state = (torch.zeros(1, ENVS, 64), torch.zeros(1, ENVS, 64))
    obs, updates, marks = env.observe(), 0, []
    for iteration in range(iterations):
        marks.append(time.perf_counter())
        for _ in range(ROLL):
            with torch.no_grad():
                values, state = q(torch.from_numpy(obs).unsqueeze(1), state)
            actions = values[:, 0].argmax(1).numpy()
            actions = np.where(rng.random(ENVS) < 0.2, rng.integers(0, ACTIONS, ENVS), actions)
            rewards, ended = env.step(actions)
            for i, part in enumerate(parts):
                part[0].append(obs[i])
                part[1].append(actions[i])
                part[2].append(rewards[i])
                if ended[i]:
                    replay.append(tuple(np.array(x) for x in part))
                    parts[i] = ([], [], [])
            keep = torch.from_numpy(~ended).float().view(1, ENVS, 1)
            state = (state[0] * keep, state[1] * keep)
            obs = env.observe()
        if len(replay) >= BATCH:
            learn(q, target, optimizer, [replay[i] for i in rng.integers(0, len(replay), BATCH)])
            updates += 1
        if iteration % 40 == 0:
            target.load_state_dict(q.state_dict())
    marks.append(time.perf_counter())
    first = iterations // 5
    rate = (iterations - first) / (marks[-1] - marks[first])
    checksum = float(sum(p.detach().abs().sum() for p in q.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 850)
