"""Planted defects come out first; healthy runs give nothing above low impact."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

import pytest

from hotloop.analysis.explain import explain
from hotloop.analysis.recommend import AdviceWarning
from hotloop.capture.model import Capture, Node
from hotloop.testing.planted import CLEAN, DEFECTS, OPTIONS, Planted

pytestmark = pytest.mark.filterwarnings(f"error::{AdviceWarning.__module__}.{AdviceWarning.__name__}")


def test_there_are_enough_of_them() -> None:
    assert len(DEFECTS) >= 20 and len(CLEAN) >= 3
    assert len({defect()[1] for defect in DEFECTS}) >= 20


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: d.__name__)
def test_a_planted_defect_is_the_first_recommendation(defect: Callable[[], Planted]) -> None:
    capture, rule = defect()
    first = explain(capture).recommendations[0]
    assert first.name == rule
    assert first.tier in ("high", "medium")


@pytest.mark.parametrize("option", OPTIONS, ids=lambda d: d.__name__)
def test_advice_that_changes_training_is_an_option(option: Callable[[], Planted]) -> None:
    capture, rule = option()
    found = explain(capture).recommendations
    assert [one.name for one in found if one.tier == "option"] == [rule]
    assert [one.name for one in found if one.tier in ("high", "medium")] == []


@pytest.mark.parametrize("healthy", CLEAN, ids=lambda c: c.__name__)
def test_a_healthy_run_is_left_alone(healthy: Callable[[], Capture]) -> None:
    found = explain(healthy()).recommendations
    assert [one.name for one in found if one.tier in ("high", "medium")] == []


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: d.__name__)
def test_advice_is_complete(defect: Callable[[], Planted]) -> None:
    capture, rule = defect()
    first = explain(capture).recommendations[0]
    assert any(re.search(r"\d", sentence) for sentence in first.evidence)
    if first.gain is None:
        assert any("cannot be predicted" in sentence for sentence in first.evidence)
    else:
        assert 1.0 <= first.gain.low <= first.gain.value <= first.gain.high
        assert first.gain.low < first.gain.high
    sites = {node.site for node in nodes_below(capture.tree) if node.name == first.region}
    assert first.site in sites | {""}
    assert first.site or not any(sites), "the capture knows where the region is"
    assert first.title and first.advice and first.how_to_change
    assert "hotloop run -- python train.py" in first.prove_command or "hotloop try" in first.prove_command
    assert json.loads(json.dumps(asdict(first)))["plan"]["variants"][1]["name"] == rule


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: d.__name__)
def test_evidence_decides_not_names(defect: Callable[[], Planted]) -> None:
    """With every region renamed and only its kind kept, the same defect is found, or its kind is named."""
    capture, rule = defect()
    kinds = {region.path: region.category for region in explain(capture).regions}
    renamed = rename(capture, kinds)
    found = [one.name for one in explain(renamed).recommendations] or ["nothing"]
    assert found[0] in WITHOUT_A_NAME.get(rule, {rule})


# What can be said when only the category is known: a push is then some work done env by env, a resize
# some drawing or the env's own work; a library that can be boosted is known by its regions; a reset and a
# lock cannot be told from steps and other waits, nor what was thrown away from what was handed over, nor a
# collection of garbage from other work of a library.
WITHOUT_A_NAME = {
    "replay_item_by_item": {"replay_item_by_item", "per_item_calls"},
    "resizing": {"resizing", "rendering_in_python"},
    "boost": {"too_few_envs", "nothing"},
    "costly_resets": {"leave_alone"},
    "lock_wait": {"nothing"},
    "experience_dropped": {"nothing"},
    "garbage_collection_pauses": {"nothing", "leave_alone"},
    "reports_too_often": {"nothing"},  # known by the name that we give it
}


def rename(capture: Capture, kinds: dict[tuple[str, ...], str]) -> Capture:
    """The capture with regions called r0, r1, ... and their categories made explicit."""
    numbers: dict[str, str] = {}

    def new(name: str) -> str:
        return numbers.setdefault(name, f"r{len(numbers)}")

    def copy(node: Node, path: tuple[str, ...]) -> Node:
        children = [copy(child, (*path, child.name)) for child in node.children]
        name, category = (new(node.name), kinds[path]) if path else ("", "")
        return replace(node, name=name, category=category, children=children)

    processes = []
    for process in capture.processes:
        threads = tuple(
            replace(
                thread,
                root=copy(thread.root, ()),
                paths=tuple(tuple(new(name) for name in path) for path in thread.paths),
            )
            for thread in process.threads
        )
        processes.append(replace(process, threads=threads))
    return replace(capture, processes=tuple(processes))


def nodes_below(node: Node) -> Iterator[Node]:
    for child in node.children:
        yield child
        yield from nodes_below(child)
