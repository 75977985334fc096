"""Two-player pong learnt by playing against a league of earlier selves (policy gradient)."""
import argparse
import json
import os
import random
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
MATCHES = 16  # played at the same time, against the same opponent


class Pong:
    """Ball on the unit square, paddles at x = 0 and x = 1. A rally ends when somebody misses."""

    def __init__(self, n, rng):
        self.n, self.rng = n, rng

    def serve(self):
        n = self.n
        self.ball = np.stack([np.full(n, 0.5), self.rng.uniform(0.2, 0.8, n)], 1)
        angle = self.rng.uniform(-0.8, 0.8, n)
        side = np.where(self.rng.random(n) < 0.5, 1.0, -1.0)
        self.speed = 0.06 * np.stack([side * np.cos(angle), np.sin(angle)], 1)
        self.paddle = np.full((n, 2), 0.5)
        self.alive = np.ones(n, bool)

    def view(self, player):
        """The right player sees the mirror image."""
        x, dx = self.ball[:, 0], self.speed[:, 0]
        if player:
            x, dx = 1 - x, -dx
        mine, other = self.paddle[:, player], self.paddle[:, 1 - player]
        return np.stack([x, self.ball[:, 1], 10 * dx, 10 * self.speed[:, 1], mine, other], 1, dtype=np.float32)

    def step(self, left, right):
        self.paddle += 0.04 * (np.stack([left, right], 1) - 1)
        np.clip(self.paddle, 0.1, 0.9, out=self.paddle)
        self.ball += self.speed * self.alive[:, None]
        bounce = (self.ball[:, 1] < 0) | (self.ball[:, 1] > 1)
        self.speed[bounce, 1] *= -1
        reward = np.zeros(self.n, np.float32)
        for player, wall in ((0, 0.02), (1, 0.98)):
            at = self.alive & ((self.ball[:, 0] < wall) if player == 0 else (self.ball[:, 0] > wall))
            hit = at & (np.abs(self.ball[:, 1] - self.paddle[:, player]) < 0.12)
            self.speed[hit, 0] *= -1.03
            self.speed[hit, 1] += 0.2 * (self.ball[hit, 1] - self.paddle[hit, player])
            self.ball[hit, 0] = wall
            missed = at & ~hit
            reward[missed] = -1.0 if player == 0 else 1.0
            self.alive &= ~missed
        return reward


class Policy(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
        )

    def forward(self, x):
        return self.net(x)

    @torch.inference_mode()
    def act(self, x):
        return torch.multinomial(F.softmax(self.net(torch.from_numpy(x)), -1), 1).squeeze(1)


class League:
    """Snapshots of earlier policies in a folder."""

    def __init__(self, folder, width):
        self.folder, self.width = folder, width
        self.names = []

    def add(self, policy):
        name = f"player_{len(self.names):03d}.pt"
        torch.save(policy.state_dict(), os.path.join(self.folder, name))
        self.names.append(name)

    def opponent(self):
        """A policy that plays like a random member of the last ten."""
        name = random.choice(self.names[-10:])
        opponent = Policy(self.width)
        opponent.load_state_dict(torch.load(os.path.join(self.folder, name)))
        return opponent.eval()


def play(env, policy, opponent, max_steps):
    env.serve()
    seen, acts, rewards, alive = [], [], [], []
    for _ in range(max_steps):
        x = env.view(0)
        a = policy.act(x)
        alive.append(env.alive.copy())
        rewards.append(env.step(a.numpy(), opponent.act(env.view(1)).numpy()))
        seen.append(x)
        acts.append(a)
        if not env.alive.any():
            break
    return np.stack(seen), torch.stack(acts), np.stack(rewards), np.stack(alive)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=900)
    ap.add_argument("--snapshot-every", type=int, default=20)
    ap.add_argument("--max-steps", type=int, default=10)
    ap.add_argument("--width", type=int, default=640)
    ap.add_argument("--lr", type=float, default=3e-4)
    args = ap.parse_args()
    torch.manual_seed(16)
    random.seed(16)
    env = Pong(MATCHES, np.random.default_rng(16))
    policy = Policy(args.width)
    opt = torch.optim.Adam(policy.parameters(), lr=args.lr, fused=True)
    balance = 0.0
    with tempfile.TemporaryDirectory() as folder:
        league = League(folder, args.width)
        for k in range(args.rounds):
            if k == args.rounds // 5:
                began = time.perf_counter()
            if k % args.snapshot_every == 0:
                league.add(policy)
            seen, acts, rewards, alive = play(env, policy, league.opponent(), args.max_steps)
            returns = torch.from_numpy(np.flip(np.cumsum(np.flip(rewards, 0), 0), 0).copy())
            weight = torch.from_numpy(alive.astype(np.float32))
            advantage = (returns - (returns * weight).sum() / weight.sum()) * weight
            logp = F.log_softmax(policy(torch.from_numpy(seen)), -1).gather(-1, acts.unsqueeze(-1)).squeeze(-1)
            loss = -(advantage * logp).sum() / weight.sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
            balance = 0.98 * balance + 0.02 * float(rewards.sum())
            if k % 100 == 99:
                print(f"round {k + 1}: league of {len(league.names)}, balance {balance:+.2f}")
        rate = (args.rounds - args.rounds // 5) / (time.perf_counter() - began)
    check = sum(p.detach().double().abs().sum().item() for p in policy.parameters())
    print(json.dumps({"env_steps": None, "updates": args.rounds, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main()
