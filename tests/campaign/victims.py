"""Programs that record themselves and are killed; see `nursery.py` for how they are started."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import hotloop
from hotloop.measure import part
from tests.campaign.nursery import die_at, serve
from tests.campaign.truth_table import NAMES, WORKERS, TruthTable, region_name


class Program:
    """One program: what it does follows from its seed."""

    def __init__(self, request: dict[str, Any]):
        self.request = request
        self.folder = Path(request["folder"])
        self.truth = TruthTable(Path(request["truth"]))
        self.rng = random.Random(request["seed"])

    def run(self) -> None:
        if self.request["slow_disk"]:
            allocate = part._allocate

            def slowly(*args: Any) -> None:
                time.sleep(0.002)
                allocate(*args)

            part._allocate = slowly  # type: ignore[assignment]
        if self.request["die_at"]:
            die_at(self.request["die_at"])
        getattr(self, self.request["program"])()

    def work(self, worker: int, rounds: int = sys.maxsize, seed: int = 0) -> None:
        """Regions inside of regions, new names again and again, progress."""
        rng, begun, ended = random.Random(seed), self.truth.begun, self.truth.ended
        first = worker * NAMES
        names = [region_name(worker, number) for number in range(NAMES)]

        def call(number: int, depth: int) -> None:
            begun[first + number] += 1
            with hotloop.profile(names[number]):
                if depth < 4 and rng.random() < 0.5:
                    call((5 * number + 3) % NAMES, depth + 1)  # few paths: there is room for 4,096
            ended[first + number] += 1

        for turn in range(rounds):
            call(rng.randrange(min(1 + turn // 4, NAMES)), 0)
            if turn % 16 == 0:
                hotloop.progress(env_steps=1)

    def threads(self) -> None:
        """Some threads that stay and some that come and go."""
        hotloop.start(self.folder)
        for worker in range(1, 1 + self.rng.randint(1, 4)):
            threading.Thread(target=self.work, args=(worker,), daemon=True).start()
        for turn in itertools.count():
            short = threading.Thread(target=self.work, args=(10 + turn % 8, 30, turn))
            short.start()
            self.work(0, 20, turn)
            short.join()

    def forks(self) -> None:
        """Children that end or go on, forked inside of a region and beside a busy thread."""
        hotloop.start(self.folder)
        if self.rng.random() < 0.5:
            threading.Thread(target=self.work, args=(1,), daemon=True).start()
        for turn in itertools.count():
            worker = 2 + turn % (WORKERS - 2)
            self.truth.begun[0] += 1
            with hotloop.profile(region_name(0, 0)):
                if (child := os.fork()) == 0:
                    self.work(worker, self.rng.choice((1, 50, 400)), turn)
                    with contextlib.suppress(BaseException):
                        hotloop.stop()
                    os._exit(0)
                if self.rng.random() < 0.2:
                    os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            self.truth.ended[0] += 1

    def spawns(self) -> None:
        """Fresh interpreters that join the capture."""
        hotloop.start(self.folder)
        command = [sys.executable, "-m", "tests.campaign.victims"]
        for worker in range(1, WORKERS):
            mine = self.request | {"program": "joins", "seed": worker, "die_at": 0}
            child = subprocess.Popen([*command, json.dumps(mine)])
            while child.poll() is None:
                self.work(0, 50, worker)

    def joins(self) -> None:
        self.work(self.request["seed"], self.rng.choice((100, 10_000)))

    def restarts(self) -> None:
        """One short recording after another, each into a folder of its own."""
        for worker in range(WORKERS):
            hotloop.start(f"{self.folder}-{worker}" if worker else self.folder)
            self.work(worker, 40, worker)
            hotloop.stop()
        os._exit(0)


def run_program(request: dict[str, Any]) -> None:
    Program(request).run()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_program(json.loads(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory(prefix="hotloop-warm-") as folder:
            hotloop.start(folder)  # what is measured once, is measured here
            hotloop.stop()
        serve(run_program)
