"""A2C that calms the Kuramoto-Sivashinsky equation; every simulation runs in a process of its own."""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

os.environ["OMP_NUM_THREADS"] = "1"

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Normal


class KuramotoSivashinsky(gym.Env):
    """Pseudo-spectral solver with four Gaussian actuators; the reward is minus the energy."""

    def __init__(self, points: int = 256, length: float = 22.0, substeps: int = 25, horizon: int = 200):
        self.points, self.substeps, self.horizon = points, substeps, horizon
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (16,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        dt = 0.02
        k = 2 * np.pi / length * np.arange(points // 2 + 1)
        self.implicit = 1.0 / (1.0 - dt * (k**2 - k**4))
        self.advection = -0.5j * k * dt
        x = np.linspace(0.0, length, points, endpoint=False)
        centres = length * (np.arange(4) + 0.5) / 4
        bumps = np.exp(-(((x[None] - centres[:, None]) / 0.8) ** 2))
        self.forcing = np.fft.rfft(bumps, axis=1) * dt * 0.5
        self.v = np.zeros(points // 2 + 1, dtype=complex)
        self.t = 0

    def _observe(self, u: np.ndarray) -> np.ndarray:
        return u[:: self.points // 16].astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        modes = self.np_random.normal(size=(8, 2)) @ np.array([1.0, 1j])
        self.v[:] = 0.0
        self.v[1:9] = modes * self.points * 0.05
        self.t = 0
        return self._observe(np.fft.irfft(self.v)), {}

    def step(self, action: np.ndarray):
        force = np.clip(action, -1.0, 1.0) @ self.forcing
        v = self.v
        for _ in range(self.substeps):
            u = np.fft.irfft(v)
            v = (v + self.advection * np.fft.rfft(u * u) + force) * self.implicit
        self.v = v
        u = np.fft.irfft(v)
        self.t += 1
        reward = -float(u @ u) / self.points - 0.05 * float(action @ action)
        return self._observe(u), reward, False, self.t >= self.horizon, {}


def serve(conn: Connection, seed: int) -> None:
    """Main function of a simulation process."""
    env = KuramotoSivashinsky()
    obs, _ = env.reset(seed=seed)
    conn.send(obs)
    while True:
        action = conn.recv()
        if action is None:
            break
        obs, reward, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            obs, _ = env.reset()
        conn.send((obs, reward, terminated or truncated))


class Simulations:
    """Steps all simulations at once and stacks what they answer."""

    def __init__(self, count: int, seed: int):
        self.pipes, self.processes = [], []
        for i in range(count):
            ours, theirs = mp.Pipe()
            process = mp.Process(target=serve, args=(theirs, seed + i), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def first(self) -> np.ndarray:
        return np.stack([pipe.recv() for pipe in self.pipes])

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        for pipe, action in zip(self.pipes, actions, strict=True):
            pipe.send(action)
        obs, rewards, dones = zip(*[pipe.recv() for pipe in self.pipes], strict=True)
        return np.stack(obs), np.array(rewards, np.float32), np.array(dones, np.float32)

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join()


class ActorCritic(nn.Module):
    def __init__(self, obs_dim: int, act_dim: int, width: int = 64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs_dim, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.mean = nn.Linear(width, act_dim)
        self.value = nn.Linear(width, 1)
        self.log_std = nn.Parameter(torch.full((act_dim,), -0.5))

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.trunk(obs)
        return self.mean(features), self.value(features).squeeze(-1)


@dataclass
class Config:
    iterations: int = 330
    workers: int = 2
    n_steps: int = 16
    gamma: float = 0.97
    lr: float = 7e-4
    seed: int = 1


def train(cfg: Config) -> dict[str, float | int]:
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(1)
    sims = Simulations(cfg.workers, cfg.seed)
    model = ActorCritic(16, 4)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=cfg.lr, eps=1e-5)
    obs = torch.from_numpy(sims.first())
    obs_buf = torch.zeros(cfg.n_steps, cfg.workers, 16)
    act_buf = torch.zeros(cfg.n_steps, cfg.workers, 4)
    rewards = np.zeros((cfg.n_steps, cfg.workers), np.float32)
    dones = np.zeros((cfg.n_steps, cfg.workers), np.float32)
    warmup, began = cfg.iterations // 5, time.perf_counter()

    for iteration in range(cfg.iterations):
        if iteration == warmup:
            began = time.perf_counter()
        for t in range(cfg.n_steps):
            with torch.no_grad():
                mean, _ = model(obs)
                action = torch.normal(mean, model.log_std.exp().expand_as(mean))
            obs_buf[t], act_buf[t] = obs, action
            new_obs, rewards[t], dones[t] = sims.step(action.numpy())
            obs = torch.from_numpy(new_obs)

        with torch.no_grad():
            carry = model(obs)[1].numpy()
        returns = np.empty_like(rewards)
        for t in reversed(range(cfg.n_steps)):
            carry = rewards[t] + cfg.gamma * (1.0 - dones[t]) * carry
            returns[t] = carry

        mean, value = model(obs_buf)
        advantage = torch.from_numpy(returns) - value
        dist = Normal(mean, model.log_std.exp(), validate_args=False)
        log_prob = dist.log_prob(act_buf).sum(-1)
        loss = -(log_prob * advantage.detach()).mean() + 0.5 * advantage.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if iteration % 100 == 0:
            print(f"{iteration:5d}  reward {rewards.mean():8.3f}  loss {loss.item():8.3f}")

    elapsed = time.perf_counter() - began
    sims.close()
    return {
        "env_steps": cfg.iterations * cfg.n_steps * cfg.workers,
        "updates": cfg.iterations,
        "units_per_s": (cfg.iterations - warmup) / elapsed,
        "checksum": sum(p.detach().abs().sum().item() for p in model.parameters()),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=Config.iterations)
    parser.add_argument("--workers", type=int, default=Config.workers)
    parsed = parser.parse_args()
    print(json.dumps(train(Config(iterations=parsed.iterations, workers=parsed.workers))))
