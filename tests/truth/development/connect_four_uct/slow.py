"""Connect Four: Monte Carlo tree search plays itself, a table of opening values learns from the games. Plain Python."""
import argparse
import json
import math
import random
import time

WIDTH, HEIGHT = 7, 6
LINES = []
for y in range(HEIGHT):
    for x in range(WIDTH):
        for dx, dy in ((1, 0), (0, 1), (1, 1), (1, -1)):
            if 0 <= x + 3 * dx < WIDTH and 0 <= y + 3 * dy < HEIGHT:
                LINES.append(tuple((y + k * dy) * WIDTH + x + k * dx for k in range(4)))


class Position:
    __slots__ = ("board", "heights", "player", "winner", "moves")

    def __init__(self):
        self.board = [0] * (WIDTH * HEIGHT)
        self.heights = [0] * WIDTH
        self.player, self.winner, self.moves = 1, 0, 0

    def copy(self):
        other = Position.__new__(Position)
        other.board, other.heights = self.board[:], self.heights[:]
        other.player, other.winner, other.moves = self.player, self.winner, self.moves
        return other

    def legal(self):
        return [c for c in range(WIDTH) if self.heights[c] < HEIGHT]

    def over(self):
        return self.winner != 0 or self.moves == WIDTH * HEIGHT

    def play(self, column):
        cell = self.heights[column] * WIDTH + column
        self.board[cell] = self.player
        self.heights[column] += 1
        self.moves += 1
        if self.moves >= 7 and self.four_in_a_row(cell):
            self.winner = self.player
        self.player = -self.player

    def four_in_a_row(self, cell):
        board, me = self.board, self.player
        for a, b, c, d in LINES:
            if board[a] == me and board[b] == me and board[c] == me and board[d] == me:
                return True
        return False


class Node:
    __slots__ = ("parent", "move", "children", "untried", "visits", "wins", "mover")

    def __init__(self, position, parent=None, move=None):
        self.parent, self.move = parent, move
        self.children, self.untried = [], [] if position.over() else position.legal()
        self.visits, self.wins = 0, 0.0
        self.mover = -position.player

    def best_child(self, c):
        log_n = math.log(self.visits)
        return max(self.children, key=lambda n: n.wins / n.visits + c * math.sqrt(log_n / n.visits))


def search(position, simulations, rng, values, c=1.2):
    root = Node(position)
    for _ in range(simulations):
        node, state = root, position.copy()
        while not node.untried and node.children:
            node = node.best_child(c)
            state.play(node.move)
        if node.untried:
            move = node.untried.pop(rng.randrange(len(node.untried)))
            state.play(move)
            child = Node(state, node, move)
            node.children.append(child)
            node = child
        while not state.over():
            state.play(rng.choice(state.legal()))
        while node is not None:
            node.visits += 1
            node.wins += 0.5 if state.winner == 0 else float(state.winner == node.mover)
            node = node.parent
    key = tuple(position.board)
    bonus = values.get(key, {})
    return max(root.children, key=lambda n: n.visits + 5.0 * bonus.get(n.move, 0.0)), root


def self_play(simulations, rng, values):
    position, trail = Position(), []
    while not position.over():
        chosen, root = search(position, simulations, rng, values)
        trail.append((tuple(position.board), position.player, chosen.move))
        position.play(chosen.move)
    for key, player, move in trail[:8]:
        table = values.setdefault(key, {})
        outcome = position.winner * player
        table[move] = table.get(move, 0.0) + 0.1 * (outcome - table.get(move, 0.0))
    return position.winner, len(trail)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--games", type=int, default=45)
    ap.add_argument("--simulations", type=int, default=250)
    args = ap.parse_args()
    rng, values = random.Random(13), {}
    moves, counted, start, checksum = 0, 0, None, 0
    for game in range(args.games):
        if game == args.games // 5:
            start, counted = time.perf_counter(), moves
        winner, length = self_play(args.simulations, rng, values)
        moves += length
        checksum += (game + 1) * (10 * length + winner)
        if game % 5 == 0:
            print(f"game {game:2d}: winner {winner:2d} after {length} moves, {len(values)} positions in the table", flush=True)
    rate = (moves - counted) / (time.perf_counter() - start)
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
