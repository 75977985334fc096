"""docs/recommendations.md lists all built-in advice, and its example runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import hotloop.analysis.advice
from hotloop.testing.planted import DEFECTS, OPTIONS

PAGE = (Path(__file__).parents[2] / "docs" / "recommendations.md").read_text(encoding="utf-8")
NAMES = {function.__name__ for function in hotloop.analysis.advice.BUILT_IN}

# These never come first in a handmade capture: they predict no gain, or need sampled lines.
ASIDES = {"try_one_thread", "mostly_unnamed", "costly_regions", "leave_alone"}
MODULES_OF_LINES = {
    *(
        "slow_idioms",
        "evaluation_in_the_loop",
        "event_loops",
        "busy_threads",
        "library_parts",
        "hottest_code",
    ),
    *("started_again", "thrown_away_frames", "gradients", "discarded_gradients", "step_graphs"),
    *("untrained_gradients", "padded_sequences", "sliced_results"),
    "large_messages",  # needs the links between processes
}
OF_LINES = {
    f.__name__
    for f in hotloop.analysis.advice.BUILT_IN
    if f.__module__.rpartition(".")[2] in MODULES_OF_LINES
}


def test_all_advice_is_described_and_nothing_else() -> None:
    described = set(re.findall(r"^\| `([a-z0-9_]+)` \|", PAGE, flags=re.MULTILINE))
    assert described == NAMES


def test_all_advice_that_may_come_first_has_a_planted_defect() -> None:
    assert {defect()[1] for defect in (*DEFECTS, *OPTIONS)} == NAMES - ASIDES - OF_LINES


def test_the_example_runs_as_printed() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(example, "docs/recommendations.md", "exec"), {"__name__": "example"})
