"""
Posterior sampling for reinforcement learning (PSRL) on random Garnet MDPs.

Each episode draws one MDP from the posterior (Dirichlet transitions, normal rewards), plans in it by
value iteration, and lets a batch of walkers follow that policy in the true MDP.
"""
import argparse
import json
import time

import numpy as np


def garnet(rng, n_states, n_actions, branching):
    """Random MDP: every (s, a) leads to `branching` states."""
    P = np.zeros((n_states, n_actions, n_states))
    targets = rng.random((n_states, n_actions, n_states)).argpartition(branching, axis=2)[:, :, :branching]
    np.put_along_axis(P, targets, rng.dirichlet(np.ones(branching), size=(n_states, n_actions)), axis=2)
    R = rng.normal(size=(n_states, n_actions)) * (rng.random((n_states, n_actions)) < 0.1)
    return P, R


class Walkers:
    """A batch of independent walkers in the same MDP."""

    def __init__(self, P, R, n, rng):
        self.cdf = P.cumsum(axis=2)
        self.R, self.n, self.rng = R, n, rng

    def reset(self):
        self.state = self.rng.integers(len(self.R), size=self.n)
        return self.state

    def step(self, action):
        u = self.rng.random((self.n, 1))
        following = np.minimum((self.cdf[self.state, action] < u).sum(axis=1), len(self.R) - 1)
        reward = self.R[self.state, action] + 0.1 * self.rng.normal(size=self.n)
        self.state = following
        return following, reward


class Posterior:
    def __init__(self, n_states, n_actions, rng, prior=0.05):
        self.alpha = np.full((n_states, n_actions, n_states), prior)
        self.visits = np.ones((n_states, n_actions))
        self.reward_sum = np.zeros((n_states, n_actions))
        self.rng = rng

    def sample(self):
        P = self.rng.standard_gamma(self.alpha)
        P += 1e-12
        P /= P.sum(axis=2, keepdims=True)
        R = self.reward_sum / self.visits + self.rng.normal(size=self.visits.shape) / np.sqrt(self.visits)
        return P, R

    def update(self, s, a, r, s2):
        np.add.at(self.alpha, (s, a, s2), 1.0)
        np.add.at(self.visits, (s, a), 1.0)
        np.add.at(self.reward_sum, (s, a), r)


def value_iteration(P, R, gamma, V, tol=1e-3):
    flat = P.reshape(-1, P.shape[2])
    while True:
        Q = R + gamma * (flat @ V).reshape(R.shape)
        new = Q.max(axis=1)
        gap = np.abs(new - V).max()
        V = new
        if gap < tol:
            return Q.argmax(axis=1), V


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("episodes", type=int, nargs="?", default=2400)
    parser.add_argument("--states", type=int, default=200)
    parser.add_argument("--actions", type=int, default=8)
    parser.add_argument("--gamma", type=float, default=0.97)
    args = parser.parse_args()

    rng = np.random.default_rng(31)
    P, R = garnet(rng, args.states, args.actions, branching=5)
    walkers = Walkers(P, R, n=32, rng=rng)
    posterior = Posterior(args.states, args.actions, rng)
    V = np.zeros(args.states)
    env_steps = 0
    warm = args.episodes // 5
    for episode in range(args.episodes):
        if episode == warm:
            t0 = time.perf_counter()
        policy, V = value_iteration(*posterior.sample(), args.gamma, V)
        s = walkers.reset()
        total = 0.0
        for _ in range(50):
            a = policy[s]
            s2, r = walkers.step(a)
            posterior.update(s, a, r, s2)
            total += r.mean()
            s = s2
            env_steps += walkers.n
        if (episode + 1) % 200 == 0:
            print(f"episode {episode + 1}: mean return {total:.3f}")
    rate = (args.episodes - warm) / (time.perf_counter() - t0)
    print(json.dumps({
        "env_steps": env_steps,
        "updates": None,
        "units_per_s": rate,
        "checksum": round(float(V.sum() + (posterior.reward_sum / posterior.visits).sum()), 6),
    }))


if __name__ == "__main__":
    main()
