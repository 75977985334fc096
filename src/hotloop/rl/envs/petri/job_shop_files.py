"""Reads job shops from the two text formats in which benchmark instances are published.

Both start with the number of jobs and of machines. The standard format goes on with one line for each job:
machine and duration of each operation, in order, machines numbered from 0. Taillard's format has a table of
durations and then one of machines, numbered from 1. Rows may be joined or broken if it is
clear which format it is. Comments
(from `#`) and lines with other text, such as headings, are skipped; if rows are missing then, the error
names the first line with numbers that was. A file with several instances has a line
`instance NAME` before each, as in the OR-Library, or Taillard's heading `Nb of jobs, ...`; those are numbered
from 1.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from hotloop._util.errors import HotloopError
from hotloop._util.read_files import Reader
from hotloop._util.units import counted
from hotloop.rl.envs.petri.job_shop import job_shop
from hotloop.rl.envs.petri.net import Net

_FILE = Reader(16 << 20, remedy="pass a text file with a job shop")
_INSTANCE = re.compile(r"^\W*instance[\s:]+(\S+)\s*$", re.IGNORECASE)
_HEADING = re.compile(r"^\s*nb of jobs\b", re.IGNORECASE)  # Taillard's
_Rows = list[list[int]]


def read_job_shop(path: str | os.PathLike[str], instance: str | None = None) -> Net:
    """Read a job shop from a file; `instance` chooses one by name if the file has several."""
    text = _FILE.read_text(Path(path))
    return parse_job_shop(text, source=os.fspath(path), instance=instance)


def parse_job_shop(text: str, *, source: str = "this job shop", instance: str | None = None) -> Net:
    """Read a job shop from text; error messages call it `source`. The net has the instance's name."""
    name, rows = _chosen(_instances(text), source, instance)
    name = name or Path(source).stem
    if not rows or len(rows[0]) < 2:
        raise HotloopError(
            f"{source} does not start with the number of jobs and machines{_skipped_words(text)}; use the "
            "standard job-shop format: a line such as '6 6', then for each job a line of machines and "
            "durations."
        )
    (jobs, machines, *more), *table = rows
    table = table or [more]  # all on one line
    if jobs < 1 or machines < 1:
        raise HotloopError(f"{source} has {jobs} jobs and {machines} machines; use at least 1 of each.")
    is_clear = _is_standard(table, jobs) or (
        _is_taillard(table, jobs, machines) and _visits_each_machine(table[jobs:], 1, machines)
    )
    if not is_clear:
        table = _refolded(table, jobs, machines) or table
    if _is_standard(table, jobs):
        routes, durations_s = [row[::2] for row in table], [row[1::2] for row in table]
        first = 0
    elif _is_taillard(table, jobs, machines):
        routes, durations_s = table[jobs:], table[:jobs]
        first = 1
    else:
        widths = [len(row) for row in table if row]
        raise HotloopError(
            f"{source} announces {counted(jobs, 'job')} on {counted(machines, 'machine')} and goes on with "
            f"{counted(len(widths), 'row')} of {_span(widths)} {'number' if {*widths} == {1} else 'numbers'}"
            f"{_skipped_words(text)}; use {counted(jobs, 'row')} of machines and durations in "
            f"pairs, or Taillard's {counted(jobs, 'row')} of {counted(machines, 'duration')} and then as "
            "many of machines."
        )
    for job, route in enumerate(routes):
        for machine in route:
            if not first <= machine < machines + first:
                raise HotloopError(
                    f"{source} sends job {job} to machine {machine}; with {machines} machines, this "
                    f"format numbers them from {first} to {machines + first - 1}."
                )
    return job_shop([[machine - first for machine in route] for route in routes], durations_s, name=name)


def _is_standard(table: _Rows, jobs: int) -> bool:
    return len(table) == jobs and all(row and len(row) % 2 == 0 for row in table)


def _is_taillard(table: _Rows, jobs: int, machines: int) -> bool:
    return len(table) == 2 * jobs and all(len(row) == machines for row in table)


def _refolded(table: _Rows, jobs: int, machines: int) -> _Rows | None:
    """Return rows of the right lengths from rows that were joined or broken; None unless it is clear how.

    In the standard format every job visits each of the machines 0, 1, ... once; in Taillard's, 1, 2, ...
    """
    numbers = [number for row in table for number in row]
    if len(numbers) != 2 * jobs * machines:
        return None
    standard, taillard = (
        [numbers[at : at + width] for at in range(0, len(numbers), width)]
        for width in (2 * machines, machines)
    )
    is_standard = _visits_each_machine([row[::2] for row in standard], 0, machines)
    is_taillard = _visits_each_machine(taillard[jobs:], 1, machines)
    if is_standard == is_taillard:
        return None
    return standard if is_standard else taillard


def _visits_each_machine(routes: _Rows, first: int, machines: int) -> bool:
    """Whether every job visits each machine once; they are numbered from `first`."""
    return all(sorted(route) == list(range(first, first + machines)) for route in routes)


def _skipped_words(text: str) -> str:
    """Names the first line that was skipped although it starts with a number; "" if there is none."""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.partition("#")[0].strip()
        if re.match(r"[-+]?\d", line) and not all(map(_is_whole, line.split())):
            return f" (line {number}, {line[:40]!r}, is skipped because not all of it is whole numbers)"
    return ""


def _is_whole(word: str) -> bool:
    return word.removeprefix("-").isdecimal() and word.isascii()


def _instances(text: str) -> list[tuple[str, _Rows]]:
    """Return the rows of whole numbers under each name; "" is the name of what comes before the first."""
    found: list[tuple[str, _Rows]] = [("", [])]
    headings = 0
    for raw in text.splitlines():
        heading, line = _INSTANCE.match(raw), raw.partition("#")[0]
        if heading:
            found.append((heading[1], []))
        elif _HEADING.match(line):
            headings += 1
            found.append((str(headings), []))
        words = line.split()
        if words and all(map(_is_whole, words)):
            found[-1][1].append([int(word) for word in words])
    found = [one for one in found if one[1]]
    return [("", found[0][1])] if headings and len(found) == 1 else found


def _chosen(found: list[tuple[str, _Rows]], source: str, instance: str | None) -> tuple[str, _Rows]:
    if instance is None and len(found) < 2:
        return found[0] if found else ("", [])
    names = [name for name, _ in found if name]
    if names.count(instance or "") > 1:
        raise HotloopError(f"{source} has the instance {instance!r} twice; give each a name of its own.")
    for name, rows in found:
        if name == instance:
            return name, rows
    wrong = f"has no instance {instance!r}" if instance else f"has {counted(len(names), 'instance')}"
    some = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
    raise HotloopError(f"{source} {wrong}; choose one of {some or 'none: it has no names'}.")


def _span(lengths: list[int]) -> str:
    if not lengths:
        return "0"
    return str(lengths[0]) if min(lengths) == max(lengths) else f"{min(lengths)} to {max(lengths)}"
