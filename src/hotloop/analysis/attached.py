"""What a process that was watched from outside does: threads with their states, lines, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.capture.attached import Attached, AttachedThread, Frame

NOTABLE = 0.05
MOST_LINES = 10
# Functions of the standard library and of common libraries in which a thread waits for another one.
_WAITS = {
    "recv": "a message", "_recv": "a message", "recv_bytes": "a message", "poll": "a message",
    "get": "a queue", "put": "a full queue", "wait": "another thread or process", "acquire": "a lock",
    "join": "another thread or process", "select": "input", "accept": "a connection", "result": "a future",
    "_try_get_data": "a data loader", "wait_for": "another thread or process",
}  # fmt: skip
_LIBRARIES = ("/lib/python", "site-packages", "dist-packages", "<frozen", "<string>")


@dataclass(frozen=True, slots=True)
class AttachedLine:
    """One line of the user's code."""

    site: str  # file:line
    function: str
    share: float  # of the thread's samples
    inside: str  # the library function it was in most; "" if in none


@dataclass(frozen=True, slots=True)
class AttachedThreadFindings:
    """One thread; shares are of the time it was watched."""

    name: str
    pid: int
    running: float | None  # on a core; None: the system does not tell
    ready: float | None  # ready to run, but without a core
    off_core: float | None  # waiting or asleep
    gil: float  # share of the samples in which it held the GIL
    waits_for: str  # what it waits for most; "" if it hardly waits
    waits_share: float  # of the samples: in a function that waits
    lines: tuple[AttachedLine, ...]


@dataclass(frozen=True, slots=True)
class AttachedFindings:
    """Everything that was seen, and what follows."""

    command: tuple[str, ...]
    seconds: float
    samples: int
    cores: float
    threads: tuple[AttachedThreadFindings, ...]
    limit: str  # one sentence
    advice: tuple[str, ...]


def explain_attached(seen: Attached) -> AttachedFindings:
    """Findings about a process that was watched from outside."""
    threads = tuple(_thread(thread, seen) for thread in seen.threads)
    total = sum(thread.samples for thread in seen.threads)
    limit, advice = _advice(seen, threads)
    return AttachedFindings(seen.command, seen.seconds, total, seen.cores, threads, limit, advice)


def _thread(thread: AttachedThread, seen: Attached) -> AttachedThreadFindings:
    expected = max(thread.samples, 1)
    running = ready = off = None
    if thread.on_core_s is not None and thread.run_queue_s is not None and seen.seconds > 0:
        running = min(thread.on_core_s / seen.seconds, 1.0)
        ready = min(thread.run_queue_s / seen.seconds, 1.0 - running)
        off = max(1.0 - running - ready, 0.0)
    waits: dict[str, int] = {}
    lines: dict[tuple[str, str], dict[str, int]] = {}
    for stack, count in thread.stacks:
        partner = _waits_in(stack)
        if partner:
            waits[partner] = waits.get(partner, 0) + count
        user, library = _place(stack)
        if user is not None:
            key = f"{user.file}:{user.line}", user.function
            inside = lines.setdefault(key, {})
            inside[library] = inside.get(library, 0) + count
    ranked = sorted(lines.items(), key=lambda one: (-sum(one[1].values()), one[0]))[:MOST_LINES]
    label = thread.name or "thread"
    return AttachedThreadFindings(
        name=f"{label} (pid {thread.pid})" if thread.pid != seen.pid or label != "MainThread" else label,
        pid=thread.pid,
        running=running,
        ready=ready,
        off_core=off,
        gil=min(thread.gil_samples / max(seen.seconds * seen.rate_per_s, 1.0), 1.0),
        waits_for=max(waits, key=lambda name: waits[name]) if waits else "",
        waits_share=sum(waits.values()) / expected,
        lines=tuple(
            AttachedLine(
                site,
                function,
                sum(inside.values()) / expected,
                max(inside, key=lambda name: inside[name]),
            )
            for (site, function), inside in ranked
        ),
    )


def _is_library(frame: Frame) -> bool:
    return any(part in frame.file for part in _LIBRARIES)


def _place(stack: tuple[Frame, ...]) -> tuple[Frame | None, str]:
    """The innermost frame of the user's, and the library function that it called."""
    for at in range(len(stack) - 1, -1, -1):
        if not _is_library(stack[at]):
            return stack[at], stack[at + 1].function if at + 1 < len(stack) else ""
    return (stack[-1], "") if stack else (None, "")


def _waits_in(stack: tuple[Frame, ...]) -> str:
    """What a stack waits for; "" if it does not end in a function that waits."""
    for frame in reversed(stack[-3:]):
        if _is_library(frame):
            found = _WAITS.get(frame.function.rpartition(".")[2])
            if found:
                return found
    return ""


def _advice(seen: Attached, threads: Sequence[AttachedThreadFindings]) -> tuple[str, tuple[str, ...]]:
    main = threads[0]
    advice: list[str] = []
    limit = ""
    busy = [t for t in threads if (t.running or 0.0) + (t.ready or 0.0) > NOTABLE]
    ready = sum(t.ready or 0.0 for t in threads)
    if (main.ready or 0.0) > 0.1:
        limit = f"{main.name} was ready to run but had no core {100 * (main.ready or 0.0):.0f} % of the time"
        wanted = sum((t.running or 0.0) + (t.ready or 0.0) for t in threads)
        threads_set = ", ".join(f"{k}={v}" for k, v in seen.settings.items())
        told = f"it runs with {threads_set}" if threads_set else "no OMP_NUM_THREADS or the like is set"
        is_alone = wanted <= seen.cores and seen.settings.get("OMP_NUM_THREADS") == "1"
        if is_alone:
            advice.append(
                f"Other programs use the cores: this job wanted {wanted:.1f} of {seen.cores:g}. Stop them, "
                "or run it elsewhere."
            )
        else:
            advice.append(
                f"Threads compete for {seen.cores:g} cores ({told}): try fewer workers or arithmetic "
                "threads: hotloop try --only threads -- your command"
            )
    elif ready > 0.3:
        advice.append(
            f"Threads waited {ready:.1f} cores' worth of time for one of {seen.cores:g} cores: more workers "
            "won't help."
        )
    in_process = [t for t in threads if t.pid == main.pid]
    gil = sum(t.gil for t in in_process)
    if gil > 0.85 and sum(t.gil > 0.1 for t in in_process) > 1:
        limit = (
            limit
            or f"the GIL: {len([t for t in in_process if t.gil > 0.1])} threads of one process take turns"
        )
        advice.append("Move one of these threads into a process of its own: they share one GIL.")
    if main.waits_share > 0.3 and not limit:
        workers = [t for t in busy if t is not main]
        slow = max(workers, key=lambda t: t.running or 0.0, default=None)
        limit = f"{main.name} waits for {main.waits_for} {100 * main.waits_share:.0f} % of the time"
        if slow is not None and slow.lines:
            top = slow.lines[0]
            advice.append(f"Look at {slow.name} first: it is busiest, at {top.site} in {top.function}.")
    others = [t for t in busy if t is not main and t.lines]
    if not limit and others and main.running is not None and main.running + (main.ready or 0.0) < 0.2:
        first = max(others, key=lambda t: t.running or 0.0)
        top = first.lines[0]
        limit = (
            f"{main.name} hardly works; {first.name} is busiest, on a core "
            f"{100 * (first.running or 0.0):.0f} % of the time, at {top.site} in {top.function}"
        )
    if not limit and main.lines:
        top = main.lines[0]
        limit = f"{main.name} spends {100 * top.share:.0f} % of its time at {top.site}, in {top.function}"
    advice.append(
        "For regions, predicted gains and advice with proofs, record a run: hotloop run your_script.py"
    )
    return limit + "." if limit else "Nothing stands out.", tuple(advice)
