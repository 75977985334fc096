"""Double DQN with two acting processes. Actors put what they see into a queue, the learner answers with new weights."""
import argparse
import json
import multiprocessing as mp
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

GAMMA, HIDDEN = 0.98, 32


def q_values(weights, obs):
    """The network's forward pass without torch, for the actors."""
    h = np.maximum(weights[0] @ obs + weights[1], 0.0)
    return weights[2] @ h + weights[3]


def actor(number, steps, mailbox, conn):
    rng = np.random.default_rng(100 + number)
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=100 + number)
    length = 0
    while True:
        message = conn.recv()
        if message is None:
            break
        weights, epsilon = message
        for _ in range(steps):
            if rng.random() < epsilon:
                action = int(rng.integers(2))
            else:
                action = int(q_values(weights, obs).argmax())
            nxt, reward, terminated, truncated, _ = env.step(action)
            length += 1
            ended = length if terminated or truncated else 0
            mailbox.put((obs, action, reward, nxt, terminated, ended))
            obs = nxt
            if ended:
                obs, _ = env.reset()
                length = 0
    env.close()


class Replay:
    def __init__(self, size):
        self.obs, self.nxt = np.zeros((size, 4), np.float32), np.zeros((size, 4), np.float32)
        self.action, self.reward = np.zeros(size, np.int64), np.zeros(size, np.float32)
        self.final = np.zeros(size, np.float32)
        self.size, self.n, self.at = size, 0, 0

    def add(self, obs, action, reward, nxt, final):
        i = self.at
        self.obs[i], self.action[i], self.reward[i], self.nxt[i], self.final[i] = obs, action, reward, nxt, final
        self.at = (i + 1) % self.size
        self.n = min(self.n + 1, self.size)

    def sample(self, rng, count):
        i = rng.integers(0, self.n, count)
        return [torch.from_numpy(x[i]) for x in (self.obs, self.action, self.reward, self.nxt, self.final)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=150)
    ap.add_argument("--steps", type=int, default=256, help="steps of one actor between two sets of weights")
    ap.add_argument("--updates", type=int, default=12)
    ap.add_argument("--actors", type=int, default=2)
    args = ap.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    net = nn.Sequential(nn.Linear(4, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2))
    target = nn.Sequential(nn.Linear(4, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2))
    target.load_state_dict(net.state_dict())
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    replay = Replay(50000)

    ctx = mp.get_context("fork")
    boxes, conns, procs = [], [], []
    for i in range(args.actors):
        box, (here, there) = ctx.Queue(), ctx.Pipe()
        proc = ctx.Process(target=actor, args=(i, args.steps, box, there), daemon=True)
        proc.start()
        boxes.append(box)
        conns.append(here)
        procs.append(proc)

    lengths, updates, start = [], 0, None
    for k in range(args.rounds):
        if k == args.rounds // 5:
            start = time.perf_counter()
        weights = [p.detach().numpy().copy() for p in net.parameters()]
        epsilon = max(0.05, 1.0 - 2.0 * k / args.rounds)
        for conn in conns:
            conn.send((weights, epsilon))
        for box in boxes:
            for _ in range(args.steps):
                obs, action, reward, nxt, final, ended = box.get()
                replay.add(obs, action, reward, nxt, final)
                if ended:
                    lengths.append(ended)
        for _ in range(args.updates):
            s, a, r, s2, d = replay.sample(rng, 128)
            with torch.no_grad():
                best = net(s2).argmax(1, keepdim=True)
                y = r + GAMMA * (1 - d) * target(s2).gather(1, best).squeeze(1)
            loss = F.smooth_l1_loss(net(s).gather(1, a[:, None]).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            updates += 1
        if k % 4 == 0:
            target.load_state_dict(net.state_dict())
        if k % 25 == 0:
            print(f"round {k}: mean length {np.mean(lengths[-20:] or [0]):.1f}", flush=True)
    rate = (args.rounds - args.rounds // 5) * args.steps * args.actors / (time.perf_counter() - start)
    for conn, proc in zip(conns, procs):
        conn.send(None)
        proc.join()
    print(json.dumps({"env_steps": args.rounds * args.steps * args.actors, "updates": updates, "units_per_s": rate,
                      "checksum": float(np.sum(lengths))}))


if __name__ == "__main__":
    main()
