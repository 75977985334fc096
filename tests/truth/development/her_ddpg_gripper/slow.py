"""DDPG + hindsight replay on a gripper that pushes a puck to a goal. Starts from recorded play.

The play data (random pushes, simulated in one batch) stands for what a robot recorded over night.
"""
import argparse
import copy
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

T = 40  # length of an episode


class Gripper:
    """State: gripper xy, puck xy. Reward is 0 at the goal, otherwise -1."""

    def __init__(self, n, rng):
        self.n, self.rng = n, rng

    def reset(self):
        self.hand = self.rng.uniform(-0.2, 0.2, (self.n, 2))
        self.puck = self.rng.uniform(-0.5, 0.5, (self.n, 2))
        self.goal = self.rng.uniform(-0.8, 0.8, (self.n, 2))
        return self.observe()

    def observe(self):
        return np.concatenate([self.hand, self.puck, self.puck - self.hand], 1, dtype=np.float32)

    def step(self, action):
        before = self.hand
        self.hand = np.clip(self.hand + 0.1 * action, -1, 1)
        gap = np.linalg.norm(self.hand - self.puck, axis=1, keepdims=True)
        self.puck = np.clip(self.puck + (gap < 0.12) * (self.hand - before), -1, 1)
        return self.observe()


def reward_of(achieved, goal):
    return -(((achieved - goal) ** 2).sum(-1) > 0.01).astype(np.float32)


class HindsightReplay:
    """Episodes in arrays; a sample's goal is with 80 % a position that the puck reached later in its episode."""

    def __init__(self, episodes, rng):
        self.obs = np.zeros((episodes, T + 1, 6), np.float32)
        self.act = np.zeros((episodes, T, 2), np.float32)
        self.goal = np.zeros((episodes, 2), np.float32)
        self.n, self.rng = 0, rng

    def add(self, obs, act, goal):
        k = len(goal)
        self.obs[self.n : self.n + k] = obs
        self.act[self.n : self.n + k] = act
        self.goal[self.n : self.n + k] = goal
        self.n += k

    def sample(self, k):
        which = np.random.choice(self.n * T, k, replace=False)
        e, t = np.divmod(which, T)
        goal = self.goal[e]
        later = t + 1 + (self.rng.random(k) * (T - t)).astype(np.int64)
        again = self.rng.random(k) < 0.8
        goal[again] = self.obs[e[again], later[again], 2:4]
        after = self.obs[e, t + 1]
        r = reward_of(after[:, 2:4], goal)
        x = np.concatenate([self.obs[e, t], goal], 1)
        x2 = np.concatenate([after, goal], 1)
        return [torch.from_numpy(y) for y in (x, self.act[e, t], r, x2)]


def net(n_in, n_out, *tail):
    return nn.Sequential(nn.Linear(n_in, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, n_out), *tail)


class DDPG:
    def __init__(self):
        self.pi, self.q = net(8, 2, nn.Tanh()), net(10, 1)
        self.pi_t, self.q_t = copy.deepcopy(self.pi).requires_grad_(False), copy.deepcopy(self.q).requires_grad_(False)
        self.pi_opt = torch.optim.Adam(self.pi.parameters(), 1e-3, fused=True)
        self.q_opt = torch.optim.Adam(self.q.parameters(), 1e-3, fused=True)
        self.live = [*self.pi.parameters(), *self.q.parameters()]
        self.target = [*self.pi_t.parameters(), *self.q_t.parameters()]

    def update(self, x, a, r, x2):
        with torch.no_grad():
            y = (r.unsqueeze(1) + 0.98 * self.q_t(torch.cat([x2, self.pi_t(x2)], 1))).clamp(-50, 0)
        q_loss = F.mse_loss(self.q(torch.cat([x, a], 1)), y)
        self.q_opt.zero_grad()
        q_loss.backward()
        self.q_opt.step()
        u = self.pi(x)
        self.q.requires_grad_(False)
        pi_loss = -self.q(torch.cat([x, u], 1)).mean() + 0.1 * u.pow(2).mean()
        self.pi_opt.zero_grad()
        pi_loss.backward()
        self.pi_opt.step()
        self.q.requires_grad_(True)
        torch._foreach_lerp_(self.target, self.live, 0.02)


def roll(env, act):
    obs = [env.reset()]
    acts = []
    for _ in range(T):
        acts.append(act(obs[-1]))
        obs.append(env.step(acts[-1]))
    return np.stack(obs, 1), np.stack(acts, 1), env.goal.astype(np.float32)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--cycles", type=int, default=60)
    ap.add_argument("--play", type=int, default=2000, help="recorded episodes")
    ap.add_argument("--envs", type=int, default=8)
    ap.add_argument("--updates", type=int, default=40, help="after each cycle")
    ap.add_argument("--batch", type=int, default=256)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(18)
    np.random.seed(18)
    rng = np.random.default_rng(18)
    replay = HindsightReplay(args.play + args.cycles * args.envs, rng)
    play = Gripper(args.play, rng)
    replay.add(*roll(play, lambda obs: rng.uniform(-1, 1, (len(obs), 2)).astype(np.float32)))
    agent, env = DDPG(), Gripper(args.envs, rng)

    def explore(obs):
        with torch.inference_mode():
            u = agent.pi(torch.from_numpy(np.concatenate([obs, env.goal], 1, dtype=np.float32))).numpy()
        return np.clip(u + 0.2 * rng.standard_normal(u.shape, dtype=np.float32), -1, 1)

    for cycle in range(args.cycles):
        if cycle == args.cycles // 5:
            began = time.perf_counter()
        obs, act, goal = roll(env, explore)
        replay.add(obs, act, goal)
        for _ in range(args.updates):
            agent.update(*replay.sample(args.batch))
        if cycle % 10 == 9:
            print(f"cycle {cycle + 1}: at the goal {1 + reward_of(obs[:, -1, 2:4], goal).mean():.2f}")
    rate = (args.cycles - args.cycles // 5) * args.updates / (time.perf_counter() - began)
    check = sum(p.detach().double().abs().sum().item() for p in agent.live)
    print(json.dumps({"env_steps": None, "updates": 2 * args.cycles * args.updates, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main()
