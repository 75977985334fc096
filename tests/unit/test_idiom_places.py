"""Which samples belong to which slow idiom when one runs inside the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotloop.analysis.advice.hottest_code import hottest_code
from hotloop.analysis.advice.idiom_places import find_idioms
from hotloop.analysis.line_samples import line_samples
from hotloop.capture.samples import FunctionSource, SampledFrame, SampledPath
from tests.unit.test_hot_lines import capture_with, run_of

SUMS = """\
def discounted(rewards):
    sums = np.zeros_like(rewards)
    for t in reversed(range(len(rewards) - 1)):
        sums[t] = rewards[t] + 0.99 * sums[t + 1]
    return sums
"""
ITEM = """\
    def __getitem__(self, index):
        return discounted(self.rewards[index:])
"""
MAIN = """\
import torch
for batch in loader:
    update(batch)
    count += 1
"""
TRAIN = SampledFrame("train.py", "<module>", 1, 2)
GET = SampledFrame("train.py", "Data.__getitem__", 20, 21)
LOADER = "torch.utils.data.dataloader._BaseDataLoaderIter.__next__"


def frame_of_sums(line: int) -> SampledFrame:
    return SampledFrame("train.py", "discounted", 10, line)


def test_a_slow_loop_in_a_data_set_is_named_beside_the_loader_that_runs_it() -> None:
    paths = [
        SampledPath((TRAIN, GET, frame_of_sums(12))),
        SampledPath((TRAIN, GET, frame_of_sums(13))),
        SampledPath((TRAIN,), called=LOADER, innermost=LOADER),
        SampledPath((SampledFrame("train.py", "<module>", 1, 3),)),
    ]
    capture = capture_with(paths, [2, 3, 2, 3])
    sources = (
        FunctionSource("train.py", "discounted", 10, SUMS),
        FunctionSource("train.py", "Data.__getitem__", 20, ITEM),
        FunctionSource("train.py", "<module>", 1, MAIN),
    )
    process = replace(capture.processes[0], sources=sources)
    lines = line_samples(process, process.threads[0])
    assert lines is not None
    shares = {found.match.name: lines.share_of(found.paths) for found in find_idioms(lines)}
    assert shares["elementwise_loop"] == pytest.approx(0.5, abs=0.01)
    assert shares["data_loader"] == pytest.approx(0.2, abs=0.01)


MASKS = """\
def masks(board):
    for cell in free(board):
        trial = Board(board)
        allowed[cell] = trial.lay(cell)
    return allowed
"""


def pointers(weights: list[float]) -> list[str]:
    """Titles about a loop that makes a board (first weight) and tries a move on it (second)."""
    loop = SampledFrame("train.py", "masks", 10, 12)
    paths = [
        SampledPath((TRAIN, loop)),
        SampledPath((TRAIN, replace(loop, line=13), SampledFrame("train.py", "Board.lay", 30, 31))),
        SampledPath((TRAIN,), called="torch.nn.modules.module.Module._call_impl"),
    ]
    capture = capture_with(paths, weights)
    sources = (
        FunctionSource("train.py", "masks", 10, MASKS),
        FunctionSource("train.py", "<module>", 1, "import torch\nupdate(masks(board))\n"),
    )
    run = run_of(replace(capture, processes=(replace(capture.processes[0], sources=sources),)))
    return [one.title for one in hottest_code(run)]


def test_a_loop_that_takes_more_than_the_hottest_code_in_it_is_named_first() -> None:
    first, second, *_ = pointers([2, 3, 5])
    assert first.startswith("`for cell in free(board):` takes ") and first.endswith("(train.py:11)")
    assert second.startswith("`Board.lay` takes ")


def test_a_loop_that_is_hardly_more_than_the_code_in_it_is_not_named() -> None:
    assert not any("for cell" in title for title in pointers([0.3, 4, 5.7]))


ENSEMBLE = """\
def values(nets, x):
    return torch.stack([net(x) for net in nets])
"""
SETUP = """\
nets = nn.ModuleList([make() for _ in range(8)])
update(values(nets, x) + head(x))
loss.backward()
"""


def saved_of_an_ensemble(other: float) -> tuple[tuple[float, float, float], float]:
    """What is saved, and the samples, with this much time in another network's forward passes."""
    layers = "torch.nn.modules.module.Module._wrapped_call_impl"
    inside = SampledFrame("train.py", "values", 10, 11)
    paths = [
        SampledPath((replace(TRAIN, line=2), inside), called=layers, innermost=layers),
        SampledPath((replace(TRAIN, line=2),), called=layers, innermost=layers),
        SampledPath((replace(TRAIN, line=3),), called="torch._tensor.Tensor.backward"),
    ]
    capture = capture_with(paths, [2, other, 4])
    sources = (
        FunctionSource("train.py", "values", 10, ENSEMBLE),
        FunctionSource("train.py", "<module>", 1, SETUP),
    )
    process = replace(capture.processes[0], sources=sources)
    lines = line_samples(process, process.threads[0])
    assert lines is not None
    (found,) = [one for one in find_idioms(lines) if one.match.name == "ensemble_one_by_one"]
    return found.saved, lines.share_of(found.paths)


def test_backward_passes_get_cheaper_by_the_part_that_a_place_has_in_the_forward_passes() -> None:
    alone, _ = saved_of_an_ensemble(0.001)
    half, share = saved_of_an_ensemble(2)
    assert share == pytest.approx(6 / 8, abs=0.01)
    assert half[1] == pytest.approx(alone[1] * (2 + 4 / 2) / 6, rel=0.01)
    assert half[2] == alone[2]
