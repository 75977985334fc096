"""Double DQN where the simulator lives in its own process and talks over a pipe."""

import json
import multiprocessing as mp
import random
import time
from argparse import ArgumentParser

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class CatchSim:
    """A paddle has to catch falling fruit. State is 5 numbers, the picture is for people."""

    SIZE = 360

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.background = self.rng.integers(0, 60, (self.SIZE, self.SIZE, 3), dtype=np.uint8)
        self.reset()

    def reset(self):
        self.paddle = 0.5
        self.x, self.y = self.rng.random(), 0.0
        self.vx = self.rng.uniform(-0.02, 0.02)
        self.lives = 5
        return self.state()

    def state(self):
        return np.array([self.paddle, self.x, self.y, self.vx, self.lives / 5], dtype=np.float32)

    def picture(self):
        img = self.background.copy()
        n = self.SIZE - 1
        px, fx, fy = int(self.paddle * n), int(self.x * n), int(min(self.y, 1.0) * n)
        img[n - 6 :, max(px - 20, 0) : px + 20] = 255
        img[max(fy - 5, 0) : fy + 5, max(fx - 5, 0) : fx + 5] = (255, 80, 0)
        return img

    def step(self, action):
        self.paddle = min(1.0, max(0.0, self.paddle + 0.05 * (action - 1)))
        self.x = (self.x + self.vx) % 1.0
        self.y += 0.05
        reward = 0.0
        if self.y >= 1.0:
            hit = abs(self.x - self.paddle) < 0.1
            reward = 1.0 if hit else -1.0
            self.lives -= not hit
            self.x, self.y, self.vx = self.rng.random(), 0.0, self.rng.uniform(-0.02, 0.02)
        return self.state(), reward, self.lives <= 0


def serve(conn, seed):
    sim = CatchSim(seed)
    while True:
        cmd, arg = conn.recv()
        if cmd == "reset":
            conn.send(sim.reset())
        elif cmd == "step":
            state, reward, done = sim.step(arg)
            info = {"lives": sim.lives}
            if done:
                info["final_state"] = state
                state = sim.reset()
            conn.send((state, reward, done, info))
        else:
            conn.close()
            break


class RemoteEnv:
    def __init__(self, seed):
        ctx = mp.get_context("fork")
        self.conn, child = ctx.Pipe()
        self.proc = ctx.Process(target=serve, args=(child, seed), daemon=True)
        self.proc.start()
        child.close()

    def reset(self):
        self.conn.send(("reset", None))
        return self.conn.recv()

    def step(self, action):
        self.conn.send(("step", action))
        return self.conn.recv()

    def close(self):
        self.conn.send(("close", None))
        self.proc.join()


class Memory:
    def __init__(self, size):
        self.rows = np.zeros((size, 5 + 1 + 1 + 5 + 1), np.float32)
        self.n = 0

    def add(self, *parts):
        self.rows[self.n % len(self.rows)] = np.concatenate([np.atleast_1d(p) for p in parts])
        self.n += 1

    def batch(self, k):
        idx = np.random.randint(0, min(self.n, len(self.rows)), k)
        return torch.from_numpy(self.rows[idx]).split([5, 1, 1, 5, 1], dim=1)


def net():
    return nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


def main():
    ap = ArgumentParser()
    ap.add_argument("--steps", type=int, default=14000)
    ap.add_argument("--seed", type=int, default=9)
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    np.random.seed(a.seed)
    random.seed(a.seed)
    env = RemoteEnv(a.seed)
    online, target = net(), net()
    target.load_state_dict(online.state_dict())
    opt = torch.optim.Adam(online.parameters(), lr=5e-4)
    memory = Memory(50_000)
    updates, lives_lost = 0, 0
    state = env.reset()
    t0, s0 = time.perf_counter(), 0
    for step in range(a.steps):
        if step == a.steps // 5:
            t0, s0 = time.perf_counter(), step
        if random.random() < max(0.05, 1 - 2 * step / a.steps):
            action = random.randrange(3)
        else:
            with torch.no_grad():
                action = int(online(torch.from_numpy(state)).argmax())
        nxt, reward, done, info = env.step(action)
        memory.add(state, action, reward, info.get("final_state", nxt), done)
        lives_lost += reward < 0
        state = nxt
        if step > 500 and step % 4 == 0:
            s, act, r, s2, d = memory.batch(64)
            with torch.no_grad():
                best = online(s2).argmax(1, keepdim=True)
                y = r + 0.97 * (1 - d) * target(s2).gather(1, best)
            loss = F.smooth_l1_loss(online(s).gather(1, act.long()), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            updates += 1
            if updates % 200 == 0:
                target.load_state_dict(online.state_dict())
        if step % 2000 == 0:
            print(f"{step}: lost {lives_lost} lives, now {info['lives']}")
    rate = (a.steps - s0) / (time.perf_counter() - t0)
    env.close()
    checksum = sum(p.detach().double().sum().item() for p in online.parameters())
    print(json.dumps({"env_steps": a.steps, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
