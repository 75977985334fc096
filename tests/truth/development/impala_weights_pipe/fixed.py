"""One learner, two acting processes (IMPALA-like, synchronous): actors send trajectories, the learner sends weights."""
import argparse
import json
import multiprocessing as mp
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.pi, self.v = nn.Linear(width, 2), nn.Linear(width, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.v(h).squeeze(-1)


def weights_of(net):
    return {k: v.detach().numpy().copy() for k, v in net.state_dict().items()}


def load(net, weights):
    net.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()})


def actor(conn, seed, width, steps):
    torch.set_num_threads(1)
    rng = np.random.default_rng(seed)
    env = gym.make("CartPole-v1")
    net = Net(width)
    obs, _ = env.reset(seed=seed)
    length, lengths = 0, []
    while True:
        msg = conn.recv()
        if msg is None:
            break
        if msg != "go":
            load(net, msg)
            continue
        O, A, L, R, D = [], [], [], [], []
        for _ in range(steps):
            with torch.no_grad():
                logp = F.log_softmax(net(torch.from_numpy(obs))[0], -1).numpy()
            a = int(rng.random() > np.exp(logp[0]))
            O.append(obs)
            A.append(a)
            L.append(logp[a])
            obs, r, term, trunc, _ = env.step(a)
            R.append(r)
            D.append(float(term or trunc))
            length += 1
            if term or trunc:
                lengths.append(length)
                length = 0
                obs, _ = env.reset()
        O.append(obs)
        conn.send((np.stack(O), np.array(A), np.array(L, np.float32), np.array(R, np.float32), np.array(D, np.float32),
                   lengths))
        lengths = []


def vtrace(net, O, A, L, R, D, gamma=0.99):
    logits, v = net(O)
    logp_all = F.log_softmax(logits[:-1], -1)
    logp = logp_all.gather(-1, A[..., None]).squeeze(-1)
    with torch.no_grad():
        rho = (logp - L).exp().clamp(max=1.0).numpy()
        vals = v.numpy()
    keep = gamma * (1.0 - D)
    delta = rho * (R + keep * vals[1:] - vals[:-1])
    vs, acc = np.zeros_like(R), 0.0
    for t in range(len(R) - 1, -1, -1):
        acc = delta[t] + keep[t] * rho[t] * acc
        vs[t] = vals[t] + acc
    nxt = np.concatenate([vs[1:], vals[-1:]])
    adv = torch.from_numpy(rho * (R + keep * nxt - vals[:-1]))
    entropy = -(logp_all.exp() * logp_all).sum(-1).mean()
    return -(logp * adv).mean() + 0.5 * F.mse_loss(v[:-1], torch.from_numpy(vs)) - 0.01 * entropy


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=130)
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--width", type=int, default=256)
    ap.add_argument("--passes", type=int, default=16)
    args = ap.parse_args()
    torch.manual_seed(14)
    ctx = mp.get_context("fork")
    pipes, procs = [], []
    for i in range(2):
        mine, theirs = ctx.Pipe()
        p = ctx.Process(target=actor, args=(theirs, 40 + i, args.width, args.steps), daemon=True)
        p.start()
        pipes.append(mine)
        procs.append(p)
    net = Net(args.width)
    opt = torch.optim.Adam(net.parameters(), lr=7e-4, fused=True)

    def broadcast(message):
        for p in pipes:
            p.send(message)

    broadcast(weights_of(net))
    updates, lengths, t0 = 0, [], None
    for it in range(args.iterations):
        if it == args.iterations // 5:
            t0 = time.perf_counter()
        broadcast("go")
        parts = [p.recv() for p in pipes]
        O = torch.from_numpy(np.stack([x[0] for x in parts], 1))
        A = torch.from_numpy(np.stack([x[1] for x in parts], 1))
        L = torch.from_numpy(np.stack([x[2] for x in parts], 1))
        R, D = np.stack([x[3] for x in parts], 1), np.stack([x[4] for x in parts], 1)
        for x in parts:
            lengths += x[5]
        for _ in range(args.passes):
            loss = vtrace(net, O, A, L, R, D)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            updates += 1
        broadcast(weights_of(net))
        if it % 20 == 0 and lengths:
            print(f"iteration {it}: mean episode {np.mean(lengths[-20:]):.1f}, loss {loss.item():.3f}", flush=True)
    rate = (args.iterations - args.iterations // 5) / (time.perf_counter() - t0)
    broadcast(None)
    for p in procs:
        p.join()
    print(json.dumps({"env_steps": args.iterations * args.steps * 2, "updates": updates, "units_per_s": rate,
                      "checksum": sum(lengths) + loss.item()}))


if __name__ == "__main__":
    main()
