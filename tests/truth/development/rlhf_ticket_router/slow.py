# Fine-tune a tiny transformer that routes support tickets, with the human's thumbs up / thumbs down as reward.
# One "token" is generated per ticket: the department. REINFORCE with a batch baseline and an entropy bonus.
import argparse
import json
import random
import time
from collections import Counter
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

DEPARTMENTS = ["billing", "shipping", "returns", "technical", "account", "other"]
WORDS = {
    "billing": "invoice charged twice refund payment card declined receipt subscription renewal price",
    "shipping": "parcel tracking late delivery courier address customs lost delayed package",
    "returns": "return label exchange broken damaged wrong size refund replacement warranty",
    "technical": "crash error screen update install driver battery charging firmware reboot",
    "account": "password login email locked verification profile delete username settings privacy",
    "other": "opening hours store partnership career newsletter feedback suggestion question gift voucher",
}
FILLER = "hello please my the i have a since yesterday and cannot it was you could help thanks with order again still".split()


def write_tickets(n, rng):
    tickets = []
    for _ in range(n):
        dep = rng.randrange(len(DEPARTMENTS))
        topic = WORDS[DEPARTMENTS[dep]].split()
        words = [rng.choice(topic) if rng.random() < 0.35 else rng.choice(FILLER) for _ in range(rng.randint(14, 24))]
        tickets.append((" ".join(words), dep))
    return tickets


class BytePairs:
    """Byte pair encoding, learnt from the tickets themselves."""

    def __init__(self, texts, n_merges):
        words = Counter(w for t in texts for w in t.split())
        pieces = {w: list(w) + ["_"] for w in words}
        self.merges = []
        for _ in range(n_merges):
            pairs = Counter()
            for w, p in pieces.items():
                for pair in zip(p, p[1:]):
                    pairs[pair] += words[w]
            if not pairs:
                break
            best = max(pairs, key=lambda x: (pairs[x], x))
            self.merges.append(best)
            pieces = {w: self._merge(p, best) for w, p in pieces.items()}
        self.rank = {pair: i for i, pair in enumerate(self.merges)}
        symbols = sorted({c for w in words for c in w} | {"_"} | {a + b for a, b in self.merges})
        self.ids = {s: i + 1 for i, s in enumerate(symbols)}  # 0 pads

    @staticmethod
    def _merge(piece, pair):
        out, i = [], 0
        while i < len(piece):
            if i + 1 < len(piece) and (piece[i], piece[i + 1]) == pair:
                out.append(piece[i] + piece[i + 1])
                i += 2
            else:
                out.append(piece[i])
                i += 1
        return out

    def encode(self, text):
        ids = []
        for word in text.split():
            piece = list(word) + ["_"]
            while len(piece) > 1:
                pair = min(zip(piece, piece[1:]), key=lambda p: self.rank.get(p, 1 << 30))
                if pair not in self.rank:
                    break
                piece = self._merge(piece, pair)
            ids += [self.ids[s] for s in piece]
        return ids


@dataclass
class Config:
    width: int = 64
    heads: int = 4
    layers: int = 1
    context: int = 64
    batch: int = 48
    lr: float = 5e-4


class Router(nn.Module):
    def __init__(self, vocab, cfg):
        super().__init__()
        self.tok = nn.Embedding(vocab, cfg.width, padding_idx=0)
        self.pos = nn.Parameter(torch.randn(cfg.context, cfg.width) * 0.02)
        block = nn.TransformerEncoderLayer(cfg.width, cfg.heads, 2 * cfg.width, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(block, cfg.layers, enable_nested_tensor=False)
        self.head = nn.Linear(cfg.width, len(DEPARTMENTS))

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos[: tokens.shape[1]]
        pad = tokens == 0
        x = self.body(x, src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1).float()
        return self.head((x * keep).sum(1) / keep.sum(1))


def collate(rows, context):
    rows = [r[:context] for r in rows]
    width = max(map(len, rows))
    return torch.tensor([r + [0] * (width - len(r)) for r in rows])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=800)
    ap.add_argument("--tickets", type=int, default=400)
    args = ap.parse_args()
    cfg = Config()
    torch.set_num_threads(1)
    torch.manual_seed(21)
    rng = random.Random(21)
    tickets = write_tickets(args.tickets, rng)
    bpe = BytePairs([text for text, _ in tickets], 320)
    policy = Router(len(bpe.ids) + 1, cfg)
    opt = torch.optim.AdamW(policy.parameters(), lr=cfg.lr, fused=True)
    began, ups = 0.0, 0.0
    for step in range(args.steps):
        if step == args.steps // 5:
            began = time.perf_counter()
        picked = [rng.randrange(len(tickets)) for _ in range(cfg.batch)]
        tokens = collate([bpe.encode(tickets[i][0]) for i in picked], cfg.context)
        logp = F.log_softmax(policy(tokens), -1)
        choice = torch.multinomial(logp.detach().exp(), 1).squeeze(1)
        thumbs = [float(c == tickets[i][1]) if rng.random() < 0.95 else 0.0 for c, i in zip(choice.tolist(), picked)]
        reward = torch.tensor(thumbs)
        advantage = reward - reward.mean()
        taken = logp.gather(1, choice.unsqueeze(1)).squeeze(1)
        entropy = -(logp.exp() * logp).sum(1).mean()
        loss = -(advantage * taken).mean() - 0.01 * entropy
        opt.zero_grad()
        loss.backward()
        opt.step()
        ups = 0.95 * ups + 0.05 * sum(thumbs) / cfg.batch
        if step % 100 == 99:
            print(f"step {step + 1}: thumbs up {ups:.2f}, entropy {entropy.item():.2f}")
    rate = (args.steps - args.steps // 5) / (time.perf_counter() - began)
    check = sum(p.detach().double().abs().sum().item() for p in policy.parameters())
    print(json.dumps({"env_steps": None, "updates": args.steps, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main()
