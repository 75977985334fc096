"""Reversi on a 6x6 board: PUCT search with a linear evaluation that learns from its own games."""
import json
import math
import random
import sys
import time

SIZE = 6
CELLS = SIZE * SIZE
C_PUCT = 1.6
# Squares that are the same by symmetry share a weight.
KIND = [min(r, SIZE - 1 - r, key=lambda x: x) * SIZE + min(c, SIZE - 1 - c) for r in range(SIZE) for c in range(SIZE)]
KIND = [min(k, (k % SIZE) * SIZE + k // SIZE) for k in KIND]
NAMES = {k: i for i, k in enumerate(sorted(set(KIND)))}
KIND = [NAMES[k] for k in KIND]
N_KINDS = len(NAMES)


def make_rays():
    rays = []
    for cell in range(CELLS):
        r, c = divmod(cell, SIZE)
        mine = []
        for dr, dc in ((0, 1), (1, 0), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1)):
            ray, y, x = [], r + dr, c + dc
            while 0 <= y < SIZE and 0 <= x < SIZE:
                ray.append(y * SIZE + x)
                y, x = y + dr, x + dc
            if len(ray) > 1:
                mine.append(tuple(ray))
        rays.append(tuple(mine))
    return tuple(rays)


RAYS = make_rays()


def flips(board, cell, me):
    """Discs turned by a move of `me`; empty if the move is illegal."""
    turned = []
    for ray in RAYS[cell]:
        if board[ray[0]] != -me:
            continue
        run = []
        for at in ray:
            disc = board[at]
            if disc == -me:
                run.append(at)
            else:
                if disc == me:
                    turned += run
                break
    return turned


def legal(board, me):
    """Move -> discs it turns."""
    moves = {}
    for cell in range(CELLS):
        if board[cell] == 0:
            turned = flips(board, cell, me)
            if turned:
                moves[cell] = turned
    return moves


class Node:
    """A position, seen by the player who is to move. Passing is done by the constructor."""

    __slots__ = ("board", "me", "moves", "children", "priors", "visits", "total", "over")

    def __init__(self, board, me):
        self.board = board
        self.moves = legal(board, me)
        self.over = False
        if not self.moves:
            me = -me
            self.moves = legal(board, me)
            self.over = not self.moves
        self.me = me
        self.children, self.priors = {}, None
        self.visits, self.total = 0, 0.0

    def play(self, cell):
        board = self.board.copy()
        board[cell] = self.me
        for at in self.moves[cell]:
            board[at] = self.me
        return Node(board, -self.me)


class Player:
    def __init__(self, seed, simulations):
        self.rng = random.Random(seed)
        self.simulations = simulations
        self.weights = [0.0] * N_KINDS

    def features(self, board):
        x = [0] * N_KINDS
        for kind, disc in zip(KIND, board):
            x[kind] += disc
        return x

    def value(self, board):
        """Expected result for the side with discs +1."""
        return math.tanh(sum(w * x for w, x in zip(self.weights, self.features(board))))

    def expand(self, node):
        scores = [math.exp(2.0 * self.weights[KIND[cell]]) for cell in node.moves]
        norm = sum(scores)
        node.priors = {cell: s / norm for cell, s in zip(node.moves, scores)}

    def select(self, node):
        root = C_PUCT * math.sqrt(node.visits)
        best, choice = -1e9, None
        for cell, prior in node.priors.items():
            child = node.children.get(cell)
            if child is None:
                score = root * prior
            else:
                q = child.total / child.visits * (1 if child.me == node.me else -1)
                score = q + root * prior / (1 + child.visits)
            if score > best:
                best, choice = score, cell
        if choice not in node.children:
            node.children[choice] = node.play(choice)
        return node.children[choice]

    def search(self, root):
        for _ in range(self.simulations):
            node, path = root, [root]
            while node.priors:
                node = self.select(node)
                path.append(node)
            if node.over:
                discs = sum(node.board)
                result = (discs > 0) - (discs < 0)
            else:
                self.expand(node)
                result = self.value(node.board)
            for seen in path:
                seen.visits += 1
                seen.total += result * seen.me
        return root

    def choose(self, root, ply):
        counts = {cell: root.children[cell].visits if cell in root.children else 0 for cell in root.moves}
        if ply < 8:
            return self.rng.choices(list(counts), [1 + v for v in counts.values()])[0]
        return max(counts, key=counts.get)

    def learn(self, boards, result, rate=0.01):
        for board in boards:
            x = self.features(board)
            v = math.tanh(sum(w * f for w, f in zip(self.weights, x)))
            step = rate * (result - v) * (1 - v * v)
            self.weights = [w + step * f for w, f in zip(self.weights, x)]


def start():
    board = [0] * CELLS
    mid = SIZE // 2
    board[(mid - 1) * SIZE + mid] = board[mid * SIZE + mid - 1] = 1
    board[(mid - 1) * SIZE + mid - 1] = board[mid * SIZE + mid] = -1
    return Node(board, 1)


def play_game(player):
    root, boards = start(), []
    while not root.over:
        player.search(root)
        boards.append(root.board)
        cell = player.choose(root, len(boards))
        root = root.children.get(cell) or root.play(cell)
    discs = sum(root.board)
    result = (discs > 0) - (discs < 0)
    player.learn(boards, result)
    return len(boards), result


if __name__ == "__main__":
    games = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    player = Player(seed=17, simulations=100)
    moves, skip = 0, games // 5
    for game in range(games):
        if game == skip:
            began, moves = time.perf_counter(), 0
        n, result = play_game(player)
        moves += n
        print(f"game {game}: {n} moves, {'black' if result > 0 else 'white' if result < 0 else 'nobody'} wins")
    rate = moves / (time.perf_counter() - began)
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": sum(player.weights)}))
