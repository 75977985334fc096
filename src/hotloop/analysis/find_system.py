"""From a capture to its `System`: puts states, roles, edges, barriers, the chain and the limit together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hotloop._util.units import percent
from hotloop.analysis.barriers import find_barriers
from hotloop.analysis.categories import Resolver
from hotloop.analysis.cluster import describe_cluster
from hotloop.analysis.critical_chain import find_chain, find_limit, sentences
from hotloop.analysis.cycle import find_cycle
from hotloop.analysis.data_parallel import data_parallel_pids, data_parallel_sentences
from hotloop.analysis.edges import find_edges, role_links
from hotloop.analysis.findings import short_site
from hotloop.analysis.roles import PLURAL, RAY_WORKER, SINGULAR, Part, find_parts, main_thread, named
from hotloop.analysis.system import (
    HELD_UP,
    Folded,
    Limit,
    Member,
    Role,
    RoleKind,
    States,
    System,
)
from hotloop.analysis.thread_states import GAPS, ThreadStates, sampled_states, thread_states
from hotloop.analysis.tree import driving_thread
from hotloop.analysis.what_ifs import Saving, WhatIfs
from hotloop.capture.model import Capture, FoldedRole, Process, Thread
from hotloop.capture.region_names import SPINNING_REGIONS
from hotloop.capture.samples import RUNNABLE, RUNNING

ORDER: tuple[RoleKind, ...] = (
    "learner",
    "rank",
    "collector",
    "env_worker",
    "loader_worker",
    "worker",
    "thread",
    "evaluator",
    "logger",
    "launcher",
    "service",
)
LEAST_TIME = 0.2  # a thread that lived for less of training is left out


def find_system(
    training: Capture, resolver: Resolver | None = None, model: WhatIfs | None = None
) -> System | None:
    """The system of a capture that was cut to its training; None if nothing was recorded.

    With a `model` of the run, the gain until the next limit comes from its replay.
    """
    resolver = resolver or Resolver()
    driver = driving_thread(training)
    if driver is None:
        return None
    training_ns = driver[1].wall_ns
    parts = [
        part for part in find_parts(training, resolver) if _lived(training, part) >= LEAST_TIME * training_ns
    ]
    parts.sort(key=lambda part: (ORDER.index(part.kind), part.group, part.rank or 0, part.process))
    members = _members(training, parts, resolver, driver[1])
    roles = _roles(members)
    edges = find_edges(training, members)
    barriers = find_barriers(training, members, roles, edges, training_ns)
    chain, sentence = find_chain(members, edges)
    cores = training.machine.get("cores_granted")
    core_load = _core_load(training, training_ns, cores)
    limit = find_limit(members, roles, edges, barriers, core_load, lambda role: _without(model, role))
    elsewhere = _ranks_elsewhere(training, members)
    if elsewhere and any(role.kind == "rank" and role.states.waiting >= HELD_UP for role in roles):
        limit = Limit("unknown", None, None, None, "")  # it is not here
    if limit.role is not None and len(roles) > 1:
        roles[limit.role] = replace(roles[limit.role], limiting=True)
    return System(
        training_ns=training_ns,
        cores_granted=float(cores) if isinstance(cores, (int, float)) and cores > 0 else None,
        core_load=core_load,
        members=tuple(members),
        roles=tuple(roles),
        edges=tuple(edges),
        barriers=tuple(barriers),
        chain=chain,
        chain_sentence=sentence,
        limit=limit,
        cycle=find_cycle(training, members, roles, edges, resolver),
        links=tuple(role_links(members, roles, edges, training_ns)),
        sentences=(
            *sentences(members, roles, barriers, float(cores) if isinstance(cores, (int, float)) else None),
            *data_parallel_sentences(training, members),
            *describe_cluster(training, members, roles, training_ns),
        ),
        folded=tuple(_folded(role) for role in training.folded),
        ranks_elsewhere=elsewhere,
    )


def _ranks_elsewhere(capture: Capture, members: Sequence[Member]) -> str:
    """A sentence, if the capture has some ranks of a launch and not all: that of one computer of several."""
    origins = [process.origin for process in capture.processes if process.origin is not None]
    launched = max((origin.world_size or 0 for origin in origins if origin.rank is not None), default=0)
    here = len({origin.rank for origin in origins if origin.rank is not None})
    states = [member.states for member in members if member.kind == "rank"]
    if here >= launched or not states or any(origin.ray for origin in origins):
        return ""  # nodes of a Ray job that are missing are named
    return (
        f"Only {here} of {launched} ranks {'is' if here == 1 else 'are'} in this capture. "
        f"{'It waits' if here == 1 else 'They wait'} {percent(mean_states(states).waiting)} of the time; for "
        "whom is seen when `hotloop merge` joins the captures of all computers."
    )


def _folded(role: FoldedRole) -> Folded:
    shares = (role.running, role.least, role.most, role.busiest, role.waiting)
    return Folded(
        role.name, role.members, role.nodes, *shares, role.progress.env_steps, role.progress.updates
    )


def _without(model: WhatIfs | None, members: Sequence[Member]) -> float | None:
    """How many times as fast training would run if these members took no time, from the replay."""
    if model is None or not model.replays:
        return None
    nothing = Saving({}, {(member.pid, member.native_id): 1.0 for member in members})
    found = model.gain_of_saving(nothing, nothing, nothing)
    return found.value if found is not None else None


def _lived(capture: Capture, part: Part) -> int:
    """Time of a thread, in ns."""
    process = capture.processes[part.process]
    if part.thread is not None:
        return process.threads[part.thread].wall_ns
    return int(process.samples["weight_ns"][process.samples["native_id"] == part.native_id].sum())


def _members(capture: Capture, parts: Sequence[Part], resolver: Resolver, driver: Thread) -> list[Member]:
    role_of: dict[tuple[RoleKind, str], int] = {}
    parallel = data_parallel_pids(capture)
    found = []
    for part, name, number in named(parts):
        role = role_of.setdefault((part.kind, part.group), len(role_of))
        process = capture.processes[part.process]
        thread = process.threads[part.thread] if part.thread is not None else None
        seen: ThreadStates
        if thread is not None:
            in_backward = ("backward",) if process.pid in parallel else ()
            seen = thread_states(process, thread, resolver, in_backward)
        else:
            seen = sampled_states(process, part.native_id)
        found.append(
            Member(
                name=name,
                kind=part.kind,
                role=role,
                process=part.process,
                thread=part.thread,
                pid=process.pid,
                native_id=part.native_id,
                label=part.label,
                number=number,
                wall_ns=_lived(capture, part),
                states=seen.states,
                how=seen.how,
                regions=seen.regions,
                blocked=seen.blocked,
                busiest=busiest(process, part, seen),
                env_steps=thread.progress.env_steps if thread is not None else 0,
                updates=thread.progress.updates if thread is not None else 0,
                drives=thread is driver,
            )
        )
    return found


def busiest(process: Process, part: Part, seen: ThreadStates) -> str:
    """Where a thread works most: a region, or else a function, and the line of the user's code."""
    mine = process.samples[process.samples["native_id"] == part.native_id]
    works = mine[np.isin(mine["state"], (RUNNING, RUNNABLE))]
    thread = process.threads[part.thread] if part.thread is not None else None
    weight: dict[tuple[str, str], float] = {}
    for row in works:
        path = process.paths[row["path"]] if row["path"] < len(process.paths) else None
        if path is None or path.line is None:
            continue
        inside = thread.paths[row["node"]] if thread is not None and row["node"] < len(thread.paths) else ()
        if inside and inside[-1] in SPINNING_REGIONS:
            continue
        known = bool(inside) and not inside[-1].startswith(GAPS)
        key = (inside[-1] if known else path.line.function, short_site(path.line.site))
        weight[key] = weight.get(key, 0.0) + float(row["weight_ns"])
    if weight:
        name, site = max(weight, key=lambda one: weight[one])
        return f"`{name}`, {site}" if name != "<module>" else site
    region = next((r for r in seen.regions if r.category != "wait" and r.path), None)
    return f"`{region.path[-1]}`" if region is not None else ""


def _roles(members: Sequence[Member]) -> list[Role]:
    found = []
    for number in range(1 + max((m.role for m in members), default=-1)):
        mine = [i for i, m in enumerate(members) if m.role == number]
        kind = members[mine[0]].kind
        states = mean_states([members[i].states for i in mine])
        name = PLURAL[kind] if len(mine) > 1 else members[mine[0]].name
        base = re.sub(r" \d+$", "", members[mine[0]].name)
        if len(mine) > 1 and kind not in ("rank", "thread") and base != SINGULAR[kind]:
            # Of Ray: actors by their class, or workers that run tasks.
            name = f"{base}s" if base == RAY_WORKER else f"{base} actors"
        if kind == "thread":
            name = members[mine[0]].name.replace("thread ", "threads " if len(mine) > 1 else "thread ", 1)
        found.append(Role(kind, name, tuple(mine), states, slack=states.waiting))
    return found


def mean_states(states: Sequence[States]) -> States:
    """Mean of each share."""
    rows = np.array([(s.running, s.ready, s.waiting, s.gil, s.blocked, s.unknown) for s in states])
    return States(*(float(value) for value in rows.mean(axis=0)))


def _core_load(capture: Capture, training_ns: int, cores: object) -> float | None:
    """Cores that all processes of the run used, as a share of those granted."""
    if not isinstance(cores, (int, float)) or cores <= 0 or not training_ns:
        return None
    used = 0.0
    for process in capture.processes:
        rows = process.scheduling
        if rows is None or len(rows.time_ns) < 2:
            main = main_thread(process)
            used += (main.cpu_ns or 0) if main is not None else 0
            continue
        at = np.interp([process.start_ns, process.end_ns], rows.time_ns.astype(np.float64), rows.cpu_ns)
        used += float(at[1] - at[0])
    return used / training_ns / float(cores)
