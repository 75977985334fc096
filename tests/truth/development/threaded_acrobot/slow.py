"""
Actor thread + learner thread on Acrobot (synchronous PPO: the actor plays a batch with the newest
policy, hands it to the learner, and goes on when the learner has published the next version).
"""
import json
import sys
import threading
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn

BATCH_STEPS = 256
EPOCHS = 4
MINIBATCH = 64
GAMMA, LAM, CLIP = 0.99, 0.95, 0.2


class Policy(nn.Module):
    def __init__(self, obs_dim=6, n_actions=3):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(obs_dim, 64), nn.Tanh(), nn.Linear(64, n_actions))
        self.v = nn.Sequential(nn.Linear(obs_dim, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, x):
        return self.pi(x), self.v(x).squeeze(-1)


class Exchange:
    """What the two threads share."""

    def __init__(self):
        self.batch = None
        self.version = 0
        self.stop = False


class Actor(threading.Thread):
    def __init__(self, policy, exchange, seed):
        super().__init__(name="actor", daemon=True)
        self.policy = policy
        self.exchange = exchange
        self.env = gym.make("Acrobot-v1")
        self.obs, _ = self.env.reset(seed=seed)
        self.steps = 0

    @torch.no_grad()
    def collect(self):
        obs = np.zeros((BATCH_STEPS, 6), np.float32)
        actions = np.zeros(BATCH_STEPS, np.int64)
        logps = np.zeros(BATCH_STEPS, np.float32)
        values = np.zeros(BATCH_STEPS + 1, np.float32)
        rewards = np.zeros(BATCH_STEPS, np.float32)
        dones = np.zeros(BATCH_STEPS, np.float32)
        for t in range(BATCH_STEPS):
            logits, value = self.policy(torch.from_numpy(self.obs))
            logp = logits.log_softmax(-1)
            a = torch.multinomial(logp.exp(), 1).item()
            obs[t], actions[t], logps[t], values[t] = self.obs, a, logp[a].item(), value.item()
            self.obs, rewards[t], terminated, truncated, _ = self.env.step(a)
            dones[t] = terminated or truncated
            if dones[t]:
                self.obs, _ = self.env.reset()
        values[-1] = self.policy(torch.from_numpy(self.obs))[1].item()
        self.steps += BATCH_STEPS

        advantages = np.zeros(BATCH_STEPS, np.float32)
        last = 0.0
        for t in reversed(range(BATCH_STEPS)):
            alive = 1.0 - dones[t]
            delta = rewards[t] + GAMMA * alive * values[t + 1] - values[t]
            last = delta + GAMMA * LAM * alive * last
            advantages[t] = last
        returns = advantages + values[:-1]
        return tuple(torch.from_numpy(x) for x in (obs, actions, logps, advantages, returns))

    def run(self):
        version = 0
        while not self.exchange.stop:
            batch = self.collect()
            self.exchange.batch = batch
            version += 1
            while self.exchange.version < version:
                if self.exchange.stop:
                    return
                time.sleep(0.02)


class Learner(threading.Thread):
    def __init__(self, policy, exchange, updates):
        super().__init__(name="learner")
        self.policy = policy
        self.exchange = exchange
        self.updates = updates
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=5e-4)
        self.grad_steps = 0

    def train(self, batch):
        obs, actions, logps, advantages, returns = batch
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        for _ in range(EPOCHS):
            for idx in torch.randperm(BATCH_STEPS).split(MINIBATCH):
                logits, values = self.policy(obs[idx])
                logp = logits.log_softmax(-1)
                ratio = (logp.gather(1, actions[idx, None]).squeeze(1) - logps[idx]).exp()
                adv = advantages[idx]
                surrogate = torch.min(ratio * adv, ratio.clamp(1 - CLIP, 1 + CLIP) * adv).mean()
                entropy = -(logp.exp() * logp).sum(-1).mean()
                loss = -surrogate + 0.5 * (values - returns[idx]).pow(2).mean() - 0.01 * entropy
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.grad_steps += 1

    def run(self):
        warm = self.updates // 5
        for update in range(self.updates):
            if update == warm:
                self.t0 = time.perf_counter()
            while self.exchange.batch is None:
                time.sleep(0.05)
            batch, self.exchange.batch = self.exchange.batch, None
            self.train(batch)
            if update == self.updates - 1:
                self.exchange.stop = True
            self.exchange.version += 1
        self.rate = (self.updates - warm) / (time.perf_counter() - self.t0)


def main():
    updates = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    torch.manual_seed(2)
    policy = Policy()
    exchange = Exchange()
    actor = Actor(policy, exchange, seed=2)
    learner = Learner(policy, exchange, updates)
    actor.start()
    learner.start()
    learner.join()
    actor.join()
    print(json.dumps({
        "env_steps": actor.steps,
        "updates": learner.grad_steps,
        "units_per_s": learner.rate,
        "checksum": round(sum(p.detach().double().sum().item() for p in policy.parameters()), 6),
    }))


if __name__ == "__main__":
    main()
