"""Which threads do the same: learner, ranks, env workers, loader workers, collectors, loggers, services.

A role is recognised by how a process was made (the function that multiprocessing runs in it, the rank that a
launcher gave it) and by what its threads did (updates, env steps, regions), never by the name of a file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.analysis.categories import Resolver
from hotloop.analysis.services import LAUNCHERS, SERVICE_THREADS, SERVICES
from hotloop.analysis.system import RoleKind
from hotloop.analysis.tree import driving_thread, thread_label
from hotloop.analysis.utilisation import NOT_WORK
from hotloop.capture.model import Capture, Process, Thread
from hotloop.capture.region_names import RAY_TASK
from hotloop.capture.samples import RUNNABLE, RUNNING

# Functions that multiprocessing runs in a worker of a known library -> what it is for
TARGETS: tuple[tuple[str, RoleKind], ...] = (
    (r"stable_baselines3\..*_worker", "env_worker"),
    (r"gymnasium\.vector\..*worker.*", "env_worker"),
    (r"gym\.vector\..*worker.*", "env_worker"),
    (r"torchrl\.envs\..*", "env_worker"),
    (r"pufferlib\.vector\..*", "env_worker"),
    (r"torchrl\.collectors\..*", "collector"),
    (r"torch\.utils\.data\..*", "loader_worker"),
    (r"hotloop\.rl\.collect\..*", "collector"),
    (r"multiprocessing\.managers\..*", "service"),
)
LOGGER_THREADS = re.compile(
    r"_EventLoggerThread|wandb|tensorboard|SenderThread|HandlerThread|WriterThread|MsgRouterThr"
)
LOG_LIBRARIES = frozenset({"tensorboard", "tensorboardX", "wandb"})
PLURAL: dict[RoleKind, str] = {
    "learner": "learners",
    "rank": "ranks",
    "env_worker": "env workers",
    "loader_worker": "loader workers",
    "collector": "collectors",
    "evaluator": "evaluators",
    "logger": "loggers",
    "thread": "threads",
    "worker": "workers",
    "launcher": "launcher",
    "service": "services",
}
SINGULAR: dict[RoleKind, str] = {
    kind: name[:-1] if name.endswith("s") else name for kind, name in PLURAL.items()
}
RAY_WORKER = "Ray worker"  # a worker of Ray without an actor, which runs tasks
MOSTLY = 0.5  # share of its busy time in one category that makes a thread an evaluator or a logger


@dataclass(frozen=True, slots=True)
class Part:
    """One thread and what it is for."""

    process: int
    thread: int | None
    native_id: int
    kind: RoleKind
    group: str  # threads of one kind and group are one role
    label: str
    rank: int | None = None
    called: str = ""  # a better name than that of its kind: the class of an actor of Ray, or "driver"


def find_parts(capture: Capture, resolver: Resolver) -> list[Part]:
    """Every thread of the run with its role; threads that were only sampled come last in their process."""
    driver = driving_thread(capture)
    ranked = [p for p in capture.processes if p.origin is not None and p.origin.rank is not None]
    parents = {p.parent_pid for p in capture.processes}
    found: list[Part] = []
    for number, process in enumerate(capture.processes):
        kind, group = process_kind(process, capture, driver, resolver, ranked, parents)
        main = main_thread(process)
        for place, thread in enumerate(process.threads):
            own, own_group = kind, group
            if thread is not main and not (driver is not None and thread is driver[1]):
                own, own_group = thread_kind(process, thread, kind, resolver)
            rank = process.origin.rank if process.origin is not None and own == "rank" else None
            label = thread_label(process, thread)
            as_process = (own, own_group) == (kind, group) and own not in ("rank", "service")
            called = _called(process) if as_process and own_group else ""
            if own == "thread" and _runs_tasks(thread):  # an actor with several threads
                own_group, called = f"tasks of {_called(process)}", f"thread of {_called(process)}"
            found.append(Part(number, place, thread.native_id, own, own_group, label, rank, called))
        found += _only_sampled(number, process, kind)
    return found


def _called(process: Process) -> str:
    """What a process of a Ray job is called: by the class of its actor; "" for all others."""
    origin = process.origin
    if origin is None or not origin.ray:
        return ""
    return "driver" if origin.ray == "driver" else origin.actor or RAY_WORKER


def _is_idle(process: Process) -> bool:
    """Whether a worker of Ray without an actor got no task in this time."""
    origin = process.origin
    if origin is None or origin.ray != "worker" or origin.actor:
        return False
    return not any(map(_runs_tasks, process.threads))


def _runs_tasks(thread: Thread) -> bool:
    """Whether a thread of a worker of Ray ran a task."""
    return any(node.name == RAY_TASK for node in thread.root.children)


def main_thread(process: Process) -> Thread | None:
    """The thread that does the process's work: the one with progress, else the main one, else the longest.

    In a worker of Ray, tasks come before the main thread: actors with coroutines run them in another one.
    """
    if not process.threads:
        return None
    return max(
        process.threads,
        key=lambda t: (
            t.folded_threads == 0,
            t.progress.updates + t.progress.env_steps,
            sum(node.total_ns for node in t.root.children if node.name == RAY_TASK),
            t.native_id == process.pid or t.name == "MainThread",
            t.wall_ns,
        ),
    )


def process_kind(
    process: Process,
    capture: Capture,
    driver: tuple[Process, Thread] | None,
    resolver: Resolver,
    ranked: Sequence[Process],
    parents: set[int],
) -> tuple[RoleKind, str]:
    """What a process is for, and what else distinguishes its role."""
    origin = process.origin
    program = (origin.program if origin is not None else "") or process.label
    target = origin.target if origin is not None else ""
    for pattern, kind in TARGETS:
        if target and re.fullmatch(pattern, target):
            return kind, target
    if (any(name in program for name in SERVICES) and not target) or _is_idle(process):
        return "service", ""
    group = target or _called(process)
    updates = sum(t.progress.updates for t in process.threads)
    env_steps = sum(t.progress.env_steps for t in process.threads)
    is_ranked = origin is not None and origin.rank is not None and not target
    launcher = any(name in program.rsplit("/", 1)[-1] for name in LAUNCHERS)
    if (
        launcher or (ranked and not is_ranked and process.pid in {p.parent_pid for p in ranked})
    ) and not updates:
        return "launcher", ""
    if is_ranked and origin is not None and (origin.world_size or 0) > 1:
        return "rank", ""
    if origin is not None and origin.ray == "driver" and not updates:
        return "worker", group
    if driver is not None and process is driver[0] and not _one_of_many(process, capture):
        return "learner", group if _learn_together(process, capture) else ""
    spent = _by_category(process, resolver)
    busy = sum(ns for kind, ns in spent.items() if kind not in ("wait", "unattributed")) or 1
    if spent.get("evaluation", 0) > MOSTLY * busy:
        return "evaluator", group
    if updates:
        return "learner", group
    acts = spent.get("policy", 0) > 0.05 * busy
    if env_steps and not acts and _sent(process) > 0.5 * env_steps:
        return "env_worker", group  # it answers each step
    if env_steps or acts:
        return "collector", group
    if spent.get("environment", 0) > 0.2 * busy:
        return "env_worker", group
    if spent.get("logging", 0) > MOSTLY * busy:
        return "logger", group
    if not _called(process) and not any(map(_works, process.threads)) and not _user_lines(process):
        return ("launcher", "") if process.pid in parents else ("service", "")
    return "worker", group or process.label


def _learn_together(process: Process, capture: Capture) -> bool:
    """Whether several actors of this class learn, such as the learners of RLlib."""
    name = _called(process)
    learning = [
        p for p in capture.processes if _called(p) == name and any(t.progress.updates for t in p.threads)
    ]
    return bool(name) and len(learning) > 1


def _one_of_many(process: Process, capture: Capture) -> bool:
    """Whether this is one of several workers of Ray that make env steps, and nobody was seen learning."""
    if process.origin is None or process.origin.ray != "worker" or capture.progress.updates:
        return False
    return any(
        t.progress.env_steps
        for other in capture.processes
        if other is not process and _called(other) == _called(process)
        for t in other.threads
    )


def _sent(process: Process) -> int:
    """Messages that a process sent."""
    uses = [use for thread in process.threads for use in thread.channels]
    return sum(int(use.calls[-1]) for use in uses if use.way == "send")


def thread_kind(process: Process, thread: Thread, kind: RoleKind, resolver: Resolver) -> tuple[RoleKind, str]:
    """What a further thread of a process is for."""
    if kind in ("service", "launcher") or SERVICE_THREADS.search(thread.name):
        return "service", ""
    if _called(process) and thread.name == "MainThread" and not _runs_tasks(thread):
        return "service", ""  # of an actor that runs its tasks in other threads
    if LOGGER_THREADS.search(thread.name) or _writes_logs(process, thread):
        return "logger", ""
    if thread.progress.updates:
        return "learner", ""
    if thread.progress.env_steps:
        return "collector", ""
    of_ray = (
        process.origin is not None and process.origin.ray == "worker" and thread.name.startswith("Dummy-")
    )
    if of_ray and not _runs_tasks(thread):
        return "service", ""  # hands tasks to the event loop of an actor
    return "thread", f"{process.pid}:{_function_of(thread.name)}"


def _writes_logs(process: Process, thread: Thread) -> bool:
    """Whether a thread was only seen in a library for logs: TensorBoard's writer may have no name."""
    if thread.name == "MainThread":
        return False
    seen = {
        int(number) for number in process.samples["path"][process.samples["native_id"] == thread.native_id]
    }
    paths = [process.paths[number] for number in seen if number < len(process.paths)]
    logs = [path for path in paths if path.innermost.partition(".")[0] in LOG_LIBRARIES]
    return bool(logs) and not any(path.line is not None for path in paths)


def _function_of(name: str) -> str:
    """`collect` for "Thread-3 (collect)"; else the name without its number."""
    target = re.search(r"\((.+)\)$", name)
    return target[1] if target else re.sub(r"[-_ ]?\d+$", "", name)


def _only_sampled(number: int, process: Process, kind: RoleKind) -> list[Part]:
    """Threads that have opened no region: only samples know them."""
    if process.sampling is None:
        return []
    known = {thread.native_id for thread in process.threads}
    ids = sorted({int(i) for i in process.samples["native_id"]} - known)
    found = []
    for native_id in ids:
        name = process.sampling.thread_names.get(native_id, f"thread {native_id}")
        label = f"{process.label or 'process'} (pid {process.pid}), {name}"
        nameless = native_id not in process.sampling.thread_names and bool(_called(process))
        idle = (
            nameless
            and not np.isin(
                process.samples["state"][process.samples["native_id"] == native_id], (RUNNING, RUNNABLE)
            ).any()
        )  # of a worker that ended before names were read: Ray's own threads wait all the time
        if kind in ("service", "launcher") or SERVICE_THREADS.search(name) or idle:
            found.append(Part(number, None, native_id, "service", "", label))
        elif LOGGER_THREADS.search(name):
            found.append(Part(number, None, native_id, "logger", "", label))
        elif native_id == process.pid and not process.threads:
            found.append(Part(number, None, native_id, kind, "", label))
        else:
            found.append(
                Part(number, None, native_id, "thread", f"{process.pid}:{_function_of(name)}", label)
            )
    return found


def _by_category(process: Process, resolver: Resolver) -> dict[str, int]:
    spent: dict[str, int] = {}
    for thread in process.threads:
        for node, kind, _, _ in resolver.walk(thread.root):
            spent[kind] = spent.get(kind, 0) + node.own_ns
    return spent


def _works(thread: Thread) -> bool:
    spent_ns = sum(node.total_ns for node in thread.root.children if node.name not in NOT_WORK)
    return spent_ns > 0.01 * thread.wall_ns or thread.progress.env_steps + thread.progress.updates > 0


def _user_lines(process: Process) -> bool:
    """Whether the user's code was seen running in the process."""
    seen = {int(number) for number in process.samples["path"]}
    return any(number < len(process.paths) and process.paths[number].line is not None for number in seen)


def named(parts: Sequence[Part]) -> list[tuple[Part, str, int | None]]:
    """Each part with its name and its number within its role."""
    groups: dict[tuple[RoleKind, str], list[Part]] = {}
    for part in parts:
        groups.setdefault((part.kind, part.group), []).append(part)
    numbered: dict[int, tuple[str, int | None]] = {}
    for (kind, _), members in groups.items():
        for number, part in enumerate(members):
            at = part.rank if part.rank is not None else number
            alone = len(members) == 1 and part.rank is None
            name = SINGULAR[kind] if kind != "thread" else _thread_name(part)
            name = part.called or name
            numbered[id(part)] = (
                name if alone or kind == "thread" else f"{name} {at}",
                None if alone else at,
            )
    return [(part, *numbered[id(part)]) for part in parts]


def _thread_name(part: Part) -> str:
    return f"thread {_function_of(part.label.rpartition(', ')[2])}"
