"""Patches remember what they replaced; removing everything leaves no trace."""

from __future__ import annotations

import gc
import inspect
import multiprocessing.connection
import pickle
import queue
import sys
import threading
from typing import Any

import gymnasium
import pytest
import torch

from hotloop.analysis.windows import WHOLE as ENDING
from hotloop.instrument.gap_names import gap_namer
from hotloop.instrument.import_hook import ImportHook
from hotloop.instrument.libraries import Instrumentation
from hotloop.instrument.patch import Patch, Patches, follow_subclasses
from hotloop.instrument.standard_library import _shutting_down
from hotloop.instrument.update_counting import begin_training
from hotloop.measure.profiler import default
from hotloop.testing.fakes import FakeDevice


class Base:
    def method(self) -> str:
        return "base"

    @staticmethod
    def static() -> str:
        return "static"

    @classmethod
    def made(cls) -> str:
        return cls.__name__


class Derived(Base):
    pass


def loud(function: Any) -> Any:
    return lambda *args, **kwargs: function(*args, **kwargs).upper()


@pytest.mark.parametrize("name", ["method", "static", "made"])
def test_a_patch_restores_exactly_the_original(name: str) -> None:
    before = vars(Base)[name]
    patch = Patch(Base, name, loud)
    patch.apply()
    assert getattr(Base(), name)() == getattr(Base(), name)().upper()
    assert patch.undo()
    assert vars(Base)[name] is before


def test_an_inherited_attribute_is_removed_again() -> None:
    patch = Patch(Derived, "method", loud)
    patch.apply()
    assert Derived().method() == "BASE" and Base().method() == "base"
    patch.undo()
    assert "method" not in vars(Derived)


def test_attributes_patched_by_others_stay() -> None:
    patches = Patches()
    patches.apply([Patch(Base, "method", loud)])
    ours = Base.method
    Base.method = lambda self: "theirs"  # type: ignore[method-assign]
    (stuck,) = patches.undo()
    assert stuck.name == "method" and Base().method() == "theirs"
    Base.method = ours.__wrapped__  # type: ignore[attr-defined,method-assign]


def test_a_name_that_does_not_exist_is_left_out() -> None:
    patches = Patches()
    patches.apply([Patch(Base, "no_such_method", loud), Patch(Base, "method", loud)])
    assert len(patches) == 1
    patches.undo()


def test_later_subclasses_are_patched_and_the_watch_ends() -> None:
    class Root:
        def step(self) -> str:
            return "root"

    patches = Patches()
    watch = follow_subclasses(
        Root, lambda cls: [Patch(cls, "step", loud)] if "step" in vars(cls) else [], patches
    )
    patches.apply([watch])

    class Later(Root):
        def step(self) -> str:
            return "later"

    assert (Root().step(), Later().step()) == ("ROOT", "LATER")
    assert patches.undo() == []
    assert (Root().step(), Later().step()) == ("root", "later")
    assert "__init_subclass__" not in vars(Root)


def test_the_import_hook_acts_after_the_import_and_only_once(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "fresh_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = []
    hook = ImportHook({"fresh_module": lambda module: seen.append(module.value)})
    hook.install()
    try:
        import fresh_module  # type: ignore[import-not-found]

        assert seen == [1]
        assert "Loader" in type(fresh_module.__loader__).__name__
        assert type(fresh_module.__loader__).__module__ != "hotloop.instrument.import_hook"
        assert fresh_module.__spec__.loader is fresh_module.__loader__
    finally:
        hook.remove()
        sys.modules.pop("fresh_module", None)
    assert hook not in sys.meta_path


def snapshot() -> dict[Any, Any]:
    """The attributes of every class and module that is patched."""
    owners: list[Any] = [
        torch, torch.nn.Module, torch.Tensor, torch.autograd, torch.nn.utils, torch.optim.Optimizer,
        torch.optim.Adam, gymnasium.Env, gymnasium.Wrapper, gymnasium.vector.VectorEnv,
        gymnasium.vector.SyncVectorEnv, gymnasium.wrappers.TimeLimit, multiprocessing.connection.Connection,
        queue.Queue,
    ]  # fmt: skip
    found = {(owner, name): value for owner in owners for name, value in vars(owner).items()}
    return found | {"callbacks": list(gc.callbacks), "meta_path": list(sys.meta_path)}


def test_taken_out_again_it_leaves_no_trace() -> None:
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # torch wraps `step` at the first one
    before = snapshot()
    instrument = Instrumentation()
    instrument.install()
    try:
        assert instrument.failures == []
        assert snapshot() != before
        changed = torch.nn.Module.__call__
        assert inspect.signature(changed) == inspect.signature(before[torch.nn.Module, "__call__"])
        assert changed.__doc__ == before[torch.nn.Module, "__call__"].__doc__
        env = gymnasium.make("CartPole-v1")
        assert isinstance(env, gymnasium.Env)
        assert pickle.loads(pickle.dumps(gymnasium.spaces.Discrete(3))) == gymnasium.spaces.Discrete(3)
        assert str(inspect.signature(type(env.unwrapped).step)) == "(self, action)"

        class Own(torch.optim.SGD):
            pass

        assert hasattr(torch.optim.Adam.step, "_hotloop_step")  # made before; wrapped all the same
        weight = torch.ones(1, requires_grad=True)
        optimizer = Own([weight], lr=0.1)
        weight.sum().backward()
        optimizer.step()
        assert weight.item() == pytest.approx(0.9)
    finally:
        stuck = instrument.remove()
    assert stuck == []
    after = snapshot()
    assert {
        key for key in before if before[key] is not after.get(key) and before[key] != after.get(key)
    } == set()
    assert set(after) == set(before)
    assert not hasattr(Own.step, "_hotloop_step") and not hasattr(torch.optim.Adam.step, "_hotloop_step")


@pytest.mark.parametrize("scheduled", [False, True])
def test_optimizers_made_before_are_recorded_each_time_it_is_put_in(scheduled: bool) -> None:
    """Torch wraps the `step` of a class once, a scheduler that of an optimizer: before us, or through us."""

    class Early(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> Any:
            return None

    hooks: list[str] = []
    weight = torch.ones(1, requires_grad=True)

    def made() -> Any:
        optimizer = Early([weight], {"lr": 0.1})
        optimizer.register_step_post_hook(lambda *given: hooks.append("ran"))
        if scheduled:
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
        return optimizer

    before = made()
    plain = vars(Early)["step"]
    default.start()
    try:
        for first in (before, None, before):
            instrument = Instrumentation()
            instrument.install()
            begin_training()
            steps = default.capture().progress.updates
            optimizer = first or made()
            optimizer.step()
            assert default.capture().progress.updates == steps + 1
            assert instrument.remove() == []
            assert vars(Early)["step"] is plain and plain.hooked
            before.step()
            assert default.capture().progress.updates == steps + 1
        assert default.stats()["optimizer_step"].calls == 3
    finally:
        default.stop()
    assert len(hooks) == 6  # one for each step: torch has not wrapped it twice
    gone = [Early([weight], {"lr": 0.1})]
    instrument = Instrumentation()
    instrument.install()
    gone.clear()
    assert instrument.remove() == []


def test_a_class_that_was_first_used_while_recorded_is_recorded_again() -> None:
    class Later(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> Any:
            return None

    weight = torch.ones(1, requires_grad=True)
    optimizers: list[Any] = []
    updates = []
    for _ in range(2):
        instrument = Instrumentation()
        instrument.install()
        begin_training()
        default.start()
        optimizers = optimizers or [Later([weight], {"lr": 0.1})]
        weight.sum().backward()
        optimizers[0].step()
        updates.append(default.capture().progress.updates)
        default.stop()
        assert instrument.remove() == []
        assert not hasattr(Later.step, "_hotloop_step") and vars(Later)["step"].hooked
    assert updates == [1, 1]


def test_a_gpu_is_timed_from_its_first_use_on(monkeypatch: Any) -> None:
    """No GPU at hand: torch's own initialisation does nothing here, and the device is a fake one."""
    device = FakeDevice()
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr("hotloop.instrument.torch.new_device", lambda: device)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    instrument = Instrumentation()
    instrument.install()
    default.start()

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            device.work(100)
            return self.inner(x)

    try:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.ones(1, 2)).cpu()
        assert default.recorder.device is None  # the script has not used a GPU
        assert "transfer" not in default.stats()
        torch.cuda._lazy_init()
        assert torch.ones(1).cpu().to("cpu").item() == 1.0
        assert default.stats()["transfer"].calls == 3
        for _ in range(3):
            loss = net(torch.ones(1, 2)).sum()
            loss.backward()
            optimizer.step()
        device.finish()
        default.recorder.device.collect()  # type: ignore[attr-defined]
        stats = default.stats()
    finally:
        default.stop()
        assert instrument.remove() == []
    assert stats["learner_forward"].calls == 4
    assert stats["learner_forward"].device_ns == 300
    assert stats["backward"].device_ns == stats["optimizer_step"].device_ns == 0


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ("policy_forward", "env_step", "between policy_forward and env_step"),
        ("transfer", "backward", "before backward"),
        ("learner_forward", "transfer", "after learner_forward"),
        ("gc_pause", "transfer", "between minor calls"),
    ],
)
def test_gaps_are_named_by_their_neighbours_but_not_categorised(before: str, after: str, name: str) -> None:
    region = gap_namer(default.profile)(default.profile(before), default.profile(after))
    assert (region.name, region.category) == (name, "other")


def test_waiting_for_threads_at_the_end_is_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    here = threading.current_thread()
    default.start()
    try:
        monkeypatch.setattr(threading, "enumerate", lambda: [here, threading.Thread(daemon=True)])
        assert _shutting_down(lambda: "nobody")() == "nobody"
        assert default.capture().tree.children == []
        monkeypatch.setattr(threading, "enumerate", lambda: [here, threading.Thread(daemon=False)])
        assert _shutting_down(lambda: "ended")() == "ended"
        assert [node.name for node in default.capture().tree.children] == list(ENDING)
    finally:
        default.stop()
