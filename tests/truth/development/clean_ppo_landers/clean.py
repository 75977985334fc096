"""PPO for a simplified moon lander, 64 landers in NumPy arrays."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn


class Landers:
    def __init__(self, n, seed):
        self.n = n
        self.rng = np.random.default_rng(seed)
        self.s = np.zeros((n, 5), np.float32)  # x, y, vx, vy, fuel
        self.age = np.zeros(n, np.int64)
        self._start(np.ones(n, bool))

    def _start(self, who):
        k = int(who.sum())
        self.s[who, 0] = self.rng.uniform(-1, 1, k)
        self.s[who, 1] = 1.0
        self.s[who, 2:4] = 0.0
        self.s[who, 4] = 1.0
        self.age[who] = 0

    def step(self, a):
        s = self.s
        burn = (a > 0) & (s[:, 4] > 0)
        s[:, 2] += np.where(burn, (a == 1) * 0.02 - (a == 2) * 0.02, 0)
        s[:, 3] += np.where(burn & (a == 3), 0.05, 0) - 0.02
        s[:, 4] -= burn * 0.01
        s[:, :2] += 0.1 * s[:, 2:4]
        self.age += 1
        down = s[:, 1] <= 0
        soft = down & (np.abs(s[:, 0]) < 0.3) & (np.abs(s[:, 3]) < 0.2)
        reward = (soft * 1.0 - (down & ~soft) * 1.0 - 0.001 * burn).astype(np.float32)
        over = down | (self.age >= 200)
        if over.any():
            self._start(over)
        return s.copy(), reward, over


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
        self.v = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iterations", type=int, default=200)
    p.add_argument("--n-envs", type=int, default=64)
    p.add_argument("--n-steps", type=int, default=64)
    args = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    env, net = Landers(args.n_envs, 0), ActorCritic()
    opt = torch.optim.Adam(net.parameters(), lr=3e-4, fused=True)
    T, N = args.n_steps, args.n_envs
    obs_buf, act_buf = np.zeros((T + 1, N, 5), np.float32), np.zeros((T, N), np.int64)
    logp_buf, rew_buf = np.zeros((T, N), np.float32), np.zeros((T, N), np.float32)
    end_buf = np.zeros((T, N), np.float32)
    obs_buf[T] = env.s
    updates = 0
    for it in range(args.iterations):
        if it == args.iterations // 5:
            begin = time.perf_counter()
        obs_buf[0] = obs_buf[T]
        with torch.inference_mode():
            for t in range(T):
                logp = torch.log_softmax(net.pi(torch.from_numpy(obs_buf[t])), 1).numpy()
                act = (logp + rng.gumbel(size=logp.shape)).argmax(1)
                act_buf[t], logp_buf[t] = act, logp[np.arange(N), act]
                obs_buf[t + 1], rew_buf[t], end_buf[t] = env.step(act)
            values = net.v(torch.from_numpy(obs_buf)).squeeze(-1).numpy()
        adv, last = np.zeros((T, N), np.float32), np.zeros(N, np.float32)
        for t in reversed(range(T)):
            alive = 1 - end_buf[t]
            last = rew_buf[t] + 0.99 * alive * values[t + 1] - values[t] + 0.9405 * alive * last
            adv[t] = last
        o, a = torch.from_numpy(obs_buf[:T].reshape(-1, 5)), torch.from_numpy(act_buf.reshape(-1, 1))
        old, g = torch.from_numpy(logp_buf.reshape(-1)), torch.from_numpy((adv + values[:T]).reshape(-1))
        w = torch.from_numpy(adv.reshape(-1))
        w = (w - w.mean()) / (w.std() + 1e-8)
        for _ in range(4):
            for mb in torch.randperm(T * N).split(512):
                logp = torch.log_softmax(net.pi(o[mb]), 1)
                ratio = (logp.gather(1, a[mb]).squeeze(1) - old[mb]).exp()
                pg = -torch.min(ratio * w[mb], ratio.clamp(0.8, 1.2) * w[mb]).mean()
                entropy = -(logp.exp() * logp).sum(1).mean()
                loss = pg + 0.5 * (net.v(o[mb]).squeeze(1) - g[mb]).square().mean() - 0.01 * entropy
                opt.zero_grad()
                loss.backward()
                opt.step()
                updates += 1
    rate = (args.iterations - args.iterations // 5) / (time.perf_counter() - begin)
    total = float(sum(p.double().sum() for p in net.parameters()))
    print(
        json.dumps(
            {"env_steps": args.iterations * T * N, "updates": updates, "units_per_s": rate, "checksum": total}
        )
    )


if __name__ == "__main__":
    main()
