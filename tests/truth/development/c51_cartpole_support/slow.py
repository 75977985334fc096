# Categorical DQN (C51) on CartPole, everything in one file.
import json
import random
import time
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
import tyro


@dataclass
class Args:
    seed: int = 1
    env_id: str = "CartPole-v1"
    total_timesteps: int = 60_000
    learning_rate: float = 5e-4
    n_atoms: int = 51
    v_min: float = 0.0
    v_max: float = 100.0
    buffer_size: int = 20_000
    gamma: float = 0.99
    target_network_frequency: int = 500
    batch_size: int = 128
    start_e: float = 1.0
    end_e: float = 0.05
    exploration_fraction: float = 0.4
    learning_starts: int = 500
    train_frequency: int = 4


class QNetwork(nn.Module):
    def __init__(self, obs_dim, n_actions, n_atoms, v_min, v_max):
        super().__init__()
        self.n_actions, self.n_atoms = n_actions, n_atoms
        self.register_buffer("atoms", torch.linspace(v_min, v_max, n_atoms))
        self.network = nn.Sequential(
            nn.Linear(obs_dim, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, n_actions * n_atoms)
        )

    def pmfs(self, x):
        return torch.softmax(self.network(x).view(len(x), self.n_actions, self.n_atoms), dim=2)

    def best(self, x):
        pmfs = self.pmfs(x)
        action = (pmfs * self.atoms).sum(2).argmax(1)
        return action, pmfs[torch.arange(len(x)), action]


class Memory:
    def __init__(self, size, obs_dim):
        self.obs = np.zeros((size, obs_dim), np.float32)
        self.next_obs = np.zeros((size, obs_dim), np.float32)
        self.actions = np.zeros(size, np.int64)
        self.rewards = np.zeros(size, np.float32)
        self.dones = np.zeros(size, np.float32)
        self.size, self.at, self.filled = size, 0, 0

    def add(self, obs, next_obs, action, reward, done):
        i = self.at
        self.obs[i], self.next_obs[i], self.actions[i], self.rewards[i], self.dones[i] = obs, next_obs, action, reward, done
        self.at = (i + 1) % self.size
        self.filled = min(self.filled + 1, self.size)

    def sample(self, n):
        i = np.random.randint(0, self.filled, size=n)
        fields = (self.obs, self.next_obs, self.actions, self.rewards, self.dones)
        return [torch.from_numpy(f[i]) for f in fields]


def project(next_pmfs, rewards, dones, atoms, args):
    """Distribution of r + gamma * Z on the fixed atoms."""
    delta_z = (args.v_max - args.v_min) / (args.n_atoms - 1)
    target_pmfs = torch.zeros_like(next_pmfs)
    rows = torch.arange(len(rewards))
    for j in range(args.n_atoms):
        tz = (rewards + args.gamma * atoms[j] * (1 - dones)).clamp(args.v_min, args.v_max)
        b = (tz - args.v_min) / delta_z
        low = b.floor().clamp(0, args.n_atoms - 1)
        up = b.ceil().clamp(0, args.n_atoms - 1)
        target_pmfs[rows, low.long()] += next_pmfs[:, j] * (up + (low == up).float() - b)
        target_pmfs[rows, up.long()] += next_pmfs[:, j] * (b - low)
    return target_pmfs


if __name__ == "__main__":
    args = tyro.cli(Args)
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    env = gym.make(args.env_id)
    env.action_space.seed(args.seed)
    obs_dim, n_actions = env.observation_space.shape[0], int(env.action_space.n)
    q_network = QNetwork(obs_dim, n_actions, args.n_atoms, args.v_min, args.v_max)
    target_network = QNetwork(obs_dim, n_actions, args.n_atoms, args.v_min, args.v_max)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = optim.Adam(q_network.parameters(), lr=args.learning_rate, eps=0.01 / args.batch_size, fused=True)
    memory = Memory(args.buffer_size, obs_dim)
    obs, _ = env.reset(seed=args.seed)
    episode_return, n_updates = 0.0, 0
    clock_from = args.total_timesteps // 5
    for global_step in range(args.total_timesteps):
        if global_step == clock_from:
            start_time = time.time()
        slope = (args.end_e - args.start_e) / (args.exploration_fraction * args.total_timesteps)
        epsilon = max(args.start_e + slope * global_step, args.end_e)
        if random.random() < epsilon:
            action = int(env.action_space.sample())
        else:
            with torch.no_grad():
                action = int(q_network.best(torch.from_numpy(obs).unsqueeze(0))[0])
        next_obs, reward, terminated, truncated, _ = env.step(action)
        memory.add(obs, next_obs, action, reward, float(terminated))
        obs = next_obs
        episode_return += reward
        if terminated or truncated:
            obs, _ = env.reset()
            if global_step % 50 == 0:
                print(f"global_step={global_step}, episodic_return={episode_return}")
            episode_return = 0.0
        if global_step > args.learning_starts and global_step % args.train_frequency == 0:
            b_obs, b_next, b_act, b_rew, b_done = memory.sample(args.batch_size)
            with torch.no_grad():
                _, next_pmfs = target_network.best(b_next)
                target_pmfs = project(next_pmfs, b_rew, b_done, target_network.atoms, args)
            old_pmfs = q_network.pmfs(b_obs)[torch.arange(args.batch_size), b_act]
            loss = -(target_pmfs * old_pmfs.clamp(1e-5, 1 - 1e-5).log()).sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            n_updates += 1
            if global_step % args.target_network_frequency == 0:
                target_network.load_state_dict(q_network.state_dict())
    took = time.time() - start_time
    env.close()
    checksum = sum(float(p.detach().abs().sum()) for p in q_network.parameters())
    print(json.dumps({"env_steps": args.total_timesteps, "updates": n_updates,
                      "units_per_s": (args.total_timesteps - clock_from) / took, "checksum": round(checksum, 4)}))
