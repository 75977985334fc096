"""REINFORCE with a baseline on three arms of a test bench. Every arm is driven by a process of its own, at its own pace."""
import argparse
import json
import multiprocessing as mp
import time

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)
SETTLE = 0.0015  # seconds until the sensors of an arm may be read after a command


class Arm:
    """Two joints; the tip has to reach a point. Commands are torques, readings come after the arm has settled."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.angle = self.rng.uniform(-1.0, 1.0, 2)
        self.speed = np.zeros(2)
        self.goal = self.rng.uniform(-0.8, 0.8, 2)
        return self.read()

    def tip(self):
        a, b = self.angle[0], self.angle.sum()
        return np.array([0.5 * np.cos(a) + 0.5 * np.cos(b), 0.5 * np.sin(a) + 0.5 * np.sin(b)])

    def read(self):
        return np.concatenate([np.cos(self.angle), np.sin(self.angle), self.speed, self.goal, self.tip()]).astype(np.float32)

    def command(self, torque):
        self.speed = 0.8 * self.speed + 0.15 * np.tanh(torque)
        self.angle = self.angle + self.speed
        time.sleep(SETTLE)
        reward = -float(np.linalg.norm(self.tip() - self.goal))
        return self.read(), reward


def driver(conn, seed):
    arm = Arm(seed)
    while True:
        name, payload = conn.recv()
        if name == "reset":
            conn.send(arm.reset())
        elif name == "command":
            conn.send(arm.command(payload))
        else:
            return


class Bench:
    def __init__(self, arms, seed):
        ctx = mp.get_context("fork")
        self.pipes, self.drivers = [], []
        for i in range(arms):
            mine, theirs = ctx.Pipe()
            proc = ctx.Process(target=driver, args=(theirs, seed + i), daemon=True)
            proc.start()
            self.pipes.append(mine)
            self.drivers.append(proc)

    def reset(self):
        for pipe in self.pipes:
            pipe.send(("reset", None))
        return np.stack([pipe.recv() for pipe in self.pipes])

    def step(self, torques):
        for pipe, torque in zip(self.pipes, torques):
            pipe.send(("command", torque))
        readings, rewards = zip(*[pipe.recv() for pipe in self.pipes])
        return np.stack(readings), np.array(rewards, dtype=np.float32)

    def close(self):
        for pipe, proc in zip(self.pipes, self.drivers):
            pipe.send(("stop", None))
            proc.join()


class Policy(nn.Module):
    def __init__(self, inputs=10, outputs=2):
        super().__init__()
        self.mean = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))
        self.value = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 1))
        self.log_std = nn.Parameter(torch.full((outputs,), -0.5))


def train(policy, opt, obs, acts, rewards, gamma=0.95, epochs=16):
    returns = np.zeros_like(rewards)
    run = np.zeros(rewards.shape[1], dtype=np.float32)
    for t in range(len(rewards) - 1, -1, -1):
        run = rewards[t] + gamma * run
        returns[t] = run
    x, a, g = torch.from_numpy(obs).flatten(0, 1), torch.from_numpy(acts).flatten(0, 1), torch.from_numpy(returns).flatten()
    for _ in range(epochs):
        v = policy.value(x).squeeze(-1)
        adv = (g - v).detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        z = (a - policy.mean(x)) * torch.exp(-policy.log_std)
        logp = (-0.5 * z * z - policy.log_std).sum(1)
        loss = -(logp * adv).mean() + 0.5 * ((g - v) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return epochs


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--trials", type=int, default=80)
    ap.add_argument("--length", type=int, default=40)
    ap.add_argument("--arms", type=int, default=3)
    args = ap.parse_args()
    torch.manual_seed(14)
    bench, policy, rng = Bench(args.arms, 14), Policy(), np.random.default_rng(14)
    opt = torch.optim.Adam(policy.parameters(), lr=1e-3)
    updates, total, start = 0, 0.0, None
    for trial in range(args.trials):
        if trial == args.trials // 5:
            start = time.perf_counter()
        now = bench.reset()
        obs, acts, rewards = [], [], []
        for _ in range(args.length):
            with torch.no_grad():
                mean, std = policy.mean(torch.from_numpy(now)).numpy(), policy.log_std.exp().numpy()
            act = mean + std * rng.standard_normal(mean.shape, dtype=np.float32)
            obs.append(now)
            acts.append(act)
            now, reward = bench.step(act)
            rewards.append(reward)
        rewards = np.stack(rewards)
        updates += train(policy, opt, np.stack(obs), np.stack(acts), rewards)
        total += float(rewards.sum())
        if trial % 8 == 0:
            print(f"trial {trial:3d}: mean distance {-rewards.mean():.3f}", flush=True)
    rate = (args.trials - args.trials // 5) * args.length / (time.perf_counter() - start)
    bench.close()
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": total}))


if __name__ == "__main__":
    main()
