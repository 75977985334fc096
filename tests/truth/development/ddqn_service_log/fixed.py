#!/usr/bin/env python
"""Double DQN trainer of the "balance" service. Verbosity is set with --log-level."""
import argparse
import dataclasses
import json
import logging
import sys
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn

log = logging.getLogger("balance.train")


@dataclasses.dataclass(frozen=True)
class Settings:
    steps: int
    seed: int
    hidden: int = 128
    batch: int = 64
    capacity: int = 30_000
    warmup: int = 300
    learn_every: int = 2
    sync_every: int = 400
    gamma: float = 0.98
    lr: float = 1e-3


class Ring:
    """Fixed-size storage of transitions, one array for everything that is a number."""

    def __init__(self, capacity, width, seed):
        self.rows = np.zeros((capacity, 2 * width + 3), dtype=np.float32)
        self.width, self.head, self.used = width, 0, 0
        self.rng = np.random.default_rng(seed)

    def push(self, before, action, reward, ended, after):
        row, w = self.rows[self.head], self.width
        row[:w], row[w:2 * w] = before, after
        row[2 * w], row[2 * w + 1], row[2 * w + 2] = action, reward, ended
        self.head = (self.head + 1) % len(self.rows)
        self.used = min(self.used + 1, len(self.rows))

    def pull(self, n):
        rows = torch.from_numpy(self.rows[self.rng.integers(0, self.used, size=n)])
        w = self.width
        return rows[:, :w], rows[:, w:2 * w], rows[:, 2 * w].long(), rows[:, 2 * w + 1], rows[:, 2 * w + 2]


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.env = gym.make("CartPole-v1")
        width, self.n_actions = self.env.observation_space.shape[0], int(self.env.action_space.n)
        torch.manual_seed(cfg.seed)
        self.rng = np.random.default_rng(cfg.seed + 1)
        self.online, self.frozen = self.build(width), self.build(width)
        self.frozen.load_state_dict(self.online.state_dict())
        self.optim = torch.optim.Adam(self.online.parameters(), lr=cfg.lr, fused=True)
        self.ring = Ring(cfg.capacity, width, cfg.seed + 2)
        self.updates = 0

    def build(self, width):
        h = self.cfg.hidden
        return nn.Sequential(nn.Linear(width, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, self.n_actions))

    @torch.no_grad()
    def choose(self, obs, step):
        epsilon = max(0.05, 1.0 - step / (0.2 * self.cfg.steps))
        values = self.online(torch.from_numpy(obs))
        explore = self.rng.random() < epsilon
        action = int(self.rng.integers(self.n_actions)) if explore else int(values.argmax())
        log.debug("step %d: obs %s values %s epsilon %.3f -> action %d", step, obs, values, epsilon, action)
        return action

    def improve(self):
        before, after, action, reward, ended = self.ring.pull(self.cfg.batch)
        with torch.no_grad():
            best = self.online(after).argmax(dim=1, keepdim=True)
            backup = reward + self.cfg.gamma * (1 - ended) * self.frozen(after).gather(1, best).squeeze(1)
        current = self.online(before).gather(1, action.unsqueeze(1)).squeeze(1)
        loss = nn.functional.smooth_l1_loss(current, backup)
        self.optim.zero_grad(set_to_none=True)
        loss.backward()
        self.optim.step()
        self.updates += 1
        if self.updates % self.cfg.sync_every == 0:
            self.frozen.load_state_dict(self.online.state_dict())
            log.info("target renewed after %d updates, loss %.4f", self.updates, loss.item())

    def run(self):
        cfg, started = self.cfg, None
        obs, _ = self.env.reset(seed=cfg.seed)
        length = 0
        for step in range(cfg.steps):
            if step == cfg.steps // 5:
                started = time.monotonic()
            action = self.choose(obs, step)
            after, reward, terminated, truncated, _ = self.env.step(action)
            self.ring.push(obs, action, reward, terminated, after)
            obs, length = after, length + 1
            if terminated or truncated:
                log.debug("episode of %d steps", length)
                obs, _ = self.env.reset()
                length = 0
            if step >= cfg.warmup and step % cfg.learn_every == 0:
                self.improve()
        return (cfg.steps - cfg.steps // 5) / (time.monotonic() - started)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-level", default="INFO")
    args = parser.parse_args(argv)
    logging.basicConfig(level=args.log_level, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    trainer = Trainer(Settings(steps=args.steps, seed=args.seed))
    speed = trainer.run()
    trainer.env.close()
    checksum = sum(float(p.detach().double().sum()) for p in trainer.online.parameters())
    print(json.dumps({"env_steps": args.steps, "updates": trainer.updates, "units_per_s": speed, "checksum": round(checksum, 6)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
