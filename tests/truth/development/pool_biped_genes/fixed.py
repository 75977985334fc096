"""Genetic algorithm for a planar biped; candidates are tried out in worker processes.

usage: python pool_biped_genes.py [generations] [workers]
"""
import json
import math
import multiprocessing as mp
import sys
import time

import numpy as np

POPULATION = 384
PARENTS = 48
STEPS = 10
N_OBS, N_HIDDEN, N_ACT = 7, 6, 4
N_GENES = N_OBS * N_HIDDEN + N_HIDDEN * N_ACT


def decode(genes):
    cut = N_OBS * N_HIDDEN
    return genes[:cut].reshape(N_HIDDEN, N_OBS), genes[cut:].reshape(N_ACT, N_HIDDEN)


def walk(genes):
    """Distance walked minus effort, for one set of controller weights."""
    w1, w2 = decode(genes)
    hip_l, hip_r, knee_l, knee_r, lean, x, clock = 0.3, -0.3, 0.1, 0.1, 0.0, 0.0, 0.0
    score = 0.0
    for _ in range(STEPS):
        seen = np.array([hip_l, hip_r, knee_l, knee_r, lean, math.sin(clock), math.cos(clock)])
        hl, hr, kl, kr = np.tanh(w2 @ np.tanh(w1 @ seen)).tolist()
        hip_l = 0.8 * hip_l + 0.3 * hl
        hip_r = 0.8 * hip_r + 0.3 * hr
        knee_l = 0.7 * knee_l + 0.2 * abs(kl)
        knee_r = 0.7 * knee_r + 0.2 * abs(kr)
        left_low = math.cos(hip_l) + math.cos(hip_l + knee_l)
        right_low = math.cos(hip_r) + math.cos(hip_r + knee_r)
        push = -0.3 * hl if left_low > right_low else -0.3 * hr
        x += push
        lean = 0.9 * lean + 0.1 * (push + 0.2 * (hip_l + hip_r))
        clock += 0.5
        score -= 0.01 * (hl * hl + hr * hr + kl * kl + kr * kr) + lean * lean
        if abs(lean) > 0.8:
            score -= 2.0
            break
    return score + 3 * x


def breed(parents, rng):
    """Uniform crossover of two parents each, then mutation; the best parent survives."""
    n = POPULATION - 1
    mothers = parents[rng.integers(0, len(parents), n)]
    fathers = parents[rng.integers(0, len(parents), n)]
    children = np.where(rng.random((n, N_GENES)) < 0.5, mothers, fathers)
    children += 0.1 * rng.standard_normal((n, N_GENES)) * (rng.random((n, N_GENES)) < 0.2)
    return np.concatenate([parents[:1], children])


def main():
    generations = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    workers = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    rng = np.random.default_rng(9)
    population = rng.standard_normal((POPULATION, N_GENES)) * 0.5
    began = 0.0
    with mp.get_context("fork").Pool(workers) as pool:
        for generation in range(generations):
            if generation == generations // 5:
                began = time.perf_counter()
            fitness = np.array(pool.map(walk, population, chunksize=POPULATION // (2 * workers)))
            order = np.argsort(-fitness, kind="stable")
            if generation % 25 == 0:
                print(f"generation {generation}: best {fitness[order[0]]:.3f}, mean {fitness.mean():.3f}")
            population = breed(population[order[:PARENTS]], rng)
        rate = (generations - generations // 5) / (time.perf_counter() - began)
    print(
        json.dumps(
            {"env_steps": None, "updates": None, "units_per_s": rate, "checksum": float(np.abs(population).sum())}
        )
    )


if __name__ == "__main__":
    main()
