"""Random search over the settings of n-step Sarsa on the taxi; two trials run at a time."""
import argparse
import json
import multiprocessing as mp
import time
from collections import deque
from dataclasses import dataclass

import gymnasium as gym
import numpy as np


@dataclass
class Settings:
    number: int
    alpha: float
    gamma: float
    horizon: int
    epsilon: float
    optimism: float
    env_steps: int


def draw_settings(count, env_steps, seed):
    rng = np.random.default_rng(seed)
    return [Settings(i, float(10 ** rng.uniform(-1.5, -0.2)), float(rng.choice([0.9, 0.95, 0.99])), int(rng.integers(1, 5)),
                     float(rng.choice([0.05, 0.1, 0.2])), float(rng.choice([0.0, 2.0])), env_steps) for i in range(count)]


class Sarsa:
    def __init__(self, cfg, states, actions):
        self.cfg = cfg
        self.q = np.full((states, actions), cfg.optimism)
        self.rng = np.random.default_rng(cfg.number)

    def act(self, state):
        if self.rng.random() < self.cfg.epsilon:
            return int(self.rng.integers(self.q.shape[1]))
        return int(self.q[state].argmax())

    def back_up(self, trace, tail):
        g = tail
        for _, _, reward in reversed(trace):
            g = reward + self.cfg.gamma * g
        state, action, _ = trace[0]
        self.q[state, action] += self.cfg.alpha * (g - self.q[state, action])


def run_trial(cfg):
    """One training run; returns the mean return of its last episodes."""
    env = gym.make("Taxi-v4", max_episode_steps=100)
    agent = Sarsa(cfg, env.observation_space.n, env.action_space.n)
    returns, steps = [], 0
    while steps < cfg.env_steps:
        state, _ = env.reset(seed=1000 * cfg.number + len(returns))
        action, total, done = agent.act(state), 0.0, False
        trace = deque(maxlen=cfg.horizon)
        while not done:
            nxt, reward, terminated, truncated, _ = env.step(action)
            done = terminated or truncated
            following = agent.act(nxt)
            trace.append((state, action, reward))
            if len(trace) == cfg.horizon:
                agent.back_up(trace, 0.0 if terminated else agent.q[nxt, following])
            state, action = nxt, following
            total += reward
            steps += 1
        while len(trace) > 1:
            trace.popleft()
            agent.back_up(trace, 0.0 if terminated else agent.q[nxt, following])
        returns.append(total)
    env.close()
    return cfg.number, float(np.mean(returns[-100:]))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--trials", type=int, default=30)
    ap.add_argument("--env-steps", type=int, default=60000)
    ap.add_argument("--workers", type=int, default=2)
    args = ap.parse_args()
    trials = draw_settings(args.trials, args.env_steps, 7)
    scores, start = {}, None
    context = mp.get_context("spawn")
    with context.Pool(args.workers, maxtasksperchild=1) as pool:
        for number, score in pool.imap_unordered(run_trial, trials):
            scores[number] = score
            print(f"trial {number:2d}: alpha {trials[number].alpha:.3f}, horizon {trials[number].horizon}, "
                  f"epsilon {trials[number].epsilon} -> {score:.1f}", flush=True)
            if len(scores) == args.trials // 5:
                start = time.perf_counter()
        rate = (args.trials - args.trials // 5) / (time.perf_counter() - start)
    best = max(scores, key=scores.get)
    print(f"best: {trials[best]}")
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate,
                      "checksum": float(sum(scores[i] for i in sorted(scores)))}))


if __name__ == "__main__":
    main()
