"""The PPO that every trainer of `benchmarks/trainers.py` runs, and how a program says what it did."""

from __future__ import annotations

import argparse
import json
import resource
import time

ENV = "CartPole-v1"
ENVS, STEPS, EPOCHS, MINIBATCH, HIDDEN = 8, 128, 4, 256, 64
BATCH = ENVS * STEPS
LEARNING_RATE, ADAM_EPSILON = 2.5e-4, 1e-5
DISCOUNT, TRACE, CLIP = 0.99, 0.95, 0.2
VALUE_WEIGHT, ENTROPY_WEIGHT, LARGEST_NORM = 0.5, 0.0, 0.5
WARM_UP = 2 * BATCH  # env steps before the clock starts: compilation and first allocations are no part of it


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20 * BATCH, help="env steps to time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--env", default=ENV, help="for programs that know more than one")
    return parser.parse_args()


class Clock:
    """Wall and CPU time of all threads since it was made."""

    def __init__(self) -> None:
        self.began, self.cpu = time.perf_counter(), self._cpu()

    @staticmethod
    def _cpu() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    def say(self, env_steps: int, updates: int, returns: list[float]) -> None:
        """Print what was done as one line of JSON; `returns`: those of the last 100 episodes."""
        seconds, cpu = time.perf_counter() - self.began, self._cpu() - self.cpu
        mean = sum(returns) / len(returns) if returns else None
        found = {"env_steps": env_steps, "updates": updates, "seconds": seconds, "cpu_seconds": cpu}
        print(json.dumps({**found, "mean_return": mean}))
