# actor threads + one learner thread (the main one). threads are fine here: an env step is mostly waiting for the plant
import json
import queue
import sys
import threading
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(7)

N_ACTORS = 8
UNROLL = 20
UPDATES = int(sys.argv[1]) if len(sys.argv) > 1 else 330
GAMMA = 0.98
ENT = 0.01


class TwoTanks(gym.Env):
    """Two coupled water tanks behind a field bus that answers once per millisecond."""

    observation_space = gym.spaces.Box(-5.0, 5.0, (6,), np.float32)
    action_space = gym.spaces.Discrete(5)
    PUMP = (0.0, 0.2, 0.45, 0.7, 1.0)
    BUS_LATENCY = 0.001

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.h1, self.h2 = self.np_random.uniform(0.1, 0.9, 2).tolist()
        self.goal = float(self.np_random.uniform(0.3, 0.7))
        self.last = 0.0
        self.t = 0
        return self._obs(), {}

    def _obs(self):
        err = self.goal - self.h2
        return np.array([self.h1, self.h2, self.goal, err, self.last, self.h1 - self.h2], dtype=np.float32)

    def step(self, action):
        u = self.PUMP[action]
        time.sleep(self.BUS_LATENCY)  # write pump speed, read levels
        d = self.h1 - self.h2
        flow = 0.12 * abs(d) ** 0.5 * (1 if d > 0 else -1)
        self.h1 = min(max(self.h1 + 0.1 * u - flow, 0.0), 1.2)
        self.h2 = min(max(self.h2 + flow - 0.06 * self.h2**0.5, 0.0), 1.2)
        self.last = u
        self.t += 1
        err = self.goal - self.h2
        spilled = self.h1 >= 1.2 or self.h2 >= 1.2
        return self._obs(), -abs(err) - (5.0 if spilled else 0.0), spilled, self.t >= 150, {}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(6, 64)
        self.fc2 = nn.Linear(64, 64)
        self.fc3 = nn.Linear(64, 64)
        self.pi = nn.Linear(64, 5)
        self.v = nn.Linear(64, 1)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        x = F.relu(self.fc3(x))
        return self.pi(x), self.v(x).squeeze(-1)


class ParameterServer:
    """What the actors act with; the learner puts new weights here."""

    def __init__(self, net):
        self.lock = threading.Lock()
        self.net = Net()
        self.net.load_state_dict(net.state_dict())
        self.version = 1

    def push(self, net):
        with self.lock:
            self.net.load_state_dict(net.state_dict())
            self.version += 1

    def pull(self, net, have):
        with self.lock:
            if self.version != have:
                net.load_state_dict(self.net.state_dict())
            return self.version


class Actor(threading.Thread):
    def __init__(self, idx, server, out, n_unrolls):
        super().__init__(daemon=True, name=f"actor-{idx}")
        self.idx, self.server, self.out, self.n_unrolls = idx, server, out, n_unrolls
        self.net = Net()
        self.version = 0
        self.rng = np.random.default_rng(100 + idx)

    def run(self):
        env = TwoTanks()
        obs, _ = env.reset(seed=self.idx)
        for _ in range(self.n_unrolls):
            obs_l = np.empty((UNROLL + 1, 6), np.float32)
            act_l = np.empty(UNROLL, np.int64)
            rew_l = np.empty(UNROLL, np.float32)
            done_l = np.empty(UNROLL, np.float32)
            for t in range(UNROLL):
                self.version = self.server.pull(self.net, self.version)  # always act with the newest policy
                with torch.no_grad():
                    logits, _ = self.net(torch.from_numpy(obs))
                # Gumbel trick
                a = int(np.argmax(logits.numpy() + self.rng.gumbel(size=5)))
                obs_l[t] = obs
                obs, r, term, trunc, _ = env.step(a)
                act_l[t], rew_l[t], done_l[t] = a, r, term or trunc
                if term or trunc:
                    obs, _ = env.reset()
            obs_l[UNROLL] = obs
            self.out.put((obs_l, act_l, rew_l, done_l))


def learn(net, opt, unrolls):
    obs, act, rew, done = (torch.from_numpy(np.stack(x, axis=1)) for x in zip(*unrolls, strict=True))
    logits, values = net(obs)  # (UNROLL + 1, N_ACTORS, ...)
    with torch.no_grad():
        ret = values[-1]
        targets = torch.empty_like(rew)
        for t in range(UNROLL - 1, -1, -1):
            ret = rew[t] + GAMMA * (1 - done[t]) * ret
            targets[t] = ret
    logp = F.log_softmax(logits[:-1], -1)
    adv = targets - values[:-1]
    pg = -(logp.gather(-1, act.unsqueeze(-1)).squeeze(-1) * adv.detach()).mean()
    entropy = -(logp.exp() * logp).sum(-1).mean()
    loss = pg + 0.5 * adv.pow(2).mean() - ENT * entropy
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    return rew.mean()


def main():
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    server = ParameterServer(net)
    unroll_queue = queue.Queue(maxsize=2 * N_ACTORS)
    actors = [Actor(i, server, unroll_queue, UPDATES) for i in range(N_ACTORS)]
    for a in actors:
        a.start()
    t0 = time.perf_counter()
    first = UPDATES // 5
    for i in range(UPDATES):
        if i == first:
            t0 = time.perf_counter()
        mean_reward = learn(net, opt, [unroll_queue.get() for _ in range(N_ACTORS)])
        server.push(net)
        if i % 50 == 0:
            print(f"update {i}  reward/step {mean_reward.item():.3f}", flush=True)
    took = time.perf_counter() - t0
    for a in actors:
        a.join()
    print(
        json.dumps(
            {
                "env_steps": UPDATES * N_ACTORS * UNROLL,
                "updates": UPDATES,
                "units_per_s": (UPDATES - first) / took,
                "checksum": sum(p.detach().abs().sum().item() for p in net.parameters()),
            }
        )
    )


if __name__ == "__main__":
    main()
