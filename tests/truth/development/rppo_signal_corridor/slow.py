"""Recurrent PPO: remember the signal at the entrance of a corridor until the junction at its end."""
import json
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class Corridors:
    """B corridors of fixed length in lockstep. The signal is visible in the first two steps only; noise afterwards."""

    def __init__(self, n, length, rng):
        self.n, self.length, self.rng = n, length, rng

    def reset(self):
        self.signal = self.rng.integers(0, 4, size=self.n)
        self.t = 0
        return self._obs()

    def _obs(self):
        o = np.zeros((self.n, 8), dtype=np.float32)
        if self.t < 2:
            o[np.arange(self.n), self.signal] = 1.0
        o[:, 4] = self.t / self.length
        o[:, 5] = self.t == self.length - 1
        o[:, 6:] = self.rng.normal(size=(self.n, 2)) * 0.5
        return o

    def step(self, a):
        last = self.t == self.length - 1
        r = np.where(a == self.signal, 1.0, -1.0) if last else np.where(a == 0, 0.01, -0.01)
        self.t += 1
        return (None if last else self._obs()), r.astype(np.float32), last


class Agent(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.enc = nn.Linear(8, hidden)
        self.rnn = nn.LSTM(hidden, hidden)
        self.pi = nn.Linear(hidden, 4)
        self.v = nn.Linear(hidden, 1)

    def features(self, obs, state):
        """obs is (time, batch, 8)."""
        hidden = torch.relu(self.enc(obs))
        outs = []
        for h in hidden:
            out, state = self.rnn(h.unsqueeze(0), state)
            outs.append(out)
        return torch.cat(outs), state

    def forward(self, obs, state):
        h, state = self.features(obs, state)
        return self.pi(h), self.v(h).squeeze(-1), state


def collect(env, agent, rng):
    obs, state, done = env.reset(), None, False
    O, A, L, V, R = [], [], [], [], []
    while not done:
        with torch.no_grad():
            logits, v, state = agent(torch.from_numpy(obs)[None], state)
        logp = F.log_softmax(logits[0], -1)
        cdf = logp.exp().numpy().cumsum(1)
        a = (rng.random((env.n, 1)) > cdf[:, :-1]).sum(1)
        O.append(obs)
        A.append(a)
        L.append(logp.numpy()[np.arange(env.n), a])
        V.append(v[0].numpy())
        obs, r, done = env.step(a)
        R.append(r)
    return [np.stack(z) for z in (O, A, L, V, R)]


def gae(R, V, gamma=0.99, lam=0.95):
    adv, last = np.zeros_like(R), 0.0
    for t in range(len(R) - 1, -1, -1):
        nxt = V[t + 1] if t + 1 < len(R) else 0.0
        last = R[t] + gamma * nxt - V[t] + gamma * lam * last
        adv[t] = last
    return adv


def train(iterations, envs=64, length=32, epochs=4, minibatches=4):
    rng = np.random.default_rng(5)
    torch.manual_seed(5)
    env, agent = Corridors(envs, length, rng), Agent()
    opt = torch.optim.Adam(agent.parameters(), lr=1e-3, fused=True)
    updates, t0, correct = 0, None, 0.0
    for it in range(iterations):
        if it == iterations // 5:
            t0 = time.perf_counter()
        O, A, L, V, R = collect(env, agent, rng)
        adv = gae(R, V)
        O, A, L, R_ = (torch.from_numpy(z) for z in (O, A, L, adv + V))
        G = torch.from_numpy((adv - adv.mean()) / (adv.std() + 1e-8))
        for _ in range(epochs):
            for idx in np.array_split(rng.permutation(envs), minibatches):
                idx = torch.from_numpy(idx)
                logits, v, _ = agent(O[:, idx], None)
                logp_all = F.log_softmax(logits, -1)
                logp = logp_all.gather(-1, A[:, idx, None]).squeeze(-1)
                ratio = (logp - L[:, idx]).exp()
                g = G[:, idx]
                pg = -torch.min(ratio * g, ratio.clamp(0.8, 1.2) * g).mean()
                ent = -(logp_all.exp() * logp_all).sum(-1).mean()
                loss = pg + 0.5 * F.mse_loss(v, R_[:, idx]) - 0.01 * ent
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                opt.step()
                updates += 1
        correct = 0.9 * correct + 0.1 * float((R[-1] > 0).mean())
        if it % 5 == 0:
            print(f"iteration {it}: right turns {float((R[-1] > 0).mean()):.2f}, loss {loss.item():.4f}")
    rate = (iterations - iterations // 5) / (time.perf_counter() - t0)
    return {"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": loss.item() + correct}


if __name__ == "__main__":
    print(json.dumps(train(int(sys.argv[1]) if len(sys.argv) > 1 else 40)))
