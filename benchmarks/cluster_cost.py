"""What does recording a job on a Ray cluster cost? CPU time with and without it, in pairs.

    python benchmarks/cluster_cost.py --pairs 10

Starts a cluster of two nodes on this computer, the second of which shares no folder with the driver, so that
its recordings come home through Ray. The same job (programs/ray_job.py) runs on it again and again, plain and
recorded, in random order within each pair. CPU times are those of the driver and of all
workers, ours included, over a fixed number of rounds of training, from ten seconds after its beginning on.

    python benchmarks/cluster_cost.py --turns 20 --starts 8

starts the job twice, plain and recorded, and both take turns of a second, so that what else the machine does
meets both alike. The job is started again and again: where its processes lie in memory makes each of them a
little faster or slower, so that the starts, not the turns, give the interval. What can be counted is counted:
CPU time of our actor on the other node and of our thread in the driver. With `--alone`, the same work is
done in one process without Ray: what recording costs there is not the cluster's.
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
WARM_UP_S = 12.0  # of each job: its start, and everything is imported and running
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


class Job:
    """One running job that trains when asked."""

    def __init__(self, capture: Path | None, how: str):
        environment = dict(os.environ)
        if capture is not None:
            environment = recording_environment(capture, environment)
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "programs/ray_job.py"), how, str(os.getpid())],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        begin_s = time.monotonic()
        while time.monotonic() - begin_s < WARM_UP_S:
            self.turn(1)

    def turn(self, rounds: int) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(rounds, file=self._process.stdin, flush=True)
        while line := self._process.stdout.readline():
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        sys.exit("the job ended")

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        time.sleep(2.0)  # Ray ends the job's workers


def by_turns(how: str, turns: int, starts: int, rounds: int, place: Path) -> None:
    """Print how much more CPU time a recorded job takes, from jobs that take turns."""
    chance = random.Random(0)
    changes, parts = [], []
    by_process: list[Any] = []
    for start in range(starts):
        folders = {"plain": None, "recorded": place / f"turns{start}"}
        jobs = {kind: Job(folders[kind], how) for kind in chance.sample(sorted(folders), 2)}
        logs = []
        for _ in range(turns):
            made = {kind: jobs[kind].turn(rounds) for kind in chance.sample(sorted(jobs), 2)}
            spent = {kind: sum(one["cpu_s"]) for kind, one in made.items()}
            logs.append(np.log(spent["recorded"]) - np.log(spent["plain"]))
            ours = made["recorded"]
            actor = sum(ours["cpu_s"][3:])
            both = zip(ours["cpu_s"], made["plain"]["cpu_s"], strict=False)
            by_process.append([np.log(mine / plain) for mine, plain in both])
            parts.append((spent["plain"], made["plain"]["wall_s"], ours["wall_s"], actor, ours["thread_s"]))
        for job in jobs.values():
            job.end()
        changes.append(float(np.median(logs)))
        said = f"start {start + 1}: {100 * np.expm1(changes[-1]):+.2f} %"
        print(f"{said} (median of {turns} turns)", file=sys.stderr, flush=True)
    low, high = np.expm1(signed_rank_interval(np.array(changes), 0.05) or (np.nan, np.nan))
    middle = np.expm1(hodges_lehmann(np.array(changes)))
    plain, plain_wall, wall, actor, thread = np.array(parts).sum(axis=0)
    each = ", ".join(f"{100 * np.expm1(middle):+.2f} %" for middle in np.median(by_process, axis=0))
    print(
        f"{starts} starts, {turns} turns of {rounds} rounds each, load {os.getloadavg()[0]:.1f}:\n"
        f"  recorded {100 * middle:+.2f} % CPU time [{100 * low:+.2f}, {100 * high:+.2f}], 95 %, by starts\n"
        f"  of which driver and actors: {each}, medians of turns\n"
        f"  the plain job uses {plain / plain_wall:.2f} cores\n"
        f"  our actor {1000 * actor / wall:.1f} ms/s, {100 * actor / plain:.2f} % of the job; "
        f"our thread {1000 * thread / wall:.1f} ms/s, {100 * thread / plain:.2f} %"
    )


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
    parser.add_argument("--turns", type=int, default=0, help="of two jobs, for each start")
    parser.add_argument("--alone", action="store_true", help="with --turns: in one process without Ray")
    parser.add_argument("--starts", type=int, default=8)
    parser.add_argument("--turn-rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # 127.0.0.1
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if options.alone:
        with tempfile.TemporaryDirectory() as place:
            by_turns("alone", options.turns, options.starts, options.turn_rounds, Path(place))
        return
    from ray.cluster_utils import Cluster

    pairs: list[dict[str, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        (here / "far").mkdir()
        near: dict[str, Any] = {**SMALL, "resources": {"near": 2}, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=near)
        try:
            apart = {"HOTLOOP_NODE_FOLDER": str(here / "far")}
            cluster.add_node(wait=True, env_vars=apart, resources={"far": 2}, **SMALL)
            os.environ["RAY_ADDRESS"] = cluster.address
            run(2, None)  # loads everything from disk
            if options.turns:
                by_turns("turns", options.turns, options.starts, options.turn_rounds, here)
                return
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
