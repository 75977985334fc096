"""Q-learning on CartPole with actor processes: the actors run a numpy copy of the network, the learner is synchronous."""
import argparse
import json
import multiprocessing as mp
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn


class NumpyQ:
    """Forward pass of the two-layer network for one observation."""

    def load(self, arrays):
        self.w1, self.b1, self.w2, self.b2 = arrays

    def __call__(self, obs):
        return self.w2 @ np.maximum(self.w1 @ obs + self.b1, 0.0) + self.b2


def actor(rank, pipe, epsilon, stop, chunk, seed):
    """Waits for weights, plays `chunk` steps, sends them back."""
    env = gym.make("CartPole-v1")
    rng = np.random.default_rng(seed + rank)
    obs, _ = env.reset(seed=seed + rank)
    q, episode_return = NumpyQ(), 0.0
    while True:
        q.load(pipe.recv())
        if stop.value:
            break
        batch = {"obs": np.empty((chunk, 4), np.float32), "next": np.empty((chunk, 4), np.float32),
                 "action": np.empty(chunk, np.int64), "reward": np.empty(chunk, np.float32),
                 "dead": np.empty(chunk, np.float32), "returns": []}
        for t in range(chunk):
            if rng.random() < epsilon.value:
                action = int(rng.integers(2))
            else:
                action = int(q(obs).argmax())
            after, reward, dead, cut, _ = env.step(action)
            batch["obs"][t], batch["next"][t] = obs, after
            batch["action"][t], batch["reward"][t], batch["dead"][t] = action, reward, dead
            episode_return += reward
            obs = after
            if dead or cut:
                batch["returns"].append(episode_return)
                episode_return = 0.0
                obs, _ = env.reset()
        pipe.send(batch)
    env.close()


class Replay:
    def __init__(self, capacity):
        self.obs, self.next = np.zeros((capacity, 4), np.float32), np.zeros((capacity, 4), np.float32)
        self.action = np.zeros(capacity, np.int64)
        self.reward, self.dead = np.zeros(capacity, np.float32), np.zeros(capacity, np.float32)
        self.capacity, self.pos, self.size = capacity, 0, 0

    def extend(self, batch):
        n = len(batch["action"])
        where = np.arange(self.pos, self.pos + n) % self.capacity
        for name in ("obs", "next", "action", "reward", "dead"):
            getattr(self, name)[where] = batch[name]
        self.pos = (self.pos + n) % self.capacity
        self.size = min(self.size + n, self.capacity)

    def sample(self, n, rng):
        idx = rng.integers(self.size, size=n)
        return (torch.from_numpy(x[idx]) for x in (self.obs, self.action, self.reward, self.next, self.dead))


def make_net(width):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=300)
    p.add_argument("--actors", type=int, default=2)
    p.add_argument("--chunk", type=int, default=400)
    p.add_argument("--updates-per-round", type=int, default=25)
    p.add_argument("--batch-size", type=int, default=128)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--gamma", type=float, default=0.99)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=5)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    ctx = mp.get_context("spawn")
    epsilon, stop = ctx.Value("d", 1.0), ctx.Value("b", False)
    pipes, workers = [], []
    for rank in range(args.actors):
        ours, theirs = ctx.Pipe()
        worker = ctx.Process(target=actor, daemon=True,
                             args=(rank, theirs, epsilon, stop, args.chunk, args.seed))
        worker.start()
        pipes.append(ours)
        workers.append(worker)

    net, target = make_net(args.width), make_net(args.width)
    target.load_state_dict(net.state_dict())
    optim = torch.optim.Adam(net.parameters(), lr=args.lr)
    replay, updates, started, marked = Replay(50000), 0, None, 0
    returns, frames = [], 0
    for rnd in range(args.rounds):
        if rnd == max(1, args.rounds // 5):
            started, marked = time.perf_counter(), rnd
        epsilon.value = max(0.05, 1.0 - 1.5 * rnd / args.rounds)
        weights = [w.detach().numpy() for w in net.parameters()]
        for pipe in pipes:
            pipe.send(weights)
        for pipe in pipes:
            batch = pipe.recv()
            frames += len(batch["action"])
            returns += batch["returns"]
            replay.extend(batch)
        for _ in range(args.updates_per_round):
            obs, action, reward, after, dead = replay.sample(args.batch_size, rng)
            with torch.no_grad():
                best = target(after).gather(1, net(after).argmax(1, keepdim=True)).squeeze(1)
                goal = reward + args.gamma * (1 - dead) * best
            value = net(obs).gather(1, action.unsqueeze(1)).squeeze(1)
            loss = nn.functional.smooth_l1_loss(value, goal)
            optim.zero_grad()
            loss.backward()
            optim.step()
            updates += 1
        if rnd % 4 == 3:
            target.load_state_dict(net.state_dict())
        if rnd % 10 == 9:
            print(f"round {rnd + 1} frames {frames} return {np.mean(returns[-20:]):.1f}")
    speed = (args.rounds - marked) / (time.perf_counter() - started)
    stop.value = True
    for pipe in pipes:
        pipe.send(weights)
    for worker in workers:
        worker.join()
    checksum = float(sum(q.detach().double().abs().sum() for q in net.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": speed, "checksum": checksum}))


if __name__ == "__main__":
    main()
