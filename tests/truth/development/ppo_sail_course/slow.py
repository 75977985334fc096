# PPO on a small sailing task, single file (after CleanRL's ppo.py)
import argparse
import json
import math
import random
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.categorical import Categorical


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("num_updates", type=int, nargs="?", default=220)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--num-steps", type=int, default=128)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--gae-lambda", type=float, default=0.95)
    parser.add_argument("--num-minibatches", type=int, default=4)
    parser.add_argument("--update-epochs", type=int, default=4)
    parser.add_argument("--clip-coef", type=float, default=0.2)
    parser.add_argument("--ent-coef", type=float, default=0.01)
    parser.add_argument("--vf-coef", type=float, default=0.5)
    parser.add_argument("--max-grad-norm", type=float, default=0.5)
    return parser.parse_args()


class SailCourse(gym.Env):
    """Steer a dinghy to a buoy; the boat is slow close to the wind."""

    def __init__(self):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (7,), np.float32)
        self.action_space = gym.spaces.Discrete(3)

    def _obs(self):
        dx, dy = self.bx - self.x, self.by - self.y
        rel = self.heading - self.wind
        return np.array(
            [dx / 10, dy / 10, math.cos(self.heading), math.sin(self.heading),
             math.cos(rel), math.sin(rel), self.speed], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        u = self.np_random.random(4)
        self.x = self.y = 0.0
        self.bx, self.by = 20 * u[0] - 10, 20 * u[1] - 10
        self.heading = 2 * math.pi * u[2]
        self.wind = 2 * math.pi * u[3]
        self.speed = 0.0
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        self.heading += 0.2 * (int(action) - 1)
        self.wind += 0.02 * math.sin(0.1 * self.t)
        drive = 0.5 * (1 - math.cos(self.heading - self.wind))
        self.speed += 0.3 * (drive - self.speed)
        before = math.hypot(self.bx - self.x, self.by - self.y)
        self.x += 0.4 * self.speed * math.cos(self.heading)
        self.y += 0.4 * self.speed * math.sin(self.heading)
        after = math.hypot(self.bx - self.x, self.by - self.y)
        self.t += 1
        done = after < 0.7
        reward = before - after + (5.0 if done else 0.0)
        return self._obs(), reward, done, self.t >= 150, {}


def layer_init(layer, std=np.sqrt(2), bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    def __init__(self, envs):
        super().__init__()
        n_obs = int(np.prod(envs.single_observation_space.shape))
        self.critic = nn.Sequential(
            layer_init(nn.Linear(n_obs, 64)), nn.Tanh(),
            layer_init(nn.Linear(64, 64)), nn.Tanh(),
            layer_init(nn.Linear(64, 1), std=1.0))
        self.actor = nn.Sequential(
            layer_init(nn.Linear(n_obs, 64)), nn.Tanh(),
            layer_init(nn.Linear(64, 64)), nn.Tanh(),
            layer_init(nn.Linear(64, envs.single_action_space.n), std=0.01))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x), validate_args=False)
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


def compute_gae(rewards, values, dones, next_value, next_done, gamma, lam):
    num_steps, num_envs = rewards.shape
    advantages = torch.zeros_like(rewards)
    for e in range(num_envs):
        lastgaelam = 0.0
        for t in reversed(range(num_steps)):
            if t == num_steps - 1:
                nextnonterminal = 1.0 - next_done[e]
                nextvalue = next_value[e]
            else:
                nextnonterminal = 1.0 - dones[t + 1, e]
                nextvalue = values[t + 1, e]
            delta = rewards[t, e] + gamma * nextvalue * nextnonterminal - values[t, e]
            lastgaelam = delta + gamma * lam * nextnonterminal * lastgaelam
            advantages[t, e] = lastgaelam
    return advantages


if __name__ == "__main__":
    args = parse_args()
    batch_size = args.num_envs * args.num_steps
    minibatch_size = batch_size // args.num_minibatches

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)

    envs = gym.vector.SyncVectorEnv([SailCourse for _ in range(args.num_envs)])
    agent = Agent(envs)
    optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    obs = torch.zeros((args.num_steps, args.num_envs) + envs.single_observation_space.shape)
    actions = torch.zeros((args.num_steps, args.num_envs), dtype=torch.int64)
    logprobs = torch.zeros((args.num_steps, args.num_envs))
    rewards = torch.zeros((args.num_steps, args.num_envs))
    dones = torch.zeros((args.num_steps, args.num_envs))
    values = torch.zeros((args.num_steps, args.num_envs))

    next_obs, _ = envs.reset(seed=args.seed)
    next_obs = torch.as_tensor(next_obs)
    next_done = torch.zeros(args.num_envs)
    global_step = 0
    n_grad = 0
    warm = args.num_updates // 5
    stamp = time.perf_counter()

    for update in range(args.num_updates):
        if update == warm:
            stamp = time.perf_counter()

        for step in range(args.num_steps):
            global_step += args.num_envs
            obs[step] = next_obs
            dones[step] = next_done
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
            values[step] = value.flatten()
            actions[step] = action
            logprobs[step] = logprob
            next_obs, reward, term, trunc, _ = envs.step(action.numpy())
            rewards[step] = torch.as_tensor(reward, dtype=torch.float32)
            next_obs = torch.as_tensor(next_obs)
            next_done = torch.as_tensor(term | trunc, dtype=torch.float32)

        with torch.no_grad():
            next_value = agent.get_value(next_obs).flatten()
            advantages = compute_gae(rewards, values, dones, next_value, next_done,
                                     args.gamma, args.gae_lambda)
            returns = advantages + values

        b_obs = obs.reshape((-1,) + envs.single_observation_space.shape)
        b_logprobs = logprobs.reshape(-1)
        b_actions = actions.reshape(-1)
        b_advantages = advantages.reshape(-1)
        b_returns = returns.reshape(-1)

        for epoch in range(args.update_epochs):
            for mb in torch.randperm(batch_size).split(minibatch_size):
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb], b_actions[mb])
                ratio = (newlogprob - b_logprobs[mb]).exp()
                adv = b_advantages[mb]
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                pg_loss = torch.max(
                    -adv * ratio,
                    -adv * torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)).mean()
                v_loss = 0.5 * (newvalue.flatten() - b_returns[mb]).pow(2).mean()
                loss = pg_loss - args.ent_coef * entropy.mean() + args.vf_coef * v_loss

                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
                n_grad += 1

        if update % 20 == 0:
            print(f"update={update} step={global_step} mean_reward={rewards.mean().item():.3f} "
                  f"v_loss={v_loss.item():.3f}")

    elapsed = time.perf_counter() - stamp
    envs.close()
    checksum = sum(p.detach().double().sum().item() for p in agent.parameters())
    print(json.dumps({
        "env_steps": global_step,
        "updates": n_grad,
        "units_per_s": (args.num_updates - warm) * batch_size / elapsed,
        "checksum": round(checksum, 6),
    }))
