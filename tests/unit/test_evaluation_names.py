"""Which functions are named after evaluation."""

from __future__ import annotations

import pytest

from hotloop.instrument.step_counting import evaluates


@pytest.mark.parametrize(
    "name",
    [
        "evaluate",
        "_eval",
        "run_evaluation",
        "evaluate_policy",
        "greedy_eval_episodes",
        "test_agent",
        "validate",
    ],
)
def test_functions_that_evaluate(name: str) -> None:
    assert evaluates(name)


@pytest.mark.parametrize(
    "name",
    [
        "train_and_evaluate",
        "test_steps_in_evaluation_do_not_count",
        "run_without_evaluation",
        "main_with_eval",
        "learn",
        "evaluator",
        "test_training_loop",
    ],
)
def test_functions_around_a_training_loop_do_not_evaluate(name: str) -> None:
    assert not evaluates(name)
