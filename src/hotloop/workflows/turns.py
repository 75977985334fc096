"""Runs of the lab that are turns of trainings inside one process (`turn_host`)."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Any, Self

from hotloop._util import strict_json
from hotloop.capture.series import Figures
from hotloop.lab.process import Job, Outcome

SEEDS_PER_PROCESS = 6  # then a new process takes over, because memory layout makes one faster than another
WORKLOADS = ("snake",)


class TurnHost:
    """The process in which trainings take turns; each turn is a run of the lab."""

    def __init__(self, name: str, environment: dict[str, str]) -> None:
        self._name, self._environment = name, environment
        self._process: subprocess.Popen[str] | None = None
        self._seeds: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and with it all its trainings."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
        self._seeds = set()

    def run(self, job: Job) -> Outcome:
        """One turn of the training that the job's command names."""
        began_s = time.perf_counter()
        try:
            answer = self._ask(job)
        except BaseException:
            self.close()
            raise
        wall_s = time.perf_counter() - began_s
        if "failure" in answer:
            return Outcome(wall_s, None, 1, answer["failure"])
        steps, updates, episodes = (answer[name] for name in ("env_steps", "updates", "episodes"))
        figures = Figures(
            env_steps=steps,
            updates=updates,
            episodes=episodes,
            mean_length=answer["total_length"] / episodes if episodes else None,
            mean_return=answer["mean_return"],
            s_per_env_step=answer["wall_s"] / steps,
            s_per_update=answer["wall_s"] / updates if updates else None,
            cpu_s_per_env_step=answer["cpu_s"] / steps,
        )
        return Outcome(wall_s, answer["cpu_s"], 0, figures=figures)

    def _ask(self, job: Job) -> dict[str, Any]:
        seed = job.environment.get("HOTLOOP_SEED", "")
        if seed not in self._seeds and len(self._seeds) >= SEEDS_PER_PROCESS:
            self.close()
        self._seeds.add(seed)
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        late = threading.Event()

        def end_it() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(job.timeout_s or threading.TIMEOUT_MAX, end_it)
        timer.daemon = True
        timer.start()
        try:
            words = job.command[job.command.index("train") + 2 :]
            process.stdin.write(strict_json.dumps({"words": words}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = ""
        finally:
            timer.cancel()
        if line:
            return dict(json.loads(line))
        code = process.wait()
        self.close()
        why = f"exit code {code}" if not late.is_set() else f"{job.timeout_s:.4g} s, the timeout of a run"
        return {"failure": f"the process in which variants take turns ended: {why}"}

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "hotloop.workflows.turn_host", self._name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
            text=True,
            start_new_session=True,
        )
