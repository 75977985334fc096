"""Actor-critic on a noisy navigation task, with running statistics of the returns."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Corridor:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self):
        self.pos, self.goal, self.t = 0.0, float(self.rng.choice([-1.0, 1.0])), 0
        return self.obs()

    def obs(self):
        return np.array([self.pos, self.goal, self.t / 20], dtype=np.float32)

    def step(self, action):
        self.pos += 0.2 * (action - 1) + 0.02 * self.rng.standard_normal()
        self.t += 1
        done = abs(self.pos - self.goal) < 0.1 or self.t >= 20
        return self.obs(), -abs(self.pos - self.goal), done


class Tracker:
    """Keeps all rewards and returns for the plots, and a normaliser for the rewards."""

    def __init__(self):
        self.rewards = []
        self.returns = []
        self.total = self.squares = 0.0

    def normalise(self, reward):
        self.rewards.append(reward)
        self.total += reward
        self.squares += reward * reward
        n = len(self.rewards)
        mean = self.total / n
        return (reward - mean) / (max(self.squares / n - mean * mean, 0.0) ** 0.5 + 1e-6)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20000)
    args = parser.parse_args()
    torch.manual_seed(9)
    torch.set_num_threads(1)
    rng = np.random.default_rng(9)
    env, tracker = Corridor(9), Tracker()
    trunk = nn.Sequential(nn.Linear(3, 32), nn.Tanh())
    pi, vf = nn.Linear(32, 3), nn.Linear(32, 1)
    params = [*trunk.parameters(), *pi.parameters(), *vf.parameters()]
    opt = torch.optim.Adam(params, lr=2e-3)
    obs, memory, updates, episode = env.reset(), [], 0, 0.0
    for step in range(args.steps):
        if step == args.steps // 5:
            start = time.perf_counter()
        with torch.inference_mode():
            p = torch.softmax(pi(trunk(torch.from_numpy(obs))), -1).numpy()
        action = int(np.searchsorted(np.cumsum(p), rng.random()).clip(0, 2))
        nxt, reward, done = env.step(action)
        episode += reward
        memory.append((obs, action, tracker.normalise(reward), done))
        obs = nxt
        if done:
            tracker.returns.append(episode)
            obs, episode = env.reset(), 0.0
        if len(memory) == 32:
            o, a, r, d = (np.array(x) for x in zip(*memory, strict=True))
            memory.clear()
            with torch.no_grad():
                tail = float(vf(trunk(torch.from_numpy(obs))))
            ret = np.zeros(32, dtype=np.float32)
            for t in range(31, -1, -1):
                tail = r[t] + 0.97 * tail * (1 - d[t])
                ret[t] = tail
            h = trunk(torch.from_numpy(o))
            v = vf(h).squeeze(1)
            target = torch.from_numpy(ret)
            loss = F.cross_entropy(pi(h), torch.from_numpy(a), reduction="none").mul(
                (target - v).detach()
            ).mean() + F.mse_loss(v, target)
            opt.zero_grad()
            loss.backward()
            opt.step()
            updates += 1
    rate = (args.steps - args.steps // 5) / (time.perf_counter() - start)
    print(
        json.dumps(
            {
                "env_steps": args.steps,
                "updates": updates,
                "units_per_s": rate,
                "checksum": float(sum(p.double().sum() for p in params)),
            }
        )
    )


if __name__ == "__main__":
    main()
