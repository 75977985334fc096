"""DQN on a small fleet of simulated delivery robots that answer asynchronously (asyncio)."""
import asyncio
import json
import sys
import time

import numpy as np
import torch
import torch.nn as nn

N_ROBOTS = 4
OBS_DIM = 8
N_ACTIONS = 5
MOVES = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], dtype=np.float32)


class Robot:
    """Drives on a 10 x 10 m floor to a goal, past one moving obstacle. Each command is a round trip
    to the simulator, which takes about `latency` seconds to answer."""

    def __init__(self, seed, latency=0.001):
        self.rng = np.random.default_rng(seed)
        self.latency = latency

    def _obs(self):
        out = np.empty(OBS_DIM, np.float32)
        out[0:2] = self.pos
        out[2:4] = self.goal - self.pos
        out[4:6] = self.obstacle - self.pos
        out[6:8] = self.obstacle_v
        out *= 0.1
        return out

    async def reset(self):
        await asyncio.sleep(self.latency)
        points = self.rng.uniform(0, 10, size=(3, 2)).astype(np.float32)
        self.pos, self.goal, self.obstacle = points
        self.obstacle_v = self.rng.uniform(-1, 1, size=2).astype(np.float32)
        self.t = 0
        return self._obs()

    async def step(self, action):
        await asyncio.sleep(self.latency)
        self.pos = np.clip(self.pos + 0.5 * MOVES[action], 0.0, 10.0)
        self.obstacle = (self.obstacle + 0.5 * self.obstacle_v) % 10.0
        self.t += 1
        to_goal = float(np.hypot(*(self.goal - self.pos)))
        hit = float(np.hypot(*(self.obstacle - self.pos))) < 0.5
        arrived = to_goal < 0.6
        reward = 1.0 * arrived - 1.0 * hit - 0.005 * to_goal
        return self._obs(), reward, arrived or hit, self.t >= 100


class Replay:
    def __init__(self, capacity):
        self.obs = np.zeros((capacity, OBS_DIM), np.float32)
        self.next_obs = np.zeros((capacity, OBS_DIM), np.float32)
        self.action = np.zeros(capacity, np.int64)
        self.reward = np.zeros(capacity, np.float32)
        self.terminal = np.zeros(capacity, np.float32)
        self.capacity, self.pos, self.size = capacity, 0, 0

    def add(self, obs, action, reward, next_obs, terminal):
        i = self.pos
        self.obs[i], self.action[i], self.reward[i] = obs, action, reward
        self.next_obs[i], self.terminal[i] = next_obs, terminal
        self.pos = (i + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, rng, n):
        idx = rng.integers(self.size, size=n)
        arrays = self.obs[idx], self.action[idx], self.reward[idx], self.next_obs[idx], self.terminal[idx]
        return [torch.from_numpy(a) for a in arrays]


def make_net():
    return nn.Sequential(nn.Linear(OBS_DIM, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, N_ACTIONS))


class DQN:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.q, self.target = make_net(), make_net()
        self.target.load_state_dict(self.q.state_dict())
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=5e-4)
        self.updates = 0

    @torch.no_grad()
    def act(self, obs, epsilon):
        greedy = self.q(torch.from_numpy(obs)).argmax(-1).numpy()
        explore = self.rng.random(len(obs)) < epsilon
        return np.where(explore, self.rng.integers(N_ACTIONS, size=len(obs)), greedy)

    def update(self, batch, gamma=0.97):
        obs, action, reward, next_obs, terminal = batch
        with torch.no_grad():
            target = reward + gamma * (1.0 - terminal) * self.target(next_obs).max(-1).values
        q = self.q(obs).gather(1, action[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(q, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        if self.updates % 500 == 0:
            self.target.load_state_dict(self.q.state_dict())


async def train(ticks):
    torch.manual_seed(4)
    robots = [Robot(seed=40 + i) for i in range(N_ROBOTS)]
    agent = DQN(seed=4)
    replay = Replay(50_000)
    obs = np.stack([await robot.reset() for robot in robots])
    arrivals = 0
    warm = ticks // 5

    for tick in range(ticks):
        if tick == warm:
            t0 = time.perf_counter()
        epsilon = max(0.05, 1.0 - tick / (0.5 * ticks))
        actions = agent.act(obs, epsilon)

        results = []
        for robot, action in zip(robots, actions):
            results.append(await robot.step(action))

        for i, (next_obs, reward, terminal, timeout) in enumerate(results):
            replay.add(obs[i], actions[i], reward, next_obs, terminal)
            arrivals += reward > 0.5
            obs[i] = await robots[i].reset() if terminal or timeout else next_obs

        if replay.size >= 500:
            agent.update(replay.sample(agent.rng, 64))
        if (tick + 1) % 1000 == 0:
            print(f"tick {tick + 1}  epsilon {epsilon:.2f}  arrivals {arrivals}")

    rate = (ticks - warm) / (time.perf_counter() - t0)
    print(json.dumps({
        "env_steps": ticks * N_ROBOTS,
        "updates": agent.updates,
        "units_per_s": rate,
        "checksum": round(sum(p.detach().double().sum().item() for p in agent.q.parameters()), 6),
    }))


if __name__ == "__main__":
    asyncio.run(train(int(sys.argv[1]) if len(sys.argv) > 1 else 5000))
