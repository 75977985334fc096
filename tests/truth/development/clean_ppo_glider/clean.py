"""PPO on a batched thermal-soaring task; the environment steps all gliders at once in numpy."""
import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn


class GliderVecEnv(gym.vector.VectorEnv):
    """Gliders circle in a field of thermals; the vario and the bank angle are observed."""

    def __init__(self, num_envs, n_thermals=6, horizon=200):
        self.num_envs = num_envs
        self.n_thermals = n_thermals
        self.horizon = horizon
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (6,), np.float32)
        self.single_action_space = gym.spaces.Discrete(3)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}

    def _spawn(self, where):
        n = int(where.sum())
        self.pos[where] = self.rng.uniform(-5, 5, (n, 2))
        self.heading[where] = self.rng.uniform(-np.pi, np.pi, n)
        self.bank[where] = 0.0
        self.height[where] = 4.0
        self.thermals[where] = self.rng.uniform(-6, 6, (n, self.n_thermals, 2))
        self.age[where] = 0

    def _lift(self):
        d = self.thermals - self.pos[:, None, :]
        return 0.35 * np.exp(-0.5 * np.einsum("nkc,nkc->nk", d, d)).sum(axis=1) - 0.05

    def _obs(self):
        obs = np.empty((self.num_envs, 6), dtype=np.float32)
        obs[:, 0] = 5 * self.vario
        obs[:, 1] = 5 * self.trend
        obs[:, 2] = self.bank
        obs[:, 3] = self.height / 5
        obs[:, 4] = np.cos(self.heading)
        obs[:, 5] = np.sin(self.heading)
        return obs

    def reset(self, *, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        n = self.num_envs
        self.pos = np.empty((n, 2))
        self.heading, self.bank, self.height = np.empty(n), np.empty(n), np.empty(n)
        self.thermals = np.empty((n, self.n_thermals, 2))
        self.age = np.empty(n, dtype=np.int64)
        self._spawn(np.ones(n, dtype=bool))
        self.age[:] = self.rng.integers(0, self.horizon // 2, n)
        self.vario = self._lift()
        self.trend = np.zeros(n)
        return self._obs(), {}

    def step(self, actions):
        self.bank = np.clip(self.bank + 0.25 * (actions - 1), -1.0, 1.0)
        self.heading += 0.4 * self.bank
        self.pos[:, 0] += 0.3 * np.cos(self.heading)
        self.pos[:, 1] += 0.3 * np.sin(self.heading)
        lift = self._lift() - 0.02 * self.bank ** 2
        self.trend = lift - self.vario
        self.vario = lift
        self.height += lift
        self.age += 1
        terminated = self.height <= 0.0
        truncated = self.age >= self.horizon
        reward = lift - terminated
        done = terminated | truncated
        if done.any():
            self._spawn(done)
            self.trend[done] = 0.0
        return self._obs(), reward, terminated, truncated, {}


class ActorCritic(nn.Module):
    def __init__(self, n_obs, n_actions):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(n_obs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(),
                                nn.Linear(64, n_actions))
        self.v = nn.Sequential(nn.Linear(n_obs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(),
                               nn.Linear(64, 1))

    def forward(self, obs):
        return torch.log_softmax(self.pi(obs), dim=-1), self.v(obs).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("updates", type=int, nargs="?", default=180)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--num-steps", type=int, default=128)
    args = parser.parse_args()
    gamma, lam, clip, epochs, mb_size = 0.99, 0.95, 0.2, 4, 1024

    torch.manual_seed(2)
    torch.set_num_threads(1)
    n, horizon = args.num_envs, args.num_steps
    envs = GliderVecEnv(n)
    agent = ActorCritic(6, 3)
    optimizer = torch.optim.Adam(agent.parameters(), lr=5e-4, eps=1e-5)

    obs_buf = torch.zeros(horizon, n, 6)
    act_buf = torch.zeros(horizon, n, dtype=torch.int64)
    logp_buf = torch.zeros(horizon, n)
    val_buf = torch.zeros(horizon + 1, n)
    rew_buf = np.zeros((horizon, n), dtype=np.float32)
    done_buf = np.zeros((horizon, n), dtype=np.float32)

    obs = torch.from_numpy(envs.reset(seed=2)[0])
    grad_steps = 0
    warm = args.updates // 5
    for update in range(args.updates):
        if update == warm:
            t0 = time.perf_counter()
        with torch.no_grad():
            for t in range(horizon):
                logp, value = agent(obs)
                action = torch.multinomial(logp.exp(), 1)
                obs_buf[t] = obs
                act_buf[t] = action[:, 0]
                logp_buf[t] = logp.gather(1, action)[:, 0]
                val_buf[t] = value
                next_obs, reward, term, trunc, _ = envs.step(action[:, 0].numpy())
                rew_buf[t] = reward
                done_buf[t] = term | trunc
                obs = torch.from_numpy(next_obs)
            val_buf[horizon] = agent(obs)[1]

        values = val_buf.numpy()
        alive = 1.0 - done_buf
        delta = rew_buf + gamma * values[1:] * alive - values[:-1]
        adv = np.empty_like(delta)
        running = np.zeros(n, dtype=np.float32)
        for t in range(horizon - 1, -1, -1):
            running = delta[t] + gamma * lam * alive[t] * running
            adv[t] = running
        adv = torch.from_numpy(adv).reshape(-1)
        ret = adv + val_buf[:-1].reshape(-1)
        norm_adv = (adv - adv.mean()) / (adv.std() + 1e-8)

        flat_obs = obs_buf.reshape(-1, 6)
        flat_act = act_buf.reshape(-1, 1)
        flat_logp = logp_buf.reshape(-1)
        for _ in range(epochs):
            for idx in torch.randperm(n * horizon).split(mb_size):
                logp, value = agent(flat_obs[idx])
                ratio = (logp.gather(1, flat_act[idx])[:, 0] - flat_logp[idx]).exp()
                a = norm_adv[idx]
                pi_loss = -torch.min(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a).mean()
                entropy = -(logp.exp() * logp).sum(-1).mean()
                loss = pi_loss + 0.5 * (value - ret[idx]).pow(2).mean() - 0.01 * entropy
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
                grad_steps += 1
        if update % 10 == 0:
            print(f"update {update:4d}  reward/step {rew_buf.mean():+.4f}  loss {loss.item():.4f}")

    seconds = time.perf_counter() - t0
    checksum = sum(p.detach().double().sum().item() for p in agent.parameters())
    print(json.dumps({"env_steps": args.updates * n * horizon, "updates": grad_steps,
                      "units_per_s": (args.updates - warm) * n * horizon / seconds,
                      "checksum": round(checksum, 6)}))


if __name__ == "__main__":
    main()
