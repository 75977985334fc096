"""Decision Transformer on logged ferry crossings.

A ferry has to cross a river with a random current and stop at the jetty on the other side. The log holds
crossings of pilots of very different skill; the transformer is conditioned on the return-to-go.
"""
import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=3)
    p.add_argument("--crossings", type=int, default=600)
    p.add_argument("--crossing-length", type=int, default=80)
    p.add_argument("--context", type=int, default=10)
    p.add_argument("--embed", type=int, default=64)
    p.add_argument("--heads", type=int, default=8)
    p.add_argument("--layers", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--iterations", type=int, default=4000)
    p.add_argument("--lr", type=float, default=6e-4)
    p.add_argument("--log-every", type=int, default=100)
    return p.parse_args()


def ferry_step(pos, vel, current, action):
    vel = 0.92 * vel + 0.1 * action
    pos = pos + 0.1 * (vel + current)
    dist = np.linalg.norm(pos - np.array([0.0, 4.0]), axis=1)
    reward = -0.1 * dist - 0.02 * (action**2).sum(1) + (dist < 0.3)
    return pos, vel, reward


def log_crossings(n, length, rng):
    """All pilots sail at once; skill is how well each of them knows the current."""
    skill = rng.uniform(0.0, 1.0, (n, 1))
    pos = rng.normal(0.0, 0.5, (n, 2))
    vel = np.zeros((n, 2))
    current = rng.normal(0.0, 0.5, (n, 2))
    obs = np.zeros((n, length, 6), np.float32)
    act = np.zeros((n, length, 2), np.float32)
    rew = np.zeros((n, length), np.float32)
    for t in range(length):
        obs[:, t] = np.concatenate([pos, vel, current], 1)
        ideal = 1.5 * (np.array([0.0, 4.0]) - pos) - 2.0 * vel - current
        action = np.clip(skill * ideal + (1 - skill) * rng.normal(0, 1, (n, 2)), -1, 1)
        pos, vel, reward = ferry_step(pos, vel, current, action)
        act[:, t], rew[:, t] = action, reward
    rtg = np.flip(np.cumsum(np.flip(rew, 1), 1), 1).copy()
    return obs, act, rtg


class MultiHeadAttention(nn.Module):
    """Causal self-attention."""

    def __init__(self, embed, heads, block):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(embed, 3 * embed, bias=False)
        self.proj = nn.Linear(embed, embed)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(out.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, embed, heads, block):
        super().__init__()
        self.attention = MultiHeadAttention(embed, heads, block)
        self.mlp = nn.Sequential(nn.Linear(embed, 4 * embed), nn.GELU(), nn.Linear(4 * embed, embed))
        self.ln1 = nn.LayerNorm(embed)
        self.ln2 = nn.LayerNorm(embed)

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class DecisionTransformer(nn.Module):
    def __init__(self, obs_dim, act_dim, args):
        super().__init__()
        e = args.embed
        self.embed_rtg = nn.Linear(1, e)
        self.embed_obs = nn.Linear(obs_dim, e)
        self.embed_act = nn.Linear(act_dim, e)
        self.embed_time = nn.Embedding(args.crossing_length, e)
        self.ln_in = nn.LayerNorm(e)
        self.blocks = nn.Sequential(*[Block(e, args.heads, 3 * args.context) for _ in range(args.layers)])
        self.ln_out = nn.LayerNorm(e)
        self.to_act = nn.Linear(e, act_dim)

    def forward(self, rtg, obs, act, time_idx):
        B, K = time_idx.shape
        te = self.embed_time(time_idx)
        tokens = torch.stack([self.embed_rtg(rtg) + te, self.embed_obs(obs) + te, self.embed_act(act) + te], 2)
        h = self.blocks(self.ln_in(tokens.reshape(B, 3 * K, -1)))
        h = self.ln_out(h).view(B, K, 3, -1)
        return torch.tanh(self.to_act(h[:, :, 1]))


@torch.no_grad()
def sail(model, args, target, n=32):
    """Roll the conditioned policy out for a few crossings at once and return the mean return."""
    rng = np.random.default_rng(99)
    pos, vel = rng.normal(0.0, 0.5, (n, 2)), np.zeros((n, 2))
    current = rng.normal(0.0, 0.5, (n, 2))
    L, K = args.crossing_length, args.context
    obs, act, rtg = torch.zeros(n, L, 6), torch.zeros(n, L, 2), torch.zeros(n, L, 1)
    total, left = np.zeros(n), np.full(n, target)
    for t in range(L):
        obs[:, t] = torch.as_tensor(np.concatenate([pos, vel, current], 1))
        rtg[:, t, 0] = torch.as_tensor(left / 20.0)
        lo = max(0, t + 1 - K)
        when = torch.arange(lo, t + 1).expand(n, -1)
        a = model(rtg[:, lo : t + 1], obs[:, lo : t + 1], act[:, lo : t + 1], when)[:, -1]
        act[:, t] = a
        pos, vel, reward = ferry_step(pos, vel, current, a.numpy())
        total += reward
        left = left - reward
    return float(total.mean())


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    obs, act, rtg = (torch.from_numpy(x) for x in log_crossings(args.crossings, args.crossing_length, rng))
    rtg = rtg.unsqueeze(-1) / 20.0

    model = DecisionTransformer(6, 2, args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
    window = torch.arange(args.context)
    last_start = args.crossing_length - args.context
    mark, mark_at, running = None, args.iterations // 5, 0.0
    for it in range(args.iterations):
        if it == mark_at:
            mark = time.perf_counter()
        rows = torch.randint(args.crossings, (args.batch_size, 1))
        when = torch.randint(last_start + 1, (args.batch_size, 1)) + window
        pred = model(rtg[rows, when], obs[rows, when], act[rows, when], when)
        loss = F.mse_loss(pred, act[rows, when])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        running += loss.detach()
        if (it + 1) % args.log_every == 0:
            print(f"iteration {it + 1}: loss {running.item() / args.log_every:.4f}")
            running = 0.0
    speed = (args.iterations - mark_at) / (time.perf_counter() - mark)
    print(f"return when asked for a good crossing: {sail(model, args, float(rtg[:, 0].max()) * 20.0):.2f}")
    checksum = sum(p.double().abs().sum().item() for p in model.parameters())
    print(json.dumps({"env_steps": None, "updates": args.iterations, "units_per_s": speed, "checksum": checksum}))


if __name__ == "__main__":
    main()
