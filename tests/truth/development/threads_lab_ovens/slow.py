"""Four laboratory ovens learn together to follow temperature profiles (DDPG, one thread per oven).

An oven answers a few milliseconds after a command was sent: OvenLink stands in for the serial line.
"""
import argparse
import copy
import json
import threading
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class OvenLink:
    def __init__(self, seed, delay):
        self.rng = np.random.default_rng(seed)
        self.delay = delay
        self.reset()

    def reset(self):
        self.temperature, self.coil, self.t = self.rng.uniform(-1, 1), 0.0, 0
        self.profile = self.rng.uniform(-1, 1, 3)
        return self._observe()

    def _target(self):
        a, b, c = self.profile
        return a + b * np.sin(0.05 * self.t + 3 * c)

    def _observe(self):
        return np.array([self.temperature, self.coil, self._target(), self.temperature - self._target()], np.float32)

    def command(self, power):
        """Sends the power and waits until the oven has answered with its temperature."""
        time.sleep(self.delay)
        self.coil = 0.8 * self.coil + 0.2 * float(power)
        self.temperature += 0.1 * (2 * self.coil - 0.3 * self.temperature) + 0.01 * self.rng.standard_normal()
        self.t += 1
        return self._observe(), -abs(self.temperature - self._target()), self.t == 100


class Replay:
    def __init__(self, size):
        self.s, self.s2 = np.zeros((size, 4), np.float32), np.zeros((size, 4), np.float32)
        self.a, self.r = np.zeros((size, 1), np.float32), np.zeros((size, 1), np.float32)
        self.size, self.n = size, 0

    def add(self, s, a, r, s2):
        i = self.n % self.size
        self.s[i], self.a[i], self.r[i], self.s2[i] = s, a, r, s2
        self.n += 1

    def sample(self, k, rng):
        idx = rng.integers(0, min(self.n, self.size), k)
        return [torch.from_numpy(x[idx]) for x in (self.s, self.a, self.r, self.s2)]


def mlp(n_in, *tail):
    return nn.Sequential(nn.Linear(n_in, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), *tail)


class Lab:
    def __init__(self, args):
        self.args = args
        self.actor, self.critic = mlp(4, nn.Tanh()), mlp(5)
        self.old_actor, self.old_critic = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.old_actor.requires_grad_(False), self.old_critic.requires_grad_(False)
        self.opt_a = torch.optim.Adam(self.actor.parameters(), 3e-4, fused=True)
        self.opt_c = torch.optim.Adam(self.critic.parameters(), 1e-3, fused=True)
        self.replay = Replay(args.commands)
        self.lock = threading.Lock()
        self.arrived = threading.Semaphore(0)
        self.stop = threading.Event()
        self.rewards = []

    def run_oven(self, number):
        oven = OvenLink(number, self.args.delay)
        rng = np.random.default_rng(100 + number)
        s = oven.reset()
        while not self.stop.is_set():
            with torch.inference_mode():
                power = self.actor(torch.from_numpy(s)).numpy()
            power = np.clip(power + 0.2 * rng.standard_normal(1, dtype=np.float32), -1, 1)
            with self.lock:
                s2, r, over = oven.command(power[0])
                self.replay.add(s, power, r, s2)
                self.rewards.append(r)
            self.arrived.release()
            s = oven.reset() if over else s2
            time.sleep(self.args.pause)  # the relays must not switch faster

    def learn(self, rng):
        with self.lock:
            s, a, r, s2 = self.replay.sample(128, rng)
        with torch.no_grad():
            y = r + 0.97 * self.old_critic(torch.cat([s2, self.old_actor(s2)], 1))
        loss = F.mse_loss(self.critic(torch.cat([s, a], 1)), y)
        self.opt_c.zero_grad()
        loss.backward()
        self.opt_c.step()
        actor_loss = -self.critic(torch.cat([s, self.actor(s)], 1)).mean()
        self.opt_a.zero_grad()
        actor_loss.backward()
        self.opt_a.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.old_critic.parameters()), list(self.critic.parameters()), 0.01)
            torch._foreach_lerp_(list(self.old_actor.parameters()), list(self.actor.parameters()), 0.01)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--commands", type=int, default=6000)
    p.add_argument("--ovens", type=int, default=4)
    p.add_argument("--delay", type=float, default=0.004)
    p.add_argument("--pause", type=float, default=0.008)
    p.add_argument("--commands-per-update", type=int, default=4)
    args = p.parse_args()
    torch.manual_seed(3)
    rng = np.random.default_rng(3)
    lab = Lab(args)
    threads = [threading.Thread(target=lab.run_oven, args=(i,), name=f"oven-{i}") for i in range(args.ovens)]
    for thread in threads:
        thread.start()
    total, skip, began = args.commands // args.commands_per_update, args.commands // args.commands_per_update // 5, 0.0
    for update in range(total):
        if update == skip:
            began = time.perf_counter()
        for _ in range(args.commands_per_update):
            lab.arrived.acquire()
        lab.learn(rng)
        if update % 250 == 249:
            print(f"update {update + 1}: mean error {-np.mean(lab.rewards[-500:]):.3f}")
    rate = (total - skip) * args.commands_per_update / (time.perf_counter() - began)
    lab.stop.set()
    for thread in threads:
        thread.join()
    check = sum(p.detach().double().abs().sum().item() for p in lab.actor.parameters())
    print(json.dumps({"env_steps": None, "updates": 2 * total, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main()
