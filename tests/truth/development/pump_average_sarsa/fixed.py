"""Differential (average reward) SARSA with a Fourier basis for a pumping station that buys electricity at a changing price."""
import argparse
import json
import logging
import math
import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces

log = logging.getLogger("pump")


class PumpStation(gym.Env):
    """Water level, hour of the day and electricity price; off, half or full power. Never ends."""

    POWER = (0.0, 0.5, 1.0)

    def __init__(self):
        self.observation_space = spaces.Box(0.0, 1.0, (3,), np.float64)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.level, self.hour, self.noise = 0.5, 0.0, 0.0
        return self._obs(), {}

    def _price(self):
        return 0.5 + 0.35 * math.sin(2 * math.pi * (self.hour - 8.0) / 24.0) + self.noise

    def _obs(self):
        return np.array([self.level, self.hour / 24.0, min(max(self._price(), 0.0), 1.0)])

    def step(self, action):
        power = self.POWER[action]
        cost = power * max(self._price(), 0.0)
        demand = 0.04 * (1.0 + math.sin(2 * math.pi * (self.hour - 6.0) / 12.0)) + 0.01 * self.np_random.random()
        self.level += 0.1 * power - demand
        penalty = 0.0
        if self.level < 0.1 or self.level > 0.95:
            penalty = 2.0
        self.level = min(max(self.level, 0.0), 1.0)
        self.noise = 0.9 * self.noise + 0.03 * self.np_random.normal()
        self.hour = (self.hour + 0.5) % 24.0
        return self._obs(), -cost - penalty, False, False, {}


class FourierBasis:
    """Cosines of all orders up to `order` in each dimension of the unit cube."""

    def __init__(self, order, dim):
        grid = np.meshgrid(*[np.arange(order + 1)] * dim, indexing="ij")
        self.orders = np.stack([g.ravel() for g in grid], 1) * np.pi
        norms = np.linalg.norm(self.orders / np.pi, axis=1)
        self.rates = 1.0 / np.where(norms == 0, 1.0, norms)

    def __call__(self, obs):
        return np.cos(self.orders @ obs)


class DifferentialSarsa:
    def __init__(self, basis, n_actions, alpha, beta, epsilon, rng):
        self.w = np.zeros((n_actions, len(basis.rates)))
        self.rng, self.epsilon = rng, epsilon
        self.rates, self.beta = alpha * basis.rates, beta
        self.average = 0.0

    def act(self, phi):
        q = self.w @ phi
        if self.rng.random() < self.epsilon:
            action = int(self.rng.integers(len(q)))
        else:
            action = int(q.argmax())
        return action, float(q[action])

    def learn(self, phi, action, value, reward, value_next):
        error = reward - self.average + value_next - value
        self.average += self.beta * error
        self.w[action] += error * (self.rates * phi)
        return error


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=500000)
    p.add_argument("--order", type=int, default=9)
    p.add_argument("--alpha", type=float, default=0.001)
    p.add_argument("--beta", type=float, default=0.001)
    p.add_argument("--epsilon", type=float, default=0.1)
    p.add_argument("--report", type=int, default=20000)
    p.add_argument("--log-level", default="INFO")
    p.add_argument("--seed", type=int, default=2)
    args = p.parse_args()
    logging.basicConfig(level=args.log_level, format="%(levelname)s %(message)s")
    env = PumpStation()
    basis = FourierBasis(args.order, 3)
    agent = DifferentialSarsa(basis, 3, args.alpha, args.beta, args.epsilon, np.random.default_rng(args.seed))
    obs, _ = env.reset(seed=args.seed)
    phi = basis(obs)
    action, value = agent.act(phi)
    recent, started, marked = 0.0, None, 0
    for step in range(args.steps):
        if step == args.steps // 5:
            started, marked = time.perf_counter(), step
        obs, reward, _, _, _ = env.step(action)
        phi_next = basis(obs)
        action_next, value_next = agent.act(phi_next)
        error = agent.learn(phi, action, value, reward, value_next)
        log.debug("step %d obs %s action %d reward %.3f error %.4f", step, obs, action, reward, error)
        phi, action = phi_next, action_next
        value = float(agent.w[action] @ phi)
        recent += reward
        if (step + 1) % args.report == 0:
            log.info("step %d  mean reward %.4f  estimate %.4f", step + 1, recent / args.report, agent.average)
            recent = 0.0
    speed = (args.steps - marked) / (time.perf_counter() - started)
    print(json.dumps({"env_steps": args.steps, "updates": None, "units_per_s": speed,
                      "checksum": float(np.abs(agent.w).sum())}))


if __name__ == "__main__":
    main()
