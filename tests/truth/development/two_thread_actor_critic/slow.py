"""Learner thread and player thread: the player fills a bounded inbox, the learner empties it."""

import json
import sys
import threading
import time
from collections import deque

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F


class Inbox:
    def __init__(self, limit):
        self.items, self.limit = deque(), limit
        self.lock = threading.Lock()

    def put(self, item):
        while True:
            with self.lock:
                if len(self.items) < self.limit:
                    self.items.append(item)
                    return
            time.sleep(0.005)

    def get(self):
        while True:
            with self.lock:
                if self.items:
                    return self.items.popleft()
            time.sleep(0.005)


def play(inbox, fragments, length):
    env = gym.make("CartPole-v1")
    rng = np.random.default_rng(0)
    obs, _ = env.reset(seed=0)
    for _ in range(fragments):
        o, a, r, d = (
            np.zeros((length, 4), np.float32),
            np.zeros(length, np.int64),
            np.zeros(length, np.float32),
            np.zeros(length, np.float32),
        )
        for t in range(length):
            act = int(rng.random() < 0.5 + 0.2 * np.sign(obs[2]))
            o[t], a[t] = obs, act
            obs, r[t], terminated, truncated, _ = env.step(act)
            if terminated or truncated:
                d[t] = 1
                obs, _ = env.reset()
        inbox.put((o, a, r, d, obs))


def main(fragments=2000, length=32):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    trunk = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh())
    pi, v = torch.nn.Linear(64, 2), torch.nn.Linear(64, 1)
    params = [*trunk.parameters(), *pi.parameters(), *v.parameters()]
    opt = torch.optim.RMSprop(params, lr=7e-4)
    inbox = Inbox(1)
    player = threading.Thread(target=play, args=(inbox, fragments, length), daemon=True)
    player.start()
    for k in range(fragments):
        if k == fragments // 5:
            start = time.perf_counter()
        o, a, r, d, last = inbox.get()
        with torch.no_grad():
            boot = float(v(trunk(torch.from_numpy(last))))
        ret = np.zeros(length, np.float32)
        for t in range(length - 1, -1, -1):
            boot = r[t] + 0.99 * boot * (1 - d[t])
            ret[t] = boot
        h = trunk(torch.from_numpy(o))
        value, target = v(h).squeeze(1), torch.from_numpy(ret)
        loss = (
            F.cross_entropy(pi(h), torch.from_numpy(a), reduction="none") * (target - value).detach()
        ).mean() + F.mse_loss(value, target)
        opt.zero_grad()
        loss.backward()
        opt.step()
    rate = (fragments - fragments // 5) / (time.perf_counter() - start)
    player.join()
    print(
        json.dumps(
            {
                "env_steps": fragments * length,
                "updates": fragments,
                "units_per_s": rate,
                "checksum": float(sum(p.double().sum() for p in params)),
            }
        )
    )


if __name__ == "__main__":
    main(*(int(x) for x in sys.argv[1:]))
