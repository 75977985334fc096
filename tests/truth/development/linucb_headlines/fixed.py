"""LinUCB chooses headlines for visitors; a contextual bandit with one linear model per headline."""
import json
import sys
import time
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Headlines:
    """Visitors with features; every headline has a hidden taste vector that drifts slowly."""

    arms: int
    dim: int
    rng: np.random.Generator
    taste: np.ndarray = field(init=False)

    def __post_init__(self):
        self.taste = self.rng.normal(0.0, 1.0, (self.arms, self.dim)) / np.sqrt(self.dim)

    def visitor(self):
        x = self.rng.normal(0.0, 1.0, self.dim)
        x[0] = 1.0
        return x

    def click(self, x, arm):
        p = 1.0 / (1.0 + np.exp(-self.taste[arm] @ x))
        self.taste[arm] += self.rng.normal(0.0, 0.002, self.dim)
        return float(self.rng.random() < p), p

    def best(self, x):
        return 1.0 / (1.0 + np.exp(-(self.taste @ x).max()))


class LinUCB:
    def __init__(self, arms, dim, alpha, forget=0.9995):
        self.alpha, self.forget = alpha, forget
        self.A = np.stack([np.eye(dim)] * arms)
        self.inverse = self.A.copy()
        self.b = np.zeros((arms, dim))
        self.ridge = np.eye(dim)

    def choose(self, x):
        spread = self.inverse @ x
        estimate = (spread * self.b).sum(1)
        width = np.sqrt(spread @ x)
        return int(np.argmax(estimate + self.alpha * width))

    def update(self, arm, x, reward):
        self.A[arm] = self.forget * self.A[arm] + np.outer(x, x) + (1 - self.forget) * self.ridge
        self.inverse[arm] = np.linalg.inv(self.A[arm])
        self.b[arm] = self.forget * self.b[arm] + (reward - 0.5) * x


def main(rounds):
    rng = np.random.default_rng(25)
    world, agent = Headlines(arms=12, dim=16, rng=rng), LinUCB(arms=12, dim=16, alpha=0.4)
    clicks, regret, start = 0.0, 0.0, None
    for t in range(rounds):
        if t == rounds // 5:
            start = time.perf_counter()
        x = world.visitor()
        arm = agent.choose(x)
        best = world.best(x)
        reward, p = world.click(x, arm)
        agent.update(arm, x, reward)
        clicks += reward
        regret += best - p
        if (t + 1) % 20000 == 0:
            print(f"round {t + 1}: click rate {clicks / (t + 1):.3f}, regret per round {regret / (t + 1):.4f}", flush=True)
    rate = (rounds - rounds // 5) / (time.perf_counter() - start)
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": float(np.abs(agent.b).sum() + regret)}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200000)
