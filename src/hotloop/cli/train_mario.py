"""`hotloop train mario --benchmark`: prints the comparison of both variants."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop._util.errors import HotloopError
from hotloop.cli.output import note, pen_for_stdout
from hotloop.report.pipeline import benchmark_json, benchmark_text
from hotloop.report.to_json import strict_json
from hotloop.workflows.experiments import Progress, exit_code_of
from hotloop.workflows.train_mario import Request as Request
from hotloop.workflows.train_mario import benchmark

if TYPE_CHECKING:
    from hotloop.cli.train import Profiling


def run(config: Any, request: Request, profiling: Profiling, again: Callable[[Path | None], str]) -> int:
    """Run the benchmark, print it, and return the exit code; `again(series)` is the command to continue."""
    if profiling.no_profiling:
        raise HotloopError("--benchmark reads its figures from captures; leave out --no-profiling.")
    found = benchmark(config, request, Progress())
    done = found.done
    if profiling.json:
        data = benchmark_json(found.rows, found.figures, found.same_work, done.series, found.learner_limits)
        print(strict_json(data))
    else:
        print(
            benchmark_text(
                found.rows,
                len(found.figures),
                found.same_work,
                found.learner_limit_text,
                done.comparison.machine_load,
                pen_for_stdout(),
            )
        )
    note(done.outcome.summary)
    note(f"wrote {request.benchmark_json} and {request.benchmark_png}")
    if done.interrupted:
        note(f"continue with: {again(done.series.path)}")
    note(f"next: hotloop report {shlex.quote(str(done.series.path))}")
    return exit_code_of(done.outcome)
