# SAC for a planar two-link arm, wide critics
import json
import math
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

N_ENVS = 32
BATCH = 1024
WIDTH = 512
ITERATIONS = 110
for arg in sys.argv[1:]:
    if arg.startswith("--iterations="):
        ITERATIONS = int(arg.split("=")[1])


class Arms:
    def __init__(self, n, seed):
        self.rng = np.random.default_rng(seed)
        self.q = self.rng.uniform(-math.pi, math.pi, (n, 2))
        self.dq = np.zeros((n, 2))
        self.goal = self.rng.uniform(-1, 1, (n, 2))
        self.t = 0

    def tip(self):
        a, b = self.q[:, 0], self.q.sum(1)
        return np.stack([np.cos(a) + np.cos(b), np.sin(a) + np.sin(b)], 1)

    def obs(self):
        parts = [np.cos(self.q), np.sin(self.q), self.dq, self.goal - self.tip()]
        return np.concatenate(parts, axis=1).astype(np.float32)

    def step(self, u):
        self.dq = np.clip(0.9 * self.dq + 0.3 * u, -4, 4)
        self.q = self.q + 0.05 * self.dq
        self.t += 1
        reward = -np.linalg.norm(self.goal - self.tip(), axis=1)
        nxt = self.obs()
        if self.t % 100 == 0:
            self.goal = self.rng.uniform(-1, 1, self.goal.shape)
        return nxt, reward.astype(np.float32)


class Replay:
    def __init__(self, size):
        self.x = torch.zeros(size, 8 + 2 + 1 + 8)
        self.n = 0

    def add(self, *cols):
        rows = torch.from_numpy(np.concatenate(cols, axis=1))
        i = self.n % len(self.x)
        self.x[i : i + len(rows)] = rows
        self.n += len(rows)

    def sample(self):
        idx = torch.randint(0, min(self.n, len(self.x)), (BATCH,))
        return self.x[idx].split([8, 2, 1, 8], dim=1)


def mlp(i, o):
    return nn.Sequential(
        nn.Linear(i, WIDTH),
        nn.ReLU(inplace=True),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(inplace=True),
        nn.Linear(WIDTH, o),
    )


def sample_action(net, obs):
    mean, log_std = net(obs).chunk(2, 1)
    log_std = log_std.clamp(-5, 2)
    noise = torch.randn_like(mean)
    pre = mean + log_std.exp() * noise
    logp = (-0.5 * noise.square() - log_std - 0.919).sum(1, keepdim=True)
    logp = logp - (2 * (math.log(2) - pre - F.softplus(-2 * pre))).sum(1, keepdim=True)
    return torch.tanh(pre), logp


def main():
    torch.manual_seed(2)
    env = Arms(N_ENVS, 2)
    pi, q1, q2, t1, t2 = mlp(8, 4), mlp(10, 1), mlp(10, 1), mlp(10, 1), mlp(10, 1)
    t1.load_state_dict(q1.state_dict())
    t2.load_state_dict(q2.state_dict())
    q_params = [*q1.parameters(), *q2.parameters()]
    t_params = [*t1.parameters(), *t2.parameters()]
    log_alpha = torch.tensor(-1.0, requires_grad=True)
    q_opt = torch.optim.Adam(q_params, lr=3e-4, fused=True)
    pi_opt = torch.optim.Adam(pi.parameters(), lr=3e-4, fused=True)
    al_opt = torch.optim.Adam([log_alpha], lr=3e-4, fused=True)
    replay = Replay(N_ENVS * 2000)
    obs = env.obs()
    for _ in range(100):
        act = env.rng.uniform(-1, 1, (N_ENVS, 2)).astype(np.float32)
        nxt, rew = env.step(act)
        replay.add(obs, act, rew[:, None], nxt)
        obs = env.obs()

    start, start_it = time.perf_counter(), 0
    for it in range(ITERATIONS):
        if it == ITERATIONS // 5:
            start, start_it = time.perf_counter(), it
        with torch.no_grad():
            act = sample_action(pi, torch.from_numpy(obs))[0].numpy()
        nxt, rew = env.step(act)
        replay.add(obs, act, rew[:, None], nxt)
        obs = env.obs()

        o, a, r, o2 = replay.sample()
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            a2, logp2 = sample_action(pi, o2)
            x2 = torch.cat([o2, a2], 1)
            y = r + 0.98 * (torch.min(t1(x2), t2(x2)) - alpha * logp2)
        x = torch.cat([o, a], 1)
        q_loss = F.mse_loss(q1(x), y) + F.mse_loss(q2(x), y)
        q_opt.zero_grad()
        q_loss.backward()
        q_opt.step()

        q1.requires_grad_(False)
        q2.requires_grad_(False)
        new, logp = sample_action(pi, o)
        xn = torch.cat([o, new], 1)
        pi_loss = (alpha * logp - torch.min(q1(xn), q2(xn))).mean()
        pi_opt.zero_grad()
        pi_loss.backward()
        pi_opt.step()
        q1.requires_grad_(True)
        q2.requires_grad_(True)

        al_loss = -(log_alpha * (logp.detach().mean() - 2.0))
        al_opt.zero_grad()
        al_loss.backward()
        al_opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(t_params, q_params, 0.005)
        if it % 50 == 0:
            print(f"{it:5d} q_loss {q_loss.item():.4f} reward {rew.mean():.3f}")

    rate = (ITERATIONS - start_it) / (time.perf_counter() - start)
    print(
        json.dumps(
            {
                "env_steps": (100 + ITERATIONS) * N_ENVS,
                "updates": ITERATIONS,
                "units_per_s": rate,
                "checksum": sum(
                    p.detach().double().sum().item() for p in [*q_params, *pi.parameters(), log_alpha]
                ),
            }
        )
    )


if __name__ == "__main__":
    main()
