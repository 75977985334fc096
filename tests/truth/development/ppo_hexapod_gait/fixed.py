"""PPO for a walking hexapod. Continuous actions, action noise decays on a schedule."""
import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Independent, Normal

torch.set_num_threads(1)


class HexapodFleet:
    """n hexapods with one hinge per leg, simulated together."""

    n_obs, n_act = 14, 6

    def __init__(self, n, seed):
        self.n = n
        self.rng = np.random.default_rng(seed)
        self.angle = self.rng.uniform(-0.5, 0.5, (n, 6))
        self.speed = np.zeros((n, 6))
        self.forward = np.zeros(n)
        self.yaw = np.zeros(n)
        self.t = self.rng.integers(0, 200, n)

    def observe(self):
        return np.concatenate(
            [self.angle, self.speed, self.forward[:, None], self.yaw[:, None]], 1, dtype=np.float32
        )

    def step(self, torque):
        torque = np.clip(torque, -1, 1)
        self.speed = 0.85 * self.speed + 0.25 * torque - 0.1 * self.angle
        self.angle = np.clip(self.angle + 0.2 * self.speed, -1, 1)
        push = np.where(self.angle < 0, -self.speed, 0.0)
        left, right = push[:, :3].mean(1), push[:, 3:].mean(1)
        self.forward = 0.9 * self.forward + 0.2 * (left + right)
        self.yaw = 0.9 * self.yaw + 0.1 * (left - right)
        reward = self.forward - 0.5 * np.abs(self.yaw) - 0.02 * (torque**2).sum(1)
        self.t += 1
        done = self.t >= 200
        if done.any():
            k = int(done.sum())
            self.angle[done] = self.rng.uniform(-0.5, 0.5, (k, 6))
            self.speed[done] = 0
            self.forward[done] = self.yaw[done] = 0
            self.t[done] = 0
        return self.observe(), reward, done


class ActorCritic(nn.Module):
    def __init__(self, n_obs, n_act, action_std_init):
        super().__init__()
        self.n_act = n_act
        self.actor = nn.Sequential(
            nn.Linear(n_obs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, n_act), nn.Tanh()
        )
        self.critic = nn.Sequential(
            nn.Linear(n_obs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
        )
        self.set_action_std(action_std_init)

    def set_action_std(self, std):
        self.action_std = std
        self.action_scale = torch.full((self.n_act,), std)

    def distribution(self, obs):
        mean = self.actor(obs)
        return Independent(Normal(mean, self.action_scale.expand_as(mean)), 1)

    @torch.no_grad()
    def act(self, obs):
        dist = self.distribution(obs)
        action = dist.sample()
        return action, dist.log_prob(action), self.critic(obs).squeeze(-1)

    def evaluate(self, obs, action):
        dist = self.distribution(obs)
        return dist.log_prob(action), dist.entropy(), self.critic(obs).squeeze(-1)


class PPO:
    def __init__(self, env, args):
        self.env, self.args = env, args
        self.policy = ActorCritic(env.n_obs, env.n_act, 0.6)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=args.lr, fused=True)
        self.obs = torch.from_numpy(env.observe())
        self.updates = 0

    def collect(self):
        T, n = self.args.horizon, self.env.n
        obs, act = torch.zeros(T, n, self.env.n_obs), torch.zeros(T, n, self.env.n_act)
        logp, val = torch.zeros(T, n), torch.zeros(T, n)
        rew, done = np.zeros((T, n), np.float32), np.zeros((T, n), np.float32)
        for t in range(T):
            action, logp[t], val[t] = self.policy.act(self.obs)
            obs[t], act[t] = self.obs, action
            nxt, rew[t], done[t] = self.env.step(action.numpy())
            self.obs = torch.from_numpy(nxt)
        with torch.no_grad():
            last = self.policy.critic(self.obs).squeeze(-1).numpy()
        adv, acc, v = np.zeros((T, n), np.float32), 0.0, val.numpy()
        for t in reversed(range(T)):
            live = 1 - done[t]
            after = v[t + 1] if t + 1 < T else last
            acc = rew[t] + 0.98 * live * after - v[t] + 0.98 * 0.95 * live * acc
            adv[t] = acc
        adv = torch.from_numpy(adv)
        flat = [x.flatten(0, 1) for x in (obs, act, logp, adv, adv + val)]
        return flat, float(rew.mean())

    def learn(self, obs, act, old_logp, adv, ret):
        for _ in range(self.args.k_epochs):
            for idx in torch.randperm(len(obs)).split(self.args.minibatch):
                logp, entropy, value = self.policy.evaluate(obs[idx], act[idx])
                ratio = torch.exp(logp - old_logp[idx])
                a = adv[idx]
                a = (a - a.mean()) / (a.std() + 1e-7)
                surrogate = torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a)
                loss = -surrogate.mean() + 0.5 * (value - ret[idx]).pow(2).mean() - 0.001 * entropy.mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.updates += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--horizon", type=int, default=64)
    parser.add_argument("--robots", type=int, default=32)
    parser.add_argument("--minibatch", type=int, default=512)
    parser.add_argument("--k-epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=4e-4)
    args = parser.parse_args()
    torch.manual_seed(6)
    ppo = PPO(HexapodFleet(args.robots, 6), args)
    skip = args.iterations // 5
    for it in range(args.iterations):
        if it == skip:
            began = time.perf_counter()
        batch, mean_reward = ppo.collect()
        ppo.learn(*batch)
        if it % 20 == 19:
            ppo.policy.set_action_std(max(0.1, ppo.policy.action_std - 0.05))
            print(f"iteration {it + 1}: mean reward {mean_reward:.3f}, action std {ppo.policy.action_std:.2f}")
    rate = (args.iterations - skip) / (time.perf_counter() - began)
    check = sum(p.detach().double().abs().sum().item() for p in ppo.policy.parameters())
    print(json.dumps({"env_steps": None, "updates": ppo.updates, "units_per_s": rate, "checksum": check}))
