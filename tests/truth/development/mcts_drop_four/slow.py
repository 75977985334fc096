"""AlphaZero in miniature: self-play with PUCT search on a four-in-a-row board."""
import argparse
import copy
import json
import math
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS, COLS = 5, 6
C_PUCT = 1.5
TEMPERATURE_MOVES = 8


class DropFour:
    def __init__(self):
        self.board = [[0] * COLS for _ in range(ROWS)]
        self.heights = [0] * COLS
        self.player = 1
        self.moves = []
        self.winner = 0

    def legal(self):
        return [c for c in range(COLS) if self.heights[c] < ROWS]

    def over(self):
        return self.winner != 0 or len(self.moves) == ROWS * COLS

    def play(self, col):
        row = self.heights[col]
        self.board[row][col] = self.player
        self.heights[col] += 1
        self.moves.append(col)
        if self._wins(row, col):
            self.winner = self.player
        self.player = -self.player

    def _wins(self, row, col):
        me = self.board[row][col]
        for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1)):
            run = 1
            for sign in (1, -1):
                r, c = row + sign * dr, col + sign * dc
                while 0 <= r < ROWS and 0 <= c < COLS and self.board[r][c] == me:
                    run += 1
                    r, c = r + sign * dr, c + sign * dc
            if run >= 4:
                return True
        return False

    def encode(self):
        return np.array(self.board, dtype=np.float32).ravel() * self.player


class PolicyValueNet(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(ROWS * COLS, hidden), nn.ReLU(),
                                  nn.Linear(hidden, hidden), nn.ReLU())
        self.heads = nn.Linear(hidden, COLS + 1)

    def forward(self, x):
        out = self.heads(self.body(x))
        return out[..., :COLS], torch.tanh(out[..., COLS])


class Node:
    __slots__ = ("prior", "visits", "total", "children")

    def __init__(self, prior):
        self.prior = prior
        self.visits = 0
        self.total = 0.0
        self.children = {}


class MCTS:
    def __init__(self, net, n_simulations):
        self.net = net
        self.n_simulations = n_simulations

    def evaluate(self, game):
        with torch.no_grad():
            out = self.net.heads(self.net.body(torch.from_numpy(game.encode()))).tolist()
        legal = game.legal()
        top = max(out[c] for c in legal)
        weights = [math.exp(out[c] - top) for c in legal]
        norm = sum(weights)
        return {c: w / norm for c, w in zip(legal, weights)}, math.tanh(out[COLS])

    def select(self, node):
        scale = C_PUCT * math.sqrt(node.visits)
        best, best_col, best_child = -1e9, None, None
        for col, child in node.children.items():
            q = -child.total / child.visits if child.visits else 0.0
            score = q + scale * child.prior / (1 + child.visits)
            if score > best:
                best, best_col, best_child = score, col, child
        return best_col, best_child

    def search(self, game):
        root = Node(1.0)
        for _ in range(self.n_simulations):
            node, sim = root, copy.deepcopy(game)
            path = [root]
            while node.children:
                col, node = self.select(node)
                sim.play(col)
                path.append(node)
            if sim.winner:
                value = -1.0
            elif sim.over():
                value = 0.0
            else:
                priors, value = self.evaluate(sim)
                node.children = {c: Node(p) for c, p in priors.items()}
            for n in reversed(path):
                n.visits += 1
                n.total += value
                value = -value
        counts = np.zeros(COLS)
        for col, child in root.children.items():
            counts[col] = child.visits
        return counts / counts.sum()


def self_play(mcts, rng):
    game = DropFour()
    history = []
    while not game.over():
        pi = mcts.search(game)
        history.append((game.encode(), pi, game.player))
        if len(game.moves) < TEMPERATURE_MOVES:
            col = int(rng.choice(COLS, p=pi))
        else:
            col = int(pi.argmax())
        game.play(col)
    return [(s, p, game.winner * who) for s, p, who in history]


def train(net, optimizer, replay, rng, steps=8, batch_size=64):
    for _ in range(steps):
        idx = rng.integers(0, len(replay), batch_size)
        states = torch.from_numpy(np.stack([replay[i][0] for i in idx]))
        pis = torch.from_numpy(np.stack([replay[i][1] for i in idx])).float()
        zs = torch.tensor([replay[i][2] for i in idx], dtype=torch.float32)
        logits, values = net(states)
        loss = -(pis * F.log_softmax(logits, dim=1)).sum(1).mean() + F.mse_loss(values, zs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("games", type=int, nargs="?", default=360)
    parser.add_argument("--simulations", type=int, default=50)
    args = parser.parse_args()

    torch.manual_seed(13)
    torch.set_num_threads(1)
    rng = np.random.default_rng(13)
    net = PolicyValueNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-4)
    mcts = MCTS(net, args.simulations)
    replay = []
    moves = updates = 0
    warm = args.games // 5

    for g in range(args.games):
        if g == warm:
            clock, moves_before = time.perf_counter(), moves
        samples = self_play(mcts, rng)
        moves += len(samples)
        replay.extend(samples)
        if len(replay) > 5000:
            del replay[:len(replay) - 5000]
        loss = train(net, optimizer, replay, rng)
        updates += 8
        if g % 10 == 0:
            print(f"game {g:4d}  length {len(samples):2d}  loss {loss:.3f}")

    seconds = time.perf_counter() - clock
    checksum = sum(p.detach().double().sum().item() for p in net.parameters())
    print(json.dumps({"env_steps": None, "updates": updates,
                      "units_per_s": (moves - moves_before) / seconds,
                      "checksum": round(checksum, 6)}))


if __name__ == "__main__":
    main()
