"""A small AlphaZero for five-in-a-row on a 9x9 board (place anywhere): PUCT search, self-play, a conv net."""
import argparse
import json
import math
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
N = 9
LINE = 5
WINDOWS = []
for r in range(N):
    for c in range(N):
        for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1)):
            if 0 <= r + (LINE - 1) * dr < N and 0 <= c + (LINE - 1) * dc < N:
                WINDOWS.append([(r + k * dr) * N + c + k * dc for k in range(LINE)])
THROUGH = [[w for w in WINDOWS if p in w] for p in range(N * N)]


def wins(board, move):
    me = board[move]
    return any(all(board[p] == me for p in w) for w in THROUGH[move])


class Net(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.c1 = nn.Conv2d(2, width, 3, padding=1)
        self.c2 = nn.Conv2d(width, width, 3, padding=1)
        self.pi = nn.Linear(width * N * N, N * N)
        self.v = nn.Linear(width * N * N, 1)

    def forward(self, x):
        h = F.relu(self.c2(F.relu(self.c1(x)))).flatten(1)
        return self.pi(h), torch.tanh(self.v(h)).squeeze(1)


def planes(board, player):
    b = np.asarray(board, dtype=np.int8)
    return np.stack([b == player, b == -player]).astype(np.float32).reshape(2, N, N)


class Node:
    __slots__ = ("prior", "n", "w", "children")

    def __init__(self, prior):
        self.prior = prior
        self.n = 0
        self.w = 0.0
        self.children = {}

    def score(self, child, c_puct=1.6):
        total = sum(c.n for c in self.children.values())
        q = -child.w / child.n if child.n else 0.0
        return q + c_puct * child.prior * math.sqrt(total + 1) / (1 + child.n)

    def select(self):
        return max(self.children.items(), key=lambda kv: self.score(kv[1]))


class Search:
    def __init__(self, net, rng):
        self.net, self.rng = net, rng

    @torch.no_grad()
    def expand(self, node, board, player):
        logits, value = self.net(torch.from_numpy(planes(board, player)[None]))
        logits = logits[0].numpy()
        free = [p for p in range(N * N) if board[p] == 0]
        e = np.exp(logits[free] - logits[free].max())
        for p, pr in zip(free, (e / e.sum()).tolist()):
            node.children[p] = Node(pr)
        return value.item()

    def run(self, board, player, sims):
        root = Node(1.0)
        self.expand(root, board, player)
        noise = self.rng.dirichlet([0.3] * len(root.children))
        for ch, x in zip(root.children.values(), noise.tolist()):
            ch.prior = 0.75 * ch.prior + 0.25 * x
        for _ in range(sims):
            node, b, who, path = root, board[:], player, [root]
            value = None
            while node.children:
                move, node = node.select()
                b[move] = who
                path.append(node)
                if wins(b, move):
                    value = -1.0
                elif 0 not in b:
                    value = 0.0
                who = -who
                if value is not None:
                    break
            if value is None:
                value = self.expand(node, b, who)
            for nd in reversed(path):
                nd.n += 1
                nd.w += value
                value = -value
        visits = np.zeros(N * N, dtype=np.float32)
        for p, ch in root.children.items():
            visits[p] = ch.n
        return visits / visits.sum()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--games", type=int, default=5)
    ap.add_argument("--sims", type=int, default=60)
    ap.add_argument("--seed", type=int, default=4)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    rng = np.random.default_rng(a.seed)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    search = Search(net, rng)
    memory, updates, moves, counted = [], 0, 0, 0
    t0 = None
    for g in range(a.games):
        if g == max(1, a.games // 5):
            t0, counted = time.perf_counter(), 0
        board, player, record, winner = [0] * (N * N), 1, [], 0
        while True:
            pi = search.run(board, player, a.sims)
            record.append((planes(board, player), pi, player))
            move = int(rng.choice(N * N, p=pi / pi.sum(dtype=np.float64))) if len(record) < 8 else int(pi.argmax())
            board[move] = player
            counted += 1
            moves += 1
            if wins(board, move):
                winner = player
                break
            if 0 not in board:
                break
            player = -player
        memory += [(x, pi, float(winner * who)) for x, pi, who in record]
        memory = memory[-2000:]
        for _ in range(12):
            idx = rng.integers(len(memory), size=64)
            x = torch.from_numpy(np.stack([memory[i][0] for i in idx]))
            p = torch.from_numpy(np.stack([memory[i][1] for i in idx]))
            z = torch.tensor([memory[i][2] for i in idx])
            logits, v = net(x)
            loss = -(p * F.log_softmax(logits, 1)).sum(1).mean() + F.mse_loss(v, z)
            opt.zero_grad()
            loss.backward()
            opt.step()
            updates += 1
        print(f"game {g + 1}: {len(record)} moves, winner {winner:+d}, loss {loss.item():.3f}")
    rate = counted / (time.perf_counter() - t0)
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": loss.item() + moves}))


if __name__ == "__main__":
    main()
