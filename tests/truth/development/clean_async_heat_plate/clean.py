"""
PPO that keeps a metal plate at its target temperatures with four heaters.

The plate is a finite-difference simulation (a millisecond or so per control step), so the
environments run in worker processes (gymnasium's AsyncVectorEnv with shared memory).
"""
import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn


class HeatPlate(gym.Env):
    N = 96
    SUBSTEPS = 40

    def __init__(self, horizon=100):
        self.horizon = horizon
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (20,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        grid = np.linspace(0.0, 1.0, self.N, dtype=np.float32)
        xx, yy = np.meshgrid(grid, grid, indexing="ij")
        centres = [(0.25, 0.25), (0.25, 0.75), (0.75, 0.25), (0.75, 0.75)]
        self.heaters = np.stack([np.exp(-((xx - cx) ** 2 + (yy - cy) ** 2) / 0.02) for cx, cy in centres])
        self.heaters = self.heaters[:, 1:-1, 1:-1].astype(np.float32)
        inner = (self.N - 2, self.N - 2)
        self.plate = np.zeros((self.N, self.N), np.float32)
        self.flow = np.empty(inner, np.float32)
        self.heat = np.empty(inner, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.plate[:] = self.np_random.uniform(-0.2, 0.2)
        self.target = self.np_random.uniform(0.2, 1.0, size=4).astype(np.float32)
        self.t = 0
        return self._obs(), {}

    def _obs(self):
        quarter = self.N // 4
        means = self.plate.reshape(4, quarter, 4, quarter).mean(axis=(1, 3))
        return np.concatenate([means.ravel(), self.target])

    def step(self, action):
        power = 0.004 * (np.asarray(action, np.float32) + 1.0)
        np.einsum("k,kij->ij", power, self.heaters, out=self.heat)
        u, flow = self.plate, self.flow
        inner = u[1:-1, 1:-1]
        for _ in range(self.SUBSTEPS):
            np.add(u[:-2, 1:-1], u[2:, 1:-1], out=flow)
            flow += u[1:-1, :-2]
            flow += u[1:-1, 2:]
            flow *= 0.2
            inner *= 0.199
            inner += flow
            inner += self.heat
        self.t += 1
        q = self.N // 4
        probes = self.plate[[q, q, 3 * q, 3 * q], [q, 3 * q, q, 3 * q]]
        reward = -float(np.abs(probes - self.target).mean())
        return self._obs(), reward, False, self.t >= self.horizon, {}


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, act_dim):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(obs_dim, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, act_dim))
        self.v = nn.Sequential(nn.Linear(obs_dim, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        self.log_std = nn.Parameter(torch.full((act_dim,), -0.5))

    def log_prob(self, mean, action):
        z = (action - mean) / self.log_std.exp()
        return (-0.5 * z.pow(2) - self.log_std - 0.9189385).sum(-1)


def gae(rewards, values, dones, last_value, gamma=0.97, lam=0.95):
    adv = np.zeros_like(rewards)
    running = np.zeros_like(last_value)
    for t in range(len(rewards) - 1, -1, -1):
        following = values[t + 1] if t + 1 < len(rewards) else last_value
        alive = 1.0 - dones[t]
        delta = rewards[t] + gamma * alive * following - values[t]
        running = delta + gamma * lam * alive * running
        adv[t] = running
    return adv


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("updates", type=int, nargs="?", default=45)
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=64)
    args = parser.parse_args()
    N, T = args.envs, args.steps

    torch.manual_seed(12)
    torch.set_num_threads(1)
    envs = gym.vector.AsyncVectorEnv(
        [HeatPlate] * N,
        shared_memory=True,
        context="fork",
        autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
    )
    net = ActorCritic(20, 4)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-4)
    obs_buf = np.zeros((T, N, 20), np.float32)
    act_buf = np.zeros((T, N, 4), np.float32)
    logp_buf = np.zeros((T, N), np.float32)
    val_buf = np.zeros((T, N), np.float32)
    rew_buf = np.zeros((T, N), np.float32)
    done_buf = np.zeros((T, N), np.float32)
    obs, _ = envs.reset(seed=12)
    grad_steps = 0
    warm = args.updates // 5

    for update in range(args.updates):
        if update == warm:
            t0 = time.perf_counter()
        with torch.no_grad():
            for t in range(T):
                x = torch.from_numpy(obs)
                mean = net.pi(x)
                action = mean + net.log_std.exp() * torch.randn_like(mean)
                obs_buf[t], act_buf[t] = obs, action.numpy()
                logp_buf[t] = net.log_prob(mean, action).numpy()
                val_buf[t] = net.v(x).squeeze(-1).numpy()
                obs, rew_buf[t], terminated, truncated, _ = envs.step(action.clamp(-1.0, 1.0).numpy())
                done_buf[t] = terminated | truncated
            last_value = net.v(torch.from_numpy(obs)).squeeze(-1).numpy()
        adv = gae(rew_buf, val_buf, done_buf, last_value)
        b_obs = torch.from_numpy(obs_buf.reshape(-1, 20))
        b_act = torch.from_numpy(act_buf.reshape(-1, 4))
        b_logp = torch.from_numpy(logp_buf.reshape(-1))
        b_ret = torch.from_numpy((adv + val_buf).reshape(-1))
        b_adv = torch.from_numpy(adv.reshape(-1))
        b_adv = (b_adv - b_adv.mean()) / (b_adv.std() + 1e-8)

        for _ in range(4):
            for idx in torch.randperm(T * N).split(128):
                mean = net.pi(b_obs[idx])
                ratio = (net.log_prob(mean, b_act[idx]) - b_logp[idx]).exp()
                a = b_adv[idx]
                policy_loss = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
                value_loss = (net.v(b_obs[idx]).squeeze(-1) - b_ret[idx]).pow(2).mean()
                loss = policy_loss + 0.5 * value_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                optimizer.step()
                grad_steps += 1
        if update % 10 == 0:
            print(f"update {update}: mean reward {rew_buf.mean():.3f}")

    rate = (args.updates - warm) / (time.perf_counter() - t0)
    envs.close()
    print(json.dumps({
        "env_steps": args.updates * T * N,
        "updates": grad_steps,
        "units_per_s": rate,
        "checksum": round(sum(p.detach().double().sum().item() for p in net.parameters()), 6),
    }))


if __name__ == "__main__":
    main()
