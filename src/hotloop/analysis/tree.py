"""Region trees as flat rows: own time net of our cost, shares, percentiles; finds the driving thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.categories import Resolver, has_twins, resolved
from hotloop.analysis.findings import Breakdown, CategoryShare, RegionFinding
from hotloop.analysis.services import is_service
from hotloop.capture import layout
from hotloop.capture.model import Capture, Node, Process, Thread, merged
from hotloop.capture.region_names import RAY_WAIT_FOR

PERCENTILES = (0.50, 0.90, 0.99)
SHORT_LIVED = 0.5  # share of the work, and of the longest thread's time, below which a worker drives nothing
ONLY_WAITS = 0.9  # share of a helper thread's time in regions of waiting from which it drives nothing
IDLE = 0.99  # and from which it is left out of shares: nothing but tqdm's monitor, say, waits like that
LEAST_ROUNDS = 4  # waits for its workers that make the driver of a Ray job the one that hands out work
_CHUNK = 4096  # histograms in one matrix while percentiles are computed: 5 MB

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FlatTree:
    """The tree of one thread, or of several merged, as rows with parents first.

    own_ns is net of our own cost: sum(own_ns) + unattributed_ns + cost_ns == wall_ns, exactly.
    """

    wall_ns: int
    unattributed_ns: int
    cost_ns: int  # our own cost, subtracted from own times; 0 if unknown
    cost_known: bool
    nodes: tuple[Node, ...]
    categories: tuple[str, ...]
    parents: tuple[int, ...]  # row of the parent, -1 for the thread itself
    own_ns: tuple[int, ...]

    def paths(self) -> list[tuple[str, ...]]:
        """The path of every row, outermost region first."""
        found: list[tuple[str, ...]] = []
        for node, parent in zip(self.nodes, self.parents, strict=True):
            found.append((*found[parent], node.name) if parent >= 0 else (node.name,))
        return found


CLOSE_NS = 2_000  # calls that follow each other faster leave no time for other code in between
CLOSE_SHARE = 1 / 3  # of the calibrated cost, as measured in a loop of its own


def cost_of_calls(calls: int, during_ns: float, region_cost_ns: float) -> float:
    """Our own cost of that many calls of regions during this time.

    The cost is calibrated between other code, as in a training loop; in a tight loop a region costs less.
    """
    return calls * region_cost_ns * (CLOSE_SHARE if during_ns < calls * CLOSE_NS else 1.0)


def flatten(root: Node, resolver: Resolver, region_cost_ns: float | None) -> FlatTree:
    """Rows of a thread's tree (or of several merged ones) with categories and net own time.

    How our own cost is subtracted: the recorder reads the clock first and then does its bookkeeping, so the
    cost of opening a region falls into that region and the cost of closing it into the enclosing one. So half
    of the cost of its calls is taken from its own time and half from its parent's (at the top, from
    unattributed time). If one of them has less than that, the other pays; what neither can pay was not spent
    there and is not counted. So every nanosecond of the category `hotloop` comes out of another row.
    """
    nodes: list[Node] = []
    kinds: list[str] = []
    parents: list[int] = []
    left = [0]  # remaining own time by row + 1; [0] is the thread's unattributed time
    for node, kind, _, parent in resolver.walk(root):
        nodes.append(node)
        kinds.append(kind)
        parents.append(parent - 1)
        left.append(max(node.own_ns, 0))
    attributed = sum(left)
    wall_ns = max(root.total_ns, attributed)  # a torn read may leave a few ns more inside than outside
    left[0] = wall_ns - attributed
    cost_ns = 0
    for row, node in enumerate(nodes if region_cost_ns else ()):
        around = nodes[parents[row]] if parents[row] >= 0 else root
        bill = round(cost_of_calls(node.calls, around.total_ns, region_cost_ns or 0.0))
        mine, above = row + 1, parents[row] + 1
        for payer, share in ((mine, bill // 2), (above, bill), (mine, bill)):
            paid = min(share, left[payer], bill)
            left[payer] -= paid
            cost_ns += paid
            bill -= paid
    return FlatTree(
        wall_ns=wall_ns,
        unattributed_ns=left[0],
        cost_ns=cost_ns,
        cost_known=region_cost_ns is not None,
        nodes=tuple(nodes),
        categories=tuple(kinds),
        parents=tuple(parents),
        own_ns=tuple(left[1:]),
    )


def merged_tree(captures: Sequence[Capture], resolver: Resolver) -> Node:
    """All threads of several captures merged into one tree, for `flatten`.

    If two siblings share a name, categories are resolved first, so that each path and category occurs once.
    """
    one = len(captures) == 1
    tree = captures[0].tree if one else merged([t for c in captures for t in c.threads])
    return resolved(tree, resolver) if has_twins(tree) else tree


def breakdown(flat: FlatTree, label: str) -> Breakdown:
    """Own time by category; `unattributed` always has a row, `hotloop` if its cost is known."""
    own: dict[str, int] = {"unattributed": flat.unattributed_ns}
    calls: dict[str, int] = {"unattributed": 0}
    if flat.cost_known:
        own["hotloop"], calls["hotloop"] = flat.cost_ns, 0
    for node, kind, own_ns in zip(flat.nodes, flat.categories, flat.own_ns, strict=True):
        own[kind] = own.get(kind, 0) + own_ns
        calls[kind] = calls.get(kind, 0) + node.calls
    wall = flat.wall_ns
    shares = tuple(
        CategoryShare(kind, own_ns, own_ns / wall if wall else 0.0, calls[kind])
        for kind, own_ns in sorted(own.items(), key=lambda item: (-item[1], item[0]))
    )
    return Breakdown(
        label=label,
        wall_ns=wall,
        categories=shares,
        unattributed_ns=flat.unattributed_ns,
        hotloop_ns=own["hotloop"] if flat.cost_known else None,
    )


def region_findings(flat: FlatTree, env_steps: int) -> tuple[RegionFinding, ...]:
    """The table of all regions, most own time first; total_ns is as recorded, including our cost."""
    quantiles = percentiles_ns(flat.nodes, PERCENTILES)
    wall = flat.wall_ns
    rows = []
    for number, (node, kind, own_ns, path) in enumerate(
        zip(flat.nodes, flat.categories, flat.own_ns, flat.paths(), strict=True)
    ):
        p50, p90, p99 = quantiles[number]
        rows.append(
            RegionFinding(
                path=path,
                name=node.name,
                category=kind,
                site=node.site,
                calls=node.calls,
                total_ns=node.total_ns,
                own_ns=own_ns,
                share=own_ns / wall if wall else 0.0,
                mean_ns=node.mean_ns,
                min_ns=node.min_ns,
                max_ns=node.max_ns,
                sd_ns=node.sd_ns,
                p50_ns=p50,
                p90_ns=p90,
                p99_ns=p99,
                rss_growth_bytes=node.rss_growth_bytes,
                rss_peak_bytes=node.rss_peak_bytes,
                device_ns=node.device_ns,
                device_peak_bytes=node.device_peak_bytes,
                bytes_moved=node.bytes_moved,
                flops=node.flops,
                calls_per_env_step=node.calls / env_steps if env_steps else None,
                out_of_order=node.out_of_order,
            )
        )
    rows.sort(key=lambda row: (-row.own_ns, row.path))
    return tuple(rows)


def percentiles_ns(nodes: Sequence[Node], fractions: Sequence[float]) -> list[tuple[float | None, ...]]:
    """`Node.percentile_ns` for many nodes at once (50,000 in 0.1 s instead of 2 s)."""
    found: list[tuple[float | None, ...]] = [(None,) * len(fractions)] * len(nodes)
    measured = [(i, n) for i, n in enumerate(nodes) if n.min_ns is not None and n.max_ns is not None]
    known = [(i, n, n.buckets) for i, n in measured if n.buckets is not None]
    for start in range(0, len(known), _CHUNK):
        rows = known[start : start + _CHUNK]
        counts = np.stack([buckets for _, _, buckets in rows]).astype(np.float64)
        least = np.array([node.min_ns for _, node, _ in rows], dtype=np.float64)
        most = np.array([node.max_ns for _, node, _ in rows], dtype=np.float64)
        cumulative = np.cumsum(counts, axis=1)
        columns = [_percentile(counts, cumulative, least, most, f) for f in fractions]
        for row, (number, _, _) in enumerate(rows):
            if cumulative[row, -1] > 0:
                found[number] = tuple(float(column[row]) for column in columns)
    return found


_EDGES = np.array(layout.bucket_edges_ns(), dtype=np.float64)


def _percentile(counts: Floats, cumulative: Floats, least: Floats, most: Floats, fraction: float) -> Floats:
    rows = np.arange(len(counts))
    target = fraction * cumulative[:, -1]
    bucket = np.minimum((cumulative < target[:, None]).sum(axis=1), layout.BUCKETS - 1)
    before = np.where(bucket > 0, cumulative[rows, bucket - 1], 0.0)
    inside = (target - before) / np.maximum(counts[rows, bucket], 1.0)
    low = np.maximum(np.where(bucket > 0, _EDGES[bucket], 0.0), least)
    high = np.minimum(np.where(bucket < layout.BUCKETS - 1, _EDGES[bucket + 1], most), most)
    return np.asarray(np.clip(low + inside * (high - low), least, most))


def driving_thread(capture: Capture) -> tuple[Process, Thread] | None:
    """The thread that drives training: most env steps and updates, else most wall time.

    Its shares of all env steps and all updates are added, so that a learner that makes every update wins over
    one of many collectors; updates break ties. Folded threads (many short ones merged) are a last resort.
    A worker that did a small part of the work in a small part of the time drives nothing: whoever starts
    such workers again and again does. Nor does a helper thread that only waits, such as TensorBoard's writer.
    Where nobody was seen learning, the driver of a Ray job that waits for its workers again and again drives.
    """
    pairs = [(p, t) for p in capture.processes for t in p.threads]
    pairs = [(p, t) for p, t in pairs if t.folded_threads == 0] or pairs
    pairs = [(p, t) for p, t in pairs if not is_service(p)] or pairs
    pairs = [(p, t) for p, t in pairs if not _only_waits(t, ONLY_WAITS)] or pairs
    if not pairs:
        return None
    steps = sum(t.progress.env_steps for _, t in pairs) or 1
    updates = sum(t.progress.updates for _, t in pairs)
    handing_out = None if updates else _ray_driver(pairs)
    if handing_out is not None:
        return handing_out

    def drive(pair: tuple[Process, Thread]) -> tuple[float, float, int]:
        done = pair[1].progress
        update_share = done.updates / (updates or 1)
        return (done.env_steps / steps + update_share, update_share, pair[1].wall_ns)

    best = max(pairs, key=drive)
    longest = max(pairs, key=lambda pair: pair[1].wall_ns)
    if drive(best)[0] < SHORT_LIVED and best[1].wall_ns < SHORT_LIVED * longest[1].wall_ns:
        return longest
    return best


def _ray_driver(pairs: Sequence[tuple[Process, Thread]]) -> tuple[Process, Thread] | None:
    """The thread of a Ray job's driver that waits for its workers again and again; None: there is none.

    A single actor that makes all env steps drives by itself.
    """
    drivers = [pair for pair in pairs if _is_of_ray(pair[0], "driver")]
    stepping = {id(p) for p, t in pairs if t.progress.env_steps and _is_of_ray(p, "worker")}
    if not drivers or len(stepping) == 1 or any(t.progress.env_steps for _, t in drivers):
        return None
    found = max(drivers, key=lambda pair: _waits_for_tasks(pair[1].root))
    return found if _waits_for_tasks(found[1].root) >= LEAST_ROUNDS else None


def _is_of_ray(process: Process, kind: str) -> bool:
    return process.origin is not None and process.origin.ray == kind


def _waits_for_tasks(node: Node) -> int:
    mine = node.calls if node.name.startswith(RAY_WAIT_FOR) else 0
    return mine + sum(map(_waits_for_tasks, node.children))


def without_idle_helpers(capture: Capture, driver: Thread) -> Capture:
    """The capture without our own threads and helpers that did nothing but wait, such as the one of tqdm.

    Their waiting is no part of training, so shares of the time of all threads leave it out.
    """

    def works(thread: Thread) -> bool:
        return thread is driver or not (_only_waits(thread, IDLE) or thread.name.startswith("hotloop "))

    processes = (replace(p, threads=tuple(filter(works, p.threads))) for p in capture.processes)
    return replace(capture, processes=tuple(processes))


def _only_waits(thread: Thread, share: float) -> bool:
    """Whether a helper thread without progress spends more than that share of its time in waits."""
    done = thread.progress
    if thread.name == "MainThread" or done.env_steps or done.updates:
        return False
    waiting = 0
    nodes = [thread.root]
    while nodes:
        node = nodes.pop()
        waiting += node.own_ns if node.category == "wait" else 0
        nodes += node.children
    return waiting > share * thread.wall_ns


def process_name(process: Process) -> str:
    """`train.py`, or `ddp.py rank 1` for a rank of several."""
    origin = process.origin
    name = process.label or "process"
    if origin is None or origin.rank is None or origin.target or (origin.world_size or 0) < 2:
        return name
    return f"{name} rank {origin.rank}"


def thread_label(process: Process, thread: Thread) -> str:
    """`train.py (pid 42), MainThread`."""
    label = f"{process_name(process)} (pid {process.pid})"
    if thread.folded_threads:
        return f"{label}, {thread.folded_threads} short threads"
    return f"{label}, {thread.name or thread.native_id}"
