"""How fast are demonstrations, cloning and SAC, with more workers and compared with other libraries?

Four questions, each answered with variants that run in turn; results are medians over the rounds:

- demos: the expert with 1 and 2 workers, the same episodes; without start-up of the processes.
- loading: cloning the same samples in the same order, with index batches (fused and torch), with torch's
  DataLoader and 0, 1 and 2 workers, and with d3rlpy and imitation (if --peers-python has them).
- envs: our SAC with 1 to 8 envs at one update per env step.
- sb3: our SAC, fused and torch, and Stable-Baselines3's with SubprocVecEnv: same networks, same updates
  per env step.

Run: python benchmarks/imitate.py [--rounds N] [--only demos loading envs sb3] [--peers-python PYTHON]
     [--json FILE]
About 6 minutes on a quiet machine. Exit code 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import numpy as np

from hotloop.machine.facts import cores_granted
from hotloop.rl.buffers.demonstrations import DemonstrationStore, Samples
from hotloop.rl.collect.experts import collect, track_schema
from hotloop.rl.train import sac
from hotloop.rl.workloads import imitate_sb3
from hotloop.rl.workloads.imitate import Imitate
from hotloop.rl.workloads.imitate_rl import sac_settings
from hotloop.rl.workloads.imitate_speedup import (
    Measured,
    Round,
    demonstration_variants,
    env_variants,
    loading_variants,
    speedup_lines,
    take_turns,
)

PEERS = Path(__file__).parent / "programs" / "bc_peer.py"
LEAST_OF_TWO_WORKERS = 1.7  # times one worker, where there are two cores
STEPS = 1_500


def demos(rounds: int, _: str | None) -> tuple[list[Measured], str, str, dict[str, bool]]:
    with tempfile.TemporaryDirectory() as folder:
        found = take_turns("demos", demonstration_variants(Imitate(workers=2), Path(folder)), rounds)
    reached = {}
    if cores_granted() >= 2:
        two = next(one for one in found if one.variant == "2 workers")
        reached[f"2 workers at least {LEAST_OF_TWO_WORKERS}x 1"] = two.speedup >= LEAST_OF_TWO_WORKERS
    return found, "the same episodes", "steps/s", reached


def samples() -> Samples:
    with tempfile.TemporaryDirectory() as folder:
        store = DemonstrationStore(Path(folder))
        store.begin(track_schema(0, {}), resume=False)
        collect(store, range(10), workers=2, seed=0, settings={})
        return store.load().samples()


def loading(rounds: int, peers: str | None) -> tuple[list[Measured], str, str, dict[str, bool]]:
    config, data = Imitate(), samples()
    variants = loading_variants(config, data)
    if peers is not None:
        for library in ("d3rlpy", "imitation"):
            variants[library] = peer(peers, library, data)
    found = take_turns("loading", variants, rounds)
    rates = {one.variant: one.rate for one in found}
    ours = "index batches, fused"
    reached = {"index batches faster than every other way": rates[ours] == max(rates.values())}
    return found, "the same samples", "samples/s", reached


def peer(python: str, library: str, data: Samples) -> Round:
    """Another library's cloning of the same samples with the same network, in its own Python."""

    def once() -> tuple[float, None]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "samples.npz"
            np.savez(file, observations=data.observations, actions=data.actions)
            done = subprocess.run(
                [python, str(PEERS), library, str(file)], capture_output=True, text=True, check=False
            )
        if done.returncode:
            print(f"{library} did not run: {done.stderr.splitlines()[-1:]}", file=sys.stderr)
            return float("nan"), None
        return float(json.loads(done.stdout.splitlines()[-1])["samples_per_s"]), None

    return once


def envs(rounds: int, _: str | None) -> tuple[list[Measured], str, str, dict[str, bool]]:
    found = take_turns("envs", env_variants(Imitate()), rounds)
    return found, "1 update per env step after the first 256", "steps/s", {}


def sb3(rounds: int, _: str | None) -> tuple[list[Measured], str, str, dict[str, bool]]:
    updates: dict[str, int] = {}

    def ours(envs: int, learner: Any) -> Round:
        def once() -> tuple[float, None]:
            config = Imitate(n_envs=envs, start="scratch", total_timesteps=STEPS, learner=learner)
            settings = sac_settings(config, eval_every_steps=0, checkpoint=None)
            done = sac.train(settings, report=lambda **work: None)
            updates[f"hotloop {learner} {envs}"] = done.updates
            return done.steps_here / done.seconds, None

        return once

    def theirs(envs: int) -> Round:
        def once() -> tuple[float, Any]:
            config = Imitate(n_envs=envs, start="scratch", total_timesteps=STEPS, trainer="sb3")
            done = imitate_sb3.train(sac_settings(config), None, evaluate=lambda policy: 0.0)
            updates[f"sb3 {envs}"] = done.updates
            return done.env_steps / done.seconds, done.worker_memory

        return once

    variants: dict[str, Round] = {}
    for count in (1, 4, 8):
        variants[f"Stable-Baselines3, {count} envs"] = theirs(count)
        variants[f"hotloop torch, {count} envs"] = ours(count, "torch")
        variants[f"hotloop fused, {count} envs"] = ours(count, "fused")
    found = take_turns("sb3", variants, rounds)
    print("updates:", ", ".join(f"{name} {n:,}" for name, n in updates.items()))
    rates = {one.variant: one.rate for one in found}
    reached = {
        f"fused faster than Stable-Baselines3 with {count} envs": rates[f"hotloop fused, {count} envs"]
        > rates[f"Stable-Baselines3, {count} envs"]
        for count in (1, 4, 8)
    }
    return (
        found,
        f"{STEPS:,} env steps, 1 update per env step after the first {STEPS // 10}",
        "steps/s",
        reached,
    )


QUESTIONS: dict[str, Callable[..., Any]] = {"demos": demos, "loading": loading, "envs": envs, "sb3": sb3}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    parser.add_argument("--peers-python", help="a Python that has d3rlpy or imitation")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results, missed = {}, False
    for name in options.only:
        found, work, unit, reached = QUESTIONS[name](options.rounds, options.peers_python)
        print("\n".join(speedup_lines(found, work, unit, options.rounds)))
        for words, yes in reached.items():
            print(f"  {words}: {'reached' if yes else 'MISSED'}")
            missed |= not yes
        print(flush=True)
        results[name] = {one.variant: {"rate": one.rate, "speedup": one.speedup} for one in found}
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
