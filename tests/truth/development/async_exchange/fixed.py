"""Asynchronous Q-learning for order execution.

Every market simulator is a service that answers after a short while, so the clients are coroutines. One
transition of each market is collected per tick, then the agent learns from a replay batch.
"""

import argparse
import asyncio
import json
import random
import time

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

torch.set_num_threads(1)


class OrderExecution(gym.Env):
    """Sell an inventory within an hour; the price is a noisy walk that own orders push down."""

    HORIZON = 60

    def __init__(self):
        self.observation_space = spaces.Box(-np.inf, np.inf, (5,), np.float32)
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.noise = self.np_random.normal(0.0, 0.02, self.HORIZON).tolist()
        self.price, self.drift, self.inventory, self.t = 1.0, 0.0, 1.0, 0
        return self._observation(), {}

    def _observation(self):
        left = 1.0 - self.t / self.HORIZON
        return np.array(
            [self.price, self.drift, self.inventory, left, self.inventory / (left + 0.05)], np.float32
        )

    def step(self, action):
        sold = min(self.inventory, (0.0, 0.02, 0.05, 0.1)[action])
        reward = sold * (self.price - 0.8 * sold)
        self.inventory -= sold
        self.drift = 0.9 * self.drift + self.noise[self.t] - 0.05 * sold
        self.price = max(0.2, self.price + self.drift)
        self.t += 1
        over = self.t >= self.HORIZON
        if over:
            reward += 0.5 * self.inventory * self.price
        return self._observation(), reward, self.inventory <= 0.0, over, {}


class MarketClient:
    """Connection to one simulator; the delay is the round trip of a request."""

    def __init__(self, seed, delay=0.0012):
        self.env = OrderExecution()
        self.delay = delay
        self.observation, _ = self.env.reset(seed=seed)

    async def submit(self, action):
        await asyncio.sleep(self.delay)
        before = self.observation
        after, reward, terminated, truncated, _ = self.env.step(action)
        self.observation = self.env.reset()[0] if terminated or truncated else after
        return before, action, reward, after, terminated


class Replay:
    def __init__(self, capacity, obs_dim):
        self.obs = np.zeros((capacity, obs_dim), np.float32)
        self.next_obs = np.zeros((capacity, obs_dim), np.float32)
        self.actions = np.zeros(capacity, np.int64)
        self.rewards = np.zeros(capacity, np.float32)
        self.terminated = np.zeros(capacity, np.float32)
        self.size = self.position = 0

    def add(self, transition):
        i = self.position
        self.obs[i], self.actions[i], self.rewards[i], self.next_obs[i], self.terminated[i] = transition
        self.position = (i + 1) % len(self.obs)
        self.size = min(self.size + 1, len(self.obs))

    def sample(self, n, rng):
        idx = rng.integers(0, self.size, n)
        arrays = (self.obs, self.actions, self.rewards, self.next_obs, self.terminated)
        return [torch.from_numpy(a[idx]) for a in arrays]


class Agent:
    def __init__(self, lr=5e-4, gamma=0.99):
        self.q = nn.Sequential(
            nn.Linear(5, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)
        )
        self.target = nn.Sequential(
            nn.Linear(5, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)
        )
        self.target.load_state_dict(self.q.state_dict())
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=lr)
        self.gamma = gamma
        self.updates = 0

    @torch.no_grad()
    def act(self, observations, epsilon):
        greedy = self.q(torch.from_numpy(np.stack(observations))).argmax(1).tolist()
        return [random.randrange(4) if random.random() < epsilon else a for a in greedy]

    def learn(self, obs, actions, rewards, next_obs, terminated):
        with torch.no_grad():
            goal = rewards + self.gamma * (1 - terminated) * self.target(next_obs).amax(1)
        chosen = self.q(obs).gather(1, actions[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(chosen, goal)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        if self.updates % 200 == 0:
            self.target.load_state_dict(self.q.state_dict())


async def collect(markets, actions, replay):
    """Send one action to each market and store what comes back."""
    requests = [market.submit(action) for market, action in zip(markets, actions, strict=True)]
    for transition in await asyncio.gather(*requests):
        replay.add(transition)


async def train(args):
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    markets = [MarketClient(seed=args.seed + i) for i in range(args.markets)]
    replay = Replay(20_000, 5)
    agent = Agent()
    warmup, began = args.ticks // 5, time.perf_counter()
    for tick in range(args.ticks):
        if tick == warmup:
            began = time.perf_counter()
        epsilon = max(0.05, 1.0 - tick / (0.5 * args.ticks))
        actions = agent.act([market.observation for market in markets], epsilon)
        await collect(markets, actions, replay)
        for _ in range(args.updates_per_tick):
            agent.learn(*replay.sample(args.batch_size, rng))
    elapsed = time.perf_counter() - began
    print(
        json.dumps(
            {
                "env_steps": args.ticks * args.markets,
                "updates": agent.updates,
                "units_per_s": (args.ticks - warmup) / elapsed,
                "checksum": sum(p.detach().abs().sum().item() for p in agent.q.parameters()),
            }
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ticks", type=int, default=1200)
    parser.add_argument("--markets", type=int, default=8)
    parser.add_argument("--updates-per-tick", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(train(parser.parse_args()))
