"""The system of a capture: roles, states that add up to 1, edges, barriers, the chain and the limit."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import pytest

from hotloop.analysis.critical_chain import find_limit
from hotloop.analysis.data_parallel import data_parallel_sentences
from hotloop.analysis.explain import explain
from hotloop.analysis.find_system import find_system
from hotloop.analysis.services import is_no_worker
from hotloop.analysis.system import Edge, Role, States, System
from hotloop.analysis.tree import driving_thread
from hotloop.analysis.utilisation import working_processes
from hotloop.capture.channels import Channel, ChannelUse
from hotloop.capture.model import Capture
from hotloop.capture.origin import Origin
from hotloop.capture.samples import (
    REASONS,
    RUNNING,
    SAMPLE_DTYPE,
    SLEEPING,
    SampledFrame,
    SampledPath,
    Sampling,
)
from hotloop.capture.scheduling import Scheduling
from hotloop.report.pen import Pen
from hotloop.report.system_html import whole_system as html_system
from hotloop.report.system_text import whole_system
from hotloop.report.text import thread_sentences
from hotloop.testing.captures import START_NS, ProcessSpec, Spec, ThreadSpec, make_capture

SB3_WORKER = "stable_baselines3.common.vec_env.subproc_vec_env._worker"
LEARNER = {"env_step": Spec(1000, 1e4, {"ipc_wait": Spec(4000, 2e5)}), "backward": Spec(100, 1e6)}


def vector_env(*step_ns: float) -> Capture:
    """A learner with env workers in processes of their own."""
    workers = [
        ProcessSpec([ThreadSpec({"env_step": Spec(1000, ns), "ipc_wait": Spec(1000, 9e5 - ns)}, cpu=None)])
        for ns in step_ns
    ]
    made = make_capture(LEARNER, env_steps=4000, updates=100, processes=workers, cpu=None)
    origins = [Origin("train.py"), *(Origin("train.py", SB3_WORKER, "forkserver") for _ in workers)]
    return with_origins(made, origins)


def with_origins(capture: Capture, origins: list[Origin]) -> Capture:
    processes = [dataclasses.replace(p, origin=o) for p, o in zip(capture.processes, origins, strict=True)]
    return dataclasses.replace(capture, processes=tuple(processes))


def system_of(capture: Capture) -> System:
    found = find_system(capture)
    assert found is not None
    return found


def test_workers_of_a_vector_env_are_one_role() -> None:
    found = system_of(vector_env(1e5, 1e5, 7e5))
    assert [(role.kind, role.name, len(role.members)) for role in found.roles] == [
        ("learner", "learner", 1),
        ("env_worker", "env workers", 3),
    ]
    assert [m.name for m in found.members] == ["learner", "env worker 0", "env worker 1", "env worker 2"]


def test_ranks_are_a_role_and_their_launcher_is_no_worker() -> None:
    rank = {"backward": Spec(100, 1e6)}
    ranks = [ProcessSpec([ThreadSpec(rank, updates=100)], "ddp.py") for _ in range(2)]
    made = make_capture({"import": Spec(1, 1e8)}, processes=ranks)
    origins = [Origin("torch.distributed.run"), *(Origin("ddp.py", rank=r, world_size=2) for r in (0, 1))]
    found = system_of(with_origins(made, origins))
    assert [(role.kind, role.works) for role in found.roles] == [("rank", True), ("launcher", False)]
    assert [m.name for m in found.members] == ["rank 0", "rank 1", "launcher"]


def test_loader_workers_inherit_a_rank_but_are_none() -> None:
    ranks = [ProcessSpec([ThreadSpec({"data": Spec(10, 1e6)})], "worker")]
    made = make_capture({"backward": Spec(100, 1e6)}, updates=100, processes=ranks)
    loader = Origin("ddp.py", "torch.utils.data._utils.worker._worker_loop", "fork", rank=0, world_size=2)
    found = system_of(with_origins(made, [Origin("ddp.py", rank=0, world_size=2), loader]))
    assert [m.name for m in found.members] == ["rank 0", "loader worker"]


@pytest.mark.parametrize("service", ["multiprocessing.forkserver", "multiprocessing.resource_tracker"])
def test_services_are_no_workers(service: str) -> None:
    made = make_capture(LEARNER, updates=100, processes=[ProcessSpec([ThreadSpec({"import": Spec(1, 1e6)})])])
    found = system_of(with_origins(made, [Origin("train.py"), Origin(service)]))
    assert [(role.kind, role.works) for role in found.roles] == [("learner", True), ("service", False)]


def total(states: States) -> float:
    return sum(dataclasses.astuple(states))


def test_states_add_up_and_what_is_not_recorded_is_unknown() -> None:
    found = system_of(vector_env(1e5, 7e5))
    for member in found.members:
        assert total(member.states) == pytest.approx(1.0)
        assert member.states.ready == 0.0  # nobody counted the run queue, so nobody may claim it


# -- states ----------------------------------------------------------------------------------------


def sampled(capture: Capture, process: int, rows: list[tuple[int, int, int]]) -> Capture:
    """The capture with samples of one main thread: (state, reason, path) for 10 ms each."""
    samples = np.zeros(len(rows), dtype=SAMPLE_DTYPE)
    samples["time_ns"] = START_NS + 10_000_000 * np.arange(len(rows))
    samples["weight_ns"] = 10_000_000
    samples["native_id"] = 1000
    samples["state"], samples["reason"], samples["path"] = np.array(rows).T
    paths = (
        SampledPath((), other=True),
        SampledPath(
            (SampledFrame("/work/train.py", "<module>", 1, 33),), "ray.get", "ray._private.worker.get"
        ),
        SampledPath((SampledFrame("/work/physics.py", "Env.step", 80, 88),)),
    )
    chosen = dataclasses.replace(
        capture.processes[process],
        samples=samples,
        paths=paths,
        sampling=Sampling("native", 10_000_000, len(rows), 0, 0, {}),
    )
    processes = list(capture.processes)
    processes[process] = chosen
    return dataclasses.replace(capture, processes=tuple(processes))


def test_who_asks_again_and_again_waits_although_it_is_on_a_core() -> None:
    """As PufferLib's processes: the learner spins 60 % of its time, the worker 30 %."""
    spins = {"ipc_wait": Spec(100, 0.0, {"spin_wait": Spec(100, 6e6)}), "train": Spec(100, 4e6)}
    worker = {"ipc_wait": Spec(100, 0.0, {"spin_wait": Spec(100, 3e6)}), "env_step": Spec(100, 7e6)}
    made = make_capture(spins, updates=100, unattributed=0.0, processes=[ProcessSpec([ThreadSpec(worker)])])
    made = with_origins(made, [Origin("train.py"), Origin("train.py", "pufferlib.vector._worker_process")])
    for process, spun in ((0, 60), (1, 30)):
        thread = made.processes[process].threads[0]
        made = sampled(made, process, [(RUNNING, 0, 2)] * 100)
        at = [path[-1] if path else "" for path in thread.paths].index("spin_wait")
        made.processes[process].samples["node"] = [at] * spun + [0] * (100 - spun)
    found = system_of(made)
    learner, env_worker = found.members
    assert learner.states.waiting == pytest.approx(0.6) and learner.states.running == pytest.approx(0.4)
    assert env_worker.states.waiting == pytest.approx(0.3, abs=0.02) and total(
        env_worker.states
    ) == pytest.approx(1)
    assert "spin_wait" not in learner.busiest
    said = next(text for text in found.sentences if "on a core while" in text)
    assert said.startswith("Learner and env worker stay on a core while they wait, asking again and again")
    assert said.endswith("0.9 cores in all.")
    few = system_of(dataclasses.replace(made, facts=made.facts | {"machine": {"cores_granted": 1}}))
    assert any("You have 1, so waiting takes cores from those who work" in text for text in few.sentences)


def test_a_driver_in_a_librarys_wait_is_blocked_and_not_without_a_core() -> None:
    """As in `ray.get`: 74 % of its samples sleep in a wait nobody has told us about."""
    made = make_capture({"train": Spec(100, 1e6)}, updates=100)
    rows = [(SLEEPING, REASONS.index("lock"), 1)] * 74 + [(RUNNING, 0, 2)] * 26
    (member,) = system_of(sampled(made, 0, rows)).members
    assert member.states.blocked == pytest.approx(0.74)
    assert member.states.ready == 0.0 and member.states.waiting == 0.0
    assert (member.blocked[0].function, member.blocked[0].site) == ("ray.get", "/work/train.py:33")
    assert member.busiest == "`Env.step`, physics.py:88"


def test_a_thread_that_sleeps_on_the_gil_waits_for_it() -> None:
    made = make_capture({"train": Spec(100, 1e6)}, updates=100)
    rows = [(SLEEPING, REASONS.index("gil"), 2)] * 30 + [(RUNNING, 0, 2)] * 70
    (member,) = system_of(sampled(made, 0, rows)).members
    assert member.states.gil == pytest.approx(0.3)
    assert member.blocked == ()


@pytest.mark.parametrize(("samples", "gil"), [(2, 0.0), (40, 0.5)])
def test_two_samples_of_a_sleeping_thread_do_not_say_what_it_sleeps_for(samples: int, gil: float) -> None:
    """TensorBoard's writer on a crowded machine: it waits for its queue, and was sampled on its way out."""
    made = make_capture({"queue_wait": Spec(50, 1e7), "write": Spec(50, 1e7)}, unattributed=0.0)
    made = sampled(made, 0, [(SLEEPING, REASONS.index("gil"), 2)] * samples)
    thread = made.processes[0].threads[0]
    times = np.array([thread.start_ns, thread.end_ns], dtype=np.uint64)
    half = np.array([0, (thread.end_ns - thread.start_ns) // 2], dtype=np.uint64)
    counted = dataclasses.replace(thread, scheduling=Scheduling(times, half, half * 0, None, None))
    process = dataclasses.replace(made.processes[0], threads=(counted,))
    (member,) = system_of(dataclasses.replace(made, processes=(process,))).members
    assert member.states.running == pytest.approx(0.5)
    assert member.states.gil == pytest.approx(gil)
    assert member.states.waiting == pytest.approx(0.5 - gil)


# -- edges, barriers, the chain --------------------------------------------------------------------


def piped(capture: Capture, wait_ns: list[float]) -> Capture:
    """The capture with pipes from the learner to each worker; it waits that long for each answer."""
    processes = list(capture.processes)
    end_ns = processes[0].threads[0].end_ns
    calls = 1000

    def use(name: str, way: Literal["send", "receive"], total_ns: float) -> ChannelUse:
        times = np.array([START_NS, end_ns], dtype=np.uint64)
        totals = np.array([0, round(total_ns)], dtype=np.uint64)
        return ChannelUse(name, way, times, np.array([0, calls], dtype=np.uint64), totals, 126.0)

    ends = []
    for number, ns in enumerate(wait_ns, start=1):
        ends += [use(f"pipe {number}", "receive", calls * ns), use(f"pipe {number}", "send", calls * 1e3)]
        worker = processes[number]
        waited = sum(node.total_ns for node in worker.threads[0].root.children if node.name == "ipc_wait")
        thread = dataclasses.replace(
            worker.threads[0], channels=(use("pipe 1", "receive", waited), use("pipe 1", "send", calls * 1e3))
        )
        here = Channel("pipe 1", "pipe", f"worker {number}")
        processes[number] = dataclasses.replace(worker, threads=(thread,), channels=(here,))
    known = tuple(
        Channel(f"pipe {n}", "pipe", f"learner {n}", f"worker {n}") for n in range(1, len(wait_ns) + 1)
    )
    learner = dataclasses.replace(processes[0].threads[0], channels=tuple(ends))
    processes[0] = dataclasses.replace(processes[0], threads=(learner,), channels=known)
    return dataclasses.replace(capture, processes=tuple(processes))


def test_both_ends_of_a_pipe_become_edges() -> None:
    found = system_of(piped(vector_env(1e5, 7e5), [1e4, 6e5]))
    edges = {(e.source, e.target): e for e in found.edges}
    assert set(edges) == {(0, 1), (1, 0), (0, 2), (2, 0)}
    assert (edges[2, 0].messages, edges[2, 0].bytes) == (1000, 126_000)
    assert edges[2, 0].target_waited_ns == pytest.approx(1000 * 6e5, rel=0.01)
    answers = next(link for link in found.links if found.roles[link.target].kind == "learner")
    assert answers.messages_per_s == pytest.approx(2000 / (found.training_ns / 1e9), rel=0.01)


def test_the_chain_leads_to_the_slow_worker() -> None:
    found = system_of(piped(vector_env(1e5, 1e5, 7e5), [1e4, 1e4, 6e5]))
    assert [found.members[link.member].name for link in found.chain] == ["learner", "env worker 2"]
    assert found.chain_sentence.startswith("The learner waits ")
    assert "from env worker 2" in found.chain_sentence


def test_a_slow_worker_costs_the_mean_of_the_slowest_minus_the_mean() -> None:
    (barrier,) = system_of(piped(vector_env(1e5, 1e5, 7e5), [1e4, 1e4, 6e5])).barriers
    slow = max(barrier.members, key=lambda one: one.mean_ns)
    assert barrier.pattern == "steady" and slow.member == 3
    assert barrier.imbalance_ns == pytest.approx(barrier.slowest_ns - barrier.mean_ns)
    assert barrier.imbalance_ns > 3e5


def test_equal_workers_are_even() -> None:
    made = with_steady_steps(piped(vector_env(3e5, 3e5), [1e5, 1e5]))
    (barrier,) = system_of(made).barriers
    assert barrier.pattern == "even"


def with_steady_steps(capture: Capture) -> Capture:
    """The capture with steps of workers that all take the same time."""
    for process in capture.processes[1:]:
        for node in process.threads[0].root.children:
            node.squares = 0.0
    return capture


def test_a_driver_of_ray_waits_for_the_actors_that_run_its_method() -> None:
    wait = {"wait for Runner.sample": Spec(100, 8e6, category="wait")}
    driver = {"ray_get": Spec(100, 0.0, wait, category="wait"), "backward": Spec(100, 1e6)}
    actors = [
        {"ray_task": Spec(calls, 0.0, {"Runner.sample": Spec(calls, 8e6)}), "ray_idle": Spec(calls, 1e6)}
        for calls in (75, 25)
    ]
    others = [ProcessSpec([ThreadSpec(tree, cpu=None)]) for tree in actors]
    made = make_capture(driver, updates=100, processes=others, cpu=None)
    edges = {(e.source, e.target): e for e in system_of(made).edges}
    assert {(e.kind, e.name) for e in edges.values()} == {
        ("task", "Runner.sample"),
        ("task", "the next task"),
    }
    assert (edges[1, 0].messages, edges[2, 0].messages) == (75, 25)
    assert edges[1, 0].target_waited_ns == pytest.approx(75 * 8e6, rel=0.01)
    assert edges[0, 1].target_waited_ns == pytest.approx(75 * 1e6, rel=0.01)
    assert "waits" in system_of(made).chain_sentence
    assert "for `Runner.sample` from" in system_of(made).chain_sentence


def test_the_limit_is_the_role_that_waits_least_and_the_next_one_is_named() -> None:
    found = system_of(piped(vector_env(8e5, 8e5), [7e5, 7e5]))
    assert found.limit.role is not None and found.roles[found.limit.role].kind == "env_worker"
    assert found.limit.next_role is not None and found.roles[found.limit.next_role].kind == "learner"
    assert [role.limiting for role in found.roles] == [False, True]


@pytest.mark.parametrize(
    ("env_steps", "acts", "kind"),
    [
        (1000, False, "env_worker"),  # an answer for each step, as a worker written by hand sends
        (64_000, False, "collector"),  # rollouts of 64 steps
        (1000, True, "collector"),
    ],
)
def test_who_answers_each_step_is_an_env_worker(env_steps: int, acts: bool, kind: str) -> None:
    regions = {"env_step": Spec(1000, 7e5)} | ({"policy_forward": Spec(1000, 1e5)} if acts else {})
    worker = ProcessSpec([ThreadSpec(regions | {"ipc_wait": Spec(1000, 1e5)}, env_steps=env_steps, cpu=None)])
    made = make_capture(LEARNER, env_steps=0, updates=100, processes=[worker], cpu=None)
    found = system_of(
        piped(with_origins(made, [Origin("a2c.py"), Origin("a2c.py", "a2c.worker", "fork")]), [7e5])
    )
    assert [member.kind for member in found.members] == ["learner", kind]


def test_the_rank_that_waits_least_is_the_straggler() -> None:
    quick = {"collective": Spec(100, 8e5, category="wait"), "backward": Spec(100, 2e5)}
    slow = {"collective": Spec(100, 1e4, category="wait"), "backward": Spec(100, 9.9e5)}
    other = ProcessSpec([ThreadSpec(slow, updates=100, unattributed=0.0)], "ddp.py")
    made = make_capture(quick, updates=100, processes=[other], unattributed=0.0)
    found = system_of(with_origins(made, [Origin("ddp.py", rank=r, world_size=2) for r in (0, 1)]))
    assert "from rank 1" in found.chain_sentence
    assert any("Rank 1 is the straggler" in sentence for sentence in found.sentences)
    assert found.limit.why.startswith("Rank 1 is the limit")


def test_the_last_of_many_ranks_waits_for_nobody() -> None:
    """Its own short waits led to the others, and were counted once for each of them."""
    trees = [
        {"collective": Spec(100, wait * 1e6, category="wait"), "backward": Spec(100, (10 - wait) * 1e6)}
        for wait in (8, 8, 8, 4)
    ]
    others = [ProcessSpec([ThreadSpec(tree, updates=100, cpu=None)]) for tree in trees[1:]]
    made = make_capture(trees[0], updates=100, cpu=None, processes=others)
    found = system_of(with_origins(made, [Origin("ddp.py", rank=r, world_size=4) for r in range(4)]))
    assert [found.members[link.member].name for link in found.chain][1:] == ["rank 3"]
    assert "rank 3 is in" in found.chain_sentence


@pytest.mark.parametrize(("world", "told"), [(1, False), (2, True)])
def test_a_capture_of_some_ranks_says_that_others_are_elsewhere(world: int, told: bool) -> None:
    """As on one computer of several, where what the rank waits for cannot be seen."""
    waits = {"collective": Spec(100, 8e5, category="wait"), "backward": Spec(100, 2e5)}
    made = with_origins(
        make_capture(waits, updates=100, cpu=0.2), [Origin("ddp.py", rank=0, world_size=world)]
    )
    sentence = "Only 1 of 2 ranks is in this capture."
    assert explain(made).headline.startswith(sentence) == told
    text = whole_system(system_of(made), Pen(80))
    assert (sentence in text.replace("\n  ", " ")) == told
    assert "env workers" not in " ".join(thread_sentences(explain(made)))


def test_threads_of_a_launcher_are_not_counted_for_oversubscription() -> None:
    rank = ProcessSpec([ThreadSpec({"backward": Spec(100, 1e6)}, updates=100)], "ddp.py")
    made = make_capture({"between waits": Spec(100, 1e6)}, processes=[rank, rank])
    origins = [Origin("torchrun"), *(Origin("ddp.py", rank=r, world_size=2) for r in (0, 1))]
    found = with_origins(made, origins)
    assert [is_no_worker(found, process) for process in found.processes] == [True, False, False]
    assert working_processes(found) == found.processes[1:]


# -- the picture -----------------------------------------------------------------------------------


def test_the_terminal_fits_80_columns_and_marks_the_limit() -> None:
    found = system_of(piped(vector_env(1e5, 1e5, 7e5), [1e4, 1e4, 6e5]))
    for pen in (Pen(80), Pen(80, unicode=False)):
        text = whole_system(found, pen)
        assert max(map(len, text.split("\n"))) <= 80
        assert ("▶ " if pen.unicode else "> ") in text
        assert pen.unicode or text.isascii()
    assert "learner → env workers: pipe" in whole_system(found, Pen(80))


def test_a_program_of_one_thread_has_no_picture() -> None:
    assert whole_system(system_of(make_capture({"train": Spec(100, 1e6)}, updates=100)), Pen(80)) == ""


def test_the_page_has_a_box_for_each_role() -> None:
    page = html_system(system_of(piped(vector_env(1e5, 7e5), [1e4, 6e5])), "The whole system")
    assert page.count("<rect class=") == 2 and page.count('class="link"') == 2
    assert "env workers x2" in page


def test_what_data_parallel_measured_is_told() -> None:
    capture = make_capture({"backward": Spec(100, 1e6)}, updates=100)
    pid = capture.processes[0].pid
    clocks = {
        "avg_backward_compute_time": 2_000_000,
        "avg_backward_comm_time": 1_500_000,
        "avg_backward_compute_comm_overlap_time": 500_000,
        "iteration": 40,
    }
    entry = {"pid": pid, "data_parallel": clocks}
    capture = dataclasses.replace(capture, facts=capture.facts | {"libraries": [entry]})
    rank = dataclasses.replace(find_system(capture).members[0], name="rank 0", kind="rank")
    (said,) = data_parallel_sentences(capture, [rank])
    assert "Rank 0: backward computes for 2.00 ms" in said and "for 1.50 ms" in said and "500 us of" in said
    clocks["iteration"] = 1
    assert not data_parallel_sentences(capture, [rank])


def test_idle_threads_of_libraries_are_not_shown() -> None:
    idle = {"condition_wait": Spec(10, 50e6, category="wait")}
    threads = (
        ThreadSpec(idle, name="housekeeping", cpu=0.0, unattributed=0.0),
        ThreadSpec({"env_step": Spec(100, 5e6)}, name="simulator", cpu=0.0),
    )
    found = find_system(make_capture({"learn": Spec(100, 5e6)}, updates=100, extra_threads=threads))
    assert found is not None
    names = {found.roles[number].name for number in found.shown_roles}
    assert names == {"learner", "thread simulator"}


def test_a_service_never_drives_training() -> None:
    made = make_capture(
        {"import": Spec(1, 1e8)}, processes=[ProcessSpec([ThreadSpec({"loop": Spec(100, 1e8)})])]
    )
    first, second = made.processes
    monitor = dataclasses.replace(second, origin=Origin(program="ray/autoscaler/_private/monitor.py"))
    driver = driving_thread(dataclasses.replace(made, processes=(first, monitor)))
    assert driver is not None and driver[0] is first
    found = driving_thread(dataclasses.replace(made, processes=(monitor,)))
    assert found is not None and found[0] is monitor  # there is nothing else


def test_a_thread_of_which_hardly_anything_is_known_is_not_the_limit() -> None:
    """As threads of Ray's actors, which the kernel hardly ever showed."""
    found = system_of(vector_env(1e5, 7e5))
    seen = [dataclasses.replace(m, states=States(0.5, 0.0, 0.5, 0.0, 0.0)) for m in found.members]
    hardly = dataclasses.replace(
        seen[0], kind="thread", role=2, states=States(0.01, 0.04, 0.05, 0.0, 0.0, 0.9)
    )
    role = Role("thread", "threads Dummy", (len(seen),), hardly.states, slack=0.05)
    edge = Edge("ring", "ring", 1, len(seen), None, None, 0, 1)
    limit = find_limit([*seen, hardly], [*found.roles, role], [edge], [], None)
    assert limit.role is not None and limit.role != 2 and "Dummy" not in limit.why
