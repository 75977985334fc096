"""Two captures side by side, region by region: describes two runs, does not judge them.

One run each cannot tell a real difference from noise, so nothing here says faster or slower. Rows carry both
figures and their ratio, and the result says how to get a verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hotloop.analysis.work_counters import WorkDifference
from hotloop.capture.model import Capture, Node

Per = Literal["env_step", "wall"]

CAUTION = (
    "One run each proves nothing: two runs of the same program differ as well, and a single run does not "
    "show by how much."
)
HOW_TO_DECIDE = (
    "For a verdict use hotloop compare: it runs both several times in alternation (A B, B A, ...), each "
    "run in a fresh process and both runs of a pair with the same seed."
)
UNATTRIBUTED = "(unattributed)"  # the root's row: thread time in no region
_VERSION_LIMIT = 8  # differing library versions to list


@dataclass(frozen=True, slots=True)
class DiffSide:
    """One of the two runs as a whole."""

    label: str  # where the capture was read from
    wall_ns: int
    thread_ns: int  # wall time of all threads added up
    env_steps: int
    updates: int
    episodes: int
    mean_episode_length: float | None  # None: no lengths were reported
    env_steps_per_s: float | None  # None: no env steps were reported
    wall_per_env_step_ns: float | None


@dataclass(frozen=True, slots=True)
class DiffRow:
    """A region (one path, all threads added up) in both runs; None where a run does not have it."""

    path: tuple[str, ...]
    name: str
    category: str  # as given by the program
    a_calls: int | None
    b_calls: int | None
    a_own_ns: int | None
    b_own_ns: int | None
    a_total_ns: int | None
    b_total_ns: int | None
    a_per: float | None  # own ns per env step, or share of the wall time (see CaptureDiff.per)
    b_per: float | None
    change: float  # b_per - a_per; a missing region counts as 0
    ratio: float | None  # b_per / a_per; None when one of them is missing or a's is 0


@dataclass(frozen=True, slots=True)
class CaptureDiff:
    """All that can be said about two captures without running anything."""

    per: Per  # unit of a_per and b_per: ns per env step, or thread time as a share of the wall time
    a: DiffSide
    b: DiffSide
    work: tuple[WorkDifference, ...]  # empty when both did the same work
    setup: tuple[str, ...]  # sentences: what else differs (machine, versions, unfinished runs)
    rows: tuple[DiffRow, ...]  # largest change first
    caution: str
    how_to_decide: str


def diff(a: Capture, b: Capture, labels: tuple[str, str] = ("A", "B")) -> CaptureDiff:
    """Compare two captures per env step when both counted env steps, else as shares of the wall time."""
    sides = _side(a, labels[0]), _side(b, labels[1])
    per: Per = "env_step" if sides[0].env_steps and sides[1].env_steps else "wall"
    unit_a, unit_b = (s.env_steps if per == "env_step" else s.wall_ns for s in sides)
    regions_a, regions_b = _regions(a.tree), _regions(b.tree)
    rows = [
        _row(path, regions_a.get(path), regions_b.get(path), unit_a, unit_b)
        for path in dict.fromkeys([*regions_a, *regions_b])
    ]
    rows.sort(key=lambda row: -abs(row.change))
    return CaptureDiff(per, *sides, _work(*sides), _setup(a, b), tuple(rows), CAUTION, HOW_TO_DECIDE)


def _side(capture: Capture, label: str) -> DiffSide:
    done = capture.progress
    wall_ns = capture.wall_ns
    return DiffSide(
        label=label,
        wall_ns=wall_ns,
        thread_ns=sum(thread.wall_ns for thread in capture.threads),
        env_steps=done.env_steps,
        updates=done.updates,
        episodes=done.episodes,
        mean_episode_length=done.mean_length,
        env_steps_per_s=done.env_steps / wall_ns * 1e9 if done.env_steps and wall_ns else None,
        wall_per_env_step_ns=wall_ns / done.env_steps if done.env_steps else None,
    )


def _regions(root: Node) -> dict[tuple[str, ...], Node]:
    """Figures by path; paths that differ only in category are added up."""
    found: dict[tuple[str, ...], Node] = {}
    todo: list[tuple[tuple[str, ...], Node]] = [((), root)]
    while todo:
        path, node = todo.pop()
        row = found.setdefault(path, Node(node.name or UNATTRIBUTED, node.category))
        row.absorb(node)
        todo += [((*path, child.name), child) for child in reversed(node.children)]
    return found


def _row(path: tuple[str, ...], a: Node | None, b: Node | None, unit_a: int, unit_b: int) -> DiffRow:
    either = a or b
    assert either is not None
    a_per = a.own_ns / unit_a if a and unit_a else None
    b_per = b.own_ns / unit_b if b and unit_b else None
    return DiffRow(
        path=path,
        name=either.name,
        category=either.category,
        a_calls=a.calls if a else None,
        b_calls=b.calls if b else None,
        a_own_ns=a.own_ns if a else None,
        b_own_ns=b.own_ns if b else None,
        a_total_ns=a.total_ns if a else None,
        b_total_ns=b.total_ns if b else None,
        a_per=a_per,
        b_per=b_per,
        change=(b_per or 0.0) - (a_per or 0.0),
        ratio=b_per / a_per if a_per and b_per is not None else None,
    )


def _work(a: DiffSide, b: DiffSide) -> tuple[WorkDifference, ...]:
    counters: list[tuple[str, float | None, float | None]] = [
        ("env_steps", a.env_steps, b.env_steps),
        ("updates", a.updates, b.updates),
        ("updates_per_env_step", _ratio(a.updates, a.env_steps), _ratio(b.updates, b.env_steps)),
        ("episodes", a.episodes, b.episodes),
        ("mean_episode_length", a.mean_episode_length, b.mean_episode_length),
    ]
    return tuple(
        WorkDifference(name, one, two, two / one if one else None)
        for name, one, two in counters
        if one is not None and two is not None and one != two
    )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _setup(a: Capture, b: Capture) -> tuple[str, ...]:
    sentences = []
    for key, what in (
        ("host", "The host"),
        ("cpu", "The CPU"),
        ("cores_granted", "The number of cores granted"),
    ):
        sentences += _differs(what, a.machine.get(key), b.machine.get(key))
    versions_a, versions_b = (dict(c.facts.get("versions", {})) for c in (a, b))
    names = [n for n in versions_a if n in versions_b and versions_a[n] != versions_b[n]]
    for name in names[:_VERSION_LIMIT]:
        sentences += _differs(f"The version of {name}", versions_a[name], versions_b[name])
    sentences += _differs("The recorder", a.facts.get("core"), b.facts.get("core"))
    for label, capture in (("A", a), ("B", b)):
        if any(process.alive for process in capture.processes):
            sentences.append(f"{label} is still running; its figures cover the run so far.")
        sentences += [f"About {label}: {warning}" for warning in capture.all_warnings]
    return tuple(sentences)


def _differs(what: str, a: Any, b: Any) -> list[str]:
    return [f"{what} differs: {a} in A, {b} in B."] if a is not None and b is not None and a != b else []
