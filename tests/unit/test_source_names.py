"""What names stand for, read from assignments."""

from __future__ import annotations

import ast

import pytest

from hotloop.analysis.source_names import names_in

SOURCE = """\
import numpy as np
from collections import deque, defaultdict
a, b = [], {}
rows = [0] * 10
memory: deque = deque(maxlen=5)
counts = defaultdict(int)
weights = np.zeros(3)
class Agent:
    def __init__(self, seen: list[str], table=None):
        self.seen = set()
        self.log = SummaryWriter()
        self.either = []
        self.either = {}
def f(x):
    x.append(1)
with open("a") as file:
    pass
"""


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("a", {"list"}),
        ("b", {"dict"}),
        ("rows", {"list"}),
        ("memory", {"deque"}),
        ("counts", {"dict"}),
        ("weights", {"array"}),
        ("seen", {"list"}),
        ("self.seen", {"set"}),
        ("agent.seen", {"set"}),  # as its class sets it
        ("self.log", {"SummaryWriter"}),
        ("file", {"open"}),
        ("table", set()),
    ],
)
def test_kinds(name: str, kinds: set[str]) -> None:
    assert names_in([ast.parse(SOURCE)]).of(name) == kinds


@pytest.mark.parametrize(
    ("name", "scanned"),
    [
        ("a", True),
        ("memory", True),
        ("b", False),
        ("self.seen", False),
        ("x", True),  # unknown, but appended to
        ("table", False),  # unknown
        ("self.either", False),  # sometimes a dict
    ],
)
def test_what_is_searched_from_its_start(name: str, scanned: bool) -> None:
    assert names_in([ast.parse(SOURCE)]).is_scanned(name) is scanned
