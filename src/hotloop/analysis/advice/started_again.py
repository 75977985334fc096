"""Worker processes that are started again and again, and spend their lives importing."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hotloop._util.units import percent
from hotloop.analysis.advice.recommendation import Change, advise
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.findings import Recommendation, short_site
from hotloop.analysis.line_samples import LineSamples, waits
from hotloop.analysis.parsed_source import walk_source
from hotloop.analysis.source_names import dotted
from hotloop.capture.model import Process
from hotloop.capture.samples import FunctionSource

LEAST_STARTED = 4  # processes
SHORT = 0.5  # share of training that a process lives, from which on it was there for good
LEAST_IDLE = 0.10  # share of training
SAVED = 0.8  # of the time in which no worker works: handing out and fetching results stays
SAME = ("data_loader", "starting_processes", "pools_each_time")  # advice about the same, with the line
STARTERS = ("Pool", "ProcessPoolExecutor", "Process", "SubprocVecEnv", "AsyncVectorEnv", "Popen")


def workers_started_again(run: RunView) -> list[Recommendation]:
    """Processes live for a short part of training, and the training thread waits until they have started."""
    lines = run.unbiased_lines
    if lines is None or any(one.name in SAME for one in run.given):
        return []
    start, end = run.driver.start_ns, run.driver.end_ns
    short_lived = [
        process
        for process in run.capture.processes
        if process is not run.process
        and process.host == run.process.host
        and process.start_ns > start
        and process.end_ns - process.start_ns < SHORT * (end - start)
    ]
    spans = [(process.start_ns, process.end_ns) for process in short_lived]
    if len(short_lived) < max(LEAST_STARTED, 2 * _most_at_once(spans)):
        return []
    working = [(begin, process.end_ns) for process in short_lived if (begin := _first_work(process))]
    idle = _outside(lines.time_ns, working) & _waits_for_workers(lines)
    share = float(lines.weight_ns[idle].sum()) / lines.total_ns
    if share < LEAST_IDLE:
        return []
    site = next((site for source in lines.sources for site in _starts_workers(source)), "")
    made = advise(
        run,
        "workers_started_again",
        None,
        f"Start worker processes once, before the loop{f' ({short_site(site)})' if site else ''}",
        [
            f"{len(short_lived)} worker processes were started during training, and none of them lived for "
            f"more than {percent(max(e - s for s, e in spans) / (end - start))} of it.",
            f"The training thread waited {percent(share)} of training while none of them was at work: they "
            "were being started, imported modules, or ended.",
            f"Assumption: {percent(SAVED)} of that time is saved, half as much up to half as much again.",
        ],
        "Create the pool (or the workers) once and use it for all rounds; send what changes with each job.",
        lines.gain((), (0.0, 0.0, 0.0), SAVED * idle.astype(np.float64)),
        Change("create the pool before the loop", "minutes", "safe"),
    )
    return [replace(made, site=site)]


def _most_at_once(spans: Iterable[tuple[int, int]]) -> int:
    changes = sorted(change for start, end in spans for change in ((start, 1), (end, -1)))
    return int(np.max(np.cumsum([step for _, step in changes]), initial=0))


def _first_work(process: Process) -> int:
    """When a worker first ran a function of the user's, and not the imports of its file; 0: never."""
    works = [
        number
        for number, path in enumerate(process.paths)
        if path.frames
        and path.frames[-1].function != "<module>"
        and "importlib" not in path.called
        and not waits(path)
    ]
    samples = process.samples
    mine = samples["time_ns"][np.isin(samples["path"], works)]
    return int(mine.min()) if len(mine) else 0


def _outside(time_ns: NDArray[np.int64], spans: Iterable[tuple[int, int]]) -> NDArray[np.bool_]:
    """Which moments lie in none of these spans."""
    outside = np.ones(len(time_ns), dtype=np.bool_)
    for start, end in spans:
        outside &= (time_ns < start) | (time_ns > end)
    return outside


def _waits_for_workers(lines: LineSamples) -> NDArray[np.bool_]:
    """Samples in which the training thread waited, started processes or ended them."""
    paths = lines.paths_where(
        lambda path: waits(path) or path.called.startswith(("multiprocessing.", "concurrent.", "subprocess."))
    )
    waiting = np.isin(lines.path, paths)
    return waiting | lines.helping if len(lines.helping) else waiting


def _starts_workers(source: FunctionSource) -> list[str]:
    """Sites of calls that start processes."""
    return [
        f"{source.file}:{node.lineno}"
        for node in walk_source(source)
        if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in STARTERS
    ]
