"""TD3 on Pendulum (Fujimoto et al. 2018), one file."""

import argparse
import copy
import json
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Actor(nn.Module):
    def __init__(self, state_dim, action_dim, max_action):
        super().__init__()
        self.l1 = nn.Linear(state_dim, 256)
        self.l2 = nn.Linear(256, 256)
        self.l3 = nn.Linear(256, action_dim)
        self.max_action = max_action

    def forward(self, state):
        a = F.relu(self.l1(state))
        a = F.relu(self.l2(a))
        return self.max_action * torch.tanh(self.l3(a))


class Critic(nn.Module):
    def __init__(self, state_dim, action_dim):
        super().__init__()
        self.l1 = nn.Linear(state_dim + action_dim, 256)
        self.l2 = nn.Linear(256, 256)
        self.l3 = nn.Linear(256, 1)
        self.l4 = nn.Linear(state_dim + action_dim, 256)
        self.l5 = nn.Linear(256, 256)
        self.l6 = nn.Linear(256, 1)

    def forward(self, state, action):
        sa = torch.cat([state, action], 1)
        q1 = self.l3(F.relu(self.l2(F.relu(self.l1(sa)))))
        q2 = self.l6(F.relu(self.l5(F.relu(self.l4(sa)))))
        return q1, q2

    def Q1(self, state, action):
        sa = torch.cat([state, action], 1)
        return self.l3(F.relu(self.l2(F.relu(self.l1(sa)))))


class ReplayBuffer:
    def __init__(self, state_dim, action_dim, max_size=int(1e6)):
        self.max_size = max_size
        self.ptr = 0
        self.size = 0
        self.state = np.zeros((max_size, state_dim), dtype=np.float32)
        self.action = np.zeros((max_size, action_dim), dtype=np.float32)
        self.next_state = np.zeros((max_size, state_dim), dtype=np.float32)
        self.reward = np.zeros((max_size, 1), dtype=np.float32)
        self.not_done = np.zeros((max_size, 1), dtype=np.float32)

    def add(self, state, action, next_state, reward, done):
        self.state[self.ptr] = state
        self.action[self.ptr] = action
        self.next_state[self.ptr] = next_state
        self.reward[self.ptr] = reward
        self.not_done[self.ptr] = 1.0 - done
        self.ptr = (self.ptr + 1) % self.max_size
        self.size = min(self.size + 1, self.max_size)

    def sample(self, batch_size):
        ind = np.random.randint(0, self.size, size=batch_size)
        return (
            torch.from_numpy(self.state[ind]),
            torch.from_numpy(self.action[ind]),
            torch.from_numpy(self.next_state[ind]),
            torch.from_numpy(self.reward[ind]),
            torch.from_numpy(self.not_done[ind]),
        )


class TD3:
    def __init__(self, state_dim, action_dim, max_action, gamma=0.99, tau=0.005):
        self.actor = Actor(state_dim, action_dim, max_action)
        self.actor_target = copy.deepcopy(self.actor)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.critic = Critic(state_dim, action_dim)
        self.critic_target = copy.deepcopy(self.critic)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=3e-4)
        self.max_action = max_action
        self.gamma = gamma
        self.tau = tau
        self.policy_noise = 0.2 * max_action
        self.noise_clip = 0.5 * max_action
        self.policy_freq = 2
        self.total_it = 0

    @torch.no_grad()
    def select_action(self, state):
        return self.actor(torch.from_numpy(state.reshape(1, -1))).numpy().flatten()

    def train(self, replay_buffer, batch_size=100):
        self.total_it += 1
        state, action, next_state, reward, not_done = replay_buffer.sample(batch_size)
        with torch.no_grad():
            noise = (torch.randn_like(action) * self.policy_noise).clamp(-self.noise_clip, self.noise_clip)
            next_action = (self.actor_target(next_state) + noise).clamp(-self.max_action, self.max_action)
            target_Q1, target_Q2 = self.critic_target(next_state, next_action)
            target_Q = reward + not_done * self.gamma * torch.min(target_Q1, target_Q2)
        current_Q1, current_Q2 = self.critic(state, action)
        critic_loss = F.mse_loss(current_Q1, target_Q) + F.mse_loss(current_Q2, target_Q)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()

        if self.total_it % self.policy_freq == 0:
            actor_loss = -self.critic.Q1(state, self.actor(state)).mean()
            self.actor_optimizer.zero_grad()
            actor_loss.backward()
            self.actor_optimizer.step()
            with torch.no_grad():
                for net, target in ((self.critic, self.critic_target), (self.actor, self.actor_target)):
                    torch._foreach_lerp_(list(target.parameters()), list(net.parameters()), self.tau)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--start_timesteps", default=100_000, type=int)
    parser.add_argument("--max_timesteps", default=1800, type=int, help="steps after the random start")
    parser.add_argument("--expl_noise", default=0.1, type=float)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    env = gym.make("Pendulum-v1")
    env.action_space.seed(args.seed)
    max_action = float(env.action_space.high[0])
    agent = TD3(3, 1, max_action)
    replay_buffer = ReplayBuffer(3, 1, max_size=200_000)

    state, _ = env.reset(seed=args.seed)
    for _ in range(args.start_timesteps):
        action = env.action_space.sample()
        next_state, reward, terminated, truncated, _ = env.step(action)
        replay_buffer.add(state, action, next_state, reward, terminated)
        state = env.reset()[0] if terminated or truncated else next_state

    episode_reward = 0.0
    begin = time.time()
    begin_t = 0
    for t in range(args.max_timesteps):
        if t == args.max_timesteps // 5:
            begin, begin_t = time.time(), t
        action = agent.select_action(state) + np.random.normal(0, max_action * args.expl_noise, size=1)
        action = action.clip(-max_action, max_action).astype(np.float32)
        next_state, reward, terminated, truncated, _ = env.step(action)
        replay_buffer.add(state, action, next_state, reward, terminated)
        state = next_state
        episode_reward += float(reward)
        agent.train(replay_buffer)
        if terminated or truncated:
            print(f"Total T: {t + 1} Reward: {episode_reward:.3f}")
            state, _ = env.reset()
            episode_reward = 0.0

    rate = (args.max_timesteps - begin_t) / (time.time() - begin)
    total = sum(p.double().sum().item() for net in (agent.actor, agent.critic) for p in net.parameters())
    print(
        json.dumps(
            {
                "env_steps": args.start_timesteps + args.max_timesteps,
                "updates": args.max_timesteps,
                "units_per_s": rate,
                "checksum": total,
            }
        )
    )
