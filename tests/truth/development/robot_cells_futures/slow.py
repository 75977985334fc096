"""Six robot cells behind a field bus: each answers a command a few milliseconds later. TD3-like learner between the commands."""
import argparse
import copy
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

BUS_DELAY = 0.0025


class Cell:
    """A heated plate with two elements; the bus answers after BUS_DELAY seconds."""

    def __init__(self, number):
        self.rng = np.random.default_rng(100 + number)
        self.lock = threading.Lock()
        self.restart()

    def restart(self):
        self.temp = self.rng.uniform(-1, 1, 3).astype(np.float32)
        self.goal = self.rng.uniform(-1, 1)
        self.t = 0
        return self.state()

    def state(self):
        return np.append(self.temp, self.goal).astype(np.float32)

    def command(self, power):
        with self.lock:
            time.sleep(BUS_DELAY)
            left, mid, right = self.temp
            flow = 0.2 * np.array([mid - left, left + right - 2 * mid, mid - right])
            heat = 0.3 * np.array([power[0], 0.0, power[1]])
            self.temp = (self.temp + flow + heat - 0.05 * self.temp).astype(np.float32)
            self.t += 1
            reward = -abs(float(self.temp[1]) - self.goal)
            seen = self.state()
            over = self.t >= 50
            return seen, reward, over, self.restart() if over else seen


def net(n_in, n_out, *last):
    return nn.Sequential(nn.Linear(n_in, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, n_out), *last)


class Learner:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        self.actor, self.q1, self.q2 = net(4, 2, nn.Tanh()), net(6, 1), net(6, 1)
        self.targets = copy.deepcopy(nn.ModuleList([self.actor, self.q1, self.q2]))
        self.a_opt = torch.optim.Adam(self.actor.parameters(), 1e-3)
        self.q_opt = torch.optim.Adam([*self.q1.parameters(), *self.q2.parameters()], 1e-3)
        self.updates = 0

    def act(self, states, noise):
        with torch.no_grad():
            a = self.actor(torch.from_numpy(states)).numpy()
        return np.clip(a + noise * self.rng.normal(size=a.shape), -1, 1).astype(np.float32)

    def learn(self, s, a, r, s2):
        t_actor, t1, t2 = self.targets
        with torch.no_grad():
            x2 = torch.cat([s2, t_actor(s2)], 1)
            y = r[:, None] + 0.95 * torch.min(t1(x2), t2(x2))
        x = torch.cat([s, a], 1)
        loss = F.mse_loss(self.q1(x), y) + F.mse_loss(self.q2(x), y)
        self.q_opt.zero_grad()
        loss.backward()
        self.q_opt.step()
        self.updates += 1
        if self.updates % 4 == 0:
            a_loss = -self.q1(torch.cat([s, self.actor(s)], 1)).mean()
            self.a_opt.zero_grad()
            a_loss.backward()
            self.a_opt.step()
            with torch.no_grad():
                own = [*self.actor.parameters(), *self.q1.parameters(), *self.q2.parameters()]
                torch._foreach_lerp_(list(self.targets.parameters()), own, 0.02)


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--rounds", type=int, default=620)
    cli.add_argument("--cells", type=int, default=6)
    opt = cli.parse_args()
    torch.set_num_threads(1)
    cells = [Cell(i) for i in range(opt.cells)]
    learner = Learner(0)
    memory = []
    states = np.stack([c.state() for c in cells])
    with ThreadPoolExecutor(max_workers=opt.cells) as pool:
        for k in range(opt.rounds):
            if k == opt.rounds // 5:
                t0 = time.perf_counter()
            actions = learner.act(states, 0.2)
            answers = [pool.submit(cell.command, a).result() for cell, a in zip(cells, actions)]
            seen, rewards, overs, nxt = zip(*answers)
            memory.append((states, actions, np.array(rewards, np.float32), np.stack(seen)))
            states = np.stack(nxt)
            if k >= 20:
                picks = learner.rng.integers(0, len(memory), 16)
                batch = [torch.from_numpy(np.concatenate([memory[i][j] for i in picks])) for j in range(4)]
                learner.learn(*batch)
    rate = (opt.rounds - opt.rounds // 5) / (time.perf_counter() - t0)
    check = sum(p.detach().double().sum().item() for p in learner.actor.parameters())
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main()
