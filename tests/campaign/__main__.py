"""`python -m tests.campaign --minutes 30 --seed 1 --kinds mutate_files disk_full`.

Runs the drivers in turn for the given time and prints a table: what was tried, how often, how often it
failed, the first failure of each kind, and the seed that repeats it. Exit code 1 if anything failed.

A driver is a module of this folder with `run(seed, seconds, count) -> Iterator[Case]`: one case for each seed
from `seed` up, until the time is over or, with a count, until that many are done; and at least one. So
`--seed N --kinds DRIVER --minutes 0` repeats a case, and `--count kill=1000 signals=20000` makes that many.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.campaign.case import Case

# To add a driver, write the module and add its name here.
DRIVERS = (
    "mutate_files",
    "disk_full",
    "kill",
    "signals",
    "clocks",
    "collectors",
    "trainers",
)
TURN_S = 60.0  # then the next driver has its turn
LATER_SEEDS = 1_000_000  # from one turn to the next


@dataclass
class Row:
    """What happened to the cases of one kind."""

    driver: str
    tried: int = 0
    failed: int = 0
    worst: str = ""
    seed: int | None = None

    def add(self, case: Case) -> None:
        self.tried += 1
        if case.failure is not None:
            self.failed += 1
            if self.seed is None:
                self.worst, self.seed = case.failure, case.seed


def counted_cases(counts: dict[str, int], seed: int) -> Iterator[tuple[str, Case]]:
    """So many cases of each driver."""
    for name, count in counts.items():
        for case in importlib.import_module(f"tests.campaign.{name}").run(seed, 0.0, count):
            yield name, case


def cases(drivers: Iterable[str], seed: int, minutes: float) -> Iterator[tuple[str, Case]]:
    """Cases of all drivers, in turns, until the time is over."""
    modules = {name: importlib.import_module(f"tests.campaign.{name}") for name in drivers}
    end_s = time.monotonic() + 60 * minutes
    turn_s = min(TURN_S, 60 * minutes / len(modules))
    for turn in range(sys.maxsize):
        for name, module in modules.items():
            for case in module.run(
                seed + turn * LATER_SEEDS, min(turn_s, max(end_s - time.monotonic(), 0.0))
            ):
                yield name, case
        if time.monotonic() >= end_s:
            return


def table(rows: dict[str, Row]) -> str:
    """The rows as text."""
    width = max(map(len, [*rows, "kind"]))
    lines = [f"{'kind':<{width}}  {'tried':>8}  {'failed':>6}  seed, worst case"]
    for kind, row in sorted(rows.items()):
        worst = "" if row.seed is None else f"{row.seed} ({row.driver}): {row.worst}"
        lines.append(f"{kind:<{width}}  {row.tried:>8,}  {row.failed:>6,}  {worst}".rstrip())
    tried, failed = (sum(getattr(row, name) for row in rows.values()) for name in ("tried", "failed"))
    return "\n".join([*lines, f"{'all':<{width}}  {tried:>8,}  {failed:>6,}"])


def _count(text: str) -> tuple[str, int]:
    driver, _, number = text.partition("=")
    if driver not in DRIVERS or not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not DRIVER=N with one of {', '.join(DRIVERS)}")
    return driver, int(number)


def main(words: list[str] | None = None) -> int:
    """Run the campaign; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description="Tries to break hotloop.")
    parser.add_argument("--minutes", type=float, default=10.0, help="time for all drivers together")
    parser.add_argument("--seed", type=int, default=None, help="seed of the first case (default: the time)")
    parser.add_argument("--kinds", nargs="+", choices=DRIVERS, default=list(DRIVERS), help="drivers to run")
    parser.add_argument(
        "--count", nargs="+", type=_count, metavar="DRIVER=N", help="cases, instead of a time"
    )
    given = parser.parse_args(words)
    seed = int(time.time()) % 1_000_000_000 if given.seed is None else given.seed
    rows: dict[str, Row] = {}
    said_s = time.monotonic()
    made = counted_cases(dict(given.count), seed) if given.count else cases(given.kinds, seed, given.minutes)
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends it; the table is printed all the same
        for driver, case in made:
            rows.setdefault(case.kind, Row(driver)).add(case)
            if case.failure is not None and rows[case.kind].failed <= 3:
                print(f"{case.kind}, seed {case.seed}: {case.failure}", file=sys.stderr, flush=True)
            if time.monotonic() - said_s > 60:
                said_s = time.monotonic()
                tried, failed = sum(r.tried for r in rows.values()), sum(r.failed for r in rows.values())
                print(f"{tried:,} tried, {failed:,} failed", file=sys.stderr, flush=True)
    print(f"seed {seed}\n{table(rows)}")
    return 1 if any(row.failed for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
