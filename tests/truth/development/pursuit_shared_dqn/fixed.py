"""Four chasers learn to surround a runner.

Parameter sharing: one Q-network and one replay memory for all chasers. Particle world in the manner of MPE.
"""

import argparse
import json
import time
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)

MOVES = np.array([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])


@dataclass
class State:
    pos: np.ndarray = field(default_factory=lambda: np.zeros(2))
    vel: np.ndarray = field(default_factory=lambda: np.zeros(2))


@dataclass
class Body:
    name: str
    size: float
    max_speed: float
    color: tuple
    state: State = field(default_factory=State)


@dataclass
class World:
    chasers: list
    runner: Body
    rocks: list
    time: int = 0


class PursuitEnv:
    """reset() -> obs of all chasers, step(actions) -> obs, rewards, done."""

    dt = 0.1

    def __init__(self, n_chasers=4, n_rocks=16, seed=0):
        self.rng = np.random.default_rng(seed)
        self.world = World(
            chasers=[Body(f"chaser_{i}", 0.075, 1.0, (0.85, 0.35, 0.35)) for i in range(n_chasers)],
            runner=Body("runner", 0.05, 1.3, (0.35, 0.85, 0.35)),
            rocks=[Body(f"rock_{i}", 0.2, 0.0, (0.25, 0.25, 0.25)) for i in range(n_rocks)],
        )
        self.max_steps = 50
        self.obs_dim = 4 + 2 + 2 * n_rocks + 2 * (n_chasers - 1)
        self.others = np.array([[j for j in range(n_chasers) if j != i] for i in range(n_chasers)])

    def reset(self):
        world = self.world
        world.time = 0
        for body in [*world.chasers, world.runner, *world.rocks]:
            body.state.pos = self.rng.uniform(-1, 1, 2)
            body.state.vel = np.zeros(2)
        self.rocks = np.stack([rock.state.pos for rock in world.rocks])
        return self._observe()

    def _positions(self, world):
        return np.stack([c.state.pos for c in world.chasers])

    def _observe(self):
        pos = self._positions(self.world)
        vel = np.stack([c.state.vel for c in self.world.chasers])
        n = len(pos)
        to_runner = self.world.runner.state.pos - pos
        to_rocks = (self.rocks[None] - pos[:, None]).reshape(n, -1)
        to_others = (pos[self.others] - pos[:, None]).reshape(n, -1)
        return np.concatenate([pos, vel, to_runner, to_rocks, to_others], axis=1, dtype=np.float32)

    def _distances(self, world):
        gap = self._positions(world) - world.runner.state.pos
        return np.sqrt((gap * gap).sum(axis=1))

    def _move(self, body, force):
        state = body.state
        vel = 0.75 * state.vel + force * self.dt * 5.0
        speed = (vel @ vel) ** 0.5
        if speed > body.max_speed:
            vel = vel * (body.max_speed / speed)
        state.vel = vel
        state.pos = np.minimum(np.maximum(state.pos + vel * self.dt, -1.5), 1.5)

    def step(self, actions):
        world = self.world
        before = self._distances(world)  # for the shaping term
        for chaser, action in zip(world.chasers, actions, strict=True):
            self._move(chaser, MOVES[action])
        # the runner flees from the nearest chaser, and from the border
        pos = self._positions(world)
        away = world.runner.state.pos - pos
        nearest = away[(away * away).sum(axis=1).argmin()]
        self._move(world.runner, nearest / ((nearest @ nearest) ** 0.5 + 1e-6) - 0.5 * world.runner.state.pos)
        world.time += 1
        now = self._distances(world)
        caught = now < 0.2
        rewards = (before - now) + 1.0 * caught + 0.2 * caught.sum()
        return self._observe(), rewards.astype(np.float32), world.time >= self.max_steps


class SharedReplay:
    """Experience of all chasers in one ring; a joint step fills `n_agents` rows."""

    def __init__(self, capacity, obs_dim, n_agents):
        rows = capacity // n_agents * n_agents
        self.obs = torch.zeros(rows, obs_dim)
        self.act = torch.zeros(rows, 1, dtype=torch.int64)
        self.rew = torch.zeros(rows)
        self.next_obs = torch.zeros(rows, obs_dim)
        self.rows, self.n, self.at, self.filled = rows, n_agents, 0, 0

    def add(self, obs, act, rew, next_obs):
        where = slice(self.at, self.at + self.n)
        self.obs[where] = obs
        self.act[where, 0] = act
        self.rew[where] = torch.from_numpy(rew)
        self.next_obs[where] = next_obs
        self.at = (self.at + self.n) % self.rows
        self.filled = min(self.filled + self.n, self.rows)

    def sample(self, size):
        i = torch.randint(self.filled, (size,))
        return self.obs[i], self.act[i], self.rew[i], self.next_obs[i]


def q_network(obs_dim, n_actions):
    return nn.Sequential(
        nn.Linear(obs_dim, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, n_actions)
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--update-every", type=int, default=2)
    parser.add_argument("--gamma", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed + 1)

    env = PursuitEnv(seed=args.seed)
    n_agents, n_actions = len(env.world.chasers), len(MOVES)
    q = q_network(env.obs_dim, n_actions)
    q_target = q_network(env.obs_dim, n_actions)
    q_target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-3, fused=True)
    memory = SharedReplay(40_000, env.obs_dim, n_agents)

    joint_steps = updates = 0
    mark = args.episodes // 5
    for episode in range(args.episodes):
        if episode == mark:
            start = time.perf_counter()
        epsilon = max(0.05, 1.0 - episode / (0.6 * args.episodes))
        obs = torch.from_numpy(env.reset())
        total, done = 0.0, False
        while not done:
            with torch.no_grad():
                actions = q(obs).argmax(dim=1)
            explore = rng.random(n_agents) < epsilon
            if explore.any():
                actions = torch.from_numpy(
                    np.where(explore, rng.integers(n_actions, size=n_agents), actions.numpy())
                )
            next_obs, rewards, done = env.step(actions.tolist())
            next_obs = torch.from_numpy(next_obs)
            memory.add(obs, actions, rewards, next_obs)
            obs = next_obs
            total += float(rewards.sum())
            joint_steps += 1

            if memory.filled >= 1000 and joint_steps % args.update_every == 0:
                b_obs, b_act, b_rew, b_next = memory.sample(args.batch_size)
                with torch.no_grad():
                    target = b_rew + args.gamma * q_target(b_next).max(dim=1).values
                loss = F.smooth_l1_loss(q(b_obs).gather(1, b_act).squeeze(1), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                updates += 1
                if updates % 200 == 0:
                    q_target.load_state_dict(q.state_dict())
        if (episode + 1) % 40 == 0:
            print(f"episode {episode + 1}: team reward {total:.2f}")

    seconds = time.perf_counter() - start
    checksum = sum(p.double().abs().sum().item() for p in q.parameters())
    rate = (args.episodes - mark) / seconds
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
