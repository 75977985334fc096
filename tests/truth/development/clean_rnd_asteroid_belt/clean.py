"""PPO with random network distillation: a probe drifts through an asteroid belt, only the far beacon gives reward."""
import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Belt(gym.vector.VectorEnv):
    """All probes at once in numpy; thrust is discrete, rocks are soft bumps, episodes restart in the same step."""

    THRUST = 0.04 * np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])

    def __init__(self, num_envs, rocks=12, horizon=200):
        self.num_envs, self.horizon = num_envs, horizon
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (6 + rocks,), np.float32)
        self.single_action_space = gym.spaces.Discrete(len(self.THRUST))
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.rocks = np.random.default_rng(123).uniform(-1.5, 1.5, (rocks, 2))
        self.beacon = np.array([1.7, 1.7])

    def _obs(self):
        self.dist = np.linalg.norm(self.pos[:, None] - self.rocks, axis=2)
        return np.concatenate([self.pos, self.vel * 5, self.beacon - self.pos, self.dist], 1).astype(np.float32)

    def _start(self, n):
        return self.rng.uniform(-1.9, -1.6, (n, 2))

    def reset(self, *, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.pos, self.vel = self._start(self.num_envs), np.zeros((self.num_envs, 2))
        self.t = np.zeros(self.num_envs, int)
        return self._obs(), {}

    def step(self, actions):
        self.vel = 0.95 * self.vel + self.THRUST[actions] - 0.01 * (self.dist.min(1) < 0.2)[:, None] * np.sign(self.vel)
        self.pos = np.clip(self.pos + self.vel, -2, 2)
        self.t += 1
        reached = np.linalg.norm(self.pos - self.beacon, axis=1) < 0.3
        truncated = (self.t >= self.horizon) & ~reached
        over = reached | truncated
        if over.any():
            self.pos[over] = self._start(int(over.sum()))
            self.vel[over] = 0.0
            self.t[over] = 0
        return self._obs(), reached.astype(np.float32), reached, truncated, {}


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Agent(nn.Module):
    def __init__(self, obs_dim, n_actions, width):
        super().__init__()
        self.body = nn.Sequential(mlp(obs_dim, width, width), nn.ReLU())
        self.out = nn.Linear(width, n_actions + 2)

    def forward(self, obs):
        y = self.out(self.body(obs))
        return F.log_softmax(y[..., :-2], -1), y[..., -2], y[..., -1]


def gae(rewards, values, alive, gamma, lam):
    adv, last = np.empty_like(rewards), 0.0
    for t in range(len(rewards) - 1, -1, -1):
        last = adv[t] = rewards[t] + gamma * alive[t] * values[t + 1] - values[t] + gamma * lam * alive[t] * last
    return adv


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=12)
    p.add_argument("--num-envs", type=int, default=64)
    p.add_argument("--rollout", type=int, default=64)
    p.add_argument("--total-steps", type=int, default=3_000_000)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--minibatch", type=int, default=1024)
    p.add_argument("--width", type=int, default=192)
    p.add_argument("--lr", type=float, default=3e-4)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    envs = Belt(args.num_envs)
    D, A = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    T, N = args.rollout, args.num_envs
    agent = Agent(D, A, args.width)
    predictor, fixed_net = mlp(D, args.width, args.width, 64), mlp(D, args.width, 64).requires_grad_(False)
    params = [*agent.parameters(), *predictor.parameters()]
    opt = torch.optim.Adam(params, lr=args.lr, eps=1e-5, fused=True)
    obs_buf = np.zeros((T + 1, N, D), np.float32)
    act_buf = np.zeros((T, N), np.int64)
    ext, alive = np.zeros((T, N), np.float32), np.zeros((T, N), np.float32)
    forever = np.ones((T, N), np.float32)
    scale = 1.0

    obs, _ = envs.reset(seed=args.seed)
    iterations = args.total_steps // (T * N)
    mark, mark_at, updates = None, iterations // 5, 0
    for it in range(iterations):
        if it == mark_at:
            mark = time.perf_counter()
        for t in range(T):
            obs_buf[t] = obs
            with torch.no_grad():
                logp, _, _ = agent(torch.from_numpy(obs))
                act = torch.multinomial(logp.exp(), 1).squeeze(-1).numpy()
            obs, reward, term, trunc, _ = envs.step(act)
            act_buf[t], ext[t], alive[t] = act, reward, ~(term | trunc)
        obs_buf[T] = obs

        all_obs = torch.from_numpy(obs_buf)
        actions = torch.from_numpy(act_buf).view(-1, 1)
        with torch.no_grad():
            logp, v_ext, v_int = agent(all_obs)
            old_logp = logp[:-1].reshape(-1, A).gather(1, actions).squeeze(1)
            features = fixed_net(all_obs[1:])
            novelty = (predictor(all_obs[1:]) - features).pow(2).mean(-1)
        scale = 0.99 * scale + 0.01 * float(novelty.std()) * 10
        v_ext, v_int = v_ext.numpy(), v_int.numpy()
        adv_ext = gae(ext, v_ext, alive, 0.995, 0.95)
        adv_int = gae(novelty.numpy() / scale, v_int, forever, 0.99, 0.95)
        ret_ext = torch.from_numpy(adv_ext + v_ext[:-1]).flatten()
        ret_int = torch.from_numpy(adv_int + v_int[:-1]).flatten()
        adv = torch.from_numpy(2.0 * adv_ext + adv_int).flatten()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        flat, after, features = all_obs[:-1].reshape(-1, D), all_obs[1:].reshape(-1, D), features.reshape(T * N, -1)
        for _ in range(args.epochs):
            for mb in torch.randperm(T * N).split(args.minibatch):
                logp, v_e, v_i = agent(flat[mb])
                ratio = (logp.gather(1, actions[mb]).squeeze(1) - old_logp[mb]).exp()
                policy = -torch.min(adv[mb] * ratio, adv[mb] * ratio.clamp(0.85, 1.15)).mean()
                value = F.mse_loss(v_e, ret_ext[mb]) + F.mse_loss(v_i, ret_int[mb])
                entropy = -(logp.exp() * logp).sum(-1).mean()
                distill = F.mse_loss(predictor(after[mb]), features[mb])
                loss = policy + 0.5 * value - 0.005 * entropy + distill
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(params, 0.5)
                opt.step()
                updates += 1
        print(f"steps {(it + 1) * T * N}: beacons {int(ext.sum())}, novelty {novelty.mean().item():.4f}, entropy {entropy.item():.2f}")
    speed = (iterations - mark_at) * T * N / (time.perf_counter() - mark)
    checksum = sum(w.detach().double().abs().sum().item() for w in params)
    print(json.dumps({"env_steps": iterations * T * N, "updates": updates, "units_per_s": speed, "checksum": checksum}))


if __name__ == "__main__":
    main()
