"""Envs that are plain classes of the user's, with `step` or `act`, `reset` and no library below them.

A class statement tells of them (`builtins.__build_class__`). Whether `step` is that of an env, its first
results tell: (observation, reward, done, ...). The `step` of an agent or a schedule returns something else,
and is left alone from then on. `act` is a step where the class also has a method that is asked for
observations (`state`), and results are (reward, done, ...): agents have an `act`, too. Classes that a
decorator may compile or send elsewhere are never touched.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import sys
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any

from hotloop._util.interrupts import is_users, suppress_own
from hotloop.instrument import step_counting
from hotloop.instrument.gymnasium import env_observe
from hotloop.instrument.method_patches import patch_outermost
from hotloop.instrument.patch import Patch, Patches
from hotloop.measure.core_shared import PACKAGE, is_library
from hotloop.measure.profiler import default

METHODS = ("step", "reset"), ("act", "reset")  # of an env
OBSERVING = ("state", "observe", "observation", "get_state", "get_obs", "get_observation")  # beside `act`
ABSTRACT = frozenset({"abc", "typing", "typing_extensions", "builtins"})  # modules of bases that do nothing
HARMLESS = frozenset({"dataclass", "final", "total_ordering", "runtime_checkable"})  # decorators of classes
READERS = frozenset({"jitclass", "script", "remote"})  # functions that compile or copy a class given to them
MAX_FILES = 200  # whose source is read
FIRST_STEPS = 8  # distances between steps that are looked at
SHORT_NS = 30_000  # steps that follow each other faster are not recorded: 0.3 us for each would be over 1 %
LONG_NS = 1_000_000  # steps that are so far apart are recorded after the fourth

_OUTER = {name: default.profile(f"env_{name}") for name in ("step", "reset")}
_looked_at = 0  # steps whose env was not known to be one
_given_away: dict[str, frozenset[str] | None] = {}  # file -> classes to leave alone; None: unknown


def watch_classes(into: Patches) -> Callable[[], object]:
    """Begin to look at new classes; returns what ends it."""
    before = builtins.__build_class__
    ours = before
    for names in METHODS:
        ours = default.class_builder(ours, names, functools.partial(_made, names[0], into))
    builtins.__build_class__ = ours

    def end() -> None:
        if builtins.__build_class__ is ours:
            builtins.__build_class__ = before

    return end


def _made(name: str, into: Patches, cls: type) -> None:
    with suppress_own(Exception):
        if _may_be_an_env(cls, name):
            into.apply([_FirstSteps(cls, name, into).patch])


def _may_be_an_env(cls: type, name: str) -> bool:
    """A class of the user's with plain methods and no base from a library."""
    step = vars(cls).get(name)
    if name == "act" and (hasattr(cls, "step") or not _is_asked_for_observations(cls)):
        return False
    if not isinstance(step, FunctionType) or step.__code__.co_argcount < 2 or not _returns(step):
        return False
    file = step.__code__.co_filename
    if is_library(file) or file.startswith(PACKAGE) or any(_is_of_library(base) for base in cls.__mro__[1:]):
        return False
    if file not in _given_away and len(_given_away) < MAX_FILES:
        _given_away[file] = _find_given_away(file)
    names = _given_away.get(file)
    return names is not None and cls.__name__ not in names


def _is_asked_for_observations(cls: type) -> bool:
    return any(_is_asked(vars(base).get(name)) for base in cls.__mro__ for name in OBSERVING)


def _is_asked(method: Any) -> bool:
    """A plain method without arguments."""
    return isinstance(method, FunctionType) and method.__code__.co_argcount == 1 and _returns(method)


def _returns(function: FunctionType) -> bool:
    """Whether a call runs the function to its end: no generator, no coroutine."""
    unusual = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    return not function.__code__.co_flags & unusual


def _is_of_library(base: type) -> bool:
    if base.__module__.partition(".")[0] in ABSTRACT:
        return False
    file = getattr(sys.modules.get(base.__module__), "__file__", None)
    return file is not None and is_library(file)


def _find_given_away(file: str) -> frozenset[str] | None:
    """Names of classes that a decorator, or one of the readers, gets."""
    try:
        with open(file, "rb") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        if is_users(error):
            raise
        return None
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not all(map(_is_harmless, node.decorator_list)):
            found.add(node.name)
        elif isinstance(node, ast.Call) and _reads_classes(node.func):
            found |= {given.id for given in node.args if isinstance(given, ast.Name)}
    return frozenset(found)


def _is_harmless(decorator: ast.expr) -> bool:
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    with_slots = isinstance(decorator, ast.Call) and any(word.arg == "slots" for word in decorator.keywords)
    return _last_name(function) in HARMLESS and not with_slots  # slots need a second class


def _reads_classes(function: ast.expr) -> bool:
    """`jitclass(spec)` of `jitclass(spec)(Env)`, `torch.jit.script`, `ray.remote`."""
    return _last_name(function.func if isinstance(function, ast.Call) else function) in READERS


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


# -- what the first steps tell -----------------------------------------------------------------------


class _FirstSteps:
    """Looks at the first results of `step`; if they are an env's, its methods become regions.

    Steps that follow each other at once stay as they are: recording them would take a notable part of the
    time.
    """

    def __init__(self, cls: type, name: str, into: Patches):
        self.cls = cls
        self.name = name
        self.into = into
        self.counter: Any = None
        self.looked_ns = 0
        self.apart_ns: list[int] = []
        self.counts: list[tuple[Any, Any]] = []  # envs, with rewards and ends that are still to be counted
        self.decided = False
        self.steps_before = 0
        region = default.profile(f"{cls.__name__}.{name}", "other")
        watched = {"choose": self.begin, "otherwise": region, "after": self}
        self.patch = Patch(cls, name, lambda function: region.wrap(function, **watched))

    def begin(self) -> bool:
        """Called before each step."""
        self.steps_before = _looked_at + step_counting.total_steps()
        return True

    def __call__(self, env: Any, result: Any) -> None:
        """Called after each step."""
        global _looked_at
        if self.decided:  # a method that was bound before
            if self.counter is not None:
                self.counter(env, result)
            return
        with suppress_own(Exception):
            if self.counter is None:
                self.counter = counter_of(result) if self.name == "step" else counter_of_act(result)
            else:
                self.apart_ns.append(time.perf_counter_ns() - self.looked_ns)
            places = (0, (1,)) if self.name == "act" else (1, (2, 3) if _has_truncated(result) else (2,))
            known = step_counting.plain_numbers(result, *places)
            if self.counter is None:
                self.decide(False)
                return
            if _looked_at + step_counting.total_steps() == self.steps_before:  # no env inside has a step
                self.counts.append((env, known))
                _looked_at += 1
            apart_ns = sorted(self.apart_ns)
            if len(apart_ns) > 2 and (apart_ns[2] > LONG_NS or len(apart_ns) == FIRST_STEPS):
                self.decide(apart_ns[2] >= SHORT_NS)  # the third shortest: a busy machine makes some longer
            self.looked_ns = time.perf_counter_ns()

    def decide(self, is_env: bool) -> None:
        """Make its methods regions, and count what was seen; or leave the class as it was."""
        self.decided = True
        counts, self.counts = self.counts, []
        if not self.patch.undo() or not is_env:
            self.counter = None
            return
        self.into.apply(_patches_of(self.cls, self.name, self.counter))
        for env, known in counts:
            if known is None:  # rewards of agents with one end for all: a step, as the counter says
                default.progress(env_steps=1)
            else:
                self.counter.add(env, *known)


def _patches_of(cls: type, name: str, counter: Any) -> list[Patch]:
    """One region for each method: nothing is wrapped around a plain env that would need a name below it."""
    owner = next(base for base in cls.__mro__ if "reset" in vars(base))
    patches = [patch_outermost(cls, name, _OUTER["step"], counter)]
    for asked in OBSERVING if name == "act" else ():
        if _is_asked(vars(cls).get(asked)):
            patches.append(Patch(cls, asked, _observing))
    reset = vars(owner)["reset"]
    if isinstance(reset, FunctionType) and _returns(reset) and not hasattr(reset, "__wrapped__"):
        forget = step_counting.forget_after_reset(counter)
        patches.append(patch_outermost(owner, "reset", _OUTER["reset"], forget))
    return patches


def _observing(asked: Callable[..., Any]) -> Callable[..., Any]:
    """What the env shows between two steps."""
    inside = (env_observe, *_OUTER.values())
    wrapped: Callable[..., Any] = env_observe.wrap(
        asked, skip_inside=inside, after=step_counting.act_step.see
    )
    return wrapped


def counter_of_act(result: Any) -> Any:
    """As below, of an env with `act`, which returns (reward, done, ...) with one number as reward."""
    if not isinstance(result, tuple) or not 2 <= len(result) <= 4:
        return None
    one = isinstance(result[0], int | float) or getattr(result[0], "shape", None) == ()
    return step_counting.act_step if one and _is_reward(result[0]) and _is_flag(result[1]) else None


def counter_of(result: Any) -> Any:
    """Counts the steps of an env that returned this; None if no env returns such a thing."""
    if not isinstance(result, tuple) or not 3 <= len(result) <= 6:
        return None
    if not _is_reward(result[1]) or not _is_flag(result[2]):
        return None
    return step_counting.single_step if _has_truncated(result) else step_counting.done_step


def _has_truncated(result: Any) -> bool:
    return isinstance(result, tuple) and len(result) > 3 and _is_flag(result[3])


def _is_reward(item: Any) -> bool:
    """A number, or an array, a list or a dict of numbers: one for each env or agent."""
    if isinstance(item, dict | list | tuple):
        values = list(item.values()) if isinstance(item, dict) else item
        return bool(values) and all(_is_reward(value) for value in values)
    kind = getattr(getattr(item, "dtype", None), "kind", None)
    if kind is not None:
        return kind in "iuf"
    if hasattr(item, "is_floating_point"):  # a tensor
        return "bool" not in str(item.dtype)
    return isinstance(item, int | float) and not isinstance(item, bool)


def _is_flag(item: Any) -> bool:
    """True or False, or an array, a list or a dict of them."""
    if isinstance(item, dict | list | tuple):
        values = list(item.values()) if isinstance(item, dict) else item
        return bool(values) and all(_is_flag(value) for value in values)
    return isinstance(item, bool) or "bool" in str(getattr(item, "dtype", ""))
