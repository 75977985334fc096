"""
Self-play Connect Four with an afterstate value network (TD-Gammon style).

Every position reachable in one move is valued by the network from the mover's point of view; the
move is picked epsilon-greedily. After each game the network is fitted to TD(lambda) targets.
"""
import json
import random
import sys
import time

import numpy as np
import torch
import torch.nn as nn

ROWS, COLS = 6, 7


class ConnectFour:
    def reset(self):
        self.board = np.zeros((ROWS, COLS), dtype=np.float32)
        self.heights = [0] * COLS
        self.player = 1
        self.moves = 0
        return self.board

    def legal_moves(self):
        return [c for c in range(COLS) if self.heights[c] < ROWS]

    def afterstate(self, col):
        """Board after the move, seen by the player who made it (+1 = own stones)."""
        after = self.board * self.player
        after[self.heights[col], col] = 1.0
        return after.ravel()

    def step(self, col):
        row = self.heights[col]
        self.board[row, col] = self.player
        self.heights[col] += 1
        self.moves += 1
        won = self._wins(row, col)
        self.player = -self.player
        done = won or self.moves == ROWS * COLS
        return self.board, float(won), done, {}

    def _wins(self, row, col):
        cells = self.board.tolist()
        me = cells[row][col]
        for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1)):
            count = 1
            for sign in (1, -1):
                r, c = row + sign * dr, col + sign * dc
                while 0 <= r < ROWS and 0 <= c < COLS and cells[r][c] == me:
                    count += 1
                    r, c = r + sign * dr, c + sign * dc
            if count >= 4:
                return True
        return False


class ValueNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(ROWS * COLS, 128), nn.ReLU(),
            nn.Linear(128, 64), nn.ReLU(),
            nn.Linear(64, 1), nn.Tanh(),
        )

    def forward(self, x):
        return self.body(x).squeeze(-1)


class SelfPlayAgent:
    def __init__(self, lr=5e-4, epsilon=0.15, lam=0.8):
        self.net = ValueNet()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=lr)
        self.epsilon = epsilon
        self.lam = lam

    @torch.no_grad()
    def choose(self, game):
        """Returns (column, afterstate, its value)."""
        moves = game.legal_moves()
        afterstates = [game.afterstate(c) for c in moves]
        values = self.net(torch.from_numpy(np.stack(afterstates))).tolist()
        if random.random() < self.epsilon:
            k = random.randrange(len(moves))
        else:
            k = int(np.argmax(values))
        return moves[k], afterstates[k], values[k]

    def learn(self, states, values, outcome):
        """outcome: result for the player who moved last. Values change sign from ply to ply."""
        n = len(states)
        targets = np.empty(n, dtype=np.float32)
        g = outcome
        targets[-1] = g
        for i in range(n - 2, -1, -1):
            g = -(self.lam * g + (1 - self.lam) * values[i + 1])
            targets[i] = g
        x = torch.from_numpy(np.stack(states))
        loss = nn.functional.mse_loss(self.net(x), torch.from_numpy(targets))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def main(games):
    random.seed(11)
    torch.manual_seed(11)
    game, agent = ConnectFour(), SelfPlayAgent()
    plies, first_wins = 0, 0
    warm = games // 5
    for g in range(games):
        if g == warm:
            t0 = time.perf_counter()
        game.reset()
        states, values = [], []
        done = False
        while not done:
            col, state, value = agent.choose(game)
            _, reward, done, _ = game.step(col)
            states.append(state)
            values.append(value)
        plies += len(states)
        first_wins += reward > 0 and len(states) % 2 == 1
        loss = agent.learn(states, values, reward)
        if (g + 1) % 500 == 0:
            print(f"game {g + 1}: {plies / (g + 1):.1f} plies, first player won {first_wins}, loss {loss.item():.4f}")
    rate = (games - warm) / (time.perf_counter() - t0)
    print(json.dumps({
        "env_steps": plies,
        "updates": games,
        "units_per_s": rate,
        "checksum": round(sum(p.detach().double().sum().item() for p in agent.net.parameters()), 6),
    }))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3800)
