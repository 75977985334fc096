"""Population-based training: members train in processes of their own and exchange weights through files."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import pickle
import random
import tempfile
from typing import Any

from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "train=2x": {"train": 0.5},
    "train=8x": {"train": 0.125},
    "save=2x": {"save": 0.5},
    "rank=2x": {"rank": 0.5},
}
LIMIT = "train"


def member(number: int, folder: str, scores: Any, p: dict[str, float]) -> None:
    source = random.Random(100 * p["seed"] + number)
    weights = bytes(20_000)
    own = pathlib.Path(folder, f"{number}.pickle")
    while True:
        with hotloop.profile("train"):
            native(source.uniform(5.5, 7.5) * p["train"])
        with hotloop.profile("save"):
            nap(5 * p["save"])
            draft = own.with_suffix(".new")
            draft.write_bytes(pickle.dumps(weights))
            os.replace(draft, own)
        scores.put((number, source.random()))
        if source.random() < 0.2:  # Exploit: take over the weights of another member.
            other = own.with_name(f"{source.randrange(int(p['workers']))}.pickle")
            if other.exists():
                weights = pickle.loads(other.read_bytes())


def main() -> None:
    p = parameters(train=1, save=1, rank=1, workers=5)
    context = multiprocessing.get_context("fork")
    scores = context.Queue()
    table: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        members = [
            context.Process(target=member, args=(i, folder, scores, p), daemon=True)
            for i in range(int(p["workers"]))
        ]
        for process in members:
            process.start()

        def cycle() -> float:
            number, score = scores.get()
            with hotloop.profile("rank"):
                table[number] = score
                sorted(table, key=table.__getitem__)
                python(0.4 * p["rank"])
            hotloop.progress(updates=1)
            return 1

        meter(p["seconds"], cycle)
        for process in members:
            process.terminate()
        for process in members:
            process.join()


if __name__ == "__main__":
    main()
