# Soft actor-critic with automatic temperature, batch of environments in numpy.
import json
import math
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.tensorboard import SummaryWriter

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


class PendulumBatch:
    """Swing-up with n pendulums side by side; same constants as Gymnasium's."""

    def __init__(self, n, seed):
        self.rng = np.random.default_rng(seed)
        self.n = n
        self.t = 0
        self.theta = self.rng.uniform(-np.pi, np.pi, n)
        self.speed = self.rng.uniform(-1, 1, n)

    def obs(self):
        return np.stack([np.cos(self.theta), np.sin(self.theta), self.speed], axis=1).astype(np.float32)

    def step(self, u):
        u = np.clip(2.0 * u[:, 0], -2.0, 2.0)
        th = (self.theta + np.pi) % (2 * np.pi) - np.pi
        cost = th**2 + 0.1 * self.speed**2 + 0.001 * u**2
        self.speed = np.clip(self.speed + (15.0 * np.sin(self.theta) + 3.0 * u) * 0.05, -8, 8)
        self.theta = self.theta + self.speed * 0.05
        self.t += 1
        nxt = self.obs()
        if self.t % 200 == 0:
            self.theta = self.rng.uniform(-np.pi, np.pi, self.n)
            self.speed = self.rng.uniform(-1, 1, self.n)
        return nxt, -cost.astype(np.float32)


def mlp(n_in, n_out, hidden=256):
    return nn.Sequential(
        nn.Linear(n_in, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, n_out)
    )


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(3, 2)

    def forward(self, obs):
        mean, log_std = self.body(obs).chunk(2, dim=1)
        std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX).exp()
        noise = torch.randn_like(mean)
        pre = mean + std * noise
        action = torch.tanh(pre)
        logp = -0.5 * noise**2 - std.log() - 0.5 * math.log(2 * math.pi)
        logp = logp - 2.0 * (math.log(2.0) - pre - F.softplus(-2.0 * pre))
        return action, logp.sum(1, keepdim=True)


class Replay:
    def __init__(self, size):
        self.data = np.zeros((size, 3 + 1 + 1 + 3), np.float32)
        self.size, self.n = size, 0

    def add_batch(self, o, a, r, o2):
        k = len(o)
        idx = np.arange(self.n, self.n + k) % self.size
        self.data[idx] = np.concatenate([o, a, r[:, None], o2], axis=1)
        self.n += k

    def sample(self, k, rng):
        rows = torch.from_numpy(self.data[rng.integers(0, min(self.n, self.size), k)])
        return rows.split([3, 1, 1, 3], dim=1)


def log_progress(writer, it, metrics, nets):
    if it % 25 == 0:
        for name, value in metrics.items():
            writer.add_scalar(f"losses/{name}", value.item(), it)
    for label, net in nets.items():
        for name, p in net.named_parameters():
            writer.add_histogram(f"{label}/{name}", p.detach(), it)


def main():
    ap = ArgumentParser()
    ap.add_argument("--iterations", type=int, default=280)
    ap.add_argument("--n-envs", type=int, default=4)
    ap.add_argument("--batch-size", type=int, default=128)
    ap.add_argument("--seed", type=int, default=5)
    ap.add_argument("--log-dir", type=Path, default=None)
    opts = ap.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(opts.seed)
    rng = np.random.default_rng(opts.seed)
    env = PendulumBatch(opts.n_envs, opts.seed)
    policy, q1, q2 = Policy(), mlp(4, 1), mlp(4, 1)
    t1, t2 = mlp(4, 1), mlp(4, 1)
    t1.load_state_dict(q1.state_dict())
    t2.load_state_dict(q2.state_dict())
    log_alpha = torch.zeros(1, requires_grad=True)
    pi_opt = torch.optim.Adam(policy.parameters(), lr=3e-4)
    q_params = [*q1.parameters(), *q2.parameters()]
    q_opt = torch.optim.Adam(q_params, lr=1e-3)
    a_opt = torch.optim.Adam([log_alpha], lr=3e-4)
    replay = Replay(100_000)
    scratch = tempfile.TemporaryDirectory()
    writer = SummaryWriter(opts.log_dir or scratch.name)

    obs = env.obs()
    for _ in range(250):
        act = rng.uniform(-1, 1, (opts.n_envs, 1)).astype(np.float32)
        nxt, rew = env.step(act)
        replay.add_batch(obs, act, rew, nxt)
        obs = env.obs()

    t_mark, i_mark = time.perf_counter(), 0
    for it in range(opts.iterations):
        if it == opts.iterations // 5:
            t_mark, i_mark = time.perf_counter(), it
        with torch.no_grad():
            act = policy(torch.from_numpy(obs))[0].numpy()
        nxt, rew = env.step(act)
        replay.add_batch(obs, act, rew, nxt)
        obs = env.obs()

        o, a, r, o2 = replay.sample(opts.batch_size, rng)
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            a2, logp2 = policy(o2)
            oa2 = torch.cat([o2, a2], 1)
            y = r + 0.99 * (torch.min(t1(oa2), t2(oa2)) - alpha * logp2)
        oa = torch.cat([o, a], 1)
        q_loss = F.mse_loss(q1(oa), y) + F.mse_loss(q2(oa), y)
        q_opt.zero_grad()
        q_loss.backward()
        q_opt.step()

        for p in q_params:
            p.requires_grad_(False)
        new_a, logp = policy(o)
        o_new = torch.cat([o, new_a], 1)
        pi_loss = (alpha * logp - torch.min(q1(o_new), q2(o_new))).mean()
        pi_opt.zero_grad()
        pi_loss.backward()
        pi_opt.step()
        for p in q_params:
            p.requires_grad_(True)

        a_loss = -(log_alpha * (logp.detach() - 1.0)).mean()
        a_opt.zero_grad()
        a_loss.backward()
        a_opt.step()

        with torch.no_grad():
            torch._foreach_lerp_([*t1.parameters(), *t2.parameters()], q_params, 0.005)

        metrics = {"q_loss": q_loss.detach(), "pi_loss": pi_loss.detach(), "alpha": alpha}
        log_progress(writer, it, metrics, {"policy": policy, "q1": q1, "q2": q2})

    took = time.perf_counter() - t_mark
    writer.close()
    scratch.cleanup()
    checksum = sum(p.detach().double().sum().item() for p in [*policy.parameters(), *q_params, log_alpha])
    summary = {
        "env_steps": (250 + opts.iterations) * opts.n_envs,
        "updates": opts.iterations,
        "units_per_s": (opts.iterations - i_mark) / took,
        "checksum": checksum,
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
