"""PPO for a small moon lander. The landers are stepped by a pool of threads."""
import argparse
import json
import math
import time
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import numpy as np
import torch
from torch import nn


class MoonLander(gym.Env):
    """Flat moon, one engine and two side jets."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (6,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.y = float(self.np_random.uniform(-1, 1)), 1.5
        self.vx, self.vy = float(self.np_random.uniform(-0.2, 0.2)), 0.0
        self.tilt, self.spin, self.t = float(self.np_random.uniform(-0.2, 0.2)), 0.0, 0
        return self.view(), {}

    def view(self):
        return np.array((self.x, self.y, self.vx, self.vy, self.tilt, self.spin), dtype=np.float32)

    def step(self, action):
        main, side = (1.0 if action == 2 else 0.0), {1: -1.0, 3: 1.0}.get(int(action), 0.0)
        self.spin = 0.95 * self.spin + 0.04 * side
        self.tilt += 0.1 * self.spin
        self.vx += -0.06 * main * math.sin(self.tilt)
        self.vy += 0.06 * main * math.cos(self.tilt) - 0.025
        self.x += 0.1 * self.vx
        self.y += 0.1 * self.vy
        self.t += 1
        reward = -0.02 * (abs(self.x) + abs(self.tilt)) - 0.005 * main
        landed = self.y <= 0.0
        if landed:
            gentle = abs(self.vy) < 0.4 and abs(self.tilt) < 0.3 and abs(self.x) < 0.5
            reward += 3.0 if gentle else -1.0 - abs(self.vy)
        lost = abs(self.x) > 3.0 or self.y > 3.0
        if lost:
            reward -= 2.0
        return self.view(), reward, landed or lost, self.t >= 250, {}


class Fleet:
    """Steps several landers at once and restarts those that have finished."""

    def __init__(self, n, seed):
        self.landers = [MoonLander() for _ in range(n)]
        self.views = np.stack([lander.reset(seed=seed + i)[0] for i, lander in enumerate(self.landers)])
        self.pool = ThreadPoolExecutor(max_workers=n)

    def step_one(self, lander, action):
        view, reward, terminated, truncated, _ = lander.step(action)
        if terminated or truncated:
            view, _ = lander.reset()
        return view, reward, terminated or truncated

    def step(self, actions):
        results = list(self.pool.map(self.step_one, self.landers, actions))
        views, rewards, ends = zip(*results)
        return np.stack(views), np.array(rewards, np.float32), np.array(ends, np.float32)


class ActorCritic(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 4))
        self.v = nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))


def gae(rewards, values, ends, gamma, lam):
    out, last = torch.zeros_like(rewards), torch.zeros(rewards.shape[1])
    for t in range(len(rewards) - 1, -1, -1):
        keep = 1.0 - ends[t]
        last = rewards[t] + gamma * keep * values[t + 1] - values[t] + gamma * lam * keep * last
        out[t] = last
    return out


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--rollouts", type=int, default=400)
    cli.add_argument("--landers", type=int, default=16)
    cli.add_argument("--length", type=int, default=128)
    cli.add_argument("--epochs", type=int, default=3)
    cli.add_argument("--seed", type=int, default=31)
    args = cli.parse_args()
    torch.manual_seed(args.seed)
    fleet, model = Fleet(args.landers, args.seed), ActorCritic()
    opt = torch.optim.Adam(model.parameters(), lr=3e-4, fused=True)
    t_max, n = args.length, args.landers
    obs = torch.zeros(t_max + 1, n, 6)
    acts = torch.zeros(t_max, n, dtype=torch.long)
    rews, ends = torch.zeros(t_max, n), torch.zeros(t_max, n)
    updates, first = 0, args.rollouts // 5
    for rollout in range(args.rollouts):
        if rollout == first:
            stamp = time.perf_counter()
        views = fleet.views
        with torch.no_grad():
            for t in range(t_max):
                obs[t] = torch.from_numpy(views)
                acts[t] = torch.multinomial(torch.softmax(model.pi(obs[t]), dim=1), 1).squeeze(1)
                views, reward, end = fleet.step(acts[t].tolist())
                rews[t], ends[t] = torch.from_numpy(reward), torch.from_numpy(end)
            obs[t_max] = torch.from_numpy(views)
            fleet.views = views
            values = model.v(obs).squeeze(-1)
            advantages = gae(rews, values, ends, 0.99, 0.95)
            flat = obs[:-1].reshape(-1, 6), acts.reshape(-1), advantages.reshape(-1), (advantages + values[:-1]).reshape(-1)
            old = torch.log_softmax(model.pi(flat[0]), dim=1).gather(1, flat[1][:, None]).squeeze(1)
        for _ in range(args.epochs):
            for part in torch.randperm(t_max * n).chunk(4):
                o, a, adv, ret = (x[part] for x in flat)
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                logp_all = torch.log_softmax(model.pi(o), dim=1)
                ratio = (logp_all.gather(1, a[:, None]).squeeze(1) - old[part]).exp()
                gain = torch.minimum(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
                entropy = -(logp_all.exp() * logp_all).sum(dim=1).mean()
                loss = -gain + 0.5 * (model.v(o).squeeze(1) - ret).pow(2).mean() - 0.01 * entropy
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                opt.step()
                updates += 1
        if rollout % 5 == 0:
            print(f"rollout {rollout:4d} reward per step {rews.mean().item():+.4f}")
    rate = (args.rollouts - first) * t_max * n / (time.perf_counter() - stamp)
    fleet.pool.shutdown()
    checksum = sum(float(p.detach().double().abs().sum()) for p in model.parameters())
    print(json.dumps({"env_steps": args.rollouts * t_max * n, "updates": updates, "units_per_s": rate, "checksum": round(checksum, 5)}))


if __name__ == "__main__":
    main()
