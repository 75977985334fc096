"""Jobs of Ray in different styles: who drives, roles, the chain of waits, advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hotloop.analysis.advice.run_view import view_run
from hotloop.analysis.advice.slow_idioms import saved_by_working_ahead
from hotloop.analysis.categories import Resolver
from hotloop.analysis.explain import explain
from hotloop.analysis.find_system import find_system
from hotloop.analysis.roles import find_parts
from hotloop.analysis.system import System
from hotloop.analysis.tree import driving_thread, without_idle_helpers
from hotloop.capture.model import Capture
from hotloop.capture.origin import Origin
from hotloop.capture.samples import RUNNING, SAMPLE_DTYPE, SLEEPING, Sampling
from hotloop.testing.captures import ProcessSpec, Spec, ThreadSpec, make_capture

SECOND = 1e9
WALL_S = 10.0


def tasks(name: str, calls: int, work_s: float, inside: dict[str, Spec] | None = None) -> dict[str, Spec]:
    """What a worker of ten seconds records that runs this method."""
    around = sum(spec.calls * spec.own_ns for spec in (inside or {}).values())
    idle = (WALL_S - work_s) * SECOND - around
    method = Spec(calls, work_s * SECOND / calls, inside or {}, category="other")
    return {
        "ray_idle": Spec(calls, idle / calls, category="wait"),
        "ray_task": Spec(calls, 0.0, {name: method}),
    }


def waiting(name: str, calls: int, wait_s: float) -> dict[str, Spec]:
    """Waiting for this method."""
    inside = {f"wait for {name}": Spec(calls, wait_s * SECOND / calls, category="wait")}
    return {"ray_get": Spec(calls, 0.0, inside, category="wait")}


def job(
    driver: dict[str, Spec], workers: Sequence[tuple[str, dict[str, Spec], int, int]], **of_driver: Any
) -> Capture:
    """A driver and workers: class of the actor ("": it runs tasks), regions, env steps and updates."""
    specs = [
        ProcessSpec([ThreadSpec(tree, env_steps=steps, updates=updates)], label=actor or "Ray worker")
        for actor, tree, steps, updates in workers
    ]
    made = make_capture(driver, processes=specs, **of_driver)
    origins = [Origin(ray="driver"), *(Origin(ray="worker", actor=actor) for actor, *_ in workers)]
    processes = [replace(p, origin=origin) for p, origin in zip(made.processes, origins, strict=True)]
    return replace(made, processes=tuple(processes))


def system_of(capture: Capture) -> System:
    found = find_system(capture)
    assert found is not None
    return found


def roles(capture: Capture) -> set[tuple[str, int]]:
    found = system_of(capture)
    return {(role.name, len(role.members)) for role in found.roles if role.works}


def advised(capture: Capture) -> list[str]:
    return [one.name for one in explain(capture).recommendations]


ROLLOUT = ("Rollout", tasks("Rollout.run", 1000, 4.0), 5000, 0)
POOL = job({**waiting("Rollout.run", 1000, 8.0), "improve": Spec(1000, 2e6)}, [ROLLOUT] * 3)


def test_the_driver_that_hands_out_work_drives_when_nobody_was_seen_learning() -> None:
    """Evolution strategies, say: one of the collectors was called the learner."""
    found = driving_thread(POOL)
    assert found is not None and found[0].origin == Origin(ray="driver")
    assert roles(POOL) == {("driver", 1), ("Rollout actors", 3)}
    sentence = system_of(POOL).chain_sentence
    assert sentence.startswith("Driver waits 76.0 % of the time for `Rollout.run` from Rollout")


def test_collectors_that_ask_a_server_are_one_role_and_their_waits_lead_to_it() -> None:
    asks = tasks("Actor.play", 1, 1.0, waiting("Server.act", 5000, 8.0))
    actors = [("Actor", asks, 5000, 0)] * 4
    server = ("Server", tasks("Server.act", 20_000, 6.0), 0, 0)
    made = job(waiting("Actor.play", 1, 9.9), [*actors, server])
    found = driving_thread(made)
    assert found is not None and found[0].origin == Origin(ray="worker", actor="Actor")
    assert roles(made) == {("driver", 1), ("Actor actors", 4), ("Server", 1)}
    assert "for `Server.act` from Server" in system_of(made).chain_sentence
    assert "env_workers_cost_more_than_work" not in advised(made)


def test_an_actor_that_makes_all_env_steps_or_learns_drives_itself() -> None:
    trainer = ("Trainer", tasks("Trainer.train", 100, 9.0), 5000, 0)
    other = ("Logger", tasks("Logger.write", 100, 1.0), 0, 0)
    for one in (trainer, (*trainer[:2], 0, 50)):
        found = driving_thread(job(waiting("Trainer.train", 100, 9.5), [one, other]))
        assert found is not None and found[0].origin == Origin(ray="worker", actor="Trainer")


def test_learners_of_one_class_are_one_role() -> None:
    learners = [("PPOTorchLearner", tasks("PPOTorchLearner.update", 100, 4.0), 0, 120)] * 2
    runners = [("EnvRunner", tasks("EnvRunner.sample", 100, 4.0), 4000, 0)] * 3
    made = job(waiting("EnvRunner.sample", 100, 5.0), [*learners, *runners])
    assert roles(made) == {("driver", 1), ("PPOTorchLearner actors", 2), ("EnvRunner actors", 3)}
    alone = job(waiting("EnvRunner.sample", 100, 5.0), [learners[0], *runners])
    assert roles(alone) == {("driver", 1), ("learner", 1), ("EnvRunner actors", 3)}


def test_workers_whose_results_go_to_other_tasks_wait_for_who_submits_theirs() -> None:
    """A parameter server: the driver passes its result on and never waits for it."""
    server = ("Server", tasks("Server.apply", 1000, 2.0), 0, 1000)
    workers = [("Worker", tasks("Worker.grads", 500, 6.0), 0, 0)] * 2
    made = job(waiting("Worker.grads", 1000, 8.0), [server, *workers])
    pid = made.processes[0].pid
    noted = {"pid": pid, "ray_tasks": {"node": "", "submitted": {"aa": ["Server.apply", 1]}}}
    made = replace(made, facts={**made.facts, "libraries": [noted]})
    sentence = system_of(made).chain_sentence
    assert "The learner waits 76.0 % of the time for the next task from driver; driver waits" in sentence
    assert "`Worker.grads` from Worker" in sentence


def test_workers_that_call_each_other_are_no_endless_chain() -> None:
    """Nested tasks: any worker runs members, which wait for episodes, and episodes."""
    inside = waiting("episode", 40, 6.0)
    both = {
        "ray_idle": Spec(50, 2.0 * SECOND / 50, category="wait"),
        "ray_task": Spec(
            50,
            0.0,
            {
                "member": Spec(10, 1e6, inside, category="other"),
                "episode": Spec(40, 2.0 * SECOND / 40, category="other"),
            },
        ),
    }
    made = job(waiting("member", 40, 9.5), [("", both, 1000, 0)] * 4)
    links = system_of(made).chain
    assert 2 <= len(links) <= 5
    assert "the next task" not in system_of(made).chain_sentence
    assert "room in" not in system_of(made).chain_sentence


@pytest.mark.parametrize(("run_ms", "expected"), [(0.2, True), (40.0, False)])
def test_only_short_tasks_are_said_to_cost_less_than_their_hand_over(run_ms: float, expected: bool) -> None:
    calls = round(1000 / run_ms)
    step = {"env_step": Spec(calls, run_ms * 1e6, category="environment")}
    tree = tasks("Env.step", calls, 0.001, step)
    made = job(waiting("Env.step", 2 * calls, 9.0), [("Env", tree, calls, 0)] * 2)
    assert ("env_workers_cost_more_than_work" in advised(made)) is expected


def test_collectors_that_fill_a_buffer_whenever_they_like_are_not_told_to_be_brought_home() -> None:
    step = {"env_step": Spec(2000, 0.2e6, category="environment")}
    actors = [("Actor", tasks("Actor.loop", 1, 0.1, step | waiting("Buffer.add", 100, 2.0)), 2000, 0)] * 3
    buffer = ("Buffer", {**tasks("Buffer.sample", 300, 1.0)}, 0, 0)
    learner = {**waiting("Buffer.sample", 300, 7.0), "backward": Spec(300, 1e7)}
    made = job(learner, [*actors, buffer], updates=300)
    assert "env_workers_cost_more_than_work" not in advised(made)


def test_workers_that_work_ahead_still_need_the_time_of_the_busiest() -> None:
    """Waits of 80 % were said to give up to 20x, though the workers worked most of that time."""
    for work_s, expected in (
        (1.0, (0.2, 0.6, 0.95)),
        (6.0, (0.2, 0.5, 0.5)),
        (9.9, (0.0125, 0.0125, 0.0125)),
    ):
        worker = ("Rollout", tasks("Rollout.run", 1000, work_s), 5000, 0)
        made = job(
            {**waiting("Rollout.run", 1000, 8.0), "learn": Spec(1000, 2e6)}, [worker] * 2, unattributed=0.0
        )
        run = view_run(made, explain(made))
        assert run is not None
        saved, why = saved_by_working_ahead(run, 0.8, (0.2, 0.6, 0.95))
        assert saved == pytest.approx(expected, rel=0.02)
        assert bool(why) is (work_s > 2)


@pytest.mark.parametrize("name", ["wait for Server.act", "look up"])
def test_waiting_longer_for_tasks_is_no_growing_data_structure(name: str) -> None:
    grows = {name: Spec(5000, 1e6, category="wait" if "wait" in name else "other", growth=0.8)}
    made = job({"env_step": Spec(5000, 1e5), **grows}, [ROLLOUT, ROLLOUT], env_steps=50_000, episodes=50)
    growth = explain(made).growth
    assert growth is not None and [one.name for one in growth.regions if one.flagged] == [name]
    assert ("growing_cost" in advised(made)) is (name == "look up")


def test_threads_that_only_wait_in_workers_that_ended_early_are_no_role() -> None:
    """Their names were not read in time; they are those of Ray itself."""
    process = POOL.processes[1]
    rows = np.zeros(4, SAMPLE_DTYPE)
    rows["native_id"], rows["weight_ns"], rows["state"] = [77, 77, 78, 78], SECOND, [SLEEPING] * 3 + [RUNNING]
    sampling = Sampling(*[None] * len(Sampling.__dataclass_fields__))  # type: ignore[arg-type]
    seen = replace(process, samples=rows, sampling=replace(sampling, thread_names={}))
    found = find_parts(replace(POOL, processes=(POOL.processes[0], seen)), Resolver())
    kinds = {part.native_id: part.kind for part in found if part.thread is None}
    assert kinds == {77: "service", 78: "thread"}


def test_our_own_thread_is_no_part_of_the_shares() -> None:
    ours = ThreadSpec({"hotloop_cluster": Spec(1, 9 * SECOND)}, name="hotloop cluster")
    made = make_capture({"work": Spec(10, SECOND)}, extra_threads=[ours])
    kept = without_idle_helpers(made, made.processes[0].threads[0])
    assert [thread.name for thread in kept.threads] == ["MainThread"]
