"""AlphaZero-like self-play: eight games at a time on a 4 x 4 board, search with a small network."""

import json
import math
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SIDE, CELLS, GAMES, SIMULATIONS, EXPLORE = 4, 16, 8, 20, 1.5


def fences(board):
    """Neighbouring pairs of the player to move minus those of the other player."""
    grid = board.reshape(SIDE, SIDE)
    across, down = grid[:, :-1] * (grid[:, :-1] == grid[:, 1:]), grid[:-1] * (grid[:-1] == grid[1:])
    return int(across.sum() + down.sum())


class Node:
    __slots__ = ("board", "children", "left", "moves", "priors", "sums", "visits")

    def __init__(self, board, left):
        self.board, self.left, self.moves, self.children = board, left, None, {}

    def expand(self, priors):
        self.moves = np.flatnonzero(self.board == 0)
        wanted = priors[self.moves] + 1e-6
        self.priors = (wanted / wanted.sum()).tolist()
        self.visits, self.sums = [0] * len(self.moves), [0.0] * len(self.moves)

    def best(self):
        root = EXPLORE * math.sqrt(1 + sum(self.visits))
        best, which = -math.inf, 0
        for i, (prior, visits, total) in enumerate(zip(self.priors, self.visits, self.sums, strict=True)):
            score = (total / visits if visits else 0.0) + root * prior / (1 + visits)
            if score > best:
                best, which = score, i
        return which

    def child(self, which):
        if which not in self.children:
            board = -self.board
            board[self.moves[which]] = -1.0
            self.children[which] = Node(board, self.left - 1)
        return self.children[which]


class PolicyValue(nn.Module):
    def __init__(self, hidden=192):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(CELLS, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
        )
        self.policy, self.value = nn.Linear(hidden, CELLS), nn.Linear(hidden, 1)

    def forward(self, boards):
        x = self.body(boards)
        return self.policy(x), torch.tanh(self.value(x)).squeeze(-1)


def descend(root):
    """Follow the best moves to a node without children; also the moves taken."""
    node, path = root, []
    while node.moves is not None and node.left > 0:
        which = node.best()
        path.append((node, which))
        node = node.child(which)
    return node, path


def back_up(path, value):
    """`value` is that of the last node for its player to move."""
    for node, which in reversed(path):
        value = -value
        node.visits[which] += 1
        node.sums[which] += value


@torch.inference_mode()
def evaluate(net, leaves):
    """Expand the leaves and return their values."""
    logits, values = net(torch.from_numpy(np.stack([leaf.board for leaf in leaves])))
    for leaf, priors in zip(leaves, logits.softmax(-1).numpy(), strict=True):
        leaf.expand(priors)
    return values.tolist()


def search(net, roots):
    """Run SIMULATIONS from each root."""
    for root in roots:
        for _ in range(SIMULATIONS):
            leaf, path = descend(root)
            value = np.sign(fences(leaf.board)) if leaf.left == 0 else evaluate(net, [leaf])[0]
            back_up(path, value)


def play(net, rng):
    """Boards, visit shares and outcomes of GAMES games."""
    roots = [Node(np.zeros(CELLS, np.float32), CELLS) for _ in range(GAMES)]
    boards, targets = [], []
    for _ in range(CELLS):
        search(net, roots)
        for g, root in enumerate(roots):
            share = np.zeros(CELLS, np.float32)
            share[root.moves] = np.array(root.visits) / sum(root.visits)
            boards.append(root.board)
            targets.append(share)
            move = rng.choice(CELLS, p=share.astype(float) / share.sum(dtype=float))
            following = root.child(int(np.searchsorted(root.moves, move)))
            roots[g] = Node(following.board, following.left)
    ends = np.sign([fences(root.board) for root in roots])
    sides = (-1.0) ** np.arange(CELLS)
    outcomes = (sides[:, None] * ends[None, :]).astype(np.float32).ravel()
    return torch.from_numpy(np.array(boards)), torch.from_numpy(np.array(targets)), torch.from_numpy(outcomes)


def main(iterations):
    torch.manual_seed(2)
    torch.set_num_threads(1)
    rng = np.random.default_rng(2)
    net = PolicyValue()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    marks = []
    for _ in range(iterations):
        marks.append(time.perf_counter())
        boards, targets, outcomes = play(net, rng)
        for _ in range(4):
            logits, values = net(boards)
            loss = F.cross_entropy(logits, targets) + F.mse_loss(values, outcomes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    marks.append(time.perf_counter())
    first = iterations // 5
    rate = (iterations - first) / (marks[-1] - marks[first])
    checksum = float(sum(p.detach().abs().sum() for p in net.parameters()))
    print(
        json.dumps({"env_steps": None, "updates": 4 * iterations, "units_per_s": rate, "checksum": checksum})
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
