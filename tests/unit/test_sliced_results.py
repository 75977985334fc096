"""A slice of position-wise work is taken before it; what mixes positions is left alone."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from hotloop.analysis.advice.sliced_results import find_sliced, sliced_results
from hotloop.analysis.source_names import names_in
from tests.unit.test_hot_lines import path
from tests.unit.test_padded_sequences import POSITIONS
from tests.unit.test_untrained_gradients import LEARN, MAIN, run_with

MODEL = """
class Model(nn.Module):
    def __init__(self):
        self.head = {layer}
        self.body = nn.TransformerEncoder(layers, 2)
    def log_probs(self, tokens):
        {before}
        {middle}
        return {result}
"""
PLAIN = {
    "layer": "nn.Linear(64, 5000)",
    "before": "logits = self.head(self.body(tokens))",
    "middle": "chosen = logits.log_softmax(-1).gather(2, tokens[:, 1:, None]).squeeze(2)",
    "result": "chosen[:, PROMPT - 1:]",
}


def sliced_in(**changes: str) -> list[tuple[str, str, bool]]:
    tree = ast.parse(MODEL.format(**PLAIN | changes))
    (scope,) = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "log_probs"]
    return [
        (ast.unparse(one.slice), ast.unparse(one.base), one.is_certain)
        for one in find_sliced(names_in([tree]), scope)
    ]


@pytest.mark.parametrize(
    ("changes", "slice_", "base"),
    [
        ({}, "chosen[:, PROMPT - 1:]", "self.body(tokens)"),
        (
            {"layer": "nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 9), nn.GELU())", "middle": "pass"}
            | {"result": "logits[:, -1, :]"},
            "logits[:, -1, :]",
            "self.body(tokens)",
        ),
        (
            {"middle": "chosen = -F.log_softmax(logits / 2.0, dim=2)", "result": "chosen[:, self.start:, :]"},
            "chosen[:, self.start:, :]",
            "self.body(tokens)",
        ),
        (
            {"before": "logits = tokens", "middle": "chosen = torch.exp(logits).sum(2)"},
            "chosen[:, PROMPT - 1:]",
            "tokens",
        ),
    ],
)
def test_a_slice_of_position_wise_work_is_found(changes: dict[str, str], slice_: str, base: str) -> None:
    assert sliced_in(**changes) == [(slice_, base, True)]


@pytest.mark.parametrize(
    "changes",
    [
        {"result": "chosen[:, 1:]"},  # shifts by one step
        {"result": "chosen[mask]"},
        {"result": "chosen[:, rows]"},
        {"result": "chosen[:8]"},  # of the batch
        {"result": "chosen[:, PROMPT:], chosen.mean()"},  # all of it is used as well
        {"middle": "chosen = logits.softmax(1)"},  # along the axis of the slice
        {"middle": "chosen = logits.cumsum(1)"},
        {"before": "logits = self.body(tokens)", "middle": "chosen = logits"},  # attention mixes positions
        {"layer": "nn.Sequential(nn.Linear(64, 9), nn.Dropout(0.1))", "middle": "chosen = logits"},
        {"before": "logits = np.matmul(tokens, self.w)", "middle": "chosen = np.tanh(logits).cumsum(2)"},
    ],
)
def test_other_slices_are_left_alone(changes: dict[str, str]) -> None:
    assert sliced_in(**changes) == []


def test_functions_of_numpy_are_no_methods_of_it() -> None:
    found = sliced_in(before="logits = tokens", middle="chosen = np.tanh(np.matmul(logits, self.w))")
    assert found == [("chosen[:, PROMPT - 1:]", "np.matmul(logits, self.w)", False)]


def test_the_column_of_a_table_is_not_certain() -> None:
    """`critic(observations)[:, 0]`: the axis of the slice may be the last, that the layer works along."""
    assert sliced_in(middle="pass", result="logits[:, 0]") == [("logits[:, 0]", "self.body(tokens)", False)]


HEAD = POSITIONS | {
    "frames": [["train.py", 1, 30], ["train.py", 10, 12], ["train.py", 6, 7]],
    "kind": "Linear",
    "steps": 55.0,
    "first": [39, 39],
    "last": [55, 55],
    "used": 1.0,
    "own_used": 1.0,
}
METHOD = ("train.py", "Model.log_probs", 6)
BODY = ("train.py", "Model.body", 40)
CALL = "torch.nn.modules.module.Module._call_impl"
PATHS = [
    path((MAIN, 30), (LEARN, 12), (METHOD, 7), called=CALL),
    path((MAIN, 30), (LEARN, 12), (METHOD, 8), called="torch._tensor.Tensor.log_softmax"),
    path((MAIN, 30), (LEARN, 12), (METHOD, 7), (BODY, 41), called=CALL),
    path((MAIN, 30), (LEARN, 15), called="torch._tensor.Tensor.backward"),
    path((MAIN, 28), called="time.sleep"),
]
WEIGHTS = [10.0, 10.0, 20.0, 40.0, 20.0]


def test_a_slice_that_was_seen_has_the_gain_of_its_positions() -> None:
    (advice,) = sliced_results(run_with(PATHS, WEIGHTS, MODEL.format(**PLAIN), positions=[HEAD]))
    assert advice.safety == "rounding" and advice.site == "train.py:7"
    assert "self.body(tokens)[:, PROMPT - 1:]" in advice.advice
    saved = 0.95 * 39 / 55  # of the head, which is half of the forward pass, and of half of the backward pass
    assert advice.gain is not None
    assert advice.gain.value == pytest.approx(1 / (1 - saved * (0.2 + 0.2)), rel=0.02)


def test_a_slice_in_the_source_alone_has_a_wide_interval() -> None:
    (advice,) = sliced_results(run_with(PATHS, WEIGHTS, MODEL.format(**PLAIN)))
    assert advice.gain is not None
    assert advice.gain.low < 1.05 < advice.gain.value < 1.15 < advice.gain.high


@pytest.mark.parametrize(
    ("weights", "changes", "seen"),
    [
        ([1, 1, 40, 8, 50], {}, HEAD),  # the head costs little
        (WEIGHTS, {"middle": "pass", "result": "logits[:, 0]"}, POSITIONS),
        (WEIGHTS, {"middle": "pass", "result": "logits[:, 0]"}, HEAD | {"first": [0, 39]}),
        (WEIGHTS, {"result": "chosen"}, HEAD),  # used elsewhere, perhaps
    ],
)
def test_no_advice_without_a_slice_that_is_worth_it(
    weights: list[float], changes: dict[str, str], seen: dict[str, Any]
) -> None:
    source = MODEL.format(**PLAIN | changes)
    assert sliced_results(run_with(PATHS, weights, source, positions=[seen])) == []
