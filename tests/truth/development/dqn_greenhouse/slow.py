"""
Deep Q-Network for a toy greenhouse climate controller.

usage: python dqn.py [n_steps]
"""
import json
import random
import sys
import time

import gymnasium as gym
from gymnasium import spaces
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

SEED = 11
BUFFER_SIZE = 20000
BATCH_SIZE = 128
GAMMA = 0.98
LR = 5e-4
TARGET_UPDATE = 500
LEARNING_STARTS = 500
TRAIN_EVERY = 2


class GreenhouseEnv(gym.Env):
    """20 zones along a pipe; action = heat / vent one of the three actuators or do nothing."""

    N_ZONES = 20
    N_ACTIONS = 7

    def __init__(self, horizon=240):
        self.horizon = horizon
        self.observation_space = spaces.Box(-10, 10, (self.N_ZONES + 4,), np.float32)
        self.action_space = spaces.Discrete(self.N_ACTIONS)
        self.effect = np.zeros((self.N_ACTIONS, self.N_ZONES), dtype=np.float64)
        for a, (zone, power) in enumerate(
                [(3, .6), (10, .6), (16, .6), (3, -.6), (10, -.6), (16, -.6)], start=1):
            self.effect[a, zone - 1:zone + 2] = power * np.array([.5, 1., .5])
        angle = 2 * np.pi * np.arange(horizon + 1) / 96
        self.sun = np.maximum(0, np.sin(angle))
        self.clock = np.stack([np.sin(angle), np.cos(angle)], axis=1)

    def _get_obs(self):
        obs = np.empty(self.N_ZONES + 4, dtype=np.float32)
        obs[:self.N_ZONES] = self.temp
        obs[self.N_ZONES:self.N_ZONES + 2] = self.clock[self.t]
        obs[-2] = self.outside
        obs[-1] = self.t / self.horizon
        return obs

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.temp = self.np_random.normal(0, .5, self.N_ZONES)
        self.noise = self.np_random.normal(0, .05, self.horizon)
        self.outside = -1.0
        self.t = 0
        return self._get_obs(), {}

    def step(self, action):
        self.outside = .97 * self.outside + .03 * (-1.5 + 2.5 * self.sun[self.t]) + self.noise[self.t]
        diffusion = np.zeros(self.N_ZONES)
        diff = self.temp[1:] - self.temp[:-1]
        diffusion[:-1] += diff
        diffusion[1:] -= diff
        self.temp = (self.temp + .2 * diffusion + .05 * (self.outside - self.temp)
                     + self.effect[action])
        self.t += 1
        reward = -float(np.square(self.temp).mean()) - (.02 if action else 0.)
        return self._get_obs(), reward, False, self.t >= self.horizon, {}


class QNetwork(nn.Module):
    def __init__(self, n_obs, n_actions, hidden=64):
        super().__init__()
        self.fc1 = nn.Linear(n_obs, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, n_actions)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.out(x)


class ReplayBuffer:
    def __init__(self, capacity):
        self.capacity = capacity
        self.memory = []
        self.position = 0

    def push(self, *transition):
        if len(self.memory) < self.capacity:
            self.memory.append(transition)
        else:
            self.memory[self.position] = transition
        self.position = (self.position + 1) % self.capacity

    def sample(self, batch_size):
        batch = random.sample(self.memory, batch_size)
        states, actions, rewards, next_states, dones = zip(*batch)
        return (
            torch.tensor(states, dtype=torch.float32),
            torch.tensor(actions, dtype=torch.int64).unsqueeze(1),
            torch.tensor(rewards, dtype=torch.float32).unsqueeze(1),
            torch.tensor(next_states, dtype=torch.float32),
            torch.tensor(dones, dtype=torch.float32).unsqueeze(1),
        )

    def __len__(self):
        return len(self.memory)


class Agent:
    def __init__(self, n_obs, n_actions):
        self.n_actions = n_actions
        self.q_net = QNetwork(n_obs, n_actions)
        self.target_net = QNetwork(n_obs, n_actions)
        self.target_net.load_state_dict(self.q_net.state_dict())
        self.optimizer = optim.Adam(self.q_net.parameters(), lr=LR)
        self.memory = ReplayBuffer(BUFFER_SIZE)
        self.updates = 0

    def act(self, state, eps):
        if random.random() < eps:
            return random.randrange(self.n_actions)
        with torch.no_grad():
            return int(self.q_net(torch.from_numpy(state)).argmax())

    def learn(self):
        states, actions, rewards, next_states, dones = self.memory.sample(BATCH_SIZE)
        q = self.q_net(states).gather(1, actions)
        with torch.no_grad():
            q_next = self.target_net(next_states).max(1, keepdim=True)[0]
            target = rewards + GAMMA * q_next * (1 - dones)
        loss = F.smooth_l1_loss(q, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        if self.updates % TARGET_UPDATE == 0:
            self.target_net.load_state_dict(self.q_net.state_dict())


def main():
    n_steps = int(sys.argv[1]) if len(sys.argv) > 1 else 28000
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    torch.set_num_threads(1)

    env = GreenhouseEnv()
    agent = Agent(env.observation_space.shape[0], int(env.action_space.n))
    state, _ = env.reset(seed=SEED)
    score, scores = 0.0, []
    warm = n_steps // 5
    t0 = time.perf_counter()

    for step in range(n_steps):
        if step == warm:
            t0 = time.perf_counter()
        eps = max(0.05, 1.0 - step / (0.5 * n_steps))
        action = agent.act(state, eps)
        next_state, reward, terminated, truncated, _ = env.step(action)
        agent.memory.push(state, action, reward, next_state, terminated)
        score += reward
        state = next_state
        if step >= LEARNING_STARTS and step % TRAIN_EVERY == 0:
            agent.learn()
        if terminated or truncated:
            scores.append(score)
            if len(scores) % 10 == 0:
                print("Episode %d\tAverage score: %.2f" % (len(scores), np.mean(scores[-10:])))
            score = 0.0
            state, _ = env.reset()

    seconds = time.perf_counter() - t0
    checksum = sum(float(p.double().sum()) for p in agent.q_net.state_dict().values())
    print(json.dumps({"env_steps": n_steps, "updates": agent.updates,
                      "units_per_s": (n_steps - warm) / seconds, "checksum": round(checksum, 6)}))


if __name__ == "__main__":
    main()
