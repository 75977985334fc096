"""World model: an LSTM predicts the next reading of a noisy double tank from recorded random control (sequences)."""
import argparse
import json
import time

import numpy as np
import torch
from torch import nn

READINGS, VALVES = 5, 2


def record(episodes, length, rng):
    """Two coupled tanks with random valves, all episodes at the same time."""
    level = rng.uniform(0.2, 0.8, (episodes, 2))
    valves = np.zeros((episodes, VALVES))
    readings = np.zeros((episodes, length, READINGS), np.float32)
    controls = np.zeros((episodes, length, VALVES), np.float32)
    for t in range(length):
        valves = np.clip(valves + rng.normal(0, 0.2, valves.shape), 0, 1)
        flow = 0.3 * (level[:, 0] - level[:, 1])
        level = level + 0.1 * (valves - 0.4 * np.sqrt(np.abs(level))) + 0.1 * np.stack([-flow, flow], axis=1)
        level = np.clip(level, 0, 2)
        readings[:, t, :2] = level + rng.normal(0, 0.01, level.shape)
        readings[:, t, 2], readings[:, t, 3:] = flow, valves
        controls[:, t] = valves
    return torch.from_numpy(readings), torch.from_numpy(controls)


class Dream(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.memory = nn.LSTM(READINGS + VALVES, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 2 * READINGS)

    def forward(self, x):
        h, _ = self.memory(x)
        mean, log_std = self.head(h).chunk(2, dim=-1)
        return mean, log_std.clamp(-5.0, 1.0)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=2000)
    ap.add_argument("--episodes", type=int, default=1000)
    ap.add_argument("--length", type=int, default=51)
    ap.add_argument("--batch", type=int, default=96)
    ap.add_argument("--hidden", type=int, default=192)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    readings, controls = record(args.episodes, args.length, np.random.default_rng(args.seed))
    inputs = torch.cat([readings[:, :-1], controls[:, 1:]], dim=-1)
    change = readings[:, 1:] - readings[:, :-1]
    change = (change - change.mean(dim=(0, 1))) / (change.std(dim=(0, 1)) + 1e-6)
    model = Dream(args.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    first = args.updates // 5
    for u in range(args.updates):
        if u == first:
            since = time.perf_counter()
        rows = torch.randint(args.episodes, (args.batch,))
        mean, log_std = model(inputs[rows])
        z = (change[rows] - mean) * torch.exp(-log_std)
        loss = (0.5 * z * z + log_std).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if u % 50 == 0:
            print(f"update {u} loss {loss.item():.4f}", flush=True)
    speed = (args.updates - first) / (time.perf_counter() - since)
    checksum = sum(float(p.detach().double().abs().sum()) for p in model.parameters())
    print(json.dumps({"env_steps": None, "updates": args.updates, "units_per_s": speed, "checksum": round(checksum, 3)}))


if __name__ == "__main__":
    main()
