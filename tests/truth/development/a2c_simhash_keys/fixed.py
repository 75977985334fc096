"""A2C with a count-based exploration bonus (static SimHash, Tang et al. 2017) in a vault with a key and a door.

All vaults are simulated at once with numpy; reward is given only for opening the door with the key.
"""
import argparse
import collections
import json
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class VaultVector(gym.vector.VectorEnv):
    """Point robots in a 2 x 2 vault; key in one corner, door in the opposite one; episodes restart at once."""

    MOVES = np.array([[0, 0.1], [0, -0.1], [0.1, 0], [-0.1, 0]])

    def __init__(self, num_envs, horizon=150):
        self.num_envs, self.horizon = num_envs, horizon
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (8,), np.float32)
        self.single_action_space = gym.spaces.Discrete(4)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.key, self.door = np.array([0.85, 0.85]), np.array([-0.85, -0.85])

    def _obs(self):
        held = self.has_key[:, None].astype(float)
        return np.concatenate([self.pos, self.key - self.pos, self.door - self.pos, held, 1 - held], 1).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.pos = self.rng.uniform(-0.3, 0.3, (self.num_envs, 2))
        self.has_key = np.zeros(self.num_envs, bool)
        self.t = np.zeros(self.num_envs, int)
        return self._obs(), {}

    def step(self, actions):
        self.pos = np.clip(self.pos + self.MOVES[actions] + self.rng.normal(0, 0.02, self.pos.shape), -1, 1)
        self.t += 1
        self.has_key |= np.abs(self.pos - self.key).max(1) < 0.15
        opened = self.has_key & (np.abs(self.pos - self.door).max(1) < 0.15)
        truncated = (self.t >= self.horizon) & ~opened
        over = opened | truncated
        if over.any():
            n = int(over.sum())
            self.pos[over] = self.rng.uniform(-0.3, 0.3, (n, 2))
            self.has_key[over] = False
            self.t[over] = 0
        return self._obs(), opened.astype(np.float32), opened, truncated, {}


class SimHashCounts:
    """Counts of hashed states; the bonus is beta / sqrt(count)."""

    def __init__(self, obs_dim, bits, beta, seed):
        self.projection = np.random.default_rng(seed).normal(size=(obs_dim, bits)).astype(np.float32)
        self.powers = 2 ** np.arange(bits, dtype=np.int64)
        self.beta = beta
        self.counts = collections.defaultdict(int)

    def bonus(self, obs):
        keys = (obs @ self.projection > 0) @ self.powers
        bonus = np.empty(len(obs), np.float32)
        for i, key in enumerate(keys.tolist()):
            self.counts[key] += 1
            bonus[i] = self.beta / self.counts[key] ** 0.5
        return bonus


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, n_actions, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_dim, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.out = nn.Linear(width, n_actions + 1)

    def forward(self, obs):
        y = self.out(self.body(obs))
        return y[..., :-1], y[..., -1]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=4)
    p.add_argument("--num-envs", type=int, default=16)
    p.add_argument("--rollout", type=int, default=16)
    p.add_argument("--total-steps", type=int, default=2_000_000)
    p.add_argument("--bits", type=int, default=32)
    p.add_argument("--beta", type=float, default=0.1)
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--gamma", type=float, default=0.99)
    p.add_argument("--lam", type=float, default=0.95)
    p.add_argument("--entropy", type=float, default=0.01)
    p.add_argument("--lr", type=float, default=7e-4)
    args = p.parse_args()

    torch.manual_seed(args.seed)
    envs = VaultVector(args.num_envs)
    obs_dim, n_actions = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    model = ActorCritic(obs_dim, n_actions, args.width)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=args.lr, alpha=0.99, eps=1e-5)
    hasher = SimHashCounts(obs_dim, args.bits, args.beta, args.seed)

    T, N = args.rollout, args.num_envs
    b_obs = np.zeros((T + 1, N, obs_dim), np.float32)
    b_act = np.zeros((T, N), np.int64)
    b_rew, b_alive = np.zeros((T, N), np.float32), np.zeros((T, N), np.float32)
    obs, _ = envs.reset(seed=args.seed)
    iterations = args.total_steps // (T * N)
    mark, mark_at = None, iterations // 5
    opened = finished = 0
    for it in range(iterations):
        if it == mark_at:
            mark = time.perf_counter()
        for t in range(T):
            b_obs[t] = obs
            with torch.no_grad():
                logits, _ = model(torch.from_numpy(obs))
                action = torch.multinomial(logits.softmax(-1), 1).squeeze(-1).numpy()
            obs, reward, terminated, truncated, _ = envs.step(action)
            b_act[t] = action
            b_rew[t] = reward + hasher.bonus(obs)
            over = terminated | truncated
            b_alive[t] = ~over
            opened += int(terminated.sum())
            finished += int(over.sum())
        b_obs[T] = obs

        logits, values = model(torch.from_numpy(b_obs))
        v = values.detach().numpy()
        advantage, last = np.empty_like(b_rew), np.zeros(N, np.float32)
        for t in range(T - 1, -1, -1):
            delta = b_rew[t] + args.gamma * b_alive[t] * v[t + 1] - v[t]
            last = advantage[t] = delta + args.gamma * args.lam * b_alive[t] * last
        adv = torch.from_numpy(advantage)
        target = adv + values[:-1].detach()
        logp = F.log_softmax(logits[:-1], -1)
        chosen = logp.gather(-1, torch.from_numpy(b_act).unsqueeze(-1)).squeeze(-1)
        entropy = -(logp.exp() * logp).sum(-1).mean()
        loss = -(adv * chosen).mean() + 0.5 * F.mse_loss(values[:-1], target) - args.entropy * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if (it + 1) % 100 == 0:
            rate = opened / max(1, finished)
            print(f"steps {(it + 1) * T * N}: doors opened {rate:.2f} of episodes, {len(hasher.counts)} states known, entropy {entropy.item():.2f}")
            opened = finished = 0
    speed = (iterations - mark_at) * T * N / (time.perf_counter() - mark)
    checksum = sum(w.detach().double().abs().sum().item() for w in model.parameters())
    print(json.dumps({"env_steps": iterations * T * N, "updates": iterations, "units_per_s": speed, "checksum": checksum}))


if __name__ == "__main__":
    main()
