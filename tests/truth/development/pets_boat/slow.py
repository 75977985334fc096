"""Model-based RL: an ensemble learns how a boat moves, the cross-entropy method plans with it (PETS)."""

import argparse
import itertools
import json
import math
import time

import numpy as np
import torch
from torch import nn

torch.set_default_dtype(torch.float64)
MEMBERS, STATE, ACT, HIDDEN = 5, 5, 2, 160
HORIZON, CANDIDATES, ELITE, ROUNDS = 8, 60, 10, 3


class Boat:
    """A boat in a current; the state is place, heading, speed and turning rate."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self):
        self.state = np.concatenate([self.rng.uniform(-2, 2, 2), [self.rng.uniform(-3, 3), 0.0, 0.0]])
        self.t = 0
        return self.state

    def step(self, action):
        x, y, heading, speed, turning = self.state
        speed = 0.95 * speed + 0.1 * float(action[0])
        turning = 0.9 * turning + 0.1 * float(action[1])
        heading = (heading + turning + math.pi) % (2 * math.pi) - math.pi
        x = x + 0.2 * speed * math.cos(heading) + 0.02 * math.sin(y)
        y = y + 0.2 * speed * math.sin(heading)
        self.state = np.clip([x, y, heading, speed, turning], -4, 4) + self.rng.normal(0, 0.005, STATE)
        self.t += 1
        return self.state, self.t >= 40


class Ensemble(nn.Module):
    """MEMBERS networks as one: [members, batch, state + action] -> change of state."""

    def __init__(self):
        super().__init__()
        sizes = [STATE + ACT, HIDDEN, HIDDEN, STATE]
        pairs = list(itertools.pairwise(sizes))
        self.weights = nn.ParameterList(torch.randn(MEMBERS, a, b) / math.sqrt(a) for a, b in pairs)
        self.biases = nn.ParameterList(torch.zeros(MEMBERS, 1, b) for _, b in pairs)

    def forward(self, x):
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            if layer < 2:
                x = nn.functional.silu(x)
        return x


@torch.no_grad()
def plan(model, state, mean):
    """Refine a sequence of actions by the cross-entropy method; every member judges every candidate."""
    std = torch.full((HORIZON, ACT), 0.5)
    for _ in range(ROUNDS):
        actions = (mean + std * torch.randn(CANDIDATES, HORIZON, ACT)).clamp(-1, 1)
        states = state.expand(MEMBERS, CANDIDATES, STATE)
        cost = torch.zeros(MEMBERS, CANDIDATES)
        for t in range(HORIZON):
            move = actions[:, t].expand(MEMBERS, CANDIDATES, ACT)
            states = states + model(torch.cat([states, move], dim=2))
            cost += states[..., :2].square().sum(-1)
        best = actions[cost.mean(0).topk(ELITE, largest=False).indices]
        mean, std = best.mean(0), best.std(0) + 0.05
    return mean


def fit(model, optimizer, inputs, changes, epochs):
    """Train each member on its own order of the data."""
    size, updates = len(inputs), 0
    for _ in range(epochs):
        order = torch.stack([torch.randperm(size) for _ in range(MEMBERS)])
        for index in order.split(256, dim=1):
            loss = (model(inputs[index]) - changes[index]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
    return updates


def main(episodes):
    torch.manual_seed(23)
    torch.set_num_threads(1)
    env, model = Boat(23), Ensemble()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    inputs, changes = torch.zeros(1024, STATE + ACT), torch.zeros(1024, STATE)
    size = updates = 0
    marks, total = [], 0.0
    for episode in range(-10, episodes):
        marks.append(time.perf_counter())
        state, mean, truncated = env.reset(), torch.zeros(HORIZON, ACT), False
        while not truncated:
            now = torch.tensor(state, dtype=inputs.dtype)
            mean = plan(model, now, mean) if episode >= 0 else torch.rand(HORIZON, ACT) * 2 - 1
            state, truncated = env.step(mean[0].numpy())
            row = size % len(inputs)
            inputs[row, :STATE], inputs[row, STATE:] = now, mean[0]
            changes[row] = torch.tensor(state, dtype=inputs.dtype) - now
            size += 1
            mean = torch.cat([mean[1:], torch.zeros(1, ACT)])
            total += float(np.hypot(*state[:2]))
        filled = min(size, len(inputs))
        updates += fit(model, optimizer, inputs[:filled], changes[:filled], epochs=10)
    marks.append(time.perf_counter())
    marks = marks[10:]
    first = episodes // 5
    rate = (episodes - first) / (marks[-1] - marks[first])
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": total}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=16)
    main(parser.parse_args().episodes)
