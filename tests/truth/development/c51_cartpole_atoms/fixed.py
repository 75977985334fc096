import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

V_MIN, V_MAX, N_ATOMS = 0.0, 100.0, 51
DELTA_Z = (V_MAX - V_MIN) / (N_ATOMS - 1)
SUPPORT = np.linspace(V_MIN, V_MAX, N_ATOMS).astype(np.float32)


class CategoricalNet(nn.Module):
    def __init__(self, obs_dim, n_actions):
        super().__init__()
        self.n_actions = n_actions
        self.net = nn.Sequential(
            nn.Linear(obs_dim, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, n_actions * N_ATOMS),
        )

    def forward(self, x):
        return self.net(x).view(-1, self.n_actions, N_ATOMS)


class Replay:
    def __init__(self, size, obs_dim):
        self.obs = np.zeros((size, obs_dim), np.float32)
        self.next_obs = np.zeros((size, obs_dim), np.float32)
        self.act = np.zeros(size, np.int64)
        self.rew = np.zeros(size, np.float32)
        self.done = np.zeros(size, np.float32)
        self.n, self.size = 0, size

    def add(self, o, a, r, o2, d):
        i = self.n % self.size
        self.obs[i], self.act[i], self.rew[i], self.next_obs[i], self.done[i] = o, a, r, o2, d
        self.n += 1

    def sample(self, k):
        i = np.random.randint(0, min(self.n, self.size), k)
        return self.obs[i], self.act[i], self.rew[i], self.next_obs[i], self.done[i]


def project(next_dist, rewards, dones, gamma):
    """Distribution of r + gamma * Z on the fixed support."""
    batch = len(rewards)
    tz = np.clip(rewards[:, None] + gamma * (1 - dones[:, None]) * SUPPORT, V_MIN, V_MAX)
    b = (tz - V_MIN) / DELTA_Z
    lower = np.floor(b).astype(np.int64)
    upper = np.minimum(lower + 1, N_ATOMS - 1)
    frac = b - lower
    row = np.arange(batch)[:, None] * N_ATOMS
    at = np.concatenate([(row + lower).ravel(), (row + upper).ravel()])
    mass = np.concatenate([(next_dist * (1 - frac)).ravel(), (next_dist * frac).ravel()])
    return np.bincount(at, mass, batch * N_ATOMS).astype(np.float32).reshape(batch, N_ATOMS)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--total-timesteps", type=int, default=30000)
    ap.add_argument("--learning-starts", type=int, default=500)
    ap.add_argument("--train-frequency", type=int, default=4)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--seed", type=int, default=5)
    args = ap.parse_args()
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    env = gym.make("CartPole-v1")
    q, tgt = CategoricalNet(4, 2), CategoricalNet(4, 2)
    tgt.load_state_dict(q.state_dict())
    opt = torch.optim.Adam(q.parameters(), lr=2.5e-4)
    rb = Replay(10000, 4)
    support = torch.from_numpy(SUPPORT)
    obs, _ = env.reset(seed=args.seed)
    updates = 0
    for step in range(args.total_timesteps):
        if step == args.total_timesteps // 5:
            t0 = time.perf_counter()
        eps = max(0.05, 1 - step / (0.5 * args.total_timesteps))
        if np.random.rand() < eps:
            action = np.random.randint(2)
        else:
            with torch.no_grad():
                probs = F.softmax(q(torch.from_numpy(obs)), dim=2)
                action = int((probs * support).sum(2).argmax())
        nxt, reward, term, trunc, _ = env.step(action)
        rb.add(obs, action, reward, nxt, term)
        obs = env.reset()[0] if term or trunc else nxt
        if step >= args.learning_starts and step % args.train_frequency == 0:
            o, a, r, o2, d = rb.sample(args.batch_size)
            with torch.no_grad():
                p2 = F.softmax(tgt(torch.from_numpy(o2)), dim=2)
                a2 = (p2 * support).sum(2).argmax(1)
                p2 = p2[torch.arange(args.batch_size), a2].numpy()
            target = torch.from_numpy(project(p2, r, d, 0.99))
            logp = F.log_softmax(q(torch.from_numpy(o)), dim=2)[
                torch.arange(args.batch_size), torch.from_numpy(a)
            ]
            loss = -(target * logp).sum(1).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            updates += 1
            if updates % 100 == 0:
                tgt.load_state_dict(q.state_dict())
    rate = (args.total_timesteps - args.total_timesteps // 5) / (time.perf_counter() - t0)
    env.close()
    checksum = float(sum(p.double().sum() for p in q.parameters()))
    print(
        json.dumps(
            {"env_steps": args.total_timesteps, "updates": updates, "units_per_s": rate, "checksum": checksum}
        )
    )


if __name__ == "__main__":
    main()
