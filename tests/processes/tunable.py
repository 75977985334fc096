"""A training whose speed is known: each vector step takes a fixed time and a time for each environment.

    python tunable.py --n-envs N [--n-steps N] [--threads N] [--steps N] [--fail-above N] [--hold MIB]

Time is slept, not computed, so that a busy machine does not turn the order of settings around.
"""

from __future__ import annotations

import argparse
import os
import time

import hotloop

FIXED_S, EACH_S, UPDATE_S = 0.004, 0.0002, 0.002


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--n-envs", type=int, default=1)
    parser.add_argument("--n-steps", type=int, default=0)
    parser.add_argument("--mode", default="slow")
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--fail-above", type=int, default=10**9)
    given = parser.parse_args()
    if given.n_envs > given.fail_above:
        raise SystemExit("too many envs")
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    per_step_s = FIXED_S * (4 if given.mode == "slow" else 1) + EACH_S * given.n_envs
    rollout = given.n_steps or 8
    done = 0
    while done < given.steps:
        for _ in range(rollout):
            with hotloop.profile("env_step"):
                time.sleep(per_step_s)
            hotloop.progress(env_steps=given.n_envs)
            done += given.n_envs
        with hotloop.profile("backward"):
            time.sleep(UPDATE_S * threads)
        hotloop.progress(updates=1)


if __name__ == "__main__":
    main()
