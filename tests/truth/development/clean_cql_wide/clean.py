"""Offline conservative Q-learning (discrete) on data of a random and a half-good driver, all in memory as tensors."""
import argparse
import json
import time

import numpy as np
import torch
from torch import nn


def drive(n, rng):
    """Transitions of a car on a slope, made by two behaviour policies, all cars at once."""
    cars = 500
    x, v = rng.uniform(-1, 1, cars), np.zeros(cars)
    obs, act, rew, nxt, end = [], [], [], [], []
    good = rng.random(cars) < 0.5
    for _ in range(n // cars):
        before = np.stack([x, v, np.sin(3 * x), np.cos(3 * x)], axis=1)
        a = np.where(good & (rng.random(cars) < 0.7), np.where(v >= 0, 2, 0), rng.integers(0, 3, cars))
        v = np.clip(v + 0.02 * (a - 1) - 0.03 * np.cos(3 * x), -0.3, 0.3)
        x = x + v
        over = x > 1.2
        obs.append(before), act.append(a), rew.append(np.where(over, 10.0, -0.1)), end.append(over)
        nxt.append(np.stack([x, v, np.sin(3 * x), np.cos(3 * x)], axis=1))
        again = over | (x < -2.0)
        x, v = np.where(again, rng.uniform(-1, 1, cars), x), np.where(again, 0.0, v)
    columns = (obs, act, rew, nxt, end)
    kinds = (torch.float32, torch.int64, torch.float32, torch.float32, torch.float32)
    return [torch.as_tensor(np.concatenate(c), dtype=k) for c, k in zip(columns, kinds)]


def q_net(width):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--alpha", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    data = drive(200_000, np.random.default_rng(args.seed))
    net, target = q_net(args.width), q_net(args.width)
    target.load_state_dict(net.state_dict())
    target.requires_grad_(False)
    live, slow = list(net.parameters()), list(target.parameters())
    optimizer = torch.optim.AdamW(live, lr=3e-4, fused=True)
    first = args.updates // 5
    for u in range(args.updates):
        if u == first:
            begin = time.perf_counter()
        rows = torch.randint(len(data[0]), (args.batch,))
        obs, act, rew, nxt, end = (column[rows] for column in data)
        with torch.no_grad():
            backup = rew + 0.98 * (1 - end) * target(nxt).amax(dim=1)
        q = net(obs)
        taken = q.gather(1, act[:, None]).squeeze(1)
        loss = nn.functional.mse_loss(taken, backup) + args.alpha * (q.logsumexp(dim=1) - taken).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if u % 4 == 0:
            torch._foreach_lerp_(slow, live, 0.02)
        if u % 250 == 0:
            print(f"update {u} loss {loss.item():.4f} mean q {taken.mean().item():.3f}")
    speed = (args.updates - first) / (time.perf_counter() - begin)
    checksum = sum(float(p.detach().double().abs().sum()) for p in live)
    print(json.dumps({"env_steps": None, "updates": args.updates, "units_per_s": speed, "checksum": round(checksum, 3)}))


if __name__ == "__main__":
    main()
