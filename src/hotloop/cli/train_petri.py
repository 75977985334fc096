"""`hotloop train petri --breakdown | --compare | --detailed`: prints the parts of a training batch."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop._util.errors import HotloopError
from hotloop.cli.output import note, pen_for_stdout
from hotloop.report.batch_breakdown import (
    advice_text,
    breakdown_json,
    breakdown_text,
    explanation_text,
    impacts_text,
    totals_text,
)
from hotloop.report.series_text import comparison_json, comparison_text
from hotloop.report.to_json import json_object, plain, strict_json
from hotloop.workflows.experiments import Progress, exit_code_of
from hotloop.workflows.train import Recording, train
from hotloop.workflows.train_petri import (
    OFF,
    ON,
    REPORTS,
    Request,
    TurboComparison,
    breakdown_of,
    compare_turbo,
    with_batches,
    write_functions,
)

if TYPE_CHECKING:
    from hotloop.cli.train import Profiling


def run(config: Any, request: Request, profiling: Profiling, again: Callable[[Path | None], str]) -> int:
    """Run the breakdown, the comparison or the function profiles, print them, and return the exit code.

    `again(series)` is the command that continues a comparison.
    """
    if profiling.no_profiling:
        raise HotloopError(
            "--no-profiling records nothing, so there is nothing to break down or compare; leave it out."
        )
    code = 0
    if request.compare:
        code = _compare(config, request, profiling, again)
    elif request.breakdown:
        _breakdown(config, profiling)
    if request.detailed and code == 0:
        difference = write_functions(config, request.compare, note)
        if difference:
            (note if profiling.json else print)(f"\n{difference}")
        elif profiling.json and not request.breakdown:  # which has printed an object
            print(strict_json(json_object("functions", {"files": [str(REPORTS[config.turbo])]})))
    return code


def _breakdown(config: Any, profiling: Profiling) -> None:
    trained = train("petri", with_batches(config), Recording(profiling.capture), quiet=True)
    assert trained.folder is not None
    found = breakdown_of(trained.folder)
    if profiling.json:
        print(strict_json({**breakdown_json(found), "capture": str(trained.folder)}))
        return
    mode = f"{config.trainer}, {ON if config.turbo else OFF}"
    print(breakdown_text(found, pen_for_stdout(), f"A training batch of {mode}"))
    note(f"next: hotloop report {shlex.quote(str(trained.folder))}")


def _compare(config: Any, request: Request, profiling: Profiling, again: Callable[[Path | None], str]) -> int:
    found = compare_turbo(config, request, Progress())
    result = found.result
    if profiling.json:
        data = comparison_json(result.series, result.comparison)
        more = ("off", "on", "totals", "explanation", "impacts", "recommendations")
        print(strict_json({**data, **{name: plain(getattr(found, name)) for name in more}}))
    else:
        print(_text(found, request.breakdown, _other_learner(config)))
    note(result.outcome.summary)
    if result.interrupted:
        note(f"continue with: {again(result.series.path)}")
    note(f"next: hotloop report {shlex.quote(str(result.series.path))}")
    return exit_code_of(result.outcome)


def _other_learner(config: Any) -> str:
    """Names a trainer or learner that does the same training with less overhead; "" if there is none."""
    if config.trainer != "hotloop":
        return "To speed up all parts: --trainer hotloop trains the same network with the same settings."
    if config.learner == "torch":
        return "To speed up all of learning: --learner fused makes the same updates in one compiled kernel."
    return ""


def _text(found: TurboComparison, breakdown: bool, last: str) -> str:
    pen = pen_for_stdout()
    parts = [comparison_text(found.result.series, found.result.comparison, pen)]
    if not found.result.series.runs:
        return parts[0]
    parts.append(totals_text(found.totals, pen))
    parts.append(explanation_text(found.explanation, pen))
    if breakdown:
        sides = ((OFF, found.off), (ON, found.on))
        parts += [breakdown_text(one, pen, f"A training batch, {name}") for name, one in sides if one]
    if found.impacts:
        parts.append(impacts_text(found.impacts, pen, "turbo on; intervals over all its runs", last))
    parts.append(advice_text(found.recommendations, pen))
    return "\n\n".join(part for part in parts if part)
