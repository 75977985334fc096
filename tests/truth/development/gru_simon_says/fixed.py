"""A recurrent policy plays Simon says: watch a melody, then press the same keys in the same order (A2C with a GRU)."""
import argparse
import json
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

KEYS = 4


@dataclass
class Melody:
    """A batch of games. First half: keys light up one by one. Second half: the player repeats them."""

    games: int
    length: int

    def reset(self):
        self.keys = torch.randint(KEYS, (self.games, self.length))
        self.t = 0
        return self.observe()

    def observe(self):
        obs = torch.zeros(self.games, KEYS + 1)
        if self.t < self.length:
            obs.scatter_(1, self.keys[:, self.t, None], 1.0)
        else:
            obs[:, KEYS] = 1.0
        return obs

    def step(self, pressed):
        reward = torch.zeros(self.games)
        if self.t >= self.length:
            reward = (pressed == self.keys[:, self.t - self.length]).float()
        self.t += 1
        done = self.t == 2 * self.length
        return (None if done else self.observe()), reward, done


class Player(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.gru = nn.GRU(KEYS + 1, hidden)
        self.pi = nn.Linear(hidden, KEYS)
        self.v = nn.Linear(hidden, 1)

    def forward(self, sequence):
        """sequence: (time, games, features)"""
        h, _ = self.gru(sequence)
        return self.pi(h), self.v(h).squeeze(-1)

    def next(self, obs, state):
        h, state = self.gru(obs.unsqueeze(0), state)
        return self.pi(h[0]), state


class Session:
    """What the player has seen in the games that are being played."""

    def __init__(self, player):
        self.player = player
        self.state = None

    @torch.inference_mode()
    def press(self, obs):
        logits, self.state = self.player.next(obs, self.state)
        return torch.multinomial(F.softmax(logits, -1), 1).squeeze(1)


def play(env, player):
    session, obs, done = Session(player), env.reset(), False
    seen, pressed, rewards = [], [], []
    while not done:
        a = session.press(obs)
        seen.append(obs)
        pressed.append(a)
        obs, r, done = env.step(a)
        rewards.append(r)
    return torch.stack(seen), torch.stack(pressed), torch.stack(rewards)


def update(player, opt, seen, pressed, rewards, gamma):
    returns, acc = torch.empty_like(rewards), torch.zeros(rewards.shape[1])
    for t in range(len(rewards) - 1, -1, -1):
        acc = returns[t] = rewards[t] + gamma * acc
    logits, values = player(seen)
    logp = F.log_softmax(logits, -1)
    advantage = returns - values
    policy_loss = -(logp.gather(-1, pressed.unsqueeze(-1)).squeeze(-1) * advantage.detach()).mean()
    entropy = -(logp.exp() * logp).sum(-1).mean()
    loss = policy_loss + 0.5 * advantage.pow(2).mean() - 0.02 * entropy
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(player.parameters(), 1.0)
    opt.step()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=400)
    ap.add_argument("--games", type=int, default=32)
    ap.add_argument("--length", type=int, default=10)
    ap.add_argument("--hidden", type=int, default=64)
    ap.add_argument("--gamma", type=float, default=0.5)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(28)
    env, player = Melody(args.games, args.length), Player(args.hidden)
    opt = torch.optim.Adam(player.parameters(), lr=args.lr, fused=True)
    right, began = 0.0, 0.0
    for it in range(args.iterations):
        if it == args.iterations // 5:
            began = time.perf_counter()
        seen, pressed, rewards = play(env, player)
        update(player, opt, seen, pressed, rewards, args.gamma)
        right = 0.95 * right + 0.05 * rewards.sum().item() / (args.games * args.length)
        if it % 50 == 49:
            print(f"iteration {it + 1}: {100 * right:.0f} % of the keys are right")
    rate = (args.iterations - args.iterations // 5) / (time.perf_counter() - began)
    check = sum(p.detach().double().abs().sum().item() for p in player.parameters())
    print(json.dumps({"env_steps": None, "updates": args.iterations, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main()
