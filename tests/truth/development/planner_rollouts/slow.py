"""Random-shooting planner on CartPole dynamics, with a learnt value at the end of each imagined path.

The planner tries action sequences in copies of the simulator; the value net is fitted to what the real run returned.
"""

import copy
import json
import time
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn as nn
import tyro


@dataclass
class CartPole:
    rng: np.random.Generator
    x: float = 0.0
    x_dot: float = 0.0
    theta: float = 0.0
    theta_dot: float = 0.0
    steps: int = 0
    history: list = field(default_factory=list)

    def reset(self):
        self.x, self.x_dot, self.theta, self.theta_dot = self.rng.uniform(-0.05, 0.05, 4).tolist()
        self.steps = 0
        self.history = []
        return self.state()

    def state(self):
        return (self.x, self.x_dot, self.theta, self.theta_dot)

    def step(self, action):
        force = 10.0 if action else -10.0
        cos, sin = np.cos(self.theta), np.sin(self.theta)
        temp = (force + 0.05 * self.theta_dot**2 * sin) / 1.1
        acc = (9.8 * sin - cos * temp) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        x_acc = temp - 0.05 * acc * cos / 1.1
        self.history.append((self.x, self.theta))
        self.x += 0.02 * self.x_dot
        self.x_dot += 0.02 * x_acc
        self.theta += 0.02 * self.theta_dot
        self.theta_dot += 0.02 * acc
        self.steps += 1
        return self.state(), abs(self.x) > 2.4 or abs(self.theta) > 0.21


@dataclass
class Args:
    steps: int = 7000
    paths: int = 12
    depth: int = 6
    seed: int = 0


def plan(sim, value, sequences):
    ends, alive = [], []
    for sequence in sequences:
        imagined = copy.deepcopy(sim)
        survived = 0
        for action in sequence:
            state, fell = imagined.step(action)
            if fell:
                break
            survived += 1
        ends.append(state)
        alive.append(survived)
    with torch.inference_mode():
        worth = value(torch.tensor(ends, dtype=torch.float32)).squeeze(1).numpy()
    return sequences[int(np.argmax(np.array(alive) + 0.1 * worth))][0]


def main(args: Args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(args.seed)
    sim = CartPole(np.random.default_rng(args.seed + 1))
    value = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))
    opt = torch.optim.Adam(value.parameters(), lr=1e-3)
    state, states, updates = sim.reset(), [], 0
    for n in range(args.steps):
        if n == args.steps // 5:
            begin = time.perf_counter()
        action = plan(sim, value, rng.integers(0, 2, (args.paths, args.depth)))
        states.append(state)
        state, fell = sim.step(action)
        if fell or sim.steps >= 50:
            togo = torch.arange(len(states), 0, -1, dtype=torch.float32)[:, None]
            loss = (value(torch.tensor(states, dtype=torch.float32)) - togo / 10).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            updates += 1
            states = []
            state = sim.reset()
    speed = (args.steps - args.steps // 5) / (time.perf_counter() - begin)
    print(
        json.dumps(
            {
                "env_steps": None,
                "updates": updates,
                "units_per_s": speed,
                "checksum": float(sum(p.double().sum() for p in value.parameters())),
            }
        )
    )


if __name__ == "__main__":
    main(tyro.cli(Args))
