"""REINFORCE with a simulator thread. The simulator stands for a device that needs 0.5 ms a step.

The policy thread answers the simulator's questions; a question and its answer go through two queues.
"""

import argparse
import json
import math
import queue
import threading
import time

import numpy as np
import torch
from torch import nn


class Device(threading.Thread):
    """An inverted pendulum on a bench, which asks for an action after every sample."""

    def __init__(self, questions, answers, seed):
        super().__init__(daemon=True)
        self.questions, self.answers = questions, answers
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.angle, self.speed = self.rng.uniform(-0.2, 0.2, 2).tolist()
        self.t = 0

    def advance(self, action):
        time.sleep(0.0005)
        self.speed += 0.02 * (9.8 * math.sin(self.angle) + 4.0 * (action - 1))
        self.angle += 0.02 * self.speed
        self.t += 1
        return 1.0, abs(self.angle) > 0.5 or self.t >= 200

    def run(self):
        self.reset()
        reward, done = 0.0, False
        while True:
            self.questions.put(((self.angle, self.speed), reward, done))
            action = self.answers.get()
            if action is None:
                return
            if done:
                self.reset()
                reward, done = 0.0, False
            else:
                reward, done = self.advance(action)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 3))

    def forward(self, x):
        return torch.log_softmax(self.net(x), -1)


def next_question(questions):
    while questions.empty():
        time.sleep(0.002)
    return questions.get()


def learn(policy, optimizer, states, actions, rewards):
    returns, g = [], 0.0
    for r in reversed(rewards):
        g = r + 0.99 * g
        returns.append(g)
    returns = torch.tensor(returns[::-1])
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    logp = policy(torch.tensor(states))[torch.arange(len(actions)), torch.tensor(actions)]
    optimizer.zero_grad()
    (-(logp * returns).mean()).backward()
    optimizer.step()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=5000)
    args = ap.parse_args()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    questions, answers = queue.Queue(), queue.Queue()
    device = Device(questions, answers, 0)
    device.start()
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    states, actions, rewards, updates = [], [], [], 0
    for step in range(args.steps):
        if step == args.steps // 5:
            start = time.perf_counter()
        state, reward, done = next_question(questions)
        if actions:
            rewards.append(reward)
        if done:
            if len(actions) > 1:
                learn(policy, optimizer, states, actions, rewards)
                updates += 1
            states, actions, rewards = [], [], []
            answers.put(1)
            continue
        with torch.no_grad():
            p = policy(torch.tensor(state)).exp().numpy()
        action = min(2, int((np.cumsum(p) < rng.random()).sum()))
        states.append(state)
        actions.append(action)
        answers.put(action)
    rate = (args.steps - args.steps // 5) / (time.perf_counter() - start)
    next_question(questions)
    answers.put(None)
    device.join()
    checksum = float(sum(w.double().sum() for w in policy.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
