"""Samples of parts of a line: which expression took the time, and advice about that part alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotloop._util.errors import CaptureError
from hotloop.analysis.advice.idiom_places import IdiomPlaces, find_idioms
from hotloop.analysis.hot_statements import Spot, spots
from hotloop.analysis.line_samples import LineSamples, line_samples
from hotloop.analysis.parsed_source import indentation, parse_source
from hotloop.capture import export
from hotloop.capture.samples import Expression, FunctionSource, SampledFrame, SampledPath
from tests.unit.test_hot_lines import capture_with

SOURCE = """\
class Cafe:
    def __init__(self, rng):
        self.rng = rng
        self.size = 48

    def guests(self, state):
        copied = [copy.deepcopy(state), self.rng.normal(0, 1 / np.sqrt(SIZE), (400, SIZE))]
        return copied
"""
FUNCTION = FunctionSource("cafe.py", "Cafe.guests", 6, "".join(SOURCE.splitlines(keepends=True)[5:]))
LINE = SOURCE.splitlines()[6]


def sample_of(part: str) -> SampledPath:
    """A sample in which this part of line 7 ran."""
    column = LINE.index(part)
    place = Expression(7, column, 7, column + len(part))
    return SampledPath((SampledFrame("cafe.py", "Cafe.guests", 6, 7),), expression=place)


ROOT = sample_of("np.sqrt(SIZE)")
NORMAL = sample_of("self.rng.normal(0, 1 / np.sqrt(SIZE), (400, SIZE))")
COPY = sample_of("copy.deepcopy(state)")
ELSEWHERE = SampledPath((SampledFrame("cafe.py", "<module>", 1, 40),))


def lines_of(paths: list[SampledPath], weights: list[float]) -> LineSamples:
    capture = capture_with([*paths, ELSEWHERE], [*weights, 2])
    constructor = "".join(SOURCE.splitlines(keepends=True)[1:5])
    sources = (FUNCTION, FunctionSource("cafe.py", "Cafe.__init__", 2, constructor))
    process = replace(capture.processes[0], sources=sources)
    found = line_samples(process, process.threads[0])
    assert found is not None
    return found


def statement(lines: LineSamples) -> Spot:
    return next(spot for spot in spots(lines, 0.01) if spot.line == 7)


def idioms(paths: list[SampledPath], weights: list[float]) -> list[IdiomPlaces]:
    return find_idioms(lines_of(paths, weights))


def test_the_part_of_a_statement_that_took_the_time_is_known() -> None:
    spot = statement(lines_of([ROOT, NORMAL], [1, 3]))
    calls = dict(spot.calls())
    assert spot.fraction_in(calls["np.sqrt"]) == pytest.approx(0.25, abs=0.01)
    assert spot.fraction_in(calls["self.rng.normal"]) == pytest.approx(1.0)  # with its arguments
    assert spot.fraction_in(calls["copy.deepcopy"]) == 0.0
    assert spot.outside(calls["np.sqrt"]) == {1} and spot.outside(calls["self.rng.normal"]) == set()


def test_nothing_is_known_about_parts_of_samples_without_expressions() -> None:
    plain = replace(NORMAL, expression=None)
    spot = statement(lines_of([plain], [1]))
    assert spot.fraction_in(dict(spot.calls())["np.sqrt"]) is None
    inside = SampledPath((*NORMAL.frames, SampledFrame("cafe.py", "State.__deepcopy__", 60, 61)))
    called = statement(lines_of([NORMAL, inside], [1, 3]))
    assert called.fraction_in(dict(called.calls())["copy.deepcopy"]) is None


def test_a_cheap_part_of_a_slow_line_gets_no_advice() -> None:
    assert idioms([ROOT, NORMAL], [0.05, 3]) == []  # neither the root that never changes, nor the copy
    plain = [replace(one, expression=None) for one in (ROOT, NORMAL)]
    assert idioms(plain, [0.05, 3]) != []  # nobody knows which part it is


@pytest.mark.parametrize(
    ("hot", "name"), [(COPY, "deep_copy"), (ROOT, "same_every_time")], ids=["copy", "root"]
)
def test_advice_counts_the_time_of_its_part_only(hot: SampledPath, name: str) -> None:
    (found,) = idioms([hot, NORMAL], [2, 4])
    assert found.match.name == name
    assert found.lines.share_of(found.paths) == pytest.approx(2 / 8, abs=0.01)


TABLE = """\
class Replay:
    def add(self, item, i):
        priority = self.tree[self.capacity :].max() if self.size else 1.0
        self.tree[i] = priority
        return {extra}
"""


def table_idioms(reduction: str, shares: tuple[float, float], source: str = TABLE) -> list[str]:
    """Idioms in `add`, where the reduction takes the first share and the rest of its line the second."""
    source = source.replace("self.tree[self.capacity :].max()", reduction).format(extra="priority")
    text = source.splitlines()[2]

    def place(part: str) -> SampledPath:
        column = text.index(part)
        frame = SampledFrame("replay.py", "Replay.add", 2, 3)
        return SampledPath((frame,), expression=Expression(3, column, 3, column + len(part)))

    function = "".join(source.splitlines(keepends=True)[1:])
    capture = capture_with([place(reduction), place("self.size"), ELSEWHERE], [*shares, 1 - sum(shares)])
    process = replace(capture.processes[0], sources=(FunctionSource("replay.py", "Replay.add", 2, function),))
    found = line_samples(process, process.threads[0])
    assert found is not None
    return [one.match.name for one in find_idioms(found)]


@pytest.mark.parametrize(
    "reduction", ["self.tree[self.capacity :].max()", "self.tree.sum()", "np.max(self.tree)"]
)
def test_a_table_that_is_reduced_for_every_element_is_named(reduction: str) -> None:
    assert table_idioms(reduction, (0.4, 0.01)) == ["statistic_of_a_table"]


def test_other_reductions_are_left_alone() -> None:
    name = "self.tree[self.capacity :].max()"
    assert table_idioms(name, (0.05, 0.01)) == []  # takes little
    assert table_idioms(name, (0.1, 0.3)) == []  # most of the line is something else
    assert table_idioms("self.tree.max(axis=1)", (0.4, 0.01)) == []  # a part of the work itself
    fixed = TABLE.replace("self.tree[i] = priority", "self.tree = new_tree(i)")
    assert table_idioms(name, (0.4, 0.01), fixed) == []  # another table each time


def test_columns_are_those_of_the_source_before_it_was_dedented() -> None:
    tree = parse_source(FUNCTION)
    assert tree is not None and tree.body[0].col_offset == 0 and indentation(FUNCTION) == 4
    assert indentation(FunctionSource("a.py", "f", 1, "def f():\n    pass\n")) == 0
    assert indentation(FunctionSource("a.py", "f", 1, "")) == 0


def test_an_export_keeps_expressions_and_refuses_broken_ones() -> None:
    capture = capture_with([ROOT, ELSEWHERE], [1, 1])
    data = export.to_json(capture)
    assert export.from_json(data).processes[0].paths == capture.processes[0].paths
    older = export.to_json(capture)
    del older["processes"][0]["expressions"]
    assert export.from_json(older).processes[0].paths[0].expression is None
    for broken in ([[1, 2, 3], None], [None], [["a", 1, 1, 2], None]):
        data["processes"][0]["expressions"] = broken
        with pytest.raises(CaptureError):
            export.from_json(data)
