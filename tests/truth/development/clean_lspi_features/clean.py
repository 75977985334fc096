# Least-squares policy iteration (Lagoudakis & Parr 2003) with random Fourier features for a swinging pole, numpy only.
import json
import sys
import time

import numpy as np

ITERATIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 50
SAMPLES, FEATURES, ACTIONS, GAMMA = 20_000, 400, 3, 0.97
rng = np.random.default_rng(19)
FORCES = np.array([-2.0, 0.0, 2.0], dtype=np.float32)


def simulate(state, force):
    """Pole angle and speed after 0.1 s, whole arrays at a time."""
    th, w = state.T
    acc = 9.8 * np.sin(th) - 0.1 * w + 4.0 * force * np.cos(th)
    w2 = np.clip(w + 0.1 * acc, -8, 8)
    th2 = (th + 0.1 * w2 + np.pi) % (2 * np.pi) - np.pi
    return np.stack([th2, w2], 1).astype(np.float32), np.cos(th2).astype(np.float32)


freq = rng.normal(0, 1.0, (2, FEATURES)).astype(np.float32) * np.array([[1.5], [0.4]], np.float32)
shift = rng.uniform(0, 2 * np.pi, FEATURES).astype(np.float32)


def features(s):
    return np.cos(s @ freq + shift) * np.float32(np.sqrt(2 / FEATURES))


S = np.stack([rng.uniform(-np.pi, np.pi, SAMPLES), rng.uniform(-6, 6, SAMPLES)], 1).astype(np.float32)
A = np.sort(rng.integers(0, ACTIONS, SAMPLES))
S2, R = simulate(S, FORCES[A])
edge = np.searchsorted(A, np.arange(ACTIONS + 1))
rows = [slice(edge[a], edge[a + 1]) for a in range(ACTIONS)]  # the samples of one action lie together
phi, phi2 = features(S), features(S2)
XX = np.zeros((ACTIONS, FEATURES, ACTIONS, FEATURES), np.float32)
for a, r in enumerate(rows):
    XX[a, :, a] = phi[r].T @ phi[r] + 1e-3 * np.eye(FEATURES, dtype=np.float32)
b = np.concatenate([phi[r].T @ R[r] for r in rows])
w = np.zeros((ACTIONS, FEATURES), np.float32)


def next_blocks(greedy):
    """Sum of phi(s, a) phi(s', greedy)^T, block by block."""
    out = np.zeros_like(XX)
    for a, r in enumerate(rows):
        for c in range(ACTIONS):
            i = r.start + np.flatnonzero(greedy[r] == c)
            out[a, :, c] = phi[i].T @ phi2[i]
    return out


for k in range(ITERATIONS):
    if k == ITERATIONS // 5:
        began = time.perf_counter()
    greedy = (phi2 @ w.T).argmax(1)
    lhs = (XX - np.float32(GAMMA) * next_blocks(greedy)).reshape(ACTIONS * FEATURES, -1)
    new = np.linalg.solve(lhs, b).reshape(ACTIONS, FEATURES).astype(np.float32)
    change = np.abs(new - w).mean()
    w = 0.5 * w + 0.5 * new
    if k % 5 == 0:
        print("iteration", k, "change", change)
rate = (ITERATIONS - ITERATIONS // 5) / (time.perf_counter() - began)
print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": round(float(np.abs(w).sum()), 3)}))
