"""A curriculum process chooses the next level while two actors play this one and the learner learns."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "propose=1.25x": {"propose": 0.8},
    "propose=4x": {"propose": 0.25},
    "learn=2x": {"learn": 0.5},
    "rollout=2x": {"rollout": 0.5},
}
LIMIT = "propose"


def propose(learner: Connection, scale: float) -> None:
    level = 0
    while True:
        score = learner.recv()
        with hotloop.profile("propose"):
            python(9.5 * scale)
            level = (level + int(score > 0)) % 10
        learner.send(level)


def act(learner: Connection, scale: float) -> None:
    while True:
        level = learner.recv()
        with hotloop.profile("rollout"):
            nap(3 * scale)
            python(0.3 * scale)
        learner.send([level] * 64)


def main() -> None:
    p = parameters(propose=1, rollout=1, learn=1, workers=2)
    context = multiprocessing.get_context("fork")
    teacher, theirs = context.Pipe()
    context.Process(target=propose, args=(theirs, p["propose"]), daemon=True).start()
    actors = []
    for _ in range(int(p["workers"])):
        actor, end = context.Pipe()
        actors.append(actor)
        context.Process(target=act, args=(end, p["rollout"]), daemon=True).start()
    score = 1.0
    teacher.send(score)

    def cycle() -> float:
        nonlocal score
        level = teacher.recv()
        teacher.send(score)  # for the level after this one
        for actor in actors:
            actor.send(level)
        rollouts = [actor.recv() for actor in actors]
        with hotloop.profile("learn"):
            native(2 * p["learn"])
            score = float(sum(map(len, rollouts)))
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
