"""TRPO on a ball that rolls on a tilting table. 64 tables are simulated at once."""
import argparse
import json
import time

import numpy as np
import torch
from torch import nn


class TiltTables:
    """Position and speed of a ball in two directions; the action tilts the table. Continuing, with random pushes."""

    def __init__(self, n, seed):
        self.rng = np.random.default_rng(seed)
        self.n = n
        self.state = self.rng.normal(0.0, 0.5, size=(n, 4)).astype(np.float32)

    def observe(self):
        return self.state.copy()

    def step(self, tilt):
        tilt = np.clip(tilt, -1.0, 1.0)
        pos, vel = self.state[:, :2], self.state[:, 2:]
        vel = 0.97 * vel + 0.08 * tilt + 0.02 * self.rng.normal(size=(self.n, 2)).astype(np.float32)
        pos = pos + 0.1 * vel
        off = np.abs(pos).max(axis=1) > 2.0
        reward = -(pos ** 2).sum(axis=1) - 0.01 * (tilt ** 2).sum(axis=1) - 5.0 * off
        self.state = np.concatenate([pos, vel], axis=1)
        if off.any():
            self.state[off] = self.rng.normal(0.0, 0.5, size=(int(off.sum()), 4)).astype(np.float32)
        return reward.astype(np.float32), off


def mlp(inp, out, width):
    return nn.Sequential(nn.Linear(inp, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, out))


class GaussianPolicy(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mean = mlp(4, 2, width)
        self.log_std = nn.Parameter(torch.full((2,), -0.5))

    def log_prob(self, obs, act):
        z = (act - self.mean(obs)) / self.log_std.exp()
        return (-0.5 * z ** 2 - self.log_std - 0.9189385).sum(dim=1)


def flatten(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


def mean_kl(policy, obs):
    mu, log_std = policy.mean(obs), policy.log_std
    mu0, log_std0 = mu.detach(), log_std.detach()
    ratio = (log_std0 - log_std).exp() ** 2 + ((mu0 - mu) / log_std.exp()) ** 2
    return (log_std - log_std0 + 0.5 * ratio - 0.5).sum(dim=1).mean()


def conjugate_gradient(product, b, iterations):
    x, r, p = torch.zeros_like(b), b.clone(), b.clone()
    rr = r @ r
    for _ in range(iterations):
        ap = product(p)
        alpha = rr / (p @ ap + 1e-8)
        x += alpha * p
        r -= alpha * ap
        new = r @ r
        if new < 1e-10:
            break
        p = r + (new / rr) * p
        rr = new
    return x


def trpo_step(policy, obs, act, adv, cfg):
    params = list(policy.parameters())
    with torch.no_grad():
        old_logp = policy.log_prob(obs, act)
    surrogate = ((policy.log_prob(obs, act) - old_logp).exp() * adv).mean()
    gradient = flatten(torch.autograd.grad(surrogate, params))

    def fisher_product(v):
        kl = mean_kl(policy, obs)
        slope = flatten(torch.autograd.grad(kl, params, create_graph=True))
        return flatten(torch.autograd.grad(slope @ v, params)) + cfg.damping * v

    direction = conjugate_gradient(fisher_product, gradient, cfg.cg_iterations)
    size = torch.sqrt(2 * cfg.max_kl / (direction @ fisher_product(direction) + 1e-8))
    start = nn.utils.parameters_to_vector(params).detach().clone()
    with torch.no_grad():
        base = surrogate.item()
        for k in range(8):
            nn.utils.vector_to_parameters(start + 0.6 ** k * size * direction, params)
            gained = ((policy.log_prob(obs, act) - old_logp).exp() * adv).mean().item() - base
            if gained > 0:
                return gained
        nn.utils.vector_to_parameters(start, params)
    return 0.0


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=400)
    ap.add_argument("--tables", type=int, default=64)
    ap.add_argument("--horizon", type=int, default=32)
    ap.add_argument("--width", type=int, default=64)
    ap.add_argument("--cg-iterations", type=int, default=12)
    ap.add_argument("--damping", type=float, default=0.1)
    ap.add_argument("--max-kl", type=float, default=0.01)
    ap.add_argument("--seed", type=int, default=0)
    cfg = ap.parse_args()
    torch.manual_seed(cfg.seed)
    world = TiltTables(cfg.tables, cfg.seed)
    policy, value = GaussianPolicy(cfg.width), mlp(4, 1, cfg.width)
    optimizer = torch.optim.Adam(value.parameters(), lr=1e-3, fused=True)
    t_len, n = cfg.horizon, cfg.tables
    obs = torch.zeros(t_len + 1, n, 4)
    act, rew, cut = torch.zeros(t_len, n, 2), torch.zeros(t_len, n), torch.zeros(t_len, n)
    updates, marks = 0, {}
    for it in range(cfg.iterations):
        if it == cfg.iterations // 5:
            marks["start"], marks["it"] = time.perf_counter(), it
        with torch.no_grad():
            for t in range(t_len):
                obs[t] = torch.from_numpy(world.observe())
                mu = policy.mean(obs[t])
                act[t] = mu + policy.log_std.exp() * torch.randn_like(mu)
                reward, off = world.step(act[t].numpy())
                rew[t], cut[t] = torch.from_numpy(reward), torch.from_numpy(off)
            obs[t_len] = torch.from_numpy(world.observe())
            v = value(obs).squeeze(-1)
            adv, last = torch.zeros(t_len, n), torch.zeros(n)
            for t in reversed(range(t_len)):
                live = 1.0 - cut[t]
                last = rew[t] + 0.98 * live * v[t + 1] - v[t] + 0.98 * 0.95 * live * last
                adv[t] = last
        flat_obs, flat_ret = obs[:-1].reshape(-1, 4), (adv + v[:-1]).reshape(-1)
        flat_adv = (adv.reshape(-1) - adv.mean()) / (adv.std() + 1e-8)
        gained = trpo_step(policy, flat_obs, act.reshape(-1, 2), flat_adv, cfg)
        for _ in range(4):
            loss = ((value(flat_obs).squeeze(-1) - flat_ret) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
        if it % 50 == 0:
            print(f"{it:4d} reward {rew.mean().item():.3f} gained {gained:.4f}")
    seconds = time.perf_counter() - marks["start"]
    total = float(sum(p.detach().double().abs().sum() for p in policy.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "checksum": round(total, 5),
                      "units_per_s": (cfg.iterations - marks["it"]) / seconds}))


if __name__ == "__main__":
    main()
