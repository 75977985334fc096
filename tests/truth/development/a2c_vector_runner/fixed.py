"""A2C on a vector of cart-poles (gymnasium.make_vec) with n-step returns."""

import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self, obs_dim, n_actions):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs_dim, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.pi = nn.Linear(128, n_actions)
        self.v = nn.Linear(128, 1)

    def forward(self, x):
        z = self.trunk(x)
        return self.pi(z), self.v(z).squeeze(-1)


class Runner:
    """Steps the environments and remembers what the learner needs."""

    def __init__(self, envs, policy, n_steps, seed):
        self.envs, self.policy, self.n_steps = envs, policy, n_steps
        self.obs, _ = envs.reset(seed=seed)
        self.rng = np.random.default_rng(seed)

    @torch.no_grad()
    def choose(self, obs):
        uniform = self.rng.random(len(obs), dtype=np.float32)
        logits, _ = self.policy(torch.from_numpy(obs))
        cdf = torch.softmax(logits, -1).numpy().cumsum(1)
        return np.minimum((cdf < uniform[:, None]).sum(1), cdf.shape[1] - 1)

    def run(self):
        n, k = self.n_steps, self.envs.num_envs
        obs = np.empty((n, k, self.obs.shape[1]), np.float32)
        actions = np.empty((n, k), np.int64)
        rewards, dones = np.empty((n, k), np.float32), np.empty((n, k), np.float32)
        for t in range(n):
            obs[t] = self.obs
            actions[t] = self.choose(self.obs)
            self.obs, rewards[t], term, trunc, _ = self.envs.step(actions[t])
            dones[t] = term | trunc
        return obs, actions, rewards, dones


class Learner:
    def __init__(self, policy, lr=7e-4, gamma=0.99, ent_coef=0.01, vf_coef=0.5):
        self.policy, self.gamma, self.ent_coef, self.vf_coef = policy, gamma, ent_coef, vf_coef
        self.opt = torch.optim.RMSprop(policy.parameters(), lr=lr, eps=1e-5)

    def learn(self, obs, actions, rewards, dones, last_obs):
        with torch.no_grad():
            ret = self.policy(torch.from_numpy(last_obs))[1].numpy()
        returns = np.empty_like(rewards)
        for t in reversed(range(len(rewards))):
            ret = rewards[t] + self.gamma * (1 - dones[t]) * ret
            returns[t] = ret
        logits, v = self.policy(torch.from_numpy(obs.reshape(-1, obs.shape[-1])))
        logp = torch.log_softmax(logits, -1)
        adv = torch.from_numpy(returns.reshape(-1)) - v
        chosen = logp.gather(1, torch.from_numpy(actions.reshape(-1, 1))).squeeze(1)
        entropy = -(logp.exp() * logp).sum(-1).mean()
        loss = -(chosen * adv.detach()).mean() + self.vf_coef * adv.pow(2).mean() - self.ent_coef * entropy
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
        self.opt.step()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=1200)
    ap.add_argument("--num-envs", type=int, default=12)
    ap.add_argument("--n-steps", type=int, default=8)
    ap.add_argument("--env", default="CartPole-v1")
    args = ap.parse_args()
    torch.manual_seed(0)
    envs = gym.make_vec(args.env, num_envs=args.num_envs, vectorization_mode="sync")
    policy = Policy(envs.single_observation_space.shape[0], int(envs.single_action_space.n))
    runner, learner = Runner(envs, policy, args.n_steps, 0), Learner(policy)
    per_update = args.num_envs * args.n_steps
    skip = args.updates // 5
    for update in range(args.updates):
        if update == skip:
            start = time.perf_counter()
        learner.learn(*runner.run(), runner.obs)
    rate = (args.updates - skip) * per_update / (time.perf_counter() - start)
    envs.close()
    checksum = float(sum(p.double().sum() for p in policy.parameters()))
    print(
        json.dumps(
            {
                "env_steps": args.updates * per_update,
                "updates": args.updates,
                "units_per_s": rate,
                "checksum": checksum,
            }
        )
    )


if __name__ == "__main__":
    main()
