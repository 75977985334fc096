# DQN for Acrobot. Based on the usual tutorial, with a list as replay memory.
import argparse
import json
import random
import time
from collections import namedtuple

import gymnasium as gym
import numpy as np
import torch
from torch import nn

Transition = namedtuple("Transition", "state action reward next_state done")

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4500)
parser.add_argument("--capacity", type=int, default=20000)
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--warmup", type=int, default=500)
parser.add_argument("--seed", type=int, default=0)
opts = parser.parse_args()

random.seed(opts.seed)
np.random.seed(opts.seed)
torch.manual_seed(opts.seed)
torch.set_num_threads(1)


class QNet(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(n_in, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, n_out)
        )

    def forward(self, x):
        return self.layers(x)


class Agent:
    def __init__(self, n_in, n_out):
        self.n_out = n_out
        self.online = QNet(n_in, n_out)
        self.target = QNet(n_in, n_out)
        self.target.load_state_dict(self.online.state_dict())
        self.optim = torch.optim.Adam(self.online.parameters(), lr=1e-3)
        self.memory = []
        self.where = 0
        self.learned = 0

    def act(self, state, eps):
        if random.random() < eps:
            return random.randrange(self.n_out)
        with torch.no_grad():
            return int(self.online(torch.from_numpy(state)).argmax())

    def remember(self, *items):
        if len(self.memory) < opts.capacity:
            self.memory.append(None)
        self.memory[self.where] = Transition(*items)
        self.where = (self.where + 1) % opts.capacity

    def learn(self):
        batch = Transition(*zip(*random.sample(self.memory, opts.batch_size), strict=True))
        states = torch.from_numpy(np.array(batch.state))
        next_states = torch.from_numpy(np.array(batch.next_state))
        actions = torch.tensor(batch.action)
        rewards = torch.tensor(batch.reward)
        dones = torch.tensor(batch.done)
        with torch.no_grad():
            goal = rewards + 0.99 * (1 - dones) * self.target(next_states).max(1).values
        guess = self.online(states).gather(1, actions.unsqueeze(1)).squeeze(1)
        loss = nn.functional.mse_loss(guess, goal)
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        self.learned += 1
        if self.learned % 500 == 0:
            self.target.load_state_dict(self.online.state_dict())


HISTORY = 4  # observations that make a state


def first_state(obs):
    return np.tile(obs, HISTORY)


def following_state(state, obs):
    return np.concatenate([state[len(obs) :], obs])


env = gym.make("Acrobot-v1")
agent = Agent(HISTORY * env.observation_space.shape[0], env.action_space.n)
state = first_state(env.reset(seed=opts.seed)[0])
begin = None
for step in range(opts.steps):
    if step == opts.steps // 5:
        begin = time.time()
    action = agent.act(state, max(0.05, 1 - step / (opts.steps / 2)))
    obs, reward, terminated, truncated, _ = env.step(action)
    next_state = following_state(state, obs)
    agent.remember(state, action, float(reward), next_state, float(terminated))
    state = next_state
    if terminated or truncated:
        state = first_state(env.reset()[0])
    if step >= opts.warmup:
        agent.learn()
speed = (opts.steps - opts.steps // 5) / (time.time() - begin)
weights = float(sum(p.double().abs().sum() for p in agent.online.parameters()))
result = {"env_steps": opts.steps, "updates": agent.learned, "units_per_s": speed, "checksum": weights}
print(json.dumps(result))
