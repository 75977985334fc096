"""Published counts of reachable markings that the state-space counter must reproduce."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.petri.cluster_tool import cluster_tool
from hotloop.rl.envs.petri.counting import StateSpace, count_states, count_states_plainly
from hotloop.rl.envs.petri.net import Net, Place, Transition
from tests.oracle.test_petri_nets import nets


def net_of(name: str, marked: dict[str, int], arcs: str) -> Net:
    """`arcs`: one transition a line, "a b > c": what it takes, what it puts."""
    transitions = []
    for index, line in enumerate(arcs.strip().splitlines()):
        takes, puts = (side.split() for side in line.split(">"))
        transitions.append(Transition(f"t{index}", takes, puts))
    names = dict.fromkeys(place for one in transitions for place, _ in one.takes + one.puts)
    return Net(name, tuple(Place(place, tokens=marked.get(place, 0)) for place in names), tuple(transitions))


def philosophers(count: int) -> Net:
    """Each takes either fork first, then the other, eats, puts both back."""
    lines = []
    for one in range(count):
        left, right = f"fork{one - 1 if one else count - 1}", f"fork{one}"
        lines += [
            f"think{one} {left} > left{one}",
            f"think{one} {right} > right{one}",
            f"left{one} {right} > eat{one}",
            f"right{one} {left} > eat{one}",
            f"eat{one} > think{one} {left} {right}",
        ]
    marked = {f"{what}{one}": 1 for what in ("think", "fork") for one in range(count)}
    return net_of("philosophers", marked, "\n".join(lines))


def sudoku(size: int) -> Net:
    """Put number k into cell (i, j): each row, column and cell takes it once."""
    cells = list(itertools.product(range(size), repeat=3))
    lines = [f"row{i}{k} column{j}{k} cell{i}{j} > board{i}{j}{k}" for i, j, k in cells]
    marked = {
        f"{what}{a}{b}": 1 for what in ("row", "column", "cell") for a in range(size) for b in range(size)
    }
    return net_of("sudoku", marked, "\n".join(lines))


def flexible_manufacturing(parts: int) -> Net:
    """Three kinds of parts on pallets, three kinds of machines; parts 1 and 2 may be joined."""
    return net_of(
        "FMS",
        {"P1": parts, "P2": parts, "P3": parts, "M1": 3, "M2": 1, "M3": 2},
        """
        P1 > P1wM1
        P1wM1 M1 > P1M1
        P1M1 > P1d M1
        P1d > P1s
        P1d > P1wP2
        P1s > P1
        P2 > P2wM2
        P2wM2 M2 > P2M2
        P2M2 > P2d M2
        P2d > P2s
        P2d > P2wP1
        P2s > P2
        P1wP2 P2wP1 > P12
        P12 > P12wM3
        P12wM3 M3 > P12M3
        P12M3 > P12s M3
        P12s > P1 P2
        P3 > P3M2
        P3M2 M2 > P3s M2
        P3s > P3
        """,
    )


def auto_flight() -> Net:
    """A net of the model checking contest: sensors, actuators and one controller, instance 01a."""
    puts = "3 6 7 9 10 17 23 29 30"
    pairs = "2>3 5>6 9>8 9>8 5>6 6>4 6>4 2>3 3>1 3>1 20>19 14>13 13>12"
    fours = (
        "4 22>6 21, 7 21>7 20, 7 19>7 18, 1 16>3 15, 7 15>7 14, 7 12>7 11, 3 25>2 24, 6 26>5 25, "
        "8 27>9 26, 10 28>10 27, 24 31>29 30, 11 31>17 30, 18 31>23 30, 29 30>28 31, 17 30>16 31, 23 30>22 31"
    )
    lines = [f"0 > {puts}", *pairs.split(), *fours.split(", ")]
    return net_of("AutoFlight", {"0": 1}, "\n".join(lines))


WORKFLOW = "source > 1 2\n1 > 3 4\n2 > 6\n4 6 > 5\n5 3 > sink"

# net; places, transitions, arcs; markings, firings, deadlocks, most in a place, most in a marking
KNOWN = [
    (philosophers(5), (25, 25, 80), (243, 945, 2, 1, 10)),
    (auto_flight(), (32, 30, 100), (253, 1120, 2, 1, 9)),
    (sudoku(2), (20, 8, 32), (35, 72, 6, 1, 12)),
    (flexible_manufacturing(2), (22, 20, 50), (3444, 16311, 0, 3, 12)),
    (net_of("workflow", {"source": 1}, WORKFLOW), (8, 5, 14), (7, 7, 1, 1, 3)),
]


@pytest.mark.parametrize(("net", "shape", "counts"), KNOWN, ids=lambda value: getattr(value, "name", None))
def test_published_counts(net: Net, shape: tuple[int, ...], counts: Any) -> None:
    arcs = sum(len(one.takes) + len(one.puts) for one in net.transitions)
    assert (len(net.places), len(net.transitions), arcs) == shape
    assert count_states(net) == StateSpace(*counts, is_complete=True)  # type: ignore[misc]
    assert count_states_plainly(net) == StateSpace(*counts, is_complete=True)  # type: ignore[misc]


@pytest.mark.parametrize(("parts", "markings"), [(1, 120), (3, 48_590), (4, 438_600)])
def test_published_sizes_of_larger_manufacturing_systems(parts: int, markings: int) -> None:
    assert count_states(flexible_manufacturing(parts)).markings == markings


@pytest.mark.parametrize("diners", [10, pytest.param(13, marks=pytest.mark.long)])  # 59,049; 1,594,323
def test_philosophers_have_three_to_their_number_markings(diners: int) -> None:
    found = count_states(philosophers(diners), bound=2_000_000)
    assert found.markings == 3**diners
    assert found.is_complete


def test_the_counter_stops_at_its_bound_and_says_so() -> None:
    net = philosophers(7)
    found = count_states(net, bound=1000)
    assert found == count_states_plainly(net, bound=1000)
    assert (found.markings, found.is_complete) == (1000, False)
    assert str(found).startswith("stopped at the bound of 1,000 markings; there are more.")
    assert count_states(net, bound=3**7).is_complete
    assert str(count_states(philosophers(5))) == "243 markings, 945 firings, 2 deadlocks"


def test_capacities_bound_what_would_grow_for_ever() -> None:
    def source(capacity: int | None) -> Net:
        return Net("source", (Place("p", capacity=capacity),), (Transition("t", [], {"p": 3}),))

    assert count_states(source(10)) == count_states_plainly(source(10)) == StateSpace(4, 3, 1, 9, 9, True)
    assert not count_states(source(None), bound=100).is_complete
    with pytest.raises(HotloopError, match="reaches more than 65,535 tokens in a place"):
        count_states(source(None))
    with pytest.raises(HotloopError, match="bound=0 is not allowed"):
        count_states(source(10), bound=0)


def test_an_inhibitor_arc_is_a_capacity_and_a_reset_empties_its_place() -> None:
    def grown(**how: Any) -> Net:
        places = (Place("p", capacity=how.pop("capacity", None)), Place("q", capacity=2))
        ways = (Transition("more", [], ["p"], **how), Transition("pass", ["p"], ["q"]))
        return Net("grown", places, (*ways, Transition("back", ["q"], [])))

    limited, inhibited = grown(capacity=3), grown(inhibited_by={"p": 3})
    assert count_states(inhibited) == count_states(limited) == count_states_plainly(inhibited)
    # From (p, q) with p <= 3 and q <= 2: reset leaves p = 0. Every marking has `reset`; 9 + 8 + 8 others.
    tail = Transition("reset", [], [], resets=["p"])
    net = Net("reset", inhibited.places, (*inhibited.transitions, tail))
    assert count_states(net) == count_states_plainly(net) == StateSpace(12, 9 + 6 + 8 + 12, 0, 3, 5, True)
    # A place that is reset needs room only for what is put there.
    full = Net("full", (Place("p", tokens=2, capacity=2),), (Transition("t", [], {"p": 2}, resets=["p"]),))
    assert count_states(full) == count_states_plainly(full) == StateSpace(1, 1, 0, 2, 2, True)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(net=nets())
def test_random_nets_count_the_same_both_ways(net: Net) -> None:
    assert count_states(net, bound=300) == count_states_plainly(net, bound=300)


def test_the_cluster_tool_counts_the_same_both_ways() -> None:
    assert count_states(cluster_tool(4)) == count_states_plainly(cluster_tool(4))
