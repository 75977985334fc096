"""Actor threads drive carts behind a slow serial line; the main thread trains a DQN from their queue."""

import argparse
import json
import queue
import threading
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

ACTORS, OBS, ACTIONS, CHUNK = 3, 4, 3, 32
LINE_S = 0.002  # until the cart has answered


class Cart:
    """A cart on a rail with a swinging load; a step waits for the serial line."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self):
        self.state = self.rng.uniform(-0.5, 0.5, OBS)
        self.t = 0
        return self.state.astype(np.float32)

    def step(self, action):
        x, v, swing, rate = self.state
        push = action - 1.0
        time.sleep(LINE_S)
        v, rate = 0.98 * v + 0.1 * push, 0.97 * rate - 0.2 * np.sin(swing) - 0.1 * push
        self.state = np.array([np.clip(x + 0.1 * v, -2, 2), v, swing + 0.1 * rate, rate])
        self.t += 1
        reward = -abs(self.state[0]) - 0.3 * abs(self.state[2])
        return self.state.astype(np.float32), np.float32(reward), self.t >= 100


class Policy:
    """The acting copy of the network, shared by the actor threads and replaced by the learner."""

    def __init__(self):
        self.lock = threading.Lock()
        self.net = network()

    def load(self, weights):
        with self.lock:
            self.net.load_state_dict(weights)

    def act(self, obs):
        with torch.inference_mode():
            return int(self.net(torch.from_numpy(obs)).argmax())


def network():
    return nn.Sequential(nn.Linear(OBS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, ACTIONS))


def actor(number, policy, chunks, stop):
    """Drive one cart and hand over CHUNK transitions at a time."""
    env, rng = Cart(number), np.random.default_rng(100 + number)
    obs, chunk = env.reset(), []
    while not stop.is_set():
        explore = rng.random() < 0.1
        with policy.lock:
            action = int(rng.integers(ACTIONS)) if explore else policy.act(obs)
            next_obs, reward, truncated = env.step(action)
        chunk.append((obs, action, reward, next_obs))
        obs = env.reset() if truncated else next_obs
        if len(chunk) == CHUNK:
            chunks.put(chunk)
            chunk = []


class Learner:
    def __init__(self, rng):
        self.rng, self.net, self.target = rng, network(), network()
        self.target.load_state_dict(self.net.state_dict())
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3, fused=True)
        self.obs, self.next_obs = np.zeros((2, 50_000, OBS), np.float32)
        self.actions, self.rewards, self.size = np.zeros(50_000, np.int64), np.zeros(50_000, np.float32), 0

    def store(self, chunk):
        rows = slice(self.size, self.size + len(chunk))
        self.obs[rows], self.actions[rows], self.rewards[rows], self.next_obs[rows] = zip(*chunk, strict=True)
        self.size += len(chunk)

    def update(self):
        index = self.rng.integers(0, self.size, 128)
        with torch.no_grad():
            following = self.target(torch.from_numpy(self.next_obs[index])).max(dim=1).values
            aim = torch.from_numpy(self.rewards[index]) + 0.97 * following
        values = self.net(torch.from_numpy(self.obs[index]))
        chosen = values.gather(1, torch.from_numpy(self.actions[index]).unsqueeze(1)).squeeze(1)
        self.optimizer.zero_grad()
        F.smooth_l1_loss(chosen, aim).backward()
        self.optimizer.step()


def main(number_of_chunks):
    torch.manual_seed(3)
    torch.set_num_threads(1)
    learner, policy = Learner(np.random.default_rng(3)), Policy()
    chunks, stop = queue.Queue(maxsize=4), threading.Event()
    threads = [
        threading.Thread(target=actor, args=(i, policy, chunks, stop), daemon=True) for i in range(ACTORS)
    ]
    for thread in threads:
        thread.start()
    marks = []
    for number in range(number_of_chunks):
        marks.append(time.perf_counter())
        learner.store(chunks.get())
        for _ in range(4):
            learner.update()
        policy.load(learner.net.state_dict())
        if number % 10 == 0:
            learner.target.load_state_dict(learner.net.state_dict())
    marks.append(time.perf_counter())
    stop.set()
    while any(thread.is_alive() for thread in threads):
        try:
            chunks.get(timeout=0.01)
        except queue.Empty:
            pass
    first = number_of_chunks // 5
    rate = (number_of_chunks - first) / (marks[-1] - marks[first])
    updates = 4 * number_of_chunks
    checksum = float(sum(p.detach().abs().sum() for p in learner.net.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--chunks", type=int, default=170)
    main(parser.parse_args().chunks)
