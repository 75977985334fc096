"""Offline quantile-regression DQN that waters fields: learns from what farmers did, conservative (CQL) penalty."""
import copy
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro

N_OBS, N_ACT = 6, 4


def farmers(n_fields, days, rng):
    """Soil moisture, forecast, season; the actions of farmers who water a bit too much."""
    soil = rng.uniform(0.2, 0.8, n_fields)
    rows = {k: [] for k in "sarnd"}
    rain = rng.uniform(0, 1, n_fields)
    for day in range(days):
        season = np.full(n_fields, np.sin(day / 30))
        s = np.stack([soil, rain, season, soil**2, np.cos(3 * soil), rain * season], 1)
        a = np.clip(np.round(3 * (0.9 - soil) + rng.normal(0, 0.7, n_fields)), 0, 3).astype(np.int64)
        soil = np.clip(soil + 0.08 * a + 0.1 * (rain > 0.7) - 0.1 - 0.04 * season, 0, 1)
        reward = 1 - 4 * (soil - 0.6) ** 2 - 0.05 * a
        rain = np.clip(rain + rng.normal(0, 0.2, n_fields), 0, 1)
        n = np.stack([soil, rain, season, soil**2, np.cos(3 * soil), rain * season], 1)
        for key, value in zip("sarnd", (s, a, reward, n, np.full(n_fields, day == days - 1))):
            rows[key].append(value)
    s, a, r, n, d = (np.concatenate(rows[k]) for k in "sarnd")
    as_float = [torch.from_numpy(x.astype(np.float32)) for x in (s, r, n, d)]
    return as_float[0], torch.from_numpy(a), *as_float[1:]


class QuantileNet(nn.Module):
    def __init__(self, width, quantiles):
        super().__init__()
        self.quantiles = quantiles
        self.body = nn.Sequential(
            nn.Linear(N_OBS, width), nn.ReLU(inplace=True),
            nn.Linear(width, width), nn.ReLU(inplace=True),
            nn.Linear(width, width), nn.ReLU(inplace=True),
            nn.Linear(width, N_ACT * quantiles),
        )

    def forward(self, s):
        return self.body(s).view(-1, N_ACT, self.quantiles)


def main(steps: int = 600, batch: int = 512, width: int = 384, quantiles: int = 16, cql: float = 0.1, seed: int = 50):
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    S, A, R, N, D = farmers(200, 150, np.random.default_rng(seed))
    net = QuantileNet(width, quantiles)
    target = copy.deepcopy(net).requires_grad_(False)
    opt = torch.optim.Adam(net.parameters(), 3e-4, fused=True)
    mid = (torch.arange(quantiles) + 0.5) / quantiles
    mid = mid.view(1, quantiles, 1)
    live, lagging = list(net.parameters()), list(target.parameters())
    rows = torch.arange(batch)
    for step in range(steps):
        if step == steps // 5:
            began = time.perf_counter()
        i = torch.randint(len(S), (batch,))
        with torch.no_grad():
            q2 = target(N[i])
            after = q2[rows, q2.mean(2).argmax(1)]
            goal = (R[i, None] + 0.95 * (1 - D[i, None]) * after).unsqueeze(1)
        q = net(S[i])
        a = A[i]
        td = goal - q[rows, a].unsqueeze(2)
        weight = (mid - (td.detach() < 0).float()).abs()
        loss = (weight * F.huber_loss(td, torch.zeros(()).expand_as(td), reduction="none")).mean(2).sum(1).mean()
        value = q.mean(2)
        loss = loss + cql * (value.logsumexp(1) - value[rows, a]).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        torch._foreach_lerp_(lagging, live, 0.01)
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    rate = (steps - steps // 5) / (time.perf_counter() - began)
    check = sum(p.detach().double().abs().sum().item() for p in live)
    print(json.dumps({"env_steps": None, "updates": steps, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    tyro.cli(main)
