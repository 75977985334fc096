# TD3 + prioritized experience replay + n-step returns on Pendulum-v1
# References: Fujimoto et al. 2018, Schaul et al. 2016
import copy
import json
import sys
import time
from collections import deque

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Actor(nn.Module):
    def __init__(self, state_dim, action_dim, max_action):
        super(Actor, self).__init__()
        self.l1 = nn.Linear(state_dim, 64)
        self.l2 = nn.Linear(64, 64)
        self.l3 = nn.Linear(64, action_dim)
        self.max_action = max_action

    def forward(self, state):
        a = F.relu(self.l1(state))
        a = F.relu(self.l2(a))
        return self.max_action * torch.tanh(self.l3(a))


class Critic(nn.Module):
    def __init__(self, state_dim, action_dim):
        super(Critic, self).__init__()
        self.q1 = nn.Sequential(nn.Linear(state_dim + action_dim, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        self.q2 = nn.Sequential(nn.Linear(state_dim + action_dim, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, state, action):
        sa = torch.cat([state, action], 1)
        return self.q1(sa), self.q2(sa)

    def Q1(self, state, action):
        return self.q1(torch.cat([state, action], 1))


class SumTree(object):
    """Binary tree of sums in one array; the capacity has to be a power of two."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.depth = capacity.bit_length() - 1
        self.tree = np.zeros(2 * capacity)

    def set_one(self, i, value):
        i += self.capacity
        change = value - self.tree[i]
        while i >= 1:
            self.tree[i] += change
            i //= 2

    def set(self, ind, values):
        node = ind + self.capacity
        self.tree[node] = values
        for _ in range(self.depth):
            node = node // 2
            self.tree[node] = self.tree[2 * node] + self.tree[2 * node + 1]

    def total(self):
        return self.tree[1]

    def find(self, mass):
        node = np.ones(len(mass), dtype=np.int64)
        for _ in range(self.depth):
            node = 2 * node
            left = self.tree[node]
            right = mass >= left
            mass = mass - left * right
            node += right
        return node - self.capacity


class PrioritizedReplay(object):
    def __init__(self, state_dim, action_dim, capacity, alpha=0.6):
        self.capacity = capacity
        self.alpha = alpha
        self.ptr = 0
        self.size = 0
        self.state = np.zeros((capacity, state_dim), dtype=np.float32)
        self.action = np.zeros((capacity, action_dim), dtype=np.float32)
        self.reward = np.zeros((capacity, 1), dtype=np.float32)
        self.next_state = np.zeros((capacity, state_dim), dtype=np.float32)
        self.discount = np.zeros((capacity, 1), dtype=np.float32)
        self.tree = SumTree(capacity)
        self.max_priority = 1.0

    def add(self, state, action, reward, next_state, discount):
        self.state[self.ptr] = state
        self.action[self.ptr] = action
        self.reward[self.ptr] = reward
        self.next_state[self.ptr] = next_state
        self.discount[self.ptr] = discount
        self.tree.set_one(self.ptr, self.max_priority ** self.alpha)
        self.ptr = (self.ptr + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, batch_size, beta):
        total = self.tree.total()
        ind = np.minimum(self.tree.find(np.random.random(batch_size) * total), self.size - 1)
        probs = self.tree.tree[ind + self.capacity] / total
        weights = (self.size * probs) ** (-beta)
        weights = (weights / weights.max()).astype(np.float32)
        arrays = (self.state[ind], self.action[ind], self.reward[ind], self.next_state[ind], self.discount[ind])
        return ind, torch.from_numpy(weights).unsqueeze(1), [torch.from_numpy(x) for x in arrays]

    def update_priorities(self, ind, priorities):
        self.tree.set(ind, priorities.astype(np.float64) ** self.alpha)
        self.max_priority = max(self.max_priority, float(priorities.max()))


class TD3(object):
    def __init__(self, state_dim, action_dim, max_action, tau=0.005, policy_noise=0.2, noise_clip=0.5, policy_freq=2):
        self.actor = Actor(state_dim, action_dim, max_action)
        self.actor_target = copy.deepcopy(self.actor)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.critic = Critic(state_dim, action_dim)
        self.critic_target = copy.deepcopy(self.critic)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=3e-4)
        self.max_action = max_action
        self.tau = tau
        self.policy_noise = policy_noise * max_action
        self.noise_clip = noise_clip * max_action
        self.policy_freq = policy_freq
        self.total_it = 0

    def select_action(self, state):
        with torch.no_grad():
            return self.actor(torch.from_numpy(state)).numpy()

    def train(self, replay, batch_size, beta):
        self.total_it += 1
        ind, weights, (state, action, reward, next_state, discount) = replay.sample(batch_size, beta)
        with torch.no_grad():
            noise = (torch.randn_like(action) * self.policy_noise).clamp(-self.noise_clip, self.noise_clip)
            next_action = (self.actor_target(next_state) + noise).clamp(-self.max_action, self.max_action)
            target_Q1, target_Q2 = self.critic_target(next_state, next_action)
            target_Q = reward + discount * torch.min(target_Q1, target_Q2)

        current_Q1, current_Q2 = self.critic(state, action)
        td1, td2 = target_Q - current_Q1, target_Q - current_Q2
        critic_loss = (weights * (td1.pow(2) + td2.pow(2))).mean()
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        replay.update_priorities(ind, td1.detach().abs().squeeze(1).numpy() + 1e-3)

        if self.total_it % self.policy_freq == 0:
            actor_loss = -self.critic.Q1(state, self.actor(state)).mean()
            self.actor_optimizer.zero_grad()
            actor_loss.backward()
            self.actor_optimizer.step()
            with torch.no_grad():
                for net, target in ((self.critic, self.critic_target), (self.actor, self.actor_target)):
                    torch._foreach_lerp_(list(target.parameters()), list(net.parameters()), self.tau)


class NStep(object):
    """Turns single transitions into n-step ones. Pendulum has no terminal states, only time limits."""

    def __init__(self, n, gamma):
        self.n, self.gamma = n, gamma
        self.window = deque(maxlen=n)

    def push(self, state, action, reward, next_state, replay):
        self.window.append((state, action, reward))
        if len(self.window) == self.n:
            total = 0.0
            for _, _, r in reversed(self.window):
                total = r + self.gamma * total
            s, a, _ = self.window[0]
            replay.add(s, a, total, next_state, self.gamma ** self.n)


if __name__ == "__main__":
    max_timesteps = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    start_timesteps = 120000
    batch_size = 128
    expl_noise = 0.1
    env = gym.make("Pendulum-v1")
    torch.manual_seed(0)
    np.random.seed(0)

    max_action = float(env.action_space.high[0])
    policy = TD3(3, 1, max_action)
    replay = PrioritizedReplay(3, 1, capacity=131072)
    nstep = NStep(3, 0.98)

    state, _ = env.reset(seed=0)
    episode_reward, returns = 0.0, []
    for t in range(start_timesteps + max_timesteps):
        if t == start_timesteps + max_timesteps // 5:
            t0 = time.perf_counter()
        if t < start_timesteps:
            action = np.random.uniform(-max_action, max_action, size=1).astype(np.float32)
        else:
            noise = np.random.normal(0, max_action * expl_noise, size=1).astype(np.float32)
            action = (policy.select_action(state) + noise).clip(-max_action, max_action)
        next_state, reward, terminated, truncated, _ = env.step(action)
        nstep.push(state, action, reward / 10.0, next_state, replay)
        state = next_state
        episode_reward += reward
        if t >= start_timesteps:
            policy.train(replay, batch_size, beta=min(1.0, 0.4 + 0.6 * (t - start_timesteps) / max_timesteps))
        if terminated or truncated:
            returns.append(episode_reward)
            state, _ = env.reset()
            nstep.window.clear()
            episode_reward = 0.0

    elapsed = time.perf_counter() - t0
    print(f"last 10 returns: {np.mean(returns[-10:]):.1f}")
    params = list(policy.actor.parameters()) + list(policy.critic.parameters())
    print(json.dumps({
        "env_steps": start_timesteps + max_timesteps,
        "updates": policy.total_it,
        "units_per_s": (max_timesteps - max_timesteps // 5) / elapsed,
        "checksum": round(sum(p.detach().double().sum().item() for p in params), 6),
    }))
