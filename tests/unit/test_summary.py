"""Summaries of runs on many nodes: exact sums, whatever the order of folding; small; damage is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotloop._util.errors import CaptureError
from hotloop.capture.model import Node, Process, Progress, merged
from hotloop.capture.summary import (
    FOLDER,
    Summary,
    fold,
    load_summary,
    read_folded,
    role_of,
    save_summary,
    span_of,
    to_json,
)
from hotloop.testing.clusters import make_node_processes

NODES, PROCESSES = 4, 20


@pytest.fixture(scope="module")
def processes() -> list[list[Process]]:
    return [list(make_node_processes(node, PROCESSES, regions=6, windows=8)) for node in range(NODES)]


@pytest.fixture(scope="module")
def span(processes: list[list[Process]]) -> tuple[int, int]:
    return span_of(p for node in processes for p in node)


@pytest.fixture
def whole(processes: list[list[Process]], span: tuple[int, int]) -> Summary:
    found = fold(processes[0], *span)
    for node in processes[1:]:
        found.merge(fold(node, *span))
    return found


def by_path(node: Node, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Node]:
    path = (*above, node.name)
    found = {path: node}
    for child in node.children:
        found |= by_path(child, path)
    return found


def test_sums_are_those_of_all_processes(processes: list[list[Process]], whole: Summary) -> None:
    everyone = [p for node in processes for p in node]
    assert (whole.nodes, whole.processes) == (NODES, NODES * PROCESSES)
    assert whole.progress == sum((t.progress for p in everyone for t in p.threads), Progress())
    assert sorted(whole.roles) == ["EnvRunner", "Learner", "driver"]
    for name, role in whole.roles.items():
        mine = [p for p in everyone if role_of(p) == name]
        threads = [t for p in mine for t in p.threads]
        assert role.members == len(mine) == sum(role.running.counts)
        assert role.wall_ns == sum(t.wall_ns for t in threads)
        exact, folded = by_path(merged(threads)), by_path(role.tree)
        assert exact.keys() == folded.keys()
        for path, node in exact.items():
            twin = folded[path]
            assert (twin.calls, twin.total_ns, twin.own_ns) == (node.calls, node.total_ns, node.own_ns)
            assert (twin.min_ns, twin.max_ns) == (node.min_ns, node.max_ns)
            assert twin.squares == pytest.approx(node.squares)
            assert (twin.buckets is None) == (node.buckets is None)
            assert twin.buckets is None or (twin.buckets == node.buckets).all()
        assert role.env_steps[-1] == role.progress.env_steps and role.updates[-1] == role.progress.updates
        assert role.env_steps == sorted(role.env_steps)


def test_the_order_of_folding_does_not_matter(
    processes: list[list[Process]], span: tuple[int, int], whole: Summary
) -> None:
    at_once = fold([p for node in reversed(processes) for p in node], *span)
    for name, role in whole.roles.items():
        other = at_once.roles[name]
        assert (role.progress, role.wall_ns, role.env_steps) == (
            other.progress,
            other.wall_ns,
            other.env_steps,
        )
        assert (role.running.counts, role.running.least, role.running.most) == (
            other.running.counts,
            other.running.least,
            other.running.most,
        )


def test_extremes_and_median_are_named(processes: list[list[Process]], whole: Summary) -> None:
    shares = whole.roles["EnvRunner"].running
    exact = sorted(
        p.threads[0].cpu_ns / p.threads[0].wall_ns
        for node in processes
        for p in node
        if role_of(p) == "EnvRunner"
    )
    assert (shares.least[0], shares.most[0]) == (exact[0], exact[-1])
    assert abs(shares.median - exact[len(exact) // 2]) < 0.02
    assert shares.most[1].startswith("EnvRunner (pid ")


def test_a_summary_comes_back_from_disk(whole: Summary, tmp_path: Path) -> None:
    save_summary(whole, tmp_path / "s.json")
    assert to_json(load_summary(tmp_path / "s.json")) == to_json(whole)


def test_its_size_does_not_depend_on_the_number_of_processes(span: tuple[int, int], tmp_path: Path) -> None:
    sizes = []
    for count in (20, 80):
        save_summary(fold(make_node_processes(1, count, regions=6, windows=8), *span), tmp_path / "s.json")
        sizes.append((tmp_path / "s.json").stat().st_size)
    assert sizes[1] < 2 * sizes[0]  # more bins of the histograms are filled


def test_mistakes_get_one_sentence(whole: Summary, span: tuple[int, int], tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="nothing to fold"):
        span_of([])
    with pytest.raises(CaptureError, match="different times"):
        whole.merge(Summary(0, 1))
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(CaptureError, match="no summary of this version"):
        load_summary(tmp_path / "other.json")
    data = to_json(whole)
    del data["roles"]["Learner"]["tree"][0]
    data["roles"]["Learner"]["env_steps"] = [1]
    (tmp_path / "damaged.json").write_text(json.dumps(data))
    with pytest.raises(CaptureError, match="is damaged"):
        load_summary(tmp_path / "damaged.json")


def test_the_roles_of_all_summaries_of_a_capture_are_read_together(
    processes: list[list[Process]], span: tuple[int, int], whole: Summary, tmp_path: Path
) -> None:
    begin, end = span
    (tmp_path / FOLDER).mkdir()
    for number, node in enumerate(processes):  # sent at different moments
        save_summary(fold(node, begin, end - number), tmp_path / FOLDER / f"{number}.json")
    (tmp_path / FOLDER / "x.json").write_text("{}")
    warnings: list[str] = []
    found = {role.name: role for role in read_folded(tmp_path, warnings)}
    assert len(warnings) == 1 and "x.json" in warnings[0]
    assert sum(role.members for role in found.values()) == NODES * PROCESSES
    runner, exact = found["EnvRunner"], whole.roles["EnvRunner"]
    assert (runner.nodes, runner.members, runner.progress) == (NODES, exact.members, exact.progress)
    assert (runner.running, runner.waiting) == pytest.approx((exact.running.mean, exact.waiting.mean))
    assert runner.least <= runner.running <= runner.most and runner.busiest == exact.running.most[1]
    half = runner.between(begin, (begin + end) // 2).progress.env_steps
    rest = runner.between((begin + end) // 2, end).progress.env_steps
    assert 0 < half < runner.progress.env_steps and abs(half + rest - runner.progress.env_steps) <= 1
    assert read_folded(tmp_path / "nothing", warnings) == ()
