"""Linear Q-learning with random features: a glider steers through a forest with 31 range beams (numba ray casting)."""
import argparse
import json
import math
import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numba import njit
from numba.typed import List


@njit(cache=False)
def cast_beams(x, y, heading, trees, n_beams, reach):
    """Distance to the first trunk along each beam, over a fan of 150 degrees."""
    out = np.empty(n_beams, np.float32)
    for b in range(n_beams):
        angle = heading + math.radians(150.0) * (b / (n_beams - 1) - 0.5)
        cx, cy = math.cos(angle), math.sin(angle)
        best = reach
        for k in range(len(trees)):
            tx, ty, radius = trees[k][0], trees[k][1], trees[k][2]
            dx, dy = tx - x, ty - y
            along = dx * cx + dy * cy
            if along <= 0.0:
                continue
            off = dx * dx + dy * dy - along * along
            if off < radius * radius:
                hit = along - math.sqrt(radius * radius - off)
                if hit < best:
                    best = hit
        out[b] = max(best, 0.0) / reach
    return out


@njit(cache=False)
def crashes(x, y, trees):
    for k in range(len(trees)):
        dx, dy = trees[k][0] - x, trees[k][1] - y
        if dx * dx + dy * dy < trees[k][2] * trees[k][2]:
            return True
    return False


class ForestEnv(gym.Env):
    """Keep flying along the valley without hitting a trunk."""

    TURNS = (-0.25, 0.0, 0.25)

    def __init__(self, n_trees=10, n_beams=31, horizon=300):
        self.n_trees, self.n_beams, self.horizon = n_trees, n_beams, horizon
        self.observation_space = spaces.Box(-2.0, 2.0, (n_beams + 2,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.trees = []

    def _plant(self):
        xs = self.np_random.uniform(3.0, 60.0, self.n_trees)
        ys = self.np_random.uniform(-5.0, 5.0, self.n_trees)
        radii = self.np_random.uniform(0.2, 0.6, self.n_trees)
        self.trees = [(float(x), float(y), float(r)) for x, y, r in zip(xs, ys, radii)]

    def _sense(self):
        trees = List(self.trees)
        beams = cast_beams(self.x, self.y, self.heading, trees, self.n_beams, 8.0)
        hit = crashes(self.x, self.y, trees)
        obs = np.empty(self.n_beams + 2, np.float32)
        obs[:-2] = beams
        obs[-2] = self.heading
        obs[-1] = self.y / 5.0
        return obs, hit

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._plant()
        self.x, self.y, self.heading, self.t = 0.0, float(self.np_random.uniform(-2, 2)), 0.0, 0
        return self._sense()[0], {}

    def step(self, action):
        self.heading = max(-1.2, min(1.2, self.heading + self.TURNS[action]))
        self.x += 0.3 * math.cos(self.heading)
        self.y += 0.3 * math.sin(self.heading)
        self.t += 1
        obs, hit = self._sense()
        dead = hit or abs(self.y) > 5.0
        reward = -5.0 if dead else 0.3 * math.cos(self.heading)
        return obs, reward, dead, self.x > 62.0 or self.t >= self.horizon, {}


class FourierQ:
    """Q-values linear in random cosine features."""

    def __init__(self, dim, n_features, n_actions, rng, lr, gamma):
        self.proj = rng.normal(0.0, 1.0, (n_features, dim)).astype(np.float32)
        self.phase = rng.uniform(0.0, 2 * np.pi, n_features).astype(np.float32)
        self.scale = np.float32(math.sqrt(2.0 / n_features))
        self.w = np.zeros((n_actions, n_features), np.float32)
        self.lr, self.gamma = lr, gamma

    def features(self, obs):
        return self.scale * np.cos(self.proj @ obs + self.phase)

    def update(self, phi, action, reward, phi_next, dead):
        target = reward if dead else reward + self.gamma * float((self.w @ phi_next).max())
        error = target - float(self.w[action] @ phi)
        self.w[action] += np.float32(self.lr * error) * phi
        return error


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=200000)
    p.add_argument("--features", type=int, default=6000)
    p.add_argument("--trees", type=int, default=10)
    p.add_argument("--lr", type=float, default=0.2)
    p.add_argument("--gamma", type=float, default=0.97)
    p.add_argument("--epsilon", type=float, default=0.1)
    p.add_argument("--seed", type=int, default=3)
    args = p.parse_args()
    rng = np.random.default_rng(args.seed)
    env = ForestEnv(args.trees)
    agent = FourierQ(env.observation_space.shape[0], args.features, 3, rng, args.lr, args.gamma)
    obs, _ = env.reset(seed=args.seed)
    phi = agent.features(obs)
    episode_return, returns, started, marked = 0.0, [], None, 0
    for step in range(args.steps):
        if step == args.steps // 5:
            started, marked = time.perf_counter(), step
        if rng.random() < args.epsilon:
            action = int(rng.integers(3))
        else:
            action = int((agent.w @ phi).argmax())
        obs, reward, dead, cut, _ = env.step(action)
        phi_next = agent.features(obs)
        agent.update(phi, action, reward, phi_next, dead)
        phi = phi_next
        episode_return += reward
        if dead or cut:
            returns.append(episode_return)
            episode_return = 0.0
            obs, _ = env.reset()
            phi = agent.features(obs)
            if len(returns) % 100 == 0:
                print(f"step {step} episode {len(returns)} return {np.mean(returns[-100:]):.2f}")
    speed = (args.steps - marked) / (time.perf_counter() - started)
    print(json.dumps({"env_steps": args.steps, "updates": None, "units_per_s": speed,
                      "checksum": float(np.abs(agent.w).sum(dtype=np.float64))}))


if __name__ == "__main__":
    main()
