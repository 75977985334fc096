# %% [markdown]
# DQN on Taxi-v4. 500 states, so a small network is enough; a replay memory of everything we have seen.

# %%
import json
import random
import sys
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)
N_STATES, N_ACTIONS = 500, 6
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
BATCH, GAMMA, LR = 128, 0.97, 1e-3
LEARN_EVERY, SYNC_EVERY = 2, 500
random.seed(31)
torch.manual_seed(31)
rng = np.random.default_rng(31)


# %%
class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(N_STATES, 64)
        self.l2 = nn.Linear(64, 64)
        self.l3 = nn.Linear(64, N_ACTIONS)

    def forward(self, x):
        x = nn.functional.embedding(x, self.l1.weight.t()) + self.l1.bias  # the column of each state
        return self.l3(torch.relu(self.l2(torch.relu(x))))


# %%
class Memory:
    def __init__(self, size):
        self.s = np.zeros(size, np.int64)
        self.s2 = np.zeros(size, np.int64)
        self.a = np.zeros(size, np.int64)
        self.r = np.zeros(size, np.float32)
        self.end = np.zeros(size, np.float32)
        self.n = 0

    def add(self, s, a, r, s2, end):
        self.s[self.n], self.a[self.n], self.r[self.n], self.s2[self.n], self.end[self.n] = s, a, r, s2, end
        self.n += 1

    def batch(self):
        i = rng.integers(0, self.n, BATCH)
        return [torch.from_numpy(x[i]) for x in (self.s, self.a, self.r, self.s2, self.end)]


# %%
env = gym.make("Taxi-v4")
q, frozen = QNet(), QNet().requires_grad_(False)
frozen.load_state_dict(q.state_dict())
opt = torch.optim.SGD(q.parameters(), lr=LR * 50)
memory = Memory(STEPS)
updates, score, scores = 0, 0.0, []


def learn():
    s, a, r, s2, end = memory.batch()
    with torch.no_grad():
        goal = r + GAMMA * (1 - end) * frozen(s2).max(1).values
    loss = nn.functional.smooth_l1_loss(q(s).gather(1, a.unsqueeze(1)).squeeze(1), goal)
    opt.zero_grad()
    loss.backward()
    opt.step()


# %%
x, _ = env.reset(seed=31)
for step in range(STEPS):
    if step == STEPS // 5:
        began = time.perf_counter()
    if random.random() < max(0.05, 1.0 - 1.5 * step / STEPS):
        action = random.randrange(N_ACTIONS)
    else:
        with torch.inference_mode():
            action = int(q(torch.tensor([x])).argmax())
    x2, reward, terminated, truncated, _ = env.step(action)
    score += reward
    memory.add(x, action, reward / 10, x2, float(terminated))
    x = x2
    if terminated or truncated:
        scores.append(score)
        score = 0.0
        x, _ = env.reset()
    if step > 500 and step % LEARN_EVERY == 0:
        learn()
        updates += 1
        if updates % SYNC_EVERY == 0:
            frozen.load_state_dict(q.state_dict())
    if step % 2000 == 1999:
        print(f"step {step + 1}: episodes {len(scores)}, score {np.mean(scores[-20:]):.1f}")

# %%
rate = (STEPS - STEPS // 5) / (time.perf_counter() - began)
check = sum(p.detach().double().abs().sum().item() for p in q.parameters())
print(json.dumps({"env_steps": STEPS, "updates": updates, "units_per_s": rate, "checksum": check}))
