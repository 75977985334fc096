"""Figures of each operation: all places where a name occurs, added up without counting time twice."""

from __future__ import annotations

from dataclasses import dataclass

from hotloop.capture.model import Node


@dataclass(frozen=True, slots=True)
class ProfilerStats:
    """Figures of one operation. Durations are those of completed calls; None means not measured."""

    name: str
    category: str
    calls: int
    total_ns: int  # recursion counts once; includes calls that are still open
    own_ns: int
    mean_ns: float | None
    min_ns: int | None
    max_ns: int | None
    sd_ns: float | None
    p50_ns: float | None
    p90_ns: float | None
    p99_ns: float | None
    rss_growth_bytes: int | None
    rss_peak_bytes: int | None
    device_ns: int | None
    device_growth_bytes: int | None
    device_peak_bytes: int | None
    bytes_moved: float
    flops: float


def by_name(root: Node) -> dict[str, ProfilerStats]:
    """Figures of every name in a tree, largest total time first."""
    sums: dict[str, Node] = {}
    outer: dict[str, int] = {}
    _collect(root, sums, outer, set())
    stats = [_stats(node, outer[name]) for name, node in sums.items()]
    return {s.name: s for s in sorted(stats, key=lambda s: -s.total_ns)}


def _collect(node: Node, sums: dict[str, Node], outer: dict[str, int], above: set[str]) -> None:
    # An explicit stack, since 256 levels on top of a deep caller could exceed the recursion limit.
    todo = [(child, above) for child in node.children]
    while todo:
        node, above = todo.pop()
        total = sums.setdefault(node.name, Node(node.name, node.category, node.site))
        total.category = total.category or node.category
        total.absorb(node)
        if node.name not in above:
            outer[node.name] = outer.get(node.name, 0) + node.total_ns
            above = above | {node.name}
        todo += [(child, above) for child in node.children]


def _stats(node: Node, total_ns: int) -> ProfilerStats:
    return ProfilerStats(
        name=node.name,
        category=node.category,
        calls=node.calls,
        total_ns=total_ns,
        own_ns=node.own_ns,
        mean_ns=node.mean_ns,
        min_ns=node.min_ns,
        max_ns=node.max_ns,
        sd_ns=node.sd_ns,
        p50_ns=node.percentile_ns(0.50),
        p90_ns=node.percentile_ns(0.90),
        p99_ns=node.percentile_ns(0.99),
        rss_growth_bytes=node.rss_growth_bytes,
        rss_peak_bytes=node.rss_peak_bytes,
        device_ns=node.device_ns,
        device_growth_bytes=node.device_growth_bytes,
        device_peak_bytes=node.device_peak_bytes,
        bytes_moved=node.bytes_moved,
        flops=node.flops,
    )
