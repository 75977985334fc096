"""PPO for Pendulum swing-up in a single file, with a KL stopping criterion."""

import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Distribution, Normal

Distribution.set_default_validate_args(False)
torch.set_num_threads(1)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--num-steps", type=int, default=512)
    parser.add_argument("--minibatch-size", type=int, default=128)
    parser.add_argument("--update-epochs", type=int, default=6)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--gamma", type=float, default=0.95)
    parser.add_argument("--gae-lambda", type=float, default=0.95)
    parser.add_argument("--clip-coef", type=float, default=0.2)
    parser.add_argument("--vf-coef", type=float, default=0.5)
    parser.add_argument("--max-grad-norm", type=float, default=0.5)
    parser.add_argument("--target-kl", type=float, default=1.0)
    return parser.parse_args()


def layer_init(layer, std=np.sqrt(2), bias=0.0):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias)
    return layer


class Agent(nn.Module):
    def __init__(self, obs_dim, act_dim):
        super().__init__()
        self.critic = nn.Sequential(
            layer_init(nn.Linear(obs_dim, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 1), std=1.0),
        )
        self.actor_mean = nn.Sequential(
            layer_init(nn.Linear(obs_dim, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, act_dim), std=0.01),
        )
        self.actor_logstd = nn.Parameter(torch.zeros(1, act_dim))

    def get_value(self, x):
        return self.critic(x).squeeze(-1)

    def policy(self, x):
        mean = self.actor_mean(x)
        return Normal(mean, self.actor_logstd.exp().expand_as(mean))

    def get_action_and_value(self, x, action=None):
        dist = self.policy(x)
        if action is None:
            action = dist.sample()
        return action, dist.log_prob(action).sum(-1), self.get_value(x)


def make_env():
    return gym.make("Pendulum-v1")


def rollout(envs, agent, storage, obs, args):
    with torch.no_grad():
        for t in range(args.num_steps):
            storage["obs"][t] = obs
            action, logprob, value = agent.get_action_and_value(obs)
            storage["actions"][t] = action
            storage["logprobs"][t] = logprob
            storage["values"][t] = value
            next_obs, reward, terminated, truncated, _ = envs.step(action.clamp(-2.0, 2.0).numpy())
            storage["rewards"][t] = torch.from_numpy(reward * 0.1)
            storage["dones"][t] = torch.from_numpy(terminated | truncated)
            obs = torch.from_numpy(next_obs)
        next_value = agent.get_value(obs)
    return obs, next_value


def compute_gae(storage, next_value, args):
    advantages = torch.zeros_like(storage["rewards"])
    last = torch.zeros(args.num_envs)
    alive = 1.0 - storage["dones"]
    for t in reversed(range(args.num_steps)):
        following = next_value if t == args.num_steps - 1 else storage["values"][t + 1]
        delta = storage["rewards"][t] + args.gamma * following * alive[t] - storage["values"][t]
        last = delta + args.gamma * args.gae_lambda * alive[t] * last
        advantages[t] = last
    return advantages, advantages + storage["values"]


def update(agent, optimizer, batch, args, rng):
    """Several epochs over the rollout; stops early when the policy has moved too far."""
    b_obs, b_actions, b_logprobs, b_advantages, b_returns = batch
    size = b_obs.shape[0]
    updates = 0
    approx_kl = explained = 0.0
    for epoch in range(args.update_epochs):
        order = torch.from_numpy(rng.permutation(size))
        for start in range(0, size, args.minibatch_size):
            mb = order[start : start + args.minibatch_size]
            _, logprob, value = agent.get_action_and_value(b_obs[mb], b_actions[mb])
            ratio = (logprob - b_logprobs[mb]).exp()
            adv = b_advantages[mb]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            pg_loss = torch.max(
                -adv * ratio, -adv * ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
            ).mean()
            v_loss = 0.5 * (value - b_returns[mb]).square().mean()
            loss = pg_loss + args.vf_coef * v_loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()
            updates += 1

            # how far are we from the policy that collected the data, how good is the critic?
            with torch.no_grad():
                _, new_logprobs, new_values = agent.get_action_and_value(b_obs, b_actions)
                log_ratio = new_logprobs - b_logprobs
                approx_kl = (log_ratio.exp() - 1 - log_ratio).mean().item()
                explained = 1.0 - ((b_returns - new_values).var() / b_returns.var()).item()
        if approx_kl > args.target_kl:
            break
    return updates, approx_kl, explained


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    envs = gym.vector.SyncVectorEnv([make_env for _ in range(args.num_envs)])
    obs_dim = envs.single_observation_space.shape[0]
    act_dim = envs.single_action_space.shape[0]
    agent = Agent(obs_dim, act_dim)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5, fused=True)
    storage = {
        "obs": torch.zeros(args.num_steps, args.num_envs, obs_dim),
        "actions": torch.zeros(args.num_steps, args.num_envs, act_dim),
        "logprobs": torch.zeros(args.num_steps, args.num_envs),
        "values": torch.zeros(args.num_steps, args.num_envs),
        "rewards": torch.zeros(args.num_steps, args.num_envs),
        "dones": torch.zeros(args.num_steps, args.num_envs),
    }

    obs, _ = envs.reset(seed=args.seed)
    obs = torch.from_numpy(obs)
    updates = 0
    warm = max(1, args.iterations // 5)
    for iteration in range(args.iterations):
        if iteration == warm:
            start = time.perf_counter()
        obs, next_value = rollout(envs, agent, storage, obs, args)
        advantages, returns = compute_gae(storage, next_value, args)
        batch = (
            storage["obs"].reshape(-1, obs_dim),
            storage["actions"].reshape(-1, act_dim),
            storage["logprobs"].reshape(-1),
            advantages.reshape(-1),
            returns.reshape(-1),
        )
        done_updates, kl, explained = update(agent, optimizer, batch, args, rng)
        updates += done_updates
        if iteration % 4 == 0:
            print(
                f"iteration {iteration}: reward {storage['rewards'].mean().item() * 10:.2f}, kl {kl:.4f}, explained {explained:.2f}"
            )
    seconds = time.perf_counter() - start
    envs.close()

    result = {
        "env_steps": args.iterations * args.num_steps * args.num_envs,
        "updates": updates,
        "units_per_s": (args.iterations - warm) / seconds,
        "checksum": sum(p.double().abs().sum().item() for p in agent.parameters()),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
