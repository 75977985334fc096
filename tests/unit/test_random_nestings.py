"""Random programs of regions against a plain reference, on both cores."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotloop import Profiler
from hotloop.capture.model import Node
from hotloop.measure.core_choice import CoreName
from hotloop.testing.fakes import FakeClock

NAMES = "abcd"
actions = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.sampled_from(NAMES)),
        st.tuples(st.just("close"), st.sampled_from(NAMES)),
        st.tuples(st.just("close top"), st.just("")),
        st.tuples(st.just("pass"), st.integers(0, 10**7)),
        st.tuples(st.just("window"), st.just("")),
    ),
    max_size=120,
)


@dataclass
class Figures:
    durations: list[int] = field(default_factory=list)
    own: int = 0


class Reference:
    """The rule written down: time between events belongs to the path on top of the stack."""

    def __init__(self) -> None:
        self.now = 0
        self.stack: list[tuple[tuple[str, ...], str, int]] = []
        self.nodes: dict[tuple[str, ...], Figures] = defaultdict(Figures)

    def pass_time(self, ns: int) -> None:
        self.now += ns
        self.nodes[self.stack[-1][0] if self.stack else ()].own += ns

    def open(self, name: str) -> None:
        above = self.stack[-1][0] if self.stack else ()
        self.stack.append(((*above, name), name, self.now))
        _ = self.nodes[self.stack[-1][0]]

    def close(self, name: str) -> None:
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place][1] == name:
                path, _, start = self.stack.pop(place)
                self.nodes[path].durations.append(self.now - start)
                for moved in range(place, len(self.stack)):
                    below = self.stack[moved - 1][0] if moved else ()
                    _, its_name, start = self.stack[moved]
                    self.stack[moved] = ((*below, its_name), its_name, start)
                    _ = self.nodes[self.stack[moved][0]]
                return


def figures_of(root: Node) -> dict[tuple[str, ...], tuple[int, int, int, int | None, int | None]]:
    found = {}
    todo: list[tuple[tuple[str, ...], Node]] = [((), root)]
    while todo:
        path, node = todo.pop()
        found[path] = (node.calls, node.closed_ns, node.own_ns, node.min_ns, node.max_ns)
        todo += [((*path, child.name), child) for child in node.children]
    return found


@pytest.mark.parametrize("core", ["compiled", "python"])
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(program=actions)
def test_any_program_gives_what_the_reference_gives(
    core: CoreName, program: list[tuple[str, str | int]]
) -> None:
    clock, reference = FakeClock(), Reference()
    profiler = Profiler(clock=clock, core_name=core).start()
    try:
        for what, value in program:
            if what == "open" and len(reference.stack) < 40:
                profiler.profile(str(value)).__enter__()
                reference.open(str(value))
            elif what == "close":
                profiler.profile(str(value)).__exit__(None, None, None)
                reference.close(str(value))
            elif what == "close top" and reference.stack:
                name = reference.stack[-1][1]
                profiler.profile(name).__exit__(None, None, None)
                reference.close(name)
            elif what == "pass":
                clock.advance(int(value))
                reference.pass_time(int(value))
            elif what == "window":
                clock.advance(60_000_000)
                reference.pass_time(60_000_000)
                profiler.progress(env_steps=1)
        (thread,) = profiler.capture().threads
    finally:
        profiler.stop()
    root = thread.root
    measured = figures_of(root)
    del measured[()]
    expected = {
        path: (
            len(f.durations),
            sum(f.durations),
            f.own,
            min(f.durations, default=None),
            max(f.durations, default=None),
        )
        for path, f in reference.nodes.items()
        if path
    }
    assert measured == expected
    assert root.own_ns == reference.nodes[()].own
    assert thread.wall_ns == reference.now == sum(f.own for f in reference.nodes.values())
    assert [o.name for o in thread.open] == [name for _, name, _ in reference.stack]
    windows = thread.windows
    assert (windows.own_ns.sum(axis=1) == windows.time_ns - thread.start_ns).all()
