"""TD3 for a tethered kite-like drone. The latest flights are archived for the replay viewer."""
import argparse
import json
import math
import os
import tempfile
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class TetherDrone(gym.Env):
    """Planar drone on an elastic tether: hover at a point against gusts. A flight takes at most 80 steps."""

    def __init__(self, horizon=80):
        self.horizon = horizon
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (8,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def _obs(self):
        gx, gz = self.goal
        return np.array([self.x, self.z, self.vx, self.vz, gx - self.x, gz - self.z, self.gust, self.t / self.horizon], np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.z, self.vx, self.vz, self.gust, self.t = 0.0, 1.0, 0.0, 0.0, 0.0, 0
        self.goal = (float(self.np_random.uniform(-1, 1)), float(self.np_random.uniform(0.8, 2.0)))
        return self._obs(), {}

    def step(self, action):
        ax, az = float(action[0]), float(action[1])
        self.gust = 0.9 * self.gust + 0.2 * float(self.np_random.normal())
        length = math.hypot(self.x, self.z)
        pull = max(0.0, length - 1.5) * 4.0
        self.vx += 0.05 * (4.0 * ax + self.gust - pull * self.x / length - 0.4 * self.vx)
        self.vz += 0.05 * (4.0 * az - pull * self.z / length - 0.4 * self.vz)
        self.x += 0.05 * self.vx
        self.z += 0.05 * self.vz
        self.t += 1
        off = math.hypot(self.goal[0] - self.x, self.goal[1] - self.z)
        crashed = self.z < 0.05
        return self._obs(), -off - 0.02 * (ax * ax + az * az) - 5.0 * crashed, crashed, self.t >= self.horizon, {}


class TransitionStore:
    def __init__(self, capacity, obs_dim, act_dim):
        self.obs = torch.zeros(capacity, obs_dim)
        self.next_obs = torch.zeros(capacity, obs_dim)
        self.act = torch.zeros(capacity, act_dim)
        self.rew = torch.zeros(capacity, 1)
        self.term = torch.zeros(capacity, 1)
        self.capacity, self.n = capacity, 0

    def append(self, obs, act, rew, next_obs, term):
        i = self.n % self.capacity
        self.obs[i], self.next_obs[i], self.act[i] = torch.from_numpy(obs), torch.from_numpy(next_obs), act
        self.rew[i], self.term[i] = rew, float(term)
        self.n += 1

    def batch(self, size):
        idx = torch.randint(min(self.n, self.capacity), (size,))
        return self.obs[idx], self.act[idx], self.rew[idx], self.next_obs[idx], self.term[idx]

    def flight(self, start):
        """The transitions since `start` (a flight never crosses the end of the store: capacity covers the whole training)."""
        return {"obs": self.obs[start : self.n], "act": self.act[start : self.n], "rew": self.rew[start : self.n]}


class FlightArchive:
    def __init__(self, folder, keep=4):
        self.folder, self.keep, self.count = folder, keep, 0
        os.makedirs(folder, exist_ok=True)

    def save(self, flight, ret):
        path = os.path.join(self.folder, f"flight_{self.count % self.keep}.pt")
        torch.save({"number": self.count, "return": ret, **flight}, path)
        self.count += 1


def net(inp, out, width, final=None):
    layers = [nn.Linear(inp, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out)]
    return nn.Sequential(*layers, *([final] if final else []))


class TwinQ(nn.Module):
    def __init__(self, inp, width):
        super().__init__()
        self.a, self.b = net(inp, 1, width), net(inp, 1, width)

    def forward(self, obs, act):
        x = torch.cat([obs, act], -1)
        return self.a(x), self.b(x)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=9)
    p.add_argument("--total-steps", type=int, default=150_000)
    p.add_argument("--start-steps", type=int, default=400)
    p.add_argument("--train-every", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--gamma", type=float, default=0.97)
    p.add_argument("--capacity", type=int, default=1_000_000)
    p.add_argument("--archive", default=None)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    env = TetherDrone()
    obs_dim, act_dim = 8, 2
    actor, actor_t = (net(obs_dim, act_dim, args.width, nn.Tanh()) for _ in range(2))
    twin, twin_t = TwinQ(obs_dim + act_dim, args.width), TwinQ(obs_dim + act_dim, args.width)
    actor_t.load_state_dict(actor.state_dict())
    twin_t.load_state_dict(twin.state_dict())
    actor_opt = torch.optim.Adam(actor.parameters(), lr=1e-3, fused=True)
    twin_opt = torch.optim.Adam(twin.parameters(), lr=1e-3, fused=True)
    online = [*actor.parameters(), *twin.parameters()]
    lagged = [*actor_t.parameters(), *twin_t.parameters()]
    store = TransitionStore(args.capacity, obs_dim, act_dim)

    with tempfile.TemporaryDirectory() as scratch:
        archive = FlightArchive(args.archive or scratch)
        obs, _ = env.reset(seed=args.seed)
        ret, start, updates, actor_updates, mark, returns = 0.0, 0, 0, 0, None, []
        mark_at = args.start_steps + (args.total_steps - args.start_steps) // 5
        for step in range(args.total_steps):
            if step == mark_at:
                mark = time.perf_counter()
            if step < args.start_steps:
                act = torch.rand(act_dim) * 2 - 1
            else:
                with torch.no_grad():
                    act = (actor(torch.from_numpy(obs)) + 0.15 * torch.randn(act_dim)).clamp(-1, 1)
            next_obs, reward, terminated, truncated, _ = env.step(act.numpy())
            store.append(obs, act, reward, next_obs, terminated)
            obs = next_obs
            ret += reward
            if terminated or truncated:
                archive.save(store.flight(start), ret)
                returns.append(ret)
                if archive.count % 20 == 0:
                    print(f"flight {archive.count}  step {step + 1}  mean return {np.mean(returns[-20:]):.2f}")
                obs, _ = env.reset()
                ret, start = 0.0, store.n
            if step < args.start_steps or step % args.train_every:
                continue
            b_obs, b_act, b_rew, b_next, b_term = store.batch(args.batch_size)
            with torch.no_grad():
                noise = (0.2 * torch.randn_like(b_act)).clamp(-0.5, 0.5)
                q_next = torch.min(*twin_t(b_next, (actor_t(b_next) + noise).clamp(-1, 1)))
                y = b_rew + args.gamma * (1 - b_term) * q_next
            q_a, q_b = twin(b_obs, b_act)
            q_loss = F.mse_loss(q_a, y) + F.mse_loss(q_b, y)
            twin_opt.zero_grad()
            q_loss.backward()
            twin_opt.step()
            updates += 1
            if updates % 2 == 0:
                twin.requires_grad_(False)
                actor_loss = -twin.a(torch.cat([b_obs, actor(b_obs)], -1)).mean()
                actor_opt.zero_grad()
                actor_loss.backward()
                actor_opt.step()
                twin.requires_grad_(True)
                actor_updates += 1
                with torch.no_grad():
                    torch._foreach_lerp_(lagged, online, 0.01)
        speed = (args.total_steps - mark_at) / (time.perf_counter() - mark)
    checksum = sum(w.detach().double().abs().sum().item() for w in online)
    print(json.dumps({"env_steps": args.total_steps, "updates": updates + actor_updates, "units_per_s": speed, "checksum": checksum}))


if __name__ == "__main__":
    main()
