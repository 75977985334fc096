"""Data from files has the types it should have, or the first misfit is named with its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import pytest

from hotloop._util.conform import Misfit, conform


@dataclass(frozen=True)
class Inner:
    name: str
    size: int = 3


@dataclass(frozen=True)
class Outer:
    inner: Inner
    kind: Literal["a", "b"]
    place: Path | None = None
    shares: dict[str, float] = field(default_factory=dict)
    by_number: dict[int, str] = field(default_factory=dict)
    pairs: tuple[tuple[str, int], ...] = ()


class File(TypedDict):
    version: int
    about: NotRequired[dict[str, Any]]


WHOLE = {"inner": {"name": "x"}, "kind": "a", "place": "p", "shares": {"a": 1, "b": 0.5}}


def test_data_of_the_right_types_becomes_the_types() -> None:
    data = WHOLE | {"by_number": {"7": "x"}, "pairs": [["a", 1]], "of a later version": 1}
    expected = Outer(Inner("x"), "a", Path("p"), {"a": 1, "b": 0.5}, {7: "x"}, (("a", 1),))
    assert conform(data, Outer, "file") == expected
    assert conform({"version": 1, "new": 2}, File, "file") == {"version": 1, "new": 2}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"inner": 3}, "file.inner is 3, not an object"),
        ({"inner": {}}, "file.inner has no 'name'"),
        ({"inner": {"name": 1}}, "file.inner.name is 1, not text"),
        ({"inner": {"name": "x", "size": True}}, "file.inner.size is True, not a whole number"),
        ({"inner": {"name": "x", "size": 2**64}}, "not a whole number of 64 bits"),
        ({"inner": {"name": "x", "size": 1.0}}, "not a whole number"),
        ({"kind": "c"}, "file.kind is 'c', not one of a, b"),
        ({"kind": ["a"]}, "not one of a, b"),
        ({"place": 3}, "file.place is 3, not text"),
        ({"shares": {"a": "1"}}, "file.shares.a is '1', not a number"),
        ({"by_number": {"²": "x"}}, "a key of file.by_number is '²', not a number"),
        ({"pairs": [["a"]]}, r"file.pairs\[0\] is \['a'\], not a list of 2"),
        ({"pairs": {}}, "file.pairs is {}, not a list"),
    ],
)
def test_a_misfit_is_named_with_its_place(change: dict[str, Any], says: str) -> None:
    with pytest.raises(Misfit, match=says):
        conform(WHOLE | change, Outer, "file")
    with pytest.raises(Misfit, match="file has no 'version'"):
        conform({}, File, "file")
