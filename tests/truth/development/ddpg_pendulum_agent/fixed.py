"""DDPG on Pendulum."""

import argparse
import copy
import json
import tempfile
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.tensorboard import SummaryWriter


def mlp(sizes, out_act=nn.Identity):
    layers = []
    for i in range(len(sizes) - 1):
        layers += [nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU() if i < len(sizes) - 2 else out_act()]
    return nn.Sequential(*layers)


class DDPG:
    def __init__(self, obs_dim, act_dim, writer, lr=1e-3, tau=0.005, gamma=0.99):
        self.actor = mlp([obs_dim, 64, 64, act_dim], nn.Tanh)
        self.critic = mlp([obs_dim + act_dim, 64, 64, 1])
        self.actor_t, self.critic_t = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.pi_opt = torch.optim.Adam(self.actor.parameters(), lr=lr)
        self.q_opt = torch.optim.Adam(self.critic.parameters(), lr=lr)
        self.writer, self.tau, self.gamma, self.n = writer, tau, gamma, 0

    def act(self, obs, noise):
        with torch.no_grad():
            a = self.actor(torch.from_numpy(obs)).numpy()
        return np.clip(a + noise, -1, 1).astype(np.float32)

    def update(self, o, a, r, o2, d):
        with torch.no_grad():
            backup = r + self.gamma * (1 - d) * self.critic_t(torch.cat([o2, self.actor_t(o2)], 1)).squeeze(1)
        q = self.critic(torch.cat([o, a], 1)).squeeze(1)
        q_loss = F.mse_loss(q, backup)
        self.q_opt.zero_grad()
        q_loss.backward()
        self.q_opt.step()
        pi_loss = -self.critic(torch.cat([o, self.actor(o)], 1)).mean()
        self.pi_opt.zero_grad()
        pi_loss.backward()
        self.pi_opt.step()
        with torch.no_grad():
            for net, slow in ((self.actor, self.actor_t), (self.critic, self.critic_t)):
                torch._foreach_lerp_(list(slow.parameters()), list(net.parameters()), self.tau)
        self.n += 1
        if self.n % 200 == 0:
            self.log(q, q_loss, pi_loss)

    def log(self, q, q_loss, pi_loss):
        w = self.writer
        w.add_scalar("loss/critic", q_loss.item(), self.n)
        w.add_scalar("loss/actor", pi_loss.item(), self.n)
        w.add_histogram("q", q.detach(), self.n)
        for name, p in self.critic.named_parameters():
            w.add_histogram(f"critic/{name}", p.detach(), self.n)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=2500)
    ap.add_argument("--start-steps", type=int, default=200)
    ap.add_argument("--batch", type=int, default=100)
    ap.add_argument("--logdir", default=None)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(8)
    rng = np.random.default_rng(8)
    env = gym.make("Pendulum-v1")
    writer = SummaryWriter(args.logdir or tempfile.mkdtemp(dir="."))
    agent = DDPG(3, 1, writer)
    mem = {
        "o": np.zeros((args.steps, 3), np.float32),
        "a": np.zeros((args.steps, 1), np.float32),
        "r": np.zeros(args.steps, np.float32),
        "o2": np.zeros((args.steps, 3), np.float32),
        "d": np.zeros(args.steps, np.float32),
    }
    obs, _ = env.reset(seed=8)
    for t in range(args.steps):
        if t == args.steps // 5:
            t_start = time.perf_counter()
        a = (
            agent.act(obs, 0.1 * rng.standard_normal(1))
            if t >= args.start_steps
            else rng.uniform(-1, 1, 1).astype(np.float32)
        )
        obs2, rew, term, trunc, _ = env.step(2 * a)
        mem["o"][t], mem["a"][t], mem["r"][t], mem["o2"][t], mem["d"][t] = obs, a, rew, obs2, term
        obs = env.reset()[0] if term or trunc else obs2
        if t >= args.start_steps:
            idx = rng.integers(0, t + 1, args.batch)
            agent.update(*(torch.from_numpy(mem[k][idx]) for k in ("o", "a", "r", "o2", "d")))
    rate = (args.steps - args.steps // 5) / (time.perf_counter() - t_start)
    writer.close()
    total = float(sum(p.double().sum() for p in agent.actor.parameters()))
    print(json.dumps({"env_steps": args.steps, "updates": agent.n, "units_per_s": rate, "checksum": total}))


if __name__ == "__main__":
    main()
