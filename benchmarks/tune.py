"""Does `hotloop tune` find in 60 s of search what an exhaustive sweep finds? At least 95 % of its throughput.

    python benchmarks/tune.py                # petri and snake, about 25 minutes
    python benchmarks/tune.py --workloads petri --rounds 4 --turns 16

The tuner searches first. Then every combination of settings is run `--rounds` times in random order to find
the fastest, which may have been lucky. So it, the settings found by the tuner, those that it kept after the
comparison, and the defaults are timed again in `--turns` turns; ratios compare runs of the same turn.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.analysis.rank_intervals import hodges_lehmann, signed_rank_interval
from hotloop.tuning.space import Settings, words_of
from hotloop.workflows.experiments import Progress
from hotloop.workflows.probes import ProbeLength
from hotloop.workflows.train import config_class
from hotloop.workflows.tune import Prober, TuneTerms, tune
from hotloop.workflows.tune_workload import WorkloadTarget

SETTINGS = {"petri": {"learner": "fused", "n_envs": 16}, "ricochet": {}, "snake": {}}
LEAST_SHARE, TOLERANCE = 0.95, 0.03
SEARCH_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", nargs="+", default=["petri", "snake"])
    parser.add_argument("--rounds", type=int, default=8, help="rounds of the sweep")
    parser.add_argument("--turns", type=int, default=32, help="turns of the final timing")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of work in a run of the sweep")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows, passed = [], True
    for name in given.workloads:
        row = compared(name, given.rounds, given.turns, given.seconds, given.seed)
        rows.append(row)
        enough = row["found_over_best"][0] >= LEAST_SHARE
        passed &= enough and row["kept_over_default"][0] >= 1 - TOLERANCE
        print(json.dumps(row, indent=1), flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


def compared(name: str, rounds: int, turns: int, seconds: float, seed: int) -> dict[str, Any]:
    """Tune, sweep, and compare the results."""
    progress = Progress(stream=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="hotloop-tune-") as temporary:
        place = Path(temporary)
        target = WorkloadTarget(name, config_class(name)(**SETTINGS[name]))
        tuning = tune(target, TuneTerms(2 * SEARCH_S, seed=seed), place / "tune", progress)
        everything = [s for s in target.space.all_settings() if target.fits(s, ())]
        with target.starter():
            timing = Timing(target, place / "sweep", seconds, seed, progress)
            swept = timing.in_turns(everything, rounds)
            best = min(swept, key=lambda s: statistics.median(swept[s]))
            default, found = tuning.searched.space.current, tuning.searched.best
            kept = found if tuning.tuned.safe or tuning.tuned.semantic else default
            times = timing.in_turns(list(dict.fromkeys((best, found, kept, default))), turns)

    def per_s(settings: Settings) -> int:
        return round(1 / statistics.median(times[settings]))

    return {
        "workload": name,
        "settings": len(everything),
        "search_s": round(tuning.searched.spent_s, 1),
        "probes": len(tuning.searched.probes),
        "best": words_of(best),
        "best_per_s": per_s(best),
        "found": words_of(found),
        "found_per_s": per_s(found),
        "kept": words_of(kept),
        "default": words_of(default),
        "default_per_s": per_s(default),
        "found_over_best": ratio(times[best], times[found]),
        "kept_over_default": ratio(times[default], times[kept]),
        "safe": tuning.tuned.safe_gain or "keep yours",
        "semantic": tuning.tuned.semantic_gain or "keep yours",
        "model_error": round(tuning.searched.model.error_fraction, 3) if tuning.searched.model else None,
    }


class Timing:
    """Times runs of different settings in turn, in seconds per env step."""

    def __init__(self, target: WorkloadTarget, place: Path, seconds: float, seed: int, progress: Progress):
        (place / "probes").mkdir(parents=True)
        length = ProbeLength(seconds, 20 * seconds, target.cycles)
        self._prober = Prober(target, place, length, progress, TuneTerms(600.0))
        self._shuffle = random.Random(seed).shuffle
        self._note = progress.note
        self._prober.warm_up()

    def in_turns(self, settings: list[Settings], turns: int) -> dict[Settings, list[float]]:
        """Time every setting `turns` times; each turn has a new random order."""
        times: dict[Settings, list[float]] = {one: [] for one in settings}
        for turn in range(turns):
            order = list(settings)
            self._shuffle(order)
            for one in order:
                times[one].append(self._prober.probe(one).s_per_unit or float("inf"))
            self._note(f"  turn {turn + 1} of {turns}, {len(order)} settings")
        return times


def ratio(above: list[float], below: list[float]) -> list[float]:
    """The typical ratio of the two in one turn, with the ends of its 95 % interval."""
    logs = np.log(np.array(above) / np.array(below))
    low, high = signed_rank_interval(logs, 0.05) or (-math.inf, math.inf)
    return [round(math.exp(value), 3) for value in (hodges_lehmann(logs), low, high)]


if __name__ == "__main__":
    raise SystemExit(main())
