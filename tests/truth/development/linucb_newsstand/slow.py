"""LinUCB: which paper to put in front of a newsstand, given who walks by."""

import argparse
import json
import time

import numpy as np

PAPERS, SIZE = 10, 18


class Street:
    """Passers-by with features; a paper sells with a probability that is logistic in them."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.taste = self.rng.normal(0, 0.6, (PAPERS, SIZE))

    def passer_by(self):
        features = self.rng.normal(0, 1, SIZE)
        features[0] = 1.0
        return features / np.sqrt(SIZE)

    def sold(self, features, paper):
        chance = 1 / (1 + np.exp(-2 * features @ self.taste[paper]))
        return float(self.rng.random() < chance)

    def best(self, features):
        return int((self.taste @ features).argmax())


class LinUCB:
    """A ridge regression per paper, with an upper bound on each estimate."""

    def __init__(self, alpha, ridge=1.0):
        self.alpha = alpha
        self.gram = np.stack([ridge * np.eye(SIZE)] * PAPERS)
        self.moment = np.zeros((PAPERS, SIZE))

    def choose(self, features):
        inverse = np.linalg.inv(self.gram)
        spread = inverse @ features
        scores = (spread * self.moment).sum(axis=1) + self.alpha * np.sqrt(spread @ features)
        return int(scores.argmax())

    def learn(self, features, paper, reward):
        self.gram[paper] += np.outer(features, features)
        self.moment[paper] += reward * features


def main(rounds):
    street, bandit, marks = Street(31), LinUCB(alpha=0.6), []
    sold = missed = 0.0
    for _ in range(rounds):
        marks.append(time.perf_counter())
        features = street.passer_by()
        paper = bandit.choose(features)
        reward = street.sold(features, paper)
        bandit.learn(features, paper, reward)
        sold += reward
        missed += paper != street.best(features)
    marks.append(time.perf_counter())
    print(f"sold {sold / rounds:.3f} a passer-by, not the best paper {missed / rounds:.1%} of the time")
    first = rounds // 5
    rate = (rounds - first) / (marks[-1] - marks[first])
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": sold}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=180_000)
    main(parser.parse_args().rounds)
