"""Two-level agent for a key-and-door grid: the manager sets a goal direction every ten steps, the worker walks."""
import json
import sys
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cosine_similarity, log_softmax, normalize

torch.set_num_threads(1)
torch.manual_seed(12)

EPISODES = int(sys.argv[1]) if len(sys.argv) > 1 else 120
N, EVERY, GOAL_DIM = 9, 10, 16


class KeyDoor(gym.Env):
    def __init__(self):
        self.observation_space = gym.spaces.Box(0, 1, (4 * N * N,), np.float32)
        self.action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        cells = self.np_random.permutation(N * N)[:3]
        self.me, self.key, self.door = (divmod(int(c), N) for c in cells)
        self.has_key, self.t = False, 0
        return self._obs(), {}

    def _obs(self):
        o = np.zeros((4, N, N), np.float32)
        o[0][self.me] = 1
        if self.has_key:
            o[3] = 1
        else:
            o[1][self.key] = 1
        o[2][self.door] = 1
        return o.ravel()

    def step(self, a):
        dy, dx = ((0, 1), (1, 0), (0, -1), (-1, 0))[a]
        self.me = (min(max(self.me[0] + dy, 0), N - 1), min(max(self.me[1] + dx, 0), N - 1))
        self.t += 1
        r = -0.01
        if not self.has_key and self.me == self.key:
            self.has_key, r = True, 0.5
        done = self.has_key and self.me == self.door
        return self._obs(), r + float(done), done, self.t >= 100, {}


class Manager(nn.Module):
    """Reads the map through a few residual blocks and proposes a direction in goal space."""

    def __init__(self, width=256, blocks=4):
        super().__init__()
        self.inp = nn.Linear(4 * N * N, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(),
                                                  nn.Linear(width, width)) for _ in range(blocks))
        self.goal, self.value = nn.Linear(width, GOAL_DIM), nn.Linear(width, 1)

    def forward(self, x):
        h = self.inp(x)
        for b in self.blocks:
            h = h + b(h)
        return normalize(self.goal(h), dim=-1), self.value(h).squeeze(-1)


class Worker(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4 * N * N + GOAL_DIM, width), nn.ReLU())
        self.pi, self.value = nn.Linear(width, 4), nn.Linear(width, 1)

    def forward(self, x, goal):
        h = self.body(torch.cat([x, goal], -1))
        return self.pi(h), self.value(h).squeeze(-1)


def discounted(rewards, gamma):
    out, acc = np.zeros(len(rewards), np.float32), 0.0
    for i in range(len(rewards) - 1, -1, -1):
        out[i] = acc = rewards[i] + gamma * acc
    return torch.from_numpy(out)


env, manager, worker = KeyDoor(), Manager(), Worker()
embed = nn.Linear(4 * N * N, GOAL_DIM).requires_grad_(False)
opt_m = torch.optim.Adam(manager.parameters(), 3e-4)
opt_w = torch.optim.Adam(worker.parameters(), 1e-3)
env_steps, returns, clock, mark = 0, [], None, 0

for ep in range(EPISODES):
    if ep == EPISODES // 5:
        clock, mark = time.perf_counter(), env_steps
    obs, _ = env.reset(seed=5000 + ep)
    xs, goals, acts, rews, finished, t = [], [], [], [], False, 0
    while not finished:
        x = torch.from_numpy(obs)
        with torch.no_grad():
            proposal, _ = manager(x)
            if t % EVERY == 0:
                goal = proposal
            logits, _ = worker(x, goal)
            a = torch.multinomial(logits.softmax(-1), 1).item()
        obs, r, term, trunc, _ = env.step(a)
        finished = term or trunc
        xs.append(x); goals.append(goal); acts.append(a); rews.append(r)
        t += 1
    env_steps += t
    returns.append(sum(rews))

    X, G = torch.stack(xs), torch.stack(goals)
    ret = discounted(rews, 0.97)
    logits, v = worker(X, G)
    logp = log_softmax(logits, -1).gather(1, torch.tensor(acts)[:, None]).squeeze(1)
    loss_w = -(logp * (ret - v.detach())).mean() + 0.5 * (v - ret).pow(2).mean()
    opt_w.zero_grad(); loss_w.backward(); opt_w.step()

    starts = torch.arange(0, t, EVERY)
    ends = torch.clamp(starts + EVERY, max=t - 1)
    g, vm = manager(X[starts])
    moved = embed(X[ends]) - embed(X[starts])
    loss_m = -(cosine_similarity(moved, g, dim=-1) * (ret[starts] - vm.detach())).mean() + (vm - ret[starts]).pow(2).mean()
    opt_m.zero_grad(); loss_m.backward(); opt_m.step()

rate = (env_steps - mark) / (time.perf_counter() - clock)
print("mean return of the last 20:", np.mean(returns[-20:]))
print(json.dumps({"env_steps": env_steps, "updates": 2 * EPISODES, "units_per_s": rate, "checksum":
                  sum(p.detach().double().sum().item() for p in [*manager.parameters(), *worker.parameters()])}))
