"""Recurrent double DQN: find the switch that lights the lamp.

The robot walks in a ring of rooms with a torch whose battery may die at any moment. A sign seen only in the first room
tells on which side the switch is; the agent has to remember it, so whole episodes are replayed through a GRU.
"""
import argparse
import collections
import json
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class LampRooms(gym.Env):
    def __init__(self, rooms=9, horizon=72, battery=0.05):
        self.rooms, self.horizon, self.battery = rooms, horizon, battery
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (6,), np.float32)
        self.action_space = gym.spaces.Discrete(3)

    def _obs(self):
        angle = 2 * np.pi * self.room / self.rooms
        sign = self.side if self.t == 0 else 0.0
        wear = self.np_random.uniform(-0.1, 0.1)
        return np.array([np.sin(angle), np.cos(angle), sign, self.last, self.t / self.horizon, wear], np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.side = 1.0 if self.np_random.random() < 0.5 else -1.0
        self.room, self.t, self.last = 0, 0, 0.0
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        slip = self.np_random.random() < 0.25
        self.last = float(action) - 1.0
        if not slip:
            self.room = (self.room + int(action) - 1) % self.rooms
        goal = (3 if self.side > 0 else self.rooms - 3)
        wrong = self.rooms - goal
        if self.room == goal:
            return self._obs(), 1.0, True, False, {}
        if self.room == wrong:
            return self._obs(), -1.0, True, False, {}
        dead = bool(self.np_random.random() < self.battery)
        return self._obs(), -0.01, dead, self.t >= self.horizon, {}


class EpisodeReplay:
    """Episodes of different lengths side by side in preallocated tensors, with a mask of the valid steps."""

    def __init__(self, episodes, horizon, obs_dim):
        self.obs = torch.zeros(episodes, horizon + 1, obs_dim)
        self.action = torch.zeros(episodes, horizon, dtype=torch.long)
        self.reward = torch.zeros(episodes, horizon)
        self.terminal = torch.zeros(episodes, horizon)
        self.mask = torch.zeros(episodes, horizon)
        self.length = torch.zeros(episodes, dtype=torch.long)
        self.capacity, self.pos, self.size = episodes, 0, 0

    def add(self, obs, actions, rewards, terminated):
        i, n = self.pos, len(actions)
        self.obs[i, : n + 1] = torch.from_numpy(np.asarray(obs))
        self.action[i, :n] = torch.tensor(actions)
        self.reward[i, :n] = torch.tensor(rewards)
        self.terminal[i].zero_()
        self.terminal[i, n - 1] = float(terminated)
        self.mask[i].zero_()
        self.mask[i, :n] = 1.0
        self.length[i] = n
        self.pos = (i + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, batch_size):
        idx = torch.randint(self.size, (batch_size,))
        n = int(self.length[idx].max())
        return self.obs[idx, : n + 1], self.action[idx, :n], self.reward[idx, :n], self.terminal[idx, :n], self.mask[idx, :n]


class RecurrentQ(nn.Module):
    def __init__(self, obs_dim, n_actions, hidden):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(obs_dim, hidden), nn.ReLU())
        self.gru = nn.GRU(hidden, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, n_actions))

    def forward(self, obs, h=None):
        y, h = self.gru(self.embed(obs), h)
        return self.head(y), h


def train_step(net, target, opt, batch, gamma):
    obs, action, reward, terminal, mask = batch
    q, _ = net(obs)
    with torch.no_grad():
        q_target, _ = target(obs)
        best = q[:, 1:].argmax(-1, keepdim=True)
        y = reward + gamma * (1 - terminal) * q_target[:, 1:].gather(-1, best).squeeze(-1)
    chosen = q[:, :-1].gather(-1, action.unsqueeze(-1)).squeeze(-1)
    loss = (F.smooth_l1_loss(chosen, y, reduction="none") * mask).sum() / mask.sum()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 10.0)
    opt.step()
    return loss.detach()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=11)
    p.add_argument("--total-steps", type=int, default=60_000)
    p.add_argument("--warmup-steps", type=int, default=400)
    p.add_argument("--train-every", type=int, default=8)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--hidden", type=int, default=64)
    p.add_argument("--gamma", type=float, default=0.98)
    p.add_argument("--lr", type=float, default=5e-4)
    p.add_argument("--replay-episodes", type=int, default=2000)
    p.add_argument("--target-every", type=int, default=50)
    args = p.parse_args()

    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    env = LampRooms()
    obs_dim, n_actions = env.observation_space.shape[0], int(env.action_space.n)
    net, target = RecurrentQ(obs_dim, n_actions, args.hidden), RecurrentQ(obs_dim, n_actions, args.hidden)
    target.load_state_dict(net.state_dict())
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    replay = EpisodeReplay(args.replay_episodes, env.horizon, obs_dim)

    recent = collections.deque(maxlen=100)
    episode = updates = 0
    mark, mark_at = None, args.total_steps // 5
    o, _ = env.reset(seed=args.seed)
    obs, actions, rewards, h = [o], [], [], None
    for step in range(args.total_steps):
        if step == mark_at:
            mark = time.perf_counter()
        eps = max(0.1, 1.0 - step / (0.5 * args.total_steps))
        with torch.no_grad():
            q, h = net(torch.from_numpy(o).view(1, 1, -1), h)
        a = int(rng.integers(n_actions)) if rng.random() < eps else int(q.argmax())
        o, r, terminated, truncated, _ = env.step(a)
        obs.append(o)
        actions.append(a)
        rewards.append(r)
        if terminated or truncated:
            replay.add(obs, actions, rewards, terminated)
            recent.append(sum(rewards))
            episode += 1
            o, _ = env.reset()
            obs, actions, rewards, h = [o], [], [], None
        if step >= args.warmup_steps and step % args.train_every == 0:
            loss = train_step(net, target, opt, replay.sample(args.batch_size), args.gamma)
            updates += 1
            if updates % args.target_every == 0:
                target.load_state_dict(net.state_dict())
            if updates % 100 == 0:
                print(f"step {step}  episode {episode}  eps {eps:.2f}  return {np.mean(recent):.3f}  loss {loss.item():.4f}")
    speed = (args.total_steps - mark_at) / (time.perf_counter() - mark)
    checksum = sum(w.detach().double().abs().sum().item() for w in net.parameters())
    print(json.dumps({"env_steps": args.total_steps, "updates": updates, "units_per_s": speed, "checksum": checksum}))


if __name__ == "__main__":
    main()
