"""Verdicts of `hotloop try` on unmodified Stable-Baselines3 scripts, and how often they are wrong.

For each script (PPO and DQN on CartPole, default settings): trials of all patches, as a table of verdicts,
and trials of eight patches without effect, where every `faster` or `slower` is false. The share of trials
with at least one false verdict should stay below 6 %, although a trial can be wrong about each of eight
patches. The segments of patches without effect are also reassigned to patches at random many times, with a
difference planted in one of them: how often is it found, with short segments and with several joined to a
longer one, and how often is any other patch called faster or slower?

Run: python benchmarks/try_patches.py [--budget 60] [--trials 3] [--selftests 5] [--save FILE | --load FILE]
On simulated machines: python benchmarks/try_patches.py --simulate 400
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hotloop.analysis.trial import BASELINE, Part, Rounds, SequentialTrial
from hotloop.machine.facts import cpu_name

SCRIPTS = {
    "PPO": 'from stable_baselines3 import PPO\nPPO("MlpPolicy", "CartPole-v1", seed=0).learn(100_000_000)\n',
    "DQN": 'from stable_baselines3 import DQN\nDQN("MlpPolicy", "CartPole-v1", seed=0).learn(100_000_000)\n',
}
HOTLOOP = Path(sys.executable).parent / "hotloop"
PATCHES = 8
Row = dict[str, Any]
LENGTHS = (1, 3, 8)  # segments joined to one: 0.02, 0.06 and 0.16 s
DIFFERENCES = (0.0, -0.05, -0.10, -0.20)
TIMES = 100  # random assignments of the segments
HEAD = (
    "| segments | false verdict | 5 % found | 10 % found | 20 % found |\n| --- | ---: | ---: | ---: | ---: |"
)
# Drift from segment to segment, scatter, share of segments with a delay
MACHINES = {"quiet": (0.003, 0.02, 0.0), "noisy": (0.02, 0.05, 0.02), "very noisy": (0.05, 0.08, 0.05)}


def run_trial(script: Path, budget_s: float, *words: str, seed: int) -> tuple[dict[str, Any], list[Row]]:
    """One trial: its report, and its segments."""
    with tempfile.TemporaryDirectory() as place:
        capture = Path(place) / "capture"
        command = [HOTLOOP, "try", "--json", "--stop", "--budget", f"{budget_s}s", "--seed", str(seed)]
        done = subprocess.run(
            [*map(str, command), "--capture", str(capture), *words, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
        )
        rows = [json.loads(line) for line in (capture / "trial.jsonl").read_text().splitlines()]
    return json.loads(done.stdout), [row for row in rows if "seconds" in row]


def verdict_table(reports: Sequence[Row]) -> Iterator[str]:
    """One line for each patch: the verdicts of all trials."""
    names = sorted({patch["name"] for report in reports for patch in report["patches"]})
    for name in names:
        found = [patch["verdict"] for r in reports for patch in r["patches"] if patch["name"] == name]
        changes = [f"{100 * v['change']['value']:+.1f} %" if v["change"] else "-" for v in found]
        words = Counter(v["word"] for v in found)
        says = ", ".join(f"{word} {count}x" for word, count in words.most_common())
        yield f"| {name} | {says} | {', '.join(changes)} |"
    for report in reports:
        if report["together"]:
            yield f"| together: {report['together']['name']} | {report['together']['verdict']['summary']} | |"


def false_share(reports: Sequence[Row]) -> tuple[int, int, int]:
    """Trials with a false verdict, trials, and false verdicts, for patches without effect."""
    words = [[patch["verdict"]["word"] in ("faster", "slower") for patch in r["patches"]] for r in reports]
    return sum(any(row) for row in words), len(words), sum(map(sum, words))


def reassigned(rows: Sequence[Row], length: int, change: float, chance: random.Random) -> Rounds:
    """Segments without effect, assigned to patches at random; the first patch takes `change` longer."""
    kinds = {"cycles": "env_steps", "steps": "env_steps", "updates": "updates"}
    last, parts = rows[-1], []
    for kind, work in kinds.items():
        found = [(row["seconds"], row[work]) for row in rows if row["kind"] == kind and row[work]]
        joined = [
            (sum(s for s, _ in found[at : at + length]), sum(w for _, w in found[at : at + length]))
            for at in range(chance.randrange(length), len(found) - length + 1, length)
        ]
        if len(joined) <= PATCHES * 4:
            continue
        names = [BASELINE, *(f"nothing_{number}" for number in range(1, PATCHES + 1))]
        rounds = []
        for at in range(0, len(joined) - PATCHES, PATCHES + 1):
            chance.shuffle(names)
            row = dict(zip(names, joined[at : at + PATCHES + 1], strict=True))
            seconds, done = row["nothing_1"]
            rounds.append(row | {"nothing_1": (seconds * (1 + change), done)})
        weight = last["all_updates"] / last["all_steps"] if kind == "updates" else 1.0
        parts.append(Part(tuple(rounds), weight))
    return Rounds("cycles" if len(parts) == 1 else "phases", "env_step", tuple(parts))


def power(segments: Sequence[Sequence[Row]], times: int = TIMES) -> Iterator[str]:
    """How often a planted difference is found, and how often a verdict is false, by segment length."""
    for length in LENGTHS:
        cells = []
        for change in DIFFERENCES:
            found = wrong = 0
            for number in range(times):
                chance = random.Random(f"{length}/{change}/{number}")
                trial = SequentialTrial([f"nothing_{number}" for number in range(1, PATCHES + 1)])
                trial.update(reassigned(segments[number % len(segments)], length, change, chance), final=True)
                words = {row.name: row.verdict.word for row in trial.verdicts}
                found += words["nothing_1"] == "faster" and change < 0
                rest = [word for name, word in words.items() if name != "nothing_1" or not change]
                wrong += any(word in ("faster", "slower") for word in rest)
            cells.append(f"{100 * wrong / times:.1f} %" if not change else f"{100 * found / times:.0f} %")
        yield f"| {0.02 * length:.2f} s | {' | '.join(cells)} |"


def simulated_segments(noise: Sequence[float], chance: random.Random, segments: int = 2000) -> list[Row]:
    """Segments of 0.02 s whose times drift slowly and scatter, with occasional delays."""
    slow, fast, struck = noise
    level, rows = 0.0, []
    for _ in range(segments):
        level = 0.97 * level + chance.gauss(0, slow)
        late = chance.expovariate(1.0) if chance.random() < struck else 0.0
        seconds = math.exp(level + chance.gauss(0, fast) + late)
        rows.append({"kind": "cycles", "seconds": seconds, "env_steps": 1, "updates": 1})
    return rows


def simulate(times: int) -> None:
    """The table of `power` for simulated machines, a new one for each trial."""
    for name, noise in MACHINES.items():
        print(f"\n{name}\n\n{HEAD}")
        rows = [simulated_segments(noise, random.Random(f"{name}/{number}")) for number in range(times)]
        print("\n".join(power(rows, times)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for one trial")
    parser.add_argument("--trials", type=int, default=3, help="trials of all patches, per script")
    parser.add_argument(
        "--selftests", type=int, default=5, help="trials of patches without effect, per script"
    )
    parser.add_argument("--save", type=Path, help="save the measurements to this file")
    parser.add_argument("--load", type=Path, help="print the tables of saved measurements")
    parser.add_argument(
        "--simulate", type=int, metavar="TIMES", help="simulate this many trials on each machine"
    )
    args = parser.parse_args()
    if args.simulate:
        simulate(args.simulate)
        return
    if args.load:
        kept = json.loads(args.load.read_text())
    else:
        kept = {"cpu": cpu_name(), "budget_s": args.budget, "scripts": measured(args)}
    if args.save:
        args.save.write_text(json.dumps(kept))
    print(f"{kept['cpu']}; {kept['budget_s']:g} s for a trial")
    for name, data in kept["scripts"].items():
        loads = [
            r["machine_load"]["load"]["median"]
            for r in (*data["trials"], *data["selftests"])
            if r["machine_load"]
        ]
        print(f"\n{name}, load {statistics.median(loads) if loads else 0:.1f} (median)\n")
        print("| patch | verdicts | change of the time per env step |\n| --- | --- | --- |")
        print("\n".join(verdict_table(data["trials"])))
        wrong, trials, words = false_share(data["selftests"])
        false = f"{words} false verdicts of {PATCHES * trials}, in {wrong} of {trials} trials"
        print(f"\nPatches without effect: {false}.")
        if data["segments"]:
            print(f"\n{HEAD}")
            print("\n".join(power(data["segments"])))


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """Run trials and self-tests in turn, so that drift of the machine affects both."""
    found: dict[str, Any] = {name: {"trials": [], "selftests": [], "segments": []} for name in SCRIPTS}
    with tempfile.TemporaryDirectory() as place:
        for number in range(max(args.trials, args.selftests)):
            for name, text in SCRIPTS.items():
                script = Path(place) / f"{name.lower()}.py"
                script.write_text(text)
                if number < args.trials:
                    found[name]["trials"].append(run_trial(script, args.budget, seed=number)[0])
                if number < args.selftests:
                    report, segments = run_trial(script, args.budget, "--selftest", seed=number)
                    found[name]["selftests"].append(report)
                    found[name]["segments"].append(segments)
                print(f"{name} {number + 1} done", file=sys.stderr)
    return found


if __name__ == "__main__":
    main()
