import json
import sys
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

# Soft actor-critic, object oriented. Usage: python slow.py [total_steps]

LOG_STD_MIN, LOG_STD_MAX = -5, 2


class ReplayMemory:
    """Ring of transitions."""

    def __init__(self, capacity, obs_dim, act_dim):
        self.states = np.zeros((capacity, obs_dim))
        self.actions = np.zeros((capacity, act_dim))
        self.rewards = np.zeros((capacity, 1))
        self.next_states = np.zeros((capacity, obs_dim))
        self.masks = np.zeros((capacity, 1))
        self.capacity = capacity
        self.pos = 0
        self.full = False

    def push(self, state, action, reward, next_state, mask):
        self.states[self.pos] = state
        self.actions[self.pos] = action
        self.rewards[self.pos] = reward
        self.next_states[self.pos] = next_state
        self.masks[self.pos] = mask
        self.pos += 1
        if self.pos == self.capacity:
            self.pos, self.full = 0, True

    def __len__(self):
        return self.capacity if self.full else self.pos

    def sample(self, batch_size):
        idx = np.random.randint(0, len(self), size=batch_size)
        arrays = (self.states, self.actions, self.rewards, self.next_states, self.masks)
        return [torch.from_numpy(a[idx]) for a in arrays]


class Actor(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden, scale):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(obs_dim, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
        )
        self.head = nn.Linear(hidden, 2 * act_dim)
        self.scale = scale

    def forward(self, state):
        mu, log_std = self.head(self.body(state)).chunk(2, dim=-1)
        log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        noise = torch.randn_like(mu)
        raw = mu + noise * log_std.exp()
        # log density of the squashed Gaussian
        logp = (-0.5 * noise.square() - log_std - 0.9189385332).sum(-1, keepdim=True)
        logp = logp - (2 * (0.6931471806 - raw - F.softplus(-2 * raw))).sum(-1, keepdim=True)
        return torch.tanh(raw) * self.scale, logp


class Critic(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden):
        super().__init__()
        self.q1 = self._net(obs_dim + act_dim, hidden)
        self.q2 = self._net(obs_dim + act_dim, hidden)

    @staticmethod
    def _net(inputs, hidden):
        return nn.Sequential(
            nn.Linear(inputs, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, 1),
        )

    def forward(self, state, action):
        x = torch.cat([state, action], dim=-1)
        return self.q1(x), self.q2(x)


class SACAgent:
    def __init__(self, obs_dim, act_dim, scale, hidden=256, gamma=0.99, tau=0.005, alpha=0.1, lr=3e-4):
        # everything in double, or torch complains: "expected m1 and m2 to have the same dtype"
        self.actor = Actor(obs_dim, act_dim, hidden, scale).double()
        self.critic = Critic(obs_dim, act_dim, hidden).double()
        self.target = Critic(obs_dim, act_dim, hidden).double()
        self.target.load_state_dict(self.critic.state_dict())
        self.target.requires_grad_(False)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=lr, fused=True)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=lr, fused=True)
        self.gamma, self.tau, self.alpha = gamma, tau, alpha

    @torch.no_grad()
    def act(self, state):
        action, _ = self.actor(torch.as_tensor(state, dtype=torch.float64).unsqueeze(0))
        return action[0].numpy()

    def update(self, memory, batch_size):
        state, action, reward, next_state, mask = memory.sample(batch_size)

        with torch.no_grad():
            next_action, next_logp = self.actor(next_state)
            next_q = torch.min(*self.target(next_state, next_action)) - self.alpha * next_logp
            backup = reward + self.gamma * mask * next_q
        q1, q2 = self.critic(state, action)
        critic_loss = F.mse_loss(q1, backup) + F.mse_loss(q2, backup)
        self.critic_opt.zero_grad()
        critic_loss.backward()
        self.critic_opt.step()

        self.critic.requires_grad_(False)
        new_action, logp = self.actor(state)
        actor_loss = (self.alpha * logp - torch.min(*self.critic(state, new_action))).mean()
        self.actor_opt.zero_grad()
        actor_loss.backward()
        self.actor_opt.step()
        self.critic.requires_grad_(True)

        with torch.no_grad():
            for p, tp in zip(self.critic.parameters(), self.target.parameters(), strict=True):
                tp.lerp_(p, self.tau)


class Trainer:
    def __init__(self, total_steps, seed=3):
        np.random.seed(seed)
        torch.manual_seed(seed)
        self.env = gym.make("Pendulum-v1")
        self.env.action_space.seed(seed)
        self.seed = seed
        self.total_steps = total_steps
        self.start_steps = 200
        self.batch_size = 256
        obs_dim = self.env.observation_space.shape[0]
        act_dim = self.env.action_space.shape[0]
        self.memory = ReplayMemory(50_000, obs_dim, act_dim)
        self.agent = SACAgent(obs_dim, act_dim, scale=float(self.env.action_space.high[0]))

    def collect_random(self):
        state, _ = self.env.reset(seed=self.seed)
        for _ in range(self.start_steps):
            action = self.env.action_space.sample()
            next_state, reward, term, trunc, _ = self.env.step(action)
            self.memory.push(state, action, reward, next_state, 1.0 - term)
            state = self.env.reset()[0] if term or trunc else next_state

    def run(self):
        self.collect_random()
        state, _ = self.env.reset()
        episode_return, returns = 0.0, []
        mark = self.total_steps // 5
        for step in range(self.total_steps):
            if step == mark:
                t0 = time.perf_counter()
            action = self.agent.act(state)
            next_state, reward, term, trunc, _ = self.env.step(action)
            self.memory.push(state, action, reward, next_state, 1.0 - term)
            self.agent.update(self.memory, self.batch_size)
            episode_return += reward
            state = next_state
            if term or trunc:
                returns.append(episode_return)
                print(f"step {step + 1}  return {episode_return:.1f}")
                episode_return = 0.0
                state, _ = self.env.reset()
        return (self.total_steps - mark) / (time.perf_counter() - t0)


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 800
    trainer = Trainer(steps)
    rate = trainer.run()
    checksum = sum(p.double().abs().sum().item() for p in trainer.agent.actor.parameters())
    print(
        json.dumps(
            {
                "env_steps": trainer.start_steps + steps,
                "updates": None,
                "units_per_s": rate,
                "checksum": checksum,
            }
        )
    )
