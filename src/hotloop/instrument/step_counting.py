"""Counts env steps and episodes from what environments return.

Steps inside an evaluation, a region or a function with such a name, or of an env that is called `eval_env` or
the like, are no training and do not count.
Only the outermost call counts: a vector env counts its rows, while the envs inside it and the worker
processes that step them count nothing. A row that is only reset does not count as a step. The core does the
counting (`measure/twin/step_counter.py`); this module knows the libraries and handles unusual results.
"""

from __future__ import annotations

import functools
import re
import sys
import weakref
from collections.abc import Callable
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

from hotloop._util.interrupts import is_users
from hotloop.instrument import action_flow, process_facts
from hotloop.instrument.trial_patch import live_objects
from hotloop.measure.profiler import default

_evaluate = default.profile("evaluate")
_env_step = default.profile("env_step")
_counters: list[tuple[Any, bool]] = []  # and whether it counts vector envs
_observers: list[tuple[Any, bool]] = []
everything: list[Any] = []  # all counters and observers
_report: Callable[..., object] | None = None
enabled = True
trains = False  # an env was stepped outside of evaluations, or training began without any env
MAX_ENVS = 32  # kinds of envs that are noted
# Words in names of functions that play to see how good a policy is. Plain `test` would be any test function.
EVALUATION = frozenset({"eval", "evaluate", "evaluates", "evaluation", "validate", "validation"})
TESTED = frozenset({"agent", "policy", "actor", "model", "episode", "episodes"})
# Words in names of envs that are there to see how good a policy is.
EVALUATION_ENV = EVALUATION | {"val", "valid", "test", "testing"}
# Words of functions around a training loop: `train_and_evaluate`, `run_without_evaluation`.
AROUND_TRAINING = frozenset(
    {"train", "training", "trains", "learn", "learning", "fit", "main", "and", "or", "with", "without", "no"}
    | {"in", "not", "before", "after", "between", "during", "until", "while", "is", "are", "loop"}
)


ACTIONS = frozenset({"action", "actions", "act", "acts"})  # what a function gets that scores them
MAX_NAMED = 1000  # pairs of an env and a function whose names were looked at
MAX_FRAMES = 40  # that are searched for the name of an env
ENV_CLASSES = (
    ("gymnasium.core", "Env"),
    ("gymnasium.vector.vector_env", "VectorEnv"),
    ("gym.core", "Env"),
)
LIBRARIES = (
    *("gymnasium", "gym", "hotloop", "stable_baselines3", "torchrl", "tianshou", "pufferlib"),
    *("pettingzoo", "supersuit", "minatar", "rlcard"),
)
# Whether an env is there for evaluation, by its id and the function that steps it
_named: dict[tuple[int, CodeType], tuple[weakref.ref[Any], bool]] = {}
_evaluating: set[CodeType] = set()  # functions that only step such envs
_training: set[CodeType] = set()  # functions on the stack while others were stepped


def stop_counting() -> None:
    """In a worker process: the process that drives it counts its steps."""
    global enabled
    enabled = False
    for counter, _ in _counters:
        counter.counting = False


def report_to(progress: Callable[..., object] | None) -> None:
    """Pass every count to `progress`, at the price of a Python call per step; None undoes that."""
    global _report
    _report = progress
    for counter, _ in _counters:
        counter.report = progress


def counters() -> list[tuple[Any, bool]]:
    """Every counter and observer, and whether it is for vector envs."""
    return [*_counters, *_observers]


def total_steps() -> int:
    """Env steps of this process so far, each of all rows."""
    return sum(counter.calls for counter in everything)


_has_unused_env: bool | None = None


def has_unused_env() -> bool:
    """Whether an env of a known library had been made when this was asked first, which takes a moment."""
    global _has_unused_env
    if _has_unused_env is None:
        kinds = [getattr(sys.modules.get(module), name, None) for module, name in ENV_CLASSES]
        _has_unused_env = bool(live_objects(*(kind for kind in kinds if isinstance(kind, type))))
    return _has_unused_env


def went_backward() -> None:
    """A backward pass ended: before the first env step, so training learns from data it had before."""
    global trains
    if not trains and not total_steps():
        trains = True


def drop_observations() -> None:
    """Release the last observations of all envs."""
    for counter, _ in counters():
        counter.drop()


def new_observer(is_vector: bool) -> Any:
    """Keeps observations like a counter, for a library whose steps are counted in another way.

    Call it with an env and (observation, 0.0, False) after each step.
    """
    observer = default.step_counter(1, (2,))
    observer.report = lambda **counts: None
    _observers.append((observer, is_vector))
    everything.append(observer)
    return observer


_envs: dict[tuple[str, str, int], dict[str, Any]] = {}


def note_env(env: Any, num_envs: int | None = None) -> None:
    """Note how many envs one step steps, as the env itself says: `num_envs`, 1 for a single env."""
    try:
        name = str(getattr(getattr(env, "spec", None), "id", "") or "")
        key = (name, type(env).__name__, int(num_envs or getattr(env, "num_envs", 1) or 1))
    except Exception as error:  # an env may compute its attributes
        if is_users(error):
            raise
        return
    if key not in _envs and len(_envs) < MAX_ENVS:
        _envs[key] = {"id": key[0], "class": key[1], "num_envs": key[2]}
        process_facts.note("envs", list(_envs.values()))


def new_counter(reward: int, ends: tuple[int, ...], is_vector: bool, **how: Any) -> Any:
    """An `after` for steps with the reward and the ends at these positions of their result.

    `how` are further arguments of `StepCounter`.
    """

    def count_unknown(env: Any, result: Any) -> None:
        known = plain_numbers(result, reward, ends)
        if known is None:  # still a step
            (_report or default.progress)(env_steps=int(getattr(env, "num_envs", 1)))
        else:
            counter.add(env, *known)

    how.setdefault("resets_cost_a_step", _new_env)
    how.setdefault("on_unknown", count_unknown)
    counter = default.step_counter(
        reward,
        ends,
        skip_inside=_evaluate,
        **how,
    )
    counter.counting = enabled
    counter.report = _report
    _counters.append((counter, is_vector))
    everything.append(counter)
    return counter


def forget_after_reset(counter: Any) -> Callable[[Any, Any], None]:
    """An `after` for resets; a reset inside a step is part of that step."""

    def forget(env: Any, result: Any) -> None:
        if not _env_step.is_open():
            counter.forget(env, result)
            _note_reset(env)
            is_evaluation_env(env, sys._getframe(1))  # before the policy is asked for the first time

    return forget


_reset_at: dict[int, int] = {}  # id of an env -> env steps of this process before its last reset


def _note_reset(env: Any) -> None:
    if len(_reset_at) >= MAX_NAMED:
        _reset_at.clear()
    _reset_at[id(env)] = total_steps()


def was_reset(env: int) -> bool:
    """Whether no env was stepped since this one was reset."""
    return _reset_at.get(env) == total_steps()


@functools.lru_cache(maxsize=4096)
def evaluates(function: str) -> bool:
    """Whether a function is named after evaluation: `evaluate_policy`, `_run_eval`, `test_agent`."""
    words = function.lower().strip("_").split("_")
    if not AROUND_TRAINING.isdisjoint(words):
        return False
    tests = any(word == "test" and after in TESTED for word, after in pairwise(words))
    return tests or not EVALUATION.isdisjoint(words)


def is_evaluation_env(env: Any, frame: FrameType | None) -> bool:
    """Whether the user's code calls an env `eval_env`, `val_env`, `self.test_envs` or the like.

    A name without such a word in the same function decides against it: `env = test_env = make()`.
    """
    frames: list[FrameType] = []
    while frame is not None and len(frames) < MAX_FRAMES:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in LIBRARIES:
            frames.append(frame)
        frame = frame.f_back
    if not frames:
        return False
    key = id(env), frames[0].f_code
    known = _named.get(key)
    if known is not None and known[0]() is env:
        return known[1]
    found = False
    for one in frames:
        names = _names_of(env, one)
        if names and all(_says_evaluation(name) for name in names):
            found = True
            if one.f_code.co_name != "<module>":
                _evaluating.add(one.f_code)
            break
    if len(_named) >= MAX_NAMED:
        _named.clear()
    try:
        _named[key] = weakref.ref(env), found
    except TypeError as error:  # a class with slots: looked at again each time
        if is_users(error):
            raise
    return found


def _names_of(env: Any, frame: FrameType) -> set[str]:
    """Names that a function, or the object whose method it is, has for an env."""
    code, known = frame.f_code, frame.f_locals
    names = [*code.co_names, *(() if known is frame.f_globals else known)]
    found = {name for name in names if known.get(name, frame.f_globals.get(name)) is env}
    owner = known.get("self")
    if owner is not None and owner is not env:
        found |= {name for name, value in getattr(owner, "__dict__", {}).items() if value is env}
    return found - {"self"}


@functools.lru_cache(maxsize=1024)
def _says_evaluation(name: str) -> bool:
    """`val_env`, `evalEnv`, `envs_test`."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
    return not EVALUATION_ENV.isdisjoint(words)


def in_evaluation(frame: FrameType | None) -> bool:
    """Whether a function on the stack is named after evaluation.

    `evaluate` of a network is not meant, nor one that gets actions: those are parts of a loss.
    """
    module = getattr(sys.modules.get("torch"), "nn", None)
    while frame is not None:
        code = frame.f_code
        if evaluates(code.co_name) or (code.co_name == "test" and _gets_one_tested(code)):
            has_self = code.co_argcount > 0 and code.co_varnames[0] == "self"
            of_network = has_self and module and isinstance(frame.f_locals.get("self"), module.Module)
            if not of_network and not _gets_actions(code):
                return True
        frame = frame.f_back
    return False


def _gets_one_tested(code: CodeType) -> bool:
    """`test(actor)`: like `test_agent(env)`."""
    return not TESTED.isdisjoint(name.lower() for name in code.co_varnames[: code.co_argcount])


def _gets_actions(code: CodeType) -> bool:
    """`evaluate(self, observations, actions)` of PPO: log-probabilities for the loss."""
    given = code.co_varnames[: code.co_argcount]
    return any(not ACTIONS.isdisjoint(name.lower().split("_")) for name in given)


def evaluates_only(frame: FrameType | None) -> bool:
    """Whether a function on the stack is named after evaluation, or was seen to step such envs only."""
    found = in_evaluation(frame)
    while trains and frame is not None and not found:
        found = frame.f_code in _evaluating and frame.f_code not in _training
        frame = frame.f_back
    return found


def plain_numbers(result: Any, reward: int, ends: tuple[int, ...]) -> tuple[list[float], list[bool]] | None:
    """Rewards and ends of each row of a result in an unusual form; None when it cannot be read.

    Reads lists, CPU tensors and columns `[rows, 1]`; takes a result of four items as (observation, reward,
    done, info). Values on an accelerator are not read, since that would synchronise.
    """
    if not isinstance(result, (tuple, list)) or len(result) <= reward:
        return None
    if len(result) == 4:
        ends = ends[:1]
    if len(result) <= max(ends):
        return None
    try:
        rewards, *flags = (_flat(result[at]) for at in (reward, *ends))
        if len({len(rewards), *map(len, flags)}) != 1:
            return None
        return [float(r) for r in rewards], [any(row) for row in zip(*flags, strict=True)]
    except (TypeError, ValueError) as error:
        if is_users(error):
            raise
        return None


def _flat(item: Any) -> list[Any]:
    """The values of a number, a list or an array of any shape, as a flat list."""
    device = getattr(item, "device", "cpu")
    if getattr(device, "type", getattr(device, "platform", device)) != "cpu":
        raise ValueError(f"on {device}")
    method = getattr(type(item), "tolist", None)
    if method is not None:  # of a tensor: the original method, since ours would record a transfer
        item = getattr(method, "__wrapped__", method)(item)
    if not isinstance(item, (list, tuple)):
        return [item]
    return [value for part in item for value in (_flat(part) if isinstance(part, (list, tuple)) else [part])]


def is_evaluation(env: Any, frame: FrameType) -> bool:
    """Whether an env that begins to be stepped is played to see how good the policy is.

    Evolution strategies train by what others call evaluating: an evaluation comes after steps that are none,
    or after gradients from data that no env of this run gave.
    """
    global trains
    action_flow.note_step(frame)
    found = is_evaluation_env(env, frame) or in_evaluation(frame)
    trains = trains or not found
    if not found:
        above: FrameType | None = frame
        while above is not None:
            _training.add(above.f_code)
            above = above.f_back
    if found and trains and not process_facts.has("evaluates"):
        process_facts.note("evaluates", True)
    return found and trains


def _new_env(env: Any) -> bool | None:
    """Called once for each env, and after resets; a reset costs no step. None: an evaluation, not counted."""
    if is_evaluation(env, sys._getframe(1)):
        return None
    note_env(env)
    return False


def _new_vector_env(env: Any) -> bool | None:
    """As above; whether each row of a Gymnasium vector env spends a step on its reset."""
    if is_evaluation(env, sys._getframe(1)):
        return None
    note_env(env)
    mode = getattr(env, "autoreset_mode", None) or getattr(env, "metadata", {}).get("autoreset_mode")
    return getattr(mode, "value", mode) in (None, "NextStep", "NEXT_STEP")


# Gymnasium's steps return (observation, reward, terminated, truncated, info).
single_step = new_counter(1, (2, 3), is_vector=False)
done_step = new_counter(1, (2,), is_vector=False)  # (observation, reward, done[, info]), as it was before
vector_step = new_counter(1, (2, 3), is_vector=True, resets_cost_a_step=_new_vector_env)
act_step = new_counter(
    0, (1,), is_vector=False
)  # (reward, done[, info]): envs that are asked for observations
single_reset = forget_after_reset(single_step)
vector_reset = forget_after_reset(vector_step)
