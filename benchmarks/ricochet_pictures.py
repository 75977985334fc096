"""What each part of `hotloop train ricochet --preset pictures` brings: a table, and learning curves.

Each variant changes the preset in one point. A run is a fresh process with one thread; its outcome is kept as
FOLDER/<variant>-<seed>.json, and only runs that are not there yet are made.

    python benchmarks/ricochet_pictures.py FOLDER [--variants NAME ...] [--seeds 0 1 2] [-o NAME.svg]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

SHORT = ["--total-timesteps", "24000"]
PPO = ["--algo", "ppo", "--eval-every-steps", "0", "--n-steps", "8", *SHORT]
# FOLDER and SEED are replaced.
VARIANTS: dict[str, list[str]] = {
    "preset": [],
    "short": [*SHORT, "--checkpoint", "FOLDER/short-SEED.safetensors"],
    "bc": ["--algo", "bc"],
    "no-places": ["--place-coef", "0"],
    "curriculum": ["--curriculum"],
    "conv": ["--encoder", "auto", "--no-convlstm"],
    "ppo": PPO,
    "short-then-ppo": [*PPO, "--learning-rate", "3e-4", "--start-from", "FOLDER/short-SEED.safetensors"],
}
CURVES = {
    "preset": ("#d9480f", "preset: DAgger, gated scans, auxiliary targets"),
    "bc": ("#1864ab", "behaviour cloning instead of DAgger"),
    "curriculum": ("#2b8a3e", "with a curriculum by solution length"),
    "no-places": ("#868e96", "without auxiliary targets"),
    "conv": ("#862e9c", "plain convolutions instead of gated scans"),
}


def run(variant: str, seed: int, folder: Path) -> dict[str, Any]:
    """The outcome of one training run, with its command and its CPU seconds."""
    kept = folder / f"{variant}-{seed}.json"
    if kept.exists():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    words = [w.replace("FOLDER", str(folder)).replace("SEED", str(seed)) for w in VARIANTS[variant]]
    command = ["train", "ricochet", "--preset", "pictures", *words, "--seed", str(seed)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "hotloop", *command, "--no-profiling", "--json"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = {
        "command": " ".join(["hotloop", *command]),
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "outcome": json.loads(done.stdout)["outcome"],
    }
    kept.write_text(json.dumps(found, indent=1))
    return found


def row(variant: str, seed: int, found: dict[str, Any]) -> str:
    """One line of a Markdown table: solved by length, most likely moves and sampled."""
    outcome = found["outcome"]
    parts = ("_1_moves", "_2_moves", "_3_moves", "")
    agent = [f"{100 * outcome['figures'][f'agent_solved_fraction{part}']:.1f} %" for part in parts]
    sampled = f"{100 * outcome['figures']['agent_sampled_solved_fraction']:.1f} %"
    cells = [variant, str(seed), *agent, sampled, f"{outcome['env_steps']:,}", f"{found['cpu_s']:.0f} s"]
    return f"| {' | '.join(cells)} |"


def draw(found: dict[str, list[dict[str, Any]]], picture: Path) -> None:
    """Learning curves: a line for each run."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "hotloop"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8.0, 4.8))
    for variant, (colour, words) in CURVES.items():
        for number, one in enumerate(found.get(variant, [])):
            curve = one["outcome"]["evaluations"]
            seeds = f", seeds 0 to {len(found[variant]) - 1}" if len(found[variant]) > 1 else ""
            axes.plot(
                [steps / 1000 for steps, _ in curve],
                [100 * value for _, value in curve],
                color=colour,
                linewidth=2.2 if variant == "preset" else 1.4,
                label=None if number else words + seeds,
            )
    at_random = next(runs[0] for runs in found.values() if runs)["outcome"]["figures"][
        "random_solved_fraction"
    ]
    axes.axhline(100 * at_random, color="#868e96", linestyle=":", label="random moves")
    axes.axhline(70, color="#ced4da", linewidth=0.8)
    axes.set(
        xlabel="env steps (positions learnt from), thousands",
        ylabel="boards solved in time, %",
        ylim=(0, 102),
        xlim=(0, None),
    )
    axes.set_title("Unseen boards solved within twice the optimal number of moves", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    figure.tight_layout()
    figure.savefig(picture, dpi=110, metadata={"Date": None} if picture.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("-o", "--output", type=Path, help="picture of the learning curves")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    print("| variant | seed | 1 move | 2 moves | 3 moves | all | sampled | env steps | CPU time |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    all_found: dict[str, list[dict[str, Any]]] = {}
    for variant in given.variants:
        for seed in given.seeds:
            found = run(variant, seed, given.folder)
            all_found.setdefault(variant, []).append(found)
            print(row(variant, seed, found), flush=True)
    if given.output is not None:
        for variant in CURVES:  # of all seeds that were ever run here
            kept = sorted(given.folder.glob(f"{variant}-[0-9]*.json"))
            all_found[variant] = [json.loads(one.read_text()) for one in kept]
        draw(all_found, given.output)
        print(f"wrote {given.output}", file=sys.stderr)


if __name__ == "__main__":
    main()
