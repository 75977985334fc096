"""Work spread over processes and threads: hand-overs, loaders, locks, waiting, too many threads."""

from __future__ import annotations

from dataclasses import replace

from hotloop._util.units import duration, percent
from hotloop.analysis.advice.recommendation import (
    HIGH,
    SERIAL,
    Change,
    advise,
    library,
)
from hotloop.analysis.advice.run_view import LOCKS, RegionRow, RunView, Worker, near
from hotloop.analysis.findings import Estimate, Recommendation, Tier
from hotloop.analysis.utilisation import compute_threads, core_time, working_processes
from hotloop.analysis.what_ifs import parse_change
from hotloop.capture.model import Process
from hotloop.capture.region_names import RAY_WAIT_FOR

NETWORK = frozenset({"policy", "model", "backward", "loss", "optimizer"})
LEAST_NETWORK = 0.2  # share of training in network code, for advice about compute threads
POOL_IN_USE = 0.02  # share of training; pools that are active for less do no work that matters
POOL_WAITS = 0.1  # share of training in which threads of the pool wait for a core, and
POOL_WAITS_OF_WANTED = 0.25  # its share of the time they want one, for strong evidence
POOL_ALWAYS_WAITS = 0.5  # share of training in which they wait that is enough on its own
FAR_TOO_MANY = 4.0  # threads for each core that are advice where the system does not report waiting
FASTEST = 0.05  # quantile of durations that stands for an undisturbed call
LEAST_CALLS = 20  # for that quantile
FAR_STRETCH = 20.0  # typical over fastest duration that other programs alone do not explain
LEAST_STRETCH = 3.0  # typical over fastest duration; up to 2.6 was seen with one thread at a load of 15
WORTH_ADVICE = 1.1  # expected speed-up; a weaker case is a test, no advice
RAY_SHORT_NS = 5e6  # a task of Ray that is longer is not held up by its hand-over, 0.5 to 2 ms
ONE_THREAD = "torch.set_num_threads(1) at the top of the script, or OMP_NUM_THREADS=1"


def env_workers_cost_more_than_work(run: RunView) -> Recommendation | None:
    """Handing steps to env processes costs more than the steps (SubprocVecEnv slower than DummyVecEnv)."""
    working = {id(process) for process in working_processes(run.capture)}  # no fork server or launcher
    workers = [w for w in run.workers if w.process is not run.process and id(w.process) in working]
    stepping = [w for w in workers if w.work_ns("environment") > 0]
    # Envs whose steps are not recorded are told by the work of processes that were made for it. Workers of
    # Ray run anything.
    workers = stepping or [w for w in workers if w.busy_ns > 0.001 * run.wall_ns and not _is_of_ray(w)]
    if len(workers) < 2:
        return None
    # Wrappers and the user's own code lie between the regions of a worker, and would come along.
    work_ns = sum(w.busy_ns - w.work_ns("ipc") for w in workers)
    others = ("sleeping", "busy_waiting", "answers_one_by_one", "manager_proxies", "large_messages")
    if any(one.name in others for one in run.given):
        return None  # workers that sleep between two looks at their pipe, or take turns, or send too much
    rows = (
        waiting_for_tasks(run, workers) if any(map(_is_of_ray, workers)) else talking_to_workers(run, workers)
    )
    spent_ns = sum(row.total_ns for row in rows)
    if not rows or spent_ns < 0.1 * run.wall_ns or work_ns > 0.7 * spent_ns:
        return None
    row, saved = rows[0], 1 - work_ns / spent_ns
    serial = SERIAL.get(library(run), "a loop in the main process")
    evidence = [
        f"Your training loop spent {duration(spent_ns)} ({percent(spent_ns / run.wall_ns)}) on sending work "
        f"to {len(workers)} worker processes and waiting for them.",
        f"Their work adds up to {duration(work_ns)}: one after the other in the loop's own process, it would "
        f"take {percent(work_ns / spent_ns)} of that time.",
        "Assumption: 70 % of the difference to more than all of it is saved, since a step in a process that "
        "has to be woken first takes up to three times as long as in a loop.",
    ]
    return advise(
        run,
        "env_workers_cost_more_than_work",
        row,
        "Step the envs in the main process: the hand-over costs more than the steps",
        evidence,
        f"Step them with {serial}, or give each worker several envs.",
        run.gain(rows, (0.7 * saved, 1 - 0.3 * work_ns / spent_ns)),
        Change(
            f"{serial} instead of worker processes", effort="minutes", safety="semantic", provable_by="flag"
        ),
        claimed=rows,
        waits=True,
    )


def _is_of_ray(worker: Worker) -> bool:
    origin = worker.process.origin
    return origin is not None and bool(origin.ray)


def talking_to_workers(run: RunView, workers: list[Worker]) -> list[RegionRow]:
    """Regions of the driving thread that talk to workers."""
    rows = run.outermost(lambda row: row.category in ("environment", "ipc", "wait"))
    rows = [row for row in rows if not run.is_reset(row)]
    if rows:
        return rows
    calls = max((row.calls for w in workers for row in w.rows), default=0)
    return run.outermost(lambda row: row.category == "other" and row.calls > 1 and near(row.calls, calls))[:1]


def waiting_for_tasks(run: RunView, workers: list[Worker]) -> list[RegionRow]:
    """Regions in which the driving thread waits for tasks of Ray that these workers run.

    It may wait for another actor, such as a buffer, that the workers fill whenever they like.
    """
    tasks = {f"{RAY_WAIT_FOR}{row.name}" for worker in workers for row in worker.rows}
    rows = run.outermost(lambda row: row.name in tasks)
    names = {row.name.removeprefix(RAY_WAIT_FOR) for row in rows}
    ran = [row for worker in workers for row in worker.rows if row.name in names]
    calls = sum(row.calls for row in ran)
    # What a longer task waits for is not the hand-over: its worker starts, or other tasks are before it.
    short = calls and sum(row.total_ns for row in ran) / calls < RAY_SHORT_NS
    return rows if short else []


def thread_oversubscription(run: RunView) -> Recommendation | None:
    """Several processes compute at once, and the threads of their pools wait for a core."""
    processes = run.computing_processes
    cores = run.capture.machine.get("cores_granted")
    if len(processes) < 2 or not cores:
        return None
    found = [compute_threads(process, run.capture.machine) for process in processes]
    each = [threads or 1 for threads, _ in found]
    wanted = sum(each)
    pools = [pool for process in processes if (pool := _pools_of(run, process)) is not None]
    ran, waited = sum(pool[0] for pool in pools), sum(pool[1] for pool in pools)
    if max(each) < 2 or wanted < 1.5 * cores or (pools and not _pools_wait(ran, waited)):
        return None
    source = next(source for threads, source in found if threads == max(each))
    evidence = [
        f"{len(processes)} processes compute at the same time, each with up to {max(each)} compute threads "
        f"({source}): {wanted} threads on {cores:g} cores.",
        *_core_evidence(run),
    ]
    if pools:
        evidence.append(
            f"Their pools were on a core {percent(ran)} of the time and waited for one {percent(waited)} "
            "(added up over threads). A process waits for the slowest thread of each operation."
        )
    unknown: Tier = "medium" if wanted >= FAR_TOO_MANY * cores else "undecided"
    return advise(
        run,
        "thread_oversubscription",
        None,
        f"Give each process one compute thread (now {wanted} threads on {cores:g} cores)",
        evidence,
        "Set OMP_NUM_THREADS=1 before the workers start, or call torch.set_num_threads(1) in each process.",
        None,
        _one_thread(run),
        tier="high" if pools else unknown,
    )


def try_one_thread(run: RunView) -> Recommendation | None:
    """One process computes with several threads, which may hold up each other.

    At the end of every operation, the training thread waits for the slowest thread of its pool. With a core
    for each thread that costs a few percent or gains something; a thread of the pool that has to wait for a
    core stops the training thread for milliseconds, thousands of times. So its waiting is the evidence.
    """
    threads, source = run.compute_threads
    cores = run.capture.machine.get("cores_granted")
    if not cores or threads is None or threads < 2 or len(run.computing_processes) > 1:
        return None
    if run.capture.facts.get("device") is not None:
        return None  # the arithmetic runs on the device
    change = _one_thread(run)
    share = sum(row.own_share for row in run.rows if row.category in NETWORK)
    pool = _pools_of(run, run.process)
    if share < LEAST_NETWORK or (sum(pool) < POOL_IN_USE if pool is not None else not change.patch):
        return None
    evidence = [
        f"Network code took {percent(share)} of training, with {threads} compute threads ({source}) on "
        f"{cores:g} cores.",
        *_core_evidence(run),
    ]
    held_up = pool is not None and _pools_wait(*pool)
    expected = _expected_with_one_thread(run) if held_up else 1.0
    others = pool is not None and _others_have_the_cores(run, *pool) and not _pool_holds_up_calls(run)
    if pool is not None and expected >= WORTH_ADVICE and not others:
        if _stretch(run) >= LEAST_STRETCH:
            evidence.append(
                f"A typical call of the network takes {_stretch(run):.0f}x as long as the fastest ones: it "
                "waits for the pool."
            )
        title = (
            f"Use one compute thread: the pool's threads had no core {percent(pool[1] / sum(pool))} of the "
            "time they wanted one"
        )
        why = "Your training thread waits for the slowest thread of every operation."
        tier: Tier = "high" if expected >= HIGH else "medium"
    else:
        title = f"one compute thread instead of {threads} may be faster; this decides within a minute"
        why = "For small networks, sharing each operation between threads often costs more than it gains."
        tier = "undecided"
    made = advise(
        run,
        "try_one_thread",
        None,
        title,
        evidence,
        f"{why} The test switches between one thread and {threads} while your script runs, and decides "
        "within a minute.",
        None,
        change,
        tier=tier,
        claimed=(),
    )
    return replace(made, affects=share)


def _pools_of(run: RunView, process: Process) -> tuple[float, float] | None:
    """Time that threads of a process's pools ran, and that they waited for a core, as shares of training.

    Added up over threads; None if unknown.
    """
    if process is run.process:
        time = run.core_time
    else:
        threads = [w.thread for w in run.workers if w.process is process]
        time = core_time(process, max(threads, key=lambda thread: thread.wall_ns)) if threads else None
    if time is None or time.pool_on_core is None:
        return None
    return time.pool_on_core, time.pool_run_queue or 0.0


def _others_have_the_cores(run: RunView, ran: float, waited: float) -> bool:
    """Whether the training thread of a single process lacks a core as often as its pool, on a busy machine.

    Then other programs, which were there before, take the cores; that says nothing about the script.
    """
    load, cores = run.capture.machine.get("load_1min"), run.capture.machine.get("cores_granted")
    busy = isinstance(load, int | float) and isinstance(cores, int | float) and load >= cores
    if not busy or run.core_time is None or len(run.capture.processes) > 1:
        return False
    return run.core_time.run_queue > waited / (ran + waited) / 2


def _pools_wait(ran: float, waited: float) -> bool:
    """Whether threads of pools waited for a core for a large part of the time they wanted one."""
    return waited >= POOL_WAITS and waited >= POOL_WAITS_OF_WANTED * (ran + waited)


def _network_calls(run: RunView) -> list[tuple[RegionRow, float]]:
    """Regions of network code without others inside, and how long their fastest calls take."""
    found = []
    for row in run.rows:
        fast = row.node.percentile_ns(FASTEST)
        if row.category in NETWORK and row.end == row.number + 1 and row.calls >= LEAST_CALLS and fast:
            found.append((row, fast))
    return found


def _stretch(run: RunView) -> float:
    """Typical over fastest duration of the network's calls, weighted by their time.

    A thread that only lacks a core now and then is rarely interrupted within a call as short as these.
    """
    calls = _network_calls(run)
    whole = sum(row.own_ns for row, _ in calls)
    return sum(row.own_ns * row.usual_ns / fast for row, fast in calls) / whole if whole else 1.0


def _pool_holds_up_calls(run: RunView) -> bool:
    """Whether calls of the network take so long that each must have waited for the pool.

    A training thread that has to share its core is as slow as that, and its typical short call is not.
    """
    return _stretch(run) >= FAR_STRETCH and _expected_by_calls(run) >= HIGH


def _expected_with_one_thread(run: RunView) -> float:
    """A rough speed-up, to decide whether it is advice: the network's calls as fast as their fastest ones.

    Each would still be interrupted as often as the training thread is now.
    """
    pool = _pools_of(run, run.process)
    by_calls = _expected_by_calls(run)
    if pool is not None and pool[1] >= POOL_ALWAYS_WAITS:
        return max(by_calls, HIGH)  # the fastest calls may have waited as well
    return by_calls


def _expected_by_calls(run: RunView) -> float:
    time = run.core_time
    if time is None or time.on_core <= 0 or _stretch(run) < LEAST_STRETCH:
        return 1.0
    interrupted = (time.on_core + time.run_queue) / time.on_core
    saved_ns = sum(
        row.own_ns - min(row.calls * fast * interrupted, row.own_ns) for row, fast in _network_calls(run)
    )
    return 1 / max(1 - saved_ns / run.wall_ns, 0.01)


def _one_thread(run: RunView) -> Change:
    """`hotloop try --only threads` sets torch's threads, so it needs torch."""
    settings = run.process.thread_settings
    if settings:
        torch = any("torch" in setting.values for setting in settings)
    else:
        torch = "torch" in run.capture.facts.get("versions", {})
    variables = {"OMP_NUM_THREADS": "1"}
    if torch:
        return Change(ONE_THREAD, "minutes", "rounding", "patch", variables, patch="threads")
    return Change("OMP_NUM_THREADS=1", "minutes", "rounding", "environment", variables)


def _core_evidence(run: RunView) -> list[str]:
    """What the system did with the threads; one sentence says if that is unknown."""
    time = run.core_time
    if time is None:
        return ["Whether your threads had a core is unknown: the run queue was not recorded."]
    taken = (
        f"; it was taken off a core {time.taken_off_per_s:,.0f} times per second"
        if time.taken_off_per_s
        else ""
    )
    said = [
        f"Your training thread was on a core {percent(time.on_core)} of the time and ready to run, but "
        f"without one, {percent(time.run_queue)}{taken}."
    ]
    if time.pool_on_core is not None:
        waited = (
            f", and waited for one {percent(time.pool_run_queue)}" if time.pool_run_queue is not None else ""
        )
        said.append(
            f"The other compute threads of this process were on a core {percent(time.pool_on_core)} of the "
            f"time{waited} (added up over threads). They work or spin; `hotloop try --only threads` tells "
            "how much is which."
        )
    load = run.capture.machine.get("load_1min")
    if isinstance(load, (int, float)) and load > 1:
        said.append(f"The load of the machine was {load:.1f} when the run began, other programs included.")
    return said


def starved_learner(run: RunView) -> Recommendation | None:
    """The learner waits for collectors that are busy all the time."""
    rows = run.outermost(lambda row: row.category == "wait")
    waiting_ns = sum(row.total_ns for row in rows)
    others = [w for w in run.workers if w.work_ns("environment", "policy") > 0.2 * w.thread.wall_ns]
    if not rows or waiting_ns < 0.25 * run.wall_ns or not others or not run.updates:
        return None
    busy = sum(w.busy_ns for w in others) / sum(w.thread.wall_ns for w in others)
    if busy < 0.7:
        return None
    cores = float(run.capture.machine.get("cores_granted") or 1.0)
    free = cores - len(others) - 1 + waiting_ns / run.wall_ns
    evidence = [
        f"The learner waited for {percent(waiting_ns / run.wall_ns)} of the wall time (`{rows[0].name}`).",
        f"{len(others)} collectors were busy for {percent(busy)} of theirs.",
        f"Of your {cores:g} cores, about {max(free, 0):.1f} are free.",
    ]
    more = len(others) + max(int(free), 0)
    saved = 1 - len(others) / more
    helped = more > len(others)
    evidence.append(
        f"Assumption: {more} collectors save between half and all of {percent(saved)} of the wait."
        if helped
        else "With no free core, only cheaper env steps or policy calls help."
    )
    return advise(
        run,
        "starved_learner",
        rows[0],
        "The learner waits for the collectors: collect faster",
        evidence,
        "Add collectors while cores are free; otherwise make env steps and policy calls cheaper.",
        _gain_with_collectors(run, rows, more, saved) if helped else None,
        Change(f"{more} collectors" if helped else "cheaper env steps", "minutes", "semantic", "flag"),
        tier="medium",
        claimed=rows,
        waits=True,
    )


def _gain_with_collectors(run: RunView, rows: list[RegionRow], count: int, saved: float) -> Estimate | None:
    """From the replay of the run where there is one, else from the time that the learner waits."""
    if run.model is not None and run.model.replays:
        found = run.model.predict([parse_change(f"workers={count}")]).speed_up
        if found is not None:
            return found
    return run.gain(rows, (saved / 2, saved), floored=False)


def lock_wait(run: RunView) -> Recommendation | None:
    """Threads or processes queue for a lock."""
    every = [(run.rows, run.driver)] + [(w.rows, w.thread) for w in run.workers]
    waits = [
        (sum(r.own_ns for r in rows if _is_lock(r)) / thread.wall_ns, rows)
        for rows, thread in every
        if thread.wall_ns
    ]
    waiting = [share for share, _ in waits if share > 0.1]
    if len(waiting) < 1 or len(every) < 2:
        return None
    worst = max(waits, key=lambda pair: pair[0])
    row = max((r for r in worst[1] if _is_lock(r)), key=lambda r: r.own_ns)
    mine = [r for r in run.rows if _is_lock(r)]
    return advise(
        run,
        "lock_wait",
        row,
        f"Threads queue for a lock (`{row.name}`)",
        [
            f"{len(waiting)} of {len(every)} threads spent more than 10 % of their time waiting for it, "
            f"{percent(worst[0])} at worst.",
            f"That thread waited {row.calls:,} times, {duration(row.mean_ns)} on average.",
            "Assumption: between 50 % and 100 % of the waiting in your training thread goes away."
            if mine
            else "Your training thread does not wait for it.",
        ],
        "Give each producer its own queue or ring buffer and let the consumer take batches; hold the lock "
        "only to move pointers, not to copy data.",
        _gain_without_locks(run, mine) if mine else None,
        Change("one ring buffer or queue per producer", effort="days", safety="semantic"),
        tier="medium",
        claimed=mine,
        own=True,
        waits=True,
    )


def _gain_without_locks(run: RunView, rows: list[RegionRow]) -> Estimate | None:
    """From the replay without locks where it has some, else from the time that the training thread waits."""
    replayed = run.model.gain_without_locks() if run.model is not None and run.model.replays else None
    return replayed or run.gain(rows, (0.5, 1.0), own=True)


def _is_lock(row: RegionRow) -> bool:
    return row.category == "wait" and row.name_has(LOCKS)
