#!/usr/bin/env python
# DDPG: push a cart to a target that moves. Own environment, own buffer.
import argparse
import copy
import json
import time

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)


HISTORY = 12
N_OBS = 4 * HISTORY


class CartTarget:
    """Observes the last twelve states."""

    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.s = np.tile(self.rng.uniform(-1, 1, 4).astype(np.float32), (HISTORY, 1))
        self.k = 0
        return self.s.ravel()

    def step(self, force):
        x, v, tx, tv = self.s[0].tolist()
        v = 0.95 * v + 0.1 * force
        x += 0.1 * v
        tx += 0.05 * tv
        if abs(tx) > 1:
            tv = -tv
        new = np.empty_like(self.s)
        new[1:] = self.s[:-1]
        new[0] = x, v, tx, tv
        self.s = new
        self.k += 1
        return self.s.ravel(), -abs(x - tx), self.k >= 100


class Memory:
    def __init__(self, max_size):
        self.max_size = max_size
        self.states = np.empty((max_size, N_OBS), np.float32)
        self.actions = np.empty((max_size, 1), np.float32)
        self.rewards = np.empty((max_size, 1), np.float32)
        self.next_states = np.empty((max_size, N_OBS), np.float32)
        self.count = 0

    def remember(self, s, a, r, s2):
        i = self.count % self.max_size
        self.states[i], self.actions[i], self.rewards[i], self.next_states[i] = s, a, r, s2
        self.count += 1

    def __len__(self):
        return min(self.count, self.max_size)

    def sample(self, n, rng):
        i = rng.integers(0, len(self), n)
        return [torch.from_numpy(x[i]) for x in (self.states, self.actions, self.rewards, self.next_states)]


def build(n_in, n_out, last):
    return nn.Sequential(
        nn.Linear(n_in, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, n_out), last
    )


def soft_update(target, source, tau):
    with torch.no_grad():
        torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12000)
parser.add_argument("--warmup", type=int, default=2000)
parser.add_argument("--capacity", type=int, default=50000)
parser.add_argument("--update-every", type=int, default=2)
args = parser.parse_args()

rng = np.random.default_rng(0)
torch.manual_seed(0)
env = CartTarget(rng)
actor, critic = build(N_OBS, 1, nn.Tanh()), build(N_OBS + 1, 1, nn.Identity())
actor_target, critic_target = copy.deepcopy(actor), copy.deepcopy(critic)
actor_optim = torch.optim.Adam(actor.parameters(), 1e-4, fused=True)
critic_optim = torch.optim.Adam(critic.parameters(), 1e-3, fused=True)
memory = Memory(args.capacity)

state = env.reset()
updates = 0
for step in range(args.steps):
    if step == args.steps // 5:
        t0 = time.perf_counter()
    if step < args.warmup:
        action = rng.uniform(-1, 1, 1).astype(np.float32)
    else:
        with torch.no_grad():
            action = actor(torch.from_numpy(state)).numpy()
        action = np.clip(action + 0.1 * rng.standard_normal(1, dtype=np.float32), -1, 1)
    next_state, reward, done = env.step(float(action[0]))
    memory.remember(state, action, reward, next_state)
    state = env.reset() if done else next_state
    if step >= args.warmup and step % args.update_every == 0:
        s, a, r, s2 = memory.sample(64, rng)
        with torch.no_grad():
            y = r + 0.98 * critic_target(torch.cat([s2, actor_target(s2)], 1))
        critic_loss = nn.functional.mse_loss(critic(torch.cat([s, a], 1)), y)
        critic_optim.zero_grad()
        critic_loss.backward()
        critic_optim.step()
        actor_loss = -critic(torch.cat([s, actor(s)], 1)).mean()
        actor_optim.zero_grad()
        actor_loss.backward()
        actor_optim.step()
        soft_update(actor_target, actor, 0.005)
        soft_update(critic_target, critic, 0.005)
        updates += 1

rate = (args.steps - args.steps // 5) / (time.perf_counter() - t0)
checksum = float(sum(p.double().sum() for p in actor.parameters()))
print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))
