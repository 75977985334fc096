"""A process in which variants of a training take turns, for plans with `turns = true`.

    python -m hotloop.workflows.turn_host NAME

reads requests from stdin, one JSON object per line: {"words": [...]} with the flags of `hotloop train NAME`.
It answers with the work and the times of one turn of that training, or with {"failure": ...}. A training is
set up at its first turn and goes on from turn to turn. Settings that differ only in the seed mean the same
training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import io
import json
import signal
import sys
from typing import Any

from hotloop._util import strict_json
from hotloop._util.errors import HotloopError

TURN_S = 0.25  # at least; a turn ends with a whole step


def main(name: str) -> int:
    """Serve until stdin ends."""
    from hotloop.rl.workloads.turns import TakesTurns

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent, which ends this process
    workload: Any = importlib.import_module(f"hotloop.rl.workloads.{name}")
    read: Any = importlib.import_module("hotloop.cli.train").read
    trainings: dict[Any, TakesTurns] = {}

    def next_turn(words: list[str]) -> dict[str, Any]:
        config = read([name, *words]).config
        same = dataclasses.replace(config, seed=0)
        if same not in trainings:
            training = TakesTurns(workload.endless_training(config))
            training.turn(0.0, functools.partial(workload.is_warm, config))
            trainings[same] = training
        turn = trainings[same].turn(TURN_S)
        return {**dataclasses.asdict(turn), "mean_return": workload.learning_return(config)}

    answers = sys.stdout
    while line := sys.stdin.readline():
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                answer = next_turn(json.loads(line)["words"])
        except HotloopError as error:
            answer = {"failure": str(error)}
        except Exception as error:
            answer = {"failure": f"{type(error).__name__}: {error}"}
        answers.write(strict_json.dumps(answer) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
