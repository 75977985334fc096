"""PPO in one file, the way many people write it: nothing in here knows about hotloop.

hotloop run examples/02_unmodified_ppo.py --total-timesteps 8192
"""

from __future__ import annotations

import argparse
import hashlib
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


class Agent(nn.Module):
    def __init__(self, observations: int, actions: int):
        super().__init__()
        self.critic = nn.Sequential(
            layer(observations, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0)
        )
        self.actor = nn.Sequential(
            layer(observations, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, actions, 0.01)
        )

    def forward(self, x: torch.Tensor, action: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        distribution = torch.distributions.Categorical(logits=self.actor(x))
        if action is None:
            action = distribution.sample()
        return action, distribution.log_prob(action), distribution.entropy(), self.critic(x)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-timesteps", type=int, default=32768)
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--num-steps", type=int, default=128)
    parser.add_argument("--update-epochs", type=int, default=4)
    parser.add_argument("--num-minibatches", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    torch.set_num_threads(1)
    envs = gym.vector.SyncVectorEnv(
        [lambda: gym.make("CartPole-v1") for _ in range(args.num_envs)],
        autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
    )
    agent = Agent(4, 2)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)

    batch = args.num_envs * args.num_steps
    obs = torch.zeros((args.num_steps, args.num_envs, 4))
    actions = torch.zeros((args.num_steps, args.num_envs), dtype=torch.long)
    logprobs, rewards, dones, values = (torch.zeros((args.num_steps, args.num_envs)) for _ in range(4))
    next_obs = torch.tensor(envs.reset(seed=args.seed)[0])
    next_done = torch.zeros(args.num_envs)

    began, cpu = time.perf_counter(), time.process_time()
    for _update in range(args.total_timesteps // batch):
        for step in range(args.num_steps):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                action, logprob, _, value = agent(next_obs)
            actions[step], logprobs[step], values[step] = action, logprob, value.flatten()
            observation, reward, terminated, truncated, _ = envs.step(action.numpy())
            rewards[step] = torch.tensor(reward)
            next_obs = torch.tensor(observation)
            next_done = torch.tensor(terminated | truncated, dtype=torch.float32)

        with torch.no_grad():
            next_value = agent.critic(next_obs).flatten()
            advantages, last = torch.zeros_like(rewards), torch.zeros(args.num_envs)
            for t in reversed(range(args.num_steps)):
                alive = 1.0 - (next_done if t == args.num_steps - 1 else dones[t + 1])
                following = next_value if t == args.num_steps - 1 else values[t + 1]
                delta = rewards[t] + 0.99 * following * alive - values[t]
                advantages[t] = last = delta + 0.99 * 0.95 * alive * last
            returns = advantages + values

        flat = (
            obs.reshape(-1, 4),
            actions.reshape(-1),
            logprobs.reshape(-1),
            advantages.reshape(-1),
            returns.reshape(-1),
        )
        order = np.arange(batch)
        for _epoch in range(args.update_epochs):
            np.random.shuffle(order)
            for rows in np.split(order, args.num_minibatches):
                b_obs, b_actions, b_logprobs, b_advantages, b_returns = (x[rows] for x in flat)
                _, logprob, entropy, value = agent(b_obs, b_actions)
                ratio = (logprob - b_logprobs).exp()
                b_advantages = (b_advantages - b_advantages.mean()) / (b_advantages.std() + 1e-8)
                clipped = torch.clamp(ratio, 0.8, 1.2)
                policy_loss = torch.max(-b_advantages * ratio, -b_advantages * clipped).mean()
                value_loss = 0.5 * (value.flatten() - b_returns).pow(2).mean()
                loss = policy_loss + 0.5 * value_loss - 0.01 * entropy.mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()

    print(f"train_seconds {time.perf_counter() - began:.3f} cpu {time.process_time() - cpu:.3f}")
    weights = b"".join(p.detach().numpy().tobytes() for p in agent.parameters())
    print("weights", hashlib.sha256(weights).hexdigest()[:16])
