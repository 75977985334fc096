"""AlphaZero on Domineering: the player to move puts a vertical domino; the board is transposed after every move."""
import argparse
import json
import math
import time

import numpy as np
import torch
import torch.nn as nn

EPS = 1e-8


class Domineering:
    def __init__(self, size):
        self.size = size
        self.n_actions = (size - 1) * size

    def start(self):
        return np.zeros((self.size, self.size), np.bool_)

    def valid(self, board):
        return ~(board[:-1] | board[1:]).ravel()

    def play(self, board, action):
        row, col = divmod(int(action), self.size)
        after = board.copy()
        after[row, col] = after[row + 1, col] = True
        return np.ascontiguousarray(after.T)


class Net(nn.Module):
    def __init__(self, size, n_actions, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(size * size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.policy, self.value = nn.Linear(width, n_actions), nn.Linear(width, 1)

    def forward(self, x):
        h = self.body(x)
        return self.policy(h), torch.tanh(self.value(h)).squeeze(-1)


class Tree:
    """Search statistics of one game."""

    def __init__(self, game, c_puct):
        self.game, self.c_puct = game, c_puct
        self.Q, self.N = {}, {}
        self.Ns, self.Ps = {}, {}

    def best(self, s):
        total = math.sqrt(self.Ns[s] + EPS)
        return int((self.Q[s] + self.Ps[s] * total / (1 + self.N[s])).argmax())

    def descend(self, board):
        """Walk down to a position without statistics; returns the path, the position and its value if the game is over."""
        path = []
        while True:
            s = board.tobytes()
            if s not in self.Ps:
                valid = self.game.valid(board)
                return path, board, (None if valid.any() else -1.0), valid
            a = self.best(s)
            path.append((s, a))
            board = self.game.play(board, a)

    def expand(self, board, valid, prior):
        s = board.tobytes()
        self.Ps[s] = self.c_puct * prior
        self.Q[s] = np.where(valid, 0.0, -np.inf)
        self.N[s] = np.zeros(self.game.n_actions)
        self.Ns[s] = 0

    def backup(self, path, value):
        for s, a in reversed(path):
            value = -value
            q, counts = self.Q[s], self.N[s]
            n = counts[a]
            q[a] = (n * q[a] + value) / (n + 1)
            counts[a] = n + 1
            self.Ns[s] += 1

    def visits(self, board):
        return self.N[board.tobytes()]


@torch.no_grad()
def evaluate(net, boards, valids):
    logits, values = net(torch.from_numpy(np.stack(boards).reshape(len(boards), -1).astype(np.float32)))
    logits = logits.masked_fill(~torch.from_numpy(np.stack(valids)), -1e9)
    return torch.softmax(logits, -1).double().numpy(), values.double().numpy()


def search(net, trees, boards, simulations, rng):
    """One search in each game, the new leaves of all games evaluated together."""
    for sim in range(simulations):
        pending = []
        for tree, root in zip(trees, boards):
            path, leaf, value, valid = tree.descend(root)
            if value is None:
                pending.append((tree, path, leaf, valid))
            else:
                tree.backup(path, value)
        if pending:
            priors, values = evaluate(net, [p[2] for p in pending], [p[3] for p in pending])
            for (tree, path, leaf, valid), prior, value in zip(pending, priors, values.tolist()):
                if not path:
                    prior = 0.75 * prior + 0.25 * np.where(valid, rng.dirichlet(np.full(len(prior), 0.5)), 0.0)
                tree.expand(leaf, valid, prior)
                tree.backup(path, value)


def self_play(game, net, args, rng):
    boards = [game.start() for _ in range(args.games)]
    records, data, moves = [[] for _ in boards], [], 0
    live = list(range(args.games))
    while live:
        trees = [Tree(game, args.c_puct) for _ in live]
        search(net, trees, [boards[i] for i in live], args.simulations, rng)
        still = []
        for i, tree in zip(live, trees):
            counts = tree.visits(boards[i])
            pi = counts / counts.sum()
            records[i].append((boards[i], pi.astype(np.float32)))
            boards[i] = game.play(boards[i], rng.choice(len(pi), p=pi))
            moves += 1
            if game.valid(boards[i]).any():
                still.append(i)
            else:
                z = 1.0
                for board, target in reversed(records[i]):
                    data.append((board, target, z))
                    z = -z
        live = still
    return data, moves


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iterations", type=int, default=60)
    p.add_argument("--games", type=int, default=16)
    p.add_argument("--simulations", type=int, default=48)
    p.add_argument("--size", type=int, default=8)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--c-puct", type=float, default=1.5)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    game = Domineering(args.size)
    net = Net(args.size, game.n_actions, args.width)
    optim = torch.optim.Adam(net.parameters(), lr=args.lr, weight_decay=1e-4)
    updates, moves, started, marked = 0, 0, None, 0
    for it in range(args.iterations):
        if it == max(1, args.iterations // 5):
            started, marked = time.perf_counter(), moves
        data, played = self_play(game, net, args, rng)
        moves += played
        x = torch.from_numpy(np.stack([d[0] for d in data]).reshape(len(data), -1).astype(np.float32))
        pi = torch.from_numpy(np.stack([d[1] for d in data]))
        z = torch.tensor([d[2] for d in data])
        for _ in range(args.epochs):
            for idx in torch.randperm(len(x)).split(args.batch_size):
                logits, value = net(x[idx])
                loss = nn.functional.cross_entropy(logits, pi[idx]) + nn.functional.mse_loss(value, z[idx])
                optim.zero_grad()
                loss.backward()
                optim.step()
                updates += 1
        print(f"iteration {it} moves {moves} loss {loss.item():.3f}")
    speed = (moves - marked) / (time.perf_counter() - started)
    checksum = float(sum(q.detach().double().abs().sum() for q in net.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": speed, "checksum": checksum}))


if __name__ == "__main__":
    main()
