import json
import random
import sys
import time
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class CatchFruit:
    """32x32 gray frames, several fruits falling at different speeds, a basket at the bottom."""

    def __init__(self, seed=0, size=32, fruits=3, max_steps=250):
        self.rng = random.Random(seed)
        self.size, self.fruits, self.max_steps = size, fruits, max_steps
        self.n_actions = 3

    def _spawn(self):
        return [0.0, self.rng.randrange(1, self.size - 1), self.rng.choice([0.7, 1.0, 1.4])]

    def reset(self):
        self.basket = self.size // 2
        self.items = [self._spawn() for _ in range(self.fruits)]
        for i, item in enumerate(self.items):
            item[0] = 8.0 * i
        self.t = 0
        return self._frame()

    def _frame(self):
        frame = np.zeros((self.size, self.size), dtype=np.uint8)
        for y, x, _ in self.items:
            frame[int(y):int(y) + 2, x - 1:x + 1] = 180
        frame[-2:, self.basket - 3:self.basket + 4] = 255
        return frame

    def step(self, action):
        self.basket = min(max(self.basket + 2 * (action - 1), 3), self.size - 4)
        reward = 0.0
        for i, item in enumerate(self.items):
            item[0] += item[2]
            if item[0] >= self.size - 2:
                reward += 1.0 if abs(item[1] - self.basket) <= 3 else -1.0
                self.items[i] = self._spawn()
        self.t += 1
        return self._frame(), reward, self.t >= self.max_steps, {}


class QNetwork(nn.Module):
    def __init__(self, n_actions):
        super().__init__()
        self.conv1 = nn.Conv2d(4, 32, kernel_size=4, stride=2)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=4, stride=2)
        self.conv3 = nn.Conv2d(64, 64, kernel_size=3, stride=1)
        self.fc1 = nn.Linear(64 * 4 * 4, 256)
        self.fc2 = nn.Linear(256, n_actions)

    def forward(self, x):
        x = F.relu(self.conv1(x / 255.0))
        x = F.relu(self.conv2(x))
        x = F.relu(self.conv3(x))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


class ReplayMemory:
    def __init__(self, capacity):
        self.capacity = capacity
        self.memory = []
        self.position = 0

    def push(self, state, action, reward, next_state, done):
        transition = (state, action, reward, next_state, done)
        if len(self.memory) < self.capacity:
            self.memory.append(transition)
        else:
            self.memory[self.position] = transition
        self.position = (self.position + 1) % self.capacity

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


class Agent:
    def __init__(self, n_actions, lr=2.5e-4, gamma=0.98, batch_size=32, capacity=8000):
        self.n_actions = n_actions
        self.gamma = gamma
        self.batch_size = batch_size
        self.policy_net = QNetwork(n_actions).to(device)
        self.target_net = QNetwork(n_actions).to(device)
        self.target_net.load_state_dict(self.policy_net.state_dict())
        self.optimizer = torch.optim.Adam(self.policy_net.parameters(), lr=lr)
        self.memory = ReplayMemory(capacity)
        self.learn_steps = 0

    def select_action(self, state, epsilon):
        if random.random() < epsilon:
            return random.randrange(self.n_actions)
        with torch.no_grad():
            x = torch.from_numpy(state).unsqueeze(0).float().to(device)
            return self.policy_net(x).argmax(1).item()

    def learn(self):
        states, actions, rewards, next_states, dones = zip(*self.memory.sample(self.batch_size))
        states = torch.tensor(states, dtype=torch.float32).to(device)
        next_states = torch.tensor(next_states, dtype=torch.float32).to(device)
        actions = torch.tensor(actions).unsqueeze(1).to(device)
        rewards = torch.tensor(rewards, dtype=torch.float32).to(device)
        dones = torch.tensor(dones, dtype=torch.float32).to(device)

        q = self.policy_net(states).gather(1, actions).squeeze(1)
        with torch.no_grad():
            next_q = self.target_net(next_states).max(1)[0]
            target = rewards + self.gamma * next_q * (1 - dones)
        loss = F.smooth_l1_loss(q, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

        self.learn_steps += 1
        if self.learn_steps % 250 == 0:
            self.target_net.load_state_dict(self.policy_net.state_dict())


def train(total_steps, warmup=1000, train_every=4):
    random.seed(9)
    torch.manual_seed(9)
    env = CatchFruit(seed=9)
    agent = Agent(env.n_actions)
    frames = deque(maxlen=4)
    start = warmup + (total_steps - warmup) // 5
    frame, score, scores = env.reset(), 0.0, []
    frames.extend([frame] * 4)
    state = np.stack(frames)

    for step in range(total_steps):
        if step == start:
            t0 = time.perf_counter()
        epsilon = max(0.05, 1.0 - step / (0.6 * total_steps))
        action = agent.select_action(state, epsilon)
        frame, reward, done, _ = env.step(action)
        frames.append(frame)
        next_state = np.stack(frames)
        agent.memory.push(state, action, reward, next_state, done)
        state = next_state
        score += reward
        if step >= warmup and step % train_every == 0:
            agent.learn()
        if done:
            scores.append(score)
            if len(scores) % 10 == 0:
                print(f"episode {len(scores)}, step {step + 1}, mean score {np.mean(scores[-10:]):.2f}")
            frame, score = env.reset(), 0.0
            frames.extend([frame] * 4)
            state = np.stack(frames)

    rate = (total_steps - start) / (time.perf_counter() - t0)
    print(json.dumps({
        "env_steps": total_steps,
        "updates": agent.learn_steps,
        "units_per_s": rate,
        "checksum": round(sum(p.detach().double().sum().item() for p in agent.policy_net.parameters()), 6),
    }))


if __name__ == "__main__":
    train(int(sys.argv[1]) if len(sys.argv) > 1 else 3800)
