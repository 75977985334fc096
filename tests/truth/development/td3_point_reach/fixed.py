import argparse
import copy
import json
import os
import pathlib
import time

import numpy as np
import torch
from torch import nn

# --- settings -------------------------------------------------------------
CFG = {
    "steps": 3000,
    "warmup": 300,
    "batch": 128,
    "hidden": 256,
    "gamma": 0.98,
    "tau": 0.01,
    "policy_delay": 2,
    "noise": 0.2,
    "clip": 0.5,
    "lr": 3e-4,
}
CKPT_DIR = pathlib.Path("checkpoints")


class Reacher2D:
    """Point mass that has to reach a random target."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.p, self.v = self.rng.uniform(-1, 1, 2), np.zeros(2)
        self.goal, self.t = self.rng.uniform(-1, 1, 2), 0
        return self._obs()

    def _obs(self):
        return np.concatenate([self.p, self.v, self.goal]).astype(np.float32)

    def step(self, a):
        self.v = 0.9 * self.v + 0.1 * np.clip(a, -1, 1)
        self.p = np.clip(self.p + 0.1 * self.v, -1.5, 1.5)
        self.t += 1
        dist = float(np.linalg.norm(self.p - self.goal))
        return self._obs(), -dist, dist < 0.05, self.t >= 100


class Net(nn.Module):
    def __init__(self, i, o, tanh=False):
        super().__init__()
        h = CFG["hidden"]
        self.l1, self.l2, self.l3 = nn.Linear(i, h), nn.Linear(h, h), nn.Linear(h, o)
        self.tanh = tanh

    def forward(self, *x):
        x = torch.cat(x, -1)
        x = self.l3(torch.relu(self.l2(torch.relu(self.l1(x)))))
        return torch.tanh(x) if self.tanh else x


class Trainer:
    def __init__(self, steps):
        torch.manual_seed(0)
        self.rng = np.random.default_rng(0)
        self.steps = steps
        self.env = Reacher2D(0)
        self.actor = Net(6, 2, tanh=True)
        self.q1, self.q2 = Net(8, 1), Net(8, 1)
        self.targets = copy.deepcopy(nn.ModuleList([self.actor, self.q1, self.q2]))
        self.pi_opt = torch.optim.Adam(self.actor.parameters(), CFG["lr"])
        self.q_opt = torch.optim.Adam([*self.q1.parameters(), *self.q2.parameters()], CFG["lr"])
        self.data = np.zeros((steps, 6 + 2 + 1 + 6 + 1), np.float32)
        self.updates = 0

    def update(self, upto):
        b = torch.from_numpy(self.data[self.rng.integers(0, upto, CFG["batch"])])
        s, a, r, s2, d = b.split([6, 2, 1, 6, 1], 1)
        actor_t, q1_t, q2_t = self.targets
        with torch.no_grad():
            eps = (torch.randn_like(a) * CFG["noise"]).clamp(-CFG["clip"], CFG["clip"])
            a2 = (actor_t(s2) + eps).clamp(-1, 1)
            y = r + CFG["gamma"] * (1 - d) * torch.min(q1_t(s2, a2), q2_t(s2, a2))
        loss = (self.q1(s, a) - y).pow(2).mean() + (self.q2(s, a) - y).pow(2).mean()
        self.q_opt.zero_grad()
        loss.backward()
        self.q_opt.step()
        self.updates += 1
        if self.updates % CFG["policy_delay"] == 0:
            pi_loss = -self.q1(s, self.actor(s)).mean()
            self.pi_opt.zero_grad()
            pi_loss.backward()
            self.pi_opt.step()
            online = [p for m in (self.actor, self.q1, self.q2) for p in m.parameters()]
            with torch.no_grad():
                torch._foreach_lerp_(list(self.targets.parameters()), online, CFG["tau"])

    def save(self, step):
        state = {
            "actor": self.actor.state_dict(),
            "q1": self.q1.state_dict(),
            "q2": self.q2.state_dict(),
            "targets": self.targets.state_dict(),
            "pi_opt": self.pi_opt.state_dict(),
            "q_opt": self.q_opt.state_dict(),
            "replay": self.data[:step],
            "step": step,
        }
        tmp = CKPT_DIR / "last.tmp"
        torch.save(state, tmp)
        os.replace(tmp, CKPT_DIR / "last.pt")

    def run(self):
        CKPT_DIR.mkdir(exist_ok=True)
        s = self.env.reset()
        for i in range(self.steps):
            if i == self.steps // 5:
                t0 = time.monotonic()
            with torch.no_grad():
                a = self.actor(torch.from_numpy(s)).numpy() + 0.1 * self.rng.standard_normal(2)
            if i < CFG["warmup"]:
                a = self.rng.uniform(-1, 1, 2)
            s2, r, terminated, truncated = self.env.step(a)
            self.data[i] = np.concatenate([s, a, [r], s2, [float(terminated)]])
            s = self.env.reset() if terminated or truncated else s2
            if i >= CFG["warmup"]:
                self.update(i + 1)
            if i % 1000 == 0:
                self.save(i)
        return (self.steps - self.steps // 5) / (time.monotonic() - t0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=CFG["steps"])
    trainer = Trainer(parser.parse_args().steps)
    speed = trainer.run()
    print(
        json.dumps(
            {
                "env_steps": trainer.steps,
                "updates": trainer.updates,
                "units_per_s": speed,
                "checksum": float(sum(p.double().sum() for p in trainer.actor.parameters())),
            }
        )
    )
