"""Thompson sampling on many Bernoulli bandits side by side; compares priors over hundreds of repetitions."""
import argparse
import json
import time

import numpy as np


def run(prior, repetitions, arms, rounds, rng):
    """Regret of Thompson sampling with a Beta(prior, prior) belief, all repetitions at once."""
    chances = rng.uniform(0.1, 0.9, (repetitions, arms))
    counts = np.full((2, repetitions, arms), prior, np.float32)  # wins and losses
    rows, best = np.arange(repetitions), chances.max(1)
    regret = np.zeros(repetitions)
    for _ in range(rounds):
        win, lose = rng.standard_gamma(counts, dtype=np.float32)
        arm = (win / lose).argmax(1)  # the order of draws from Beta(wins, losses)
        chance = chances[rows, arm]
        lost = (rng.random(repetitions) >= chance).astype(np.intp)
        counts[lost, rows, arm] += 1.0
        regret += best - chance
    return regret


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--studies", type=int, default=10)
    ap.add_argument("--repetitions", type=int, default=400)
    ap.add_argument("--arms", type=int, default=12)
    ap.add_argument("--rounds", type=int, default=6000)
    args = ap.parse_args()
    rng = np.random.default_rng(30)
    priors = np.geomspace(0.3, 4.0, args.studies)
    start, checksum = None, 0.0
    for k, prior in enumerate(priors):
        if k == args.studies // 5:
            start = time.perf_counter()
        regret = run(prior, args.repetitions, args.arms, args.rounds, rng)
        checksum += float(regret.sum())
        print(f"prior {prior:.2f}: regret {regret.mean():.2f} +- {regret.std() / np.sqrt(len(regret)):.2f}", flush=True)
    rate = (args.studies - args.studies // 5) * args.rounds / (time.perf_counter() - start)
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
