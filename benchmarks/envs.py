"""How fast are the environments, compared with their twins, other libraries and memory bandwidth?

Each contestant runs in a separate process (benchmarks/programs/env_rounds.py). Rounds are short and
interleaved in random order, so that a busy moment of the machine affects all contestants. Steps/s are those
of the best round; "times as fast" is the median of the ratios within a round. The memory limit is the time to
copy the bytes of a step (observation, reward, flags) at this machine's measured copy bandwidth; an
environment that writes only what changed can beat it.

Run: python benchmarks/envs.py [--only cartpole,snake] [--peers-python .venv-peers/bin/python] [--json FILE]
Peers (jumanji, envpool, PufferLib) are in a separate Python environment, created by `make bench-peers`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotloop.machine.facts import cpu_name
from hotloop.machine.limits import limits

PROGRAM = Path(__file__).parent / "programs" / "env_rounds.py"
SIZES = (1, 64, 256, 4096)
SMALL = (1, 64, 256)  # for contestants that need seconds for one step of 4096 rows
CACHED_BYTES = 2 << 20  # largest output of a batch that stays in a cache


@dataclass
class Entry:
    """One row of a table."""

    name: str  # of the contestant in env_rounds.py
    label: str
    sizes: tuple[int, ...] = SIZES
    peer: bool = False  # runs in the peers' Python
    rates: dict[int, list[float]] = field(default_factory=dict)  # num_envs -> steps/s of each round
    row_bytes: int | None = None
    missing: str = ""


@dataclass(frozen=True)
class Target:
    """Goal: `ours` is at least `times` as fast as `other` at this size."""

    ours: str
    other: str
    num_envs: int
    times: float


@dataclass(frozen=True)
class Group:
    """A table; all entries are compared with the first one."""

    name: str
    title: str
    entries: tuple[Entry, ...]
    targets: tuple[Target, ...] = ()


def groups() -> list[Group]:
    return [
        Group(
            "cartpole",
            "CartPole, env steps/s",
            (
                Entry("cartpole", "hotloop"),
                Entry("cartpole-same-step", "hotloop, SAME_STEP"),
                Entry("cartpole-copies", "hotloop, returning copies"),
                Entry("cartpole-rules", "rules.py, the twin", SMALL),
                Entry("cartpole-sync", "Gymnasium SyncVectorEnv", SMALL),
                Entry("cartpole-numpy", "Gymnasium CartPoleVectorEnv"),
                Entry("cartpole-envpool", "envpool", peer=True),
                Entry("cartpole-puffer", "PufferLib, C", peer=True),
                Entry("cartpole-puffer-quiet", "PufferLib, C, log never read", peer=True),
            ),
            (
                Target("cartpole", "cartpole-puffer", 64, 1.0),
                Target("cartpole", "cartpole-puffer", 256, 1.0),
                Target("cartpole", "cartpole-puffer", 4096, 1.0),
            ),
        ),
        Group(
            "catch",
            "Catch, the environment to copy, env steps/s",
            (
                Entry("catch", "hotloop"),
                Entry("catch-copies", "hotloop, returning copies"),
                Entry("catch-rules", "rules, the twin", SMALL),
                Entry("catch-sync", "Gymnasium SyncVectorEnv over the twin", SMALL),
            ),
        ),
        Group(
            "snake",
            "Snake, env steps/s (12 x 12 and five float planes unless noted otherwise)",
            (
                Entry("snake-planes", "hotloop, five planes"),
                Entry("snake-grid", "hotloop, 10 x 10 bytes"),
                Entry("snake-features", "hotloop, 11 features"),
                Entry("snake-rules", "rules.py, the twin", SMALL),
                Entry("snake-sync", "Gymnasium SyncVectorEnv over the twin", SMALL),
                Entry("snake-jumanji", "jumanji, jit + vmap", peer=True),
                Entry("snake-jumanji-scan", "jumanji, 16 steps in one call", peer=True),
                Entry("snake-puffer", "PufferLib, C, 11 x 11 bytes", peer=True),
            ),
            (
                Target("snake-planes", "snake-jumanji", 256, 8.0),
                Target("snake-planes", "snake-jumanji", 4096, 8.0),
                Target("snake-grid", "snake-puffer", 64, 1.0),
                Target("snake-grid", "snake-puffer", 256, 1.0),
                Target("snake-grid", "snake-puffer", 4096, 1.0),
            ),
        ),
        Group(
            "flood",
            "Flood fill, boards/s",
            (
                Entry("flood-compiled", "hotloop, compiled", (1, 256)),
                Entry("flood-python", "breadth-first search in Python", (1, 256)),
            ),
            (Target("flood-compiled", "flood-python", 256, 50.0),),
        ),
        Group(
            "ricochet",
            "Ricochet with pictures, env steps/s",
            (
                Entry("ricochet-compiled", "hotloop, compiled drawing", SMALL),
                Entry("ricochet-pil", "PIL", SMALL),
            ),
            (Target("ricochet-compiled", "ricochet-pil", 64, 20.0),),
        ),
        Group(
            "petri",
            "Petri net, the cluster tool, env steps/s",
            (
                Entry("petri-turbo", "hotloop, turbo"),
                Entry("petri-plain", "plain", SMALL),
            ),
            (Target("petri-turbo", "petri-plain", 256, 10.0),),
        ),
        Group(
            "platformer",
            "Platformer and Mario, game frames/s (preprocessing: 4 frames a step, 84 x 84 gray, stack of 4)",
            (
                Entry("platformer", "hotloop, game and preprocessing in one kernel", SMALL),
                Entry("platformer-copies", "hotloop, the same, returning copies", SMALL),
                Entry("platformer-raw", "hotloop, RGB frames 240 x 256, no preprocessing", SMALL),
                Entry("platformer-wrappers", "Gymnasium's wrappers around our RGB frames", (1,)),
                Entry("platformer-rules", "rules.py with plain preprocessing, the twin", (1,)),
                Entry("mario", "Super Mario Bros in its emulator, our preprocessing", (1,)),
                Entry("mario-raw", "Super Mario Bros in its emulator, RGB frames", (1,)),
            ),
            (
                Target("platformer", "mario", 1, 10.0),
                Target("platformer", "mario-raw", 1, 10.0),
            ),
        ),
        Group(
            "track",
            "Track, env steps/s",
            (
                Entry("track-near", "hotloop, searching near the last segment"),
                Entry("track-all", "hotloop, searching all segments"),
                Entry("track-rules", "rules.py, the twin", (1, 64)),
            ),
            (Target("track-near", "track-rules", 64, 50.0),),
        ),
    ]


class Contestant:
    """The process behind an entry."""

    def __init__(self, entry: Entry, python: str, folder: str):
        self.entry = entry
        self.process = subprocess.Popen(
            [python, str(PROGRAM), entry.name],
            cwd=folder,  # PufferLib leaves a link where it is imported
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def round(self, num_envs: int, seconds: float, keep: bool = True) -> None:
        if self.entry.missing:
            return
        assert self.process.stdin and self.process.stdout
        answer: dict[str, Any] = {"missing": "its process died"}
        try:
            print(num_envs, seconds, file=self.process.stdin, flush=True)
            answer = json.loads(self.process.stdout.readline() or json.dumps(answer))
        except BrokenPipeError:
            pass
        if "missing" in answer:
            self.entry.missing = answer["missing"]
        elif keep:
            self.entry.rates.setdefault(num_envs, []).append(answer["steps"] / answer["seconds"])
            self.entry.row_bytes = answer["row_bytes"]

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


def measure(group: Group, peers_python: str | None, rounds: int, seconds: float) -> None:
    order = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        contestants = []
        for entry in group.entries:
            python = peers_python if entry.peer else sys.executable
            if python is None:
                entry.missing = "no --peers-python given; create one with `make bench-peers`"
            else:
                contestants.append(Contestant(entry, python, folder))
        for num_envs in SIZES:
            taking_part = [one for one in contestants if num_envs in one.entry.sizes]
            for one in taking_part:
                one.round(num_envs, 0.01, keep=False)  # created and compiled before the rounds
            for _ in range(rounds):
                order.shuffle(taking_part)
                for one in taking_part:
                    one.round(num_envs, seconds)
        for one in contestants:
            one.close()


def ratio(ours: Entry, other: Entry, num_envs: int) -> float | None:
    """How many times as fast ours is: the median over rounds; None if one of the two was not measured."""
    pairs = list(zip(ours.rates.get(num_envs, []), other.rates.get(num_envs, []), strict=False))
    return statistics.median(a / b for a, b in pairs) if pairs else None


def shown_rate(rate: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:.3g} {unit}"
    return f"{rate:.3g}"


def cell(value: float | None) -> str:
    return "" if value is None else shown_times(value)


def shown_times(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value >= 10 else f"{value:.2f}"


def print_group(group: Group) -> None:
    first = group.entries[0]
    limits_shown: set[int] = set()
    print(f"\n## {group.title}\n")
    heads = [f"{size} envs" for size in SIZES]
    print("| | " + " | ".join(heads) + " | " + " | ".join(f"x {size}" for size in SIZES) + " |")
    print("| --- |" + " ---: |" * (2 * len(SIZES)))
    for entry in group.entries:
        if entry.missing:
            print(f"| {entry.label} | not measured: {entry.missing} |" + " |" * (2 * len(SIZES) - 1))
            continue
        rates = [shown_rate(max(entry.rates[size])) if size in entry.rates else "" for size in SIZES]
        against = ["" if entry is first else cell(ratio(first, entry, size)) for size in SIZES]
        print(f"| {entry.label} | " + " | ".join(rates) + " | " + " | ".join(against) + " |")
        if entry.row_bytes and entry.row_bytes not in limits_shown:
            limits_shown.add(entry.row_bytes)
            print_limit(entry)
    print("\n(x: how many times as fast the first row is, the median over interleaved rounds)")


def print_limit(entry: Entry) -> None:
    """Print a line below an entry: the memory limit, and how far the entry is from it."""
    assert entry.row_bytes
    known = limits()
    rates, times = [], []
    for size in SIZES:
        if size not in entry.rates:
            rates.append("")
            times.append("")
            continue
        large = entry.row_bytes * size > CACHED_BYTES
        limit = known["copy_large_bytes_per_s" if large else "copy_bytes_per_s"] / entry.row_bytes
        rates.append(shown_rate(limit))
        times.append(f"{shown_times(limit / max(entry.rates[size]))} from it")
    print(
        f"| - {entry.row_bytes} bytes a step, all copied | "
        + " | ".join(rates)
        + " | "
        + " | ".join(times)
        + " |"
    )


def print_targets(chosen: list[Group]) -> None:
    if not any(group.targets for group in chosen):
        return
    print("\n## To reach\n")
    for group in chosen:
        by_name = {entry.name: entry for entry in group.entries}
        for target in group.targets:
            ours, other = by_name[target.ours], by_name[target.other]
            seen = ratio(ours, other, target.num_envs)
            said = (
                "not measured"
                if seen is None
                else f"{shown_times(seen)}, {'reached' if seen >= target.times else 'MISSED'}"
            )
            print(
                f"- {group.name}, {target.num_envs} envs: {ours.label} at least {target.times:g} x "
                f"{other.label}: {said}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", help="names of groups, separated by commas")
    parser.add_argument("--peers-python", help="a Python that has jumanji, envpool and PufferLib")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.15, help="length of a round")
    parser.add_argument("--json", type=Path, help="write all rates to this file")
    options = parser.parse_args()
    known = groups()
    wanted = options.only.split(",") if options.only else [group.name for group in known]
    unknown = set(wanted) - {group.name for group in known}
    if unknown:
        parser.error(f"no group {', '.join(unknown)}; there are {', '.join(group.name for group in known)}")
    chosen = [group for group in known if group.name in wanted]
    peers = str(Path(options.peers_python).absolute()) if options.peers_python else None
    print(f"{cpu_name()}; best of {options.rounds} interleaved rounds of {options.seconds} s")
    for group in chosen:
        measure(group, peers, options.rounds, options.seconds)
        print_group(group)
    print_targets(chosen)
    if options.json:
        entries = [entry for group in chosen for entry in group.entries]
        data = {e.name: {"rates": e.rates, "row_bytes": e.row_bytes, "missing": e.missing} for e in entries}
        options.json.write_text(json.dumps(data, indent=1))


if __name__ == "__main__":
    main()
