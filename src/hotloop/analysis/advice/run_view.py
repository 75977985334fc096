"""What rules look at: the thread that drives training, its regions with their rates, and its helpers.

Rules reason with rates (calls for each turn of the loop, for each update), shares and growth.
Names and categories are hints that choose between readings of the same evidence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hotloop.analysis.advice.gain import speed_up
from hotloop.analysis.advice.words import RESETTING
from hotloop.analysis.categories import Resolver
from hotloop.analysis.findings import Estimate, Findings
from hotloop.analysis.tree import driving_thread, flatten
from hotloop.capture.layout import bucket_edges_ns
from hotloop.capture.model import Capture, Node, Process, Thread

LEARNER = frozenset({"model", "loss", "backward", "optimizer"})
WAITS = frozenset({"wait"})
NEAR = 0.1  # counts within 10 % of each other go together

_PIECES = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_EDGES = np.array(bucket_edges_ns(), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class RegionRow:
    """A region at one place in a thread's tree; times net of our own cost."""

    path: tuple[str, ...]
    node: Node
    category: str
    parent: int | None  # index of the row above
    column: int  # in the thread's windows
    wall_ns: int  # of the thread
    own_ns: int
    total_ns: int
    number: int  # its place among the rows
    end: int  # the place after everything inside it

    @property
    def name(self) -> str:
        """The region's name."""
        return self.node.name

    @property
    def calls(self) -> int:
        """Completed calls."""
        return self.node.calls

    @property
    def share(self) -> float:
        """Time inside, children included, as a share of the thread's wall time."""
        return self.total_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def own_share(self) -> float:
        """Time inside, children not included, as a share of the thread's wall time."""
        return self.own_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def mean_ns(self) -> float:
        """Mean duration of a call, as recorded; 0 when no call has ended."""
        return self.node.mean_ns or 0.0

    @property
    def usual_ns(self) -> float:
        """Median duration of a call: rare pauses and a core lost to others do not show in it."""
        middle = self.node.percentile_ns(0.5)
        return self.mean_ns if middle is None else middle

    def says(self, words: str) -> bool:
        """Whether one of these words (separated by blanks) is a part of the name."""
        pieces = {piece.lower() for piece in _PIECES.findall(self.name)}
        return not pieces.isdisjoint(words.split())


@dataclass(frozen=True)
class Worker:
    """Another thread than the one that drives training."""

    process: Process
    thread: Thread
    rows: tuple[RegionRow, ...]

    @cached_property
    def waiting_ns(self) -> int:
        """Time in regions that wait."""
        return sum(row.own_ns for row in self.rows if row.category in WAITS)

    @cached_property
    def busy_ns(self) -> int:
        """Time in regions that do not wait."""
        return sum(row.own_ns for row in self.rows) - self.waiting_ns

    def work_ns(self, *categories: str) -> int:
        """Time in regions of these categories."""
        return sum(row.own_ns for row in self.rows if row.category in categories)


@dataclass(frozen=True)
class RunView:
    """A capture and what is known about it so far, as rules see it."""

    capture: Capture
    findings: Findings
    process: Process  # of the driver
    driver: Thread  # the thread that drives training
    rows: tuple[RegionRow, ...]  # of the driver, parents first
    workers: tuple[Worker, ...]

    @property
    def wall_ns(self) -> int:
        """Wall time of the driver."""
        return self.driver.wall_ns

    @property
    def updates(self) -> int:
        """Gradient updates reported, by all threads."""
        return self.capture.progress.updates

    @cached_property
    def env_steps(self) -> int:
        """Env steps reported; without a report, the calls of the busiest environment region."""
        return self.capture.progress.env_steps or max((row.calls for row in self._steps), default=0)

    @cached_property
    def turns(self) -> int:
        """How often the loop went round: one policy call for all envs, one step of all envs."""
        acting = [row for row in self.rows if row.category == "policy" and not self.is_learning(row)]
        counts = [max((row.calls for row in rows), default=0) for rows in (self._steps, acting)]
        known = [count for count in counts if count >= self.env_steps / 4096 and count > 1]
        return min(known) if known else self._common_count()

    @property
    def envs(self) -> float:
        """Env steps for each turn of the loop; 1 when that cannot be known."""
        return max(self.env_steps / self.turns, 1.0) if self.turns and self.env_steps else 1.0

    @cached_property
    def _steps(self) -> tuple[RegionRow, ...]:
        return tuple(self.outermost(lambda row: row.category == "environment" and not row.says(RESETTING)))

    def _common_count(self) -> int:
        """Nothing looks like an environment or a policy: the count that most time shares."""
        rows = [row for row in self.rows if 1 < row.calls <= self.env_steps]
        rows = sorted(rows, key=lambda row: -row.own_ns)[:50]
        best_count, most_ns = 0, 0
        for row in rows:
            together = [other for other in rows if near(other.calls, row.calls)]
            own_ns = sum(other.own_ns for other in together)
            if len(together) > 1 and own_ns > most_ns:
                best_count, most_ns = row.calls, own_ns
        return best_count

    # -- rates -----------------------------------------------------------------------------------

    def per_turn(self, row: RegionRow) -> float:
        """Calls for each turn of the loop; 0 when turns are not known."""
        return row.calls / self.turns if self.turns else 0.0

    def per_env_step(self, row: RegionRow) -> float:
        """Calls for each env step; 0 when env steps are not known."""
        return row.calls / self.env_steps if self.env_steps else 0.0

    def per_update(self, row: RegionRow) -> float:
        """Calls for each update; 0 when updates are not known."""
        return row.calls / self.updates if self.updates else 0.0

    # -- places in the tree ----------------------------------------------------------------------

    def above(self, row: RegionRow) -> Iterator[RegionRow]:
        """The regions around a region, innermost first."""
        while row.parent is not None:
            row = self.rows[row.parent]
            yield row

    def below(self, row: RegionRow) -> tuple[RegionRow, ...]:
        """Every region inside a region."""
        return self.rows[row.number + 1 : row.end]

    def outermost(self, want: Callable[[RegionRow], bool]) -> list[RegionRow]:
        """Wanted regions that are in no other wanted region and in no evaluation, most time first."""
        taken: set[int] = set()  # id of rows that are wanted, unwanted for being evaluation, or below one
        found = []
        for number, row in enumerate(self.rows):
            if row.parent in taken:
                taken.add(number)
            elif row.category == "evaluation":
                taken.add(number)
                if want(row):
                    found.append(row)
            elif want(row):
                taken.add(number)
                found.append(row)
        return sorted(found, key=lambda row: -row.total_ns)

    def is_learning(self, row: RegionRow) -> bool:
        """Whether a region belongs to the learner: its kind, what is around it, what is in it."""
        return (
            row.category in LEARNER
            or any(other.category in LEARNER for other in self.above(row))
            or any(other.category in LEARNER for other in self.below(row))
            or any(near(other.calls, self.updates) and other.calls > 1 for other in self.above(row))
            or (
                near(row.calls, self.updates)
                and not near(row.calls, self.env_steps)
                and not self._steps_at(row)
            )
        )

    def _steps_at(self, row: RegionRow) -> bool:
        return any(near(step.calls, row.calls) for step in self._steps)

    @cached_property
    def learner(self) -> list[RegionRow]:
        """Outermost regions of the learner."""
        turning = near(self.updates, self.turns)

        def wanted(row: RegionRow) -> bool:
            if row.category in LEARNER:
                return True
            own_rhythm = row.calls > 1 and near(row.calls, self.updates) and not turning
            return own_rhythm and row.category in ("other", "framework", "policy")

        return self.outermost(wanted)

    @cached_property
    def is_on_policy(self) -> bool:
        """Whether advantages are computed and nothing is replayed."""
        kinds = {row.category for row in self.rows}
        return "advantage" in kinds and "replay" not in kinds

    # -- gains -----------------------------------------------------------------------------------

    def gain(
        self,
        rows: Iterable[RegionRow],
        saved: float | tuple[float, float],
        *,
        own: bool = False,
        floored: bool = True,
    ) -> Estimate | None:
        """Predicted speed-up of the whole when this share of the regions' time is saved.

        `saved` may be a range when the share is an assumption; the interval then covers it. None
        with fewer than 8 windows. Work of helpers that goes on beside the driver is a floor
        (not so with `floored=False`, for changes that take work off the helpers).
        """
        rows = list(rows)
        low, high = saved if isinstance(saved, tuple) else (saved, saved)
        windows = self.driver.windows
        source = windows.own_ns if own else windows.total_ns
        region = source[:, [row.column for row in rows]].astype(np.float64).sum(axis=1)
        share = sum(row.own_share if own else row.share for row in rows)
        time_ns = windows.time_ns.astype(np.float64) - self.driver.start_ns
        floor = self._longest_helper_ns / self.wall_ns if floored and self.is_pipeline else 0.0
        return speed_up(time_ns, region, share, (low, high), floor)

    @cached_property
    def _longest_helper_ns(self) -> int:
        return max((worker.busy_ns for worker in self.workers), default=0)

    @cached_property
    def driver_busy_ns(self) -> int:
        """Time of the driver in regions that do not wait."""
        return sum(row.own_ns for row in self.rows if row.category not in WAITS)

    @cached_property
    def off_cpu_ns(self) -> float | None:
        """Busy time of the driver in which it had no core; None when CPU time was not read.

        Taken between the first and the last window: a thread's CPU time began before its recording.
        """
        windows = self.driver.windows
        if len(windows) < 2 or self.driver.cpu_ns is None or not windows.cpu_ns[-1]:
            return None
        span_ns = float(windows.time_ns[-1] - windows.time_ns[0])
        on_cpu = float(windows.cpu_ns[-1] - windows.cpu_ns[0]) / max(span_ns, 1.0)
        return max(self.driver_busy_ns - on_cpu * self.wall_ns, 0.0)

    @cached_property
    def is_pipeline(self) -> bool:
        """Whether helpers work at the same time as the driver, not in turn with it."""
        overlap = self.driver_busy_ns + self._longest_helper_ns - self.wall_ns
        return overlap > 0.2 * self.wall_ns


def near(a: float, b: float, tolerance: float = NEAR) -> bool:
    """Whether two counts are the same but for a few calls at the start or the end."""
    return a > 0 and b > 0 and abs(a - b) <= tolerance * max(a, b)


def tail(node: Node, above_ns: float) -> tuple[int, float]:
    """Completed calls longer than `above_ns`, and their time; off by at most a bucket."""
    if node.buckets is None or node.max_ns is None:
        return 0, 0.0
    counts = node.buckets.astype(np.float64)
    middle = np.minimum((_EDGES[:-1] + _EDGES[1:]) / 2, node.max_ns)
    over = _EDGES[:-1] >= above_ns
    return int(counts[over].sum()), float((counts * middle)[over].sum())


def view_run(capture: Capture, findings: Findings) -> RunView | None:
    """The capture as rules see it; None when nothing was recorded."""
    driver = driving_thread(capture)
    if driver is None or driver[1].wall_ns <= 0:
        return None
    categories = {region.path: region.category for region in findings.regions}
    cost_ns = capture.region_cost_ns
    workers = tuple(
        Worker(process, thread, _rows(thread, categories, cost_ns))
        for process in capture.processes
        for thread in process.threads
        if thread is not driver[1]
    )
    return RunView(capture, findings, *driver, _rows(driver[1], categories, cost_ns), workers)


def _rows(
    thread: Thread, categories: dict[tuple[str, ...], str], cost_ns: float | None
) -> tuple[RegionRow, ...]:
    columns: dict[tuple[str, ...], list[int]] = {}
    for number, path in enumerate(thread.paths):
        columns.setdefault(path, []).append(number)
    flat = flatten(thread.root, Resolver(), cost_ns)
    totals, ends = list(flat.own_ns), list(range(1, len(flat.nodes) + 1))
    for number in range(len(totals) - 1, -1, -1):  # children come after their parents, all in one piece
        parent = flat.parents[number]
        if parent >= 0:
            totals[parent] += totals[number]
            ends[parent] = max(ends[parent], ends[number])
    rows = []
    for number, path in enumerate(flat.paths()):
        node, parent = flat.nodes[number], flat.parents[number]
        place = columns.get(path, [0])
        # Two regions of one name and different categories share a path; they come in the same order.
        column = place.pop(0) if len(place) > 1 else place[0]
        kind = node.category or categories.get(path) or flat.categories[number]
        rows.append(
            RegionRow(
                path=path,
                node=node,
                category=kind,
                parent=parent if parent >= 0 else None,
                column=column,
                wall_ns=thread.wall_ns,
                own_ns=flat.own_ns[number],
                total_ns=totals[number],
                number=number,
                end=ends[number],
            )
        )
    return tuple(rows)
