"""SAC with a collector process: while the learner trains on one chunk of experience, the next is collected."""

from __future__ import annotations

import json
import multiprocessing as mp
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro


@dataclass
class Args:
    chunks: int = 20
    chunk_steps: int = 12
    n_envs: int = 64
    updates_per_chunk: int = 30
    batch_size: int = 64
    hidden: int = 64
    seed: int = 0


class Actor(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2)
        )

    def forward(self, obs):
        mean, log_std = self.body(obs).chunk(2, -1)
        dist = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        raw = dist.rsample()
        action = torch.tanh(raw)
        logp = dist.log_prob(raw) - torch.log(1 - action.square() + 1e-6)
        return action, logp.sum(-1)


def critic(hidden):
    return nn.Sequential(
        nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
    )


def pendulum_step(th, vel, u):
    cost = ((th + np.pi) % (2 * np.pi) - np.pi) ** 2 + 0.1 * vel**2 + 0.004 * u**2
    vel = np.clip(vel + (15 * np.sin(th) + 6 * u) * 0.05, -8, 8)
    return th + vel * 0.05, vel, -cost


def observe(th, vel):
    return np.stack([np.cos(th), np.sin(th), vel / 8], 1).astype(np.float32)


def collector(args: Args, conn) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(args.seed + 1)
    rng = np.random.default_rng(args.seed + 1)
    actor = Actor(args.hidden)
    th, vel = rng.uniform(-np.pi, np.pi, args.n_envs), rng.uniform(-1, 1, args.n_envs)
    for _ in range(args.chunks):
        weights = conn.recv()
        with torch.no_grad():
            for p, w in zip(actor.parameters(), weights, strict=True):
                p.copy_(torch.from_numpy(w))
        rows = []
        for _ in range(args.chunk_steps):
            obs = observe(th, vel)
            with torch.inference_mode():
                act = actor(torch.from_numpy(obs))[0].numpy()
            th, vel, rew = pendulum_step(th, vel, act[:, 0])
            rows.append(np.concatenate([obs, act, rew[:, None].astype(np.float32), observe(th, vel)], 1))
        conn.send(np.concatenate(rows))
    conn.close()


def main(args: Args) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    actor, q1, q2 = Actor(args.hidden), critic(args.hidden), critic(args.hidden)
    t1, t2 = critic(args.hidden), critic(args.hidden)
    t1.load_state_dict(q1.state_dict())
    t2.load_state_dict(q2.state_dict())
    log_alpha = nn.Parameter(torch.zeros(()))
    qs, ts = [*q1.parameters(), *q2.parameters()], [*t1.parameters(), *t2.parameters()]
    pi_opt, q_opt = torch.optim.Adam(actor.parameters(), 3e-4), torch.optim.Adam(qs, 3e-4)
    alpha_opt = torch.optim.Adam([log_alpha], 3e-4)

    ctx = mp.get_context("spawn")
    conn, other = ctx.Pipe()
    worker = ctx.Process(target=collector, args=(args, other), daemon=True)
    worker.start()
    per_chunk = args.chunk_steps * args.n_envs
    data = np.zeros((args.chunks * per_chunk, 8), np.float32)
    updates, t0 = 0, 0.0
    conn.send([p.detach().numpy() for p in actor.parameters()])
    for k in range(args.chunks):
        if k == args.chunks // 5:
            t0 = time.perf_counter()
        data[k * per_chunk : (k + 1) * per_chunk] = conn.recv()
        if k + 1 < args.chunks:
            conn.send([p.detach().numpy() for p in actor.parameters()])
        for _ in range(args.updates_per_chunk):
            batch = torch.from_numpy(data[rng.integers(0, (k + 1) * per_chunk, args.batch_size)])
            o, a, r, o2 = batch.split([3, 1, 1, 3], 1)
            alpha = log_alpha.exp().detach()
            with torch.no_grad():
                a2, logp2 = actor(o2)
                x2 = torch.cat([o2, a2], 1)
                y = r.squeeze(1) + 0.98 * (torch.min(t1(x2), t2(x2)).squeeze(1) - alpha * logp2)
            x = torch.cat([o, a], 1)
            q_loss = F.mse_loss(q1(x).squeeze(1), y) + F.mse_loss(q2(x).squeeze(1), y)
            q_opt.zero_grad()
            q_loss.backward()
            q_opt.step()
            act, logp = actor(o)
            xa = torch.cat([o, act], 1)
            pi_loss = (alpha * logp - torch.min(q1(xa), q2(xa)).squeeze(1)).mean()
            pi_opt.zero_grad()
            pi_loss.backward()
            pi_opt.step()
            alpha_loss = -(log_alpha.exp() * (logp.detach() - 1.0)).mean()
            alpha_opt.zero_grad()
            alpha_loss.backward()
            alpha_opt.step()
            with torch.no_grad():
                torch._foreach_lerp_(ts, qs, 0.005)
            updates += 1
    rate = (args.chunks - args.chunks // 5) / (time.perf_counter() - t0)
    worker.join()
    total = float(sum(p.double().sum() for p in actor.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": total}))


if __name__ == "__main__":
    main(tyro.cli(Args))
