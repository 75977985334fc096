"""REINFORCE with a graph network: whom to vaccinate while an infection spreads over a contact network."""
import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


def contact_network(n, rng):
    """Small world: a ring with some long links. Adjacency matrix."""
    adj = np.zeros((n, n), np.float32)
    for i in range(n):
        for j in (i + 1, i + 2):
            k = j % n if rng.random() > 0.2 else int(rng.integers(n))
            if k != i:
                adj[i, k] = adj[k, i] = 1.0
    return adj


class Epidemics:
    """A batch of outbreaks on the same network. States: 0 healthy, 1 infected, 2 immune."""

    def __init__(self, adj, batch, rng):
        self.adj, self.batch, self.rng = adj, batch, rng
        self.n = len(adj)

    def reset(self):
        self.state = np.zeros((self.batch, self.n), np.int64)
        sick = self.rng.integers(0, self.n, (self.batch, 3))
        self.state[np.arange(self.batch)[:, None], sick] = 1
        return self.observe()

    def observe(self):
        sick = (self.state == 1).astype(np.float32)
        return np.stack([sick, self.state == 2, self.state == 0, sick @ self.adj], -1, dtype=np.float32)

    def step(self, who):
        rows = np.arange(self.batch)
        self.state[rows, who] = np.where(self.state[rows, who] == 0, 2, self.state[rows, who])
        pressure = (self.state == 1).astype(np.float32) @ self.adj
        caught = (self.state == 0) & (self.rng.random(self.state.shape) < 1 - 0.8**pressure)
        healed = (self.state == 1) & (self.rng.random(self.state.shape) < 0.2)
        self.state[caught] = 1
        self.state[healed] = 2
        return self.observe(), -caught.sum(1).astype(np.float32)


class GCNLayer(nn.Module):
    def __init__(self, n_in, n_out, adj):
        super().__init__()
        self.linear = nn.Linear(n_in, n_out)
        self.register_buffer("adj", adj + torch.eye(len(adj)))

    def forward(self, x):
        degree = self.adj.sum(1)
        d_inv_sqrt = torch.diag(degree.pow(-0.5))
        norm_adj = d_inv_sqrt @ self.adj @ d_inv_sqrt
        return norm_adj @ self.linear(x)


class Guard(nn.Module):
    def __init__(self, adj, hidden):
        super().__init__()
        self.g1 = GCNLayer(4, hidden, adj)
        self.g2 = GCNLayer(hidden, hidden, adj)
        self.g3 = GCNLayer(hidden, hidden, adj)
        self.score = nn.Linear(hidden, 1)

    def forward(self, x):
        h = F.relu(self.g1(x))
        h = h + F.relu(self.g2(h))
        h = h + F.relu(self.g3(h))
        return self.score(h).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--episodes", type=int, default=400, help="batches of outbreaks")
    ap.add_argument("--people", type=int, default=160)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--days", type=int, default=20)
    ap.add_argument("--hidden", type=int, default=16)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    torch.manual_seed(30)
    rng = np.random.default_rng(30)
    adj = contact_network(args.people, rng)
    world = Epidemics(adj, args.batch, rng)
    guard = Guard(torch.from_numpy(adj), args.hidden)
    opt = torch.optim.Adam(guard.parameters(), lr=args.lr, fused=True)
    baseline, began = torch.zeros(args.days), 0.0
    for episode in range(args.episodes):
        if episode == args.episodes // 5:
            began = time.perf_counter()
        obs, seen, chosen, rewards = world.reset(), [], [], []
        for _ in range(args.days):
            x = torch.from_numpy(obs)
            with torch.inference_mode():
                logits = guard(x)
                # Gumbel trick: a draw from the softmax
                who = (logits - torch.log(-torch.log(torch.rand_like(logits)))).argmax(1)
            seen.append(x)
            chosen.append(who)
            obs, reward = world.step(who.numpy())
            rewards.append(torch.from_numpy(reward))
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
        baseline += 0.05 * (returns.mean(1) - baseline)
        advantage = (returns - baseline.unsqueeze(1)).flatten()
        logp = F.log_softmax(guard(torch.cat(seen)), -1)
        taken = logp.gather(1, torch.cat(chosen).unsqueeze(1)).squeeze(1)
        loss = -(advantage * taken).mean() / 10
        opt.zero_grad()
        loss.backward()
        opt.step()
        if episode % 25 == 24:
            print(f"episode {episode + 1}: infections {-returns[0].mean().item():.1f}")
    rate = (args.episodes - args.episodes // 5) / (time.perf_counter() - began)
    check = sum(p.detach().double().abs().sum().item() for p in guard.parameters())
    print(json.dumps({"env_steps": None, "updates": args.episodes, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main()
