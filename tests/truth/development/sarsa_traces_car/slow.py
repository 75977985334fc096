"""Sarsa(lambda) with tile coding on MountainCar-v0 (Sutton & Barto ch. 12)."""
import argparse
import json
import time
from dataclasses import dataclass

import gymnasium as gym
import numpy as np


@dataclass
class Config:
    steps: int = 50000
    tilings: int = 16
    tiles: int = 72
    lam: float = 0.92
    gamma: float = 1.0
    alpha: float = 0.35
    seed: int = 8


class TileCoder:
    """Asymmetric offsets, one block of indices per tiling."""

    def __init__(self, low, high, tilings, tiles):
        self.low = low
        self.scale = tiles / (high - low)
        self.tilings = tilings
        self.side = tiles + 1
        k = np.arange(tilings)
        self.offset = np.stack([(k * 1) % tilings, (k * 3) % tilings], axis=1) / tilings
        self.base = k * self.side * self.side
        self.size = tilings * self.side * self.side

    def __call__(self, obs):
        x = ((obs - self.low) * self.scale + self.offset).astype(np.int64)
        return self.base + x[:, 0] * self.side + x[:, 1]


class SarsaLambda:
    def __init__(self, coder, n_actions, cfg):
        self.coder, self.n_actions, self.cfg = coder, n_actions, cfg
        self.alpha = cfg.alpha / cfg.tilings
        self.w = np.zeros((n_actions, coder.size))
        self.e = np.zeros((n_actions, coder.size))
        self.rng = np.random.default_rng(cfg.seed)

    def values(self, feats):
        return self.w[:, feats].sum(axis=1)

    def act(self, feats, eps):
        if self.rng.random() < eps:
            return int(self.rng.integers(self.n_actions))
        return int(self.values(feats).argmax())

    def new_episode(self):
        self.e.fill(0.0)

    def update(self, feats, action, reward, next_value):
        delta = reward + self.cfg.gamma * next_value - self.w[action, feats].sum()
        self.e[action, feats] = 1.0
        self.w += self.alpha * delta * self.e
        self.e *= self.cfg.gamma * self.cfg.lam


def run(cfg):
    env = gym.make("MountainCar-v0", max_episode_steps=1000)
    coder = TileCoder(env.observation_space.low.astype(np.float64), env.observation_space.high.astype(np.float64),
                      cfg.tilings, cfg.tiles)
    agent = SarsaLambda(coder, env.action_space.n, cfg)
    obs, _ = env.reset(seed=cfg.seed)
    feats = coder(obs)
    action = agent.act(feats, 0.1)
    lengths, length = [], 0
    clock = None
    for t in range(cfg.steps):
        if t == cfg.steps // 5:
            clock = time.perf_counter()
        obs, reward, terminated, truncated, _ = env.step(action)
        length += 1
        nxt = coder(obs)
        eps = 0.1 * (1.0 - t / cfg.steps)
        nxt_action = agent.act(nxt, eps)
        agent.update(feats, action, reward, 0.0 if terminated else agent.w[nxt_action, nxt].sum())
        feats, action = nxt, nxt_action
        if terminated or truncated:
            lengths.append(length)
            length = 0
            agent.new_episode()
            obs, _ = env.reset()
            feats = coder(obs)
            action = agent.act(feats, eps)
            if len(lengths) % 20 == 0:
                print(f"{len(lengths):4d} episodes, mean length of the last 20: {np.mean(lengths[-20:]):.1f}")
    rate = (cfg.steps - cfg.steps // 5) / (time.perf_counter() - clock)
    print(json.dumps({"env_steps": cfg.steps, "updates": None, "units_per_s": rate,
                      "checksum": float(agent.w.sum()) + sum(lengths)}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, field in Config.__dataclass_fields__.items():
        parser.add_argument(f"--{name}", type=field.type, default=field.default)
    run(Config(**vars(parser.parse_args())))
