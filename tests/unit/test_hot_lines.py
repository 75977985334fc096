"""Sampled lines become statements, loops, shares and advice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotloop.analysis.advice.busy_threads import busy_threads
from hotloop.analysis.advice.evaluation_in_the_loop import evaluation_in_the_loop, returns_a_number
from hotloop.analysis.advice.event_loops import (
    awaits_one_by_one,
    sleeping_event_loop,
    waits_for_the_slowest,
)
from hotloop.analysis.advice.hottest_code import hottest_code
from hotloop.analysis.advice.library_parts import library_parts
from hotloop.analysis.advice.pipeline import learner_under_used
from hotloop.analysis.advice.recommendation import HELPER, library
from hotloop.analysis.advice.run_view import RunView, view_run
from hotloop.analysis.advice.slow_idioms import slow_idioms
from hotloop.analysis.advice.started_again import workers_started_again
from hotloop.analysis.annotated_source import annotated_source
from hotloop.analysis.explain import explain_without_advice
from hotloop.analysis.findings import Recommendation
from hotloop.analysis.hot_lines import hot_lines
from hotloop.analysis.hot_statements import spots
from hotloop.analysis.line_samples import _without_stack_of_parent, line_samples
from hotloop.analysis.phases import find_phases, training_of
from hotloop.capture.model import Capture, Process
from hotloop.capture.samples import (
    RUNNING,
    SAMPLE_DTYPE,
    SLEEPING,
    FunctionSource,
    SampledFrame,
    SampledPath,
    Sampling,
)
from hotloop.testing.captures import ProcessSpec, Spec, ThreadSpec, make_capture

SOURCE = """\
import torch
def gather(batch):
    out = []
    for row in batch:
        out.append(row.obs)
    return torch.tensor(
        [row.obs for row in batch]
    )
for i in range(1000):
    obs, r, te, tr, _ = env.step(policy(obs))
    x = gather(memory)
    y += work(x)
"""
GATHER = ("train.py", "gather", 2)
MODULE = ("train.py", "<module>", 1)


def path(*frames: tuple[tuple[str, str, int], int], called: str = "") -> SampledPath:
    made = tuple(SampledFrame(file, function, first, line) for (file, function, first), line in frames)
    return SampledPath(made, called=called, innermost=called)


def capture_with(paths: list[SampledPath], weights: list[float], samples: int = 400) -> Capture:
    """A run of 20,000 env steps whose main thread was seen on these paths, mixed evenly over time."""
    capture = make_capture({"env_step": Spec(20_000, 20_000)}, env_steps=20_000)
    process = capture.processes[0]
    thread = process.threads[0]
    rows = np.zeros(samples, dtype=SAMPLE_DTYPE)
    step = thread.wall_ns // samples
    rows["time_ns"] = thread.start_ns + step * np.arange(samples)
    rows["weight_ns"] = step
    rows["native_id"] = thread.native_id
    rows["state"] = RUNNING
    shares = np.array(weights) / sum(weights)
    # Low-discrepancy mixing: every stretch of the run has the same shares.
    rows["path"] = np.searchsorted(np.cumsum(shares), (np.arange(samples) * 0.618033988749895) % 1.0)
    lines = SOURCE.splitlines(keepends=True)
    sources = (
        FunctionSource("train.py", "gather", 2, "".join(lines[1:8])),
        FunctionSource("train.py", "<module>", 1, SOURCE),
    )
    sampling = Sampling("native", step, samples, 0, 0, {})
    process = replace(process, samples=rows, paths=tuple(paths), sources=sources, sampling=sampling)
    return replace(capture, processes=(process,))


PATHS = [
    path((MODULE, 11), (GATHER, 6)),  # the statement begins in line 6 ...
    path(
        (MODULE, 11), (GATHER, 7), (("train.py", "gather.<locals>.<listcomp>", 7), 7)
    ),  # ... and goes on in 7
    path((MODULE, 10), called="gymnasium.wrappers.common.TimeLimit.step"),
    path((MODULE, 12)),
]


def test_lines_have_their_share_text_and_callers() -> None:
    capture = capture_with(PATHS, [2, 2, 5, 1])
    lines = line_samples(capture.processes[0], capture.processes[0].threads[0])
    assert lines is not None
    found = hot_lines(lines, env_steps=20_000, updates=0)
    step = found[0]
    assert step.site == "train.py:10" and step.share == pytest.approx(0.5, abs=0.01)
    assert step.called.endswith("TimeLimit.step") and step.text.startswith("obs, r")
    assert step.per == "env_step" and step.ns_per_unit is not None
    inner = next(line for line in found if line.site == "train.py:7")
    assert inner.callers == ("train.py:11", "train.py:7")
    assert sum(line.share for line in found) == pytest.approx(1.0)


def test_what_hotloop_does_behind_a_line_is_no_time_of_that_line() -> None:
    """At the first step of an optimizer it looks through all objects for networks."""
    ours = {"hotloop_models": Spec(1, 1e7), "env_step": Spec(20_000, 20_000)}
    thread = make_capture(ours, env_steps=20_000).processes[0].threads[0]
    capture = capture_with([path((GATHER, 7)), path((MODULE, 12))], [0.6, 0.4])
    process = capture.processes[0]
    samples = process.samples.copy()
    at = next(n for n, names in enumerate(thread.paths) if names[-1:] == ("hotloop_models",))
    samples["node"][samples["path"] == 0] = at
    process = replace(process, samples=samples, threads=(replace(process.threads[0], paths=thread.paths),))
    found = line_samples(process, process.threads[0])
    assert found is not None
    assert (found.share_of([0]), found.share_of([1])) == (0.0, 1.0)


def test_source_of_a_file_has_the_time_of_each_line_and_neighbours() -> None:
    capture = capture_with(PATHS, [2, 2, 5, 1])
    lines = line_samples(capture.processes[0], capture.processes[0].threads[0])
    assert lines is not None
    (one,) = annotated_source(lines, env_steps=20_000, updates=0)
    assert one.file == "train.py" and one.share == pytest.approx(1.0) and one.per == "env_step"
    shares = {line.number: line.share for line in one.lines}
    assert list(shares) == list(range(4, 13))  # from two lines before the first that took time to the end
    assert shares[10] == pytest.approx(0.5, abs=0.01)
    assert shares[9] == 0.0
    assert [line.text for line in one.lines] == SOURCE.splitlines()[3:]
    unknown = replace(capture.processes[0], sources=())
    without = line_samples(unknown, unknown.threads[0])
    assert without is not None and annotated_source(without, 20_000, 0) == ()


def test_lines_of_one_statement_belong_together_and_comprehensions_to_their_function() -> None:
    capture = capture_with(PATHS, [2, 2, 5, 1])
    lines = line_samples(capture.processes[0], capture.processes[0].threads[0])
    assert lines is not None
    gather = next(spot for spot in spots(lines, 0.05) if spot.function == "gather")
    assert gather.share == pytest.approx(0.4, abs=0.01)
    assert gather.site in ("train.py:6", "train.py:7")


def test_a_slow_idiom_becomes_advice_with_a_gain() -> None:
    capture = capture_with(PATHS, [2, 2, 5, 1])
    run = view_run(capture, explain_without_advice(capture))
    assert run is not None
    (advice,) = slow_idioms(run)
    assert advice.name == "tensor_of_a_list" and advice.site.startswith("train.py:")
    assert advice.gain is not None
    assert 1 / (1 - 0.4 * 0.6) * 0.95 < advice.gain.low < 1 / (1 - 0.4 * 0.6)
    # 90 % of the line's time, and a part of the other time, at most a third of the line's.
    assert 1 / (1 - 0.4 * 0.9) < advice.gain.value < 1 / (1 - 0.42 * (0.9 + 1 / 3))
    assert hottest_code(run)[:1] == [] or hottest_code(run)[0].site == "train.py:12"


def test_calls_into_frameworks_are_not_the_users_code() -> None:
    capture = capture_with(PATHS, [0, 0, 9.5, 0.5])
    run = view_run(capture, explain_without_advice(capture))
    assert run is not None and slow_idioms(run) == [] and hottest_code(run) == []


def test_the_hottest_statement_is_named_where_no_idiom_is_known() -> None:
    capture = capture_with(PATHS, [0, 0, 4, 6])
    run = view_run(capture, explain_without_advice(capture))
    assert run is not None
    (advice,) = hottest_code(run)
    assert advice.site == "train.py:12" and advice.tier == "no_known_remedy"
    assert advice.gain is not None and advice.gain.value == pytest.approx(1 / (1 - 0.6 * 0.75), rel=0.03)


REPEATS = """\
import numpy as np
def label(state):
    return dynamics(state)
def dynamics(state):
    return state * state
for k in range(9):
    labels = [label(s) for s in states]
    fit(labels)
"""


def test_the_statements_that_repeat_a_hot_function_stand_beside_it() -> None:
    label, dynamics = ("train.py", "label", 2), ("train.py", "dynamics", 4)
    hot = path((MODULE, 7), (label, 3), (dynamics, 5))
    capture = capture_with(
        [hot, path((MODULE, 8), called="torch.nn.modules.module.Module._call_impl")], [6, 4]
    )
    rows = REPEATS.splitlines(keepends=True)
    capture = with_source(
        capture,
        ("train.py", "<module>", 1, REPEATS),
        ("train.py", "label", 2, "".join(rows[1:3])),
        ("train.py", "dynamics", 4, "".join(rows[3:5])),
    )
    named = hottest_code(run_of(capture))
    assert [one.site for one in named[:2]] == ["train.py:5", "train.py:7"]
    assert named[1].title == "Calls of `dynamics` take 60.0 % (train.py:7)"


def test_biased_samples_give_no_advice() -> None:
    capture = capture_with(PATHS, [2, 2, 5, 1])
    process = capture.processes[0]
    assert process.sampling is not None
    biased = replace(process, sampling=replace(process.sampling, method="python-thread"))
    capture = replace(capture, processes=(biased,))
    run = view_run(capture, explain_without_advice(capture))
    assert run is not None and slow_idioms(run) == [] and hottest_code(run) == []


def test_without_progress_training_is_where_the_late_lines_are() -> None:
    """A script that counts nothing: the first fifth of its samples is set-up."""
    capture = capture_with(PATHS, [2, 2, 5, 1])
    process = capture.processes[0]
    rows = process.samples.copy()
    rows["path"][:80] = 4
    paths = (*process.paths, path((MODULE, 1), called="torch"))
    thread = process.threads[0]
    idle = replace(
        thread,
        progress=replace(thread.progress, env_steps=0),
        windows=replace(thread.windows, progress={k: v * 0 for k, v in thread.windows.progress.items()}),
    )
    capture = replace(capture, processes=(replace(process, samples=rows, paths=paths, threads=(idle,)),))
    phases = find_phases(capture)
    assert phases is not None and phases.unit == ""
    assert phases.start_up_ns == pytest.approx(0.2 * thread.wall_ns, rel=0.03)
    cut = training_of(capture).processes[0]
    assert 4 not in cut.samples["path"]


def test_a_forward_pass_on_the_line_of_an_idiom_is_not_part_of_it() -> None:
    """`a = net(torch.tensor([...]))`: only the time outside the network counts."""
    forward = path((MODULE, 11), (GATHER, 6), called="torch.nn.modules.module.Module._call_impl")
    capture = capture_with([forward, *PATHS[1:]], [4, 2, 3, 1])
    run = view_run(capture, explain_without_advice(capture))
    assert run is not None
    (advice,) = slow_idioms(run)
    assert advice.gain is not None and advice.gain.value < 1 / (1 - 0.22 * (0.9 + 1 / 3))


@pytest.mark.parametrize(
    ("source", "number"),
    [
        ("def f(n):\n    scores = []\n    return sum(scores) / n", True),
        ("def f():\n    return float(np.mean(returns))", True),
        ("def f():\n    return np.mean(r), np.std(r)", True),
        ("def f():\n    total = 0\n    total += reward\n    return total", True),
        ("def f():\n    return observations, actions, returns", False),
        ("def f():\n    return np.array(observations)", False),
        ("def f():\n    env.step(1)", False),
        ("not python at all (", False),
    ],
)
def test_an_evaluation_returns_a_number(source: str, number: bool) -> None:
    assert returns_a_number(source) is number


EVALUATION = """\
def score(env):
    total = 0.0
    total += env.step(act())[1]
    return total
"""


def test_playing_without_learning_is_an_evaluation() -> None:
    play = ("train.py", "score", 1)
    paths = [
        path((("train.py", "<module>", 1), 30), (play, 3), called="gymnasium.core.Wrapper.step"),
        path((("train.py", "<module>", 1), 20), called="torch._tensor.Tensor.backward"),
    ]
    capture = capture_with(paths, [6, 4])
    process = capture.processes[0]
    rows = process.samples.copy()
    step = process.threads[0].paths.index(("env_step",))
    rows["node"] = np.where(rows["path"] == 0, step, 0)
    process = replace(process, samples=rows, sources=(FunctionSource("train.py", "score", 1, EVALUATION),))
    capture = replace(capture, processes=(process,))
    run = view_run(capture, explain_without_advice(capture))
    assert run is not None
    (advice,) = evaluation_in_the_loop(run)
    assert advice.site == "train.py:30" and "score" in advice.title
    assert advice.gain is not None and advice.gain.low == pytest.approx(1 / (1 - 0.45), rel=0.03)


def test_a_function_that_runs_next_to_the_steps_of_an_env_is_no_evaluation() -> None:
    """Some of its samples show the step before: the open region is read a moment earlier than the stack."""
    play = ("train.py", "score", 1)
    paths = [
        path((("train.py", "<module>", 1), 30), (play, 3), called="torch.distributions.Categorical"),
        path((("train.py", "<module>", 1), 20), called="torch._tensor.Tensor.backward"),
    ]
    capture = with_source(capture_with(paths, [6, 4]), ("train.py", "score", 1, EVALUATION))
    process = capture.processes[0]
    rows = process.samples.copy()
    step = process.threads[0].paths.index(("env_step",))
    rows["node"] = np.where((rows["path"] == 0) & (np.arange(len(rows)) % 10 == 0), step, 0)
    capture = replace(capture, processes=(replace(process, samples=rows),))
    assert evaluation_in_the_loop(run_of(capture)) == []


@pytest.mark.parametrize("method", ["Market.step", "Warp.observation"])
def test_what_an_env_computes_for_itself_is_no_evaluation(method: str) -> None:
    frames = (("train.py", "<module>", 1), 30), (("train.py", method, 40), 44), (("train.py", "score", 1), 3)
    paths = [
        path(*frames, called="numpy.cumsum"),
        path((("train.py", "<module>", 1), 20), called="torch._tensor.Tensor.backward"),
    ]
    capture = with_source(capture_with(paths, [6, 4]), ("train.py", "score", 1, EVALUATION))
    process = capture.processes[0]
    rows = process.samples.copy()
    step = process.threads[0].paths.index(("env_step",))
    rows["node"] = np.where(rows["path"] == 0, step, 0)
    capture = replace(capture, processes=(replace(process, samples=rows),))
    assert evaluation_in_the_loop(run_of(capture)) == []


PRINTED = """\
def main(algorithm):
    for _ in range(5):
        print(algorithm.train()["return"])
"""


@pytest.mark.parametrize(("printing", "training", "found"), [(1, 30, False), (30, 1, True)])
def test_what_is_computed_to_be_printed_is_not_output(printing: int, training: int, found: bool) -> None:
    main = (("train.py", "main", 1), 3)
    paths = [
        path(main, called="codecs.IncrementalEncoder.encode"),
        path(main, (("envs.py", "Env.step", 40), 44), called="numpy.cumsum"),  # called by the library
        path((("train.py", "prepare", 60), 61), called="numpy.cumsum"),
    ]
    capture = with_source(capture_with(paths, [printing, training, 30]), ("train.py", "main", 1, PRINTED))
    names = [one.name for one in slow_idioms(run_of(capture))]
    assert ("printing" in names) is found


def run_of(capture: Capture) -> RunView:
    run = view_run(capture, explain_without_advice(capture))
    assert run is not None
    return run


def with_source(capture: Capture, *sources: tuple[str, str, int, str]) -> Capture:
    process = replace(capture.processes[0], sources=tuple(FunctionSource(*source) for source in sources))
    return replace(capture, processes=(process,))


def with_thread(capture: Capture, name: SampledPath, asleep: list[int]) -> Capture:
    """Add a thread that runs all the time; the main thread sleeps on the paths in `asleep`."""
    process = capture.processes[0]
    mine = process.samples.copy()
    mine["state"] = np.where(np.isin(mine["path"], asleep), SLEEPING, RUNNING)
    other = mine.copy()
    other["native_id"] += 1
    other["path"], other["state"] = len(process.paths), RUNNING
    samples = np.concatenate([mine, other])
    return replace(capture, processes=(replace(process, samples=samples, paths=(*process.paths, name)),))


COPIES = """\
def plan(sim):
    for action in range(4):
        trial = copy.deepcopy(sim)
        value[action] = trial.advance(action) * 0.5
"""
PLAN = ("train.py", "plan", 1)


def test_what_a_library_calls_for_a_line_goes_away_with_it_and_a_loop_gives_way_to_its_hot_line() -> None:
    """copy.deepcopy calls `Sim.__deepcopy__`; `advance` is called by the script itself and stays."""
    paths = [
        path((MODULE, 11), (PLAN, 3), called="copy.deepcopy"),
        path((MODULE, 11), (PLAN, 3), (("train.py", "Sim.__deepcopy__", 20), 21)),
        path((MODULE, 11), (PLAN, 4), (("train.py", "Sim.advance", 30), 31)),
        path((MODULE, 12)),
    ]
    capture = with_source(capture_with(paths, [3, 2, 1, 4]), ("train.py", "plan", 1, COPIES))
    first = slow_idioms(run_of(capture))[0]
    assert first.name == "deep_copy" and first.site == "train.py:3"
    assert first.claim is not None and set(first.claim.sampled) == {0, 1}


WRITES = """\
def log(writer, i):
    writer.add_histogram("weights", w, i)
"""


def test_time_in_which_the_writers_thread_keeps_the_gil_counts() -> None:
    paths = [
        path(
            (MODULE, 11), (("train.py", "log", 1), 2), called="torch.utils.tensorboard.writer.add_histogram"
        ),
        path((MODULE, 12), called="torch.nn.modules.module.Module._call_impl"),
        path((MODULE, 10), called="gymnasium.core.Wrapper.step"),
    ]
    capture = with_source(capture_with(paths, [3, 3, 4]), ("train.py", "log", 1, WRITES))
    (alone,) = slow_idioms(run_of(capture))
    writer = SampledPath((), called="threading.Thread._bootstrap", innermost="tensorboard.writer.crc_update")
    (advice,) = slow_idioms(run_of(with_thread(capture, writer, asleep=[1])))
    assert alone.gain is not None and advice.gain is not None
    assert advice.gain.value == pytest.approx(1 / (1 / alone.gain.value - 0.3), rel=0.2)
    assert any("kept this one from running" in text for text in advice.evidence)


def test_a_thread_that_computes_is_named_but_not_if_the_driver_waits_for_it() -> None:
    paths = [path((MODULE, 12)), path((MODULE, 11), called="queue.Queue.get"), path((MODULE, 10))]
    capture = capture_with(paths, [3, 3, 4])
    watcher = path((("train.py", "watch", 40), 42))
    (advice,) = busy_threads(run_of(with_thread(capture, watcher, asleep=[0])))
    assert advice.site == "train.py:42" and advice.gain is not None
    assert advice.gain.value == pytest.approx(1 / 0.7, rel=0.05)
    assert busy_threads(run_of(with_thread(capture, watcher, asleep=[1]))) == []
    assert busy_threads(run_of(capture)) == []


POLLS = """\
async def get(self):
    while not self.items:
        await asyncio.sleep(0.02)
"""


def test_an_event_loop_that_sleeps_in_a_loop() -> None:
    idle = SampledPath(
        (SampledFrame("train.py", "<module>", 1, 12),),
        called="asyncio.runners.run",
        innermost="selectors.EpollSelector.select",
    )
    capture = capture_with([idle, path((MODULE, 11))], [6, 4])
    assert sleeping_event_loop(run_of(capture)) == []  # nobody sleeps in a loop
    capture = with_source(capture, ("box.py", "Box.get", 30, POLLS))
    (advice,) = sleeping_event_loop(run_of(capture))
    assert advice.site == "box.py:32" and advice.gain is not None
    assert advice.gain.value == pytest.approx(1 / (1 - 0.6 * 0.9), rel=0.05)


LARGE_INFO = """\
class Shop(gym.Env):
    def step(self, action):
        return obs, 0.0, False, False, {"stock": self.stock, "sold": sold, "cost": cost}
"""


def test_a_part_of_a_library_that_takes_long_is_named_with_its_remedy() -> None:
    learn = SampledPath(
        (SampledFrame("train.py", "<module>", 1, 12),),
        called="tianshou.trainer.base.run",
        innermost="tianshou.data.batch.Batch.__init__",
    )
    network = replace(learn, innermost="torch.nn.modules.linear.Linear.forward")
    capture = capture_with([learn, network], [4, 6])
    assert library_parts(run_of(capture)) == []  # no env of the user's that returns much
    capture = with_source(capture, ("train.py", "<module>", 1, LARGE_INFO))
    (advice,) = library_parts(run_of(capture))
    assert advice.name == "large_infos" and "info" in advice.advice and advice.site == "train.py:12"
    assert library_parts(run_of(capture_with([learn, network], [0, 10]))) == []


def test_time_spent_waiting_belongs_to_what_the_helper_did() -> None:
    """The driver waits in queue.get for a thread that copies: the copy is the advice, not the wait."""
    waiting = replace(path((MODULE, 12), called="queue.Queue.get"), innermost="threading.Condition.wait")
    copying = path((PLAN, 3), called="copy.deepcopy")
    capture = with_thread(capture_with([waiting, PATHS[2]], [6, 4]), copying, asleep=[0])
    capture = with_source(capture, ("train.py", "plan", 1, COPIES))
    run = run_of(capture)
    assert run.lines is not None
    assert run.lines.share_of([2]) == pytest.approx(0.6, abs=0.02) and run.lines.share_of([0]) == 0
    assert run.lines.helped([2]) == 1 and run.lines.helped([1]) == 0
    (advice,) = slow_idioms(run)
    assert advice.name == "deep_copy" and advice.site == "train.py:3" and HELPER in advice.evidence


READS = """\
def plan(state):
    import json
    head = pipe.read(4)
    more = [pool.submit(cell.command, a).result() for cell, a in zip(cells, actions)]
    text = json.dumps({"scan": scan.tolist()})
"""


def test_a_line_that_reads_from_a_pipe_waits_for_whoever_writes() -> None:
    reading = path((PLAN, 3))
    writing = path((PLAN, 5), called="json.dumps")
    capture = with_thread(capture_with([reading, PATHS[2]], [6, 4]), writing, asleep=[0])
    run = run_of(with_source(capture, ("train.py", "plan", 1, READS)))
    assert run.lines is not None and run.lines.share_of([2]) == pytest.approx(0.6, abs=0.02)
    (advice,) = slow_idioms(run)
    assert advice.name == "json_text" and advice.site == "train.py:5"


def test_jobs_that_are_awaited_one_by_one_take_what_the_workers_do_along() -> None:
    waiting = replace(path((PLAN, 4), called="concurrent.futures._base.Future.result"), innermost="x.wait")
    working = path((("train.py", "Cell.command", 40), 42))
    capture = with_thread(capture_with([waiting, PATHS[2]], [6, 4]), working, asleep=[0])
    run = run_of(with_source(capture, ("train.py", "plan", 1, READS)))
    assert run.lines is not None and run.lines.helping_at([0]) == {2} and run.lines.helping_at([1]) == set()
    (advice,) = slow_idioms(run)
    assert advice.name == "jobs_one_by_one" and "60" in advice.evidence[0]


def test_compilation_counts_only_if_it_comes_back_until_the_end() -> None:
    compiling = replace(path((MODULE, 12)), innermost="numba.core.compiler.compile_ir")
    capture = capture_with([compiling, PATHS[3]], [4, 6])
    process = capture.processes[0]
    rows = process.samples.copy()
    for bursts, expected in (([0], []), (range(0, 400, 40), ["compiling_again"])):
        rows["path"] = 1
        for start in bursts:
            rows["path"][start : start + (160 if len(bursts) == 1 else 16)] = 0
        made = replace(capture, processes=(replace(process, samples=rows.copy()),))
        assert [one.name for one in library_parts(run_of(made))] == expected


def test_a_wait_in_which_helpers_wait_too_stays_a_wait() -> None:
    waiting = replace(path((MODULE, 12), called="queue.Queue.get"), innermost="threading.Condition.wait")
    idle = replace(path((PLAN, 3), called="queue.Queue.get"), innermost="threading.Condition.wait")
    capture = with_thread(capture_with([waiting, PATHS[2]], [6, 4]), idle, asleep=[0])
    run = run_of(capture)
    assert run.lines is not None and run.lines.share_of([0]) == pytest.approx(0.6, abs=0.02)


def test_a_forked_worker_does_not_blame_the_line_that_started_it() -> None:
    start, step = (MODULE, 11), (("train.py", "Env.step", 30), 33)
    paths = [path(start), path(start, step), path(start, (("train.py", "Env.step", 30), 34))]
    stripped = _without_stack_of_parent(paths, np.array([0, 1, 2]))
    assert [len(one.frames) for one in stripped] == [0, 1, 1]
    # Nor the function that this line called in the parent.
    idle = SampledPath(
        path(start).frames, called="multiprocessing.context.BaseContext.Pool", innermost="_recv"
    )
    stripped = _without_stack_of_parent([idle, *paths[1:]], np.array([0, 1, 2]))
    assert stripped[0].frames == () and stripped[0].called == "_recv"
    alone = _without_stack_of_parent([path(step)], np.array([0]))
    assert len(alone[0].frames) == 1


def test_a_worker_that_makes_all_steps_does_not_blame_the_line_that_started_it() -> None:
    start = (MODULE, 11)
    steps = [(("train.py", "Env.step", 30), line) for line in (33, 34)]
    idle = SampledPath(
        path(start).frames, called="multiprocessing.context.BaseContext.Pool", innermost="_recv"
    )
    capture = capture_with([idle, *(path(start, step) for step in steps)], [5, 3, 2])
    process = capture.processes[0]
    alone = line_samples(process, process.threads[0], capture)
    assert alone is not None and alone.paths[0].frames == idle.frames
    parent = replace(process, pid=process.parent_pid, samples=process.samples[:0])
    both = replace(capture, processes=(parent, process))
    forked = line_samples(process, process.threads[0], both)
    assert forked is not None and forked.paths[0].frames == () and len(forked.paths[1].frames) == 1


REQUESTS = """\
async def collect(clients, actions):
    for client, action in zip(clients, actions):
        memory.add(await client.step(action))
"""
TOGETHER = """\
async def collect(clients, actions):
    for step in range(9):
        await client.step(step)
    return await asyncio.gather(*(client.step(a) for client, a in zip(clients, actions)))
"""


def test_requests_awaited_one_by_one_while_the_event_loop_is_idle() -> None:
    idle = replace(
        path((MODULE, 12), called="asyncio.runners.run"), innermost="selectors.EpollSelector.select"
    )
    capture = capture_with([idle, PATHS[2]], [6, 4])
    one_by_one = with_source(capture, ("train.py", "collect", 1, REQUESTS))
    (advice,) = awaits_one_by_one(run_of(one_by_one))
    assert advice.site == "train.py:3" and "asyncio.gather" in advice.advice
    assert awaits_one_by_one(run_of(with_source(capture, ("train.py", "collect", 1, TOGETHER)))) == []
    busy = with_source(capture_with([idle, PATHS[2]], [0, 10]), ("train.py", "collect", 1, REQUESTS))
    assert awaits_one_by_one(run_of(busy)) == []
    assert advice.claim is not None and advice.claim.waits  # a replay only knows how to shorten work
    first = "async def connect(clients):\n    return [await client.reset() for client in clients]\n"
    step = path((MODULE, 12), (("train.py", "collect", 1), 3))
    twice = with_source(capture_with([idle, step], [6, 4]), ("train.py", "connect", 20, first))
    sources = (*twice.processes[0].sources, *one_by_one.processes[0].sources)
    both = replace(twice, processes=(replace(twice.processes[0], sources=sources),))
    assert awaits_one_by_one(run_of(both))[0].site == "train.py:3"  # the line that ran, not the first one


LOCKED = """\
def pull(self):
    with self.lock:
        net.load_state_dict(self.net.state_dict())
self.lock = Lock()
"""


def test_waiting_for_a_lock_belongs_to_what_is_done_under_it() -> None:
    place = ("train.py", "pull", 1)
    paths = [
        path((place, 2)),
        path((place, 3), called="torch.nn.modules.module.Module.load_state_dict"),
        PATHS[2],
    ]
    capture = with_thread(capture_with(paths, [4, 3, 3]), PATHS[2], asleep=[0])
    capture = with_source(capture, ("train.py", "<module>", 1, LOCKED), ("train.py", "pull", 1, LOCKED))
    (advice,) = slow_idioms(run_of(capture))
    assert advice.name == "weights_copied" and advice.site == "train.py:3"
    assert advice.claim is not None and advice.claim.sampled == (0, 1)


PARTS_SEEN = {
    "collating": (
        "torch.utils.data._utils.collate.default_collate",
        "torch.utils.data._utils.fetch._MapFetcher.fetch",
    ),
    "anomaly_detection": ("traceback.format_stack", "linecache.checkcache"),
    "starting_processes": (
        "multiprocessing.popen_fork.Popen._launch",
        "multiprocessing.process.BaseProcess.start",
    ),
    "manager_proxies": (
        "multiprocessing.managers.BaseProxy._callmethod",
        "multiprocessing.managers.dispatch",
    ),
    "progress_bar": ("tqdm.std.tqdm.refresh", "rich.segment.Segment.get_line_length"),
    "library_files": ("h5py._hl.files.File.__init__", "gzip.GzipFile.write"),
    "validation": ("pydantic.main.BaseModel.__init__", "jsonschema.validators.validate"),
    "formatting_tensors": ("torch._tensor_str._str", "numpy._core.arrayprint.array2string"),
}


@pytest.mark.parametrize(("name", "function"), [(n, f) for n, some in PARTS_SEEN.items() for f in some])
def test_costly_parts_of_libraries(name: str, function: str) -> None:
    part = replace(path((MODULE, 12), called="lightning.Trainer.fit"), innermost=function)
    network = replace(part, innermost="torch.nn.modules.linear.Linear.forward")
    (advice,) = library_parts(run_of(capture_with([part, network], [4, 6])))
    assert advice.name == name and advice.gain is not None and advice.gain.value > 1.3


def test_anomaly_detection_also_slows_backward_passes_down() -> None:
    part = replace(path((MODULE, 12), called="torch.nn.Linear.forward"), innermost="traceback.format_stack")
    backward = path((MODULE, 13), called="torch._tensor.Tensor.backward")
    (alone,) = library_parts(run_of(capture_with([part, PATHS[2]], [4, 6])))
    (advice,) = library_parts(run_of(capture_with([part, backward, PATHS[2]], [4, 3, 3])))
    assert alone.gain is not None and advice.gain is not None
    assert 1 - 1 / advice.gain.value == pytest.approx(1 - 1 / alone.gain.value + 0.4 * 0.3, abs=0.01)
    assert "40 % of backward passes (30.0 %" in advice.evidence[-1] and "backward" not in alone.evidence[-1]


@pytest.mark.parametrize(
    "function",
    [
        "torch.utils.data.dataloader._BaseDataLoaderIter.__next__",
        "multiprocessing.connection.Connection._recv",
        "torch.optim.adam.adam",
        "numpy._core.fromnumeric.sum",
    ],
)
def test_ordinary_parts_of_libraries_are_left_alone(function: str) -> None:
    part = replace(path((MODULE, 12), called="lightning.Trainer.fit"), innermost=function)
    assert library_parts(run_of(capture_with([part, PATHS[2]], [4, 6]))) == []


@pytest.mark.parametrize(
    ("functions", "found"),
    [
        (("sklearn.utils.validation.check_array", "inspect._shadowed_dict"), True),
        (
            (
                "narwhals.dependencies._is_native_dataframe",
                "sklearn.preprocessing._data.StandardScaler.transform",
            ),
            True,
        ),
        (
            ("sklearn.linear_model._base._preprocess_data", "sklearn.linear_model._ridge._solve_cholesky"),
            False,
        ),
        (("scipy.linalg._basic.solve", "sklearn.utils.validation.check_array"), False),
    ],
)
def test_scikit_learn_is_named_where_it_checks_more_than_it_computes(
    functions: tuple[str, str], found: bool
) -> None:
    """A scaler for single observations, and a fit that computes."""
    call = path((MODULE, 12), called="sklearn.utils._set_output._wrap_method_output.<locals>.wrapped")
    paths = [*(replace(call, innermost=function) for function in functions), PATHS[2]]
    weights = [2.0, 3.0, 5.0] if found else [4.0, 1.0, 5.0]
    advice = library_parts(run_of(capture_with(paths, weights)))
    assert [one.name for one in advice] == (["sklearn_for_single_rows"] if found else [])


@pytest.mark.parametrize(("asleep", "found"), [(0.0, True), (0.6, False)])
def test_a_learner_that_sleeps_spends_no_time_on_other_things(asleep: float, found: bool) -> None:
    """As MuZero's trainer, which waits for its collectors in `time.sleep(0.5)`."""
    trains = {"train_task": Spec(1, 7e8, {"backward": Spec(100, 3e6)}, category="framework")}
    plays = ThreadSpec({"env_step": Spec(1000, 5e5), "policy_forward": Spec(1000, 4e5)}, env_steps=1000)
    capture = make_capture(trains, updates=100, unattributed=0.0, processes=[ProcessSpec([plays])])
    learner = capture.processes[0]
    thread = learner.threads[0]
    rows = np.zeros(100, dtype=SAMPLE_DTYPE)
    rows["weight_ns"] = thread.wall_ns // 100
    rows["time_ns"] = thread.start_ns + rows["weight_ns"] * np.arange(100)
    rows["native_id"] = thread.native_id
    rows["state"] = np.where(np.arange(100) < 100 * asleep, SLEEPING, RUNNING)
    rows["node"] = thread.paths.index(("train_task",))
    sampling = Sampling("native", 10_000_000, 100, 0, 0, {})
    learner = replace(learner, samples=rows, paths=(path((MODULE, 12)),), sampling=sampling)
    capture = replace(capture, processes=(learner, *capture.processes[1:]))
    advice = learner_under_used(run_of(capture))
    assert (advice is not None) is found


@pytest.mark.parametrize(
    ("innermost", "found"), [("torch.optim.adam.adam", False), ("small_library.parse", True)]
)
def test_a_library_that_leads_to_torch_is_not_the_users_own_code(innermost: str, found: bool) -> None:
    """As torch-ac does; a statement of the user's calls it for all of learning."""
    call = replace(path((MODULE, 12), called="small_library.update"), innermost=innermost)
    advice = hottest_code(run_of(capture_with([call, PATHS[2]], [4, 6])))
    assert any("in your own code" in line for one in advice for line in one.evidence) is found


@pytest.mark.parametrize(
    ("called", "expected"), [("torch_ac.utils.penv", ""), ("torchrl.envs.batched_envs", "torchrl")]
)
def test_the_library_of_a_vector_env_is_told_by_what_was_seen(called: str, expected: str) -> None:
    made = make_capture({"ParallelEnv.step": Spec(20_000, 20_000)}, env_steps=20_000)
    seen = capture_with([path((MODULE, 12), called=f"{called}.ParallelEnv.step")], [1])
    process = replace(seen.processes[0], threads=made.processes[0].threads)
    assert library(run_of(replace(made, processes=(process,)))) == expected
    assert library(run_of(made)) == "torchrl"  # not sampled


JITTED = """\
import jax
{decorator}
def act(params, observation):
    return params @ observation
for t in range(1000):
    action = int(act(params, observation))
    observation = world.move(action)
"""


@pytest.mark.parametrize(("decorator", "own"), [("@jax.jit", False), ("@functools.cache", True)])
def test_a_compiled_function_is_not_the_users_own_code(decorator: str, own: bool) -> None:
    source = ("train.py", "<module>", 1, JITTED.format(decorator=decorator))
    capture = with_source(capture_with([path((MODULE, 6)), PATHS[2]], [4, 6]), source)
    advice = hottest_code(run_of(capture))
    assert any("in your own code" in line for one in advice for line in one.evidence) is own


@pytest.mark.parametrize(("name", "found"), [("learner_update", False), ("preprocess", True)])
def test_what_rllib_does_around_its_updates_is_learning(name: str, found: bool) -> None:
    trains = {name: Spec(100, 3e6, {"backward": Spec(100, 6e6)}, category="framework")}
    plays = ThreadSpec({"env_step": Spec(1000, 5e5), "policy_forward": Spec(1000, 4e5)}, env_steps=1000)
    capture = make_capture(trains, updates=100, unattributed=0.0, processes=[ProcessSpec([plays])])
    assert (learner_under_used(run_of(capture)) is not None) is found


PLOT = "def show(values):\n    plt.plot(values)\n    plt.savefig('curve.png')\n"


@pytest.mark.parametrize("found", [True, False])
def test_figures_drawn_once_at_the_end_are_no_slow_code(found: bool) -> None:
    drawn = path((MODULE, 12), (("train.py", "show", 20), 22), called="matplotlib.pyplot.savefig")
    capture = with_source(capture_with([drawn, PATHS[2]], [5, 5]), ("train.py", "show", 20, PLOT))
    process = capture.processes[0]
    rows = process.samples.copy()
    when = np.arange(len(rows)) / len(rows)
    rows["path"] = (when * 10).astype(int) % 2 if found else when < 0.4
    capture = replace(capture, processes=(replace(process, samples=rows),))
    assert [one.name for one in slow_idioms(run_of(capture))] == (["plotting"] if found else [])


def test_a_managers_dict_is_called_through_generated_functions() -> None:
    proxy = path((MODULE, 12), called="string.__getitem__")
    proxy = replace(proxy, innermost="multiprocessing.connection.Connection._recv")
    (advice,) = library_parts(run_of(capture_with([proxy, PATHS[2]], [4, 6])))
    assert advice.name == "manager_proxies" and advice.gain is not None and advice.gain.value > 1.3
    tuples = replace(proxy, innermost="string.__new__")  # a named tuple
    assert library_parts(run_of(capture_with([tuples, PATHS[2]], [4, 6]))) == []


def test_workers_that_are_joined_at_the_end_are_not_started_again() -> None:
    join = path((MODULE, 12), called="multiprocessing.process.BaseProcess.join")
    join = replace(join, innermost="multiprocessing.popen_fork.Popen.poll")
    capture = capture_with([join, PATHS[2]], [5, 5])
    process = capture.processes[0]
    rows = process.samples.copy()
    rows["path"] = np.arange(len(rows)) < 0.7 * len(rows)  # the last third waits for the workers
    capture = replace(capture, processes=(replace(process, samples=rows),))
    assert library_parts(run_of(capture)) == []


def test_pufferlibs_dashboard_is_no_progress_bar() -> None:
    drawn = replace(
        path((MODULE, 12), called="pufferlib.pufferl.PuffeRL.train"), innermost="rich.text.Text.copy"
    )
    learns = replace(drawn, innermost="torch.nn.modules.linear.Linear.forward")
    (advice,) = library_parts(run_of(capture_with([drawn, learns], [4, 6])))
    assert advice.name == "progress_bar" and advice.title.startswith("Turn off PufferLib's dashboard")


def test_calls_of_a_trainer_are_what_training_consists_of() -> None:
    learns = path((MODULE, 12), called="pufferlib.pufferl.PuffeRL.train")
    collects = path((MODULE, 10), called="pufferlib.pufferl.PuffeRL.evaluate")
    (advice,) = hottest_code(run_of(capture_with([learns, collects], [45, 55])))
    assert advice.title == "`y += work(x)` takes 44.8 % (train.py:12)"
    assert "this is what training consists of" in advice.advice


def test_time_inside_ray_points_to_the_picture_of_the_system() -> None:
    waits = path((MODULE, 12), called="ray._private.auto_init_hook.wrap_auto_init.<locals>.auto_init_wrapper")
    step = path((MODULE, 10), called="gymnasium.core.Wrapper.step")
    (advice,) = hottest_code(run_of(capture_with([waits, step], [6, 4])))
    assert "inside Ray" in advice.evidence[0] and "auto_init" not in str(advice)
    assert "The picture of the whole system says for whom" in advice.advice


def test_library_calls_that_are_no_training_are_pointed_at() -> None:
    sample = path((MODULE, 12), called="stable_baselines3.common.buffers.ReplayBuffer.sample")
    forward = path((MODULE, 12), called="torch.nn.modules.module.Module._call_impl")
    step = path((MODULE, 10), called="gymnasium.core.Wrapper.step")
    (advice,) = hottest_code(run_of(capture_with([sample, forward, step], [3, 3, 4])))
    assert advice.site == "train.py:12" and "ReplayBuffer.sample" in advice.evidence[0]
    assert advice.claim is not None and advice.claim.sampled == (0,)


def test_the_call_of_main_is_no_code_to_look_at_even_if_half_of_it_is_explained() -> None:
    slow = path((MODULE, 11), (GATHER, 6))
    backward = path((MODULE, 11), (GATHER, 5), called="torch._tensor.Tensor.backward")
    optimizer = path((MODULE, 11), (GATHER, 3), called="torch.optim.optimizer.Optimizer.step")
    run = run_of(capture_with([slow, backward, optimizer], [6, 2, 2]))
    run.given.extend(slow_idioms(run))
    assert run.given and all(one.site != "train.py:11" for one in hottest_code(run))


def test_imports_are_no_code_to_look_at() -> None:
    capture = capture_with([path((MODULE, 1), called="numpy"), PATHS[2]], [4, 6])
    assert hottest_code(run_of(capture)) == []


def test_workers_that_are_started_again_are_named_with_the_time_they_need_to_start() -> None:
    waiting = path((MODULE, 11), called="multiprocessing.pool.Pool.map")
    capture = capture_with([waiting, path((MODULE, 12))], [9, 1])
    main = capture.processes[0]
    pool = FunctionSource("train.py", "<module>", 1, "for g in range(9):\n    pool = ctx.Pool(2)\n")
    main = replace(main, sources=(pool,))
    wall_ns = main.threads[0].wall_ns

    def worker(number: int, works_at: float) -> Process:
        """One of ten that live for a tenth of the run each; it works from `works_at` of its life on."""
        start = main.threads[0].start_ns + number * wall_ns // 10 + 1
        rows = np.zeros(10, dtype=SAMPLE_DTYPE)
        rows["time_ns"] = start + np.arange(10) * wall_ns // 100
        rows["native_id"] = 5000 + number
        rows["path"] = np.arange(10) >= 10 * works_at
        seen = (path((MODULE, 1)), path((GATHER, 5)))
        return replace(
            main,
            pid=5000 + number,
            start_ns=start,
            end_ns=start + wall_ns // 10 - 2,
            samples=rows,
            paths=seen,
            threads=(),
        )

    def advice(works_at: float, count: int = 10) -> list[Recommendation]:
        workers = tuple(worker(number, works_at) for number in range(count))
        return workers_started_again(run_of(replace(capture, processes=(main, *workers))))

    (found,) = advice(0.6)
    assert found.site == "train.py:2" and found.gain is not None
    # They start for 60 % of the run, in nine tenths of which the thread waits; 80 % of that is saved.
    assert found.gain.value == pytest.approx(1 / (1 - 0.8 * 0.9 * 0.6), rel=0.05)
    assert found.gain.low < found.gain.value < found.gain.high
    assert advice(0.0) == []  # forked workers begin at once
    assert advice(0.6, count=3) == []


def test_long_imports_at_the_top_of_a_script_are_start_up() -> None:
    importing = path((MODULE, 1), called="importlib._bootstrap._handle_fromlist")
    capture = capture_with([importing, path((MODULE, 12))], [1, 1])
    main = capture.processes[0]
    main.samples["path"] = np.arange(len(main.samples)) >= 0.7 * len(main.samples)
    thread = replace(main.threads[0], progress=replace(main.threads[0].progress, env_steps=0))
    found = find_phases(replace(capture, processes=(replace(main, threads=(thread,)),)))
    assert found is not None
    assert found.start_up_ns == pytest.approx(0.7 * thread.wall_ns, rel=0.02)
    assert found.training_ns == pytest.approx(0.3 * thread.wall_ns, rel=0.05)


GATHER_ALL = """\
async def collect(robots):
    while True:
        answers = await asyncio.gather(*(robot.step() for robot in robots))
"""


@pytest.mark.parametrize(
    ("each_ms", "rounds", "speed_up"),
    [
        ((4, 4, 4, 16), 100, 1 / (1 - 0.6 * 0.9 * (1 - 4.923 / 16))),  # one has a poor connection
        ((4, 4, 4, 4), 100, None),  # all take as long
        ((4, 4, 4, 16), 5, None),  # too few rounds to tell
    ],
)
def test_a_round_that_waits_for_the_slowest_answer(
    each_ms: tuple[float, ...], rounds: int, speed_up: float | None
) -> None:
    idle = SampledPath(
        (SampledFrame("train.py", "<module>", 1, 12),),
        called="asyncio.runners.run",
        innermost="selectors.EpollSelector.select",
    )
    capture = capture_with([idle, path((MODULE, 11))], [6, 4])
    capture = with_source(capture, ("train.py", "collect", 1, GATHER_ALL))
    assert waits_for_the_slowest(run_of(capture)) == []  # nothing was gathered
    gathered = {
        "site": "train.py:3",
        "calls": rounds,
        "timed": rounds,
        "all_ns": rounds * max(each_ms) * 1e6,
        "each_ns": [rounds * each * 1e6 for each in each_ms],
    }
    capture.facts["libraries"] = [{"pid": capture.processes[0].pid, "gathered": [gathered]}]
    found = waits_for_the_slowest(run_of(capture))
    if speed_up is None:
        assert found == []
        return
    (advice,) = found
    assert advice.site == "train.py:3" and advice.gain is not None and advice.safety == "semantic"
    assert advice.gain.value == pytest.approx(speed_up, rel=0.05)
    busy = replace(capture, facts={**capture.facts, "libraries": [{"pid": 1, "gathered": [gathered]}]})
    assert waits_for_the_slowest(run_of(busy)) == []  # of another process
