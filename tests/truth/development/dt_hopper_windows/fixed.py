"""A small decision transformer on logged episodes of a noisy controller (offline, Dataset + DataLoader)."""
import argparse
import json
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def log_episodes(n, rng):
    """A damped two-mass oscillator driven by controllers of mixed quality."""
    episodes = []
    for _ in range(n):
        gain = rng.uniform(0.0, 2.0)
        length = int(rng.integers(150, 300))
        s = rng.normal(size=4)
        obs, act, rew = np.zeros((length, 4), np.float32), np.zeros((length, 1), np.float32), np.zeros(length)
        for t in range(length):
            a = np.clip(-gain * (s[1] + s[0]) + 0.3 * rng.normal(), -1, 1)
            obs[t], act[t] = s, a
            rew[t] = np.exp(-(s[0] ** 2 + s[2] ** 2))
            s = s + 0.05 * np.array([s[1], a - s[0] - 0.1 * s[1] + s[2], s[3], s[0] - s[2] - 0.1 * s[3]])
        episodes.append({"obs": obs, "act": act, "rew": rew})
    return episodes


class Windows(Dataset):
    def __init__(self, episodes, context, gamma):
        self.episodes, self.context, self.gamma = episodes, context, gamma
        self.rtg = [self.returns_to_go(ep["rew"])[:, None] for ep in episodes]
        self.index = [(i, t) for i, ep in enumerate(episodes) for t in range(len(ep["rew"]) - context)]

    def __len__(self):
        return len(self.index)

    def returns_to_go(self, rewards):
        out, acc = np.zeros(len(rewards), np.float32), 0.0
        for t in range(len(rewards) - 1, -1, -1):
            acc = rewards[t] + self.gamma * acc
            out[t] = acc
        return out

    def __getitem__(self, k):
        i, t = self.index[k]
        ep, w = self.episodes[i], slice(t, t + self.context)
        return ep["obs"][w], ep["act"][w], self.rtg[i][w], np.arange(t, t + self.context)


class DecisionTransformer(nn.Module):
    def __init__(self, obs_dim, act_dim, context, width=48, layers=1, heads=2):
        super().__init__()
        self.o, self.a, self.r = nn.Linear(obs_dim, width), nn.Linear(act_dim, width), nn.Linear(1, width)
        self.time = nn.Embedding(512, width)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(width, act_dim), nn.Tanh())
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(3 * context))

    def forward(self, obs, act, rtg, when):
        t = self.time(when)
        tokens = torch.stack([self.r(rtg / 20.0) + t, self.o(obs) + t, self.a(act) + t], 2).flatten(1, 2)
        h = self.body(tokens, mask=self.mask, is_causal=True)
        return self.head(h[:, 1::3])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--updates", type=int, default=480)
    p.add_argument("--episodes", type=int, default=80)
    p.add_argument("--context", type=int, default=10)
    p.add_argument("--batch", type=int, default=64)
    args = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(14)
    data = Windows(log_episodes(args.episodes, np.random.default_rng(14)), args.context, 0.99)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True,
                        generator=torch.Generator().manual_seed(14))
    model = DecisionTransformer(4, 1, args.context)
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    done, t0 = 0, None
    while done < args.updates:
        for obs, act, rtg, when in loader:
            if done == args.updates // 5:
                t0 = time.perf_counter()
            loss = nn.functional.mse_loss(model(obs, act, rtg, when), act)
            opt.zero_grad()
            loss.backward()
            opt.step()
            done += 1
            if done % 100 == 0:
                print(f"update {done} loss {loss.item():.4f}")
            if done == args.updates:
                break
    rate = (args.updates - args.updates // 5) / (time.perf_counter() - t0)
    check = sum(q.detach().double().sum().item() for q in model.parameters())
    print(json.dumps({"env_steps": None, "updates": done, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main()
