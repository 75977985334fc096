"""Trees of regions as a table for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotloop._util.units import count, duration, percent, short_count, short_duration
from hotloop.analysis.region_tree import RegionTree, walk
from hotloop.capture.model import Capture, Node, Progress
from hotloop.report.safe_text import columns, shown

SCHEMA_VERSION = 1
HEADINGS = ("region", "calls", "total", "own", "share", "mean", "p50", "p99")
WIDTHS = (8, 7, 7, 6, 7, 7, 7)  # 24 columns are left for the name at 80


def region_tree_text(outline: RegionTree, width: int, max_depth: int | None = None) -> str:
    """One tree at `width` columns: `share` is own time over the wall time of its threads."""
    name_width = max(width - sum(WIDTHS) - len(WIDTHS), 16)
    lines = [_line(HEADINGS, name_width)]
    for depth, node in walk(outline.root):
        if max_depth is None or depth < max_depth:
            lines.append(_line(_cells(node, depth, outline, name_width), name_width))
    for label, ns in (("(unattributed)", outline.unattributed_ns), ("(hotloop itself)", outline.hotloop_ns)):
        lines.append(_line((label, "", "", short_duration(ns), _share(outline, ns)), name_width))
    return "\n".join(lines)


def header_text(capture: Capture, region_trees: Sequence[RegionTree]) -> str:
    """What was recorded, in a line or two."""
    progress = capture.progress
    threads = sum(o.thread_count for o in region_trees)
    parts = [
        f"{duration(capture.wall_ns)} of wall time",
        f"{len(capture.processes)} process{'es' * (len(capture.processes) != 1)}",
        f"{threads} thread{'s' * (threads != 1)}",
    ]
    parts += [f"{count(value)} {name}" for name, value in _counters(progress) if value]
    return f"{shown(str(capture.path or 'this process'))}\n" + ", ".join(parts)


def region_tree_json(capture: Capture, region_trees: Sequence[RegionTree]) -> dict[str, Any]:
    """The same as data; docs/capture-format.md describes it."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "hotloop-show",
        "capture": str(capture.path) if capture.path else None,
        "command": capture.command,
        "wall_ns": capture.wall_ns,
        "region_cost_ns": capture.region_cost_ns,
        "progress": {name: getattr(capture.progress, name) for name in Progress.__slots__},
        "processes": [
            {"host": p.host, "pid": p.pid, "label": p.label, "alive": p.alive, "closed": p.closed,
             "rss_peak_bytes": p.rss_peak_bytes, "threads": [t.name for t in p.threads]}
            for p in capture.processes
        ],
        "tree": node_json(capture.tree),
        "groups": [
            {
                "label": o.label,
                "threads": o.thread_count,
                "wall_ns": o.wall_ns,
                "unattributed_ns": o.unattributed_ns,
                "hotloop_ns": o.hotloop_ns,
                "open_now": list(o.open_now),
                "tree": node_json(o.root),
            }
            for o in region_trees
        ],
        "warnings": [*capture.warnings, *(w for p in capture.processes for w in p.warnings)],
    }  # fmt: skip


def node_json(node: Node) -> dict[str, Any]:
    """A node and what lies below it."""
    return {
        "name": node.name,
        "category": node.category,
        "site": node.site,
        "calls": node.calls,
        "open_calls": node.open_calls,
        "total_ns": node.total_ns,
        "own_ns": node.own_ns,
        "mean_ns": node.mean_ns,
        "sd_ns": node.sd_ns,
        "min_ns": node.min_ns,
        "max_ns": node.max_ns,
        "p50_ns": node.percentile_ns(0.50),
        "p90_ns": node.percentile_ns(0.90),
        "p99_ns": node.percentile_ns(0.99),
        "bytes_moved": node.bytes_moved,
        "flops": node.flops,
        "rss_growth_bytes": node.rss_growth_bytes,
        "rss_peak_bytes": node.rss_peak_bytes,
        "device_ns": node.device_ns,
        "device_growth_bytes": node.device_growth_bytes,
        "device_peak_bytes": node.device_peak_bytes,
        "out_of_order": node.out_of_order,
        "children": [node_json(child) for child in sorted(node.children, key=lambda n: -n.total_ns)],
    }


def _counters(progress: Progress) -> list[tuple[str, int]]:
    return [("env steps", progress.env_steps), ("updates", progress.updates), ("episodes", progress.episodes)]


def _share(outline: RegionTree, ns: float | None) -> str:
    return percent(None if ns is None else outline.share(ns)).replace(" ", "")


def _cells(node: Node, depth: int, outline: RegionTree, name_width: int) -> tuple[str, ...]:
    indent = "  " * min(depth, (name_width - 12) // 2)
    mark = "*" if node.out_of_order else ">" if node.open_calls else ""
    return (
        indent + shown(node.name, name_width - len(indent) - len(mark)) + mark,
        short_count(node.calls),
        short_duration(node.total_ns),
        short_duration(node.own_ns),
        _share(outline, node.own_ns),
        short_duration(node.mean_ns),
        short_duration(node.percentile_ns(0.50)),
        short_duration(node.percentile_ns(0.99)),
    )


def _line(cells: Sequence[str], name_width: int) -> str:
    padding = " " * (name_width - columns(cells[0]))
    numbers = "".join(" " + cell.rjust(width) for cell, width in zip(cells[1:], WIDTHS, strict=False))
    return (cells[0] + padding + numbers).rstrip()
