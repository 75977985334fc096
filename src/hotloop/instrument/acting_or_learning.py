"""Is a forward pass acting or learning? Decided by the lines that led to it and by what it is given.

Gradient mode tells nothing: scripts act with gradients on and compute targets with gradients off. A call is
acting when it gets the latest observation of an env and the env is stepped before the same lines call again.
The lines are those of the whole call path, since acting and learning often share a method of the policy.

| region | what the call does |
| --- | --- |
| `policy_forward` | the first network called to choose an action |
| `policy_rest` | further networks called for the same action: heads, the critic |
| `policy_value` | gets the latest observation, but another call chooses the action (bootstrapping) |
| `learner_forward` | everything else: losses, targets, old log-probabilities |
| `evaluate_forward` | as `policy_forward`, in a function named after evaluation |

What an env returns is compared with what a network gets, by values on a sample; where a script transforms
observations in between, the size of the batch and the order of calls decide. A call that comes after the step
in a round of the loop, such as one for the priority of the new transition, acts only if what was read from
tensors became the action (`action_flow.py`). Once 32 calls of a path agree,
the core stops asking and only checks now and then; a path that is both is judged call by call.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

from hotloop._util.interrupts import is_users
from hotloop.instrument import action_flow, backward_passes, method_patches, process_facts, step_counting
from hotloop.instrument.action_flow import Evidence
from hotloop.measure.profiler import default

policy_forward = default.profile("policy_forward")
policy_rest = default.profile("policy_rest", "policy")
policy_value = default.profile("policy_value", "policy")
learner_forward = default.profile("learner_forward")
evaluate_forward = default.profile("evaluate_forward", "evaluation")
FORWARD = (policy_forward, policy_rest, policy_value, learner_forward, evaluate_forward)
evaluate = default.profile("evaluate")
collector_setup = default.profile("collector_setup", "framework")  # TorchRL's try the policy once

SETTLED_AFTER = 32  # calls that agree
MAX_CHANGES = 4  # of a path's answer; with more it is judged call by call
MAX_PATHS = 4096  # remembered; recursion can make any number
MAX_ARRAYS = 8  # of the arguments of a call that are looked at
MAX_BATCHES = 64  # sizes of batches that are remembered
MAX_WINDOWS = 128  # opened at the calls of one path
MAX_LOOKS = 64  # calls since the last env step that are remembered
SAMPLE = 64  # values that are compared


@dataclass(slots=True)
class Site:
    """What is known about the calls of one path."""

    evaluates: bool  # a function on the path is named after evaluation
    once: bool = False  # and calls the network once: no loop around the call
    backward_passes: int = 0  # of the run when it was called first
    answer: Any = None  # the region of its last call
    agree: int = 0  # calls in a row with that answer
    changes: int = 0
    leader: int = 0  # path of the call before it that acted on the same observation; 0: none did
    env: int = 0  # id of the env whose observation it got last
    steps: int = -1  # env steps at its last call
    acts: bool = False  # an env step followed, and no other call came in between
    went_backward: bool = False  # a backward pass followed before any env step
    width: int = 0  # values in each row that it was given when it acted
    entry: int = -1  # which observation of several agents it got
    reads: int = -1  # from tensors before its last call, where no env is known
    windows: int = 0  # opened at its calls
    overtaken: int = 0  # calls after which another one got the same observation and chose the action
    actions: Evidence = field(default_factory=Evidence)  # that followed its calls

    def is_overtaken(self) -> bool:
        """Whether others choose the actions after it."""
        return bool(self.overtaken) and self.actions.differed > 3 * self.actions.agreed


class Look(NamedTuple):
    """A call since the last env step."""

    site: Site
    got: int  # 2: the latest observation, 1: something of its size, 0: something else
    behind: bool  # the step, in a round of the loop
    entry: int
    reads: int  # from tensors in this window, before it


_sites: dict[int, Site] = {}
settled: dict[int, Any] = {}  # path -> region; the core looks here first
_paused: dict[int, Any] = {}  # what is settled, while a window is open: all calls are to be seen then
_given_raw: set[int] = set()  # ids of envs whose observations reach a policy unchanged
_teams: set[int] = set()  # ids of envs whose agents have an observation and an action each
_looks: list[Look] = []
_since_step: list[Site] = []  # looked at since the env step with this number
_since_step_at = -1
_policy_rows: set[int] = set()  # observations in one acting call
_passes_before = 0  # the last reset
_learner_batches: set[int] = set()  # sizes of batches seen with gradients on, where no env is known


def reset() -> None:
    """Forget everything learnt so far."""
    global _since_step_at, _passes_before
    for known in (
        _sites,
        settled,
        _paused,
        _given_raw,
        _teams,
        _looks,
        _since_step,
        _policy_rows,
        _learner_batches,
    ):
        known.clear()
    action_flow.reset()
    _since_step_at, _passes_before = -1, backward_passes.counter.calls


def pick(path: int, previous: int, module: Any = None, *args: Any, **kwargs: Any) -> Any:
    """The region of a forward pass; `Region.wrap` explains the paths."""
    if collector_setup.is_open():
        return None
    frame, site = sys._getframe(1), _sites.get(path)
    if path in _paused and site is not None:
        return _watched(site, path, list(_arrays((args, kwargs))), frame)
    if site is None:
        plays = step_counting.trains or not step_counting.total_steps()
        site = Site(plays and step_counting.evaluates_only(frame))
        if site.evaluates:
            site.once, site.backward_passes = not _is_in_a_loop(frame), _backward_passes()
        if len(_sites) < MAX_PATHS:
            _sites[path] = site
    if site.once and site.agree == SETTLED_AFTER - 1:
        # It judges one position of a search, say: called more often than anything is learnt.
        site.evaluates = _backward_passes() - site.backward_passes >= site.agree
    with action_flow.reads_of_ours():
        answer = _judge(site, path, previous, list(_arrays((args, kwargs))), frame)
    if answer is site.answer:
        site.agree += 1
        if site.agree == SETTLED_AFTER and site.changes <= MAX_CHANGES and path in _sites:
            (_paused if _paused else settled)[path] = answer
    else:
        settled.pop(path, None)
        _paused.pop(path, None)
        site.changes += site.answer is not None
        site.answer, site.agree = answer, 1
    return answer


def _went_backward(passes: int) -> int:
    """A backward pass ended: what was called since the last env step did not lead to a step."""
    step_counting.went_backward()
    if _since_step and _since_step_at == step_counting.total_steps():
        for site in _since_step:
            site.went_backward = True
    _since_step.clear()
    action_flow.close()  # what acted was called before
    return backward_passes.NEVER  # before another call is looked at


backward_passes.listen(_went_backward)


def _backward_passes() -> int:
    """Of this run, or since the last reset."""
    calls: int = backward_passes.counter.calls
    return calls - _passes_before


def _is_in_a_loop(frame: FrameType | None) -> bool:
    """Whether a function named after evaluation, or one that it calls on the way here, loops around it."""
    while frame is not None:
        if any(begin <= frame.f_lasti <= end for begin, end in action_flow.loops_of(frame.f_code)):
            return True
        if step_counting.evaluates(frame.f_code.co_name):
            return False
        frame = frame.f_back
    return True  # named by what it steps: whole episodes


def _judge(site: Site, path: int, previous: int, given: list[Any], frame: FrameType) -> Any:
    grad = sys.modules["torch"].is_grad_enabled()
    found = _nearest_env(given)
    if found is None:
        return _without_env(site, given, grad)
    counter, env, raw, rows, entry = found
    fits = rows > 0
    if evaluate.is_open():
        return policy_forward
    if site.evaluates and not grad:
        return evaluate_forward
    led = _led_to_step(site, path, counter)
    site.env = env
    before = _sites.get(previous)
    width = _width(given)
    if previous == path and site.answer in (policy_forward, policy_rest) and not raw and width != site.width:
        return policy_rest  # `for layer in self.layers: x = layer(x)`
    if raw:
        _given_raw.add(env)
    elif env in _given_raw:  # its policy gets observations as they are, so this is no observation
        rows = 0
    behind = _look(site, counter, env, (raw, rows > 0, entry), frame)
    if raw and env in _teams and entry >= 0:
        others = {look.entry for look in _looks[:-1] if look.got == 2}
        another = entry not in others and (bool(others) or site.answer is policy_forward)
        if another:  # of the agents, which choose one action each
            before, site.acts = None, not behind
    if before is not None and (fits or before.answer is policy_rest) and not (grad and not fits):
        leader = before.leader or previous
        if before.answer in (policy_forward, policy_rest) and leader != path:
            site.leader = leader
            return policy_rest
    if (behind and not site.actions.chooses()) or site.is_overtaken():
        return policy_value if not grad and (raw or rows > 0) else learner_forward
    fits = rows > 0
    last = counter.path and _sites.get(_leader(counter.path))
    someone_else_acts = bool(last and last is not site and last.answer is policy_forward and last.env == env)
    if behind or site.actions.chooses() or (led and not someone_else_acts and (fits or not grad)):
        site.acts = True
    if raw or fits:
        if site.acts or not (someone_else_acts or site.answer is policy_value):
            if site.evaluates:
                return evaluate_forward
            _note_rows(rows)
            site.width = width
            return policy_forward
        if not grad:
            return policy_value
    if site.acts and not grad and not site.went_backward:  # planning: many states for one action
        return policy_forward
    return learner_forward


def _look(site: Site, counter: Any, env: int, got: tuple[bool, bool, int], frame: FrameType) -> bool:
    """Note a call that may act; returns whether it comes behind the step that gave the observation."""
    raw, fits, entry = got
    behind = not step_counting.was_reset(env) and action_flow.is_behind_step(frame)
    wanted = site.windows < MAX_WINDOWS and site.agree < SETTLED_AFTER and not method_patches.compiles()
    if wanted and action_flow.open_window(_resume, anew=not _looks):
        backward_passes.tell_next()  # closes it
        site.windows += 1
        _paused.update(settled)
        settled.clear()
    if action_flow.is_open():
        action_flow.tell(counter, _stepped)
        if len(_looks) < MAX_LOOKS:
            _looks.append(Look(site, 2 * raw or int(fits), behind, entry, action_flow.read_so_far()))
    return behind


def _watched(site: Site, path: int, given: list[Any], frame: FrameType) -> Any:
    """A call of a settled path while a window is open."""
    if _paused[path] in (policy_forward, policy_rest, policy_value):
        with action_flow.reads_of_ours():
            found = _nearest_env(given)
            if found is not None:
                counter, env, raw, rows, entry = found
                _look(site, counter, env, (raw, rows > 0 and env not in _given_raw, entry), frame)
    return _paused[path]


def _resume() -> None:
    """The window is closed: the core decides again where that is settled."""
    settled.update(_paused)
    _paused.clear()


def _stepped(env: Any, action: Any, reads: list[Any], complete: bool) -> None:
    """An env was stepped: the first call that got its observation chose the action, if the numbers agree."""
    _note_team(env, action)
    best = max((look.got for look in _looks), default=0)
    looks = [look for look in _looks if look.got == best]
    _looks.clear()
    looks = [look for look in looks if not look.behind] or looks
    if not looks or (action_flow.is_unknown(action) and not complete):
        return
    first, *others = looks
    before = first.site.actions.agreed
    first.site.actions.add(action, reads[first.reads : others[0].reads if others else None])
    if others and others[-1].site is not first.site and first.site.actions.agreed == before:
        chosen = action_flow.agreement(action, reads[others[-1].reads :], Evidence()) > 0
        first.site.overtaken += chosen
        alone = all(look.site is first.site or look.site.answer is not policy_forward for look in others)
        first.site.acts |= chosen and alone and best > 0 and not first.behind


def _note_team(env: Any, action: Any) -> None:
    """An action for each name that has an observation."""
    if not isinstance(action, dict) or len(action) < 2:
        return
    for counter, _ in step_counting.counters():
        for known, observation, _ in counter.recent():
            if known == id(env) and isinstance(observation, dict) and action.keys() <= observation.keys():
                _teams.add(known)


def _width(given: list[Any]) -> int:
    return int(given[0].shape[-1]) if given and len(given[0].shape) else 0


def _note_rows(rows: int) -> None:
    """Note how many observations one acting call gets; scripts may stack those of several envs."""
    if rows not in _policy_rows and len(_policy_rows) < MAX_BATCHES:
        _policy_rows.add(rows)
        process_facts.note("policy_rows", sorted(_policy_rows))


def _leader(path: int) -> int:
    site = _sites.get(path)
    return site.leader or path if site is not None else path


def _led_to_step(site: Site, path: int, counter: Any) -> bool:
    """Whether the env was stepped after the site's last call, with no other site's call in between."""
    global _since_step_at
    steps = step_counting.total_steps()
    led = site.steps >= 0 and steps != site.steps and not site.went_backward and _leader(counter.path) == path
    site.steps, site.went_backward = steps, False
    if steps != _since_step_at:
        _since_step.clear()
        _since_step_at = steps
    _since_step.append(site)
    backward_passes.tell_next()
    return led


def _without_env(site: Site, given: list[Any], grad: bool) -> Any:
    """No env is known: what acts is called without gradients, on batches of another size than the loss."""
    if not grad and (evaluate.is_open() or site.evaluates):
        return evaluate_forward
    nothing_learnt = not _learner_batches and not _backward_passes()
    if not grad and nothing_learnt and not site.acts and step_counting.has_unused_env():
        # Training begins with data that it has, unless what is returned is read: for an env elsewhere.
        site.acts = 0 <= site.reads < action_flow.read_so_far()
        if not method_patches.compiles():
            action_flow.open_window(_resume, anew=False)
            backward_passes.tell_next()
        site.reads = action_flow.read_so_far()
        if not site.acts:
            return learner_forward
    batch = max((int(a.shape[0]) if len(a.shape) > 1 else 1 for a in given), default=1)
    if grad and len(_learner_batches) < MAX_BATCHES:
        _learner_batches.add(batch)
    return learner_forward if grad or batch in _learner_batches else policy_forward


def _nearest_env(given: list[Any]) -> tuple[Any, int, bool, int, int] | None:
    """The env whose observation was given: its counter, its id, whether unchanged, how many rows, and which.

    The newest env when none matches, with 0 rows when the sizes do not fit; None when no env is known.
    """
    numbers = [number for number in map(_as_numbers, given) if number is not None]
    newest: tuple[Any, int, bool, int, int] | None = None
    for counter, is_vector in step_counting.counters():
        kept = counter.recent()
        for at, (env, observation, _) in enumerate(kept):
            seen = [number for number in map(_as_numbers, _arrays(observation)) if number is not None]
            for entry, y in enumerate(seen):
                if any(_equal(x, y, is_vector) for x in numbers):
                    whole = is_vector and y.ndim and any(x.size == y.size for x in numbers)
                    return counter, env, True, len(y) if whole else 1, entry
            if at == 0:
                rows = max((_fitting_rows(x, y, is_vector) for x in given[:1] for y in seen), default=0)
                if newest is None or rows > newest[3]:
                    newest = counter, env, False, rows, -1
        if not is_vector and len(kept) > 1:
            for x in numbers:
                if _rows_equal(x, kept):
                    return counter, kept[0][0], True, len(x), -1
    return newest


def _fitting_rows(given: Any, seen: Any, is_vector: bool) -> int:
    """The rows of an array that has as many as there are envs, else 0."""
    shape = given.shape
    if is_vector:
        fits = len(shape) > 0 and len(seen.shape) > 0 and int(shape[0]) == int(seen.shape[0])
        return int(shape[0]) if fits else 0
    return int(len(shape) <= 1 or int(shape[0]) == 1)


def _equal(given: Any, seen: Any, is_vector: bool) -> bool:
    """Whether an array holds an observation, or that of one env among several."""
    if given.size == seen.size:
        return _close(_sample(given), _sample(seen))
    if is_vector and seen.ndim and given.size and given.size * len(seen) == seen.size:
        values = _sample(given)
        return any(_close(values, _sample(row)) for row in seen)
    return False


def _rows_equal(given: Any, kept: list[tuple[int, Any, int]]) -> bool:
    """Whether the rows are the observations of several envs that are stepped one by one."""
    if given.ndim < 2 or not 1 < len(given) <= len(kept):
        return False
    rows = [_sample(row) for row in given]
    for _, observation, _ in kept[:2]:
        seen = [_sample(n) for n in map(_as_numbers, _arrays(observation)) if n is not None]
        if not any(len(row) == len(one) and _close(row, one) for row in rows for one in seen):
            return False
    return True


def _sample(numbers: Any) -> Any:
    flat = numbers.reshape(-1)
    return flat[:: max(1, flat.size // SAMPLE)].astype(float)


def _close(a: Any, b: Any) -> bool:
    """Equal up to the rounding of a conversion to float32, or scaled from bytes to 0..1."""
    size = abs(b) * 1e-4 + 1e-6
    return bool((abs(a - b) <= size).all() or (b.any() and (abs(a * 255 - b) <= size * 255).all()))


def _arrays(value: Any, depth: int = 0) -> Iterator[Any]:
    """Tensors and arrays in arguments or an observation, in dicts and lists too."""
    found: Iterator[Any] = iter(())
    if isinstance(value, (int, float)):
        found = iter(_array_of(value))
    elif hasattr(value, "keys") and depth < 4:
        found = (a for name in list(value.keys()) for a in _arrays(value[name], depth + 1))
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        found = iter((value,))
    elif isinstance(value, (tuple, list)) and depth < 4:
        found = (a for item in value[:MAX_ARRAYS] for a in _arrays(item, depth + 1))
    for count, array in enumerate(found):
        if count == MAX_ARRAYS:
            return
        yield array


def _array_of(number: float) -> list[Any]:
    numpy = sys.modules.get("numpy")
    return [] if numpy is None else [numpy.asarray(number)]


def _as_numbers(array: Any) -> Any:
    """A NumPy array with the same values; None when they cannot be read without a copy from a device."""
    if hasattr(array, "detach"):
        try:
            array = array.detach().numpy()
        except (TypeError, RuntimeError, ValueError, NotImplementedError) as error:
            if is_users(error):
                raise
            return None
    return array if getattr(getattr(array, "dtype", None), "kind", "") in ("b", "i", "u", "f") else None
