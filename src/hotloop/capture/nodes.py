"""The nodes of a run on several computers: what came from each, and what is missing.

`nodes/<id>.json` is written by the driver's process, and again whenever a node sent something.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from hotloop._util.conform import Misfit, conform
from hotloop._util.errors import CaptureError, FileError
from hotloop._util.read_files import Reader, files_in
from hotloop._util.visible import visible

FOLDER = "nodes"
FRESH_NS = 15_000_000_000  # a node that sent something since then is still there
_READER = Reader(1 << 20, CaptureError, follow=False)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One computer of the run."""

    node: str  # id
    host: str = ""
    address: str = ""
    driver: bool = False  # the driver's process is here
    shared: bool = False  # its processes record into the capture itself
    folder: str = ""  # where its processes record, on its own disk
    problem: str = ""  # why it is not recorded; "": it is
    lost: bool = False  # it left before the end
    complete: bool = False  # everything up to the end has come
    seen_ns: int | None = None  # real time of the driver when the last news came; None: nothing came
    running: tuple[int, ...] = ()  # processes that ran then
    folded: int = 0  # processes in the summary that it sent instead of their recordings; 0: it sent them all
    received_bytes: int = 0  # over the network, compressed
    network_id: str = ""  # nodes with the same one have the same network interfaces; "": not known
    network: tuple[int, int, int] | None = None  # ns, bytes received and sent in that time, by all programs
    clock: tuple[tuple[int, int, int], ...] = ()  # driver's monotonic time, offset, uncertainty (-1: unknown)

    @property
    def name(self) -> str:
        """As shown to users."""
        address = f" ({self.address})" if self.address and self.address != self.host else ""
        return f"{self.host or self.node[:8]}{address}"

    @property
    def clock_uncertainty_ns(self) -> int | None:
        """How far its times may be off, after alignment; None: not known."""
        known = bool(self.clock) and all(found[2] >= 0 for found in self.clock)
        return max(found[2] for found in self.clock) if known else None

    def is_fresh(self, now_ns: int) -> bool:
        """Whether it sent something a moment ago."""
        return self.seen_ns is not None and abs(now_ns - self.seen_ns) < FRESH_NS and not self.complete


def read_nodes(folder: Path, warnings: list[str]) -> tuple[NodeFacts, ...]:
    """The nodes of a capture, the driver's first; () for a run on one computer."""
    found: list[NodeFacts] = []
    for file in files_in(folder / FOLDER, ".json", CaptureError):
        try:
            found.append(conform(_READER.read_object(file), NodeFacts, file.name))
        except (FileError, Misfit) as problem:
            warnings.append(visible(f"left out {file.name}: {problem}"))
    return tuple(sorted(found, key=lambda node: (not node.driver, node.name, node.node)))


def node_of(host: str, node: str, nodes: tuple[NodeFacts, ...]) -> str:
    """The id of the node that a process ran on: `node` as it was recorded, else by the name of its host."""
    if node:
        return node
    named = [known.node for known in nodes if known.host == host]
    return named[0] if len(named) == 1 else ""


def describe_missing(nodes: tuple[NodeFacts, ...], ended_ns: int | None) -> list[str]:
    """A sentence for each node of which something is missing; `ended_ns` is None while the run goes on."""
    found: list[str] = []
    for node in nodes:
        if node.folded:
            found.append(
                f"node {node.name} sent one summary of its {node.folded} processes: the report shows their "
                "roles, and has regions and advice of the other processes; hotloop merge --summary shows all"
            )
        if node.shared:
            found += [f"node {node.name} was lost: its recordings end there"] if node.lost else []
        elif node.problem:
            found.append(f"node {node.name} is not recorded: {node.problem}")
        elif node.seen_ns is None and not node.driver:
            if ended_ns is not None or node.lost:
                found.append(f"node {node.name}: nothing of what it recorded has arrived")
        elif node.seen_ns is not None and not node.complete and (node.lost or ended_ns is not None):
            until = time.strftime("%H:%M:%S", time.localtime(node.seen_ns / 1e9))
            why = "was lost" if node.lost else "sent nothing at the end"
            there = f"; it is in {node.folder} there" if node.folder else ""
            found.append(f"node {node.name} {why}: what it recorded after {until} is missing{there}")
    return [visible(sentence) for sentence in found]
