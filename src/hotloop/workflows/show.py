"""`hotloop show`: the tree of a capture, as text or data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotloop.analysis.region_tree import Grouping, region_trees
from hotloop.capture.open_capture import open_capture
from hotloop.report.region_tree import header_text, region_tree_json, region_tree_text


@dataclass(frozen=True, slots=True)
class TreeOutput:
    """What to print: the text, or the data behind it, and what is wrong with the capture."""

    text: str
    data: dict[str, Any]
    warnings: tuple[str, ...]


def show(path: str | None, by: Grouping, width: int, max_depth: int | None = None) -> TreeOutput:
    """Read a capture and lay out its tree."""
    capture = open_capture(path)
    trees = region_trees(capture, by)
    blocks = [header_text(capture, trees)]
    for tree in trees:
        label = [] if by == "all" else [tree.label]
        blocks.append("\n".join([*label, region_tree_text(tree, width, max_depth)]))
    notes = [f"open now: {name}" for tree in trees for name in tree.open_now]
    for process in capture.processes:
        if not process.closed and not process.alive:
            notes.append(
                f"process {process.pid} ({process.label}) ended without closing its recording; "
                "figures are complete up to its last sign of life"
            )
    if any(t.uncertain for t in capture.threads):
        notes.append("a thread was busy while it was read: its latest events may be half counted")
    legend = "share: own time / wall time of the threads; > still open, * closed out of order"
    blocks.append("\n".join([legend, *notes]))
    warnings = (*capture.warnings, *(w for p in capture.processes for w in p.warnings))
    return TreeOutput("\n\n".join(blocks), region_tree_json(capture, trees), warnings)
