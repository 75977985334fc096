"""Modified policy iteration for a warehouse with two goods and one truck, solved for many price lists."""
import json
import sys
import time

import numpy as np
import scipy.sparse as sp
from scipy.stats import poisson

CAP, TRUCK, GAMMA = 60, 12, 0.95


def demand(mean, most=9):
    p = poisson.pmf(np.arange(most + 1), mean)
    p[-1] += 1.0 - p.sum()
    return p


def stock_chain(order, p):
    """Transition matrix of one good that receives a fixed order every day, and the expected sales per stock level."""
    n = CAP + 1
    rows, cols, vals, sales = [], [], [], np.zeros(n)
    for s in range(n):
        have = min(CAP, s + order)
        for d, prob in enumerate(p):
            sold = min(have, d)
            rows.append(s)
            cols.append(have - sold)
            vals.append(prob)
            sales[s] += prob * sold
    return sp.csr_matrix((vals, (rows, cols)), shape=(n, n)), sales


def build():
    """All actions below each other: rows of action a start at a * states."""
    orders = [(i, j) for i in range(0, TRUCK + 1, 3) for j in range(0, TRUCK + 1 - i, 3)]
    blocks, sales, bought, levels = [], [], [], np.arange(CAP + 1)
    p_first, p_second = demand(3.0), demand(2.2)
    for i, j in orders:
        a, sold_a = stock_chain(i, p_first)
        b, sold_b = stock_chain(j, p_second)
        blocks.append(sp.kron(a, b, format="csr"))
        sales.append(np.stack([np.repeat(sold_a, CAP + 1), np.tile(sold_b, CAP + 1)]))
        bought.append((i, j))
    held = np.repeat(levels, CAP + 1) + np.tile(levels, CAP + 1)
    return sp.vstack(blocks, format="csr").astype(np.float32), np.array(sales), np.array(bought), held


def solve(P, reward, values, sweeps=30, tolerance=2e-3):
    """Greedy improvement over all actions, then some sweeps of the chosen policy alone."""
    actions, states = reward.shape
    index, work = np.arange(states), 0
    while True:
        q = reward + GAMMA * (P @ values).reshape(actions, states)
        policy = q.argmax(0)
        best = q[policy, index]
        change = float(np.abs(best - values).max())
        values = best
        work += actions
        if change < tolerance:
            return values, policy, work
        chosen = P[policy * states + index]
        gain = reward[policy, index]
        for _ in range(sweeps):
            values = gain + GAMMA * (chosen @ values)
        work += sweeps


def main(lists):
    rng = np.random.default_rng(2)
    P, sales, bought, held = build()
    print(f"{P.shape[1]} states, {P.shape[0] // P.shape[1]} actions, {P.nnz} transitions", flush=True)
    values = np.zeros(P.shape[1], np.float32)
    start, total, work, counted = None, 0.0, 0, 0
    for k in range(lists):
        if k == lists // 5:
            start, counted = time.perf_counter(), work
        price, cost = rng.uniform(4.0, 9.0, 2), rng.uniform(1.0, 3.0, 2)
        reward = np.tensordot(sales, price, axes=([1], [0])) - (bought @ cost + 2.0 * (bought.sum(1) > 0))[:, None]
        reward = (reward - 0.05 * held).astype(np.float32)
        values, policy, spent = solve(P, reward, values)
        work += spent
        total += float(values.mean())
        if k % 20 == 0:
            print(f"price list {k:3d}: mean value {values.mean():.2f}, usual order {bought[np.bincount(policy).argmax()]}", flush=True)
    rate = (work - counted) / (time.perf_counter() - start)
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": total}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
