import json
import math
import random
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

# ---------------------------------------------------------------- config
SEED = 9
N_BEAMS = 64
N_ROCKS = 16
MAX_RANGE = 6.0
DT = 0.2
EP_LEN = 100
GAMMA = 0.97
LR = 7e-4
ENTROPY = 0.01


# ---------------------------------------------------------------- environment
class RoverWorld:
    """Rover with a laser scanner drives to a beacon between round rocks."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        angles = [2 * math.pi * k / N_BEAMS for k in range(N_BEAMS)]
        self.beam_cos = np.array([[math.cos(a)] for a in angles])
        self.beam_sin = np.array([[math.sin(a)] for a in angles])

    def reset(self):
        self.rocks = [(self.rng.uniform(-8, 8), self.rng.uniform(-8, 8), self.rng.uniform(0.3, 0.8))
                      for _ in range(N_ROCKS)]
        self.rock_x, self.rock_y, rock_r = np.array(self.rocks).T
        self.rock_rr = rock_r * rock_r
        self.x, self.y = self.rng.uniform(-2, 2), self.rng.uniform(-2, 2)
        self.th = self.rng.uniform(-math.pi, math.pi)
        self.gx, self.gy = self.rng.uniform(-7, 7), self.rng.uniform(-7, 7)
        self.v = 0.0
        self.t = 0
        return self.observe()

    def scan(self):
        dx, dy = self.rock_x - self.x, self.rock_y - self.y
        c, s = math.cos(self.th), math.sin(self.th)
        cx = self.beam_cos * c - self.beam_sin * s
        cy = self.beam_sin * c + self.beam_cos * s
        along = dx * cx + dy * cy
        inside = self.rock_rr - ((dx * dx + dy * dy) - along * along)
        seen = (along > 0.0) & (inside > 0.0)
        hit = np.where(seen, along - np.sqrt(np.maximum(inside, 0.0)), MAX_RANGE)
        return np.minimum(hit.min(axis=1), MAX_RANGE)

    def observe(self):
        dx, dy = self.gx - self.x, self.gy - self.y
        c, s = math.cos(self.th), math.sin(self.th)
        obs = np.empty(N_BEAMS + 3, dtype=np.float32)
        self.ranges = self.scan()
        obs[:N_BEAMS] = self.ranges / MAX_RANGE
        obs[N_BEAMS:] = (c * dx + s * dy) / 8, (c * dy - s * dx) / 8, self.v
        return obs

    def step(self, action):
        turn, gas = ((-0.4, 0.3), (0.0, 0.3), (0.4, 0.3), (0.0, -0.5))[action]
        old = math.hypot(self.gx - self.x, self.gy - self.y)
        self.th += turn
        self.v = min(max(self.v + gas, 0.0), 1.5)
        self.x += DT * self.v * math.cos(self.th)
        self.y += DT * self.v * math.sin(self.th)
        new = math.hypot(self.gx - self.x, self.gy - self.y)
        self.t += 1
        obs = self.observe()
        reward = old - new
        crashed = self.ranges.min() < 0.1
        arrived = new < 0.5
        if crashed:
            reward -= 2.0
        if arrived:
            reward += 5.0
        return obs, reward, crashed or arrived or self.t >= EP_LEN


# ---------------------------------------------------------------- network
class ActorCritic(nn.Module):
    def __init__(self, n_in, n_actions):
        super().__init__()
        self.fc1 = nn.Linear(n_in, 64)
        self.fc2 = nn.Linear(64, 64)
        self.pi = nn.Linear(64, n_actions)
        self.v = nn.Linear(64, 1)

    def forward(self, x):
        x = torch.tanh(self.fc1(x))
        x = torch.tanh(self.fc2(x))
        return self.pi(x), self.v(x).squeeze(-1)


# ---------------------------------------------------------------- training
def pick_action(net, obs, rng):
    with torch.no_grad():
        logits, _ = net(torch.from_numpy(obs))
        probs = torch.softmax(logits, dim=-1).tolist()
    return rng.choices((0, 1, 2, 3), weights=probs)[0]


def update(net, opt, states, actions, rewards):
    returns = []
    g = 0.0
    for r in reversed(rewards):
        g = r + GAMMA * g
        returns.append(g)
    returns = torch.tensor(returns[::-1])
    states = torch.from_numpy(np.stack(states))
    actions = torch.tensor(actions)

    logits, values = net(states)
    logp = F.log_softmax(logits, dim=-1)
    chosen = logp.gather(1, actions.unsqueeze(1)).squeeze(1)
    adv = returns - values.detach()
    entropy = -(logp.exp() * logp).sum(-1).mean()
    loss = -(chosen * adv).mean() + 0.5 * F.mse_loss(values, returns) - ENTROPY * entropy
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()


def main():
    n_episodes = int(sys.argv[1]) if len(sys.argv) > 1 else 1900
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    rng = random.Random(SEED)
    world = RoverWorld(SEED)
    net = ActorCritic(N_BEAMS + 3, 4)
    opt = torch.optim.Adam(net.parameters(), lr=LR)

    steps = 0
    history = []
    for ep in range(n_episodes):
        if ep == n_episodes // 5:
            t_start, steps_start = time.perf_counter(), steps
        states, actions, rewards = [], [], []
        obs, done = world.reset(), False
        while not done:
            a = pick_action(net, obs, rng)
            states.append(obs)
            actions.append(a)
            obs, r, done = world.step(a)
            rewards.append(r)
        steps += len(rewards)
        update(net, opt, states, actions, rewards)
        history.append(sum(rewards))
        if ep % 50 == 49:
            print("ep %5d   return %.3f   steps %d" % (ep + 1, np.mean(history[-50:]), steps))

    t_used = time.perf_counter() - t_start
    check = sum(p.detach().double().sum().item() for p in net.parameters())
    print(json.dumps({"env_steps": steps, "updates": n_episodes,
                      "units_per_s": (steps - steps_start) / t_used, "checksum": round(check, 6)}))


if __name__ == "__main__":
    main()
