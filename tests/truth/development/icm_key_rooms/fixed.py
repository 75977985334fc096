"""PPO with an intrinsic curiosity module (ICM) in rooms where a key opens the door to the reward."""
import json
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro

SIDE = 9
MOVES = np.array([[0, 1], [1, 0], [0, -1], [-1, 0], [0, 0]])


@dataclass
class Config:
    iterations: int = 300
    rooms: int = 4
    horizon: int = 128
    epochs: int = 2
    minibatch: int = 256
    gamma: float = 0.97
    curiosity: float = 0.2
    lr: float = 1e-3
    seed: int = 44


class KeyRooms:
    """Two rooms with a wall between them; walk over the key, then through the door, to the chest."""

    def __init__(self, n, rng):
        self.n, self.rng = n, rng
        self.rows = np.arange(n)
        self.at, self.key = np.zeros((n, 2), np.int64), np.zeros((n, 2), np.int64)
        self.has, self.t = np.zeros(n, bool), np.zeros(n, np.int64)
        self._restart(np.ones(n, bool))

    def _restart(self, who):
        k = int(who.sum())
        self.at[who] = np.stack([self.rng.integers(0, SIDE, k), self.rng.integers(0, 4, k)], 1)
        self.key[who] = np.stack([self.rng.integers(0, SIDE, k), self.rng.integers(0, 4, k)], 1)
        self.has[who], self.t[who] = False, 0

    def observe(self):
        grid = np.zeros((self.n, 3, SIDE, SIDE), np.float32)
        grid[self.rows, 0, self.at[:, 0], self.at[:, 1]] = 1
        grid[self.rows, 1, self.key[:, 0], self.key[:, 1]] = ~self.has
        grid[:, 2] = self.has[:, None, None]
        return grid.reshape(self.n, -1)

    def step(self, action):
        to = np.clip(self.at + MOVES[action], 0, SIDE - 1)
        wall = (to[:, 1] == 4) & ~((to[:, 0] == SIDE // 2) & self.has)
        self.at = np.where(wall[:, None], self.at, to)
        self.has |= (self.at == self.key).all(1)
        self.t += 1
        won = (self.at == SIDE - 1).all(1)
        done = won | (self.t >= 80)
        if done.any():
            self._restart(done)
        return self.observe(), won.astype(np.float32), done


class Agent(nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.pi, self.v = nn.Linear(64, 5), nn.Linear(64, 1)

    def forward(self, x):
        h = self.body(x)
        return F.log_softmax(self.pi(h), -1), self.v(h).squeeze(-1)


class Curiosity(nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(n_in, 128), nn.ReLU(), nn.Linear(128, 32))
        self.guess_next = nn.Sequential(nn.Linear(32 + 5, 128), nn.ReLU(), nn.Linear(128, 32))
        self.guess_move = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 5))

    def forward(self, x, x2, action):
        """Error of the predicted features of each row, and logits of the move."""
        f, f2 = self.encode(x), self.encode(x2)
        guess = self.guess_next(torch.cat([f, F.one_hot(action, 5).float()], 1))
        return 0.5 * (guess - f2.detach()).pow(2).sum(1), self.guess_move(torch.cat([f, f2], 1))

    @torch.no_grad()
    def bonus(self, x, x2, action):
        return self(x, x2, action)[0]


def main(cfg: Config):
    torch.set_num_threads(1)
    torch.manual_seed(cfg.seed)
    rooms = KeyRooms(cfg.rooms, np.random.default_rng(cfg.seed))
    n_in = 3 * SIDE * SIDE
    agent, icm = Agent(n_in), Curiosity(n_in)
    params = [*agent.parameters(), *icm.parameters()]
    opt = torch.optim.Adam(params, cfg.lr, fused=True)
    T, n = cfg.horizon, cfg.rooms
    obs, acts = torch.zeros(T + 1, n, n_in), torch.zeros(T, n, dtype=torch.int64)
    logps, vals, bonus = torch.zeros(T, n), torch.zeros(T + 1, n), torch.zeros(T, n)
    rew, live = torch.zeros(T, n), torch.zeros(T, n)
    obs[0] = torch.from_numpy(rooms.observe())
    updates, opened = 0, 0.0
    for it in range(cfg.iterations):
        if it == cfg.iterations // 5:
            began = time.perf_counter()
        if it:
            obs[0] = obs[T]
        for t in range(T):
            with torch.no_grad():
                logp, vals[t] = agent(obs[t])
                acts[t] = torch.multinomial(logp.exp(), 1).squeeze(1)
                logps[t] = logp.gather(1, acts[t].unsqueeze(1)).squeeze(1)
            nxt, r, d = rooms.step(acts[t].numpy())
            obs[t + 1] = torch.from_numpy(nxt)
            rew[t], live[t] = torch.from_numpy(r), torch.from_numpy(1.0 - d)
        bonus = icm.bonus(obs[:T].flatten(0, 1), obs[1:].flatten(0, 1), acts.flatten()).view(T, n)
        opened = 0.9 * opened + 0.1 * rew.sum().item()
        total = rew + cfg.curiosity * bonus / (bonus.std() + 1e-6)
        with torch.no_grad():
            vals[T] = agent(obs[T])[1]
            adv, acc = torch.zeros(T, n), torch.zeros(n)
            for t in range(T - 1, -1, -1):
                delta = total[t] + cfg.gamma * live[t] * vals[t + 1] - vals[t]
                acc = adv[t] = delta + cfg.gamma * 0.95 * live[t] * acc
        ret = (adv + vals[:T]).flatten()
        adv = ((adv - adv.mean()) / (adv.std() + 1e-8)).flatten()
        x, x2, a, old = obs[:T].flatten(0, 1), obs[1:].flatten(0, 1), acts.flatten(), logps.flatten()
        for _ in range(cfg.epochs):
            for i in torch.randperm(T * n).split(cfg.minibatch):
                logp, v = agent(x[i])
                ratio = (logp.gather(1, a[i].unsqueeze(1)).squeeze(1) - old[i]).exp()
                pg = -torch.min(ratio * adv[i], ratio.clamp(0.8, 1.2) * adv[i]).mean()
                forward_error, move = icm(x[i], x2[i], a[i])
                entropy = -(logp.exp() * logp).sum(1).mean()
                loss = pg + 0.5 * F.mse_loss(v, ret[i]) - 0.01 * entropy
                loss = loss + 0.2 * forward_error.mean() + 0.8 * F.cross_entropy(move, a[i])
                opt.zero_grad()
                loss.backward()
                opt.step()
                updates += 1
        if it % 20 == 0:
            print(f"iteration {it}: chests {opened:.2f}, mean bonus {bonus.mean().item():.4f}")
    rate = (cfg.iterations - cfg.iterations // 5) / (time.perf_counter() - began)
    check = sum(p.detach().double().abs().sum().item() for p in params)
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main(tyro.cli(Config))
