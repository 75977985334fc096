"""The system of a capture: roles, states that add up to 1, edges, barriers, the chain and the limit."""

from __future__ import annotations

import dataclasses

import pytest

from hotloop.analysis.find_system import find_system
from hotloop.analysis.system import States, System
from hotloop.capture.model import Capture
from hotloop.capture.origin import Origin
from hotloop.testing.captures import ProcessSpec, Spec, ThreadSpec, make_capture

SB3_WORKER = "stable_baselines3.common.vec_env.subproc_vec_env._worker"
LEARNER = {"env_step": Spec(1000, 1e4, {"ipc_wait": Spec(4000, 2e5)}), "backward": Spec(100, 1e6)}


def vector_env(*step_ns: float) -> Capture:
    """A learner with env workers in processes of their own."""
    workers = [
        ProcessSpec(
            [ThreadSpec({"env_step": Spec(1000, ns), "ipc_wait": Spec(1000, 9e5 - ns)})], f"Process-{i}"
        )
        for i, ns in enumerate(step_ns)
    ]
    made = make_capture(LEARNER, env_steps=4000, updates=100, processes=workers)
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
