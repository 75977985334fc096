"""Model-based control: an ensemble of dynamics models, and a path-integral planner that imagines in batches."""

import argparse
import json
import math
import time
from itertools import pairwise

import torch
from torch import nn

N_OBS, N_ACT = 6, 2


class Hovercraft:
    """Position, speed, heading, turn rate; the actions are the two thrusters."""

    def reset(self):
        self.s = [math.cos(self.phase), math.sin(self.phase), 0.0, 0.0, 0.0, 0.0]
        self.t = 0
        return self.s

    def __init__(self):
        self.phase = 0.3
        self.reset()

    def step(self, left, right):
        x, y, vx, vy, heading, turn = self.s
        thrust, turn = 0.05 * (left + right), 0.9 * turn + 0.1 * (left - right)
        vx = 0.97 * vx + thrust * math.cos(heading)
        vy = 0.97 * vy + thrust * math.sin(heading)
        self.s = [x + 0.1 * vx, y + 0.1 * vy, vx, vy, heading + 0.1 * turn, turn]
        self.t += 1
        if self.t >= 100:
            self.phase += 1.0
            self.reset()
            return True
        return False


class Ensemble(nn.Module):
    """Predicts the change of the state; every member is one slice of the weights."""

    def __init__(self, members, hidden):
        super().__init__()
        sizes = (N_OBS + N_ACT, hidden, hidden, N_OBS)
        self.w = nn.ParameterList([torch.randn(members, i, o) / math.sqrt(i) for i, o in pairwise(sizes)])
        self.b = nn.ParameterList([torch.zeros(members, 1, o) for o in sizes[1:]])

    def forward(self, x):
        h = torch.relu_(torch.baddbmm(self.b[0], x, self.w[0]))
        h = torch.relu_(torch.baddbmm(self.b[1], h, self.w[1]))
        return torch.baddbmm(self.b[2], h, self.w[2])


class Planner:
    def __init__(self, model, members, candidates, horizon):
        self.model, self.members, self.horizon = model, members, horizon
        self.n = candidates // members
        self.plan = torch.zeros(horizon, N_ACT)

    @torch.inference_mode()
    def act(self, state):
        noise = 0.5 * torch.randn(self.horizon, self.members, self.n, N_ACT)
        actions = (self.plan[:, None, None] + noise).clamp_(-1, 1)
        x = torch.empty(self.members, self.n, N_OBS + N_ACT)
        x[..., :N_OBS] = torch.tensor(state)
        cost = torch.zeros(self.members, self.n)
        for t in range(self.horizon):
            x[..., N_OBS:] = actions[t]
            x[..., :N_OBS] += self.model(x)
            cost += x[..., :2].square().sum(-1)
        weight = torch.softmax(-5 * cost.view(-1), 0)
        plan = torch.einsum("n,tna->ta", weight, actions.view(self.horizon, -1, N_ACT))
        self.plan = torch.cat([plan[1:], torch.zeros(1, N_ACT)])
        return plan[0].tolist()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    ap.add_argument("--members", type=int, default=4)
    ap.add_argument("--candidates", type=int, default=1024)
    ap.add_argument("--horizon", type=int, default=15)
    ap.add_argument("--hidden", type=int, default=200)
    args = ap.parse_args()
    torch.manual_seed(0)
    craft, model = Hovercraft(), Ensemble(args.members, args.hidden)
    planner = Planner(model, args.members, args.candidates, args.horizon)
    opt = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    inputs, changes = torch.empty(args.steps, N_OBS + N_ACT), torch.empty(args.steps, N_OBS)
    updates, skip = 0, args.steps // 5
    for step in range(args.steps):
        if step == skip:
            start = time.perf_counter()
        before = craft.s
        action = planner.act(before) if step >= 50 else (2 * torch.rand(2) - 1).tolist()
        restarted = craft.step(*action)
        inputs[step] = torch.tensor(before + action)
        changes[step] = 0.0 if restarted else torch.tensor(craft.s) - torch.tensor(before)
        if step % 25 == 24:
            for _ in range(10):
                i = torch.randint(0, step + 1, (args.members, 256))
                loss = (model(inputs[i]) - changes[i]).square().mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
                updates += 1
    rate = (args.steps - skip) / (time.perf_counter() - start)
    checksum = float(sum(p.double().sum() for p in model.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
