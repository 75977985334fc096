"""PPO with a small CNN on a batch of "worm" games; all games are stepped together in numpy."""
import json
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

N_ENVS = 64
T = 32
SIZE = 20
STACK = 3
GAMMA, LAM, CLIP = 0.98, 0.95, 0.2


class WormBatch:
    """N games at once. A worm head moves on a torus, eats food and loses when it meets a wall cell.

    Frames are (N, SIZE, SIZE) uint8: 255 head, 160 food, 80 wall. Games restart on their own."""

    MOVES = np.array([[-1, 0], [0, 1], [1, 0], [0, -1]])

    def __init__(self, n, seed):
        self.n = n
        self.rng = np.random.default_rng(seed)
        self.rows = np.arange(n)
        self.walls = np.zeros((n, SIZE, SIZE), dtype=bool)
        self.head = np.zeros((n, 2), dtype=np.int64)
        self.food = np.zeros((n, 2), dtype=np.int64)
        self.age = np.zeros(n, dtype=np.int64)

    def reset(self):
        self._restart(self.rows)
        return self._frames()

    def _restart(self, which):
        k = len(which)
        self.walls[which] = self.rng.random((k, SIZE, SIZE)) < 0.06
        self.head[which] = self.rng.integers(SIZE, size=(k, 2))
        self.food[which] = self.rng.integers(SIZE, size=(k, 2))
        self.walls[which, self.head[which, 0], self.head[which, 1]] = False
        self.age[which] = 0

    def _frames(self):
        frames = self.walls * np.uint8(80)
        frames[self.rows, self.food[:, 0], self.food[:, 1]] = 160
        frames[self.rows, self.head[:, 0], self.head[:, 1]] = 255
        return frames

    def step(self, actions):
        self.head = (self.head + self.MOVES[actions]) % SIZE
        self.age += 1
        ate = (self.head == self.food).all(axis=1)
        crashed = self.walls[self.rows, self.head[:, 0], self.head[:, 1]] & ~ate
        reward = ate.astype(np.float32) - crashed - 0.01
        eaters = np.flatnonzero(ate)
        if len(eaters):
            self.food[eaters] = self.rng.integers(SIZE, size=(len(eaters), 2))
        done = crashed | (self.age >= 200)
        over = np.flatnonzero(done)
        if len(over):
            self._restart(over)
        return self._frames(), reward.astype(np.float32), done.astype(np.float32)


class PixelPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(STACK, 16, 4, stride=2), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 128), nn.ReLU(),
        )
        self.pi = nn.Linear(128, 4)
        self.v = nn.Linear(128, 1)

    def forward(self, frames):
        h = self.conv(frames.float().mul_(1.0 / 255.0))
        return self.pi(h), self.v(h).squeeze(-1)


def main(updates):
    torch.manual_seed(8)
    games = WormBatch(N_ENVS, seed=8)
    net = PixelPolicy()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-4, eps=1e-5)

    obs_buf = torch.zeros((T, N_ENVS, STACK, SIZE, SIZE), dtype=torch.uint8)
    act_buf = torch.zeros((T, N_ENVS), dtype=torch.long)
    logp_buf = torch.zeros((T, N_ENVS))
    val_buf = torch.zeros((T + 1, N_ENVS))
    rew_buf = torch.zeros((T, N_ENVS))
    done_buf = torch.zeros((T, N_ENVS))
    adv_buf = torch.zeros((T, N_ENVS))

    stack = torch.from_numpy(games.reset()).unsqueeze(1).repeat(1, STACK, 1, 1)
    grad_steps = 0
    warm = updates // 5
    for update in range(updates):
        if update == warm:
            t0 = time.perf_counter()
        with torch.no_grad():
            for t in range(T):
                obs_buf[t] = stack
                logits, value = net(stack)
                logp = logits.log_softmax(-1)
                action = torch.multinomial(logp.exp(), 1)
                act_buf[t] = action.squeeze(1)
                logp_buf[t] = logp.gather(1, action).squeeze(1)
                val_buf[t] = value
                frames, reward, done = games.step(act_buf[t].numpy())
                rew_buf[t] = torch.from_numpy(reward)
                done_buf[t] = torch.from_numpy(done)
                stack = torch.cat([stack[:, 1:], torch.from_numpy(frames).unsqueeze(1)], dim=1)
            val_buf[T] = net(stack)[1]
            running = torch.zeros(N_ENVS)
            for t in reversed(range(T)):
                alive = 1.0 - done_buf[t]
                delta = rew_buf[t] + GAMMA * alive * val_buf[t + 1] - val_buf[t]
                running = delta + GAMMA * LAM * alive * running
                adv_buf[t] = running

        obs, act, old_logp = obs_buf.flatten(0, 1), act_buf.flatten(), logp_buf.flatten()
        adv, ret = adv_buf.flatten(), (adv_buf + val_buf[:T]).flatten()
        for _ in range(3):
            for idx in torch.randperm(T * N_ENVS).split(256):
                logits, value = net(obs[idx])
                logp = logits.log_softmax(-1)
                ratio = (logp.gather(1, act[idx].unsqueeze(1)).squeeze(1) - old_logp[idx]).exp()
                a = adv[idx]
                a = (a - a.mean()) / (a.std() + 1e-8)
                policy_loss = -torch.min(ratio * a, ratio.clamp(1 - CLIP, 1 + CLIP) * a).mean()
                entropy = -(logp.exp() * logp).sum(-1).mean()
                loss = policy_loss + 0.5 * F.mse_loss(value, ret[idx]) - 0.01 * entropy
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                optimizer.step()
                grad_steps += 1
        if (update + 1) % 20 == 0:
            print(f"update {update + 1}: reward per step {rew_buf.mean().item():.4f}")

    rate = (updates - warm) / (time.perf_counter() - t0)
    print(json.dumps({
        "env_steps": updates * T * N_ENVS,
        "updates": grad_steps,
        "units_per_s": rate,
        "checksum": round(sum(p.detach().double().sum().item() for p in net.parameters()), 6),
    }))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 110)
