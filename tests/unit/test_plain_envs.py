"""Classes of the user's that are envs without a library: which ones are found, and which are left alone."""

from __future__ import annotations

import builtins
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotloop.instrument import step_counting
from hotloop.instrument.plain_envs import _find_given_away, counter_of
from hotloop.measure import core_choice
from hotloop.measure.core_choice import CoreName


@pytest.mark.parametrize(
    ("result", "counter"),
    [
        ((0, 1.0, False), step_counting.done_step),
        ((0, 1, True, {}), step_counting.done_step),
        ((np.zeros(3), np.float32(1), np.bool_(False), {}), step_counting.done_step),
        ((np.zeros((2, 3)), np.zeros(2), np.zeros(2, bool)), step_counting.done_step),
        (({}, {"a": 1.0, "b": 0.0}, {"a": False, "b": True}, {}), step_counting.done_step),
        ((0, 0.5, False, True, {}), step_counting.single_step),
        (None, None),
        (0.5, None),
        ((1, 2), None),
        ([0, 1.0, False], None),  # no env returns a list
        ((0, 1.0, 0.5), None),
        ((0, True, False), None),  # no reward
        ((0, 1.0, 1), None),
        ((0, "loss", False), None),
    ],
)
def test_results_of_envs_are_told_from_others(result: Any, counter: Any) -> None:
    assert counter_of(result) is counter


def test_classes_that_others_compile_or_copy_are_found(tmp_path: Path) -> None:
    file = tmp_path / "envs.py"
    file.write_text(
        textwrap.dedent("""
            @jitclass(spec)
            class Compiled: ...
            @dataclass
            class Plain: ...
            @dataclasses.dataclass(frozen=True)
            class Frozen: ...
            @dataclass(slots=True)
            class Slots: ...
            class Scripted: ...
            class Remote: ...
            class Later: ...
            class Given: ...
            torch.jit.script(Scripted)
            workers = [ray.remote(Remote).remote() for _ in range(2)]
            Later = jitclass(spec)(Later)
            make(Given)
        """)
    )
    given = {"Compiled", "Slots", "Scripted", "Remote", "Later"}
    assert (_find_given_away(str(file)) or frozenset()) - {"spec"} == given
    file.write_text("class Env(")
    assert _find_given_away(str(file)) is None and _find_given_away("<stdin>") is None


@pytest.mark.parametrize("core", ["compiled", "python"])
def test_new_classes_with_these_attributes_are_told(core: CoreName) -> None:
    seen: list[str] = []
    build = core_choice.pick_core(core).class_builder(
        builtins.__build_class__, ("step", "reset"), lambda cls: seen.append(cls.__name__)
    )
    space: dict[str, Any] = {"__build_class__": build, "__name__": "space"}
    source = """
        class Meta(type):
            def __getattr__(cls, name):
                raise KeyboardInterrupt
        class Base:
            def reset(self): ...
        class Env(Base, metaclass=Meta):
            def step(self, action): ...
        class Words(Base):
            def __init_subclass__(cls, **words):
                cls.words = words
            def step(self): ...
        class More(Words, one=1): ...
        class Named(metaclass=Meta): ...
    """
    exec(textwrap.dedent(source), {"__builtins__": vars(builtins) | space} | space)
    assert seen == ["Env", "Words", "More"]
    with pytest.raises(ZeroDivisionError):
        exec("class Wrong:\n    1 / 0", {"__builtins__": vars(builtins) | space} | space)


def test_a_class_body_keeps_its_caller() -> None:
    build = core_choice.pick_core("compiled").class_builder(builtins.__build_class__, ("x",), print)
    space = {"__builtins__": vars(builtins) | {"__build_class__": build}, "sys": sys, "__name__": "space"}
    exec("class A:\n    caller = sys._getframe(1).f_code.co_name", space)
    assert space["A"].caller == "<module>"  # type: ignore[attr-defined]
