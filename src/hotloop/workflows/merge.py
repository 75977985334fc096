"""`hotloop merge`: joins captures that several computers made of one run."""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop._util.errors import CaptureError, HotloopError
from hotloop._util.files import create_exclusively, write_atomically
from hotloop._util.read_files import files_in, json_text
from hotloop._util.units import duration
from hotloop._util.visible import visible
from hotloop.analysis.collective_clocks import Offset, offset_between
from hotloop.capture.facts import read_facts
from hotloop.capture.folder import new_folder
from hotloop.capture.messages import MessageLog, read_messages
from hotloop.capture.model import Capture, Process
from hotloop.capture.nodes import FOLDER as NODES
from hotloop.capture.open_capture import open_capture
from hotloop.capture.reader import read_part
from hotloop.capture.summary import FOLDER as SUMMARIES
from hotloop.capture.summary import Summary, fold, load_summary, save_summary, to_json

FOLDERS = ("parts", "messages", "libraries", "problems", "lines", NODES, SUMMARIES)


@dataclass(frozen=True)
class Merged:
    """Where the joined capture is, and what is to be said about it."""

    folder: Path
    hosts: tuple[str, ...]  # the first is the one whose clock holds
    processes: int
    notes: tuple[str, ...]  # how clocks were aligned, what was left out


def merge_captures(sources: Sequence[str], into: Path | None) -> Merged:
    """Join capture folders into a new one; the sources stay as they are.

    Raises HotloopError for fewer than two captures, for something else than a capture folder, and for a
    folder that exists.
    """
    if len(sources) < 2:
        raise HotloopError(
            "merge needs at least two captures; name them, as in: hotloop merge node0 node1 --capture all"
        )
    folders = [Path(source) for source in sources]
    resolved = [folder.resolve() for folder in folders]
    for number, folder in enumerate(folders):
        if resolved[number] in resolved[:number]:
            raise HotloopError(f"{folder} is named twice; name each capture once.")
        if folder.is_file():
            raise HotloopError(f"{folder} is a one-file export; merge joins capture folders.")
    facts = [read_facts(folder) for folder in folders]
    order = sorted(range(len(folders)), key=lambda number: facts[number].get("started_at_ns") or 0)
    folders, facts = [folders[n] for n in order], [facts[n] for n in order]
    captures = [open_capture(str(folder)) for folder in folders]
    for folder, capture in zip(folders, captures, strict=True):
        if not capture.processes:
            raise HotloopError(f"{folder} has no process that can be read; leave it out.")
    target = into or new_folder("merged")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise HotloopError(f"{target} already exists; choose another folder, or delete it.")
    notes: list[str] = []
    try:
        for folder in folders:
            _copy(folder, target, notes)
        hosts = _write_nodes(captures, target, notes)
        create_exclusively(target / "capture.json", json_text(_joined(facts, folders), indent=2))
    except OSError as error:
        raise CaptureError(
            f"{target} cannot be written ({error.strerror}); choose another folder."
        ) from error
    return Merged(target, tuple(hosts), sum(len(c.processes) for c in captures), tuple(notes))


def fold_captures(sources: Sequence[str], into: Path | None) -> tuple[Path, Summary, list[str]]:
    """Fold captures of one run, role by role, into `summary.json` in a new folder.

    Parts are read one by one, so that any number of processes fits into memory. Returns the file, the summary
    and a sentence for each part that was left out. Raises HotloopError as `merge_captures` does.
    """
    if not sources:
        raise HotloopError("There is nothing to fold; name captures, as in: hotloop merge --summary node*")
    folders = [Path(source) for source in sources]
    facts = [read_facts(folder) for folder in folders]
    begins = [one["started_at_ns"] for one in facts if one.get("started_at_ns") is not None]
    ends = [one["ended_at_ns"] for one in facts if one.get("ended_at_ns") is not None]
    if not begins or not ends or max(ends) <= min(begins):
        raise HotloopError("None of these captures has ended; fold them when the run is over.")
    target = into or new_folder("summary")
    if target.exists():
        raise HotloopError(f"{target} already exists; choose another folder, or delete it.")
    left_out: list[str] = []
    whole: Summary | None = None
    for folder in folders:
        for of_node in _summaries(folder, min(begins), max(ends), left_out):
            if whole is None:
                whole = of_node
            else:
                whole.merge(of_node)
    assert whole is not None
    if not whole.processes:
        raise HotloopError("None of these captures has a process that can be read.")
    try:
        target.mkdir(parents=True)
        save_summary(whole, target / "summary.json")
    except OSError as error:
        raise CaptureError(
            f"{target} cannot be written ({error.strerror}); choose another folder."
        ) from error
    return target / "summary.json", whole, left_out


def summary_json(summary: Summary) -> dict[str, Any]:
    """The summary as plain values."""
    return to_json(summary)


def _summaries(folder: Path, begin_ns: int, end_ns: int, left_out: list[str]) -> Iterator[Summary]:
    """What a capture has: its parts, folded, and the summaries that nodes have sent instead of theirs."""
    yield fold(_processes(folder, left_out), begin_ns, end_ns)
    for file in files_in(folder / SUMMARIES, ".json", CaptureError):
        try:
            yield load_summary(file).over(begin_ns, end_ns)
        except CaptureError as problem:
            left_out.append(visible(f"left out {file.name}: {problem}"))


def _processes(folder: Path, left_out: list[str]) -> Iterator[Process]:
    for file in files_in(folder / "parts", ".part", CaptureError):
        try:
            yield read_part(file)
        except CaptureError as problem:
            left_out.append(visible(f"left out {file.name}: {problem}"))


def _copy(folder: Path, target: Path, notes: list[str]) -> None:
    for name in FOLDERS:
        for file in files_in(folder / name, ""):
            if file.is_symlink() or not file.is_file() or file.name.startswith("."):
                continue
            place = target / name / file.name
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.exists():
                shutil.copy2(file, place)
            elif not filecmp.cmp(file, place, shallow=False):
                notes.append(f"{file} is left out: another capture has a different file of that name")


def _joined(facts: Sequence[dict[str, Any]], folders: Sequence[Path]) -> dict[str, Any]:
    """capture.json of the whole: that of the first, with the end of the last and the worst exit status."""
    ends = [one.get("ended_at_ns") for one in facts]
    statuses = [one.get("exit_status") for one in facts]
    failed = [status for status in statuses if status not in ("finished", "stopped")]
    return dict(facts[0]) | {
        "ended_at_ns": max((end for end in ends if end is not None), default=None),
        "exit_status": failed[0] if failed else statuses[0],
        "merged_from": [str(folder) for folder in folders],
        "machines": [one.get("machine") or {} for one in facts],
    }


def _write_nodes(captures: Sequence[Capture], target: Path, notes: list[str]) -> list[str]:
    """nodes/<host>.json for each computer, with its clock; captures of Ray have theirs already."""
    of_host: dict[str, Capture] = {}
    for capture in captures:
        if not capture.nodes:
            of_host.setdefault(capture.processes[0].host, capture)
    recorded = [_Recorded(host, one.processes[0], one.messages) for host, one in of_host.items()]
    _write_clocks(recorded, target, notes)
    return list(of_host)


def align_computers(folder: Path) -> list[str]:
    """Align the clocks of computers that recorded into one capture; a sentence for each but the first.

    Each of them does so when its part of the launch has ended. A job of Ray has compared clocks itself.
    """
    processes = sorted(_processes(folder, []), key=lambda p: (p.start_real_ns, p.pid))
    if any(process.origin is not None and process.origin.ray for process in processes):
        return []
    first: dict[str, Process] = {}
    for process in processes:
        first.setdefault(process.host, process)
    messages, _ = read_messages(folder)
    notes: list[str] = []
    recorded = [
        _Recorded(host, one, [log for log in messages if log.host == host]) for host, one in first.items()
    ]
    _write_clocks(recorded, folder, notes)
    return notes


@dataclass(frozen=True)
class _Recorded:
    """What one computer recorded."""

    host: str
    first: Process
    messages: Sequence[MessageLog]


def _write_clocks(computers: Sequence[_Recorded], target: Path, notes: list[str]) -> None:
    """nodes/<host>.json for each of several computers; the clock of the first one holds."""
    if len(computers) < 2:
        return
    (target / NODES).mkdir(exist_ok=True)
    for number, one in enumerate(computers):
        facts = {"node": one.host, "host": one.host, "driver": number == 0, "shared": True, "complete": True}
        if number:
            facts["clock"] = _clock(computers[0], one, notes)
        write_atomically(target / NODES / f"{one.host}.json", json_text(facts))


def _clock(first: _Recorded, other: _Recorded, notes: list[str]) -> list[list[int]]:
    here, there = first.host, other.host
    found = offset_between(first.messages, other.messages)
    if found is not None:
        notes.append(
            f"the clocks of {here} and {there} are aligned to {duration(found.uncertainty_ns)}, by "
            f"{found.meetings:,} collectives"
        )
    else:
        mine, theirs = first.first, other.first
        # What both monotonic clocks showed at the same real time, if both real-time clocks are right.
        offset = (theirs.start_ns - theirs.start_real_ns) - (mine.start_ns - mine.start_real_ns)
        found = Offset(mine.start_ns, offset, 0, 0)
        notes.append(
            f"the clocks of {here} and {there} are aligned by their real-time clocks alone, because too few "
            "collectives were recorded on both: how far they are off is not known"
        )
        return [[found.at_ns, found.offset_ns, -1]]
    return [[found.at_ns, found.offset_ns, found.uncertainty_ns]]
