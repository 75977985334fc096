"""`make demo-cluster`: record a job on a Ray cluster, explain it, and compare two variants on its nodes.

Starts a Ray cluster of three nodes on this computer. Collectors on all nodes bring experience to one learner,
recorded by `hotloop run`; so is a script for RLlib, if that is installed; then `hotloop compare --on ray`
runs two variants on the nodes. Each command is shown before it runs, and the cluster is shut down at the end.

Run: python examples/demo_cluster.py [--folder DIR] [--env-steps N] [--budget TIME]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

from demo import heading, hotloop
from hotloop._util.errors import HotloopError
from hotloop._util.extras import require_extra

NODES = 3
SETTINGS = {  # a busy computer is slow to start three nodes, and workers are not to have a niceness of 15
    "RAY_worker_niceness": "0",
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_AUTH_MODE": "disabled",
}


def start_cluster() -> Any:
    cluster_utils = require_extra("ray.cluster_utils", "ray")
    size: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    for _ in range(NODES - 1):
        cluster.add_node(**size)
    return cluster


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("hotloop-runs/demo-cluster"))
    parser.add_argument("--env-steps", type=int, default=20_000, help="env steps of the recorded job")
    parser.add_argument("--budget", default="60s", help="most time for the comparison")
    given = parser.parse_args()
    run, rllib, pairs = (given.folder / name for name in ("run", "rllib", "pairs"))
    for old in (run, rllib, pairs):
        shutil.rmtree(old, ignore_errors=True)
    os.environ |= SETTINGS
    heading(f"A Ray cluster of {NODES} nodes on this computer")
    try:
        cluster = start_cluster()
    except HotloopError as missing:
        raise SystemExit(str(missing)) from None
    try:
        os.environ["RAY_ADDRESS"] = cluster.address
        heading("Collectors on all nodes and one learner, recorded")
        script = Path(__file__).with_name("collect_on_ray.py")
        hotloop("run", "--capture", str(run), str(script), "--env-steps", str(given.env_steps))
        if all(importlib.util.find_spec(name) for name in ("tree", "lz4", "ormsgpack", "pyarrow")):
            heading("PPO of RLlib, recorded")
            hotloop("run", "--capture", str(rllib), str(Path(__file__).with_name("rllib_on_ray.py")))
        heading("Two variants compared on the nodes, both runs of a pair on the same one")
        work = "import sys; sum(i * i for i in range(int(sys.argv[1])))"
        words = ["compare", "--on", "ray", "--budget", given.budget, "--series", str(pairs), "--no-record"]
        sides = [f"python -c '{work}' {count}" for count in (1_000_000, 3_000_000)]
        hotloop(*words, "--a", sides[0], "--b", sides[1])
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
