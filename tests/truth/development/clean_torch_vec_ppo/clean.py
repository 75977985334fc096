"""PPO for a fleet of docking ships, environment and learner both as torch tensors (512 ships at once)."""
import json
import math
import sys
import time

import torch
from torch import nn

torch.set_num_threads(1)
ITERATIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 9
SHIPS, STEPS, EPOCHS, CHUNK = 512, 32, 3, 2048


class Harbour:
    """Position, heading and speed of each ship; thrust and rudder; dock at the origin slowly and straight."""

    def __init__(self, n, gen):
        self.n, self.gen = n, gen
        self.s = self.spawn(n)
        self.age = torch.randint(0, 100, (n,), generator=gen)

    def spawn(self, n):
        s = torch.rand(n, 5, generator=self.gen) * 2 - 1
        return s * torch.tensor([6.0, 6.0, math.pi, 0.5, 0.1])

    def obs(self):
        x, y, h, v, w = self.s.unbind(1)
        return torch.stack([x / 6, y / 6, h.cos(), h.sin(), v, w, self.age / 100], 1)

    def step(self, a):
        a = a.clamp(-1, 1)
        x, y, h, v, w = self.s.unbind(1)
        before = torch.hypot(x, y)
        v = 0.95 * v + 0.15 * a[:, 0]
        w = 0.8 * w + 0.1 * a[:, 1]
        h = h + w
        x, y = x + 0.3 * v * h.cos(), y + 0.3 * v * h.sin()
        self.s = torch.stack([x, y, h, v, w], 1)
        self.age = self.age + 1
        after = torch.hypot(x, y)
        docked = (after < 0.6) & (v.abs() < 0.6)
        done = docked | (after > 12) | (self.age >= 100)
        reward = before - after + 5.0 * docked - 0.01 * (a * a).sum(1)
        self.s = torch.where(done[:, None], self.spawn(self.n), self.s)
        self.age = torch.where(done, 0, self.age)
        return self.obs(), reward, done.float(), docked.sum()


class Captain(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(7, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))
        self.v = nn.Sequential(nn.Linear(7, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
        self.log_std = nn.Parameter(torch.full((2,), -0.5))

    def logp(self, mean, a):
        return (-((a - mean) / self.log_std.exp()) ** 2 / 2 - self.log_std).sum(-1)


@torch.no_grad()
def collect(env, net, obs, gen):
    O = torch.empty(STEPS, SHIPS, 7)
    A, L = torch.empty(STEPS, SHIPS, 2), torch.empty(STEPS, SHIPS)
    R, D, docked = torch.empty(STEPS, SHIPS), torch.empty(STEPS, SHIPS), 0
    std = net.log_std.exp()
    for t in range(STEPS):
        mean = net.pi(obs)
        a = mean + std * torch.randn(SHIPS, 2, generator=gen)
        O[t], A[t], L[t] = obs, a, net.logp(mean, a)
        obs, R[t], D[t], k = env.step(a)
        docked = docked + k
    V = net.v(torch.cat([O, obs[None]])).squeeze(-1)
    adv, last = torch.empty(STEPS, SHIPS), torch.zeros(SHIPS)
    delta, keep = R + 0.98 * (1 - D) * V[1:] - V[:-1], 0.98 * 0.95 * (1 - D)
    for t in range(STEPS - 1, -1, -1):
        last = delta[t] + keep[t] * last
        adv[t] = last
    flat = [z.flatten(0, 1) for z in (O, A, L, adv, adv + V[:-1])]
    return obs, flat, R.mean(), docked


def main():
    gen = torch.Generator().manual_seed(41)
    torch.manual_seed(41)
    env, net = Harbour(SHIPS, gen), Captain()
    opt = torch.optim.Adam(net.parameters(), lr=5e-4, fused=True)
    obs, updates, t0 = env.obs(), 0, None
    for it in range(ITERATIONS):
        if it == ITERATIONS // 5:
            t0 = time.perf_counter()
        obs, (O, A, L, G, T), reward, docked = collect(env, net, obs, gen)
        G = (G - G.mean()) / (G.std() + 1e-8)
        for _ in range(EPOCHS):
            for i in torch.randperm(len(O), generator=gen).split(CHUNK):
                ratio = (net.logp(net.pi(O[i]), A[i]) - L[i]).exp()
                g = G[i]
                gain = torch.min(ratio * g, ratio.clamp(0.8, 1.2) * g).mean()
                loss = ((net.v(O[i]).squeeze(-1) - T[i]) ** 2).mean() - gain - 0.003 * net.log_std.sum()
                opt.zero_grad()
                loss.backward()
                opt.step()
                updates += 1
        print(f"iteration {it}: reward {reward.item():+.4f}, docked {int(docked)}, loss {loss.item():.3f}")
    rate = (ITERATIONS - ITERATIONS // 5) / (time.perf_counter() - t0)
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": loss.item()}))


main()
