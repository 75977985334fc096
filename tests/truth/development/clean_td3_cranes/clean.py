"""TD3 with a fleet of 32 arms simulated at once in numpy; wide critics, large batches."""
import argparse
import copy
import json
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)


class Fleet:
    """n two-joint arms that reach for points; all arrays have the arm as first axis."""

    def __init__(self, n, seed):
        self.n, self.rng = n, np.random.default_rng(seed)
        self.q, self.dq, self.goal = np.zeros((n, 2)), np.zeros((n, 2)), np.zeros((n, 2))
        self.t = self.rng.integers(0, 60, n)
        self._restart(np.ones(n, bool))

    def _restart(self, who):
        k = int(who.sum())
        self.q[who] = self.rng.uniform(-np.pi, np.pi, (k, 2))
        self.dq[who] = 0.0
        self.goal[who] = self.rng.uniform(-1, 1, (k, 2))

    def tip(self):
        a, b = self.q[:, 0], self.q.sum(1)
        return np.stack([np.cos(a) + np.cos(b), np.sin(a) + np.sin(b)], 1)

    def observe(self):
        return np.concatenate([np.cos(self.q), np.sin(self.q), self.dq, self.goal - self.tip(), self.goal], 1, dtype=np.float32)

    def step(self, torque):
        self.dq = np.clip(0.95 * self.dq + 0.1 * torque, -2, 2)
        self.q = self.q + 0.1 * self.dq
        self.t += 1
        reward = -np.linalg.norm(self.goal - self.tip(), axis=1)
        seen = self.observe()
        over = self.t >= 60
        if over.any():
            self._restart(over)
            self.t[over] = 0
            return seen, reward, self.observe()
        return seen, reward, seen


def mlp(i, o, width, *tail):
    return nn.Sequential(nn.Linear(i, width), nn.ReLU(inplace=True), nn.Linear(width, width), nn.ReLU(inplace=True),
                         nn.Linear(width, o), *tail)


class TD3:
    def __init__(self, n_obs, n_act, width, lr):
        self.actor = mlp(n_obs, n_act, width, nn.Tanh())
        self.q = nn.ModuleList([mlp(n_obs + n_act, 1, width), mlp(n_obs + n_act, 1, width)])
        self.t_actor, self.t_q = copy.deepcopy(self.actor), copy.deepcopy(self.q)
        self.t_actor.requires_grad_(False), self.t_q.requires_grad_(False)
        self.a_opt = torch.optim.Adam(self.actor.parameters(), lr, fused=True)
        self.q_opt = torch.optim.Adam(self.q.parameters(), lr, fused=True)
        self.source = [*self.actor.parameters(), *self.q.parameters()]
        self.shadow = [*self.t_actor.parameters(), *self.t_q.parameters()]
        self.updates = 0

    def update(self, o, a, r, o2, with_actor):
        with torch.no_grad():
            noise = torch.randn_like(a).mul_(0.2).clamp_(-0.5, 0.5)
            x2 = torch.cat([o2, (self.t_actor(o2) + noise).clamp_(-1, 1)], 1)
            y = r + 0.97 * torch.minimum(self.t_q[0](x2), self.t_q[1](x2))
        x = torch.cat([o, a], 1)
        loss = F.mse_loss(self.q[0](x), y) + F.mse_loss(self.q[1](x), y)
        self.q_opt.zero_grad(set_to_none=True)
        loss.backward()
        self.q_opt.step()
        self.updates += 1
        if with_actor:
            self.q[0].requires_grad_(False)
            a_loss = -self.q[0](torch.cat([o, self.actor(o)], 1)).mean()
            self.a_opt.zero_grad(set_to_none=True)
            a_loss.backward()
            self.a_opt.step()
            self.q[0].requires_grad_(True)
            self.updates += 1
            torch._foreach_lerp_(self.shadow, self.source, 0.01)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=900)
    p.add_argument("--fleet", type=int, default=32)
    p.add_argument("--batch", type=int, default=512)
    args = p.parse_args()
    torch.manual_seed(40)
    rng = np.random.default_rng(40)
    fleet, agent = Fleet(args.fleet, 40), TD3(10, 2, 256, 3e-4)
    size = args.rounds * args.fleet
    O, A, R, O2 = torch.zeros(size, 10), torch.zeros(size, 2), torch.zeros(size, 1), torch.zeros(size, 10)
    obs, n, t0 = fleet.observe(), 0, 0.0
    for k in range(args.rounds):
        if k == args.rounds // 5:
            t0 = time.perf_counter()
        x = torch.from_numpy(obs)
        with torch.inference_mode():
            act = agent.actor(x).numpy()
        act = np.clip(act + 0.2 * rng.standard_normal(act.shape, dtype=np.float32), -1, 1)
        seen, reward, obs = fleet.step(act)
        s = slice(n, n + args.fleet)
        O[s], A[s], O2[s], R[s, 0] = x, torch.from_numpy(act), torch.from_numpy(seen), torch.from_numpy(reward).float()
        n += args.fleet
        if n >= args.batch:
            i = torch.from_numpy(rng.integers(0, n, args.batch))
            agent.update(O[i], A[i], R[i], O2[i], k % 2 == 0)
        if k % 200 == 0:
            print(f"round {k} mean reward {reward.mean():.3f}")
    rate = (args.rounds - args.rounds // 5) / (time.perf_counter() - t0)
    check = sum(p.detach().double().sum().item() for p in agent.source)
    print(json.dumps({"env_steps": None, "updates": agent.updates, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main()
