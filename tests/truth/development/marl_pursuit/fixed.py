# Independent actor-critic with shared parameters for a pursuit game.
# Parallel-env interface: dicts keyed by agent name.
import json
import sys
import time

import numpy as np
import torch
from torch import nn

SEED = 17
N_PURSUERS = 6
HORIZON = 64
GAMMA = 0.95
EPOCHS = 2


class PursuitEnv:
    """Pursuers on a torus try to get close to one evader that runs from the nearest pursuer."""

    def __init__(self, n_agents=N_PURSUERS, size=10.0, seed=0):
        self.possible_agents = [f"pursuer_{i}" for i in range(n_agents)]
        self.n = n_agents
        self.size = size
        self.rng = np.random.default_rng(seed)
        self.moves = 0.35 * np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], dtype=np.float64)
        self.obs_dim = 6
        self.n_actions = len(self.moves)

    def _wrap(self, d):
        return (d + self.size / 2) % self.size - self.size / 2

    def _observe(self):
        to_evader = self._wrap(self.evader - self.pos)
        dist = np.sqrt((to_evader ** 2).sum(1))
        centre = self._wrap(self.pos.mean(0) - self.pos)
        obs = np.empty((self.n, self.obs_dim), dtype=np.float32)
        obs[:, 0:2] = to_evader / self.size
        obs[:, 2:4] = centre / self.size
        obs[:, 4] = dist / self.size
        obs[:, 5] = self.t / HORIZON
        self.to_evader, self.dist = to_evader, dist
        return {name: obs[i] for i, name in enumerate(self.agents)}

    def reset(self):
        self.agents = list(self.possible_agents)
        self.pos = self.rng.uniform(0, self.size, (self.n, 2))
        self.evader = self.rng.uniform(0, self.size, 2)
        self.t = 0
        return self._observe()

    def step(self, actions):
        chosen = [actions[name] for name in self.agents]
        self.pos = (self.pos + self.moves[chosen]) % self.size
        near = int(self.dist.argmin())
        away = self.to_evader[near] / (self.dist[near] + 1e-6)
        self.evader = (self.evader + 0.3 * away + self.rng.normal(0, 0.1, 2)) % self.size
        self.t += 1
        obs = self._observe()
        team = 1.0 if self.dist.min() < 0.5 else 0.0
        rew = (team - 0.05 * self.dist).tolist()
        rewards = {name: rew[i] for i, name in enumerate(self.agents)}
        return obs, rewards, self.t >= HORIZON


class SharedPolicy(nn.Module):
    def __init__(self, obs_dim, n_actions):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs_dim, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.actor = nn.Linear(64, n_actions)
        self.critic = nn.Linear(64, 1)

    def forward(self, obs):
        h = self.trunk(obs)
        return torch.log_softmax(self.actor(h), dim=-1), self.critic(h).squeeze(-1)


def select_actions(policy, observations):
    obs = torch.from_numpy(np.stack(list(observations.values())))
    with torch.no_grad():
        logp, _ = policy(obs)
        chosen = torch.multinomial(logp.exp(), 1).squeeze(1).tolist()
    return dict(zip(observations, chosen))


def discounted(rewards):
    out = np.empty_like(rewards)
    running = np.zeros(rewards.shape[1], dtype=rewards.dtype)
    for t in range(len(rewards) - 1, -1, -1):
        running = rewards[t] + GAMMA * running
        out[t] = running
    return out


def learn(policy, optimizer, obs, acts, rews):
    returns = torch.from_numpy(discounted(rews)).reshape(-1)
    obs = torch.from_numpy(obs).reshape(-1, obs.shape[-1])
    acts = torch.from_numpy(acts).reshape(-1, 1)
    for _ in range(EPOCHS):
        logp, values = policy(obs)
        adv = returns - values.detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        entropy = -(logp.exp() * logp).sum(-1).mean()
        loss = (-(logp.gather(1, acts).squeeze(1) * adv).mean()
                + 0.5 * (returns - values).pow(2).mean() - 0.01 * entropy)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main(n_episodes):
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    env = PursuitEnv(seed=SEED)
    policy = SharedPolicy(env.obs_dim, env.n_actions)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)

    obs_buf = np.zeros((HORIZON, env.n, env.obs_dim), dtype=np.float32)
    act_buf = np.zeros((HORIZON, env.n), dtype=np.int64)
    rew_buf = np.zeros((HORIZON, env.n), dtype=np.float32)
    steps = updates = 0
    team_returns = []
    for episode in range(n_episodes):
        if episode == n_episodes // 5:
            t0, s0 = time.perf_counter(), steps
        observations = env.reset()
        done = False
        t = 0
        while not done:
            actions = select_actions(policy, observations)
            obs_buf[t] = list(observations.values())
            act_buf[t] = list(actions.values())
            observations, rewards, done = env.step(actions)
            rew_buf[t] = list(rewards.values())
            t += 1
        steps += t
        learn(policy, optimizer, obs_buf, act_buf, rew_buf)
        updates += EPOCHS
        team_returns.append(float(rew_buf.sum()))
        if (episode + 1) % 50 == 0:
            print(f"episode {episode + 1} mean team return {np.mean(team_returns[-50:]):.2f}")

    elapsed = time.perf_counter() - t0
    checksum = sum(float(p.double().sum()) for p in policy.state_dict().values())
    print(json.dumps({"env_steps": steps, "updates": updates,
                      "units_per_s": (steps - s0) / elapsed, "checksum": round(checksum, 6)}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 900)
