import collections
import json
import random
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro

torch.set_num_threads(1)

SIZE = 48
STACK = 4


class CatchFruit(gym.Env):
    """Fruit falls with sideways drift, a basket moves along the bottom. Observations are single grey frames."""

    def __init__(self):
        self.observation_space = gym.spaces.Box(0, 255, (SIZE, SIZE), np.uint8)
        self.action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.basket = SIZE // 2
        self.caught = 0
        self.dropped = 0
        self._new_fruit()
        return self._draw(), {}

    def _new_fruit(self):
        self.x = int(self.np_random.integers(4, SIZE - 4))
        self.y = 2
        self.drift = int(self.np_random.integers(-1, 2))

    def _draw(self):
        frame = np.zeros((SIZE, SIZE), np.uint8)
        frame[self.y - 2 : self.y + 2, self.x - 2 : self.x + 2] = 255
        frame[SIZE - 3 :, self.basket - 5 : self.basket + 5] = 160
        return frame

    def step(self, action):
        self.basket = min(max(self.basket + 3 * (action - 1), 5), SIZE - 5)
        self.y += 2
        self.x = min(max(self.x + self.drift, 2), SIZE - 2)
        reward = 0.0
        if self.y >= SIZE - 4:
            hit = abs(self.x - self.basket) <= 6
            reward = 1.0 if hit else -1.0
            self.caught += hit
            self.dropped += 1
            self._new_fruit()
        return self._draw(), reward, False, self.dropped >= 8, {}


class FrameHistory:
    def __init__(self):
        self.frames = collections.deque(maxlen=STACK)

    def reset(self, frame):
        for _ in range(STACK):
            self.frames.append(frame)

    def append(self, frame):
        self.frames.append(frame)

    def array(self):
        return np.stack(self.frames)

    def tensor(self):
        """A batch of one for the network."""
        return torch.from_numpy(np.stack(self.frames)).float().unsqueeze(0)


class Memory:
    def __init__(self, capacity):
        self.capacity = capacity
        self.states = np.zeros((capacity, STACK, SIZE, SIZE), np.uint8)
        self.new_frames = np.zeros((capacity, SIZE, SIZE), np.uint8)
        self.actions = np.zeros(capacity, np.int64)
        self.rewards = np.zeros(capacity, np.float32)
        self.n = 0

    def push(self, state, action, reward, new_frame):
        i = self.n % self.capacity
        self.states[i] = state
        self.new_frames[i] = new_frame
        self.actions[i] = action
        self.rewards[i] = reward
        self.n += 1

    def sample(self, size):
        idx = np.random.randint(0, min(self.n, self.capacity), size)
        s = self.states[idx]
        s2 = np.concatenate([s[:, 1:], self.new_frames[idx, None]], axis=1)
        return (
            torch.from_numpy(s).float(),
            torch.from_numpy(self.actions[idx]),
            torch.from_numpy(self.rewards[idx]),
            torch.from_numpy(s2).float(),
        )


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(STACK, 12, 8, stride=4)
        self.conv2 = nn.Conv2d(12, 16, 4, stride=2)
        self.fc = nn.Linear(16 * 4 * 4, 64)
        self.out = nn.Linear(64, 3)

    def forward(self, x):
        x = F.relu(self.conv1(x / 255.0))
        x = F.relu(self.conv2(x))
        x = F.relu(self.fc(x.flatten(1)))
        return self.out(x)


def optimize(q, target, opt, batch, gamma):
    s, a, r, s2 = batch
    with torch.no_grad():
        y = r + gamma * target(s2).max(1).values
    pred = q(s).gather(1, a.view(-1, 1)).view(-1)
    loss = F.smooth_l1_loss(pred, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss


def main(
    steps: int = 4500,
    seed: int = 5,
    batch_size: int = 16,
    train_every: int = 4,
    learning_starts: int = 400,
    gamma: float = 0.97,
    lr: float = 3e-4,
):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)

    env = CatchFruit()
    q, target = QNet(), QNet()
    target.load_state_dict(q.state_dict())
    opt = torch.optim.Adam(q.parameters(), lr=lr)
    memory = Memory(10_000)
    history = FrameHistory()

    frame, _ = env.reset(seed=seed)
    history.reset(frame)
    updates = 0
    score = []
    t0, s0 = time.perf_counter(), 0
    for step in range(steps):
        if step == steps // 5:
            t0, s0 = time.perf_counter(), step
        eps = max(0.05, 1.0 - step / 2500)
        state = history.array()
        with torch.no_grad():
            greedy = q(history.tensor()).argmax(1).item()
        action = random.randrange(3) if random.random() < eps else greedy
        frame, reward, terminated, truncated, _ = env.step(action)
        memory.push(state, action, reward, frame)
        history.append(frame)
        if terminated or truncated:
            score.append(env.caught)
            frame, _ = env.reset()
            history.reset(frame)
        if step >= learning_starts and step % train_every == 0:
            optimize(q, target, opt, memory.sample(batch_size), gamma)
            updates += 1
            if updates % 200 == 0:
                target.load_state_dict(q.state_dict())
                print(f"step {step}: caught {np.mean(score[-20:]):.2f} of 8")
    dt = time.perf_counter() - t0
    print(
        json.dumps(
            {
                "env_steps": steps,
                "updates": updates,
                "units_per_s": (steps - s0) / dt,
                "checksum": sum(p.detach().abs().sum().item() for p in q.parameters()),
            }
        )
    )


if __name__ == "__main__":
    tyro.cli(main)
