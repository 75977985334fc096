"""Recurrent replay DQN (small R2D2) on a recall task: the flag seen at the start tells the right door at the end."""
import argparse
import copy
import json
import time
from typing import NamedTuple

import numpy as np
import torch
import torch.nn as nn


class FlagRecall:
    """Many corridors side by side; all episodes have the same length."""

    n_obs, n_actions = 8, 4

    def __init__(self, lanes: int, length: int, rng: np.random.Generator):
        self.lanes, self.length, self.rng = lanes, length, rng

    def reset(self) -> np.ndarray:
        self.flag = self.rng.integers(0, self.n_actions, self.lanes)
        self.t = 0
        return self._observe()

    def _observe(self) -> np.ndarray:
        obs = 0.1 * self.rng.standard_normal((self.lanes, self.n_obs)).astype(np.float32)
        if self.t == 0:
            obs[np.arange(self.lanes), self.flag] += 1.0
        obs[:, 4] = self.t / self.length
        obs[:, 5] = self.t == self.length - 1
        return obs

    def step(self, action: np.ndarray):
        at_doors = self.t == self.length - 1
        reward = (action == self.flag) * 1.0 if at_doors else np.where(action == 0, 0.01, 0.0)
        self.t += 1
        return self._observe(), reward.astype(np.float32), self.t == self.length


class MemoryQ(nn.Module):
    def __init__(self, n_obs: int, n_actions: int, hidden: int):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(n_obs, hidden), nn.ReLU())
        self.core = nn.GRU(hidden, hidden, batch_first=True)
        self.value, self.advantage = nn.Linear(hidden, 1), nn.Linear(hidden, n_actions)

    def forward(self, obs, hidden=None):
        """obs: (batch, time, features). Gives Q of every step and the last hidden state."""
        features, hidden = self.core(self.encoder(obs), hidden)
        adv = self.advantage(features)
        return self.value(features) + adv - adv.mean(dim=-1, keepdim=True), hidden


class Episodes(NamedTuple):
    obs: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor


class EpisodeStore:
    def __init__(self, capacity: int, length: int, n_obs: int):
        self.obs = torch.zeros(capacity, length + 1, n_obs)
        self.actions = torch.zeros(capacity, length, dtype=torch.long)
        self.rewards = torch.zeros(capacity, length)
        self.capacity, self.written = capacity, 0

    def add(self, obs, actions, rewards):
        slots = torch.arange(self.written, self.written + len(obs)) % self.capacity
        self.obs[slots], self.actions[slots], self.rewards[slots] = obs, actions, rewards
        self.written += len(obs)

    def sample(self, n: int) -> Episodes:
        rows = torch.randint(0, min(self.written, self.capacity), (n,))
        return Episodes(self.obs[rows], self.actions[rows], self.rewards[rows])


def unroll(net: MemoryQ, obs: torch.Tensor) -> torch.Tensor:
    """Q-values along whole episodes, starting with an empty memory."""
    return net(obs)[0]


def td_loss(net, target, batch: Episodes, gamma: float) -> torch.Tensor:
    q_all = unroll(net, batch.obs)
    with torch.no_grad():
        q_target = unroll(target, batch.obs)[:, 1:]
        choice = q_all.detach()[:, 1:].argmax(dim=-1, keepdim=True)
        follow = q_target.gather(-1, choice).squeeze(-1)
        follow[:, -1] = 0.0
    q = q_all[:, :-1].gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1)
    return nn.functional.mse_loss(q, batch.rewards + gamma * follow)


def play(env: FlagRecall, net: MemoryQ, epsilon: float, rng: np.random.Generator):
    obs, hidden = env.reset(), None
    seen, acted, paid, over = [obs], [], [], False
    while not over:
        with torch.no_grad():
            q, hidden = net(torch.from_numpy(obs).unsqueeze(1), hidden)
        action = q[:, 0].argmax(dim=-1).numpy()
        random_ones = rng.random(env.lanes) < epsilon
        action[random_ones] = rng.integers(0, env.n_actions, int(random_ones.sum()))
        obs, reward, over = env.step(action)
        seen.append(obs), acted.append(action), paid.append(reward)
    return [torch.from_numpy(np.stack(x, axis=1)) for x in (seen, acted, paid)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--cycles", type=int, default=600)
    ap.add_argument("--updates-per-cycle", type=int, default=8)
    ap.add_argument("--lanes", type=int, default=16)
    ap.add_argument("--length", type=int, default=30)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--hidden", type=int, default=64)
    ap.add_argument("--seed", type=int, default=2)
    cfg = ap.parse_args()
    torch.manual_seed(cfg.seed)
    rng = np.random.default_rng(cfg.seed)
    env = FlagRecall(cfg.lanes, cfg.length, rng)
    net = MemoryQ(env.n_obs, env.n_actions, cfg.hidden)
    target = copy.deepcopy(net)
    optim = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    store = EpisodeStore(2000, cfg.length, env.n_obs)
    updates, first = 0, cfg.cycles // 5
    for cycle in range(cfg.cycles):
        if cycle == first:
            t_start = time.perf_counter()
        seen, acted, paid = play(env, net, max(0.05, 1 - 3 * cycle / cfg.cycles), rng)
        store.add(seen, acted, paid)
        for _ in range(cfg.updates_per_cycle):
            loss = td_loss(net, target, store.sample(cfg.batch), gamma=0.97)
            optim.zero_grad()
            loss.backward()
            optim.step()
            updates += 1
        if cycle % 10 == 0:
            target.load_state_dict(net.state_dict())
        if cycle % 20 == 0:
            print(f"cycle {cycle} right doors {paid[:, -1].mean().item():.2f} loss {loss.item():.4f}")
    speed = (cfg.cycles - first) / (time.perf_counter() - t_start)
    checksum = float(sum(p.detach().abs().sum() for p in net.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": speed, "checksum": round(checksum, 2)}))


if __name__ == "__main__":
    main()
