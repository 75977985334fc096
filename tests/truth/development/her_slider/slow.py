"""DDPG with hindsight experience replay: push a puck to a goal on a table with friction."""

import copy
import json
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

STEPS, FUTURE, BATCH, GAMMA, UPDATES = 40, 8, 128, 0.95, 2


class Table:
    """A puck that is pushed by a force; the goal is a position."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.state = np.concatenate([self.rng.uniform(-0.5, 0.5, 2), np.zeros(2)])
        self.goal = self.rng.uniform(-1, 1, 2)
        return self.state.copy(), self.goal.copy()

    def step(self, action):
        speed = 0.8 * self.state[2:] + 0.15 * np.clip(action, -1, 1)
        self.state = np.concatenate([np.clip(self.state[:2] + speed, -1.5, 1.5), speed])
        return self.state.copy()


def reached(achieved, goal):
    return np.float32(0.0 if np.hypot(*(achieved - goal)) < 0.1 else -1.0)


class Replay:
    def __init__(self, capacity=200_000):
        self.rows = np.zeros((capacity, 4 + 2 + 2 + 1 + 4), dtype=np.float32)
        self.at = self.size = 0

    def add(self, rows):
        where = (self.at + np.arange(len(rows))) % len(self.rows)
        self.rows[where] = rows
        self.at = (self.at + len(rows)) % len(self.rows)
        self.size = min(self.size + len(rows), len(self.rows))

    def sample(self, rng):
        rows = torch.from_numpy(self.rows[rng.integers(0, self.size, BATCH)])
        return rows.split((4, 2, 2, 1, 4), dim=1)


def row(transition):
    keys = ("state", "goal", "action", "reward", "next_state")
    return np.concatenate([np.atleast_1d(transition[key]) for key in keys])


def store_episode(replay, episode, rng):
    """Store the episode as it was and FUTURE times with goals reached later in it."""
    rows = [row(transition) for transition in episode]
    later = rng.integers(np.arange(STEPS), STEPS, (FUTURE, STEPS))
    for k in range(FUTURE):
        for t in range(STEPS):
            imagined = copy.deepcopy(episode[t])
            imagined["goal"] = episode[later[k, t]]["next_state"][:2]
            imagined["reward"] = reached(imagined["next_state"][:2], imagined["goal"])
            rows.append(row(imagined))
    replay.add(np.array(rows))


def mlp(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs)
    )


class Agent:
    def __init__(self):
        self.actor, self.critic = mlp(6, 2), mlp(8, 1)
        self.actor_target, self.critic_target = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=1e-3, fused=True)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=1e-3, fused=True)

    @torch.no_grad()
    def act(self, state, goal):
        x = torch.from_numpy(np.concatenate([state, goal]).astype(np.float32))
        return torch.tanh(self.actor(x)).numpy()

    def learn(self, batch):
        state, goal, action, reward, next_state = batch
        here, there = torch.cat([state, goal], 1), torch.cat([next_state, goal], 1)
        with torch.no_grad():
            next_action = torch.tanh(self.actor_target(there))
            aim = (reward + GAMMA * self.critic_target(torch.cat([there, next_action], 1))).clamp(-20, 0)
        self.critic_optimizer.zero_grad()
        F.mse_loss(self.critic(torch.cat([here, action], 1)), aim).backward()
        self.critic_optimizer.step()
        self.actor_optimizer.zero_grad()
        (-self.critic(torch.cat([here, torch.tanh(self.actor(here))], 1)).mean()).backward()
        self.actor_optimizer.step()

    @torch.no_grad()
    def follow(self):
        for net, target in ((self.actor, self.actor_target), (self.critic, self.critic_target)):
            torch._foreach_lerp_(list(target.parameters()), list(net.parameters()), 0.05)


def main(episodes):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    env, agent, replay, marks = Table(1), Agent(), Replay(), []
    for _ in range(episodes):
        marks.append(time.perf_counter())
        state, goal = env.reset()
        episode = []
        for _ in range(STEPS):
            action = np.clip(agent.act(state, goal) + rng.normal(0, 0.2, 2), -1, 1)
            next_state = env.step(action)
            reward = reached(next_state[:2], goal)
            info = {"success": bool(reward == 0), "puck": {"place": next_state[:2], "speed": next_state[2:]}}
            episode.append(
                {
                    "state": state,
                    "goal": goal,
                    "action": action,
                    "reward": reward,
                    "next_state": next_state,
                    "info": info,
                }
            )
            state = next_state
        store_episode(replay, episode, rng)
        for _ in range(UPDATES):
            agent.learn(replay.sample(rng))
        agent.follow()
    marks.append(time.perf_counter())
    first = episodes // 5
    rate = (episodes - first) / (marks[-1] - marks[first])
    checksum = float(sum(p.detach().abs().sum() for p in agent.critic.parameters()))
    updates = 2 * UPDATES * episodes
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1200)
