"""A thread pool scores the next episodes in Python while the accelerator learns: the GIL is full."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from parts import meter, nap, parameters, python

import hotloop

WHAT_IFS = {
    "score=2x": {"score": 0.5},
    "score=4x": {"score": 0.25},
    "learn=2x": {"learn": 0.5},
    "workers=8": {"workers": 8},
}
LIMIT = "gil"
EPISODES = 8


def main() -> None:
    p = parameters(score=1, learn=1, workers=4)

    def score(episode: int) -> int:
        with hotloop.profile("score"):
            return python(1.1 * p["score"])

    with ThreadPoolExecutor(int(p["workers"])) as pool:
        upcoming = pool.map(score, range(EPISODES))

        def cycle() -> float:
            nonlocal upcoming
            scores = list(upcoming)
            upcoming = pool.map(score, range(EPISODES))
            with hotloop.profile("learn"):
                nap(3 * p["learn"])
            assert len(scores) == EPISODES
            hotloop.progress(updates=1)
            return 1

        meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
