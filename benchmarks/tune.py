"""Does `hotloop tune` find in 60 s of search what an exhaustive sweep finds? At least 95 % of its throughput.

    python benchmarks/tune.py                # petri and ricochet, about half an hour
    python benchmarks/tune.py --workloads petri --rounds 4

The tuner searches first. Then every setting is run in turns, in random order, `--rounds` times: the fastest
is chosen by the first half of the rounds and timed by the second, so that luck does not make it look better
than it is. Found and default settings are timed by the same rounds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path

from hotloop.tuning.space import Settings, words_of
from hotloop.workflows.experiments import Progress
from hotloop.workflows.probes import Patience
from hotloop.workflows.train import config_class
from hotloop.workflows.tune import Prober, TuneTerms, Tuning, tune
from hotloop.workflows.tune_workloads import WorkloadTarget
from hotloop.workflows.tuned import workload_target

SETTINGS = {"petri": {"learner": "fused", "envs": 16}, "ricochet": {}, "snake": {}}
LEAST_SHARE, TOLERANCE = 0.95, 0.03
SEARCH_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", nargs="+", default=["petri", "ricochet"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=1.0, help="of work in a run of the sweep")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows, passed = [], True
    for name in given.workloads:
        row = compared(name, given.rounds, given.seconds, given.seed)
        rows.append(row)
        passed &= bool(row["share_of_best"] >= LEAST_SHARE and row["against_default"] >= 1 - TOLERANCE)
        print(json.dumps(row, indent=1), flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


def compared(name: str, rounds: int, seconds: float, seed: int) -> dict[str, object]:
    """Tune, sweep, and say how near the one came to the other."""
    progress = Progress(stream=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="hotloop-tune-") as temporary:
        place = Path(temporary)
        target = workload_target(name, config_class(name)(**SETTINGS[name]))
        tuning = tune(target, TuneTerms(2 * SEARCH_S, seed=seed), place / "tune", progress)
        times = sweep(target, place / "sweep", rounds, seconds, seed, progress)
    return summary(name, tuning, times)


def sweep(
    target: WorkloadTarget, place: Path, rounds: int, seconds: float, seed: int, progress: Progress
) -> dict[Settings, list[float]]:
    """Seconds per env step of every setting, `rounds` times, all in turns."""
    (place / "probes").mkdir(parents=True)
    everything = [s for s in target.space.all_settings() if target.fits(s, ())]
    times: dict[Settings, list[float]] = {settings: [] for settings in everything}
    prober = Prober(target, place, Patience(seconds, 20 * seconds, target.cycles), progress, TuneTerms(600.0))
    shuffle = random.Random(seed).shuffle
    with target.starter():
        prober.warm_up()
        for number in range(rounds):
            order = list(everything)
            shuffle(order)
            for settings in order:
                made = prober.probe(settings)
                times[settings].append(made.s_per_unit or float("inf"))
            progress.note(f"  sweep of {target.name}: round {number + 1} of {rounds}, {len(order)} settings")
    return times


def summary(name: str, tuning: Tuning, times: dict[Settings, list[float]]) -> dict[str, object]:
    """Found and default settings against the best of the sweep, timed by the second half of the rounds."""
    rounds = len(next(iter(times.values())))
    first = {s: statistics.median(values[: rounds // 2]) for s, values in times.items()}
    later = {s: statistics.median(values[rounds // 2 :]) for s, values in times.items()}
    best = min(first, key=lambda s: first[s])
    default, found = tuning.searched.space.current, tuning.searched.best
    kept = found if tuning.tuned.safe or tuning.tuned.semantic else default
    return {
        "workload": name,
        "settings": len(times),
        "search_s": round(tuning.searched.spent_s, 1),
        "probes": len(tuning.searched.probes),
        "best": words_of(best),
        "best_per_s": round(1 / later[best]),
        "found": words_of(found),
        "found_per_s": round(1 / later[found]),
        "kept": words_of(kept),
        "default": words_of(default),
        "default_per_s": round(1 / later[default]),
        "share_of_best": round(later[best] / later[found], 3),
        "against_default": round(later[default] / later[found], 3),
        "safe": tuning.tuned.safe_gain or "keep yours",
        "semantic": tuning.tuned.semantic_gain or "keep yours",
        "model_error": round(tuning.searched.model.error_fraction, 3) if tuning.searched.model else None,
    }


if __name__ == "__main__":
    raise SystemExit(main())
