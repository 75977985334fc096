"""MAP-Elites: an archive of different gaits for a hopping robot, evaluated by a pool of two processes."""
import argparse
import json
import multiprocessing as mp
import time
from dataclasses import dataclass

import numpy as np

GENES = 12


@dataclass(frozen=True)
class Plan:
    generations: int
    batch: int
    bins: int
    workers: int
    sigma: float
    seed: int


def hop(genes):
    """Simulates one robot. Returns its fitness and two descriptors: mean height and share of time on the ground."""
    amplitude, frequency, phase = np.abs(genes[:4]).tolist(), (0.5 + np.abs(genes[4:8])).tolist(), genes[8:].tolist()
    height, speed, distance, forward, ground, total = 0.5, 0.0, 0.0, 0.0, 0, 0.0
    for t in range(60):
        wave = [a * ((f * t * 0.1 + p) % 1.0 - 0.5) for a, f, p in zip(amplitude, frequency, phase)]
        if height <= 0.0:
            ground += 1
            height = 0.0
            speed = max(0.0, 2.0 * (wave[0] + wave[1]))
            forward = 0.6 * forward + (wave[2] - wave[3])
        speed -= 0.15
        height += 0.1 * speed
        distance += 0.05 * forward
        total += max(height, 0.0)
    effort = sum(a * f for a, f in zip(amplitude, frequency))
    return distance - 0.02 * effort, min(total / 60, 0.999), ground / 60


class Archive:
    """Best robot of every cell."""

    def __init__(self, bins, manager):
        self.bins = bins
        self.cells = manager.dict()
        self.fitness = np.full((bins, bins), -np.inf)

    def cell_of(self, height, ground):
        return int(height * self.bins), min(int(ground * self.bins), self.bins - 1)

    def offer(self, genes, fitness, height, ground):
        cell = self.cell_of(height, ground)
        if cell not in self.cells or fitness > self.cells[cell][0]:
            self.cells[cell] = (fitness, genes)
            self.fitness[cell] = fitness
            return 1
        return 0

    def parents(self, rng, n):
        filled = np.argwhere(self.fitness > -np.inf)
        picks = filled[rng.integers(0, len(filled), size=n)].tolist()
        return np.stack([self.cells[tuple(cell)][1] for cell in picks])


def evolve(plan, archive, pool):
    rng = np.random.default_rng(plan.seed)
    started, first, accepted = 0.0, plan.generations // 5, 0
    for g in range(plan.generations):
        if g == first:
            started = time.perf_counter()
        if g == 0:
            children = rng.normal(size=(plan.batch, GENES))
        else:
            mothers, fathers = archive.parents(rng, plan.batch), archive.parents(rng, plan.batch)
            line = rng.normal(0.0, 0.2, size=(plan.batch, 1)) * (fathers - mothers)
            children = mothers + line + plan.sigma * rng.normal(size=mothers.shape)
        outcomes = pool.map(hop, children, chunksize=plan.batch // (2 * plan.workers))
        for genes, (fitness, height, ground) in zip(children, outcomes):
            accepted += archive.offer(genes, fitness, height, ground)
        if g % 40 == 0:
            known = archive.fitness[archive.fitness > -np.inf]
            print(f"generation {g}: {len(known)} cells, best {known.max():.3f}, sum {known.sum():.2f}, accepted {accepted}", flush=True)
    return (plan.generations - first) * plan.batch / (time.perf_counter() - started)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--generations", type=int, default=2000)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--bins", type=int, default=24)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--sigma", type=float, default=0.1)
    ap.add_argument("--seed", type=int, default=9)
    plan = Plan(**vars(ap.parse_args()))
    with mp.Manager() as manager, mp.Pool(plan.workers) as pool:
        archive = Archive(plan.bins, manager)
        speed = evolve(plan, archive, pool)
        known = archive.fitness[archive.fitness > -np.inf]
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": speed, "checksum": round(float(known.sum()), 8)}))


if __name__ == "__main__":
    main()
