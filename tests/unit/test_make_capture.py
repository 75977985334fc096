"""Made-up captures are as consistent as recorded ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.capture.model import Capture, Node, Thread
from hotloop.testing import ProcessSpec, Spec, ThreadSpec, make_capture

specs = st.recursive(
    st.builds(
        Spec,
        calls=st.integers(1, 3000),
        own_ns=st.floats(100, 1e7),
        growth=st.floats(0, 1.5),
        calls_growth=st.floats(0, 1.0),
        spread=st.floats(0, 1.0),
    ),
    lambda inner: st.builds(
        Spec,
        calls=st.integers(1, 3000),
        own_ns=st.floats(0, 1e6),
        children=st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    ),
    max_leaves=6,
)
loops = st.dictionaries(st.sampled_from(["act", "step", "learn"]), specs, min_size=1, max_size=3)


def nodes_of(root: Node) -> list[Node]:
    return [root] + [n for child in root.children for n in nodes_of(child)]


def check_thread(thread: Thread) -> None:
    nodes = nodes_of(thread.root)
    assert sum(n.own_ns for n in nodes) == thread.wall_ns == thread.root.total_ns
    for node in nodes:
        if node.name:
            assert node.total_ns == node.own_ns + sum(c.total_ns for c in node.children)
        if node.buckets is not None:
            assert int(node.buckets.sum()) == node.calls
            assert node.min_ns is not None and node.max_ns is not None and node.min_ns <= node.max_ns
    windows = thread.windows
    assert windows.own_ns.shape == (len(windows), len(thread.paths))
    for column in (windows.time_ns, windows.cpu_ns, windows.rss_bytes):
        assert (np.diff(column.astype(np.int64)) >= 0).all()
    for table in (windows.calls, windows.own_ns, windows.total_ns):
        assert (np.diff(table.astype(np.int64), axis=0) >= 0).all()
    assert (np.diff(windows.time_ns.astype(np.int64)) > 0).all()
    # Own times of a window add up to the time that had passed; rounding costs at most 1 ns a node.
    passed = windows.time_ns.astype(np.int64) - thread.start_ns
    assert np.abs(windows.own_ns.astype(np.int64).sum(axis=1) - passed).max() <= len(thread.paths)
    assert windows.calls[-1].tolist() == [0] + [n.calls for n in nodes if n.name]
    assert np.allclose(windows.own_ns[-1].astype(float), [n.own_ns for n in nodes], atol=1.5)
    assert int(windows.progress["env_steps"][-1]) == thread.progress.env_steps
    assert int(windows.progress["episodes"][-1]) == thread.progress.episodes


@given(loops, st.integers(0, 10_000), st.integers(1, 60), st.floats(0, 0.4))
@settings(max_examples=40, deadline=None)
def test_times_calls_and_windows_add_up(
    regions: dict[str, Spec], env_steps: int, windows: int, noise: float
) -> None:
    capture = make_capture(
        regions, env_steps=env_steps, episodes=7, windows=windows, noise=noise, rss=(100, 10_000)
    )
    check_thread(capture.threads[0])


def two_processes() -> Capture:
    return make_capture(
        {"learn": Spec(100, 1e6)},
        updates=100,
        extra_threads=[ThreadSpec({"load": Spec(50, 1e4)}, name="loader")],
        processes=[ProcessSpec([ThreadSpec({"env_step": Spec(900, 1e5)}, env_steps=900)], label="worker-0")],
    )


def test_helpers_last_as_long_as_the_first_thread() -> None:
    capture = two_processes()
    assert [len(p.threads) for p in capture.processes] == [2, 1]
    assert len({t.wall_ns for t in capture.threads}) == 1
    for thread in capture.threads:
        check_thread(thread)
    assert capture.progress.env_steps == 900 and capture.progress.updates == 100


def test_growth_makes_late_calls_dearer() -> None:
    thread = make_capture({"draw": Spec(4000, 1e5, growth=1.0)}, noise=0.0).threads[0]
    cost = np.diff(thread.windows.own_ns[:, 1].astype(float)) / np.diff(
        thread.windows.calls[:, 1].astype(float)
    )
    # cost ~ work: the last tenth costs about 1.9 times the mean, the first a tenth of it
    assert cost[-1] / 1e5 == pytest.approx(2.0, rel=0.05)
    assert cost[0] / 1e5 < 0.5


def test_pauses_are_in_the_histogram_and_in_the_time() -> None:
    node = make_capture({"act": Spec(1000, 1e4, pauses=(5, 6e7))}).tree.children[0]
    assert node.total_ns == round(1000 * 1e4 + 5 * 6e7)
    assert node.percentile_ns(0.5) == pytest.approx(1e4, rel=0.2)
    assert node.percentile_ns(0.999) is not None and node.percentile_ns(0.999) > 4e7


def test_the_same_description_gives_the_same_capture_and_seeds_differ() -> None:
    first, second, other = (
        make_capture({"a": Spec(1000, 1e4)}, seed=s).threads[0].windows for s in (1, 1, 2)
    )
    assert (first.time_ns == second.time_ns).all() and (first.own_ns == second.own_ns).all()
    assert (first.own_ns != other.own_ns).any()


def test_a_region_still_open_at_the_end() -> None:
    thread = make_capture({"env_step": Spec(10, 1e6, open_for_ns=41_000_000_000)}).threads[0]
    assert thread.open[0].name == "env_step"
    assert thread.end_ns - thread.open[0].since_ns == 41_000_000_000
    assert thread.root.children[0].mean_ns == pytest.approx(1e6)


def test_an_unknown_keyword_is_named() -> None:
    with pytest.raises(TypeError, match="does not know envsteps"):
        make_capture({"a": Spec(1, 1.0)}, envsteps=3)


def test_facts_are_laid_over_the_made_up_machine() -> None:
    capture = make_capture({"a": Spec(1, 1.0)}, facts={"machine": {"cores_granted": 2.0}, "device": "cuda:0"})
    assert capture.machine["cores_granted"] == 2.0 and capture.machine["memory_bytes"] == 16 << 30
    assert capture.facts["device"] == "cuda:0" and capture.command == ["python", "train.py"]
