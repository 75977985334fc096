"""Padding beyond the longest sequence of a batch gets advice where the loss does not depend on it."""

from __future__ import annotations

from typing import Any

import pytest

from hotloop.analysis.advice.padded_sequences import is_padding, padded_sequences
from tests.unit.test_untrained_gradients import BACKWARD, PATHS, run_with

POSITIONS = {
    "frames": [["train.py", 1, 30], ["train.py", 10, 12], ["train.py", 3, 4]],
    "backward": BACKWARD,
    "kind": "LSTM",
    "gradients": True,
    "state_is_used": False,
    "calls": 9,
    "windows": 3,
    "sequences": 32.0,
    "steps": 96.0,
    "first": [0, 0],
    "last": [20, 60],
    "used": 0.4,
    "own_used": 0.2,
}
TARGETS = POSITIONS | {
    "frames": [["train.py", 1, 30], ["train.py", 10, 13], ["train.py", 3, 4]],
    "backward": [],
    "gradients": False,
    "own_used": 0.4,
}


def test_padding_counts_the_forward_pass_targets_and_the_backward_pass() -> None:
    run = run_with(PATHS, [40, 20, 20, 20], positions=[POSITIONS, TARGETS])
    (advice,) = padded_sequences(run)
    assert advice.site == "train.py:12" and advice.safety == "semantic"
    assert advice.gain is not None
    assert advice.gain.value == pytest.approx(1 / (1 - 0.8 * 0.6 * 0.95), rel=0.01)
    assert "pack_padded_sequence" in advice.advice  # 20 % used of 40 %


def test_only_what_goes_with_the_batch_gets_faster() -> None:
    (advice,) = padded_sequences(run_with(PATHS, [40, 20, 20, 20], positions=[POSITIONS]))
    assert advice.gain is not None
    assert advice.gain.value == pytest.approx(1 / (1 - 0.6 * 0.6 * 0.95), rel=0.01)
    other = TARGETS | {"steps": 12.0}  # a batch of other sequences
    (advice,) = padded_sequences(run_with(PATHS, [40, 20, 20, 20], positions=[POSITIONS, other]))
    assert advice.gain.value == pytest.approx(1 / (1 - 0.6 * 0.6 * 0.95), rel=0.01)


def test_sequences_of_similar_length_are_only_cut() -> None:
    run = run_with(PATHS, [40, 20, 20, 20], positions=[POSITIONS | {"kind": "Embedding", "own_used": 0.35}])
    (advice,) = padded_sequences(run)
    assert "pack_padded_sequence" not in advice.advice and "longest" in advice.title


@pytest.mark.parametrize(
    "changes",
    [
        {"state_is_used": True},  # the state after the last step depends on all of them
        {"last": [96, 96], "used": 1.0, "own_used": 0.5},  # one sequence is as long as the batch
        {"last": [76, 76], "used": 0.79, "own_used": 0.79},  # targets of n-step returns lie behind
        {"calls": 2},
        {"gradients": False, "backward": []},
    ],
)
def test_no_advice_where_the_end_may_be_needed(changes: dict[str, Any]) -> None:
    assert not is_padding(POSITIONS | changes)
    run = run_with(PATHS, [40, 20, 20, 20], positions=[POSITIONS | changes])
    assert padded_sequences(run) == []


def test_no_advice_where_padded_batches_cost_little() -> None:
    assert padded_sequences(run_with(PATHS, [3, 2, 2, 93], positions=[POSITIONS, TARGETS])) == []
