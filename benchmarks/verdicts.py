"""How often are verdicts right on this machine, compared with the usual ways to compare two programs?

Real processes: a child that counts for about 0.1 s, compared with itself and with one that counts 5, 10 or
30 % further. First live comparisons, as the lab makes them. Then all runs are used once more, in order of
time: a window of runs is assigned to A and B in the order in which each method would have run them, and the
times of B are scaled by its extra work. So all methods see the same machine.
Run: python benchmarks/verdicts.py [--minutes 5] [--save FILE | --load FILE]
The simulated table of docs/verdicts.md: python benchmarks/verdicts.py --simulate 4000
The same on nodes of a cluster that differ by 30 %: python benchmarks/verdicts.py --simulate 1000 --nodes 5
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy import stats

from hotloop.analysis.stopping_rule import RUNS
from hotloop.analysis.verdict import Verdict, decide
from hotloop.machine.facts import cpu_name
from hotloop.testing.noise import NOISY, QUIET, VERY_NOISY, on_nodes, paired_times

DIFFERENCES = (0.0, 0.05, 0.10, 0.30)  # of B's work
LIVE_ORDER = (0.0, 0.05, 0.0, 0.10, 0.05, 0.30)  # small differences more often
SEGMENT_S = 0.1
RUNS_PER_SIDE = 20  # of the other methods; pyperf's default number of processes
STEP = 8  # runs from one window to the next
CHILD = """
import sys, time
n = int(sys.argv[1])
def count(n):
    i = 0
    while i < n:
        i += 1
count(n // 10)
start = time.perf_counter()
count(n)
print(time.perf_counter() - start)
"""


@dataclass
class Claim:
    """Result of one comparison: the sign of the change in time that it claims (0: none), and its interval."""

    sign: int
    low: float | None = None  # of B / A
    high: float | None = None
    runs: int = 2 * RUNS_PER_SIDE


@dataclass
class Tally:
    """Many comparisons of one kind."""

    truth: float  # B / A
    said: list[Claim] = field(default_factory=list)

    def share(self, sign: int) -> float:
        return sum(s.sign == sign for s in self.said) / len(self.said) if self.said else math.nan

    def covered(self) -> float:
        known = [s for s in self.said if s.low is not None and s.high is not None]
        if not known:
            return math.nan
        return sum(s.low <= self.truth <= s.high for s in known) / len(known)  # type: ignore[operator]


def child_s(counts: int) -> float:
    """Seconds that a fresh process needs to count that far."""
    words = [sys.executable, "-I", "-S", "-c", CHILD, str(counts)]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def calibrate() -> int:
    """Counts that take about SEGMENT_S."""
    tries = sorted(child_s(1_000_000) for _ in range(5))
    return round(1_000_000 * SEGMENT_S / tries[2])


def from_verdict(verdict: Verdict) -> Claim:
    sign = {"faster": -1, "slower": 1}.get(verdict.word, 0)
    if verdict.change is None:
        return Claim(sign, runs=2 * verdict.pairs)
    return Claim(sign, 1 + verdict.change.low, 1 + verdict.change.high, 2 * verdict.pairs)


def live(minutes: float, coins: random.Random) -> tuple[dict[float, Tally], list[float]]:
    """Make comparisons until the time is up; also returns the time per count of every run, in order."""
    counts = calibrate()
    tallies = {d: Tally(round(counts * (1 + d)) / counts) for d in DIFFERENCES}
    rates: list[float] = []
    end = time.monotonic() + 60 * minutes
    number = 0
    while time.monotonic() < end:
        difference = LIVE_ORDER[number % len(LIVE_ORDER)]
        work = (counts, round(counts * (1 + difference)))
        pairs: list[tuple[float, float]] = []
        while True:
            times = [0.0, 0.0]
            for side in coins.sample((0, 1), 2):
                times[side] = child_s(work[side])
                rates.append(times[side] / work[side])
            pairs.append((times[0], times[1]))
            decision = decide(pairs)
            if not decision.go_on:
                break
        tallies[difference].said.append(from_verdict(decision.verdict))
        number += 1
        left = max(end - time.monotonic(), 0)
        says = f"{difference:4.0%} planted: {decision.verdict.summary} ({len(pairs)} pairs)"
        print(f"{number:4d}  {says:<60} {left:4.0f} s left", file=sys.stderr, flush=True)
    return tallies, rates


# Each method: the runs of a window (time per count, in order), B's work relative to A's, coins -> its claim.
Way = Callable[[np.ndarray, float, np.random.Generator], Claim]


def hotloop_way(rates: np.ndarray, truth: float, coins: np.random.Generator) -> Claim:
    """Interleaved pairs in random order, exact interval, early looks."""
    pairs = coins.permuted(rates.reshape(-1, 2), axis=1) * [1.0, truth]
    for look in RUNS.looks:
        decision = decide(pairs[:look].tolist())
        if not decision.go_on:
            break
    return from_verdict(decision.verdict)


def blocks(rates: np.ndarray, truth: float) -> tuple[np.ndarray, np.ndarray]:
    """All A, then all B."""
    return rates[:RUNS_PER_SIDE], rates[RUNS_PER_SIDE : 2 * RUNS_PER_SIDE] * truth


def means_way(rates: np.ndarray, truth: float, _: np.random.Generator) -> Claim:
    """All A, then all B; claims a difference if the means differ by 3 % or more."""
    a, b = blocks(rates, truth)
    ratio = b.mean() / a.mean()
    return Claim(int(np.sign(ratio - 1)) if abs(ratio - 1) >= 0.03 else 0)


def hyperfine_way(rates: np.ndarray, truth: float, _: np.random.Generator) -> Claim:
    """All A, then all B; the ratio of the means plus or minus its propagated standard deviation."""
    a, b = blocks(rates, truth)
    ratio = b.mean() / a.mean()
    spread = ratio * math.hypot(a.std(ddof=1) / a.mean(), b.std(ddof=1) / b.mean())
    low, high = ratio - spread, ratio + spread
    return Claim(1 if low > 1 else -1 if high < 1 else 0, low, high)


def pyperf_way(rates: np.ndarray, truth: float, _: np.random.Generator) -> Claim:
    """All A, then all B; Student's two-sample t test at 95 %."""
    a, b = blocks(rates, truth)
    test = stats.ttest_ind(b, a)
    ends = test.confidence_interval(0.95)
    sign = int(np.sign(b.mean() - a.mean())) if test.pvalue < 0.05 else 0
    return Claim(sign, 1 + ends.low / a.mean(), 1 + ends.high / a.mean())


WAYS: dict[str, Way] = {
    "hotloop: pairs, signed ranks, looks": hotloop_way,
    "means of all A, all B; 3 % believed": means_way,
    "hyperfine: all A, all B; mean +- sd": hyperfine_way,
    "pyperf: all A, all B; t test": pyperf_way,
}


def replay(rates: list[float], seed: int) -> dict[str, dict[float, Tally]]:
    """Apply every method to every window of the runs."""
    window = 2 * RUNS.most
    series = np.array(rates)
    starts = range(0, len(series) - window + 1, STEP)
    found = {name: {d: Tally(1 + d) for d in DIFFERENCES} for name in WAYS}
    coins = np.random.default_rng(seed)
    for start in starts:
        for difference in DIFFERENCES:
            for name, way in WAYS.items():
                said = way(series[start : start + window], 1 + difference, coins)
                found[name][difference].said.append(said)
    return found


def noise_words(rates: list[float]) -> str:
    """The machine's noise in these runs."""
    logs = np.log(rates)
    neighbours = np.corrcoef(logs[1:], logs[:-1])[0, 1]
    return f"sd of the log of a run's time {logs.std():.3f}, neighbours correlate {neighbours:.2f}"


def percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"


def print_live(tallies: dict[float, Tally]) -> None:
    print("| planted | comparisons | called slower | called faster | covered | runs each (mean) |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for difference, tally in tallies.items():
        if tally.said:
            runs = sum(s.runs for s in tally.said) / len(tally.said) / 2
            cells = [f"{difference:.0%}".replace("%", " %"), str(len(tally.said)), percent(tally.share(1))]
            cells += [percent(tally.share(-1)), percent(tally.covered()), f"{runs:.1f}"]
            print(f"| {' | '.join(cells)} |")


def print_replay(found: dict[str, dict[float, Tally]]) -> None:
    heads = [f"{d:.0%} found".replace("%", " %") for d in DIFFERENCES[1:]]
    print(f"| way | A/A called different | {' | '.join(heads)} | wrong sign | covered |")
    print(f"| --- | {' | '.join(['---:'] * 6)} |")
    for name, tallies in found.items():
        same = tallies[0.0]
        cells = [percent(same.share(1) + same.share(-1))]
        cells += [percent(tallies[d].share(1)) for d in DIFFERENCES[1:]]
        cells.append(percent(float(np.mean([tallies[d].share(-1) for d in DIFFERENCES[1:]]))))
        cells.append(percent(float(np.mean([t.covered() for t in tallies.values()]))))
        print(f"| {name} | {' | '.join(cells)} |")


def print_simulated(repeats: int, nodes: int = 1) -> None:
    """Whole comparisons on simulated machines, or on nodes of a cluster that differ by 30 %."""
    print("| machine | planted | slower | faster | no difference | undecided | covered | pairs (mean) |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, noise in (("quiet", QUIET), ("noisy", NOISY), ("very noisy", VERY_NOISY)):
        for change in (0.0, 0.03, 0.05, 0.10, 0.30):
            rng = np.random.default_rng(1)
            times = paired_times(rng, repeats, RUNS.most, noise, change)
            verdicts = []
            for one in times:
                there, names = on_nodes(rng, one, nodes)
                pairs = there.tolist()
                for look in RUNS.looks:
                    decision = decide(pairs[:look], nodes=names[:look])
                    if not decision.go_on:
                        break
                verdicts.append(decision.verdict)
            words = [v.word for v in verdicts]
            shares = [words.count(w) / repeats for w in ("slower", "faster", "no_difference", "undecided")]
            tally = Tally(1 + change, [from_verdict(v) for v in verdicts])
            cells = [name, f"{change:.0%}".replace("%", " %"), *(percent(s) for s in shares)]
            cells += [percent(tally.covered()), f"{np.mean([v.pairs for v in verdicts]):.1f}"]
            print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=None, help="seed of the coin flips; random by default")
    parser.add_argument("--save", type=Path, help="write the time per count of every run to this file (JSON)")
    parser.add_argument("--load", type=Path, help="use saved runs instead of making new ones")
    parser.add_argument("--simulate", type=int, metavar="N", help="N simulated comparisons of each kind")
    parser.add_argument("--nodes", type=int, default=1, help="of the simulated cluster")
    args = parser.parse_args()
    if args.simulate:
        print_simulated(args.simulate, args.nodes)
        return
    print(f"{cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} at the start\n")
    if args.load:
        rates = json.loads(args.load.read_text())
    else:
        tallies, rates = live(args.minutes, random.Random(args.seed))
        if args.save:
            args.save.write_text(json.dumps(rates))
        print(f"Live comparisons, {len(rates)} runs of {SEGMENT_S} s; {noise_words(rates)}:\n")
        print_live(tallies)
    windows = max((len(rates) - 2 * RUNS.most) // STEP + 1, 0)
    print(f"\nThe same runs, {windows} overlapping windows; {noise_words(rates)}:\n")
    if windows:
        print_replay(replay(rates, args.seed or 0))
    else:
        print(f"Too few runs: {len(rates)} made, {2 * RUNS.most} are needed for a window.")


if __name__ == "__main__":
    main()
