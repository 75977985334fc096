"""A backward pass counts for forward code by its part in the loss that is back-propagated."""

from __future__ import annotations

import pytest

from hotloop.analysis.advice.backward_shares import backward_shares
from hotloop.analysis.advice.slow_idioms import slow_idioms
from hotloop.analysis.line_samples import LineSamples, line_samples
from hotloop.capture.samples import SampledPath
from tests.unit.test_hot_lines import capture_with, path, run_of, with_source

SOURCE = """\
import torch
cell = torch.nn.GRUCell(8, 8)
def observe(embed):
    h = zeros(8)
    states = []
    for t in range(embed.shape[1]):
        h = cell(embed[:, t], h)
        states.append(h)
    return torch.stack(states, 1)
def fit(obs):
    embed = encoder(obs)
    states = observe(embed)
    with torch.no_grad():
        aim = target(obs)
    loss = (decoder(states) - aim).square().mean()
    loss.backward()
    return states.detach()
def behave(h):
    states = []
    for _ in range(15):
        h = imagine(h, actor(h))
        states.append(h)
    returns = critic(torch.stack(states))
    step(-returns.mean())
    value_loss = (critic(h.detach()) - returns.detach()).square().mean()
    value_loss.backward()
def step(loss):
    loss.backward()
    optimizer.step()
for obs in replay:
    behave(fit(obs))
"""
MAIN, OBSERVE, FIT, BEHAVE, STEP = (
    ("train.py", name, row)
    for name, row in (("<module>", 1), ("observe", 3), ("fit", 10), ("behave", 18), ("step", 26 + 1))
)
LAYER = "torch.nn.modules.module.Module._wrapped_call_impl"
BACKWARD = "torch._tensor.Tensor.backward"
PATHS = [
    path((MAIN, 31), (FIT, 12), (OBSERVE, 7), called=LAYER),  # 0: the loop of the world model
    path((MAIN, 31), (FIT, 11), called=LAYER),
    path((MAIN, 31), (FIT, 14), called=LAYER),  # without gradients
    path((MAIN, 31), (FIT, 15), called=LAYER),
    path((MAIN, 31), (FIT, 16), called=BACKWARD),  # 4
    path((MAIN, 31), (BEHAVE, 21), called=LAYER),
    path((MAIN, 31), (BEHAVE, 23), called=LAYER),
    path((MAIN, 31), (BEHAVE, 24), (STEP, 28), called=BACKWARD),  # 7: of the loss that `behave` made
    path((MAIN, 31), (BEHAVE, 25), called=LAYER),
    path((MAIN, 31), (BEHAVE, 26), called=BACKWARD),  # 9
]
WEIGHTS = [3.0, 1.0, 5.0, 2.0, 10.0, 9.0, 3.0, 50.0, 2.0, 4.0]


def sampled(paths: list[SampledPath], weights: list[float]) -> LineSamples:
    capture = with_source(capture_with(paths, weights, 4000), ("train.py", "<module>", 1, SOURCE))
    lines = line_samples(capture.processes[0], capture.processes[0].threads[0])
    assert lines is not None
    return lines


def with_functions(source: str) -> list[tuple[str, str, int, str]]:
    rows = source.splitlines(keepends=True)
    pieces = [("observe", 3, 9), ("fit", 10, 17), ("behave", 18, 26), ("step", 27, 29)]
    found = [("train.py", name, first, "".join(rows[first - 1 : last])) for name, first, last in pieces]
    return [("train.py", "<module>", 1, source), *found]


def lines_with_functions() -> LineSamples:
    capture = with_source(capture_with(PATHS, WEIGHTS, 4000), *with_functions(SOURCE))
    lines = line_samples(capture.processes[0], capture.processes[0].threads[0])
    assert lines is not None
    return lines


def test_each_pass_is_divided_as_the_forward_pass_of_its_loss() -> None:
    parts = backward_shares(lines_with_functions(), {0})
    assert parts[4] == pytest.approx(3 / 6, abs=0.02)  # the target has no gradients
    assert parts.sum() == parts[4]  # nothing of the imagined steps
    parts = backward_shares(lines_with_functions(), {5})
    assert parts[7] == pytest.approx(9 / 12, abs=0.02)  # `step` was given the loss
    assert parts.sum() == parts[7]  # what is detached is no part of the critic's loss
    assert backward_shares(lines_with_functions(), {8})[9] == 1


def test_without_a_source_the_whole_function_counts() -> None:
    lines = sampled(PATHS, WEIGHTS)
    parts = backward_shares(lines, {0})
    assert parts[4] == pytest.approx(3 / 11, abs=0.02) and parts[7] == 0


def test_a_world_models_loop_gets_its_part_of_the_passes() -> None:
    capture = with_source(capture_with(PATHS, WEIGHTS, 4000), *with_functions(SOURCE))
    advice = {one.name: one for one in slow_idioms(run_of(capture))}
    one = advice["recurrent_step_by_step"]
    share = (3 + 10 * 3 / 6) / sum(WEIGHTS)
    assert one.gain is not None and one.gain.value == pytest.approx(1 / (1 - 0.88 * share), rel=0.05)
    assert "another 5.6 %" in " ".join(one.evidence)
