"""Forty fish share one policy (parameter sharing A2C). The environment follows the PettingZoo 'parallel' conventions."""
import json
import time
from argparse import ArgumentParser
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn


@dataclass
class Settings:
    fish: int = 40
    neighbours: int = 5
    length: int = 40
    episodes: int = 60
    seed: int = 77
    gamma: float = 0.95


class School:
    """Fish in a round tank. They like company at arm's length and dislike the shark."""

    def __init__(self, cfg):
        self.cfg = cfg
        self.rng = np.random.default_rng(cfg.seed)
        self.agents = [f"fish_{i}" for i in range(cfg.fish)]
        self.turns = np.linspace(-0.5, 0.5, 5)

    def reset(self):
        n = self.cfg.fish
        self.pos = self.rng.uniform(-5, 5, (n, 2))
        self.dir = self.rng.uniform(-np.pi, np.pi, n)
        self.shark = self.rng.uniform(-5, 5, 2)
        self.t = 0
        return {a: self.observe(i) for i, a in enumerate(self.agents)}

    def geometry(self):
        """Relative positions in each fish's own frame, distances, and the order of neighbours."""
        rel = self.pos[None] - self.pos[:, None]
        c, s = np.cos(self.dir)[:, None], np.sin(self.dir)[:, None]
        rel = np.stack([c * rel[..., 0] + s * rel[..., 1], -s * rel[..., 0] + c * rel[..., 1]], -1)
        dist = np.sqrt((rel ** 2).sum(-1))
        order = np.argsort(dist, axis=1, kind="stable")[:, 1:self.cfg.neighbours + 1]
        return rel, dist, order

    def observe(self, i):
        rel, dist, order = self.geometry()
        near = rel[i, order[i]]
        heading = self.dir[order[i]] - self.dir[i]
        d = self.shark - self.pos[i]
        return np.concatenate([near.ravel(), np.cos(heading), np.sin(heading), d]).astype(np.float32) / 5.0

    def rewards(self):
        _, dist, order = self.geometry()
        close = np.take_along_axis(dist, order, 1).mean(1)
        fear = np.exp(-((self.pos - self.shark) ** 2).sum(1))
        return -np.abs(close - 1.0) - 2.0 * fear

    def step(self, actions):
        turn = self.turns[[actions[a] for a in self.agents]]
        self.dir = self.dir + turn
        self.pos = self.pos + 0.2 * np.stack([np.cos(self.dir), np.sin(self.dir)], 1)
        r = np.linalg.norm(self.pos, axis=1, keepdims=True)
        self.pos = np.where(r > 6, self.pos * 6 / r, self.pos)
        self.shark = self.shark + 0.1 * (self.pos.mean(0) - self.shark)
        self.t += 1
        rew = self.rewards()
        obs = {a: self.observe(i) for i, a in enumerate(self.agents)}
        return obs, dict(zip(self.agents, rew)), self.t >= self.cfg.length


class Net(nn.Module):
    def __init__(self, n_obs, n_act):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_obs, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
        self.pi, self.v = nn.Linear(128, n_act), nn.Linear(128, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.v(h).squeeze(-1)


def train(cfg):
    torch.set_num_threads(1)
    torch.manual_seed(cfg.seed)
    env = School(cfg)
    net = Net(4 * cfg.neighbours + 2, 5)
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    begin = 0.0
    for ep in range(cfg.episodes):
        if ep == cfg.episodes // 5:
            begin = time.perf_counter()
        obs, done = env.reset(), False
        xs, acts, rews = [], [], []
        while not done:
            x = torch.from_numpy(np.stack(list(obs.values())))
            with torch.no_grad():
                a = torch.multinomial(net(x)[0].softmax(-1), 1).squeeze(1)
            obs, rew, done = env.step(dict(zip(env.agents, a.tolist())))
            xs.append(x); acts.append(a); rews.append(np.fromiter(rew.values(), np.float32))
        ret = np.zeros((len(rews), cfg.fish), np.float32)
        acc = np.zeros(cfg.fish, np.float32)
        for t in reversed(range(len(rews))):
            acc = rews[t] + cfg.gamma * acc
            ret[t] = acc
        X, A, R = torch.cat(xs), torch.cat(acts), torch.from_numpy(ret).flatten()
        for _ in range(4):
            logits, v = net(X)
            adv = R - v.detach()
            logp = logits.log_softmax(-1).gather(1, A[:, None]).squeeze(1)
            loss = -(logp * adv / (adv.std() + 1e-6)).mean() + 0.5 * (v - R).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        if ep % 10 == 0:
            print("episode", ep, "mean return", float(R.mean()))
    rate = cfg.length * (cfg.episodes - cfg.episodes // 5) / (time.perf_counter() - begin)
    return {"env_steps": None, "updates": 4 * cfg.episodes, "units_per_s": rate,
            "checksum": sum(p.detach().double().sum().item() for p in net.parameters())}


if __name__ == "__main__":
    cli = ArgumentParser()
    cli.add_argument("--episodes", type=int, default=Settings.episodes)
    print(json.dumps(train(Settings(episodes=cli.parse_args().episodes))))
