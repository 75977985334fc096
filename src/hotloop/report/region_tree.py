"""Tables of regions: the tree that `hotloop show` prints, and the summary printed while training goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotloop._util.units import count, duration, percent, short_count, short_duration, size
from hotloop.analysis.region_tree import RegionTree, walk
from hotloop.capture.model import Capture, Node, Progress
from hotloop.capture.stats import ProfilerStats
from hotloop.report.safe_text import columns, shown
from hotloop.report.to_json import json_object

HEADINGS = ("region", "calls", "total", "own", "share", "mean", "p50", "p99")
WIDTHS = (8, 7, 7, 6, 7, 7, 7)  # leaves 24 columns for the name at 80
SUMMARY_HEADINGS = ("operation", "calls", "total", "mean", "min", "max", "memory peak", "GPU peak")
SUMMARY_COLUMNS = 80


def region_tree_text(tree: RegionTree, width: int, max_depth: int | None = None) -> str:
    """One tree at `width` columns; `share` is own time over the wall time of its threads."""
    name_width = max(width - sum(WIDTHS) - len(WIDTHS), 16)
    lines = [_line(HEADINGS, name_width)]
    for depth, node in walk(tree.root):
        if max_depth is None or depth < max_depth:
            lines.append(_line(_cells(node, depth, tree, name_width), name_width))
    unattributed = tree.unattributed_ns
    cells = ("(unattributed)", "", "", short_duration(unattributed), _share(tree, unattributed))
    lines.append(_line(cells, name_width))
    # No share: it is part of the rows above, which add up to 100 %.
    lines.append(_line(("(hotloop itself)", "", "", short_duration(tree.hotloop_ns)), name_width))
    return "\n".join(lines)


def capture_header(capture: Capture, trees: Sequence[RegionTree]) -> str:
    """Path, wall time, processes, threads and progress of a capture, in two lines."""
    threads = sum(tree.thread_count for tree in trees)
    done = capture.progress
    parts = [
        f"{duration(capture.wall_ns)} wall time",
        f"{len(capture.processes)} process{'es' * (len(capture.processes) != 1)}",
        f"{threads} thread{'s' * (threads != 1)}",
    ]
    for name, value in (
        ("env steps", done.env_steps),
        ("updates", done.updates),
        ("episodes", done.episodes),
    ):
        parts += [f"{count(value)} {name}"] if value else []
    return f"{shown(str(capture.path or 'this process'))}\n" + ", ".join(parts)


def region_tree_json(capture: Capture, trees: Sequence[RegionTree]) -> dict[str, Any]:
    """The trees as plain values; docs/capture-format.md describes the fields."""
    data = {
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
                "label": tree.label,
                "threads": tree.thread_count,
                "wall_ns": tree.wall_ns,
                "unattributed_ns": tree.unattributed_ns,
                "hotloop_ns": tree.hotloop_ns,
                "open_now": list(tree.open_now),
                "tree": node_json(tree.root),
            }
            for tree in trees
        ],
        "warnings": list(capture.all_warnings),
    }  # fmt: skip
    return json_object("show", data)


def node_json(node: Node) -> dict[str, Any]:
    """A node and everything below it, most total time first."""
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


def _share(tree: RegionTree, ns: float | None) -> str:
    return percent(None if ns is None else tree.share(ns)).replace(" ", "")  # no room for the blank


def _cells(node: Node, depth: int, tree: RegionTree, name_width: int) -> tuple[str, ...]:
    indent = "  " * min(depth, (name_width - 12) // 2)
    mark = "*" if node.out_of_order else ">" if node.open_calls else ""
    return (
        indent + shown(node.name, name_width - len(indent) - len(mark)) + mark,
        short_count(node.calls),
        short_duration(node.total_ns),
        short_duration(node.own_ns),
        _share(tree, node.own_ns),
        short_duration(node.mean_ns),
        short_duration(node.percentile_ns(0.50)),
        short_duration(node.percentile_ns(0.99)),
    )


def _line(cells: Sequence[str], name_width: int) -> str:
    padding = " " * (name_width - columns(cells[0]))
    numbers = "".join(" " + cell.rjust(width) for cell, width in zip(cells[1:], WIDTHS, strict=False))
    return (cells[0] + padding + numbers).rstrip()


def summary_table(stats: Sequence[ProfilerStats], progress: Progress) -> str:
    """One row for each operation, 80 columns wide; a column for the GPU only if one was measured."""
    rows = [
        (
            "",
            count(s.calls),
            duration(s.total_ns),
            duration(s.mean_ns),
            duration(s.min_ns),
            duration(s.max_ns),
            size(s.rss_peak_bytes),
            size(s.device_peak_bytes),
        )
        for s in stats
    ]
    rows.insert(0, ("", *SUMMARY_HEADINGS[1:]))
    figures = [row[1:] if any(s.device_peak_bytes for s in stats) else row[1:-1] for row in rows]
    widths = [max(map(columns, column)) for column in zip(*figures, strict=True)]
    left = max(SUMMARY_COLUMNS - sum(widths) - 2 * len(widths), 12)
    names = [SUMMARY_HEADINGS[0], *(shown(s.name, left) for s in stats)]
    widest = max(map(columns, names))
    lines = [f"hotloop: after {count(progress.env_steps)} env steps, {count(progress.updates)} updates"]
    for name, row in zip(names, figures, strict=True):
        cells = [name + " " * (widest - columns(name))]
        cells += [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
