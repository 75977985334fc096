"""Decision transformer on logged walks of a point robot; the whole data set lives in tensors."""
import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

LENGTH = 60


def make_logs(count, seed):
    """Noisy proportional controllers of different skill drive a point to the origin; all walks at once."""
    rng = np.random.default_rng(seed)
    skill = rng.uniform(0.0, 1.0, (count, 1)).astype(np.float32)
    pos = rng.uniform(-2.0, 2.0, (count, 2)).astype(np.float32)
    vel = np.zeros_like(pos)
    obs, act, rew = [], [], []
    for _ in range(LENGTH):
        a = np.tanh(skill * (-1.5 * pos - 1.2 * vel) + (1.2 - skill) * rng.standard_normal(pos.shape, dtype=np.float32))
        obs.append(np.concatenate([pos, vel], axis=1))
        act.append(a)
        vel = 0.9 * vel + 0.1 * a
        pos = pos + vel
        rew.append(-np.sqrt(np.square(pos).sum(1)))
    rewards = np.stack(rew, axis=1)
    to_go = rewards[:, ::-1].cumsum(1)[:, ::-1].copy()
    arrays = np.stack(obs, axis=1), np.stack(act, axis=1), to_go[..., None] / 50.0
    return [torch.from_numpy(x.astype(np.float32)) for x in arrays]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.relu(self.up(self.norm2(x))))


class DecisionTransformer(nn.Module):
    def __init__(self, context, width=192, blocks=3, heads=4):
        super().__init__()
        self.embed_obs, self.embed_act, self.embed_ret = nn.Linear(4, width), nn.Linear(2, width), nn.Linear(1, width)
        self.when = nn.Parameter(0.02 * torch.randn(context, 1, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(blocks)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 2)

    def forward(self, obs, act, to_go):
        tokens = torch.stack([self.embed_ret(to_go), self.embed_obs(obs), self.embed_act(act)], dim=2) + self.when
        x = self.blocks(tokens.flatten(1, 2))
        return torch.tanh(self.head(self.norm(x[:, 1::3])))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=300)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--context", type=int, default=20)
    args = ap.parse_args()
    torch.manual_seed(10)
    obs, act, to_go = make_logs(2000, 10)
    model = DecisionTransformer(args.context)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=1e-4, fused=True)
    span, losses, start = torch.arange(args.context), [], None
    for update in range(args.updates):
        if update == args.updates // 5:
            start = time.perf_counter()
        who = torch.randint(len(obs), (args.batch, 1))
        when = torch.randint(LENGTH - args.context + 1, (args.batch, 1)) + span
        a = act[who, when]
        loss = F.mse_loss(model(obs[who, when], a, to_go[who, when]), a)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.detach())
        if update % 10 == 0:
            print(f"update {update:4d}: loss {loss.item():.4f}", flush=True)
    rate = (args.updates - args.updates // 5) / (time.perf_counter() - start)
    checksum = torch.stack(losses).sum().item()
    print(json.dumps({"env_steps": None, "updates": args.updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
