"""A run on many nodes in little space: each node's processes folded into one summary, role by role.

Sums are exact: calls, times, histograms and progress of a role are those of its members added up, and folding
nodes one after the other gives the same as folding all processes at once. What differs between members is
kept as a histogram and the two extremes. The size of a summary depends on its roles and regions, not on the
number of processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.conform import Misfit, conform
from hotloop._util.errors import CaptureError
from hotloop._util.files import write_atomically
from hotloop._util.read_files import Reader, files_in, json_text
from hotloop._util.visible import visible
from hotloop.capture import layout
from hotloop.capture.model import FoldedRole, Node, Process, Progress, Thread

KIND = "hotloop summary"
FOLDER = "summaries"  # of a capture: one file for each node that sent a summary instead of its recordings
SCHEMA_VERSION = 1
SHARE_BINS = 100
MOMENTS = 65  # of the run at which progress is kept
_READER = Reader(256 << 20, CaptureError, "fold the captures again")
_NUMBERS = (
    *("calls", "total_ns", "own_ns", "open_calls", "open_ns", "min_ns", "max_ns", "squares", "bytes_moved"),
    *("flops", "device_ns", "device_growth_bytes", "device_peak_bytes", "rss_growth_bytes", "rss_peak_bytes"),
)


@dataclass(slots=True)
class Shares:
    """A share of the members of a role, such as the time that each was on a core."""

    counts: list[int] = field(default_factory=lambda: [0] * SHARE_BINS)  # by hundredths
    total: float = 0.0
    least: tuple[float, str] = (2.0, "")  # share, member
    most: tuple[float, str] = (-1.0, "")

    def add(self, share: float, member: str) -> None:
        share = min(max(share, 0.0), 1.0)
        self.counts[min(int(share * SHARE_BINS), SHARE_BINS - 1)] += 1
        self.total += share
        self.least = min(self.least, (share, member))
        self.most = max(self.most, (share, member))

    def merge(self, other: Shares) -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total
        self.least, self.most = min(self.least, other.least), max(self.most, other.most)

    @property
    def mean(self) -> float:
        return self.total / max(sum(self.counts), 1)

    @property
    def median(self) -> float:
        """To half a hundredth."""
        cumulative = np.cumsum(self.counts)
        return (float(np.searchsorted(cumulative, cumulative[-1] / 2)) + 0.5) / SHARE_BINS


@dataclass(slots=True)
class RoleSummary:
    """Processes that do the same, added up."""

    members: int = 0
    threads: int = 0
    wall_ns: int = 0  # of all threads
    cpu_ns: int = 0
    progress: Progress = field(default_factory=Progress)
    tree: Node = field(default_factory=lambda: Node(""))
    running: Shares = field(default_factory=Shares)  # of a member's main thread: time on a core
    waiting: Shares = field(default_factory=Shares)  # time in regions that are waits
    env_steps: list[int] = field(default_factory=lambda: [0] * MOMENTS)  # up to each moment of the run
    updates: list[int] = field(default_factory=lambda: [0] * MOMENTS)

    def merge(self, other: RoleSummary) -> None:
        """Add another one, whose moments are the same."""
        self.members += other.members
        self.threads += other.threads
        self.wall_ns += other.wall_ns
        self.cpu_ns += other.cpu_ns
        self.progress = self.progress + other.progress
        self.tree.merge(other.tree)
        self.running.merge(other.running)
        self.waiting.merge(other.waiting)
        self.env_steps = [a + b for a, b in zip(self.env_steps, other.env_steps, strict=True)]
        self.updates = [a + b for a, b in zip(self.updates, other.updates, strict=True)]


@dataclass(slots=True)
class Summary:
    """One node, or several."""

    begin_real_ns: int  # of the run: the moments lie evenly between its begin and its end
    end_real_ns: int
    nodes: int = 1
    processes: int = 0
    roles: dict[str, RoleSummary] = field(default_factory=dict)

    def merge(self, other: Summary) -> None:
        """Add another node of the same run; raises CaptureError if it is of another one."""
        if (self.begin_real_ns, self.end_real_ns) != (other.begin_real_ns, other.end_real_ns):
            raise CaptureError(
                "These summaries cover different times; fold the captures of one run together."
            )
        self.nodes += other.nodes
        self.processes += other.processes
        for name, role in other.roles.items():
            self.roles.setdefault(name, RoleSummary()).merge(role)

    def over(self, begin_real_ns: int, end_real_ns: int) -> Summary:
        """The same with moments of another time, as of a run that went on; sums stay exact."""
        if (begin_real_ns, end_real_ns) == (self.begin_real_ns, self.end_real_ns):
            return self
        old = np.linspace(self.begin_real_ns, self.end_real_ns, MOMENTS)
        new = np.linspace(begin_real_ns, end_real_ns, MOMENTS)

        def moved(counts: list[int]) -> list[int]:
            found = [int(value) for value in np.rint(np.interp(new, old, counts))]
            return [*found[:-1], counts[-1]]

        roles = {
            name: replace(role, env_steps=moved(role.env_steps), updates=moved(role.updates))
            for name, role in self.roles.items()
        }
        return Summary(begin_real_ns, end_real_ns, self.nodes, self.processes, roles)

    @property
    def progress(self) -> Progress:
        return sum((role.progress for role in self.roles.values()), Progress())


def role_of(process: Process) -> str:
    """What a process is called: the class of an actor, the function it runs, or its program."""
    origin = process.origin
    if origin is not None and origin.ray == "driver":
        return "driver"
    if origin is not None and (origin.actor or origin.target):
        return origin.actor or origin.target
    return f"{process.label} ranks" if origin is not None and origin.rank is not None else process.label


def span_of(processes: Iterable[Process]) -> tuple[int, int]:
    """Begin and end of a run in real time, ns."""
    spans = [(p.start_real_ns, p.start_real_ns + p.end_ns - p.start_ns) for p in processes]
    if not spans:
        raise CaptureError("There is nothing to fold: no process was recorded.")
    return min(begin for begin, _ in spans), max(end for _, end in spans)


def fold(processes: Iterable[Process], begin_real_ns: int, end_real_ns: int) -> Summary:
    """Fold the processes of one node; they are looked at one by one and not kept."""
    found = Summary(begin_real_ns, end_real_ns)
    moments = np.linspace(begin_real_ns, end_real_ns, MOMENTS)
    for process in processes:
        found.processes += 1
        role = found.roles.setdefault(role_of(process), RoleSummary())
        role.members += 1
        main = max(process.threads, key=_works, default=None)
        for thread in process.threads:
            _add_thread(role, process, thread, moments)
        if main is not None and main.wall_ns:
            name = f"{process.label} (pid {process.pid} on {process.host})"
            role.running.add((main.cpu_ns or 0) / main.wall_ns, name)
            role.waiting.add(_waiting_ns(main.root) / main.wall_ns, name)
    return found


def _works(thread: Thread) -> tuple[bool, int, int]:
    return thread.folded_threads == 0, thread.progress.env_steps + thread.progress.updates, thread.wall_ns


def _add_thread(role: RoleSummary, process: Process, thread: Thread, moments: NDArray[np.float64]) -> None:
    role.threads += max(thread.folded_threads, 1)
    role.wall_ns += thread.wall_ns
    role.cpu_ns += thread.cpu_ns or 0
    role.progress = role.progress + thread.progress
    role.tree.merge(thread.root)
    windows = thread.windows
    at = moments - process.start_real_ns + process.start_ns
    for name, total, into in (
        ("env_steps", thread.progress.env_steps, role.env_steps),
        ("updates", thread.progress.updates, role.updates),
    ):
        if not total:
            continue
        times = np.concatenate([[thread.start_ns], windows.time_ns.astype(np.float64), [thread.end_ns]])
        counts = np.concatenate([[0], windows.progress.get(name, np.zeros(len(windows))), [total]])
        found = np.rint(np.interp(at, np.maximum.accumulate(times), counts)).astype(np.int64)
        found[-1] = total
        for moment, value in enumerate(found):
            into[moment] += int(value)


def _waiting_ns(root: Node) -> int:
    """Own time of regions that say themselves that they wait, and of those inside without a category."""
    found, todo = 0, [(child, "") for child in root.children]
    while todo:
        node, above = todo.pop()
        kind = node.category or above
        found += node.own_ns if kind == "wait" else 0
        todo += [(child, kind) for child in node.children]
    return found


# -- on disk ---------------------------------------------------------------------------------------


def save_summary(summary: Summary, path: Path) -> None:
    """Write it in one step."""
    write_atomically(path, json_text(to_json(summary), indent=None))


def load_summary(path: Path) -> Summary:
    """Read a summary; raises CaptureError for anything else."""
    data = _READER.read_object(path)
    if data.get("kind") != KIND or data.get("schema_version") != SCHEMA_VERSION:
        raise CaptureError(f"{path} is no summary of this version; fold the captures again.")
    try:
        return from_json(data)
    except (Misfit, KeyError, TypeError, ValueError, IndexError) as error:
        raise CaptureError(f"{path} is damaged ({error}); fold the captures again.") from None


def read_folded(folder: Path, warnings: list[str]) -> tuple[FoldedRole, ...]:
    """The roles in the summaries that nodes of a capture have sent, most members first; () without any."""
    found: list[Summary] = []
    for file in files_in(folder / FOLDER, ".json", CaptureError):
        try:
            found.append(load_summary(file))
        except CaptureError as problem:
            warnings.append(visible(f"left out {file.name}: {problem}"))
    if not found:
        return ()
    begin_ns, end_ns = min(s.begin_real_ns for s in found), max(s.end_real_ns for s in found)
    whole = Summary(begin_ns, end_ns, nodes=0)
    for one in found:
        whole.merge(one.over(begin_ns, end_ns))
    moments = tuple(int(at) for at in np.linspace(begin_ns, end_ns, MOMENTS))
    roles = [
        FoldedRole(
            name,
            role.members,
            sum(name in one.roles for one in found),
            role.running.mean,
            min(max(role.running.least[0], 0.0), 1.0),
            max(role.running.most[0], 0.0),
            role.running.most[1],
            role.waiting.mean,
            role.progress,
            moments,
            tuple(role.env_steps),
            tuple(role.updates),
        )
        for name, role in whole.roles.items()
    ]
    return tuple(sorted(roles, key=lambda role: (-role.members, role.name)))


def to_json(summary: Summary) -> dict[str, Any]:
    """Plain values."""
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "begin_real_ns": summary.begin_real_ns,
        "end_real_ns": summary.end_real_ns,
        "nodes": summary.nodes,
        "processes": summary.processes,
        "roles": {name: _role_out(role) for name, role in summary.roles.items()},
    }


def _role_out(role: RoleSummary) -> dict[str, Any]:
    plain = {name: getattr(role, name) for name in ("members", "threads", "wall_ns", "cpu_ns")}
    return plain | {
        "progress": {name: getattr(role.progress, name) for name in Progress.__slots__},
        "tree": list(_nodes_out(role.tree)),
        "running": _shares_out(role.running),
        "waiting": _shares_out(role.waiting),
        "env_steps": role.env_steps,
        "updates": role.updates,
    }


def _shares_out(shares: Shares) -> dict[str, Any]:
    bins = {str(at): count for at, count in enumerate(shares.counts) if count}
    return {"bins": bins, "total": shares.total, "least": list(shares.least), "most": list(shares.most)}


def _nodes_out(root: Node) -> Iterator[list[Any]]:
    """Parent, name, category, site, numbers, flag and histogram of every node, parents first."""
    todo = [(root, 0)]
    for number, (node, parent) in enumerate(todo):  # it grows meanwhile
        counts = node.buckets
        bins = {} if counts is None else {str(at): int(counts[at]) for at in np.flatnonzero(counts)}
        numbers = [getattr(node, name) for name in _NUMBERS]
        yield [parent, node.name, node.category, node.site, numbers, node.out_of_order, bins]
        todo += [(child, number) for child in node.children]


def from_json(data: dict[str, Any]) -> Summary:
    """The summary that `to_json` wrote."""
    found = Summary(
        *(conform(data[name], int, name) for name in ("begin_real_ns", "end_real_ns", "nodes", "processes"))
    )
    for name, row in conform(data["roles"], dict[str, dict[str, Any]], "roles").items():
        found.roles[name] = _role_in(row)
    return found


def _role_in(row: dict[str, Any]) -> RoleSummary:
    plain = {name: conform(row[name], int, name) for name in ("members", "threads", "wall_ns", "cpu_ns")}
    moments = {name: conform(row[name], list[int], name) for name in ("env_steps", "updates")}
    if any(len(values) != MOMENTS for values in moments.values()):
        raise ValueError(f"progress has not {MOMENTS} moments")
    return RoleSummary(
        **plain,
        **moments,
        progress=replace(Progress(), **conform(row["progress"], dict[str, float | int], "progress")),
        tree=_tree_in(row["tree"]),
        running=_shares_in(row["running"]),
        waiting=_shares_in(row["waiting"]),
    )


def _shares_in(row: dict[str, Any]) -> Shares:
    found = Shares(total=float(row["total"]))
    for at, count in row["bins"].items():
        found.counts[int(at)] = conform(count, int, "bins")
    found.least = (float(row["least"][0]), str(row["least"][1]))
    found.most = (float(row["most"][0]), str(row["most"][1]))
    return found


def _tree_in(rows: list[list[Any]]) -> Node:
    built: list[Node] = []
    for parent, name, category, site, numbers, odd, bins in rows:
        node = Node(str(name), str(category), str(site), out_of_order=bool(odd))
        for field_name, value in zip(_NUMBERS, numbers, strict=True):
            setattr(node, field_name, value)
        if bins:
            buckets = np.zeros(layout.BUCKETS, dtype=np.uint64)
            for at, count in bins.items():
                buckets[int(at)] = count
            node.buckets = buckets
        if built:
            built[parent].children.append(node)
        built.append(node)
    return built[0]
