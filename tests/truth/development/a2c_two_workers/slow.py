"""Synchronous actor-critic with one process per actor; gradients are averaged in shared memory.

python a2c.py --rounds 120
"""

import argparse
import json
import time

import numpy as np
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

N_WORKERS = 2
N_ENVS = 128
HORIZON = 8


class CartPoles:
    """N_ENVS cart poles in one array."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.state = self.rng.uniform(-0.05, 0.05, (N_ENVS, 4))
        self.t = np.zeros(N_ENVS, int)

    def obs(self):
        return torch.from_numpy(self.state.astype(np.float32))

    def step(self, action):
        x, v, th, w = self.state.T
        force = np.where(action == 1, 10.0, -10.0)
        cos, sin = np.cos(th), np.sin(th)
        tmp = (force + 0.05 * w**2 * sin) / 1.1
        acc_th = (9.8 * sin - cos * tmp) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        acc = tmp - 0.05 * acc_th * cos / 1.1
        self.state = np.stack([x + 0.02 * v, v + 0.02 * acc, th + 0.02 * w, w + 0.02 * acc_th], 1)
        self.t += 1
        done = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 0.2095) | (self.t >= 500)
        self.state[done] = self.rng.uniform(-0.05, 0.05, (int(done.sum()), 4))
        self.t[done] = 0
        return done


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
        self.pi = nn.Linear(512, 2)
        self.v = nn.Linear(512, 1)

    def forward(self, x):
        h = self.body(x)
        return F.log_softmax(self.pi(h), -1), self.v(h).squeeze(-1)


def rollout_loss(net, env):
    obs, actions, dones = [], [], []
    with torch.no_grad():
        for _ in range(HORIZON):
            o = env.obs()
            a = torch.multinomial(net(o)[0].exp(), 1).squeeze(1)
            obs.append(o)
            actions.append(a)
            dones.append(torch.from_numpy(env.step(a.numpy())).float())
        ret = net(env.obs())[1]
        returns = []
        for d in reversed(dones):
            ret = 1.0 + 0.99 * (1.0 - d) * ret
            returns.append(ret)
    logp, v = net(torch.cat(obs))
    adv = torch.cat(returns[::-1]) - v
    chosen = logp.gather(1, torch.cat(actions)[:, None]).squeeze(1)
    entropy = -(logp.exp() * logp).sum(1).mean()
    return -(chosen * adv.detach()).mean() + 0.5 * adv.pow(2).mean() - 0.01 * entropy


def worker(rank, weights, grads, ready, go, rounds):
    torch.manual_seed(100 + rank)
    env, net = CartPoles(rank), Net()
    for _ in range(rounds):
        go.wait()
        vector_to_parameters(weights.clone(), net.parameters())
        net.zero_grad()
        rollout_loss(net, env).backward()
        grads[rank] = parameters_to_vector([p.grad for p in net.parameters()])
        ready.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=120)
    args = parser.parse_args()
    torch.manual_seed(1)
    ctx = mp.get_context("spawn")
    net = Net()
    weights = parameters_to_vector(net.parameters()).detach().clone().share_memory_()
    grads = torch.zeros(N_WORKERS, weights.numel()).share_memory_()
    ready, go = ctx.Barrier(N_WORKERS + 1), ctx.Barrier(N_WORKERS + 1)
    procs = [
        ctx.Process(target=worker, args=(r, weights, grads, ready, go, args.rounds)) for r in range(N_WORKERS)
    ]
    for p in procs:
        p.start()

    step = torch.zeros_like(weights)
    t0, r0 = time.perf_counter(), 0
    for i in range(args.rounds):
        if i == args.rounds // 5:
            t0, r0 = time.perf_counter(), i
        go.wait()
        ready.wait()
        grad = grads.mean(0)
        step.mul_(0.99).addcmul_(grad, grad, value=0.01)
        weights.addcdiv_(grad, step.sqrt().add_(1e-5), value=-7e-4)
        if i % 100 == 0:
            print(f"round {i}: |grad| {grad.norm().item():.3f}")
    rate = (args.rounds - r0) / (time.perf_counter() - t0)
    for p in procs:
        p.join()
    print(
        json.dumps(
            {
                "env_steps": args.rounds * N_WORKERS * HORIZON * N_ENVS,
                "updates": args.rounds,
                "units_per_s": rate,
                "checksum": float(weights.double().sum()),
            }
        )
    )


if __name__ == "__main__":
    main()
