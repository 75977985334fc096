"""Q-learning with linear features on robots that answer over a network (asyncio)."""

import asyncio
import json
import sys
import time

import numpy as np

ROBOTS, ACTIONS, FEATURES, BATCH = 8, 5, 64, 128
ANSWER_S = [0.004] * 6 + [0.006, 0.014]  # two robots have a poor connection


class Robot:
    """A remote robot in a yard; `step` waits for its answer."""

    def __init__(self, number):
        self.rng = np.random.default_rng(50 + number)
        self.answer_s = ANSWER_S[number]
        self.place = self.rng.uniform(-1, 1, 2)
        self.t = 0

    async def step(self, action):
        angle = 2 * np.pi * action / ACTIONS
        push = 0.1 * np.array([np.cos(angle), np.sin(angle)])
        await asyncio.sleep(self.answer_s)
        self.place = np.clip(self.place + push + self.rng.normal(0, 0.02, 2), -1, 1)
        reward = -float(np.hypot(*self.place))
        self.t += 1
        truncated = self.t % 50 == 0
        seen = self.place
        if truncated:
            self.place = self.rng.uniform(-1, 1, 2)
        return reward, seen, self.place, truncated


class Learner:
    """Q-values are linear in random Fourier features."""

    def __init__(self, rng):
        self.rng = rng
        self.frequencies, self.phases = rng.normal(0, 2, (2, FEATURES)), rng.uniform(0, 2 * np.pi, FEATURES)
        self.weights = np.zeros((FEATURES, ACTIONS))
        self.places, self.nexts = np.zeros((50_000, 2)), np.zeros((50_000, 2))
        self.actions, self.rewards = np.zeros(50_000, int), np.zeros(50_000)
        self.size = self.updates = 0

    def features(self, places):
        return np.cos(places @ self.frequencies + self.phases) * np.sqrt(2 / FEATURES)

    def act(self, places):
        greedy = (self.features(places) @ self.weights).argmax(axis=1)
        explore = self.rng.random(len(places)) < 0.1
        return np.where(explore, self.rng.integers(0, ACTIONS, len(places)), greedy)

    def store(self, place, action, reward, next_place):
        i = self.size
        self.places[i], self.actions[i], self.rewards[i], self.nexts[i] = place, action, reward, next_place
        self.size += 1
        if self.size % ROBOTS == 0 and self.size >= BATCH:
            self.learn()

    def learn(self):
        index = self.rng.integers(0, self.size, BATCH)
        here, actions = self.features(self.places[index]), self.actions[index]
        aim = self.rewards[index] + 0.95 * (self.features(self.nexts[index]) @ self.weights).max(axis=1)
        error = aim - np.einsum("bf,fb->b", here, self.weights[:, actions])
        np.add.at(self.weights.T, actions, 0.2 / BATCH * error[:, None] * here)
        self.updates += 1


async def drive(robot, learner, steps, marks):
    """Step one robot, at its own pace, until `steps` transitions of all robots are stored."""
    place = robot.place
    while learner.size < steps:
        action = learner.act(place[None])[0]
        reward, seen, following, _ = await robot.step(action)
        if learner.size < steps:
            learner.store(place, action, reward, seen)
            if learner.size % ROBOTS == 0:
                marks.append((learner.size, time.perf_counter()))
        place = following


async def collect(robots, learner, steps, marks):
    await asyncio.gather(*(drive(robot, learner, steps, marks) for robot in robots))


def main(steps):
    learner, marks = Learner(np.random.default_rng(4)), []
    asyncio.run(collect([Robot(i) for i in range(ROBOTS)], learner, steps, marks))
    marks.append((learner.size, time.perf_counter()))
    size, began = next(mark for mark in marks if mark[0] >= steps // 5)
    rate = (marks[-1][0] - size) / (marks[-1][1] - began)
    checksum = float(np.abs(learner.weights).sum())
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
