"""Error rates of verdicts on a real Ray cluster: the same command against itself, on two nodes that differ.

    python benchmarks/verdicts_ray.py --comparisons 40

Starts a cluster of two nodes on this computer; the second one computes 30 % more in each run. Comparisons are
made as by `hotloop compare --selftest --no-record --on ray`: pairs on one node, at most 40 of them. "faster"
and "slower" are false; the rule allows 5 % of both together.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hotloop.workflows.compare import ComparisonSettings, Side, compare_plan
from hotloop.workflows.experiments import Progress, create_series, run_experiment, runners_for

# A node without a folder in common with the lab runs with its own LOGNAME.
SCRIPT = """
import os
turns = {turns}
if os.environ.get("LOGNAME") == "slow":
    turns = turns * 13 // 10
total = 0
for i in range(turns):
    total += i * i
"""
SMALL: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}


def compare_with_itself(number: int, command: str, folder: Path, runners: Any) -> dict[str, Any]:
    settings = ComparisonSettings(budget_s=120.0, order_seed=number, record=False)
    plan = compare_plan(Side(command), Side(), (), settings, selftest=True)
    progress = Progress(stream=io.StringIO(), quiet=True)
    series = create_series(plan, folder / str(number), "aa", runners)
    done = run_experiment(series, progress, runners=runners)
    (row,) = done.comparison.compared
    by_node = {node.node: node.baseline_s for node in done.comparison.nodes}
    return {
        "word": row.verdict.word,
        "pairs": len(done.series.runs) // 2,
        "summary": row.verdict.summary,
        "slow_over_fast": max(by_node.values()) / min(by_node.values()) if len(by_node) > 1 else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--comparisons", type=int, default=40)
    parser.add_argument("--turns", type=int, default=600_000, help="of the loop in each run")
    options = parser.parse_args()
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # 127.0.0.1
    os.environ.setdefault("RAY_worker_niceness", "0")
    from ray.cluster_utils import Cluster

    command = f"{sys.executable} -S burn.py"
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        (here / "work").mkdir()
        (here / "far").mkdir()
        (here / "work" / "burn.py").write_text(SCRIPT.replace("{turns}", str(options.turns)))
        os.chdir(here / "work")
        cluster = Cluster(initialize_head=True, head_node_args={**SMALL, "include_dashboard": False})
        try:
            far = {"HOTLOOP_NODE_FOLDER": str(here / "far"), "LOGNAME": "slow"}
            cluster.add_node(wait=True, env_vars=far, **SMALL)
            os.environ["RAY_ADDRESS"] = cluster.address
            began = time.time()
            with runners_for(1, "ray", (), Progress(stream=io.StringIO(), quiet=True)) as runners:
                found = []
                for number in range(options.comparisons):
                    found.append(compare_with_itself(number, command, here / "series", runners))
                    print(number, json.dumps(found[-1]), flush=True)
        finally:
            cluster.shutdown()
    words = Counter(one["word"] for one in found)
    differ = [one["slow_over_fast"] for one in found if one["slow_over_fast"]]
    print(json.dumps({
        "comparisons": len(found),
        "words": dict(words),
        "pairs_mean": statistics.mean(one["pairs"] for one in found),
        "slow_over_fast_median": statistics.median(differ),
        "wall_s": round(time.time() - began),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
