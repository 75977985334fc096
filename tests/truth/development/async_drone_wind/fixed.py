"""Asyncio swarm of drones in gusty wind; one shared policy, A2C. Each drone is a coroutine with its own simulator."""
import argparse
import asyncio
import json
import math
import random
import time

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)


class WindSimulator:
    """Height and position of one drone. Cheap: a handful of floats."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.gust = 0.0
        self.reset()

    def reset(self):
        self.x, self.z = self.rng.uniform(-1, 1), self.rng.uniform(-1, 1)
        self.vx, self.vz, self.tilt, self.t = 0.0, 0.0, 0.0, 0
        return self.observe()

    def observe(self):
        return [self.x, self.z, self.vx, self.vz, math.sin(self.tilt), math.cos(self.tilt), self.gust]

    def step(self, action):
        lift, turn = (0.6, 1.4)[action & 1], (-0.15, 0.15)[action >> 1]
        for _ in range(4):
            self.gust = 0.98 * self.gust + 0.03 * self.rng.gauss(0, 1)
            self.tilt = max(-0.8, min(0.8, self.tilt + 0.25 * turn))
            self.vx = 0.99 * self.vx + 0.02 * (lift * math.sin(self.tilt) + self.gust)
            self.vz = 0.99 * self.vz + 0.02 * (lift * math.cos(self.tilt) - 1.0)
            self.x += 0.05 * self.vx
            self.z += 0.05 * self.vz
        self.t += 1
        far = abs(self.x) > 3 or abs(self.z) > 3
        reward = 1.0 - abs(self.x) - abs(self.z) - (5.0 if far else 0.0)
        return self.observe(), reward, far or self.t >= 150


class Drone:
    def __init__(self, seed):
        self.sim = WindSimulator(seed)
        self.obs = self.sim.reset()

    async def fly(self, action):
        obs, reward, done = self.sim.step(action)
        self.obs = self.sim.reset() if done else obs
        return reward, done


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(7, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
        self.pi, self.v = nn.Linear(128, 4), nn.Linear(128, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.v(h).squeeze(-1)


class Learner:
    def __init__(self, lr):
        self.policy = Policy()
        self.opt = torch.optim.RMSprop(self.policy.parameters(), lr)
        self.updates = 0

    @torch.inference_mode()
    def act(self, obs):
        logits, _ = self.policy(obs)
        return torch.multinomial(F.softmax(logits, -1), 1).squeeze(1)

    def update(self, obs, actions, rewards, dones, last):
        with torch.inference_mode():
            value = self.policy(last)[1]
        live, target = 1 - dones, torch.empty_like(rewards)
        for t in range(len(rewards) - 1, -1, -1):
            value = rewards[t] + 0.98 * live[t] * value
            target[t] = value
        logits, values = self.policy(obs)
        logp = F.log_softmax(logits, -1)
        advantage = target - values
        taken = logp.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        entropy = -(logp.exp() * logp).sum(-1).mean()
        loss = -(taken * advantage.detach()).mean() + 0.5 * advantage.pow(2).mean() - 0.01 * entropy
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.updates += 1


async def train(args):
    drones = [Drone(seed) for seed in range(args.drones)]
    learner = Learner(args.lr)
    began, mean = 0.0, 0.0
    for it in range(args.iterations):
        if it == args.iterations // 5:
            began = time.perf_counter()
        seen, done_acts, rewards, dones = [], [], [], []
        for _ in range(args.rollout):
            obs = torch.tensor([drone.obs for drone in drones])
            actions = learner.act(obs)
            results = await asyncio.gather(*(drone.fly(a) for drone, a in zip(drones, actions.tolist())))
            seen.append(obs)
            done_acts.append(actions)
            rewards.append([r for r, _ in results])
            dones.append([float(d) for _, d in results])
        last = torch.tensor([drone.obs for drone in drones])
        batch = torch.stack(seen), torch.stack(done_acts), torch.tensor(rewards), torch.tensor(dones)
        learner.update(*batch, last)
        mean = 0.95 * mean + 0.05 * batch[2].mean().item()
        if it % 100 == 99:
            print(f"iteration {it + 1}: mean reward {mean:.3f}")
    rate = (args.iterations - args.iterations // 5) / (time.perf_counter() - began)
    check = sum(p.detach().double().abs().sum().item() for p in learner.policy.parameters())
    print(json.dumps({"env_steps": None, "updates": learner.updates, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=1500)
    parser.add_argument("--drones", type=int, default=12)
    parser.add_argument("--rollout", type=int, default=8)
    parser.add_argument("--lr", type=float, default=7e-4)
    args = parser.parse_args()
    torch.manual_seed(14)
    asyncio.run(train(args))
