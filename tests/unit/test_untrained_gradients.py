"""Gradients of parameters that nobody trains get advice with a measured gain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hotloop.analysis.advice.gradients import target_with_gradients
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.advice.untrained_gradients import untrained_gradients
from hotloop.capture.samples import SampledPath
from hotloop.testing.captures import Spec, make_capture
from tests.unit.test_hot_lines import capture_with, path, run_of, with_source

MAIN = ("train.py", "<module>", 1)
LEARN = ("train.py", "learn", 10)
FORWARD = ("train.py", "Net.forward", 3)
BACKWARD = [["train.py", 1, 30], ["train.py", 10, 15]]
PATHS = [
    path((MAIN, 30), (LEARN, 15), called="torch._tensor.Tensor.backward"),
    path((MAIN, 30), (LEARN, 12), (FORWARD, 4), called="torch.nn.modules.module.Module._call_impl"),
    path((MAIN, 30), (LEARN, 13), (FORWARD, 4), called="torch.nn.modules.module.Module._call_impl"),
    path((MAIN, 28), (FORWARD, 4), called="torch.nn.modules.module.Module._call_impl"),  # acting
]
GRADIENTS = {
    "frames": BACKWARD,
    "passes": 6,
    "of_passes": 6,
    "elements": 90,
    "of_elements": 100,
    "modules": ["net.encoder"],
    "total_ns": 1000,
    "needless_ns": 800,
    "weights_ns": 0,
    "changes": False,
    "attention": False,
}


def run_with(paths: list[SampledPath], weights: list[float], source: str = "", **facts: Any) -> RunView:
    """A run with facts of its process; a source has a method of `Model` from its sixth line on."""
    capture = capture_with(paths, weights)
    if source:
        method = "\n".join(source.split("\n")[5:])
        pieces = ("train.py", "<module>", 1, source), ("train.py", "Model.log_probs", 6, method)
        capture = with_source(capture, *pieces)
    entry = {"pid": capture.processes[0].pid, **facts}
    return run_of(replace(capture, facts={**capture.facts, "libraries": [entry]}))


def gradients(**changes: Any) -> dict[str, Any]:
    return {"passes": 9, "windows": 3, "unused": [GRADIENTS | changes]}


@pytest.mark.parametrize(
    ("changes", "gain", "words"),
    [
        ({}, 1 / (1 - 0.5 * 0.8 * 1.05), "no_grad():"),
        ({"needless_ns": 0, "weights_ns": 900}, 1 / (1 - 0.5 * 0.45), "Not no_grad"),
        ({"passes": 3}, 1 / (1 - 0.5 * 0.5 * 0.8 * 1.05), "requires_grad_(False)"),
    ],
)
def test_gradients_of_untrained_parameters_have_a_measured_gain(
    changes: dict[str, Any], gain: float, words: str
) -> None:
    run = run_with(PATHS, [50, 30, 10, 10], gradients=gradients(**changes))
    (advice,) = untrained_gradients(run)
    assert advice.name == "untrained_gradients" and advice.site == "train.py:15"
    assert advice.safety == "safe" and words in advice.advice and "net.encoder" in advice.title
    assert advice.gain is not None
    assert advice.gain.value == pytest.approx(gain, rel=0.01)
    assert advice.gain.low <= advice.gain.value <= advice.gain.high


def test_safety_says_what_stays_the_same() -> None:
    attention = gradients(attention=True)
    (advice,) = untrained_gradients(run_with(PATHS, [50, 30, 10, 10], gradients=attention))
    assert advice.safety == "rounding" and "eval mode" in advice.advice
    capture = make_capture({"clip_grad_norm": Spec(20_000, 20_000)}, env_steps=20_000)
    run = run_with(PATHS, [50, 30, 10, 10], gradients=gradients())
    clipping = replace(run, rows=run_of(capture).rows)
    (advice,) = untrained_gradients(clipping)
    assert advice.safety == "semantic" and "clip_grad_norm_" in advice.advice


def test_a_pass_on_a_device_has_advice_without_a_gain() -> None:
    untimed = {"total_ns": 0, "needless_ns": 0}
    (advice,) = untrained_gradients(run_with(PATHS, [50, 30, 10, 10], gradients=gradients(**untimed)))
    assert advice.gain is None
    few = gradients(**untimed, elements=5)
    assert untrained_gradients(run_with(PATHS, [50, 30, 10, 10], gradients=few)) == []


@pytest.mark.parametrize(
    ("weights", "facts"),
    [
        ([50, 30, 10, 10], {"passes": 9, "windows": 3, "unused": []}),
        ([4, 70, 10, 16], gradients()),  # backward passes take too little
        ([50, 30, 10, 10], gradients(needless_ns=60)),  # most of the pass is needed
        ([50, 30, 10, 10], gradients(modules=[])),
        ([50, 30, 10, 10], gradients(frames=[["train.py", 1, 30], ["train.py", 10, 99]])),
    ],
)
def test_no_advice_where_little_is_needless(weights: list[float], facts: dict[str, Any]) -> None:
    assert untrained_gradients(run_with(PATHS, weights, gradients=facts)) == []


def test_what_was_seen_decides_and_not_the_source() -> None:
    assert target_with_gradients(run_with(PATHS, [50, 30, 10, 10], gradients=gradients())) == []
