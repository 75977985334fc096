"""DDPG flies a planar drone through a slalom; every few episodes the deterministic policy is tested without noise."""
import argparse
import copy
import json
import math
import time

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)
GATES = [(4.0, 1.0), (8.0, -1.0), (12.0, 1.2), (16.0, 0.0)]


class Slalom:
    """No wind, always the same start: the track is given by the organisers."""

    dt = 0.08
    limit = 160

    def reset(self):
        self.x = self.y = self.vx = self.vy = self.tilt = 0.0
        self.gate = self.t = 0
        return self.obs()

    def obs(self):
        gx, gy = GATES[min(self.gate, 3)]
        hx, hy = GATES[min(self.gate + 1, 3)]
        return np.array([gx - self.x, gy - self.y, hx - self.x, hy - self.y, self.vx, self.vy,
                         math.sin(self.tilt), math.cos(self.tilt)], dtype=np.float32)

    def step(self, u):
        thrust, turn = 1.0 + 0.8 * float(u[0]), 1.5 * float(u[1])
        gx, gy = GATES[self.gate]
        before = math.hypot(gx - self.x, gy - self.y)
        self.tilt += self.dt * turn
        self.vx += self.dt * (4.0 * thrust * math.sin(self.tilt) - 0.4 * self.vx)
        self.vy += self.dt * (4.0 * (thrust * math.cos(self.tilt) - 1.0) - 0.4 * self.vy)
        self.x += self.dt * self.vx
        self.y += self.dt * self.vy
        self.t += 1
        after = math.hypot(gx - self.x, gy - self.y)
        reward = before - after - 0.01 * (float(u[0]) ** 2 + float(u[1]) ** 2)
        if after < 0.8:
            reward += 5.0
            self.gate += 1
        crashed = abs(self.y) > 5.0 or self.x < -3.0 or abs(self.tilt) > 1.6
        if crashed:
            reward -= 5.0
        finished = self.gate == len(GATES)
        return self.obs(), reward, crashed or finished, self.t >= self.limit


def mlp(i, o, *tail):
    return nn.Sequential(nn.Linear(i, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, o), *tail)


class DDPG:
    def __init__(self):
        self.actor, self.critic = mlp(8, 2, nn.Tanh()), mlp(10, 1)
        self.actor_t, self.critic_t = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.opt_a = torch.optim.Adam(self.actor.parameters(), lr=3e-4, fused=True)
        self.opt_c = torch.optim.Adam(self.critic.parameters(), lr=1e-3, fused=True)
        self.pairs = ([*self.actor_t.parameters(), *self.critic_t.parameters()],
                      [*self.actor.parameters(), *self.critic.parameters()])

    @torch.no_grad()
    def act(self, obs):
        return self.actor(torch.from_numpy(obs)).numpy()

    def update(self, o, a, r, o2, d):
        with torch.no_grad():
            y = r + 0.98 * (1 - d) * self.critic_t(torch.cat([o2, self.actor_t(o2)], 1)).squeeze(1)
        loss = ((self.critic(torch.cat([o, a], 1)).squeeze(1) - y) ** 2).mean()
        self.opt_c.zero_grad()
        loss.backward()
        self.opt_c.step()
        gain = -self.critic(torch.cat([o, self.actor(o)], 1)).mean()
        self.opt_a.zero_grad()
        gain.backward()
        self.opt_a.step()
        with torch.no_grad():
            torch._foreach_lerp_(*self.pairs, 0.01)


def fly(agent, env):
    obs, total, over = env.reset(), 0.0, False
    while not over:
        obs, r, done, cut = env.step(agent.act(obs))
        total += r
        over = done or cut
    return total, env.gate


def test(agent):
    """Return and gates. Nothing is random here, so one flight says it all."""
    return fly(agent, Slalom())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=6000)
    ap.add_argument("--test-every", type=int, default=100)
    a = ap.parse_args()
    rng = np.random.default_rng(31)
    torch.manual_seed(31)
    env, agent = Slalom(), DDPG()
    obs_m, nxt_m = np.zeros((a.steps, 8), np.float32), np.zeros((a.steps, 8), np.float32)
    act_m, rd_m = np.zeros((a.steps, 2), np.float32), np.zeros((a.steps, 2), np.float32)
    obs, t0, tests, updates = env.reset(), None, [], 0
    for t in range(a.steps):
        if t == a.steps // 5:
            t0 = time.perf_counter()
        u = rng.uniform(-1, 1, 2) if t < 500 else np.clip(agent.act(obs) + 0.2 * rng.normal(size=2), -1, 1)
        nxt, r, done, cut = env.step(u)
        obs_m[t], act_m[t], rd_m[t], nxt_m[t] = obs, u, (r, done), nxt
        obs = env.reset() if done or cut else nxt
        if t >= 500 and t % 2 == 0:
            i = rng.integers(t + 1, size=128)
            rd = torch.from_numpy(rd_m[i])
            agent.update(torch.from_numpy(obs_m[i]), torch.from_numpy(act_m[i]), rd[:, 0], torch.from_numpy(nxt_m[i]), rd[:, 1])
            updates += 1
        if (t + 1) % a.test_every == 0:
            score, gates = test(agent)
            tests.append(score)
            if len(tests) % 10 == 0:
                print(f"step {t + 1:6d}: test return {score:7.2f}, gates {gates:.1f}")
    rate = (a.steps - a.steps // 5) / (time.perf_counter() - t0)
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": float(np.sum(tests))}))


if __name__ == "__main__":
    main()
