# On-policy first-visit Monte Carlo control (Sutton & Barto, chapter 5.4) on a frozen lake
import json
import random
import sys
from time import perf_counter

import gymnasium as gym
import numpy as np

EPISODES = int(sys.argv[1]) if len(sys.argv) > 1 else 6000
GAMMA = 0.98
EPSILON = 0.25
LAKE = [
    "SFFFFFFFFFFFFF",
    "FFFFFFFFFFFFFF",
    "FFFFFFFFFFFFHF",
    "FFFFFFFFFHFFFF",
    "FFFFFFFFFFFFFF",
    "FFFFFHFFFFFFFF",
    "FFFFFFFFFFFFFF",
    "FFFFFFFFFFFFFF",
    "FFFFFFFFFFFFFF",
    "FFFHFFFFFFFFFF",
    "FFFFFFFFFFHFFF",
    "FFFFFFFFFFFFFF",
    "FFFFFHFFFFFFFF",
    "FFFFFFFFFFFFFG",
]

random.seed(1)
np.random.seed(1)
env = gym.make("FrozenLake-v1", desc=LAKE, is_slippery=True, max_episode_steps=200)
n_actions = int(env.action_space.n)
Q = np.zeros((env.observation_space.n, n_actions))
N = np.zeros_like(Q)
greedy = [random.randrange(n_actions) for _ in range(len(Q))]  # current greedy action of each state


def generate_episode(seed=None):
    episode = []
    state, _ = env.reset(seed=seed)
    while True:
        if random.random() < EPSILON:
            action = random.randrange(n_actions)
        else:
            action = greedy[state]
        next_state, reward, terminated, truncated, _ = env.step(action)
        # time costs a little, holes cost a lot
        if reward == 0:
            reward = -1.0 if terminated else -0.01
        episode.append((state, action, reward))
        if terminated or truncated:
            return episode
        state = next_state


def improve(episode):
    first_visit = {}
    for t, (state, action, _) in enumerate(episode):
        first_visit.setdefault((state, action), t)
    G = 0.0
    for t in range(len(episode) - 1, -1, -1):
        state, action, reward = episode[t]
        G = GAMMA * G + reward
        # only the first visit of the pair counts
        if first_visit[state, action] == t:
            N[state, action] += 1
            Q[state, action] += (G - Q[state, action]) / N[state, action]
            greedy[state] = int(Q[state].argmax())


steps = 0
wins = 0
start_measuring = EPISODES // 5
for i in range(EPISODES):
    if i == start_measuring:
        t0 = perf_counter()
    ep = generate_episode(seed=1 if i == 0 else None)
    improve(ep)
    steps += len(ep)
    wins += ep[-1][2] > 0
    if (i + 1) % 1000 == 0:
        print(f"{i + 1} episodes, {wins} of the last 1000 reached the goal")
        wins = 0

rate = (EPISODES - start_measuring) / (perf_counter() - t0)
print(
    json.dumps(
        {"env_steps": steps, "updates": None, "units_per_s": rate, "checksum": float(Q.sum() + N.sum())}
    )
)
