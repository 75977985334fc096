# TD(0) on afterstates: 4x4 noughts and crosses, three in a row win. The opponent wins if it can, else plays anywhere.
import argparse
import json
import time

import numpy as np

N = 4


def all_lines():
    lines = []
    for r in range(N):
        for c in range(N):
            for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(r + k * dr, c + k * dc) for k in range(3)]
                if all(0 <= y < N and 0 <= x < N for y, x in cells):
                    lines.append([y * N + x for y, x in cells])
    return np.array(lines)


LINES = all_lines()


def wins(board, player):
    return bool((board[LINES].sum(axis=1) == 3 * player).any())


def key_of(board):
    return board.tobytes()


class Learner:
    def __init__(self, alpha, epsilon, rng):
        self.values = {}
        self.alpha, self.epsilon, self.rng = alpha, epsilon, rng
        self.last_key = None

    def new_game(self):
        self.last_key = None

    def move(self, board):
        cells = np.flatnonzero(board == 0)
        best_value, best_key, best_cell = -2.0, None, -1
        for cell in cells:
            board[cell] = 1
            key = key_of(board)
            value = self.values.get(key)
            if value is None:
                value = self.values[key] = 1.0 if wins(board, 1) else 0.0
            board[cell] = 0
            if value > best_value:
                best_value, best_key, best_cell = value, key, cell
        if self.rng.random() < self.epsilon:
            best_cell = int(self.rng.choice(cells))
            board[best_cell] = 1
            self.last_key = key_of(board)
            return
        self.learn(best_value)
        board[best_cell] = 1
        self.last_key = best_key

    def learn(self, target):
        if self.last_key is not None:
            old = self.values.get(self.last_key, 0.0)
            self.values[self.last_key] = old + self.alpha * (target - old)


def opponent_move(board, rng):
    chances = LINES[board[LINES].sum(axis=1) == -2]
    if len(chances):
        board[chances[0]] = -1
    else:
        board[rng.choice(np.flatnonzero(board == 0))] = -1


def play(learner, rng):
    """One game. +1 if the learner wins, -1 if it loses, 0 for a draw."""
    board = np.zeros(N * N, dtype=np.int8)
    learner.new_game()
    if rng.random() < 0.5:
        opponent_move(board, rng)
    while True:
        learner.move(board)
        if wins(board, 1):
            return 1
        if not (board == 0).any():
            learner.learn(0.0)
            return 0
        opponent_move(board, rng)
        if wins(board, -1):
            learner.learn(-1.0)
            return -1
        if not (board == 0).any():
            learner.learn(0.0)
            return 0


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--games", type=int, default=100_000)
    ap.add_argument("--seed", type=int, default=8)
    args = ap.parse_args()
    rng = np.random.default_rng(args.seed)
    learner = Learner(alpha=0.2, epsilon=0.08, rng=rng)
    tally = {1: 0, 0: 0, -1: 0}
    begin = args.games // 5
    for game in range(args.games):
        if game == begin:
            clock = time.perf_counter()
        tally[play(learner, rng)] += 1
        if (game + 1) % 2000 == 0:
            print(f"{game + 1} games: won {tally[1]}, drawn {tally[0]}, lost {tally[-1]}; {len(learner.values)} positions")
            tally = dict.fromkeys(tally, 0)
    speed = (args.games - begin) / (time.perf_counter() - clock)
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": speed,
                      "checksum": round(sum(learner.values.values()), 6)}))


main()
