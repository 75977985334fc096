"""Settings of all PPO programs of `benchmarks/trainers.py`, and the line that each prints at its end."""

from __future__ import annotations

import argparse
import json
import resource
import time

ENV = "CartPole-v1"
N_ENVS, N_STEPS, N_EPOCHS, BATCH_SIZE, HIDDEN = 8, 128, 4, 256, 64
ROLLOUT = N_ENVS * N_STEPS  # samples
LEARNING_RATE, ADAM_EPS = 2.5e-4, 1e-5
GAMMA, GAE_LAMBDA, CLIP_RANGE = 0.99, 0.95, 0.2
VF_COEF, ENT_COEF, MAX_GRAD_NORM = 0.5, 0.0, 0.5
WARM_UP = 2 * ROLLOUT  # env steps before the clock starts, for compilation and first allocations


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20 * ROLLOUT, help="env steps to time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--env", default=ENV, help="for programs that know more than one")
    return parser.parse_args()


class Clock:
    """Wall time and CPU time of all threads since it was created."""

    def __init__(self) -> None:
        self.began, self.cpu = time.perf_counter(), self._cpu()

    @staticmethod
    def _cpu() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    def say(self, env_steps: int, updates: int, returns: list[float]) -> None:
        """Print one line of JSON; `returns` are those of the last 100 episodes."""
        seconds, cpu = time.perf_counter() - self.began, self._cpu() - self.cpu
        mean = sum(returns) / len(returns) if returns else None
        found = {"env_steps": env_steps, "updates": updates, "seconds": seconds, "cpu_seconds": cpu}
        print(json.dumps({**found, "mean_return": mean}))
