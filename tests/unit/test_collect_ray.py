"""Collection on Ray without Ray: who gets how many collectors, and the collectors of one node."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import pytest

import hotloop
from hotloop._util.errors import HotloopError
from hotloop.rl.collect.processes import ProcessCollector
from hotloop.rl.collect.protocol import Rows, Setup, Task
from hotloop.rl.collect.ray_group import CollectorGroup, joined
from hotloop.rl.collect.ray_nodes import RayCollector, spread
from hotloop.workflows.collect import RandomActor
from tests.collect_envs import Counting


def test_collectors_are_spread_by_cpus() -> None:
    assert spread(4, {"a": 1, "b": 1}) == {"a": 2, "b": 2}
    assert spread(9, {"a": 2, "b": 6, "c": 1}) == {"a": 2, "b": 6, "c": 1}
    assert spread(1, {"a": 1, "b": 8}) == {"b": 1}


def gathered(take: Callable[[], Rows], collector: int, count: int) -> Rows:
    found: list[Rows] = []
    while sum(map(len, found)) < count:
        rows = take()
        found.append(rows[rows["collector"] == collector])
    return joined(found, found[0].dtype)[:count]


def test_a_group_makes_the_rows_of_its_collectors_and_continues_their_numbers() -> None:
    """Collector 1 of two, alone in a group: the same rows as in processes, in whatever life it is."""
    task, setup = (
        Task(Counting, RandomActor, n_envs=2, seed=5),
        Setup(collectors=2, ring_rows=64, method="fork"),
    )
    with ProcessCollector(task, setup) as both:
        expected = gathered(lambda: joined(both.take(100, 10.0), both.dtype).copy(), 1, 100)
    group = CollectorGroup(cloudpickle.dumps(task), setup, first=1, count=1, life=0, sequences=[0])
    try:
        rows = gathered(lambda: group.take(50)[0], 1, 100)
        _, report = group.take(1)
        assert report.state.alive == 1 and report.produced[0] >= 100 and not report.failed
    finally:
        group.close()
    assert rows.dtype == both.dtype
    for name in both.dtype.names or ():  # not their bytes: selecting rows leaves the padding to chance
        np.testing.assert_array_equal(rows[name], expected[name])
    group = CollectorGroup(cloudpickle.dumps(task), setup, first=1, count=1, life=3, sequences=[1000])
    try:
        later = gathered(lambda: group.take(50)[0], 1, 100)
    finally:
        group.close()
    assert set(later["life"]) == {3} and later["sequence"].tolist() == list(range(1000, 1100))
    assert later["frame"][0, 0] != rows["frame"][0, 0]  # another seed


def test_wrong_settings_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HotloopError, match="kind='serial' runs on this computer; leave out on='ray'"):
        hotloop.collect(Counting, on="ray", kind="serial")
    with pytest.raises(HotloopError, match="write ray for the cluster of this computer"):
        hotloop.collect(Counting, on="slurm")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(HotloopError, match=r"pip install 'hotloop\[ray\]'"):
        RayCollector(Task(Counting, RandomActor))


def test_no_cluster_is_started_where_none_was_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most calls of Ray start one on this computer if there is none."""

    asked: list[str] = []

    class NoRay:
        def is_initialized(self) -> bool:
            return False

        def __getattr__(self, name: str) -> object:
            asked.append(name)
            raise AttributeError(name)

    monkeypatch.setitem(sys.modules, "ray", NoRay())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"ray://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(HotloopError, match="nothing listens there"):
            RayCollector(Task(Counting, RandomActor), on=address).start()
    assert "wait" not in asked


def test_blocks_are_joined_with_their_padding() -> None:
    dtype = np.dtype({"names": ["x"], "formats": [np.float32], "offsets": [0], "itemsize": 64})
    blocks = [np.zeros(3, dtype), np.ones(2, dtype)]
    assert joined(blocks, dtype)["x"].tolist() == [0, 0, 0, 1, 1] and joined([], dtype).shape == (0,)
