"""PPO on 256 boats at once; environment, rollout and update are torch tensors from end to end."""
import json
import math
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import tyro
from torch import nn


@dataclass
class Args:
    iterations: int = 60
    boats: int = 256
    horizon: int = 32
    epochs: int = 4
    minibatch: int = 2048
    width: int = 256
    lr: float = 3e-4
    gamma: float = 0.99
    lam: float = 0.95
    seed: int = 20


class Harbour:
    """Boats with inertia steer to their berths through a current. State rows: x, y, vx, vy, course, berth x, berth y, age."""

    def __init__(self, n):
        self.state = torch.empty(n, 8)
        self.state[:] = self.fresh()
        self.state[:, 7] = torch.randint(150, (n,)).float()

    def fresh(self):
        s = torch.rand(len(self.state), 8).mul_(2).sub_(1)
        s[:, 2:4] = 0
        s[:, 4] *= math.pi
        s[:, 7] = 0
        return s

    def observe(self):
        x, y, vx, vy, course, bx, by, age = self.state.unbind(1)
        return torch.stack([bx - x, by - y, vx, vy, torch.cos(course), torch.sin(course), torch.sin(3 * y), age / 150], 1)

    def step(self, action):
        push, turn = action.clamp(-1, 1).unbind(1)
        x, y, vx, vy, course, bx, by, age = self.state.unbind(1)
        course = course + 0.2 * turn
        vx = 0.95 * vx + 0.1 * push * torch.cos(course) + 0.01 * torch.sin(3 * y)
        vy = 0.95 * vy + 0.1 * push * torch.sin(course)
        x, y = x + 0.1 * vx, y + 0.1 * vy
        gap = torch.hypot(bx - x, by - y)
        there = gap < 0.1
        reward = there.float() * 5 - 0.1 * gap - 0.02 * push * push
        over = there | (age >= 149)
        moved = torch.stack([x, y, vx, vy, course, bx, by, age + 1], 1)
        self.state = torch.where(over.unsqueeze(1), self.fresh(), moved)
        return self.observe(), reward, over.float()


class ActorCritic(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(8, width), nn.ReLU(True), nn.Linear(width, width), nn.ReLU(True), nn.Linear(width, 2))
        self.v = nn.Sequential(nn.Linear(8, width), nn.ReLU(True), nn.Linear(width, width), nn.ReLU(True), nn.Linear(width, 1))
        self.log_std = nn.Parameter(torch.full((2,), -0.5))

    def logp(self, mean, action):
        z = (action - mean) * torch.exp(-self.log_std)
        return -0.5 * z.square().sum(1) - self.log_std.sum() - math.log(2 * math.pi)


def main(args: Args):
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    harbour, net = Harbour(args.boats), ActorCritic(args.width)
    opt = torch.optim.Adam(net.parameters(), args.lr, fused=True)
    T, n = args.horizon, args.boats
    O, A = torch.zeros(T + 1, n, 8), torch.zeros(T, n, 2)
    L, R, D = torch.zeros(T, n), torch.zeros(T, n), torch.zeros(T, n)
    adv = torch.zeros(T, n)
    obs, updates = harbour.observe(), 0
    for it in range(args.iterations):
        if it == args.iterations // 5:
            began = time.perf_counter()
        with torch.no_grad():
            for t in range(T):
                mean = net.pi(obs)
                O[t] = obs
                A[t] = mean + torch.exp(net.log_std) * torch.randn_like(mean)
                L[t] = net.logp(mean, A[t])
                obs, R[t], D[t] = harbour.step(A[t])
            O[T] = obs
            V = net.v(O.view(-1, 8)).view(T + 1, n)
            live = args.gamma * (1 - D)
            delta = R + live * V[1:] - V[:-1]
            live *= args.lam
            acc = torch.zeros(n)
            for t in range(T - 1, -1, -1):
                acc = torch.addcmul(delta[t], live[t], acc, out=adv[t])
        o, a, old = O[:T].view(-1, 8), A.view(-1, 2), L.view(-1)
        ret = (adv + V[:-1]).view(-1)
        norm = ((adv - adv.mean()) / adv.std()).view(-1)
        for _ in range(args.epochs):
            for i in torch.randperm(T * n).split(args.minibatch):
                oi, w = o[i], norm[i]
                ratio = torch.exp(net.logp(net.pi(oi), a[i]) - old[i])
                policy_loss = -torch.min(ratio * w, ratio.clamp(0.8, 1.2) * w).mean()
                loss = policy_loss + 0.5 * F.mse_loss(net.v(oi).squeeze(1), ret[i])
                opt.zero_grad()
                loss.backward()
                opt.step()
                updates += 1
        if it % 10 == 0:
            print(f"iteration {it}: reward {R.mean().item():.3f}")
    rate = (args.iterations - args.iterations // 5) / (time.perf_counter() - began)
    check = sum(p.detach().double().abs().sum().item() for p in net.parameters())
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main(tyro.cli(Args))
