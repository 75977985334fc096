# Recurrent PPO (GRU) on CartPole without velocities. Based on the CleanRL single-file layout.
import json
import random
import sys
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.categorical import Categorical

num_updates = int(sys.argv[1]) if len(sys.argv) > 1 else 120
seed = 1
num_envs = 16
num_steps = 128
chunk = 16
gamma = 0.99
gae_lambda = 0.95
num_minibatches = 4
update_epochs = 3
clip_coef = 0.2
ent_coef = 0.01
vf_coef = 0.5
max_grad_norm = 0.5
hidden_size = 64


class PositionOnly(gym.ObservationWrapper):
    """Keeps cart position and pole angle; the agent has to work out the velocities."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, obs):
        return obs[::2]


def make_env():
    env = gym.make("CartPole-v1")
    return PositionOnly(env)


def layer_init(layer, std=np.sqrt(2), bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(layer_init(nn.Linear(2, hidden_size)), nn.Tanh())
        self.gru = nn.GRUCell(hidden_size, hidden_size)
        self.actor = layer_init(nn.Linear(hidden_size, 2), std=0.01)
        self.critic = layer_init(nn.Linear(hidden_size, 1), std=1)

    def unroll(self, x, h, done):
        # x: (T, B, 2), done: (T, B), h: (B, H); the state is cleared where an episode ended
        x = self.embed(x)
        outputs = []
        for x_t, keep in zip(x, (1.0 - done).unsqueeze(-1)):
            h = self.gru(x_t, keep * h)
            outputs.append(h)
        return torch.stack(outputs), h

    def get_value(self, x, h, done):
        out, _ = self.unroll(x.unsqueeze(0), h, done.unsqueeze(0))
        return self.critic(out[0]).flatten()

    def get_action_and_value(self, x, h, done):
        out, h = self.unroll(x.unsqueeze(0), h, done.unsqueeze(0))
        dist = Categorical(logits=self.actor(out[0]))
        action = dist.sample()
        return action, dist.log_prob(action), self.critic(out[0]).flatten(), h


def compute_gae(rewards, dones, values, next_value, next_done):
    advantages = torch.zeros_like(rewards)
    last_gae = 0.0
    for t in reversed(range(num_steps)):
        if t == num_steps - 1:
            nonterminal = 1.0 - next_done
            bootstrap = next_value
        else:
            nonterminal = 1.0 - dones[t + 1]
            bootstrap = values[t + 1]
        delta = rewards[t] + gamma * bootstrap * nonterminal - values[t]
        last_gae = delta + gamma * gae_lambda * nonterminal * last_gae
        advantages[t] = last_gae
    returns = advantages + values
    return advantages, returns


random.seed(seed)
np.random.seed(seed)
torch.manual_seed(seed)

envs = gym.vector.SyncVectorEnv([make_env for _ in range(num_envs)])
agent = Agent()
optimizer = optim.Adam(agent.parameters(), lr=1e-3, eps=1e-5)

obs = torch.zeros((num_steps, num_envs, 2))
actions = torch.zeros((num_steps, num_envs), dtype=torch.long)
logprobs = torch.zeros((num_steps, num_envs))
rewards = torch.zeros((num_steps, num_envs))
dones = torch.zeros((num_steps, num_envs))
values = torch.zeros((num_steps, num_envs))
chunk_states = torch.zeros((num_steps // chunk, num_envs, hidden_size))

first_obs, _ = envs.reset(seed=seed)
next_obs = torch.from_numpy(first_obs)
next_done = torch.zeros(num_envs)
hidden = torch.zeros(num_envs, hidden_size)
grad_steps = 0
episodes = 0


def to_sequences(x):
    # (T, N, ...) -> (chunk, T / chunk * N, ...)
    x = x.view(num_steps // chunk, chunk, num_envs, *x.shape[2:])
    return x.transpose(0, 1).reshape(chunk, (num_steps // chunk) * num_envs, *x.shape[3:])


for update in range(num_updates):
    if update == num_updates // 5:
        t0 = time.perf_counter()

    with torch.no_grad():
        for step in range(num_steps):
            if step % chunk == 0:
                chunk_states[step // chunk] = hidden
            obs[step] = next_obs
            dones[step] = next_done
            action, logprob, value, hidden = agent.get_action_and_value(next_obs, hidden, next_done)
            actions[step] = action
            logprobs[step] = logprob
            values[step] = value
            o, r, terminated, truncated, _ = envs.step(action.numpy())
            done = np.logical_or(terminated, truncated)
            episodes += int(done.sum())
            rewards[step] = torch.from_numpy(r)
            next_obs = torch.from_numpy(o)
            next_done = torch.from_numpy(done.astype(np.float32))

        next_value = agent.get_value(next_obs, hidden, next_done)
        advantages, returns = compute_gae(rewards, dones, values, next_value, next_done)

    s_obs, s_dones, s_actions = to_sequences(obs), to_sequences(dones), to_sequences(actions)
    s_logprobs, s_adv, s_ret = to_sequences(logprobs), to_sequences(advantages), to_sequences(returns)
    s_states = chunk_states.reshape(-1, hidden_size)
    n_seq = s_states.shape[0]

    for epoch in range(update_epochs):
        for idx in torch.randperm(n_seq).chunk(num_minibatches):
            out, _ = agent.unroll(s_obs[:, idx], s_states[idx], s_dones[:, idx])
            dist = Categorical(logits=agent.actor(out))
            ratio = (dist.log_prob(s_actions[:, idx]) - s_logprobs[:, idx]).exp()
            adv = s_adv[:, idx]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            pg_loss = torch.max(-adv * ratio, -adv * ratio.clamp(1 - clip_coef, 1 + clip_coef)).mean()
            v_loss = 0.5 * (agent.critic(out).squeeze(-1) - s_ret[:, idx]).pow(2).mean()
            loss = pg_loss - ent_coef * dist.entropy().mean() + vf_coef * v_loss

            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), max_grad_norm)
            optimizer.step()
            grad_steps += 1

    if update % 10 == 0:
        print(f"update {update} episodes {episodes} loss {loss.item():.3f}")

elapsed = time.perf_counter() - t0
envs.close()
print(json.dumps({
    "env_steps": num_updates * num_steps * num_envs,
    "updates": grad_steps,
    "units_per_s": (num_updates - num_updates // 5) / elapsed,
    "checksum": round(sum(p.detach().double().sum().item() for p in agent.parameters()), 6),
}))
