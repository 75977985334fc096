"""Double DQN that skis down a slalom course. `python slow.py --episodes 150`."""

import argparse
import json
import math
import os
import pickle
import random
import time
from collections import deque

import numpy as np
import torch
from torch import nn


class Slalom:
    """A skier between gates; state: position, speed, and the offsets of the next two gates."""

    length = 60

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def reset(self):
        self.gates = [self.rng.uniform(-1, 1) for _ in range(self.length // 5 + 3)]
        self.x, self.v, self.t = 0.0, 0.0, 0
        return self.observe()

    def observe(self):
        g = self.t // 5
        return np.array(
            [self.x, self.v, (self.t % 5) / 5, self.gates[g] - self.x, self.gates[g + 1] - self.x],
            dtype=np.float32,
        )

    def step(self, action):
        self.v = 0.9 * self.v + 0.08 * (action - 1)
        self.x = max(-1.5, min(1.5, self.x + self.v))
        self.t += 1
        reward = 0.0
        if self.t % 5 == 0:
            reward = math.exp(-8 * (self.gates[self.t // 5 - 1] - self.x) ** 2)
        return self.observe(), reward, self.t >= self.length


class QNetwork(nn.Module):
    def __init__(self, n_obs, n_actions, hidden=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_obs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, n_actions)

    def forward(self, x):
        return self.head(self.body(x))


class Agent:
    def __init__(self, args):
        self.args = args
        self.online = QNetwork(5, 3)
        self.target = QNetwork(5, 3)
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=args.lr)
        self.memory = deque(maxlen=args.memory)
        self.updates = 0

    def act(self, state, epsilon):
        if random.random() < epsilon:
            return random.randrange(3)
        with torch.no_grad():
            return int(self.online(torch.from_numpy(state)).argmax())

    def learn(self):
        batch = random.sample(self.memory, self.args.batch)
        s, a, r, s2, d = zip(*batch, strict=True)
        s, s2 = torch.from_numpy(np.stack(s)), torch.from_numpy(np.stack(s2))
        a = torch.tensor(a).unsqueeze(1)
        r, d = torch.tensor(r), torch.tensor(d, dtype=torch.float32)
        with torch.no_grad():
            best = self.online(s2).argmax(1, keepdim=True)
            y = r + 0.98 * (1 - d) * self.target(s2).gather(1, best).squeeze(1)
        loss = nn.functional.smooth_l1_loss(self.online(s).gather(1, a).squeeze(1), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        if self.updates % 200 == 0:
            self.target.load_state_dict(self.online.state_dict())

    def save(self, path, episode):
        state = {
            "episode": episode,
            "online": self.online.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "memory": list(self.memory),
        }
        with open(path + ".tmp", "wb") as f:
            pickle.dump(state, f)
        os.replace(path + ".tmp", path)


def train(args):
    env, agent = Slalom(args.seed), Agent(args)
    steps, skip = 0, args.episodes // 5
    for episode in range(args.episodes):
        if episode == skip:
            began, at = time.perf_counter(), steps
        state, done = env.reset(), False
        epsilon = max(0.05, 1 - episode / 60)
        while not done:
            action = agent.act(state, epsilon)
            following, reward, done = env.step(action)
            agent.memory.append((state, action, reward, following, done))
            state = following
            steps += 1
            if steps % 4 == 0 and len(agent.memory) >= args.warmup:
                agent.learn()
        agent.save("checkpoint.pkl", episode)
    rate = (steps - at) / (time.perf_counter() - began)
    return steps, agent, rate


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--episodes", type=int, default=400)
    p.add_argument("--memory", type=int, default=5000)
    p.add_argument("--warmup", type=int, default=500)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--lr", type=float, default=5e-4)
    p.add_argument("--seed", type=int, default=3)
    args = p.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    steps, agent, rate = train(args)
    checksum = float(sum(w.double().sum() for w in agent.online.parameters()))
    print(
        json.dumps({"env_steps": None, "updates": agent.updates, "units_per_s": rate, "checksum": checksum})
    )
