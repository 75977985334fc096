"""Recurrent A2C on a recall task: symbols are shown, then asked for in the same order. Many tasks side by side."""
import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SYMBOLS, SHOWN = 6, 5


class Recall:
    """For SHOWN steps a symbol is visible, then for SHOWN steps the agent must name them; every task restarts together."""

    def __init__(self, tasks, seed):
        self.tasks, self.rng = tasks, np.random.default_rng(seed)

    def reset(self):
        self.word = self.rng.integers(0, SYMBOLS, (2 * SHOWN, self.tasks))
        self.word[SHOWN:] = self.word[:SHOWN]
        self.t = 0
        return self.observe()

    def observe(self):
        obs = np.zeros((self.tasks, SYMBOLS + 1), np.float32)
        if self.t < SHOWN:
            obs[np.arange(self.tasks), self.word[self.t]] = 1.0
        else:
            obs[:, SYMBOLS] = 1.0
        return obs

    def step(self, actions):
        right = (actions == self.word[self.t]) & (self.t >= SHOWN)
        self.t += 1
        done = self.t == 2 * SHOWN
        return (None if done else self.observe()), right.astype(np.float32), done


class Recurrent(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.width = width
        self.encode = nn.Linear(SYMBOLS + 1, width)
        self.cell = nn.GRUCell(width, width)
        self.heads = nn.Linear(width, SYMBOLS + 1)

    def forward(self, obs, state):
        state = self.cell(F.relu(self.encode(obs)), state)
        out = self.heads(state)
        return out[:, :SYMBOLS], out[:, SYMBOLS], state


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--episodes", type=int, default=150)
    ap.add_argument("--tasks", type=int, default=512)
    args = ap.parse_args()
    torch.manual_seed(20)
    rng = np.random.default_rng(20)
    env, net = Recall(args.tasks, 20), Recurrent()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    start, checksum = None, 0.0
    for episode in range(args.episodes):
        if episode == args.episodes // 5:
            start = time.perf_counter()
        obs, done = env.reset(), False
        state = torch.zeros(args.tasks, net.width)
        log_probs, values, rewards, entropy = [], [], [], 0.0
        while not done:
            # the graph of acting is the one that is learnt from, so every state is computed once
            logits, value, state = net(torch.from_numpy(obs), state)
            logp = F.log_softmax(logits, dim=1)
            noise = rng.gumbel(size=logits.shape)
            actions = (logp.detach().numpy() + noise).argmax(1)
            obs, reward, done = env.step(actions)
            log_probs.append(logp.gather(1, torch.from_numpy(actions)[:, None]).squeeze(1))
            entropy = entropy - (logp.exp() * logp).sum(1).mean()
            values.append(value)
            rewards.append(reward)
        returns = torch.from_numpy(0.9 * np.stack(rewards)[::-1].cumsum(0)[::-1].copy())
        v = torch.stack(values)
        advantage = (returns - v).detach()
        loss = -(torch.stack(log_probs) * advantage).mean() + 0.5 * F.mse_loss(v, returns) - 0.002 * entropy
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        score = float(np.sum(rewards)) / args.tasks
        checksum += score
        if episode % 25 == 0:
            print(f"episode {episode:4d}: {score:.3f} of {SHOWN} right", flush=True)
    rate = (args.episodes - args.episodes // 5) / (time.perf_counter() - start)
    print(json.dumps({"env_steps": None, "updates": args.episodes, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
