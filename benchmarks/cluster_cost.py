"""What does recording a job on a Ray cluster cost? CPU time with and without it, in pairs.

    python benchmarks/cluster_cost.py --pairs 10

Starts a cluster of two nodes on this computer, the second of which shares no folder with the driver, so that
its recordings come home through Ray. The same job (programs/ray_job.py) runs on it again and again, plain and
recorded, in random order within each pair. CPU times are those of the driver and of all
workers, ours included, over a fixed number of rounds of training, from ten seconds after its beginning on.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.analysis.rank_intervals import hodges_lehmann, signed_rank_interval
from hotloop.workflows.run import recording_environment

HERE = Path(__file__).parent
SMALL: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}


def run(rounds: int, capture: Path | None) -> dict[str, float]:
    environment = dict(os.environ)
    if capture is not None:
        environment = recording_environment(capture, environment)
    command = [sys.executable, str(HERE / "programs/ray_job.py"), str(rounds), str(os.getpid())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    time.sleep(3.0)  # Ray ends the job's workers
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def change(pairs: list[dict[str, dict[str, float]]], name: str) -> str:
    """`12.34 s plain, +0.61 % [-0.20, 1.35]`."""
    plain, recorded = (np.array([pair[kind][name] for pair in pairs]) for kind in ("plain", "recorded"))
    logs = np.log(recorded) - np.log(plain)
    low, high = np.expm1(signed_rank_interval(logs, 0.05) or (np.nan, np.nan))
    middle = float(np.expm1(hodges_lehmann(logs)))
    return f"{np.median(plain):.2f} s plain, {100 * middle:+.2f} % [{100 * low:+.2f}, {100 * high:+.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument(
        "--rounds", type=int, default=60, help="of the job: 512 env steps and 32 updates each"
    )
    parser.add_argument(
        "--parts", action="store_true", help="a job that does nothing, and one round over the nodes"
    )
    options = parser.parse_args()
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # 127.0.0.1
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    pairs: list[dict[str, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        (here / "far").mkdir()
        cluster = Cluster(initialize_head=True, head_node_args={**SMALL, "include_dashboard": False})
        try:
            cluster.add_node(wait=True, env_vars={"HOTLOOP_NODE_FOLDER": str(here / "far")}, **SMALL)
            os.environ["RAY_ADDRESS"] = cluster.address
            run(2, None)  # loads everything from disk
            if options.parts:
                for kind, capture in (("plain", None), ("recorded", here / "capture")):
                    print(kind, json.dumps(run(0, capture)))
                return
            chance = random.Random(0)
            for number in range(options.pairs):
                folders = {"plain": None, "recorded": here / f"capture{number}"}
                pair = {
                    kind: run(options.rounds, folders[kind]) for kind in chance.sample(sorted(folders), 2)
                }
                pairs.append(pair)
                print(f"pair {number + 1}: {json.dumps(pair)}", file=sys.stderr, flush=True)
        finally:
            cluster.shutdown()
    steps = options.rounds * 512
    print(f"{len(pairs)} pairs, {steps:,} env steps each, load {os.getloadavg()[0]:.1f}; CPU time [95 %]:")
    print(f"  training  {change(pairs, 'train_cpu_s')}")
    # What recording does every second or two costs more of a job that gets less of the machine.
    wall, cpu, plain = (
        np.array([pair[kind][name] for pair in pairs])
        for kind, name in (
            ("recorded", "train_wall_s"),
            ("recorded", "train_cpu_s"),
            ("plain", "train_cpu_s"),
        )
    )
    print(
        f"  recorded: {np.median(wall):.1f} s of wall time, {np.median(cpu / wall):.2f} cores; "
        f"{1000 * np.median((cpu - plain) / wall):.0f} ms of CPU time more for each second of wall time"
    )


if __name__ == "__main__":
    main()
