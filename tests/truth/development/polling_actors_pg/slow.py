"""Policy gradient with two acting processes. Actors are numpy only; the learner uses torch.

Every round the learner sends the weights, each actor plays a fixed number of games of "greenhouse" and returns them.
"""
import argparse
import json
import multiprocessing as mp
import time

import numpy as np

N_OBS, N_ACT, HORIZON = 6, 3, 60


def greenhouse(rng, weights, games):
    """Heating (off, low, high) of `games` greenhouses at once, under changing weather."""
    w1, b1, w2, b2 = weights
    inside, outside = rng.uniform(10, 25, games), rng.uniform(0, 20, games)
    trend = rng.normal(0, 0.3, games)
    obs_log = np.zeros((HORIZON, games, N_OBS), np.float32)
    act_log = np.zeros((HORIZON, games), np.int64)
    rew_log = np.zeros((HORIZON, games), np.float32)
    last = np.zeros(games)
    for t in range(HORIZON):
        obs = np.stack([inside / 20, outside / 20, trend, last, np.full(games, t / HORIZON), (inside - 20) ** 2 / 100], axis=1)
        logits = np.tanh(obs @ w1.T + b1) @ w2.T + b2
        noisy = logits + rng.gumbel(size=logits.shape)
        heat = noisy.argmax(axis=1)
        inside += 0.1 * (outside - inside) + 1.2 * heat + rng.normal(0, 0.1, games)
        trend = 0.95 * trend + rng.normal(0, 0.1, games)
        outside += trend
        obs_log[t], act_log[t] = obs, heat
        rew_log[t] = -np.abs(inside - 20) / 5 - 0.05 * heat
        last = heat / 2
    return obs_log, act_log, rew_log


def actor(index, seed, games, orders, results):
    rng = np.random.default_rng([seed, index])
    while True:
        weights = orders.get()
        if weights is None:
            return
        results.put((index, greenhouse(rng, weights, games)))


def gather(results, n_actors):
    """Waits for the games of all actors."""
    while results.qsize() < n_actors:
        time.sleep(0.03)
    return [games for _, games in sorted((results.get() for _ in range(n_actors)), key=lambda item: item[0])]


def learner(args, orders, results):
    import torch
    from torch import nn

    torch.manual_seed(args.seed)
    policy = nn.Sequential(nn.Linear(N_OBS, 64), nn.Tanh(), nn.Linear(64, N_ACT))
    critic = nn.Sequential(nn.Linear(N_OBS, 64), nn.Tanh(), nn.Linear(64, 1))
    everything = [*policy.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(everything, lr=3e-3, fused=True)
    discount = 0.95 ** np.arange(HORIZON)
    start, first = None, args.rounds // 5
    for r in range(args.rounds):
        if r == first:
            start = time.perf_counter()
        weights = [p.detach().numpy().copy() for p in policy.parameters()]
        for queue in orders:
            queue.put(weights)
        played = gather(results, len(orders))
        obs, act, rew = (np.concatenate([part[k] for part in played], axis=1) for k in range(3))
        returns = np.cumsum((rew * discount[:, None])[::-1], axis=0)[::-1] / discount[:, None]
        obs = torch.from_numpy(obs).reshape(-1, N_OBS)
        act = torch.from_numpy(act).reshape(-1)
        ret = torch.from_numpy(np.ascontiguousarray(returns, dtype=np.float32)).reshape(-1)
        value = critic(obs).squeeze(1)
        advantage = (ret - value).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        logp = torch.log_softmax(policy(obs), dim=1)
        chosen = logp.gather(1, act[:, None]).squeeze(1)
        entropy = -(logp.exp() * logp).sum(dim=1).mean()
        loss = -(advantage * chosen).mean() + 0.5 * ((ret - value) ** 2).mean() - 0.005 * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if r % 20 == 0:
            print(f"round {r}: reward {rew.mean():.3f}", flush=True)
    speed = (args.rounds - first) / (time.perf_counter() - start)
    for queue in orders:
        queue.put(None)
    checksum = sum(float(p.detach().double().abs().sum()) for p in everything)
    return {"env_steps": None, "updates": args.rounds, "units_per_s": speed, "checksum": round(checksum, 5)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--games", type=int, default=48)
    parser.add_argument("--seed", type=int, default=13)
    args = parser.parse_args()
    context = mp.get_context("fork")
    orders = [context.Queue() for _ in range(args.actors)]
    results = context.Queue()
    crew = [context.Process(target=actor, args=(i, args.seed, args.games, orders[i], results), daemon=True)
            for i in range(args.actors)]
    for process in crew:
        process.start()
    summary = learner(args, orders, results)
    for process in crew:
        process.join()
    print(json.dumps(summary))
