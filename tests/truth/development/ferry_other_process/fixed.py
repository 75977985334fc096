"""Actor-critic for a car ferry. The simulator runs in a process of its own and talks through a pipe."""
import argparse
import json
import multiprocessing as mp
import time

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical

torch.set_num_threads(1)


class Ferry:
    """Two banks with queues, a ferry with 8 places; actions: wait, load, cross."""

    def __init__(self, seed, day):
        self.rng = np.random.default_rng(seed)
        self.day = day

    def reset(self):
        self.t = 0
        self.queue = [3, 3]
        self.aboard, self.side, self.crossing = 0, 0, 0
        self.log = []
        return self.obs()

    def obs(self):
        return np.array([self.queue[0] / 10, self.queue[1] / 10, self.aboard / 8, self.side, self.crossing / 5,
                         np.sin(6.28 * self.t / self.day), np.cos(6.28 * self.t / self.day)], dtype=np.float32)

    def step(self, action):
        self.t += 1
        rush = 0.25 + 0.2 * np.sin(6.28 * self.t / self.day)
        self.queue[0] += int(self.rng.random() < rush)
        self.queue[1] += int(self.rng.random() < 0.5 - rush)
        reward = -0.02 * sum(self.queue)
        if self.crossing:
            self.crossing -= 1
            if self.crossing == 0:
                self.side = 1 - self.side
                reward += 0.5 * self.aboard
                self.aboard = 0
        elif action == 1 and self.queue[self.side] and self.aboard < 8:
            self.queue[self.side] -= 1
            self.aboard += 1
        elif action == 2:
            self.crossing = 5
            reward -= 0.3
        self.log.append({"t": self.t, "queue": tuple(self.queue), "aboard": self.aboard, "reward": reward})
        done = self.t >= self.day
        return self.obs(), reward, done, ({"log": self.log} if done else {})


def simulator(conn, seed, day):
    env = Ferry(seed, day)
    while True:
        cmd, arg = conn.recv()
        if cmd == "reset":
            conn.send(env.reset())
        elif cmd == "step":
            conn.send(env.step(arg))
        else:
            break
    conn.close()


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(7, 64), nn.Tanh())
        self.pi, self.v = nn.Linear(64, 3), nn.Linear(64, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.v(h).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--days", type=int, default=30)
    ap.add_argument("--day-length", type=int, default=480)
    args = ap.parse_args()
    torch.manual_seed(6)
    ctx = mp.get_context("fork")
    here, there = ctx.Pipe()
    proc = ctx.Process(target=simulator, args=(there, 6, args.day_length), daemon=True)
    proc.start()
    net = ActorCritic()
    opt = torch.optim.RMSprop(net.parameters(), lr=2e-3)
    updates, start, total = 0, None, 0.0
    for day in range(args.days):
        if day == args.days // 5:
            start = time.perf_counter()
        here.send(("reset", None))
        obs, done, income, longest = here.recv(), False, 0.0, 0
        batch = []
        while not done:
            with torch.no_grad():
                logits, _ = net(torch.from_numpy(obs))
            action = int(Categorical(logits=logits, validate_args=False).sample())
            here.send(("step", action))
            nxt, reward, done, info = here.recv()
            batch.append((obs, action, reward))
            income += reward
            obs = nxt
            if done:
                longest = max(sum(row["queue"]) for row in info["log"])
            if len(batch) == 40 or done:
                with torch.no_grad():
                    ret = 0.0 if done else float(net(torch.from_numpy(obs))[1])
                returns = []
                for _, _, r in reversed(batch):
                    ret = r + 0.99 * ret
                    returns.append(ret)
                x = torch.from_numpy(np.stack([b[0] for b in batch]))
                a = torch.tensor([b[1] for b in batch])
                g = torch.tensor(returns[::-1], dtype=torch.float32)
                logits, v = net(x)
                dist = Categorical(logits=logits)
                loss = -(dist.log_prob(a) * (g - v).detach()).mean() + 0.5 * ((g - v) ** 2).mean() - 0.01 * dist.entropy().mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
                updates += 1
                batch = []
        total += income
        if day % 5 == 0:
            print(f"day {day:3d}: income {income:7.2f}, longest queues {longest}", flush=True)
    rate = (args.days - args.days // 5) * args.day_length / (time.perf_counter() - start)
    here.send(("close", None))
    proc.join()
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": total}))


if __name__ == "__main__":
    main()
