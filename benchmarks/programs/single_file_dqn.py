"""A DQN in one file in the style of CleanRL, with its default networks; does not know hotloop.

`--compiled` compiles acting and the update with torch.compile, in the style of LeanRL. Prints the speed
without warm-up as JSON, and saves the weights after `--updates` gradient steps if asked.
"""

import argparse
import json
import random
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--env", default="CartPole-v1")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-timesteps", type=int, default=20_000)
parser.add_argument("--learning-starts", type=int, default=1_000)
parser.add_argument("--train-freq", type=int, default=10, help="env steps between two updates")
parser.add_argument("--warm-up", type=int, default=2_000, help="env steps outside the clock")
parser.add_argument("--updates", type=int, default=0, help="stop after that many gradient steps")
parser.add_argument("--weights", help="file for the weights at the end")
parser.add_argument("--one-ulp", action="store_true", help="move one weight by one unit in the last place")
parser.add_argument("--compiled", action="store_true")
given = parser.parse_args()

BUFFER_SIZE, BATCH_SIZE, GAMMA, LEARNING_RATE, TARGET_EVERY = 10_000, 128, 0.99, 2.5e-4, 500

random.seed(given.seed)
np.random.seed(given.seed)  # noqa: NPY002
torch.manual_seed(given.seed)


class QNetwork(nn.Module):
    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(observations, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, actions)
        )

    def forward(self, x):
        return self.network(x)


env: Any = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(given.env))
env.action_space.seed(given.seed)
width, n_actions = env.observation_space.shape[0], int(env.action_space.n)
q_network: Any = QNetwork(width, n_actions)
target_network: Any = QNetwork(width, n_actions)
if given.one_ulp:
    with torch.no_grad():
        first = q_network.network[0].weight.view(-1)
        first[0] = torch.nextafter(first[0], torch.tensor(float("inf")))
target_network.load_state_dict(q_network.state_dict())
optimizer = torch.optim.Adam(q_network.parameters(), lr=LEARNING_RATE)


acting: Any = q_network
if given.compiled:  # as LeanRL: the same weights, without gradients
    acting = QNetwork(width, n_actions).requires_grad_(False)
    for mine, trained in zip(acting.parameters(), q_network.parameters(), strict=True):
        mine.data = trained.data


def greedy(observation):
    with torch.no_grad():
        return acting(observation).argmax(dim=1)


def update(observation, action, after, reward, done):
    with torch.no_grad():
        best = target_network(after).max(dim=1).values
        target = reward + GAMMA * best * (1 - done)
    value = q_network(observation).gather(1, action).squeeze()
    loss = nn.functional.mse_loss(target, value)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


if given.compiled:
    greedy, update = torch.compile(greedy), torch.compile(update)

observations = np.zeros((BUFFER_SIZE, width), dtype=np.float32)
after = np.zeros((BUFFER_SIZE, width), dtype=np.float32)
actions = np.zeros((BUFFER_SIZE, 1), dtype=np.int64)
rewards, dones = (np.zeros(BUFFER_SIZE, dtype=np.float32) for _ in range(2))
returns: list[float] = []
seen, _ = env.reset(seed=given.seed)
updates = 0
started, cpu = time.perf_counter(), time.process_time()
for step in range(given.total_timesteps):
    if step == given.warm_up:
        started, cpu = time.perf_counter(), time.process_time()
    epsilon = max(0.05, 1.0 - step / (0.5 * given.total_timesteps) * 0.95)
    if random.random() < epsilon:
        action = int(env.action_space.sample())
    else:
        action = int(greedy(torch.Tensor(seen[None])))
    next_seen, reward, terminated, truncated, info = env.step(action)
    row = step % BUFFER_SIZE
    observations[row], after[row], actions[row] = seen, next_seen, action
    rewards[row], dones[row] = reward, terminated
    seen = next_seen
    if terminated or truncated:
        returns.append(float(info["episode"]["r"]))
        seen, _ = env.reset()
    if step >= given.learning_starts:
        if step % given.train_freq == 0:
            rows = np.random.randint(0, min(step + 1, BUFFER_SIZE), BATCH_SIZE)  # noqa: NPY002
            batch = (torch.from_numpy(one[rows]) for one in (observations, actions, after, rewards, dones))
            loss = update(*batch)
            updates += 1
            if updates % 100 == 0:
                loss.item()
            if updates == given.updates:
                break
        if step % TARGET_EVERY == 0:
            for target, source in zip(target_network.parameters(), q_network.parameters(), strict=True):
                target.data.copy_(source.data)
took, cpu_s = time.perf_counter() - started, time.process_time() - cpu
if given.weights:
    np.save(given.weights, np.concatenate([one.detach().numpy().ravel() for one in q_network.parameters()]))
print(json.dumps({
    "env_steps": given.total_timesteps - given.warm_up, "seconds": took, "cpu_s": cpu_s, "updates": updates,
    "mean_return": float(np.mean(returns[-100:])) if returns else None,
    "random": [float(np.random.random()), torch.rand(1).item()],  # noqa: NPY002
}))  # fmt: skip
