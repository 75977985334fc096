"""TD3+BC on a recorded dataset of a two-link arm (npz in the D4RL layout)."""
import argparse
import copy
import json
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

torch.set_num_threads(1)


def record_arm(path, n, seed):
    """A noisy proportional controller moves the arm to random targets."""
    rng = np.random.default_rng(seed)
    q, dq = rng.uniform(-2, 2, (64, 2)), np.zeros((64, 2))
    goal = rng.uniform(-2, 2, (64, 2))
    keys = {k: [] for k in ("observations", "actions", "rewards", "next_observations", "terminals")}
    for t in range(n // 64):
        obs = np.concatenate([np.cos(q), np.sin(q), dq, goal, goal - q], 1)
        act = np.clip(1.2 * (goal - q) - 0.8 * dq + 0.4 * rng.standard_normal((64, 2)), -1, 1)
        dq = 0.9 * dq + 0.2 * act
        q = q + 0.1 * dq
        end = np.full(64, t % 100 == 99)
        keys["observations"].append(obs)
        keys["actions"].append(act)
        keys["rewards"].append(-np.linalg.norm(goal - q, axis=1) - 0.01 * (act**2).sum(1))
        keys["next_observations"].append(np.concatenate([np.cos(q), np.sin(q), dq, goal, goal - q], 1))
        keys["terminals"].append(end)
        if end.all():
            q, dq, goal = rng.uniform(-2, 2, (64, 2)), np.zeros((64, 2)), rng.uniform(-2, 2, (64, 2))
    np.savez(path, **{k: np.concatenate(v).astype(np.float32) for k, v in keys.items()})


class ArmDataset(Dataset):
    """Serves whole batches: an item is a list of indices."""

    def __init__(self, path):
        with np.load(path) as file:
            self.data = {name: file[name] for name in file.files}
        self.length = len(self.data["rewards"])

    def __len__(self):
        return self.length

    def __getitem__(self, idx):
        d = self.data
        s, a = d["observations"][idx], d["actions"][idx]
        r, s2, end = d["rewards"][idx], d["next_observations"][idx], d["terminals"][idx]
        return tuple(torch.from_numpy(x) for x in (s, a, r, s2, end))


def mlp(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, n_out))


class TD3BC:
    def __init__(self, n_obs, n_act, alpha=2.5, tau=0.005, gamma=0.98):
        self.actor = nn.Sequential(mlp(n_obs, n_act), nn.Tanh())
        self.q1, self.q2 = mlp(n_obs + n_act, 1), mlp(n_obs + n_act, 1)
        self.targets = copy.deepcopy(nn.ModuleList([self.actor, self.q1, self.q2])).requires_grad_(False)
        self.opt_actor = torch.optim.Adam(self.actor.parameters(), 3e-4, fused=True)
        self.opt_critic = torch.optim.Adam([*self.q1.parameters(), *self.q2.parameters()], 3e-4, fused=True)
        self.live = [*self.actor.parameters(), *self.q1.parameters(), *self.q2.parameters()]
        self.lagging = list(self.targets.parameters())
        self.alpha, self.tau, self.gamma = alpha, tau, gamma
        self.calls = 0

    def train_on(self, s, a, r, s2, end):
        self.calls += 1
        t_actor, t_q1, t_q2 = self.targets
        with torch.no_grad():
            noise = (torch.randn_like(a) * 0.2).clamp(-0.5, 0.5)
            x2 = torch.cat([s2, (t_actor(s2) + noise).clamp(-1, 1)], 1)
            y = r.unsqueeze(1) + self.gamma * (1 - end.unsqueeze(1)) * torch.min(t_q1(x2), t_q2(x2))
        x = torch.cat([s, a], 1)
        loss = F.mse_loss(self.q1(x), y) + F.mse_loss(self.q2(x), y)
        self.opt_critic.zero_grad()
        loss.backward()
        self.opt_critic.step()
        if self.calls % 2 == 0:
            self.q1.requires_grad_(False)
            pi = self.actor(s)
            q = self.q1(torch.cat([s, pi], 1))
            actor_loss = -self.alpha / q.abs().mean().detach() * q.mean() + F.mse_loss(pi, a)
            self.opt_actor.zero_grad()
            actor_loss.backward()
            self.opt_actor.step()
            self.q1.requires_grad_(True)
            torch._foreach_lerp_(self.lagging, self.live, self.tau)
        return loss.detach()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--transitions", type=int, default=32_000)
    parser.add_argument("--batch", type=int, default=256)
    args = parser.parse_args()
    torch.manual_seed(4)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "arm-medium-v0.npz")
        record_arm(path, args.transitions, 4)
        data = ArmDataset(path)
        order = BatchSampler(RandomSampler(data), args.batch, drop_last=True)
        loader = DataLoader(data, sampler=order, batch_size=None)
        agent = TD3BC(10, 2)
        for epoch in range(args.epochs):
            if epoch == args.epochs // 5:
                began = time.perf_counter()
            total = torch.zeros(())
            for batch in loader:
                total += agent.train_on(*batch)
            print(f"epoch {epoch}: critic loss {total.item() / len(loader):.4f}", flush=True)
        rate = (args.epochs - args.epochs // 5) * len(loader) / (time.perf_counter() - began)
    check = sum(p.detach().double().abs().sum().item() for p in agent.live)
    updates = agent.calls + agent.calls // 2
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main()
