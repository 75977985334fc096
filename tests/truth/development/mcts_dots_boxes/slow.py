"""UCT plays dots and boxes against itself and writes down how the opening edges are valued."""
import json
import math
import random
import time
from argparse import ArgumentParser
from dataclasses import dataclass, field


def make_board(n):
    """Edges of an n x n board of boxes, and for each edge the boxes it belongs to."""
    edges, boxes = {}, []
    for y in range(n + 1):
        for x in range(n):
            edges["h", x, y] = len(edges)
    for y in range(n):
        for x in range(n + 1):
            edges["v", x, y] = len(edges)
    for y in range(n):
        for x in range(n):
            boxes.append((edges["h", x, y], edges["h", x, y + 1], edges["v", x, y], edges["v", x + 1, y]))
    touching = [[sum(1 << e for e in b) for b in boxes if i in b] for i in range(len(edges))]
    return len(edges), touching


@dataclass
class State:
    taken: int = 0
    player: int = 0
    lead: int = 0

    def play(self, edge, touching):
        taken = self.taken | (1 << edge)
        won = 0
        for box in touching[edge]:
            won += box & taken == box
        lead = self.lead + (won if self.player == 0 else -won)
        return State(taken, self.player if won else 1 - self.player, lead)


@dataclass
class Node:
    state: State
    parent: "Node" = None
    untried: list = field(default_factory=list)
    children: dict = field(default_factory=dict)
    wins: float = 0.0
    ended: int = 0

    @property
    def visits(self):
        return self.ended + sum(child.visits for child in self.children.values())


class UCT:
    def __init__(self, n, simulations, seed):
        self.n_edges, self.touching = make_board(n)
        self.simulations = simulations
        self.rng = random.Random(seed)

    def legal(self, state):
        return [e for e in range(self.n_edges) if not state.taken >> e & 1]

    def new_node(self, state, parent=None):
        free = self.legal(state)
        self.rng.shuffle(free)
        return Node(state, parent, free)

    def best_child(self, node):
        log_n = math.log(node.visits)
        best, best_score = None, -1e9
        for child in node.children.values():
            n = child.visits
            mean = child.wins / n
            if node.state.player == 1:
                mean = 1.0 - mean
            score = mean + 1.2 * math.sqrt(log_n / n)
            if score > best_score:
                best, best_score = child, score
        return best

    def rollout(self, state):
        free = self.legal(state)
        self.rng.shuffle(free)
        for edge in free:
            state = state.play(edge, self.touching)
        return 1.0 if state.lead > 0 else 0.5 if state.lead == 0 else 0.0

    def search(self, state):
        root = self.new_node(state)
        for _ in range(self.simulations):
            node = root
            while not node.untried and node.children:
                node = self.best_child(node)
            if node.untried:
                edge = node.untried.pop()
                child = self.new_node(node.state.play(edge, self.touching), node)
                node.children[edge] = child
                node = child
            result = self.rollout(node.state)
            node.ended += 1
            while node is not None:
                node.wins += result
                node = node.parent
        return max(root.children, key=lambda e: root.children[e].visits), root


if __name__ == "__main__":
    cli = ArgumentParser()
    cli.add_argument("--games", type=int, default=60)
    cli.add_argument("--simulations", type=int, default=150)
    opt = cli.parse_args()
    uct = UCT(3, opt.simulations, seed=5)
    opening = [0.0] * uct.n_edges
    leads, moves, timed, began = [], 0, 0, None
    for game in range(opt.games):
        if game == opt.games // 5:
            began = time.perf_counter()
            timed = moves
        state = State()
        while state.taken != (1 << uct.n_edges) - 1:
            edge, root = uct.search(state)
            if state.taken == 0:
                opening[edge] += root.wins / root.visits
            state = state.play(edge, uct.touching)
            moves += 1
        leads.append(state.lead)
        print("game", game, "lead", state.lead)
    speed = (moves - timed) / (time.perf_counter() - began)
    check = sum((i + 1) * v for i, v in enumerate(opening)) + sum(leads)
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": speed, "checksum": check}))
