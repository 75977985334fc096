"""MADDPG: lantern carriers spread over places of a square; each has its own actor and central critic."""

import argparse
import copy
import json
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

AGENTS, OBS, ACT, COPIES, BATCH = 8, 8, 2, 32, 128


class Square:
    """COPIES squares with AGENTS carriers each, stepped as arrays."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.places = self.rng.uniform(-1, 1, (COPIES, AGENTS, 2))
        self.lights = self.rng.uniform(-1, 1, (COPIES, AGENTS, 2))
        self.t = 0

    def observe(self):
        own, light = self.places, self.lights
        crowd = own.mean(axis=1, keepdims=True) - own
        following = np.roll(own, 1, axis=1) - own
        return np.concatenate([own, light - own, crowd, following], axis=2, dtype=np.float32)

    def step(self, actions):
        self.places = np.clip(self.places + 0.1 * actions, -1.5, 1.5)
        to_lights = np.linalg.norm(self.places[:, :, None] - self.lights[:, None], axis=3).min(axis=1)
        apart = np.linalg.norm(self.places - np.roll(self.places, 1, axis=1), axis=2)
        rewards = -to_lights.mean(axis=1, keepdims=True) - 0.5 * (apart < 0.2)
        self.t += 1
        after = self.observe()
        if self.t % 25 == 0:
            self.places = self.rng.uniform(-1, 1, self.places.shape)
            self.lights = self.rng.uniform(-1, 1, self.lights.shape)
        return after, rewards.astype(np.float32)


class Replay:
    def __init__(self, capacity=40_000):
        self.obs, self.next_obs = (np.zeros((capacity, AGENTS, OBS), np.float32) for _ in range(2))
        self.actions, self.rewards = (
            np.zeros((capacity, AGENTS, ACT), np.float32),
            np.zeros((capacity, AGENTS), np.float32),
        )
        self.at = self.size = 0

    def add(self, obs, actions, rewards, next_obs):
        rows = slice(self.at, self.at + COPIES)
        self.obs[rows], self.actions[rows], self.rewards[rows], self.next_obs[rows] = (
            obs,
            actions,
            rewards,
            next_obs,
        )
        self.at = (self.at + COPIES) % len(self.obs)
        self.size = min(self.size + COPIES, len(self.obs))

    def sample(self, rng):
        index = rng.integers(0, self.size, BATCH)
        return [torch.from_numpy(x[index]) for x in (self.obs, self.actions, self.rewards, self.next_obs)]


def actor():
    return nn.Sequential(
        nn.Linear(OBS, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, ACT), nn.Tanh()
    )


def critic():
    return nn.Sequential(nn.Linear(AGENTS * (OBS + ACT), 64), nn.ReLU(), nn.Linear(64, 1))


class Agent:
    def __init__(self):
        self.actor, self.critic = actor(), critic()
        self.actor_target, self.critic_target = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=1e-3, fused=True)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=1e-3, fused=True)

    @torch.no_grad()
    def follow(self):
        for net, target in ((self.actor, self.actor_target), (self.critic, self.critic_target)):
            torch._foreach_lerp_(list(target.parameters()), list(net.parameters()), 0.02)


def learn(agents, batch):
    """One update of every agent on the same batch; targets follow when all are done."""
    obs, actions, rewards, next_obs = batch
    joint, next_joint = obs.flatten(1), next_obs.flatten(1)
    for i, agent in enumerate(agents):
        with torch.no_grad():
            next_actions = [other.actor_target(next_obs[:, j]) for j, other in enumerate(agents)]
            following = agent.critic_target(torch.cat([next_joint, *next_actions], dim=1)).squeeze(1)
            aim = rewards[:, i] + 0.95 * following
        value = agent.critic(torch.cat([joint, actions.flatten(1)], dim=1)).squeeze(1)
        agent.critic_optimizer.zero_grad()
        F.mse_loss(value, aim).backward()
        agent.critic_optimizer.step()
        mine = actions.clone()
        mine[:, i] = agent.actor(obs[:, i])
        loss = -agent.critic(torch.cat([joint, mine.flatten(1)], dim=1)).mean()
        agent.actor_optimizer.zero_grad()
        loss.backward()
        agent.actor_optimizer.step()
    for agent in agents:
        agent.follow()


def main(iterations):
    torch.manual_seed(17)
    torch.set_num_threads(1)
    rng = np.random.default_rng(17)
    env, replay, agents = Square(17), Replay(), [Agent() for _ in range(AGENTS)]
    obs, marks = env.observe(), []
    for _ in range(iterations):
        marks.append(time.perf_counter())
        for _ in range(2):
            with torch.no_grad():
                x = torch.from_numpy(obs)
                actions = torch.stack([agent.actor(x[:, i]) for i, agent in enumerate(agents)], dim=1).numpy()
            actions = np.clip(actions + rng.normal(0, 0.1, actions.shape), -1, 1)
            next_obs, rewards = env.step(actions)
            replay.add(obs, actions, rewards, next_obs)
            obs = env.observe()
        learn(agents, replay.sample(rng))
    marks.append(time.perf_counter())
    first = iterations // 5
    rate = (iterations - first) / (marks[-1] - marks[first])
    checksum = float(sum(p.detach().abs().sum() for agent in agents for p in agent.actor.parameters()))
    updates = 2 * AGENTS * iterations
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=700)
    main(parser.parse_args().iterations)
