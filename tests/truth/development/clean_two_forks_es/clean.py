"""Evolution strategy with two evaluating processes. Each flies half of the population through a vectorised simulator."""
import argparse
import json
import multiprocessing as mp
import time

import numpy as np

OBS, HIDDEN, ACT, LENGTH, SIGMA = 6, 64, 2, 150, 0.08
SIZES = [(OBS, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, ACT)]
PARAMS = sum(i * o for i, o in SIZES)


def unpack(flat):
    """Weights of many networks at once: flat has one row per individual. Left and right are alike, so there are no biases."""
    layers, at = [], 0
    for i, o in SIZES:
        layers.append(np.ascontiguousarray(flat[:, at:at + i * o].reshape(-1, i, o)))
        at += i * o
    return layers


def fly(flat, starts):
    """Mean reward of every individual over all starts: a hovering craft with a load that swings."""
    n, m = len(flat), len(starts)
    w1, w2, w3 = unpack(flat)
    state = np.zeros((n, m, OBS), np.float32)
    state[:, :, :2], state[:, :, 4:] = starts[:, :2], starts[:, 2:]
    pos, vel, load = state[:, :, :2], state[:, :, 2:4], state[:, :, 4:]
    total = np.zeros((n, m), np.float32)
    for _ in range(LENGTH):
        h = state @ w1
        np.tanh(h, out=h)
        h = h @ w2
        np.tanh(h, out=h)
        thrust = h @ w3
        np.tanh(thrust, out=thrust)
        vel += np.float32(0.05) * (thrust - np.float32(0.3) * vel - np.float32(0.5) * load)
        load += np.float32(0.05) * (vel - load)
        pos += np.float32(0.05) * vel
        total -= pos[:, :, 0] ** 2 + pos[:, :, 1] ** 2
        total -= np.float32(0.05) * (thrust[:, :, 0] ** 2 + thrust[:, :, 1] ** 2)
    return total.mean(1) / LENGTH


def evaluator(conn, table, half):
    while True:
        message = conn.recv()
        if message is None:
            return
        theta, offsets, starts = message
        mine = offsets[half::2]
        noise = SIGMA * np.stack([table[k:k + PARAMS] for k in mine])
        conn.send(fly(np.concatenate([theta + noise, theta - noise]), starts))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--generations", type=int, default=60)
    ap.add_argument("--directions", type=int, default=64)
    ap.add_argument("--starts", type=int, default=32)
    args = ap.parse_args()
    rng = np.random.default_rng(18)
    table = rng.standard_normal(500_000, dtype=np.float32)
    ctx = mp.get_context("fork")
    conns, procs = [], []
    for half in range(2):
        here, there = ctx.Pipe()
        proc = ctx.Process(target=evaluator, args=(there, table, half), daemon=True)
        proc.start()
        conns.append(here)
        procs.append(proc)
    theta = (0.15 * rng.standard_normal(PARAMS)).astype(np.float32)
    momentum, start, checksum = np.zeros_like(theta), None, 0.0
    for g in range(args.generations):
        if g == args.generations // 5:
            start = time.perf_counter()
        offsets = rng.integers(0, len(table) - PARAMS, args.directions)
        starts = rng.uniform(-1.0, 1.0, (args.starts, 4)).astype(np.float32)
        for conn in conns:
            conn.send((theta, offsets, starts))
        plus, minus = np.zeros(args.directions, np.float32), np.zeros(args.directions, np.float32)
        for half, conn in enumerate(conns):
            fitness = conn.recv()
            plus[half::2], minus[half::2] = np.split(fitness, 2)
        both = np.concatenate([plus, minus])
        ranks = both.argsort().argsort().astype(np.float32) / (len(both) - 1) - 0.5
        weights = ranks[:args.directions] - ranks[args.directions:]
        gradient = weights @ np.stack([table[k:k + PARAMS] for k in offsets])
        momentum = 0.9 * momentum + gradient / args.directions
        theta = theta + np.float32(0.05) * momentum
        checksum += float(both.mean())
        if g % 10 == 0:
            print(f"generation {g:3d}: mean fitness {both.mean():.4f}, best {both.max():.4f}", flush=True)
    rate = (args.generations - args.generations // 5) / (time.perf_counter() - start)
    for conn, proc in zip(conns, procs):
        conn.send(None)
        proc.join()
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
