"""Each rule about regions fires on loops that have its defect and on no other: two loops, really run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from hotloop import Profiler
from hotloop.analysis.explain import explain
from hotloop.analysis.findings import ADVICE_TIERS
from tests.truth.loops import DEFECTS, off_policy, on_policy, recorded

Loop = Callable[[Profiler, str], Iterator[None]]
LOOPS = {"off_policy": off_policy, "on_policy": on_policy}
RULES = frozenset(DEFECTS.values())


@cache
def advice_on(loop: str, defect: str) -> frozenset[str]:
    found = explain(recorded(LOOPS[loop], defect)).recommendations
    return frozenset(one.name for one in found if one.tier in (*ADVICE_TIERS, "option"))


@pytest.mark.long
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("defect", DEFECTS)
def test_the_rule_fires_and_no_other(loop: str, defect: str) -> None:
    assert advice_on(loop, defect) & RULES == {DEFECTS[defect]}


@pytest.mark.long
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_without_defect_gets_no_advice(loop: str) -> None:
    assert advice_on(loop, "none") & RULES == frozenset()
