# %% [markdown]
# # Contextual bandits for news recommendation: disjoint LinUCB
# Li et al. 2010, "A contextual-bandit approach to personalized news article recommendation".
# Exported from a notebook.

# %%
import json
import sys
import time

import numpy as np

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
N_ARMS = 10
DIM = 20
BLOCK = 1000

# %% The simulated users: a click depends on a hidden weight vector per article, which drifts slowly


class NewsUsers:
    def __init__(self, n_arms, dim, seed):
        self.rng = np.random.default_rng(seed)
        self.theta = self.rng.normal(size=(n_arms, dim)) / np.sqrt(dim)
        self.n_arms, self.dim = n_arms, dim

    def visitors(self, n):
        """Contexts of n users, one row per article and user, and the click probabilities."""
        user = self.rng.normal(size=(n, 1, self.dim // 2))
        user = np.broadcast_to(user, (n, self.n_arms, self.dim // 2))
        match = self.rng.normal(size=(n, self.n_arms, self.dim // 2))
        contexts = np.concatenate([user, match], axis=2)
        self.theta += 0.005 * self.rng.normal(size=self.theta.shape)
        p = 1.0 / (1.0 + np.exp(-2.0 * np.einsum("nkd,kd->nk", contexts, self.theta)))
        return contexts, p, self.rng.random(n)


# %% The algorithm


class LinUCB:
    def __init__(self, n_arms, dim, alpha=0.6, ridge=1.0):
        self.alpha = alpha
        self.A = np.tile(ridge * np.eye(dim), (n_arms, 1, 1))
        self.A_inv = np.linalg.inv(self.A)
        self.b = np.zeros((n_arms, dim))

    def choose(self, x):
        A_inv = self.A_inv
        theta = np.matmul(A_inv, self.b[:, :, None])[:, :, 0]
        mean = (theta * x).sum(axis=1)
        width = (np.matmul(A_inv, x[:, :, None])[:, :, 0] * x).sum(axis=1)
        return int(np.argmax(mean + self.alpha * np.sqrt(width)))

    def update(self, arm, x, reward):
        self.A[arm] += np.outer(x, x)
        self.A_inv[arm] = np.linalg.inv(self.A[arm])
        self.b[arm] += reward * x


# %% Run

users = NewsUsers(N_ARMS, DIM, seed=21)
agent = LinUCB(N_ARMS, DIM)
clicks = np.zeros(ROUNDS, dtype=bool)
regret = np.zeros(ROUNDS)
warm = ROUNDS // 5

for t in range(ROUNDS):
    if t == warm:
        t0 = time.perf_counter()
    k = t % BLOCK
    if k == 0:
        contexts, click_prob, luck = users.visitors(BLOCK)
        best = click_prob.max(axis=1)
    x = contexts[k]
    arm = agent.choose(x)
    click = luck[k] < click_prob[k, arm]
    agent.update(arm, x[arm], float(click))
    clicks[t] = click
    regret[t] = best[k] - click_prob[k, arm]
    if (t + 1) % 50_000 == 0:
        print(f"round {t + 1}: click rate {clicks[:t + 1].mean():.3f}, regret {regret[:t + 1].sum():.1f}")

elapsed = time.perf_counter() - t0

# %%
theta = np.linalg.solve(agent.A, agent.b[:, :, None])
print(json.dumps({
    "env_steps": None,
    "updates": None,
    "units_per_s": (ROUNDS - warm) / elapsed,
    "checksum": round(float(theta.sum()), 6),
}))
