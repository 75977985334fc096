"""Offline RL from harbour crane logs: implicit Q-learning (IQL) with a torch Dataset and DataLoader."""
import argparse
import copy
import json
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


def make_logs(n, rng):
    """A swinging load under a trolley, driven by a noisy operator. One row per second."""
    x, v, th, om = rng.normal(size=(4, n // 100)) * np.array([2.0, 0.3, 0.1, 0.1])[:, None]
    goal = rng.uniform(-4, 4, n // 100)
    rows = []
    for _ in range(100):
        obs = np.stack([x, v, th, om, goal - x, np.sign(goal - x), v * v, th * om], 1)
        act = np.clip(0.4 * (goal - x) - 0.9 * v + 0.6 * rng.normal(size=len(x)), -1, 1)
        v = v + 0.2 * (act - 0.1 * v)
        om = om + 0.2 * (-1.5 * th - act * np.cos(th) - 0.05 * om)
        x, th = x + 0.2 * v, th + 0.2 * om
        nxt = np.stack([x, v, th, om, goal - x, np.sign(goal - x), v * v, th * om], 1)
        rew = -np.abs(goal - x) - 2.0 * np.abs(th)
        rows.append((obs, act[:, None], rew, nxt))
    return [np.concatenate(c).astype(np.float32) for c in zip(*rows)]


class CraneLogs(Dataset):
    def __init__(self, obs, act, rew, nxt):
        self.obs, self.act, self.rew, self.nxt = obs, act, rew, nxt
        self.mean, self.std = rew.mean(), rew.std()

    def __len__(self):
        return len(self.rew)

    def scaled_reward(self, i):
        """Rewards of unit spread, whatever the crane."""
        return (self.rew[i] - self.mean) / self.std

    def __getitem__(self, i):
        return self.obs[i], self.act[i], self.scaled_reward(i), self.nxt[i]


def mlp(n_in, n_out, hidden=128):
    return nn.Sequential(nn.Linear(n_in, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, n_out))


class IQL(nn.Module):
    def __init__(self, obs_dim, act_dim, tau=0.7, beta=3.0, gamma=0.98):
        super().__init__()
        self.q1, self.q2 = mlp(obs_dim + act_dim, 1), mlp(obs_dim + act_dim, 1)
        self.v = mlp(obs_dim, 1)
        self.pi = mlp(obs_dim, act_dim)
        self.t1, self.t2 = copy.deepcopy(self.q1), copy.deepcopy(self.q2)
        self.tau, self.beta, self.gamma = tau, beta, gamma
        self.opt = torch.optim.Adam([*self.q1.parameters(), *self.q2.parameters(), *self.v.parameters(),
                                     *self.pi.parameters()], lr=3e-4, fused=True)
        self.online = [*self.q1.parameters(), *self.q2.parameters()]
        self.target = [*self.t1.parameters(), *self.t2.parameters()]

    def update(self, obs, act, rew, nxt):
        sa = torch.cat([obs, act], 1)
        with torch.no_grad():
            tq = torch.min(self.t1(sa), self.t2(sa)).squeeze(1)
            y = rew + self.gamma * self.v(nxt).squeeze(1)
        adv = tq - self.v(obs).squeeze(1)
        v_loss = (torch.where(adv > 0, self.tau, 1 - self.tau) * adv ** 2).mean()
        q_loss = ((self.q1(sa).squeeze(1) - y) ** 2).mean() + ((self.q2(sa).squeeze(1) - y) ** 2).mean()
        weight = torch.exp(self.beta * adv.detach()).clamp(max=100.0)
        pi_loss = (weight * ((torch.tanh(self.pi(obs)) - act) ** 2).sum(1)).mean()
        loss = v_loss + q_loss + pi_loss
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.target, self.online, 0.005)
        return loss


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--epochs", type=int, default=10)
    ap.add_argument("--rows", type=int, default=16000)
    ap.add_argument("--batch-size", type=int, default=256)
    args = ap.parse_args()
    torch.manual_seed(0)
    data = CraneLogs(*make_logs(args.rows, np.random.default_rng(0)))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
    agent = IQL(data.obs.shape[1], data.act.shape[1])
    updates, first, t0 = 0, 0, None
    for epoch in range(args.epochs):
        if epoch == args.epochs // 5:
            t0, first = time.perf_counter(), updates
        running = 0.0
        for batch in loader:
            running += float(agent.update(*batch).detach())
            updates += 1
        print(f"epoch {epoch + 1}/{args.epochs}: loss {running / len(loader):.4f}")
    rate = (updates - first) / (time.perf_counter() - t0)
    print(json.dumps({"env_steps": 0, "updates": updates, "units_per_s": rate, "checksum": running}))
