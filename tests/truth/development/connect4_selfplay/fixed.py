"""Self-play TD(0) for Connect Four on a 5x5 board, with novelty bonus for new positions."""

import argparse
import json
import random
import time

import numpy as np
import torch
from torch import nn

ROWS, COLS, WIN = 5, 5, 4


def empty_board():
    return [[0] * COLS for _ in range(ROWS)]


def legal(board):
    return [c for c in range(COLS) if board[0][c] == 0]


def drop(board, col, player):
    new = [row[:] for row in board]
    for r in range(ROWS - 1, -1, -1):
        if new[r][col] == 0:
            new[r][col] = player
            return new, r
    raise ValueError("column is full")


def wins(board, r, c):
    p = board[r][c]
    for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1)):
        n = 1
        for sign in (1, -1):
            i, j = r + sign * dr, c + sign * dc
            while 0 <= i < ROWS and 0 <= j < COLS and board[i][j] == p:
                n += 1
                i, j = i + sign * dr, j + sign * dc
        if n >= WIN:
            return True
    return False


def encode(board, player):
    return np.array(board, dtype=np.float32).ravel() * player


class Novelty:
    """Bonus the first time a position comes up."""

    def __init__(self, bonus=0.02):
        self.seen = set()
        self.bonus = bonus

    def __call__(self, board):
        key = tuple(map(tuple, board))
        if key in self.seen:
            return 0.0
        self.seen.add(key)
        return self.bonus


class SelfPlay:
    def __init__(self, seed):
        random.seed(seed)
        torch.manual_seed(seed)
        self.value = nn.Sequential(nn.Linear(ROWS * COLS, 64), nn.ReLU(), nn.Linear(64, 1), nn.Tanh())
        self.opt = torch.optim.SGD(self.value.parameters(), lr=0.02)
        self.novelty = Novelty()
        self.moves = 0
        self.updates = 0

    def choose(self, board, player, eps):
        moves = legal(board)
        if random.random() < eps:
            return random.choice(moves)
        after = np.stack([encode(drop(board, c, player)[0], player) for c in moves])
        with torch.no_grad():
            scores = self.value(torch.from_numpy(after)).squeeze(1).numpy()
        return moves[int(scores.argmax())]

    def play_game(self, eps):
        board, player = empty_board(), 1
        positions, bonuses, winner = [], [], 0
        while legal(board):
            col = self.choose(board, player, eps)
            board, row = drop(board, col, player)
            self.moves += 1
            positions.append(encode(board, player))
            bonuses.append(self.novelty(board))
            if wins(board, row, col):
                winner = player
                break
            player = -player
        return np.stack(positions), bonuses, winner

    def learn(self, positions, bonuses, winner):
        x = torch.from_numpy(positions)
        v = self.value(x).squeeze(1)
        with torch.no_grad():
            target = torch.empty_like(v)
            target[-1] = 1.0 if winner else 0.0
            if len(v) > 1:
                target[-2] = -1.0 if winner else 0.0
                target[:-2] = 0.95 * v[2:]
            target += torch.tensor(bonuses)
        loss = (v - target).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.updates += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--games", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=17)
    args = parser.parse_args()
    torch.set_num_threads(1)
    trainer = SelfPlay(args.seed)
    results = {-1: 0, 0: 0, 1: 0}
    t0, g0 = time.perf_counter(), 0
    for game in range(args.games):
        if game == args.games // 5:
            t0, g0 = time.perf_counter(), game
        positions, bonuses, winner = trainer.play_game(eps=0.3)
        trainer.learn(positions, bonuses, winner)
        results[winner] += 1
        if (game + 1) % 300 == 0:
            print(f"{game + 1} games: first {results[1]} draw {results[0]} second {results[-1]}")
    rate = (args.games - g0) / (time.perf_counter() - t0)
    checksum = sum(p.detach().double().sum().item() for p in trainer.value.parameters())
    print(
        json.dumps(
            {
                "env_steps": trainer.moves,
                "updates": trainer.updates,
                "units_per_s": rate,
                "checksum": checksum,
            }
        )
    )


if __name__ == "__main__":
    main()
