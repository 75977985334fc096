"""Records programs of other libraries with `hotloop run`: are counts exact, and what is the first advice?

    python benchmarks/outside.py [--only sb3_ppo,torchrl_dqn]

Each program is benchmarks/programs/library_defaults.py NAME STEPS, which counts env steps, calls of the
policy and updates itself. Prints both counts and the first recommendation; whether that is right is for the
reader.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import hotloop
from hotloop.analysis.region_tree import region_trees, walk
from hotloop.machine.facts import cpu_name

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
PROGRAM = HERE / "programs/library_defaults.py"
# name -> env steps, and the package it needs
PROGRAMS = {
    "sb3_ppo": (4096, "stable_baselines3"),
    "sb3_a2c": (3000, "stable_baselines3"),
    "sb3_dqn": (4000, "stable_baselines3"),
    "sb3_sac": (700, "stable_baselines3"),
    "sb3_td3": (900, "stable_baselines3"),
    "contrib_recurrent_ppo": (1024, "sb3_contrib"),
    "contrib_maskable_ppo": (4096, "sb3_contrib"),
    "contrib_tqc": (500, "sb3_contrib"),
    "torchrl_dqn": (2560, "torchrl"),
    "torchrl_ppo": (2560, "torchrl"),
    "lightning_dqn": (3000, "lightning"),
}
ADVICE = ("high", "medium", "low")


def record(name: str, steps: int, capture: Path) -> tuple[dict[str, int], dict[str, Any]]:
    """What the program counted, and hotloop's report."""
    command = [str(BIN / "hotloop"), "run", "--capture", str(capture), "--", sys.executable]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(PROGRAM), name, str(steps)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"env_steps"')]
    if done.returncode or not lines:
        raise SystemExit(f"{name} failed: {done.stderr[-500:]}")
    report = subprocess.run(
        [str(BIN / "hotloop"), "report", str(capture), "--json"], capture_output=True, text=True, check=True
    )
    return json.loads(lines[-1]), json.loads(report.stdout)


def acting_calls(capture: Path) -> int:
    """Outermost calls of `policy_forward` in all processes."""
    return sum(
        node.calls
        for outline in region_trees(hotloop.load(capture))
        for _, node in walk(outline.root)
        if node.name == "policy_forward"
    )


def first_advice(report: dict[str, Any]) -> str:
    """The first recommendation with its gain, or else what the report offers instead."""
    for one in report["recommendations"]:
        if one["tier"] in ADVICE:
            gain = one["gain"]
            promised = f", {gain['value']:.2f}x [{gain['low']:.2f}, {gain['high']:.2f}]" if gain else ""
            return f"{one['name']}: {one['title']}{promised}"
    others = [one["title"] for one in report["recommendations"] if one["tier"] == "no_known_remedy"]
    return f"none; most expensive: {others[0]}" if others else "none"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="A,B", help="only these programs")
    wanted = list(filter(None, parser.parse_args().only.split(",")))
    print(f"{cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for name, (steps, package) in PROGRAMS.items():
        if wanted and name not in wanted:
            continue
        if importlib.util.find_spec(package) is None:
            print(f"{name}: needs {package}, which is not installed")
            continue
        with tempfile.TemporaryDirectory() as folder:
            capture = Path(folder) / "capture"
            counts, report = record(name, steps, capture)
            found = {"acting": acting_calls(capture)} | {key: report[key] for key in ("env_steps", "updates")}
        shown = ", ".join(f"{key} {found[key]} / {counts[key]}" for key in ("env_steps", "acting", "updates"))
        print(f"{name} {steps}: hotloop / program: {shown}; first advice: {first_advice(report)}", flush=True)


if __name__ == "__main__":
    main()
