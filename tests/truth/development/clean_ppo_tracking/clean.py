"""PPO for following moving targets; all environments are stepped in one array."""

import argparse
import json
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn


@dataclass
class Settings:
    n_envs: int = 256
    n_steps: int = 64
    n_epochs: int = 6
    batch_size: int = 1024
    gamma: float = 0.97
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    ent_coef: float = 0.003
    lr: float = 3e-4
    width: int = 384
    dims: int = 8


class Tracking:
    """n points with velocity control follow n targets that drift on circles."""

    def __init__(self, n, dims, seed):
        self.rng = np.random.default_rng(seed)
        self.n, self.dims = n, dims
        self.pos = self.rng.standard_normal((n, dims), dtype=np.float32)
        self.vel = np.zeros((n, dims), np.float32)
        self.phase = self.rng.uniform(0, 6.28, (n, dims)).astype(np.float32)
        self.age = self.rng.integers(0, 200, n)

    def obs(self):
        return np.concatenate([np.sin(self.phase) - self.pos, self.vel, np.cos(self.phase)], axis=1)

    def step(self, action):
        self.vel = 0.8 * self.vel + 0.2 * np.clip(action, -1, 1)
        self.pos = self.pos + 0.1 * self.vel
        self.phase = self.phase + 0.05
        reward = -np.square(np.sin(self.phase) - self.pos).mean(axis=1)
        self.age += 1
        done = self.age >= 200
        if done.any():
            k = int(done.sum())
            self.pos[done] = self.rng.standard_normal((k, self.dims), dtype=np.float32)
            self.vel[done] = 0.0
            self.age[done] = 0
        return self.obs(), reward, done.astype(np.float32)


class ActorCritic(nn.Module):
    def __init__(self, n_obs, n_act, width):
        super().__init__()
        self.pi = nn.Sequential(
            nn.Linear(n_obs, width),
            nn.ReLU(inplace=True),
            nn.Linear(width, width),
            nn.ReLU(inplace=True),
            nn.Linear(width, n_act),
        )
        self.v = nn.Sequential(
            nn.Linear(n_obs, width),
            nn.ReLU(inplace=True),
            nn.Linear(width, width),
            nn.ReLU(inplace=True),
            nn.Linear(width, 1),
        )
        self.log_std = nn.Parameter(torch.full((n_act,), -0.5))

    def log_prob(self, mean, action):
        z = (action - mean) * torch.exp(-self.log_std)
        return -(0.5 * z * z + self.log_std).sum(1)


def collect(net, env, obs, buf, n_steps):
    with torch.inference_mode():
        std = net.log_std.exp()
        for t in range(n_steps):
            x = torch.from_numpy(obs)
            mean = net.pi(x)
            action = mean + std * torch.randn_like(mean)
            buf["obs"][t] = x
            buf["act"][t] = action
            buf["logp"][t] = net.log_prob(mean, action)
            obs, reward, done = env.step(action.numpy())
            buf["rew"][t] = torch.from_numpy(reward)
            buf["done"][t] = torch.from_numpy(done)
        # values of the whole rollout in one pass
        last = net.v(torch.from_numpy(obs)).squeeze(1)
        buf["val"] = net.v(buf["obs"].flatten(0, 1)).view(n_steps, -1)
    return obs, last


def gae(buf, last, cfg):
    rew, val, alive = buf["rew"].numpy(), buf["val"].numpy(), 1.0 - buf["done"].numpy()
    nxt = np.concatenate([val[1:], last.numpy()[None]])
    delta = rew + cfg.gamma * nxt * alive - val
    adv = np.zeros_like(delta)
    acc = np.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        acc = delta[t] + cfg.gamma * cfg.gae_lambda * alive[t] * acc
        adv[t] = acc
    return torch.from_numpy(adv), torch.from_numpy(adv + val)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    cfg = Settings()
    torch.manual_seed(args.seed)
    env = Tracking(cfg.n_envs, cfg.dims, args.seed)
    net = ActorCritic(3 * cfg.dims, cfg.dims, cfg.width)
    opt = torch.optim.Adam(net.parameters(), lr=cfg.lr, fused=True)
    shape = (cfg.n_steps, cfg.n_envs)
    buf = {k: torch.zeros(shape) for k in ("logp", "rew", "done")}
    buf["obs"], buf["act"] = torch.zeros(*shape, 3 * cfg.dims), torch.zeros(*shape, cfg.dims)

    obs = env.obs()
    updates = 0
    n = cfg.n_envs * cfg.n_steps
    t0, i0 = time.perf_counter(), 0
    for it in range(args.iterations):
        if it == args.iterations // 5:
            t0, i0 = time.perf_counter(), it
        obs, last = collect(net, env, obs, buf, cfg.n_steps)
        adv, ret = gae(buf, last, cfg)
        adv = ((adv - adv.mean()) / (adv.std() + 1e-8)).flatten()
        ret = ret.flatten()
        flat = {k: buf[k].flatten(0, 1) for k in ("obs", "act", "logp")}
        for _ in range(cfg.n_epochs):
            for idx in torch.randperm(n).split(cfg.batch_size):
                x = flat["obs"][idx]
                logp = net.log_prob(net.pi(x), flat["act"][idx])
                ratio = torch.exp(logp - flat["logp"][idx])
                a = adv[idx]
                pg = -torch.min(ratio * a, ratio.clamp(1 - cfg.clip_range, 1 + cfg.clip_range) * a).mean()
                vf = (net.v(x).squeeze(1) - ret[idx]).square().mean()
                loss = pg + 0.5 * vf - cfg.ent_coef * net.log_std.sum()
                opt.zero_grad()
                loss.backward()
                opt.step()
                updates += 1
        if it % 5 == 0:
            print(f"iteration {it}: mean reward {buf['rew'].mean().item():.4f}")
    rate = (args.iterations - i0) / (time.perf_counter() - t0)
    checksum = sum(p.detach().double().sum().item() for p in net.parameters())
    print(
        json.dumps(
            {"env_steps": args.iterations * n, "updates": updates, "units_per_s": rate, "checksum": checksum}
        )
    )


if __name__ == "__main__":
    main()
