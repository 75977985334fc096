"""What advice functions look at: the thread that drives training, its regions with their rates, and its
helpers.

Advice reasons with rates (calls per iteration of the loop, calls per update), shares and growth. Names and
categories are hints that choose between interpretations of the same evidence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.categories import Resolver
from hotloop.analysis.findings import CoreTime, Estimate, Findings, Recommendation
from hotloop.analysis.line_samples import LineSamples, line_samples, with_helpers
from hotloop.analysis.services import is_no_worker
from hotloop.analysis.tree import driving_thread, flatten
from hotloop.analysis.utilisation import compute_threads, core_time
from hotloop.analysis.what_ifs import WhatIfs
from hotloop.analysis.whatif import LEAST_WINDOWS, block_counts
from hotloop.capture.layout import bucket_edges_ns
from hotloop.capture.model import Capture, Node, Process, Thread

LEARNER = frozenset({"model", "loss", "backward", "optimizer"})
WAITS = frozenset({"wait"})
NEAR = 0.1  # counts within 10 % of each other count as equal

GAPS = ("between ", "before ", "after ")  # names of time between two regions: there is no such code

# Words in region names that hint at what a region does, if its category does not tell. A hint is never
# evidence: it chooses between interpretations of the same evidence.
STORING = "store push add remember insert append memory memorize replay buffer record put transition"
TRANSFERRING = "tensor tensors device upload download cuda gpu h2d d2h transfer"
CHOOSING = "policy act action actions choose select infer inference predict decide"
LOCKS = "lock locks locked mutex acquire semaphore"
RESETTING = "reset resets resetting restart"
STEPPING = "step steps"
RESIZING = "resize resizing rescale shrink downsample downscale warp interpolate zoom thumbnail"

Floats = NDArray[np.float64]

_PIECES = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_EDGES = np.array(bucket_edges_ns(), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class RegionRow:
    """A region at one path of a thread's tree; times are net of our own cost."""

    path: tuple[str, ...]
    node: Node
    category: str
    parent: int | None  # index of the parent's row
    column: int  # in the thread's windows
    wall_ns: int  # of the thread
    own_ns: int
    total_ns: int
    number: int  # its index among the rows
    end: int  # index after its last descendant

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def calls(self) -> int:
        return self.node.calls

    @property
    def share(self) -> float:
        """Total time (including children) as a share of the thread's wall time."""
        return self.total_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def own_share(self) -> float:
        """Own time as a share of the thread's wall time."""
        return self.own_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def mean_ns(self) -> float:
        """Mean duration of a call, as recorded; 0 if no call has ended."""
        return self.node.mean_ns or 0.0

    @property
    def usual_ns(self) -> float:
        """Median duration of a call, which rare pauses and a core lost to others do not affect."""
        middle = self.node.percentile_ns(0.5)
        return self.mean_ns if middle is None else middle

    @property
    def is_gap(self) -> bool:
        """Whether it is time between two regions, named after them."""
        return self.name.startswith(GAPS)

    def name_has(self, words: str) -> bool:
        """Whether the name contains one of these words (separated by blanks)."""
        pieces = {piece.lower() for piece in _PIECES.findall(self.name)}
        return not pieces.isdisjoint(words.split())


@dataclass(frozen=True)
class Worker:
    """A thread other than the one that drives training."""

    process: Process
    thread: Thread
    rows: tuple[RegionRow, ...]

    @cached_property
    def waiting_ns(self) -> int:
        """Own time in waits."""
        return sum(row.own_ns for row in self.rows if row.category in WAITS)

    @cached_property
    def busy_ns(self) -> int:
        """Own time in everything but waits."""
        return sum(row.own_ns for row in self.rows) - self.waiting_ns

    def work_ns(self, *categories: str) -> int:
        """Own time in regions of these categories."""
        return sum(row.own_ns for row in self.rows if row.category in categories)


@dataclass(frozen=True)
class RunView:
    """A capture and its findings, as advice functions see them."""

    capture: Capture
    findings: Findings
    process: Process  # of the driver
    driver: Thread  # the thread that drives training
    rows: tuple[RegionRow, ...]  # of the driver, parents first
    workers: tuple[Worker, ...]
    given: list[Recommendation] = field(default_factory=list)  # by the functions asked before
    model: WhatIfs | None = None  # of the whole run; None: not made

    @property
    def wall_ns(self) -> int:
        """Wall time of the driving thread."""
        return self.driver.wall_ns

    @property
    def updates(self) -> int:
        """Updates reported by all threads."""
        return self.capture.progress.updates

    @cached_property
    def env_steps(self) -> int:
        """Env steps reported; if none were, the calls of the busiest environment region.

        0 where envs were only stepped in evaluations, as offline RL does.
        """
        return self.capture.progress.env_steps or max((row.calls for row in self._steps), default=0)

    @cached_property
    def iterations(self) -> int:
        """Iterations of the training loop: one policy call and one step of all envs each."""
        recorded = self.recorded_envs or 1
        if recorded > 1 and self.env_steps:  # a list of single envs says 1
            return max(round(self.env_steps / recorded), 1)
        acting = [row for row in self.rows if row.category == "policy" and not self.is_learning(row)]
        counts = [max((row.calls for row in rows), default=0) for rows in (self._steps, acting)]
        known = [count for count in counts if count >= self.env_steps / 4096 and count > 1]
        count = min(known) if known else self._common_count()
        if acting and near(count, self.env_steps):
            # A list of envs: the policy runs for one after the other, then each of them is stepped.
            policy = max(acting, key=lambda row: row.calls)
            for_policy, for_steps = self._in_a_row(policy.name), self._in_a_row("env_step", "env_reset")
            if for_steps >= 2 and near(for_policy, for_steps, 0.35):
                return max(round(count / for_steps), 1)
        return count or (self.env_steps if self.recorded_envs else 0)

    def _in_a_row(self, *names: str) -> float:
        """How often the first of these regions runs before one that is not among them; 1 if unknown.

        The names of gaps tell what ran before: `between env_step and env_step`.
        """
        calls = sum(row.calls for row in self.rows if row.name == names[0])
        entered = 0
        for row in self.rows:
            before, found, after = row.name.partition(" and ")
            if found and after == names[0] and row.name.startswith("between "):
                entered += 0 if before.removeprefix("between ") in names else row.calls
            elif len(names) > 1 and row.name == f"before {names[0]}":
                entered += row.calls  # after a minor region, such as a transfer of the action
        return calls / entered if entered else 1.0

    @cached_property
    def _libraries(self) -> list[dict[str, Any]]:
        """What the driving process noted about its libraries."""
        entries = self.capture.facts.get("libraries") or ()
        return [entry for entry in entries if entry.get("pid") == self.process.pid]

    @cached_property
    def recorded_envs(self) -> int | None:
        """Envs in one iteration: what the envs say, or rows of one policy call; None if not recorded."""
        counts = [env["num_envs"] for entry in self._libraries for env in entry.get("envs", ())]
        rows = [rows for entry in self._libraries for rows in entry.get("policy_rows", ())]
        if counts and rows and max(rows) > max(counts) and self._acts_at_each_step(max(counts)):
            rows = []  # the height of a picture, or plans for one env
        return max(*counts, *rows, 1) if counts else None

    def _acts_at_each_step(self, envs: int) -> bool:
        """Whether the policy runs as often as these envs step: its rows are no other envs."""
        calls = [row.calls for row in self.rows if row.category == "policy" and not row.is_gap]
        return bool(calls) and near(max(calls), self.env_steps / max(envs, 1))

    @property
    def envs(self) -> float:
        """Env steps per iteration of the loop; 1 if unknown."""
        return max(self.env_steps / self.iterations, 1.0) if self.iterations and self.env_steps else 1.0

    @cached_property
    def _steps(self) -> tuple[RegionRow, ...]:
        if not self.capture.progress.env_steps and any(entry.get("evaluates") for entry in self._libraries):
            return ()
        return tuple(self.outermost(lambda row: row.category == "environment" and not self.is_reset(row)))

    def is_reset(self, row: RegionRow) -> bool:
        """Whether a region resets envs and does not step them."""
        return row.name_has(RESETTING) and not row.name_has(STEPPING) and not row.is_gap

    def _common_count(self) -> int:
        """If nothing looks like an environment or a policy: the call count that most time shares."""
        rows = [row for row in self.rows if 1 < row.calls <= self.env_steps and row.category != "framework"]
        rows = sorted(rows, key=lambda row: -row.own_ns)[:50]
        best_count, most_ns = 0, 0
        for row in rows:
            together = [other for other in rows if near(other.calls, row.calls)]
            own_ns = sum(other.own_ns for other in together)
            if len(together) > 1 and own_ns > most_ns:
                best_count, most_ns = row.calls, own_ns
        return best_count

    @cached_property
    def lines(self) -> LineSamples | None:
        """Sampled lines of the driving thread during training; None if there are too few.

        While it waits for helpers, their lines.
        """
        found = line_samples(self.process, self.driver, self.capture)
        return with_helpers(found, self.capture.processes, self.process) if found is not None else None

    @property
    def unbiased_lines(self) -> LineSamples | None:
        """The same lines, if their shares can be trusted; else None."""
        return self.lines if self.lines is not None and not self.lines.biased else None

    # -- rates -----------------------------------------------------------------------------------

    def per_iteration(self, row: RegionRow) -> float:
        """Calls per iteration of the loop; 0 if iterations are unknown."""
        return row.calls / self.iterations if self.iterations else 0.0

    def per_env_step(self, row: RegionRow) -> float:
        """Calls per env step; 0 if env steps are unknown."""
        return row.calls / self.env_steps if self.env_steps else 0.0

    def per_update(self, row: RegionRow) -> float:
        """Calls per update; 0 if updates are unknown."""
        return row.calls / self.updates if self.updates else 0.0

    # -- the tree --------------------------------------------------------------------------------

    def above(self, row: RegionRow) -> Iterator[RegionRow]:
        """The enclosing regions, innermost first."""
        while row.parent is not None:
            row = self.rows[row.parent]
            yield row

    def below(self, row: RegionRow) -> tuple[RegionRow, ...]:
        """All regions inside a region."""
        return self.rows[row.number + 1 : row.end]

    def outermost(self, want: Callable[[RegionRow], bool]) -> list[RegionRow]:
        """Wanted regions that are not inside another wanted region or an evaluation, most time first."""
        taken: set[int] = set()  # rows that are wanted or an evaluation, and all rows inside them
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
        """Whether a region belongs to the learner, by its category, its surroundings or its contents."""
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
        """The outermost regions of the learner."""
        in_step = near(self.updates, self.iterations)

        def wanted(row: RegionRow) -> bool:
            if row.category in LEARNER:
                return True
            own_rhythm = row.calls > 1 and near(row.calls, self.updates) and not in_step
            return own_rhythm and row.category in ("other", "framework", "policy")

        return self.outermost(wanted)

    @cached_property
    def is_on_policy(self) -> bool:
        """Whether advantages are computed and there is no replay."""
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
        """Predicted speed-up of training if this fraction of the regions' time were saved.

        `saved` may be a range if the fraction is an assumption; the interval then covers it. None with
        fewer than 8 windows. The run cannot get faster than its busiest parallel helper (unless
        `floored=False`, for changes that take work off the helpers).
        """
        rows = list(rows)
        low, high = saved if isinstance(saved, tuple) else (saved, saved)
        windows = self.driver.windows
        source = windows.own_ns if own else windows.total_ns
        region = source[:, [row.column for row in rows]].astype(np.float64).sum(axis=1)
        share = sum(row.own_share if own else row.share for row in rows)
        time_ns = windows.time_ns.astype(np.float64) - self.driver.start_ns
        floor = self.longest_helper_ns / self.wall_ns if floored and self.is_pipeline else 0.0
        return speed_up(time_ns, region, share, (low, high), floor)

    @cached_property
    def longest_helper_ns(self) -> int:
        """Time in which the busiest other thread did not wait."""
        return max((worker.busy_ns for worker in self.workers), default=0)

    @cached_property
    def driver_busy_ns(self) -> int:
        """Own time of the driving thread in everything but waits."""
        return sum(row.own_ns for row in self.rows if row.category not in WAITS)

    @cached_property
    def core_time(self) -> CoreTime | None:
        """What the system did with the driving thread; None if it does not report that."""
        return core_time(self.process, self.driver)

    @cached_property
    def compute_threads(self) -> tuple[int | None, str]:
        """Compute threads of the driving process, and where that number comes from."""
        return compute_threads(self.process, self.capture.machine)

    @cached_property
    def computing_processes(self) -> tuple[Process, ...]:
        """Processes of the driver's host that were busy for a fifth of the time or more, the driver first."""
        found = {}
        if self.driver_busy_ns > 0.2 * self.wall_ns:
            found[self.process.pid] = self.process
        for worker in self.workers:
            if is_no_worker(self.capture, worker.process):
                continue
            if worker.busy_ns > 0.2 * self.wall_ns and worker.process.host == self.process.host:
                found[worker.process.pid] = worker.process
        return tuple(found.values())

    def site_of(self, row: RegionRow) -> str:
        """Where a region is in the code, if that line belongs to this region alone; else "".

        A line that acting and learning share, or several regions, is no place for a change.
        """
        site = row.node.site
        if row.number >= len(self.rows) or self.rows[row.number] is not row:
            return site  # a region of another thread
        inside = range(row.number, row.end)
        around = {other.number for other in self.above(row)}
        others = [
            other
            for other in self.rows
            if site and other.node.site == site and not other.is_gap and other.number not in inside
        ]
        purposes = {(o.name, o.category, self.is_learning(o)) for o in others if o.number not in around}
        return "" if purposes - {(row.name, row.category, self.is_learning(row))} else site

    @cached_property
    def is_pipeline(self) -> bool:
        """Whether helpers work in parallel with the driving thread rather than in turn."""
        overlap = self.driver_busy_ns + self.longest_helper_ns - self.wall_ns
        return overlap > 0.2 * self.wall_ns


def near(a: float, b: float, tolerance: float = NEAR) -> bool:
    """Whether two counts are equal up to a few calls at the start or the end."""
    return a > 0 and b > 0 and abs(a - b) <= tolerance * max(a, b)


def tail(node: Node, above_ns: float) -> tuple[int, float]:
    """Number and time of completed calls longer than `above_ns`, to within a histogram bucket."""
    if node.buckets is None or node.max_ns is None:
        return 0, 0.0
    counts = node.buckets.astype(np.float64)
    middle = np.minimum((_EDGES[:-1] + _EDGES[1:]) / 2, node.max_ns)
    over = _EDGES[:-1] >= above_ns
    return int(counts[over].sum()), float((counts * middle)[over].sum())


def view_run(capture: Capture, findings: Findings, model: WhatIfs | None = None) -> RunView | None:
    """The capture as advice functions see it; None if nothing was recorded."""
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
    rows = _rows(driver[1], categories, cost_ns)
    return RunView(capture, findings, *driver, rows, workers, model=model)


def _rows(
    thread: Thread, categories: dict[tuple[str, ...], str], cost_ns: float | None
) -> tuple[RegionRow, ...]:
    columns: dict[tuple[str, ...], list[int]] = {}
    for number, path in enumerate(thread.paths):
        columns.setdefault(path, []).append(number)
    flat = flatten(thread.root, Resolver(), cost_ns)
    totals, ends = list(flat.own_ns), list(range(1, len(flat.nodes) + 1))
    for number in range(len(totals) - 1, -1, -1):  # descendants directly follow their parent
        parent = flat.parents[number]
        if parent >= 0:
            totals[parent] += totals[number]
            ends[parent] = max(ends[parent], ends[number])
    rows = []
    for number, path in enumerate(flat.paths()):
        node, parent = flat.nodes[number], flat.parents[number]
        place = columns.get(path, [0])
        # Regions of the same name but different categories share a path; they come in the same order.
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


def speed_up(
    time_ns: Floats, region_ns: Floats, share: float, saved: tuple[float, float], floor: float = 0.0
) -> Estimate | None:
    """Amdahl's law with a 95 % interval, if a fraction in `saved` (low, high) of some regions were saved.

    `time_ns` and `region_ns` are cumulative, [windows]; `share` is the regions' share of the wall time net
    of our own cost, and the windows only give its uncertainty. `floor` is the share of the wall time in
    which helpers are busy: the run cannot get shorter. None with fewer than 8 windows.
    """
    if len(time_ns) < LEAST_WINDOWS or share <= 0:
        return None
    wall = np.diff(time_ns, prepend=0.0)
    region = np.clip(np.diff(region_ns, prepend=0.0), 0.0, wall)
    if region.sum() <= 0:
        return None
    counts = block_counts(len(wall))
    drawn = (counts @ region) / np.maximum(counts @ wall, 1.0)
    drawn *= share / (region.sum() / wall.sum())

    def factor(of_regions: float, shares: Floats) -> Floats:
        left = np.maximum(1.0 - of_regions * np.clip(shares, 0.0, 1.0), max(floor, 1e-3))
        result: Floats = np.maximum(1.0 / left, 1.0)
        return result

    value = float(factor((saved[0] + saved[1]) / 2, np.array([share]))[0])
    least = float(np.quantile(factor(saved[0], drawn), 0.025))
    most = float(np.quantile(factor(saved[1], drawn), 0.975))
    return Estimate(value, min(least, value), max(most, value))
