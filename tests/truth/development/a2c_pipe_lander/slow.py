"""A2C with environments living in child processes (one multiprocessing.Pipe each)."""
import argparse
import json
import multiprocessing as mp
import time

import cv2
import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class MoonLander(gym.Env):
    """2-d lander in turbulent air: land softly on the pad at x = 0.

    The wind is a sum of travelling Fourier modes, felt where the lander is, at every substep."""

    metadata = {"render_modes": ["rgb_array"]}
    SIZE = 256
    MODES = 600
    SUBSTEPS = 20

    def __init__(self):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (6,), np.float32)
        self.action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(-0.6, 0.6))
        self.y = 1.0
        self.vx = float(self.np_random.uniform(-0.3, 0.3))
        k = self.np_random.normal(scale=6.0, size=(2, self.MODES))
        self.kx, self.ky = k
        self.omega = 2.0 * np.sqrt((k * k).sum(axis=0))
        self.phase = self.np_random.uniform(0.0, 2 * np.pi, self.MODES)
        self.gusts = self.np_random.normal(scale=0.4 / np.sqrt(self.MODES), size=(2, self.MODES))
        self.vy = 0.0
        self.fuel = 1.0
        self.t = 0
        return self._obs(), {}

    def _obs(self):
        return np.array([self.x, self.y, self.vx, self.vy, self.fuel, self.t / 200.0], dtype=np.float32)

    def step(self, action):
        ax, ay = 0.0, -0.4
        if self.fuel > 0.0:
            if action == 1:
                ax = -0.5
            elif action == 2:
                ay = 0.6
            elif action == 3:
                ax = 0.5
            if action:
                self.fuel -= 0.006
        dt = 0.04 / self.SUBSTEPS
        now = 0.04 * self.t
        for _ in range(self.SUBSTEPS):
            waves = np.cos(self.kx * self.x + self.ky * self.y + self.phase - self.omega * now)
            wx, wy = (self.gusts @ waves).tolist()
            self.vx += (ax + wx) * dt
            self.vy += (ay + wy) * dt
            self.x += self.vx * dt
            self.y += self.vy * dt
            now += dt
        self.t += 1
        reward = -0.01 * (abs(self.x) + abs(self.vx) + abs(self.vy))
        terminated = self.y <= 0.0 or abs(self.x) > 1.5
        if terminated:
            soft = self.y <= 0.0 and abs(self.x) < 0.2 and abs(self.vy) < 0.35
            reward += 1.0 if soft else -1.0
        return self._obs(), reward, terminated, self.t >= 200, {}

    def render(self):
        n = self.SIZE
        canvas = np.zeros((n, n, 3), dtype=np.uint8)
        cv2.rectangle(canvas, (0, n - 12), (n, n), (90, 90, 90), -1)
        cv2.line(canvas, (int(0.44 * n), n - 12), (int(0.56 * n), n - 12), (0, 220, 0), 3)
        px = int((self.x + 1.5) / 3.0 * n)
        py = int((1.0 - self.y / 1.3) * (n - 12))
        cv2.circle(canvas, (px, py), 7, (230, 230, 250), -1, cv2.LINE_AA)
        cv2.line(canvas, (px, py), (int(px + 20 * self.vx), int(py - 20 * self.vy)), (0, 0, 255), 2, cv2.LINE_AA)
        cv2.putText(canvas, f"fuel {self.fuel:.2f}", (6, 16), cv2.FONT_HERSHEY_SIMPLEX, 0.4, (255, 255, 255), 1, cv2.LINE_AA)
        return canvas


def worker(conn, seed):
    env = MoonLander()
    obs, _ = env.reset(seed=seed)
    conn.send(obs)
    while True:
        command, action = conn.recv()
        if command == "close":
            break
        obs, reward, terminated, truncated, info = env.step(action)
        info["frame"] = env.render()
        done = terminated or truncated
        if done:
            obs, _ = env.reset()
        conn.send((obs, reward, done, info))
    conn.close()


class RemoteEnvs:
    def __init__(self, n, seed):
        ctx = mp.get_context("fork")
        self.conns, self.procs = [], []
        for i in range(n):
            here, there = ctx.Pipe()
            p = ctx.Process(target=worker, args=(there, seed + i), daemon=True)
            p.start()
            there.close()
            self.conns.append(here)
            self.procs.append(p)
        self.first_obs = np.stack([c.recv() for c in self.conns])

    def step(self, actions):
        for conn, a in zip(self.conns, actions):
            conn.send(("step", a))
        obs, rewards, dones, infos = zip(*[c.recv() for c in self.conns])
        return np.stack(obs), np.array(rewards, np.float32), np.array(dones, np.float32), infos

    def close(self):
        for conn in self.conns:
            conn.send(("close", None))
        for p in self.procs:
            p.join()


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.pi = nn.Linear(64, 4)
        self.v = nn.Linear(64, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.pi(h), self.v(h).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("updates", type=int, nargs="?", default=1000)
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--rollout", type=int, default=16)
    args = parser.parse_args()
    torch.manual_seed(5)

    envs = RemoteEnvs(args.num_envs, seed=5)
    net = ActorCritic()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=7e-4, eps=1e-5)
    T, N, gamma = args.rollout, args.num_envs, 0.99
    obs_buf = np.zeros((T, N, 6), np.float32)
    act_buf = np.zeros((T, N), np.int64)
    rew_buf = np.zeros((T, N), np.float32)
    done_buf = np.zeros((T, N), np.float32)
    obs = envs.first_obs
    landed = episodes = 0

    for update in range(args.updates):
        if update == args.updates // 5:
            t0 = time.perf_counter()
        with torch.no_grad():
            for t in range(T):
                obs_buf[t] = obs
                logits, _ = net(torch.from_numpy(obs))
                actions = torch.multinomial(logits.softmax(-1), 1).squeeze(-1).numpy()
                act_buf[t] = actions
                obs, rew_buf[t], done_buf[t], infos = envs.step(actions.tolist())
                episodes += int(done_buf[t].sum())
                landed += int((rew_buf[t] > 0.5).sum())
            ret = net(torch.from_numpy(obs))[1].numpy()
        returns = np.empty_like(rew_buf)
        for t in reversed(range(T)):
            ret = rew_buf[t] + gamma * ret * (1.0 - done_buf[t])
            returns[t] = ret

        logits, values = net(torch.from_numpy(obs_buf.reshape(-1, 6)))
        logp = logits.log_softmax(-1)
        chosen = logp.gather(1, torch.from_numpy(act_buf.reshape(-1, 1))).squeeze(1)
        target = torch.from_numpy(returns.reshape(-1))
        advantage = target - values.detach()
        entropy = -(logp.exp() * logp).sum(-1).mean()
        loss = -(chosen * advantage).mean() + 0.5 * F.mse_loss(values, target) - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        if (update + 1) % 500 == 0:
            print(f"update {update + 1}: {episodes} episodes, {landed} soft landings")

    rate = (args.updates - args.updates // 5) / (time.perf_counter() - t0)
    envs.close()
    print(json.dumps({
        "env_steps": args.updates * T * N,
        "updates": args.updates,
        "units_per_s": rate,
        "checksum": round(sum(p.detach().double().sum().item() for p in net.parameters()), 6),
    }))


if __name__ == "__main__":
    main()
