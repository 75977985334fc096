"""Which threads work and which wait, and whether there are more compute threads than cores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from hotloop._util import units
from hotloop.analysis.categories import Resolver
from hotloop.analysis.findings import CoreTime, Oversubscription, ThreadUse, Waits
from hotloop.analysis.services import is_no_worker
from hotloop.analysis.tree import process_name, thread_label
from hotloop.capture.model import Capture, Process, Thread
from hotloop.capture.scheduling import Counts

NOTABLE = 0.05  # smaller shares of waiting are not mentioned
NOT_WORK = ("import", "compile")  # regions of a process that only gets ready
_LEAST_OVERLAP = 0.2  # processes that live for less of the longest one's life are ignored


def utilisation(capture: Capture, resolver: Resolver) -> tuple[ThreadUse, ...]:
    """Busy, waiting and idle time of every thread, in capture order."""
    return tuple(thread_use(p, t, resolver) for p in capture.processes for t in p.threads)


def thread_use(process: Process, thread: Thread, resolver: Resolver) -> ThreadUse:
    """Busy, waiting and idle time of one thread."""
    busy_ns = waiting_ns = 0
    for node, kind, _, _ in resolver.walk(thread.root):
        if kind == "wait":
            waiting_ns += node.own_ns
        else:
            busy_ns += node.own_ns
    idle_ns = None
    if thread.cpu_ns is not None:
        # CPU time is only known for the thread as a whole. What its regions cannot have used was used outside
        # of them; for the rest of the unattributed time the thread was idle.
        outside_ns = max(thread.cpu_ns - busy_ns, 0)
        idle_ns = max(thread.wall_ns - busy_ns - waiting_ns - outside_ns, 0)
    inner = thread.open[-1] if thread.open else None
    return ThreadUse(
        process=f"{process_name(process)} (pid {process.pid})",
        thread=f"{thread.folded_threads} short threads" if thread.folded_threads else thread.name,
        wall_ns=thread.wall_ns,
        busy_ns=busy_ns,
        waiting_ns=waiting_ns,
        idle_ns=idle_ns,
        cpu_ns=thread.cpu_ns,
        stuck_in=inner.name if inner else None,
        stuck_for_ns=max(thread.end_ns - inner.since_ns, 0) if inner else None,
    )


def waits(uses: tuple[ThreadUse, ...], driver: tuple[Process, Thread], at: int) -> Waits | None:
    """Who waits for whom; `at` is the index of the driving thread in `uses`. None if no thread waits."""
    mine, others = uses[at], [u for i, u in enumerate(uses) if i != at]
    if not mine.wall_ns or not any(u.waiting_ns for u in uses):
        return None
    driver_share = mine.waiting_ns / mine.wall_ns
    others_ns = sum(u.wall_ns for u in others)
    others_share = sum(u.waiting_ns for u in others) / others_ns if others_ns else None
    label = thread_label(*driver)
    if others_share is None:
        summary = f"{label} waits {units.percent(driver_share)} of the time; no other thread was recorded."
    else:
        summary = _who(_role(*driver), driver_share, others_share)
    return Waits(label, driver_share, others_share, summary)


def _role(process: Process, thread: Thread) -> tuple[str, str]:
    """Names for the driving thread and for the others."""
    done = thread.progress
    is_rank = process.origin is not None and (process.origin.world_size or 0) > 1
    if done.updates and not done.env_steps and not is_rank:
        of_ray = process.origin is not None and bool(process.origin.ray)
        return "the learner", "the other threads" if of_ray else "the env workers"
    return "your training thread", "the other threads"


def _who(names: tuple[str, str], driver_share: float, others_share: float) -> str:
    driver, others = names
    shares = f"{driver} waits {units.percent(driver_share)}, {others} wait {units.percent(others_share)}"
    if max(driver_share, others_share) < NOTABLE:
        summary = f"no thread waits much: {shares} of the time"
    elif min(driver_share, others_share) >= NOTABLE and (
        max(driver_share, others_share) < 2 * min(driver_share, others_share)
    ):
        summary = f"they take turns instead of running in parallel: {shares} of the time"
    elif driver_share > others_share:
        summary = f"{driver} waits for {others}: {shares} of the time"
    else:
        summary = f"{others} wait for {driver}: {shares} of the time"
    return summary[0].upper() + summary[1:] + "."


def others_may_hold_up(found: Waits | None) -> bool:
    """Whether the driving thread waits for others that hardly wait.

    Its own work may then be off the critical path, and making it faster may only make it wait longer.
    """
    if found is None or found.others_share is None:
        return False
    return found.driver_share >= NOTABLE and found.others_share < max(found.driver_share / 2, NOTABLE)


# -- cores and compute threads ---------------------------------------------------------------------


def core_time(process: Process, thread: Thread) -> CoreTime | None:
    """What the system did with a thread between its start and its end; None if it does not report that."""
    figures = thread.scheduling
    if figures is None or figures.on_core_ns is None or figures.run_queue_ns is None:
        return None
    span = covered(figures.time_ns, thread.start_ns, thread.end_ns)
    if span is None:
        return None
    on_core, run_queue = (
        share_of(figures.time_ns, values, span) for values in (figures.on_core_ns, figures.run_queue_ns)
    )
    pools = process.scheduling
    pool_on_core = pool_run_queue = None
    if pools is not None and (both := covered(pools.time_ns, *span)) is not None:
        pool_on_core = share_of(pools.time_ns, pools.native_on_core_ns, both)
        pool_run_queue = share_of(pools.time_ns, pools.native_run_queue_ns, both)
    taken_off = share_of(figures.time_ns, figures.involuntary_switches, span)
    return CoreTime(
        on_core=min(on_core or 0.0, 1.0),
        run_queue=min(run_queue or 0.0, 1.0),
        pool_on_core=pool_on_core,
        pool_run_queue=pool_run_queue,
        taken_off_per_s=None if taken_off is None else 1e9 * taken_off,
    )


def covered(time_ns: Counts, begin_ns: int, end_ns: int) -> tuple[int, int] | None:
    """The part of a stretch that the rows cover; None if that is less than half of it."""
    if len(time_ns) < 2:
        return None
    first, last = max(int(time_ns[0]), begin_ns), min(int(time_ns[-1]), end_ns)
    return (first, last) if last - first > (end_ns - begin_ns) / 2 > 0 else None


def share_of(time_ns: Counts, values: Counts | None, span: tuple[int, int]) -> float | None:
    """How much a cumulative figure grew in a stretch, per nanosecond of it."""
    if values is None:
        return None
    origin = time_ns[0]
    at = np.interp(np.array(span, dtype=np.float64) - float(origin), (time_ns - origin), values)
    return float(at[1] - at[0]) / (span[1] - span[0])


def compute_threads(process: Process, machine: dict[str, Any]) -> tuple[int | None, str]:
    """Compute threads that a process may use for one call, and where that number comes from."""
    for setting in reversed(process.thread_settings):
        if setting.time_ns > process.end_ns:
            continue
        values = setting.values
        if isinstance(values.get("torch"), int):
            return int(values["torch"]), "torch"
        given = _from_variables(values)
        if given is not None:
            return given
        break
    return threads_each(machine)


def threads_each(machine: dict[str, Any]) -> tuple[int | None, str]:
    """Compute threads that a process starts by default, and where that number comes from."""
    given = _from_variables(machine.get("threads_env") or {})
    if given is not None:
        return given
    present = machine.get("cores_present")
    if isinstance(present, int) and present > 0:
        return present, "no limit is set, so libraries use every core they see"
    return None, ""


def _from_variables(values: dict[str, Any]) -> tuple[int, str] | None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        text = str(values.get(name) or "").split(",")[0]
        if re.fullmatch("[0-9]{1,6}", text) and int(text) > 0:
            return int(text), name
    return None


def working_processes(capture: Capture) -> tuple[Process, ...]:
    """Processes that did more than import code: no fork servers, resource trackers or launchers."""
    return tuple(
        process
        for process in capture.processes
        if any(map(_works, process.threads)) and not is_no_worker(capture, process)
    )


def _works(thread: Thread) -> bool:
    spent_ns = sum(node.total_ns for node in thread.root.children if node.name not in NOT_WORK)
    return spent_ns > 0.01 * thread.wall_ns or thread.progress.env_steps + thread.progress.updates > 0


def oversubscription(
    capture: Capture, uses: tuple[ThreadUse, ...], driver: tuple[Process, Thread] | None = None
) -> Oversubscription | None:
    """Processes x compute threads against the cores granted; None if those are unknown."""
    machine = capture.machine
    cores = machine.get("cores_granted")
    working = working_processes(capture)
    if not isinstance(cores, (int, float)) or cores <= 0 or not working:
        return None
    found = [compute_threads(process, machine) for process in working]
    each, source = max(found, key=lambda pair: pair[0] or 0)
    if each is None:
        return None
    processes = processes_at_once(working)
    factor = processes * each / cores
    busy_ns = sum(u.busy_ns for u in uses if u.cpu_ns is not None)
    cpu_ns = sum(min(u.cpu_ns, u.busy_ns) for u in uses if u.cpu_ns is not None)
    many, threads = "process" if processes == 1 else "processes", "thread" if each == 1 else "threads"
    summary = f"{processes} {many} x {each} compute {threads} on {cores:g} cores"
    if factor > 1:
        summary += f": {factor:.1f} threads per core"
    time = core_time(*driver) if driver is not None else None
    if time is not None:
        summary += (
            f". Your training thread was on a core {units.percent(time.on_core)} of the time and ready to "
            f"run, but without a core, {units.percent(time.run_queue)}"
        )
    return Oversubscription(
        processes=processes,
        threads_each=each,
        threads_from=source,
        cores_granted=float(cores),
        factor=factor,
        cpu_share_of_busy=cpu_ns / busy_ns if busy_ns else None,
        summary=summary + ".",
    )


def processes_at_once(processes: Sequence[Process]) -> int:
    """The largest number of processes alive at once, without those under a fifth of the longest life."""
    lives = [(p.start_real_ns, p.start_real_ns + max(p.end_ns - p.start_ns, 1)) for p in processes]
    longest = max(end - start for start, end in lives)
    lives = [life for life in lives if life[1] - life[0] >= _LEAST_OVERLAP * longest]
    # At the same moment, ends sort before starts: back to back is not at once.
    moments = sorted([(start, 1) for start, _ in lives] + [(end, -1) for _, end in lives])
    now = most = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most
