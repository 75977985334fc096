"""DQN in one file with a list as its replay buffer; nothing in here knows about hotloop.

It acts without torch.no_grad(), as many scripts do; `hotloop run` still tells acting from learning.
hotloop run examples/03_unmodified_dqn.py --total-timesteps 3000
"""

from __future__ import annotations

import argparse
import hashlib
import random

import gymnasium as gym
import numpy as np
import torch
from torch import nn


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-timesteps", type=int, default=20000)
    parser.add_argument("--learning-starts", type=int, default=500)
    parser.add_argument("--train-frequency", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    env = gym.make("CartPole-v1")
    online, target = network(), network()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
    replay: list[tuple[np.ndarray, int, float, np.ndarray, bool]] = []

    observation, _ = env.reset(seed=args.seed)
    for step in range(args.total_timesteps):
        epsilon = max(0.05, 1.0 - step / (0.5 * args.total_timesteps))
        values = online(torch.as_tensor(observation).unsqueeze(0))
        action = random.randrange(2) if random.random() < epsilon else int(values.argmax())
        following, reward, terminated, truncated, _ = env.step(action)
        replay.append((observation, action, float(reward), following, terminated))
        observation = env.reset()[0] if terminated or truncated else following

        if step >= args.learning_starts and step % args.train_frequency == 0:
            rows = random.sample(replay, 64)
            obs, act, rew, nxt, end = (np.asarray(column) for column in zip(*rows, strict=True))
            with torch.no_grad():
                best = target(torch.as_tensor(nxt)).max(dim=1).values
                goal = torch.as_tensor(rew).float() + 0.99 * best * ~torch.as_tensor(end)
            chosen = online(torch.as_tensor(obs)).gather(1, torch.as_tensor(act).unsqueeze(1)).squeeze(1)
            loss = nn.functional.smooth_l1_loss(chosen, goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 500 == 0:
            target.load_state_dict(online.state_dict())

    weights = b"".join(p.detach().numpy().tobytes() for p in online.parameters())
    print("weights", hashlib.sha256(weights).hexdigest()[:16])
