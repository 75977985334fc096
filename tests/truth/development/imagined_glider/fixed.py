"""Model-based control of a glider: an ensemble learns the dynamics, the policy is trained on imagined flights through it."""
import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)


class Glider:
    """Speed, pitch, height and distance to a thermal; the control is the elevator."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.v, self.pitch, self.height, self.x = 10.0, 0.0, 20.0, 0.0
        self.thermal = self.rng.uniform(20.0, 60.0)
        return self.observe()

    def observe(self):
        return np.array([self.v / 10 - 1, self.pitch, self.height / 20 - 1, (self.thermal - self.x) / 40])

    def step(self, elevator):
        self.pitch += 0.15 * float(np.clip(elevator, -1.0, 1.0)) - 0.05 * self.pitch
        lift = 2.0 * np.exp(-((self.x - self.thermal) / 8.0) ** 2)
        self.v += 0.1 * (-9.8 * np.sin(self.pitch) - 0.004 * self.v * self.v)
        self.v = float(np.clip(self.v, 4.0, 25.0))
        sink = 0.3 + 0.02 * (self.v - 9.0) ** 2
        self.height += 0.1 * (self.v * np.sin(self.pitch) - sink + lift) + self.rng.normal(0.0, 0.01)
        self.x += 0.1 * self.v * np.cos(self.pitch)
        if self.x > 90.0:
            self.x, self.thermal = 0.0, self.rng.uniform(20.0, 60.0)
        reward = 0.05 * (self.height - 20.0) - 0.02 * elevator ** 2
        return self.observe(), float(reward), self.height < 0.0


class Ensemble(nn.Module):
    """Members share one batched matrix product per layer."""

    def __init__(self, members, inputs, outputs, width):
        super().__init__()
        sizes = [(inputs, width), (width, width), (width, outputs)]
        self.w = nn.ParameterList([nn.Parameter(torch.randn(members, i, o) / i ** 0.5) for i, o in sizes])
        self.b = nn.ParameterList([nn.Parameter(torch.zeros(members, 1, o)) for _, o in sizes])

    def forward(self, x):
        for k in range(3):
            x = torch.baddbmm(self.b[k], x, self.w[k])
            if k < 2:
                x = torch.tanh(x)
        return x


def fit_model(model, opt, obs, act, delta, reward, rng, steps, batch):
    members = model.w[0].shape[0]
    for _ in range(steps):
        rows = torch.from_numpy(rng.integers(0, len(obs), (members, batch)))
        out = model(torch.cat([obs[rows], act[rows]], dim=2))
        loss = ((out[..., :4] - 10.0 * delta[rows]) ** 2).mean() + ((out[..., 4:] - reward[rows]) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return steps


def improve_policy(policy, model, opt, obs, rng, steps, batch, horizon):
    members = model.w[0].shape[0]
    for _ in range(steps):
        state = obs[torch.from_numpy(rng.integers(0, len(obs), (members, batch)))]
        total = 0.0
        for k in range(horizon):
            act = policy(state)
            out = model(torch.cat([state, act], dim=2))
            state = (state + 0.1 * out[..., :4]).clamp(-3.0, 3.0)
            total = total + 0.97 ** k * out[..., 4].mean()
        opt.zero_grad()
        (-total).backward(inputs=list(policy.parameters()))
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
    return steps


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--flights", type=int, default=30)
    ap.add_argument("--length", type=int, default=150)
    ap.add_argument("--members", type=int, default=4)
    ap.add_argument("--width", type=int, default=128)
    args = ap.parse_args()
    torch.manual_seed(3)
    rng, env = np.random.default_rng(3), Glider(3)
    model = Ensemble(args.members, 5, 5, args.width)
    policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1), nn.Tanh())
    model_opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    policy_opt = torch.optim.Adam(policy.parameters(), lr=1e-3)
    seen, acts, deltas, rewards = [], [], [], []
    updates, start, scores = 0, None, []
    for flight in range(args.flights):
        if flight == args.flights // 5:
            start = time.perf_counter()
        obs, score = env.reset(), 0.0
        for _ in range(args.length):
            if flight == 0:
                act = rng.uniform(-1.0, 1.0, 1)
            else:
                with torch.no_grad():
                    act = policy(torch.as_tensor(obs, dtype=torch.get_default_dtype())).numpy() + rng.normal(0.0, 0.1, 1)
            nxt, reward, crashed = env.step(act[0])
            seen.append(obs)
            acts.append(act)
            deltas.append(nxt - obs)
            rewards.append([reward])
            obs, score = nxt, score + reward
            if crashed:
                break
        scores.append(score)
        data = [torch.as_tensor(np.array(x), dtype=torch.get_default_dtype()) for x in (seen, acts, deltas, rewards)]
        updates += fit_model(model, model_opt, *data, rng, steps=40, batch=128)
        updates += improve_policy(policy, model, policy_opt, data[0], rng, steps=8, batch=64, horizon=12)
        if flight % 4 == 0:
            print(f"flight {flight:3d}: {len(seen)} transitions, score {np.mean(scores[-4:]):.2f}", flush=True)
    rate = (args.flights - args.flights // 5) / (time.perf_counter() - start)
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": float(np.sum(scores))}))


if __name__ == "__main__":
    main()
