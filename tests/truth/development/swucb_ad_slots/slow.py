"""Sliding-window UCB chooses which advertisement to show. Click rates drift through the day.

Twenty pages are simulated one after the other with the same settings; prints the mean regret.
"""
import argparse
import json
import math
import time
from collections import deque

import numpy as np


class DriftingAds:
    def __init__(self, n_ads, rng):
        self.base = rng.uniform(0.05, 0.5, n_ads)
        self.swing = rng.uniform(0.0, 0.3, n_ads)
        self.phase = rng.uniform(0, 2 * math.pi, n_ads)

    def table(self, n):
        """Click rate of each advertisement at each moment of the day."""
        t = np.arange(n)[:, None] / 1500
        return np.clip(self.base + self.swing * np.sin(t + self.phase), 0.01, 0.95)


class SlidingWindowUCB:
    def __init__(self, n_arms, window, exploration):
        self.n_arms = n_arms
        self.window = deque(maxlen=window)
        self.exploration = exploration

    def choose(self, t):
        log_t = math.log(min(t + 1, self.window.maxlen))
        best, best_score = 0, -1.0
        for arm in range(self.n_arms):
            rewards = [reward for shown, reward in self.window if shown == arm]
            if not rewards:
                return arm
            n = len(rewards)
            score = sum(rewards) / n + math.sqrt(self.exploration * log_t / n)
            if score > best_score:
                best, best_score = arm, score
        return best

    def update(self, arm, reward):
        self.window.append((arm, reward))


def one_page(policy, rates, rng):
    """Shows an advertisement to every visitor; returns clicks and regret."""
    best = rates.max(1).tolist()
    draws = rng.random(len(rates)).tolist()
    rates = rates.tolist()
    clicks, regret = 0, 0.0
    for t, (rate, draw) in enumerate(zip(rates, draws)):
        arm = policy.choose(t)
        click = 1 if draw < rate[arm] else 0
        policy.update(arm, click)
        clicks += click
        regret += best[t] - rate[arm]
    return clicks, regret


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--visitors", type=int, default=20_000)
    parser.add_argument("--ads", type=int, default=4)
    parser.add_argument("--window", type=int, default=24)
    parser.add_argument("--exploration", type=float, default=0.4)
    parser.add_argument("--seed", type=int, default=12)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    total_clicks, regrets = 0, []
    for page in range(args.pages):
        if page == args.pages // 5:
            began = time.perf_counter()
        rates = DriftingAds(args.ads, rng).table(args.visitors)
        policy = SlidingWindowUCB(args.ads, args.window, args.exploration)
        clicks, regret = one_page(policy, rates, rng)
        total_clicks += clicks
        regrets.append(regret)
        if page % 10 == 9:
            print(f"page {page + 1}: clicks {clicks}, mean regret {np.mean(regrets):.1f}")
    rate = (args.pages - args.pages // 5) * args.visitors / (time.perf_counter() - began)
    print(
        json.dumps(
            {"env_steps": None, "updates": None, "units_per_s": rate, "checksum": total_clicks + sum(regrets)}
        )
    )


if __name__ == "__main__":
    main()
