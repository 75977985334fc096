"""Genetic algorithm over hexapod gaits, evaluated on a scanned terrain by a pool of processes."""
import json
import multiprocessing as mp
import sys
import time

import numpy as np

GENERATIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 25
POPULATION = 40
GENES = 24
SIZE = 640


def scan_terrain(seed):
    """Sum of smoothed noise at several scales, metres, float64."""
    rng = np.random.default_rng(seed)
    out = np.zeros((SIZE, SIZE))
    for cell in (4, 8, 16, 32, 64):
        coarse = rng.normal(size=(SIZE // cell + 2, SIZE // cell + 2))
        u = np.arange(SIZE) / cell
        i = u.astype(int)
        f = (u - i)[:, None]
        rows = coarse[i] * (1 - f) + coarse[i + 1] * f
        out += (rows[:, i] * (1 - f.T) + rows[:, i + 1] * f.T) * cell / 64
    return out


def walk(genome, terrain, start, steps=45):
    """Distance walked minus stumbling and effort for one start position; six legs, tripod gait by phase."""
    amp, lift, phase, duty = genome[:6], genome[6:12], genome[12:18], genome[18:24]
    x, y = start
    heading, energy, stumble = 0.3, 0.0, 0.0
    side = np.array([-1, -1, -1, 1, 1, 1])
    along = np.array([-1.5, 0.0, 1.5, -1.5, 0.0, 1.5])
    for t in range(steps):
        cyc = (t * 0.15 + phase) % 1.0
        stance = cyc < 0.5 + 0.2 * np.tanh(duty)
        push = np.where(stance, np.tanh(amp), 0.0)
        c, s = np.cos(heading), np.sin(heading)
        fx = (x + c * along - s * side).astype(int) % SIZE
        fy = (y + s * along + c * side).astype(int) % SIZE
        ground = terrain[fx, fy]
        slope = ground - ground.mean()
        clear = 0.4 + 0.3 * np.tanh(lift)
        stumble += float(np.sum(~stance & (slope > clear)))
        energy += float(np.sum(push ** 2) + 0.3 * np.sum(clear[~stance]))
        gain = 0.8 * float(push.sum()) / (1.0 + float(np.abs(slope).mean()))
        heading += 0.05 * float((side * push).sum())
        x, y = x + c * gain, y + s * gain
    return np.hypot(x - start[0], y - start[1]) - 0.2 * stumble - 0.05 * energy


def fitness(task):
    genome, starts = task
    return float(np.mean([walk(genome, TERRAIN, s) for s in starts]))


def set_terrain(terrain):
    global TERRAIN
    TERRAIN = terrain


def crossover(a, b, rng):
    mask = rng.random(GENES) < 0.5
    return np.where(mask, a, b)


def evolve():
    rng = np.random.default_rng(17)
    terrain = scan_terrain(3)
    population = rng.normal(size=(POPULATION, GENES)) * 0.5
    history, t0 = [], None
    with mp.get_context("fork").Pool(2, initializer=set_terrain, initargs=(terrain,)) as pool:
        for gen in range(GENERATIONS):
            if gen == GENERATIONS // 5:
                t0 = time.perf_counter()
            starts = [tuple(p) for p in rng.uniform(100, SIZE - 100, size=(4, 2))]
            scores = np.array(pool.map(fitness, [(g, starts) for g in population], chunksize=1))
            order = np.argsort(-scores)
            history.append(float(scores[order[0]]))
            elite = population[order[: POPULATION // 4]]
            children = [elite[0], elite[1]]
            while len(children) < POPULATION:
                i, j = rng.integers(len(elite), size=2)
                child = crossover(elite[i], elite[j], rng)
                children.append(child + rng.normal(size=GENES) * 0.15 * (rng.random(GENES) < 0.3))
            population = np.array(children)
            if gen % 5 == 0:
                print(f"generation {gen:3d}: best {history[-1]:7.2f}, mean {scores.mean():7.2f}", flush=True)
        rate = (GENERATIONS - GENERATIONS // 5) / (time.perf_counter() - t0)
    return history, rate


if __name__ == "__main__":
    hist, speed = evolve()
    print(f"best gait walked {max(hist):.2f} m")
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": speed, "checksum": sum(hist)}))
