"""Samples of lines: where threads are, what is kept when tables are full, how locations are decoded."""

from __future__ import annotations

import ast
import ctypes
import json
import os
import signal
import struct
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hotloop
from hotloop import Profiler
from hotloop.capture import export, layout
from hotloop.capture.model import Process
from hotloop.capture.read_samples import module_name
from hotloop.capture.samples import GIL_ELSEWHERE, GIL_HELD, GIL_UNKNOWN, RUNNING, SLEEPING, SampledPath
from hotloop.measure import core_choice, late_facts
from hotloop.measure.core_choice import CoreName
from hotloop.measure.core_shared import LIBRARIES, PACKAGE
from hotloop.measure.late_facts import busiest_functions, is_imported, read_source
from hotloop.measure.line_sampler import PythonLineSampler, SampleTables
from hotloop.testing.fakes import FakeClock

HERE = __file__
WEIGHT_NS = 10_000_000


class Sampled:
    """A profiler whose threads are sampled when the test says so, natively or from Python."""

    def __init__(self, core: CoreName, clock: FakeClock):
        self.clock = clock
        self.profiler = Profiler(clock=clock, core_name=core).start()
        self._python: PythonLineSampler | None = None
        if core == "python":
            self._python = PythonLineSampler(self.profiler.recorder)
        else:
            assert self.profiler.recorder.sample_lines(PACKAGE, LIBRARIES) is None

    def sample(self, after_ns: int = WEIGHT_NS) -> None:
        self.clock.advance(after_ns)
        self.profiler.recorder.take_line_sample()
        if self._python is not None:
            self._python.sample(WEIGHT_NS)

    @property
    def process(self) -> Process:
        (process,) = self.profiler.capture().processes
        return process

    def path_of(self, native_id: int) -> SampledPath:
        process = self.process
        rows = process.samples[process.samples["native_id"] == native_id]
        return process.paths[rows[-1]["path"]]


@pytest.fixture
def sampled(core: CoreName, clock: FakeClock) -> Iterator[Sampled]:
    made = Sampled(core, clock)
    yield made
    made.profiler.stop()


class Parked:
    """A thread that calls `function(wait)`, where `wait` blocks until the test is over."""

    def __init__(self, function: Callable[[Callable[[], object]], object]):
        self._release, self._parked = threading.Event(), threading.Event()
        self._function = function
        self.thread = threading.Thread(target=self._run, name="parked")

    def _run(self) -> None:
        self._function(self._wait)

    def _wait(self) -> None:
        self._parked.set()
        self._release.wait()

    def __enter__(self) -> int:
        self.thread.start()
        self._parked.wait()
        time.sleep(0.05)  # until it is inside the call to `wait`; what is asserted does not depend on it
        return self.thread.native_id or 0

    def __exit__(self, *exception: object) -> None:
        self._release.set()
        self.thread.join()


def line_of(text: str) -> int:
    """Number of the line of this file that ends with a mark."""
    lines = Path(HERE).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


def wait_here(wait: Callable[[], object]) -> None:
    total = 0
    wait()  # mark: parked
    assert total == 0


def wait_inside(wait: Any) -> None:
    wait.__self__._parked.set()
    assert "ä" + str(len([1]) + wait.__self__._release.wait())  # mark: expression


def recurse(depth: int, wait: Callable[[], object]) -> None:
    if depth:
        recurse(depth - 1, wait)  # mark: deeper
    else:
        wait()  # mark: bottom


def generate(wait: Callable[[], object]) -> Iterator[int]:
    yield 1
    wait()  # mark: generator
    yield 2


def exhaust(wait: Callable[[], object]) -> None:
    for _ in generate(wait):  # mark: loop
        pass


class Waiting:
    def __init__(self, wait: Callable[[], object]):
        wait()  # mark: init


def construct(wait: Callable[[], object]) -> None:
    for number in range(200):  # often enough for the interpreter to specialise the call
        Waiting(wait if number == 199 else int)  # mark: construct


def call_library(wait: Callable[[], object]) -> None:
    json.dumps([object()], default=lambda item: wait())


def sort_in_c(wait: Callable[[], object]) -> None:
    sorted([1], key=lambda item: str(wait()))  # mark: key


def wait_until_asleep(thread: threading.Thread) -> None:
    """Until it has not run for a while."""
    before, now = -1, 0
    while before != now:
        time.sleep(0.05)
        file = Path(f"/proc/self/task/{thread.native_id}/schedstat")
        before, now = now, int(file.read_text().split()[0])


# -- where a thread is ---------------------------------------------------------------------------


def test_a_parked_thread_is_at_its_line(sampled: Sampled) -> None:
    with Parked(wait_here) as native_id:
        sampled.sample()
    path = sampled.path_of(native_id)
    names = [(frame.function, frame.line) for frame in path.frames if frame.file == HERE]
    assert ("wait_here", line_of("mark: parked")) in names
    assert names.index(("wait_here", line_of("mark: parked"))) == 1  # below Parked._run
    assert path.frames[1].first_line == wait_here.__code__.co_firstlineno
    assert (path.called, path.innermost) == ("threading.Event.wait", "threading.Condition.wait")


def test_the_part_of_a_line_that_runs_is_known(sampled: Sampled) -> None:
    with Parked(wait_inside) as native_id:
        sampled.sample()
    path = sampled.path_of(native_id)
    place, number = path.expression, line_of("mark: expression")
    assert place is not None and (place.line, place.end_line) == (number, number)
    text = Path(HERE).read_bytes().splitlines()[number - 1]
    assert text[place.column : place.end_column] == b"wait.__self__._release.wait()"


def test_generators_are_on_the_path(sampled: Sampled) -> None:
    with Parked(exhaust) as native_id:
        sampled.sample()
    names = [(frame.function, frame.line) for frame in sampled.path_of(native_id).frames]
    assert names[1:3] == [("exhaust", line_of("mark: loop")), ("generate", line_of("mark: generator"))]


def test_a_constructor_is_on_the_path(sampled: Sampled) -> None:
    with Parked(construct) as native_id:
        sampled.sample()
    names = [(frame.function, frame.line) for frame in sampled.path_of(native_id).frames]
    assert names[1:3] == [
        ("construct", line_of("mark: construct")),
        ("Waiting.__init__", line_of("mark: init")),
    ]


def test_user_code_below_a_library_is_on_the_path(sampled: Sampled) -> None:
    with Parked(call_library) as native_id:
        sampled.sample()
    names = [frame.function for frame in sampled.path_of(native_id).frames]
    assert names[1:3] == ["call_library", "call_library.<locals>.<lambda>"]


def test_a_call_through_c_keeps_the_path(sampled: Sampled) -> None:
    with Parked(sort_in_c) as native_id:
        sampled.sample()
    names = [(frame.function, frame.line) for frame in sampled.path_of(native_id).frames]
    assert names[1:3] == [
        ("sort_in_c", line_of("mark: key")),
        ("sort_in_c.<locals>.<lambda>", line_of("mark: key")),
    ]


def test_a_deep_stack_keeps_its_ends(sampled: Sampled) -> None:
    with Parked(lambda wait: recurse(300, wait)) as native_id:
        sampled.sample()
    path = sampled.path_of(native_id)
    assert len(path.frames) == layout.MAX_PATH_FRAMES
    assert path.left_out == layout.OUTERMOST_FRAMES
    assert path.frames[0].function == "Parked._run"
    assert path.frames[-2].line == line_of("mark: bottom")  # then Parked._wait
    assert path.frames[layout.OUTERMOST_FRAMES].line == line_of("mark: deeper")


def test_the_open_region_of_a_thread_is_known(sampled: Sampled) -> None:
    def inside(wait: Callable[[], object]) -> None:
        with sampled.profiler.profile("outer"), sampled.profiler.profile("inner"):
            wait()

    with Parked(inside) as inside_id, Parked(wait_here) as outside_id:
        sampled.sample()
    process = sampled.process
    (row,) = process.samples[process.samples["native_id"] == inside_id]
    assert process.threads[row["thread"]].native_id == inside_id
    assert process.threads[row["thread"]].paths[row["node"]] == ("outer", "inner")
    (row,) = process.samples[process.samples["native_id"] == outside_id]
    assert (row["thread"], row["node"]) == (-1, 0)


def test_who_has_the_gil_is_known(sampled: Sampled, core: CoreName) -> None:
    with Parked(wait_here) as parked:
        sampled.sample()
        sampled.sample()
    rows = sampled.process.samples
    here, there = (set(rows["gil"][rows["native_id"] == tid].tolist()) for tid in (os.getpid(), parked))
    known = core == "compiled"  # a thread in Python has it whenever it looks
    assert here <= {GIL_HELD if known else GIL_UNKNOWN}
    assert there == {GIL_ELSEWHERE if known else GIL_UNKNOWN}


def test_all_samples_of_a_moment_share_its_time_and_weight(sampled: Sampled) -> None:
    with Parked(wait_here), Parked(wait_here):
        for _ in range(5):
            sampled.sample()
    samples = sampled.process.samples
    times, counts = np.unique(samples["time_ns"], return_counts=True)
    assert len(times) == 5 and (counts == counts[0]).all() and counts[0] >= 3
    assert len(np.unique(samples["weight_ns"][samples["time_ns"] == times[-1]])) == 1


def test_how_samples_were_taken_is_in_the_capture(sampled: Sampled, core: CoreName) -> None:
    sampled.sample()
    sampling = sampled.process.sampling
    assert sampling is not None and sampling.moments == 1
    assert sampling.method == ("native" if core == "compiled" else "python-thread")
    assert sampling.biased == (core == "python")


def test_the_state_of_a_thread(clock: FakeClock) -> None:
    sampled = Sampled("compiled", clock)
    with Parked(wait_here) as native_id:
        sampled.sample()
    samples = sampled.process.samples
    states = dict(zip(samples["native_id"].tolist(), samples["state"].tolist(), strict=True))
    assert states[native_id] == SLEEPING
    assert states[threading.get_native_id()] == RUNNING  # it is in the call that takes the sample
    sampled.profiler.stop()


def test_a_thread_that_sleeps_on_is_where_it_was(clock: FakeClock) -> None:
    sampled = Sampled("compiled", clock)
    with Parked(wait_here) as native_id:
        for _ in range(3):
            sampled.sample()
    process = sampled.process
    rows = process.samples[process.samples["native_id"] == native_id]
    first = rows[0]
    assert first["state"] == SLEEPING
    for name in ("path", "state", "reason", "thread", "node"):
        assert set(rows[name].tolist()) == {first[name]}
    assert [frame.function for frame in sampled.path_of(native_id).frames][1] == "wait_here"
    assert rows["weight_ns"].tolist() == 3 * [WEIGHT_NS]
    sampled.profiler.stop()


def test_a_thread_that_moved_on_is_elsewhere(clock: FakeClock) -> None:
    first, second = threading.Event(), threading.Event()

    def steps() -> None:
        first.wait()
        second.wait()

    sampled = Sampled("compiled", clock)
    thread = threading.Thread(target=steps)
    thread.start()
    lines = set()
    for event in (first, second):
        wait_until_asleep(thread)
        sampled.sample()
        lines.add(sampled.path_of(thread.native_id or 0).frames[-1].line - steps.__code__.co_firstlineno)
        event.set()
    thread.join()
    assert lines == {1, 2}
    sampled.profiler.stop()


@pytest.mark.long
def test_a_process_that_waits_costs_next_to_nothing(tmp_path: Path) -> None:
    profiler = Profiler(core_name="compiled").start(tmp_path / "capture")
    profiler.sample_lines()
    time.sleep(10)
    profiler.stop()
    (process,) = hotloop.load(tmp_path / "capture").processes
    rows = process.scheduling
    assert rows is not None and rows.hotloop_ns is not None
    half = len(rows.time_ns) // 2
    used_ns, wall_ns = (int(times[-1] - times[half]) for times in (rows.hotloop_ns, rows.time_ns))
    assert used_ns < 0.003 * wall_ns  # 0.0003 on a quiet machine; without a budget it was 0.008
    assert process.sampling is not None and process.sampling.interval_ns >= 100_000_000


def test_nothing_is_sampled_while_recording_is_paused(clock: FakeClock) -> None:
    sampled = Sampled("compiled", clock)
    sampled.sample()
    sampled.profiler.pause()
    sampled.sample()
    sampled.profiler.resume()
    assert len(np.unique(sampled.process.samples["time_ns"])) == 1
    sampled.profiler.stop()


def test_freed_code_is_recognised(sampled: Sampled) -> None:
    """The memory of a function is used again for another one, often at the same address."""
    found = []
    for number in range(30):
        space: dict[str, Any] = {}
        source = "\n" * number + f"def made_{number}(wait):\n    wait()\n"
        exec(compile(source, f"/user/file_{number}.py", "exec"), space)
        with Parked(space[f"made_{number}"]) as native_id:
            sampled.sample()
        frame = sampled.path_of(native_id).frames[1]
        found.append((frame.file, frame.function, frame.line))
        del space
    assert found == [(f"/user/file_{n}.py", f"made_{n}", n + 2) for n in range(30)]


def test_names_that_are_not_ascii_and_long_ones(sampled: Sampled) -> None:
    for folder in ("größe", "长度" * 10, "😀" * 30, "x" * 400):
        space: dict[str, Any] = {}
        exec(compile("def 名字(wait):\n    wait()\n", f"/user/{folder}/a.py", "exec"), space)
        with Parked(space["名字"]) as native_id:
            sampled.sample()
        frame = sampled.path_of(native_id).frames[1]
        assert frame.function == "名字" and frame.line == 2
        assert f"/user/{folder}/a.py".endswith(frame.file) and len(frame.file.encode()) <= 248
        assert len(frame.file.encode()) > 240 or frame.file == f"/user/{folder}/a.py"


def test_a_bad_address_is_an_answer_not_a_crash() -> None:
    core = core_choice.compiled
    assert core is not None
    text = ctypes.create_string_buffer(b"hotloop")
    assert core.peek(ctypes.addressof(text), 7) == b"hotloop"
    assert core.peek(8, 8) is None
    assert core.peek(2**63, 8) is None


def test_threads_may_come_and_go_while_they_are_sampled() -> None:
    profiler = Profiler(core_name="compiled").start()
    assert profiler.recorder.sample_lines(PACKAGE, LIBRARIES, interval_ns=100_000) is None
    for _ in range(40):
        threads = [threading.Thread(target=sorted, args=(range(2000),)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (process,) = profiler.capture().processes
    assert process.sampling.moments > 0
    profiler.stop()


def test_signals_are_for_the_program_not_for_the_sampler() -> None:
    profiler = Profiler(core_name="compiled").start()
    deadline = time.monotonic() + 20
    blocked = 0
    while not blocked and time.monotonic() < deadline:
        for task in Path("/proc/self/task").iterdir():
            if (task / "comm").read_text().strip() == "hotloop-sampler":
                status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
                blocked = int(status["SigBlk"], 16)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGUSR1):
        assert blocked >> (number - 1) & 1
    profiler.stop()


# -- locations -----------------------------------------------------------------------------------


def all_code(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from all_code(constant)


def test_lines_are_decoded_as_python_does_for_a_third_of_the_standard_library() -> None:
    core = core_choice.compiled
    assert core is not None
    folder = Path(sysconfig.get_path("stdlib"))
    files = (sorted(folder.glob("*.py")) + sorted(folder.glob("*/*.py")))[::3]
    checked = 0
    for file in files:
        if "site-packages" in file.parts or "lib2to3" in file.parts or "test" in file.parts:
            continue
        try:
            module = compile(ast.parse(file.read_bytes()), str(file), "exec")
        except SyntaxError:
            continue
        for code in all_code(module):
            table, first = code.co_linetable, code.co_firstlineno
            positions = list(code.co_positions())
            for start, end, line in code.co_lines():
                for offset in {start // 2, end // 2 - 1}:
                    known = (-1 if part is None else part for part in positions[offset])
                    assert core.position_at(table, first, offset) == (None if line is None else (*known,))
                checked += 1
            assert core.position_at(table, first, len(code.co_code)) is None
    assert checked > 50_000


@given(st.binary(max_size=200), st.integers(0, 2**31 - 1), st.integers(-5, 2000))
def test_any_bytes_are_decoded_without_a_crash(table: bytes, first_line: int, instruction: int) -> None:
    core = core_choice.compiled
    assert core is not None
    found = core.position_at(table, first_line, instruction)
    assert found is None or len(found) == 4


# -- tables of fixed size ------------------------------------------------------------------------


def tables() -> tuple[SampleTables, memoryview]:
    section = memoryview(bytearray(layout.item_bytes("SAMPLES")))
    return SampleTables(section, layout.SAMPLED_BY_PYTHON, WEIGHT_NS), section


def rows_of(section: memoryview) -> np.ndarray[Any, Any]:
    data = np.frombuffer(section, dtype=layout.dtype("SAMPLES"))[0]
    found: np.ndarray[Any, Any] = data["rows"][: data["count"]]
    return found


@given(st.lists(st.integers(1, 5), min_size=2, max_size=60), st.integers(1, 4), st.integers(1, 2**32 - 1))
def test_thinning_keeps_every_second_moment_whole(threads: list[int], times: int, weight_us: int) -> None:
    made, section = tables()
    for moment, count in enumerate(threads):
        for thread in range(count):
            made.add_row(1000 + moment, thread, 1, 0, 0, 1, weight_us)
    moments = list(range(len(threads)))
    for number in range(times):
        made.thin()
        moments = moments[1 - number % 2 :: 2]
        weight_us = min(2 * weight_us, 2**32 - 1)
    rows = rows_of(section)
    expected = [(1000 + moment, thread) for moment in moments for thread in range(threads[moment])]
    assert list(zip(rows["time_ns"].tolist(), rows["native_id"].tolist(), strict=True)) == expected
    assert (rows["weight_us"] == weight_us).all()


def test_rows_are_thinned_when_they_are_full(clock: FakeClock) -> None:
    sampled = Sampled("compiled", clock)
    interval_ns, moments, start_ns = WEIGHT_NS, 0, clock()
    with Parked(wait_here), Parked(wait_here), Parked(wait_here):
        while interval_ns < 4 * WEIGHT_NS:
            for _ in range(200):
                sampled.sample(interval_ns)
            moments += 200
            found = sampled.process
            assert found.sampling is not None
            interval_ns = found.sampling.interval_ns
    weights = found.samples["weight_ns"]
    times = np.unique(found.samples["time_ns"])
    assert len(found.samples) <= layout.MAX_SAMPLES
    assert found.sampling.moments == moments > len(times)
    # The weights add up to the time that was sampled, thread by thread.
    mine = found.samples["native_id"] == threading.get_native_id()
    assert int(weights[mine].sum()) == pytest.approx(clock() - start_ns, rel=0.05)
    sampled.profiler.stop()


def test_too_many_paths_become_single_lines_then_one_entry() -> None:
    made, section = tables()
    code = wait_here.__code__
    function = made.function(code)
    most = layout.MAX_SAMPLED_PATHS
    full = [made.path([(function, n), (function, n + 1)], None, None) for n in range(most)]
    assert len(set(full) - {0}) == most - full.count(0)
    data = np.frombuffer(section, dtype=layout.dtype("SAMPLES"))[0]
    assert data["path_count"] == most
    single = [p for p in full if p and data["paths"][p]["parent"] == 0]
    assert len(single) > layout.RESERVED_PATHS // 2 and full[-1] == 0


def test_too_many_expressions_become_lines() -> None:
    made, section = tables()
    function = made.function(wait_here.__code__)
    most = layout.MAX_EXPRESSION_PATHS
    found = [made.path([(function, 7)], None, None, (7, n, n + 1)) for n in range(most + 10)]
    data = np.frombuffer(section, dtype=layout.dtype("SAMPLES"))[0]
    kinds = [data["paths"][path]["kind"] for path in found]
    assert kinds.count(layout.STEP_EXPRESSION) == most - 2  # less path 0 and the line
    assert kinds[-1] == layout.STEP_LINE and data["path_count"] == most


def test_too_many_functions_are_other() -> None:
    made, _ = tables()
    codes = [
        wait_here.__code__.replace(co_firstlineno=n + 1) for n in range(layout.MAX_SAMPLED_FUNCTIONS + 1)
    ]
    numbers = [made.function(code) for code in codes]
    assert numbers[:-1] == list(range(layout.MAX_SAMPLED_FUNCTIONS)) and numbers[-1] is None
    assert made.path([(None, 3)], None, None) == 0


# -- names and source ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "library_bytes", "module"),
    [
        ("/usr/lib/python3.11/json/__init__.py", len("/usr/lib/python3.11/"), "json"),
        ("/usr/lib/python3.11/json/decoder.py", len("/usr/lib/python3.11/"), "json.decoder"),
        ("/lib/python3.11/site-packages/torch/nn/x.py", len("/lib/python3.11/"), "torch.nn.x"),
        ("<frozen importlib._bootstrap>", 0, "importlib._bootstrap"),
        ("<string>", 0, "string"),
    ],
)
def test_names_of_library_modules(file: str, library_bytes: int, module: str) -> None:
    assert module_name(file, library_bytes) == module


def test_the_source_of_a_function_is_its_block() -> None:
    first_line = recurse.__code__.co_firstlineno
    found = read_source(HERE, "recurse", first_line)
    assert found is not None and found[0] == first_line
    assert found[1].startswith("def recurse(") and found[1].endswith("# mark: bottom\n")
    assert read_source("/no/such/file.py", "f", 1) is None


def test_sources_and_names_are_kept_at_the_end(core: CoreName, tmp_path: Path) -> None:
    profiler = Profiler(core_name=core).start(tmp_path / "capture")
    profiler.sample_lines()
    with Parked(wait_here) as native_id:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            (process,) = profiler.capture().processes
            if native_id in process.samples["native_id"]:
                break
            time.sleep(0.02)
        profiler.stop()
    (process,) = hotloop.load(tmp_path / "capture").processes
    source = {source.function: source for source in process.sources}["wait_here"]
    assert source.file == HERE and source.text.startswith("def wait_here(") and not source.changed
    assert process.sampling.thread_names[native_id] == "parked"


def test_imported_modules_leave_room_for_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of many modules: their code ran once, for seconds, before anything else was seen."""
    module = tmp_path / "helpers.py"
    module.write_text("# nothing\n" * 2000)
    modules = [(str(module), "<module>", number) for number in range(100)]
    hot = (HERE, "wait_here", wait_here.__code__.co_firstlineno)
    busiest = iter([modules, [*modules, hot]])
    monkeypatch.setattr(late_facts, "busiest_functions", lambda samples: next(busiest))
    rows: list[dict[str, Any]] = []
    facts = object.__new__(late_facts.LateFacts)
    for name, value in {"_written": set(), "_source_bytes": 0, "_module_bytes": 0, "_started_s": 0.0}.items():
        setattr(facts, name, value)
    facts._keep_source, facts._thread_names, facts._names = True, {}, {}
    facts._part = SimpleNamespace(samples=memoryview(b""))  # type: ignore[assignment]
    monkeypatch.setattr(facts, "_add", lambda kind, found: rows.extend(found) if kind == "sources" else None)
    facts._write_sampled(0)
    assert 1 < len(rows) <= late_facts.MOST_MODULES
    assert sum(len(row["text"]) for row in rows) <= late_facts.MOST_MODULE_BYTES
    facts._write_sampled(0)
    assert rows[-1]["function"] == "wait_here" and is_imported(modules[0]) and not is_imported(hot)


def test_no_source_is_kept_when_it_is_not_wanted(clock: FakeClock, tmp_path: Path) -> None:
    profiler = Profiler(clock=clock, core_name="compiled")
    profiler.keep_source = False
    profiler.start(tmp_path / "capture")
    profiler.sample_lines()
    profiler.recorder.take_line_sample()
    profiler.stop()
    (process,) = hotloop.load(tmp_path / "capture").processes
    assert len(process.samples) and process.sources == ()


def test_busiest_functions_come_first() -> None:
    made, section = tables()
    for number, weight in ((1, 5), (2, 9), (3, 0)):
        function = made.function(wait_here.__code__.replace(co_firstlineno=number))
        made.credit({function or 0}, weight)
    assert [first_line for _, _, first_line in busiest_functions(section)] == [2, 1]


# -- the capture ---------------------------------------------------------------------------------


def test_an_export_keeps_samples_and_scheduling(sampled: Sampled, clock: FakeClock) -> None:
    with Parked(call_library):
        for _ in range(20):
            sampled.sample()
    capture = sampled.profiler.capture()
    data = json.loads(export.text(capture))
    again = export.from_json(data)
    assert again.warnings == capture.warnings == ()
    before, after = capture.processes[0], again.processes[0]
    assert (before.samples == after.samples).all() and before.samples.dtype == after.samples.dtype
    assert before.paths == after.paths and before.sampling == after.sampling
    assert before.thread_settings == after.thread_settings
    for name in before.scheduling.__slots__:
        assert (getattr(before.scheduling, name) == getattr(after.scheduling, name)).all()
    assert (before.threads[0].scheduling.on_core_ns == after.threads[0].scheduling.on_core_ns).all()
    assert export.to_json(again) == {key: value for key, value in data.items() if key != "checksum"}


def test_lines_outside_regions_are_in_the_facts(core: CoreName, clock: FakeClock, tmp_path: Path) -> None:
    profiler = Profiler(clock=clock, core_name=core).start(tmp_path / "capture")
    if core == "compiled":
        profiler.sample_lines()
    python = PythonLineSampler(profiler.recorder)

    def sample() -> None:
        if core == "compiled":
            profiler.recorder.take_line_sample()  # mark: native
        else:
            python.sample(WEIGHT_NS)  # mark: python

    for _ in range(3):
        clock.advance(WEIGHT_NS)
        sample()
    with profiler.profile("region"):
        clock.advance(WEIGHT_NS)
        sample()
    profiler.stop()
    lines = hotloop.load(tmp_path / "capture").facts["lines"]
    if threading.get_native_id() == os.getpid():  # else a worker of the test runner
        line = line_of("mark: native" if core == "compiled" else "mark: python")
        assert lines["lines"] == {f"{HERE}:{line}": 3 * WEIGHT_NS}
        assert lines["samples"] == 4 * WEIGHT_NS
    assert set(lines) == {"samples", "lines"}


def test_layout_of_rows_is_what_both_writers_use() -> None:
    assert struct.calcsize("<QIHHHHI") == layout.item_bytes("SAMPLE")
    assert sys.byteorder == "little"
