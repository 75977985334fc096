"""Counterfactual regret minimisation for one-card poker with 13 ranks (Kuhn's game with a larger deck).

Chance is sampled: each iteration deals a few hundred random hands. The average strategy approaches the equilibrium;
exploitability tells how far away it still is.
"""
import argparse
import json
import random
import time

RANKS = 13
TERMINAL = {"pp", "pbp", "pbb", "bp", "bb"}


def payoff(history, mine, other):
    """What the first player wins, if `mine` is the first player's card."""
    if history == "pp":
        return 1 if mine > other else -1
    if history == "pbp":
        return -1
    if history == "bp":
        return 1
    return 2 if mine > other else -2


class Node:
    __slots__ = ("regret", "total")

    def __init__(self):
        self.regret = [0.0, 0.0]
        self.total = [0.0, 0.0]

    def strategy(self):
        a, b = max(self.regret[0], 0.0), max(self.regret[1], 0.0)
        s = a + b
        return (a / s, b / s) if s > 0 else (0.5, 0.5)

    def average(self):
        s = self.total[0] + self.total[1]
        return (self.total[0] / s, self.total[1] / s) if s > 0 else (0.5, 0.5)


class Solver:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.nodes = {(card, h): Node() for card in range(RANKS) for h in ("", "p", "b", "pb")}

    def walk(self, cards, history, reach0, reach1):
        """Value for the first player; renews regrets of the player to move."""
        if history in TERMINAL:
            return payoff(history, cards[0], cards[1])
        player = len(history) % 2
        node = self.nodes[(cards[player], history)]
        p, b = node.strategy()
        if player == 0:
            v_p = self.walk(cards, history + "p", reach0 * p, reach1)
            v_b = self.walk(cards, history + "b", reach0 * b, reach1)
            own, other, sign = reach0, reach1, 1.0
        else:
            v_p = self.walk(cards, history + "p", reach0, reach1 * p)
            v_b = self.walk(cards, history + "b", reach0, reach1 * b)
            own, other, sign = reach1, reach0, -1.0
        value = p * v_p + b * v_b
        node.regret[0] += other * sign * (v_p - value)
        node.regret[1] += other * sign * (v_b - value)
        node.total[0] += own * p
        node.total[1] += own * b
        return value

    def iterate(self, deals):
        for _ in range(deals):
            self.walk(self.rng.sample(range(RANKS), 2), "", 1.0, 1.0)

    def respond(self, player, card, history, reach):
        """Best value for `player` with `card` against the average strategy; reach[c]: chance that the other holds c."""
        if history in TERMINAL:
            if player == 0:
                return sum(w * payoff(history, card, c) for c, w in reach.items())
            return -sum(w * payoff(history, c, card) for c, w in reach.items())
        if len(history) % 2 == player:
            return max(self.respond(player, card, history + move, reach) for move in "pb")
        value = 0.0
        for k, move in enumerate("pb"):
            narrowed = {c: w * self.nodes[(c, history)].average()[k] for c, w in reach.items()}
            value += self.respond(player, card, history + move, narrowed)
        return value

    def exploitability(self):
        total = 0.0
        for player in (0, 1):
            for card in range(RANKS):
                reach = {c: 1.0 / (RANKS * (RANKS - 1)) for c in range(RANKS) if c != card}
                total += self.respond(player, card, "", reach)
        return total / 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=5000)
    parser.add_argument("--deals", type=int, default=250)
    parser.add_argument("--seed", type=int, default=6)
    args = parser.parse_args()
    solver = Solver(args.seed)
    clock, first = 0.0, args.iterations // 5
    for i in range(args.iterations):
        if i == first:
            clock = time.perf_counter()
        solver.iterate(args.deals)
        if i % 100 == 0:
            gap = solver.exploitability()
            print(f"iteration {i:5d}  exploitability {gap:.5f}")
    speed = (args.iterations - first) / (time.perf_counter() - clock)
    print(f"final exploitability {solver.exploitability():.5f}")
    checksum = sum(sum(n.regret) for n in solver.nodes.values())
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": speed, "checksum": round(checksum, 6)}))


if __name__ == "__main__":
    main()
