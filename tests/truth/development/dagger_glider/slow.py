"""DAgger: a network learns to steer gliders from a planner that searches ahead."""

import json
import sys
import time
from collections import deque

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

GLIDERS, FLIGHT, WINDOW, PLANS, AHEAD = 16, 16, 10, 48, 10


def fly(states, controls):
    """One step of all gliders: [..., 4] states (place, height, speed, angle), [...] controls."""
    place, height, speed, angle = np.moveaxis(states, -1, 0)
    angle = np.clip(angle + 0.1 * controls, -1.0, 1.0)
    speed = np.clip(speed - 0.1 * np.sin(angle) - 0.02 * speed * speed, 0.2, 3.0)
    lift = 0.06 * np.exp(-np.square(np.sin(2 * place)))
    return np.stack([place + 0.1 * speed, height + 0.1 * speed * np.sin(angle) + lift, speed, angle], axis=-1)


class Planner:
    """The expert: tries fixed control sequences and takes the first control of the best."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.plans = np.clip(np.cumsum(rng.normal(0, 0.5, (PLANS, AHEAD)), axis=1), -1, 1)

    def controls(self, states):
        """[n, 4] states -> [n] controls."""
        futures = np.repeat(states[:, None], PLANS, axis=1)
        score = np.zeros(futures.shape[:2])
        for t in range(AHEAD):
            futures = fly(futures, self.plans[None, :, t])
            score += futures[..., 1] - 0.2 * np.square(futures[..., 2] - 1.2)
        return self.plans[score.argmax(axis=1), 0]


class Aggregate:
    """States visited in the last WINDOW rounds, with the expert's controls."""

    def __init__(self, planner):
        self.planner, self.rounds = planner, deque(maxlen=WINDOW)

    def add(self, states):
        self.rounds.append(states)

    def data(self):
        states = np.concatenate(self.rounds)
        controls = self.planner.controls(states)
        return torch.from_numpy(states.astype(np.float32)), torch.from_numpy(controls.astype(np.float32))


def visit(net, planner, rng, expert_share):
    """States of FLIGHT steps of all gliders, flown by the network or, at times, by the expert."""
    states = np.stack(
        [
            rng.uniform(0, 3, GLIDERS),
            rng.uniform(1, 2, GLIDERS),
            rng.uniform(0.8, 1.6, GLIDERS),
            np.zeros(GLIDERS),
        ],
        1,
    )
    visited = []
    for _ in range(FLIGHT):
        visited.append(states)
        if rng.random() < expert_share:
            controls = planner.controls(states)
        else:
            with torch.no_grad():
                controls = net(torch.from_numpy(states.astype(np.float32))).squeeze(1).numpy()
        states = fly(states, np.clip(controls, -1, 1))
    return np.concatenate(visited)


def main(rounds):
    torch.manual_seed(13)
    torch.set_num_threads(1)
    rng = np.random.default_rng(13)
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    planner = Planner(13)
    aggregate = Aggregate(planner)
    for _ in range(WINDOW):
        aggregate.add(visit(net, planner, rng, 0.9))
    updates, marks = 0, []
    for number in range(rounds):
        marks.append(time.perf_counter())
        aggregate.add(visit(net, planner, rng, 0.5**number))
        states, controls = aggregate.data()
        for _ in range(5):
            for index in torch.randperm(len(states)).split(128):
                loss = F.mse_loss(net(states[index]).squeeze(1), controls[index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                updates += 1
    marks.append(time.perf_counter())
    first = rounds // 5
    rate = (rounds - first) / (marks[-1] - marks[first])
    checksum = float(sum(p.detach().abs().sum() for p in net.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 120)
