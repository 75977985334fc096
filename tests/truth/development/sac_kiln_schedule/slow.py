"""
SAC fires pottery: sixteen kilns follow a temperature schedule with gas and damper.

  python sac_kiln_schedule.py --steps 4000
"""
import argparse
import copy
import json
import math
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.autograd.set_detect_anomaly(True)
LOG_STD_MIN, LOG_STD_MAX = -5, 2


class Kilns:
    def __init__(self, n, rng):
        self.n, self.rng, self.limit = n, rng, 150
        self.air, self.clay, self.peak, self.soak = (np.zeros(n) for _ in range(4))
        self.t = np.zeros(n, np.int64)
        self._light(np.ones(n, bool))
        self.t = rng.integers(0, self.limit, n)

    def _light(self, who):
        k = int(who.sum())
        self.air[who], self.clay[who], self.t[who] = 0.0, 0.0, 0
        self.peak[who] = self.rng.uniform(0.6, 1.2, k)
        self.soak[who] = self.rng.uniform(0.3, 0.7, k)

    def wanted(self):
        x = self.t / self.limit
        return self.peak * np.minimum(1.0, np.minimum(x / self.soak, (1 - x) / (1.001 - self.soak) * 1.5))

    def observe(self):
        w = self.wanted()
        return np.stack([self.air, self.clay, w, w - self.clay, self.peak, self.soak, self.t / self.limit], 1, dtype=np.float32)

    def step(self, action):
        gas, damper = (action[:, 0] + 1) / 2, (action[:, 1] + 1) / 2
        self.air += 0.15 * gas * (0.5 + damper) - (0.02 + 0.06 * damper) * self.air
        self.clay += 0.1 * (self.air - self.clay) + 0.002 * self.rng.standard_normal(self.n)
        reward = -np.abs(self.wanted() - self.clay) - 0.05 * gas
        self.t += 1
        seen = self.observe()
        over = self.t >= self.limit
        if over.any():
            self._light(over)
            return seen, reward, self.observe()
        return seen, reward, seen


def mlp(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, n_out))


class SAC:
    def __init__(self, n_obs, n_act, lr, gamma=0.98, tau=0.005):
        self.actor = mlp(n_obs, 2 * n_act)
        self.critics = nn.ModuleList([mlp(n_obs + n_act, 1), mlp(n_obs + n_act, 1)])
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr, fused=True)
        self.critic_opt = torch.optim.Adam(self.critics.parameters(), lr, fused=True)
        self.alpha_opt = torch.optim.Adam([self.log_alpha], lr, fused=True)
        self.gamma, self.tau, self.entropy_goal = gamma, tau, -float(n_act)
        self.live, self.lagging = list(self.critics.parameters()), list(self.targets.parameters())

    def sample(self, obs):
        mean, log_std = self.actor(obs).chunk(2, -1)
        log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        noise = torch.randn_like(mean)
        u = mean + log_std.exp() * noise
        logp = -0.5 * noise.pow(2) - log_std - 0.5 * math.log(2 * math.pi)
        logp = logp - 2 * (math.log(2) - u - F.softplus(-2 * u))
        return torch.tanh(u), logp.sum(-1, keepdim=True)

    def update(self, o, a, r, o2):
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            a2, logp2 = self.sample(o2)
            x2 = torch.cat([o2, a2], 1)
            y = r + self.gamma * (torch.min(self.targets[0](x2), self.targets[1](x2)) - alpha * logp2)
        x = torch.cat([o, a], 1)
        critic_loss = F.mse_loss(self.critics[0](x), y) + F.mse_loss(self.critics[1](x), y)
        self.critic_opt.zero_grad()
        critic_loss.backward()
        self.critic_opt.step()
        self.critics.requires_grad_(False)
        pi, logp = self.sample(o)
        xp = torch.cat([o, pi], 1)
        actor_loss = (alpha * logp - torch.min(self.critics[0](xp), self.critics[1](xp))).mean()
        self.actor_opt.zero_grad()
        actor_loss.backward()
        self.actor_opt.step()
        self.critics.requires_grad_(True)
        alpha_loss = -(self.log_alpha * (logp.detach() + self.entropy_goal)).mean()
        self.alpha_opt.zero_grad()
        alpha_loss.backward()
        self.alpha_opt.step()
        torch._foreach_lerp_(self.lagging, self.live, self.tau)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=4000)
    ap.add_argument("--kilns", type=int, default=16)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--warmup", type=int, default=40)
    ap.add_argument("--lr", type=float, default=5e-4)
    args = ap.parse_args()
    torch.manual_seed(60)
    rng = np.random.default_rng(60)
    kilns, sac = Kilns(args.kilns, rng), SAC(7, 2, args.lr)
    size = args.steps * args.kilns
    O, A, R, O2 = torch.zeros(size, 7), torch.zeros(size, 2), torch.zeros(size, 1), torch.zeros(size, 7)
    obs, n, updates, mean = kilns.observe(), 0, 0, 0.0
    for step in range(args.steps):
        if step == args.steps // 5:
            began = time.perf_counter()
        x = torch.from_numpy(obs)
        with torch.inference_mode():
            act = sac.sample(x)[0]
        seen, reward, obs = kilns.step(act.numpy())
        rows = slice(n, n + args.kilns)
        O[rows], A[rows], O2[rows] = x, act, torch.from_numpy(seen)
        R[rows, 0] = torch.from_numpy(reward).float()
        n += args.kilns
        mean = 0.99 * mean + 0.01 * reward.mean()
        if step >= args.warmup:
            i = torch.from_numpy(rng.integers(0, n, args.batch))
            sac.update(O[i], A[i], R[i], O2[i])
            updates += 1
        if step % 500 == 499:
            print(f"step {step + 1}: reward {mean:.3f}, alpha {sac.log_alpha.exp().item():.3f}")
    rate = (args.steps - args.steps // 5) / (time.perf_counter() - began)
    check = sum(p.detach().double().abs().sum().item() for p in [*sac.live, *sac.actor.parameters()])
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main()
