# tiny AlphaZero for Connect Four: games are played side by side so that the net sees whole batches of leaves
import copy
import json
import math
import random
import sys
import time
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)

ROWS, COLS = 6, 7
C_PUCT = 1.5
PARALLEL_GAMES = 24
SIMULATIONS = 24
BATCH_SIZE = 128
UPDATES_PER_ROUND = 3
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 140  # one round = one move in each of the parallel games


class Move:
    """An entry of the game record."""

    __slots__ = ("column", "player", "row")

    def __init__(self, player, column, row):
        self.player = player
        self.column = column
        self.row = row


class ConnectFour:
    def __init__(self):
        self.columns = [[0] * ROWS for _ in range(COLS)]
        self.heights = [0] * COLS
        self.player = 1
        self.record = []
        self.winner = 0
        self.over = False

    def legal(self):
        return [c for c in range(COLS) if self.heights[c] < ROWS]

    def play(self, column):
        row = self.heights[column]
        self.columns[column][row] = self.player
        self.heights[column] = row + 1
        self.record.append(Move(self.player, column, row))
        if self.four_in_a_row(column, row):
            self.winner = self.player
            self.over = True
        elif len(self.record) == ROWS * COLS:
            self.over = True
        self.player = -self.player

    def four_in_a_row(self, column, row):
        me, columns = self.player, self.columns
        if row >= 3 and columns[column][row - 3 : row + 1] == [me] * 4:
            return True
        for slope in (-1, 0, 1):
            run = 1
            for side in (-1, 1):
                c, r = column + side, row + side * slope
                while 0 <= c < COLS and 0 <= r < ROWS and columns[c][r] == me:
                    run += 1
                    c += side
                    r += side * slope
            if run >= 4:
                return True
        return False

    def encode(self):
        board = np.array(self.columns, dtype=np.float32).ravel() * self.player
        return np.concatenate([board > 0, board < 0]).astype(np.float32)


class Net(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(2 * ROWS * COLS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.policy = nn.Linear(width, COLS)
        self.value = nn.Linear(width, 1)

    def forward(self, x):
        x = self.body(x)
        return self.policy(x), torch.tanh(self.value(x)).squeeze(-1)


class Node:
    __slots__ = ("children", "moves", "priors", "total", "values", "visits")

    def __init__(self, moves, priors):
        self.moves = moves
        self.priors = priors
        self.visits = [0] * len(moves)
        self.values = [0.0] * len(moves)
        self.children = [None] * len(moves)
        self.total = 0

    def select(self):
        root = C_PUCT * math.sqrt(self.total + 1)
        best, best_score = 0, -1e9
        for i, n in enumerate(self.visits):
            q = self.values[i] / n if n else 0.0
            score = q + root * self.priors[i] / (1 + n)
            if score > best_score:
                best, best_score = i, score
        return best


class Search:
    """Search tree of one game."""

    def __init__(self, game):
        self.game = game
        self.root = None

    def descend(self):
        """Walk to a leaf; returns the position there and the path to it."""
        position = copy.deepcopy(self.game)
        node, path = self.root, []
        while node is not None and not position.over:
            i = node.select()
            path.append((node, i))
            position.play(node.moves[i])
            node = node.children[i]
        return position, path

    def backup(self, path, value):
        # value: for the player to move at the leaf
        for node, i in reversed(path):
            value = -value
            node.visits[i] += 1
            node.total += 1
            node.values[i] += value


def expand(position, probs):
    moves = position.legal()
    priors = [probs[m] for m in moves]
    norm = sum(priors) + 1e-8
    return Node(moves, [p / norm for p in priors])


@torch.no_grad()
def net_eval(net, positions):
    logits, values = net(torch.from_numpy(np.stack([p.encode() for p in positions])))
    return F.softmax(logits, dim=-1).tolist(), values.tolist()


def run_searches(net, searches):
    probs, _ = net_eval(net, [s.game for s in searches])
    for s, p in zip(searches, probs, strict=True):
        noise = np.random.dirichlet([0.8] * COLS)
        s.root = expand(s.game, [0.75 * a + 0.25 * b for a, b in zip(p, noise.tolist(), strict=True)])
    for _ in range(SIMULATIONS):
        waiting = []
        for s in searches:
            position, path = s.descend()
            if position.over:
                s.backup(path, 0.0 if position.winner == 0 else -1.0)
            else:
                waiting.append((s, position, path))
        if not waiting:
            continue
        probs, values = net_eval(net, [w[1] for w in waiting])
        for (s, position, path), p, v in zip(waiting, probs, values, strict=True):
            parent, i = path[-1]
            parent.children[i] = expand(position, p)
            s.backup(path, v)


def train(net, opt, memory):
    batch = random.sample(memory, BATCH_SIZE)
    x = torch.from_numpy(np.stack([b[0] for b in batch]))
    pi = torch.from_numpy(np.stack([b[1] for b in batch]))
    z = torch.tensor([b[2] for b in batch])
    logits, v = net(x)
    loss = -(pi * F.log_softmax(logits, dim=-1)).sum(-1).mean() + F.mse_loss(v, z)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-4)
memory = deque(maxlen=4000)
games = [ConnectFour() for _ in range(PARALLEL_GAMES)]
logs = [[] for _ in games]
updates = finished = 0
t_start, r_start = time.perf_counter(), 0

for rnd in range(ROUNDS):
    if rnd == ROUNDS // 5:
        t_start, r_start = time.perf_counter(), rnd
    searches = [Search(g) for g in games]
    run_searches(net, searches)
    for k, s in enumerate(searches):
        game = games[k]
        target = np.zeros(COLS, dtype=np.float32)
        target[s.root.moves] = np.array(s.root.visits) / s.root.total
        logs[k].append((game.encode(), target, game.player))
        game.play(random.choices(s.root.moves, weights=s.root.visits)[0])
        if game.over:
            memory.extend((x, t, float(game.winner * player)) for x, t, player in logs[k])
            games[k], logs[k] = ConnectFour(), []
            finished += 1
    if len(memory) >= BATCH_SIZE:
        for _ in range(UPDATES_PER_ROUND):
            loss = train(net, opt, memory)
            updates += 1
        if rnd % 20 == 0:
            print(f"round {rnd}: {finished} games, loss {loss.item():.3f}")

elapsed = time.perf_counter() - t_start
checksum = sum(p.abs().sum().item() for p in net.parameters())
print(
    json.dumps(
        {
            "env_steps": None,
            "updates": updates,
            "units_per_s": (ROUNDS - r_start) / elapsed,
            "checksum": checksum,
        }
    )
)
