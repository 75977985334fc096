"""Workers that send much with every step."""

from __future__ import annotations

from hotloop._util.units import percent
from hotloop._util.units import size as size_text
from hotloop.analysis.advice.recommendation import SERIAL, Change, about, advise, library
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.advice.workers import talking_to_workers
from hotloop.analysis.findings import Recommendation
from hotloop.analysis.system import System

LARGE_BYTES = 48 << 10  # of a message: about as much as passing it costs without any content
LEAST_MESSAGES = 50
LEAST_SPENT = 0.1  # of training, in passing messages and waiting for them
# `python benchmarks/message_size.py`, busy: 31 to 45 us for a request and a short answer through a pipe,
# 102 to 598 us for an answer of 200 KiB
ROUND_TRIP_NS, NS_PER_BYTE = 43_000.0, 0.29


def large_messages(run: RunView) -> Recommendation | None:
    """Answers of env workers that hold far more than a step: whole maps, pictures or histories in `info`."""
    if run.findings.system is None:
        return None
    count, size = _answers(run.findings.system)
    if count < LEAST_MESSAGES or size < LARGE_BYTES:
        return None
    workers = [w for w in run.workers if w.process is not run.process and w.work_ns("environment") > 0]
    rows = talking_to_workers(run, workers) if workers else []
    spent_ns = sum(row.total_ns for row in rows)
    work_ns = sum(w.busy_ns - w.work_ns("ipc") for w in workers) / max(len(workers), 1)  # side by side
    if spent_ns < LEAST_SPENT * run.wall_ns or work_ns > 0.8 * spent_ns:
        return None
    content = size * NS_PER_BYTE / (ROUND_TRIP_NS + size * NS_PER_BYTE)
    passing = 1 - work_ns / spent_ns
    # Every 64 KiB the pipe is full and the reader has to get a core, which takes longer on a busy machine.
    low, high = 0.6 * content, content + 0.8 * (1 - content)
    serial = SERIAL.get(library(run), "one process")
    return advise(
        run,
        "large_messages",
        rows[0],
        f"Send less with each step: env workers answer with {size_text(size)}",
        [
            f"{count:,} messages from {len(workers)} env workers hold {size_text(size)} each: observation, "
            "reward, ends and `info`.",
            f"Passing messages and waiting for them took {percent(spent_ns / run.wall_ns)} of training; the "
            f"work of a worker takes {percent(work_ns / spent_ns)} of that.",
            "A message is pickled, written to a pipe in pieces of 64 KiB, read and unpickled.",
            f"Assumption: short messages save between {about(low)} and {about(high)} of what passing takes.",
        ],
        "Leave arrays out of `info`, or add them in the last step of an episode only. Stack frames after the "
        "pipe, not before it. Large observations belong in shared memory (AsyncVectorEnv has it) or in "
        f"{serial}, which sends nothing.",
        run.gain(rows, (low * passing, high * passing), floored=False),
        Change("smaller messages from env workers", "minutes", "safe", provable_by="hand"),
        claimed=rows,
        waits=True,
    )


def _answers(system: System) -> tuple[int, float]:
    """Messages from env workers to the learner, and their mean size in bytes."""
    workers = {
        number
        for number, member in enumerate(system.members)
        if member.kind == "env_worker" and member.thread is not None
    }
    edges = [
        edge
        for edge in system.edges
        if edge.source in workers and edge.target not in workers and edge.messages and edge.bytes is not None
    ]
    count = sum(edge.messages or 0 for edge in edges)
    return count, sum(edge.bytes or 0 for edge in edges) / max(count, 1)
