# Dueling double DQN + n-step returns + proportional prioritized replay ("rainbow light") on CartPole
import argparse
import json
import random
import time
from collections import deque

import gymnasium as gym
import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)

p = argparse.ArgumentParser()
p.add_argument("--env", default="CartPole-v1")
p.add_argument("--frames", type=int, default=12_000)
p.add_argument("--n-step", type=int, default=3)
p.add_argument("--capacity", type=int, default=10_000)
p.add_argument("--batch", type=int, default=64)
p.add_argument("--learn-start", type=int, default=500)
p.add_argument("--learn-every", type=int, default=2)
p.add_argument("--sync-every", type=int, default=500)
p.add_argument("--gamma", type=float, default=0.99)
p.add_argument("--alpha", type=float, default=0.6)
p.add_argument("--lr", type=float, default=5e-4)
p.add_argument("--seed", type=int, default=0)
cfg = p.parse_args()


class DuelingNet(nn.Module):
    def __init__(self, n_obs, n_act):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(n_obs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.out = nn.Linear(128, n_act + 1)  # first column is the state value

    def forward(self, x):
        y = self.out(self.trunk(x))
        adv = y[:, 1:]
        return y[:, :1] + adv - adv.mean(dim=1, keepdim=True)


class PrioritizedBuffer:
    def __init__(self, capacity, n_obs, alpha):
        self.capacity, self.alpha = capacity, alpha
        self.obs = np.zeros((capacity, n_obs), dtype=np.float32)
        self.next_obs = np.zeros((capacity, n_obs), dtype=np.float32)
        self.act = np.zeros(capacity, dtype=np.int64)
        self.ret = np.zeros(capacity, dtype=np.float32)
        self.discount = np.zeros(capacity, dtype=np.float32)
        self.priorities = np.zeros(capacity)
        self.pos = 0
        self.size = 0

    def add(self, obs, act, ret, next_obs, discount):
        # new transitions get the highest priority so that each is seen at least once
        max_prio = max(self.priorities) if self.size else 1.0
        i = self.pos
        self.obs[i], self.act[i], self.ret[i] = obs, act, ret
        self.next_obs[i], self.discount[i] = next_obs, discount
        self.priorities[i] = max_prio
        self.pos = (i + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, n, beta):
        cdf = np.cumsum(self.priorities[: self.size])
        total = cdf[-1]
        idx = np.searchsorted(cdf, np.random.random(n) * total)
        weights = (self.size * self.priorities[idx] / total) ** -beta
        weights /= weights.max()
        fields = (self.obs, self.act, self.ret, self.next_obs, self.discount)
        batch = [torch.from_numpy(f[idx]) for f in fields]
        return idx, batch, torch.from_numpy(weights.astype(np.float32))

    def set_priorities(self, idx, errors):
        self.priorities[idx] = (np.abs(errors) + 1e-5) ** self.alpha


class NStep:
    """Turns single steps into n-step transitions."""

    def __init__(self, n, gamma):
        self.n, self.gamma = n, gamma
        self.queue = deque()

    def push(self, obs, act, rew, next_obs, terminated, ended):
        self.queue.append((obs, act, rew))
        ready = []
        while self.queue and (len(self.queue) == self.n or ended):
            ret, g = 0.0, 1.0
            for _, _, r in self.queue:
                ret += g * r
                g *= self.gamma
            first = self.queue.popleft()
            ready.append((first[0], first[1], ret, next_obs, 0.0 if terminated else g))
        return ready


def learn(net, target, opt, buffer, beta):
    idx, (obs, act, ret, next_obs, discount), weights = buffer.sample(cfg.batch, beta)
    with torch.no_grad():
        best = net(next_obs).argmax(dim=1, keepdim=True)
        goal = ret + discount * target(next_obs).gather(1, best).squeeze(1)
    q = net(obs).gather(1, act.unsqueeze(1)).squeeze(1)
    err = goal - q
    loss = (weights * err.square()).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    buffer.set_priorities(idx, err.detach().numpy())


random.seed(cfg.seed)
np.random.seed(cfg.seed)
torch.manual_seed(cfg.seed)
env = gym.make(cfg.env)
n_obs, n_act = env.observation_space.shape[0], int(env.action_space.n)
net, target = DuelingNet(n_obs, n_act), DuelingNet(n_obs, n_act)
target.load_state_dict(net.state_dict())
opt = torch.optim.Adam(net.parameters(), lr=cfg.lr, fused=True)
buffer = PrioritizedBuffer(cfg.capacity, n_obs, cfg.alpha)
nstep = NStep(cfg.n_step, cfg.gamma)

updates = 0
score, scores = 0.0, deque(maxlen=20)
obs, _ = env.reset(seed=cfg.seed)
mark = cfg.frames // 5
for frame in range(cfg.frames):
    if frame == mark:
        t0 = time.perf_counter()
    eps = max(0.05, 1.0 - frame / 4000)
    if random.random() < eps:
        act = random.randrange(n_act)
    else:
        with torch.no_grad():
            act = int(net(torch.from_numpy(obs).unsqueeze(0)).argmax())
    next_obs, rew, terminated, truncated, _ = env.step(act)
    score += rew
    ended = terminated or truncated
    for transition in nstep.push(obs, act, rew, next_obs, terminated, ended):
        buffer.add(*transition)
    obs = next_obs
    if ended:
        scores.append(score)
        score = 0.0
        obs, _ = env.reset()
    if frame >= cfg.learn_start and frame % cfg.learn_every == 0:
        learn(net, target, opt, buffer, beta=min(1.0, 0.4 + 0.6 * frame / cfg.frames))
        updates += 1
    if frame % cfg.sync_every == 0:
        target.load_state_dict(net.state_dict())
    if frame % 4000 == 3999:
        print(f"frame {frame + 1}: mean score of the last episodes {np.mean(scores):.1f}")

rate = (cfg.frames - mark) / (time.perf_counter() - t0)
checksum = sum(w.double().abs().sum().item() for w in net.parameters())
print(json.dumps({"env_steps": cfg.frames, "updates": updates, "units_per_s": rate, "checksum": checksum}))
