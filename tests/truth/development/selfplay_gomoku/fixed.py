"""Self-play: Monte Carlo tree search with a learnt value function plays four in a row on a 6 x 6 board.

The value function is linear in counts of open lines; it is fitted by temporal differences after every game.
"""

import argparse
import json
import math
import random
import time

import numpy as np

SIZE, WIN = 6, 4


def all_lines():
    lines = []
    for r in range(SIZE):
        for c in range(SIZE):
            for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(r + k * dr, c + k * dc) for k in range(WIN)]
                if all(0 <= y < SIZE and 0 <= x < SIZE for y, x in cells):
                    lines.append([y * SIZE + x for y, x in cells])
    return np.array(lines)


LINES = all_lines()
THROUGH = [[tuple(line) for line in LINES.tolist() if cell in line] for cell in range(SIZE * SIZE)]


class Game:
    def __init__(self):
        self.board = [0] * (SIZE * SIZE)
        self.player = 1
        self.winner = 0
        self.moves = []

    def copy(self):
        other = Game.__new__(Game)
        other.board, other.moves = self.board.copy(), self.moves.copy()
        other.player, other.winner = self.player, self.winner
        return other

    def legal(self):
        return [i for i, v in enumerate(self.board) if v == 0]

    def play(self, cell):
        self.board[cell] = self.player
        self.moves.append(cell)
        for a, b, c, d in THROUGH[cell]:
            if self.board[a] == self.board[b] == self.board[c] == self.board[d]:
                self.winner = self.player
        self.player = -self.player

    def over(self):
        return self.winner != 0 or len(self.moves) == SIZE * SIZE


def features(game):
    """Numbers of lines with 1, 2 and 3 own stones only, for both players, from the mover's view."""
    cells = np.array(game.board, dtype=np.int8)[LINES] * game.player
    own, other = (cells == 1).sum(1), (cells == -1).sum(1)
    mine = np.bincount(own[other == 0], minlength=5)[1:4]
    theirs = np.bincount(other[own == 0], minlength=5)[1:4]
    return np.concatenate([mine, theirs, [1]]) / 20


class Node:
    __slots__ = ("children", "total", "visits")

    def __init__(self):
        self.children = {}
        self.visits = 0
        self.total = 0.0


class Player:
    def __init__(self):
        self.w = np.zeros(7)

    def value(self, game):
        if game.winner:
            return -1.0
        if game.over():
            return 0.0
        return math.tanh(float(features(game) @ self.w))

    def search(self, root_game, simulations):
        root = Node()
        for _ in range(simulations):
            game = root_game.copy()
            node, path = root, [root]
            while node.children and not game.over():
                log_n = math.log(node.visits)
                cell, node = max(
                    node.children.items(),
                    key=lambda kv: (
                        9e9
                        if not kv[1].visits
                        else -kv[1].total / kv[1].visits + math.sqrt(2 * log_n / kv[1].visits)
                    ),
                )
                game.play(cell)
                path.append(node)
            if not game.over() and not node.children:
                node.children = {cell: Node() for cell in game.legal()}
            v = self.value(game)
            for n in reversed(path):
                n.visits += 1
                n.total += v
                v = -v
        return max(root.children, key=lambda cell: root.children[cell].visits)

    def fit(self, positions, result, lr=0.05):
        for phi, player in positions:
            v = math.tanh(float(phi @ self.w))
            self.w += lr * (result * player - v) * (1 - v * v) * phi


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--games", type=int, default=20)
    ap.add_argument("--simulations", type=int, default=400)
    args = ap.parse_args()
    random.seed(1)
    player, moves, results = Player(), 0, []
    for number in range(args.games):
        if number == args.games // 5:
            t0, before = time.perf_counter(), moves
        game, positions = Game(), []
        for _ in range(2):
            game.play(random.choice(game.legal()))
        while not game.over():
            game.play(player.search(game, args.simulations))
            positions.append((features(game), game.player))
            moves += 1
        player.fit(positions, game.winner)
        results.append(game.winner)
        print(f"game {number}: {len(game.moves)} moves, winner {game.winner}")
    rate = (moves - before) / (time.perf_counter() - t0)
    print(
        json.dumps(
            {"env_steps": None, "updates": None, "units_per_s": rate, "checksum": float(player.w.sum())}
        )
    )


if __name__ == "__main__":
    main()
