"""Profiles a small real training run: advantage actor-critic on CartPole, in plain torch and Gymnasium.

The three hotloop lines are `start`, `with profile(...)` and `progress`. Run it, then `hotloop show`.
"""

from __future__ import annotations

import argparse

import gymnasium
import numpy as np
import torch
from torch import nn

import hotloop
from hotloop import profile, progress

ENVS, STEPS = 8, 32
GAMMA = 0.99


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.policy = nn.Linear(64, 2)
        self.value = nn.Linear(64, 1)

    def forward(self, observations: torch.Tensor) -> tuple[torch.distributions.Categorical, torch.Tensor]:
        hidden = self.body(observations)
        return torch.distributions.Categorical(logits=self.policy(hidden)), self.value(hidden).squeeze(-1)


def train(iterations: int, seed: int) -> float:
    """Train for a number of iterations; returns the mean return of the last episodes."""
    torch.manual_seed(seed)
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * ENVS)
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    observations, _ = envs.reset(seed=seed)
    returns, finished = np.zeros(ENVS), [0.0]

    for _ in range(iterations):
        batch: list[tuple[torch.Tensor, ...]] = []
        for _ in range(STEPS):
            with profile("policy_forward"), torch.no_grad():
                inputs = torch.as_tensor(observations, dtype=torch.float32)
                distribution, _ = model(inputs)
                actions = distribution.sample()
            with profile("env_step"):
                observations, rewards, terminated, truncated, _ = envs.step(actions.numpy())
            returns += rewards
            ended = terminated | truncated
            batch.append((inputs, actions, torch.as_tensor(rewards), torch.as_tensor(terminated)))
            progress(env_steps=ENVS)
            if ended.any():
                finished += returns[ended].tolist()
                progress(episodes=int(ended.sum()), episode_return=float(returns[ended].mean()))
                returns[ended] = 0

        with profile("advantage"), torch.no_grad():
            _, future = model(torch.as_tensor(observations, dtype=torch.float32))
            targets = []
            for _, _, reward, terminated_then in reversed(batch):
                future = reward + GAMMA * future * (~terminated_then)
                targets.append(future)
            target = torch.cat(targets[::-1]).float()
        with profile("learner_forward"):
            distribution, values = model(torch.cat([b[0] for b in batch]))
        with profile("loss"):
            advantages = (target - values).detach()
            loss = -(distribution.log_prob(torch.cat([b[1] for b in batch])) * advantages).mean()
            loss = loss + 0.5 * (target - values).pow(2).mean() - 0.01 * distribution.entropy().mean()
        with profile("backward"):
            optimizer.zero_grad()
            loss.backward()
        with profile("optimizer_step"):
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        progress(updates=1, loss=loss.item())
    envs.close()
    return float(np.mean(finished[-100:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--capture", default=None, help="folder for the recording")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = hotloop.start(arguments.capture, config=vars(arguments), seeds={"all": arguments.seed})
    mean_return = train(arguments.iterations, arguments.seed)
    hotloop.stop()
    print(f"mean return of the last 100 episodes: {mean_return:.0f}")
    print(f"next: hotloop show {folder}")


if __name__ == "__main__":
    main()
