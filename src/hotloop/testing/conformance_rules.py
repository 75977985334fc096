"""The rules of the conformance kit. Each function returns what it checked.

It raises `ConformanceError` if the rule is broken, `Unchecked` if it cannot be checked.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from hotloop.testing.conformance_case import Case, ConformanceError, Unchecked
from hotloop.testing.conformance_copies import copies, saved_state
from hotloop.testing.conformance_episodes import autoreset, flags, time_limit
from hotloop.testing.conformance_twin import twin
from hotloop.testing.trajectories import Moment, leaves, moment_of, row_of, same

Rule = Callable[[Case], str]
_AFTER_AN_END = 30  # steps compared after a reset while rows wait for theirs
_RESET_EVERY = 3  # steps between two resets in the middle of an episode


def spaces(case: Case) -> str:
    """Spaces are batches of the single spaces; results are in them and have their dtypes."""
    with case.env() as env:
        _equal("spaces", "num_envs", env.num_envs, case.num_envs, "Create exactly num_envs rows.")
        for name in ("observation_space", "action_space"):
            _equal(
                "spaces",
                name,
                getattr(env, name),
                batch_space(getattr(env, f"single_{name}"), case.num_envs),
                f"Make it with gymnasium.vector.utils.batch_space(single_{name}, num_envs).",
            )
        space = env.observation_space
        declared = getattr(env, "rewards", None)
    dtype = getattr(declared, "dtype", None) if case.reward_dtype is None else np.dtype(case.reward_dtype)
    for _, moments in case.all_recordings():
        for step, moment in enumerate(moments):
            if dtype is None and moment.rewards is not None:
                dtype = getattr(moment.rewards, "dtype", None)  # must stay the same
            _check_types(case.num_envs, case.ignore_infos, space, moment, step, dtype)
    with case.env(1) as env:
        alone = env.observation_space
    for moments in case.recordings(case.modes()[0], 1).values():
        for step, moment in enumerate(moments):
            _check_types(1, case.ignore_infos, alone, moment, step, dtype)
    return f"{len(case.all_recordings())} plays of {case.steps} steps, rewards {dtype}"


def _check_types(
    num_envs: int, ignored: frozenset[str], space: Any, moment: Moment, step: int, reward_dtype: Any
) -> None:
    """Check one moment of a batch of `num_envs` rows."""
    rule, rows = "spaces", (num_envs,)
    expected = dict(leaves(space.sample()))
    found = dict(leaves(moment.observations))
    _equal(
        rule,
        "parts of the observation",
        sorted(found),
        sorted(expected),
        "Return exactly the parts that the space has.",
    )
    for path, array in found.items():
        if isinstance(expected[path], np.ndarray):
            remedy = "Return arrays with the dtype and shape of the space."
            _equal(rule, f"type of observations{path}", array.dtype, expected[path].dtype, remedy, step)
            _equal(rule, f"shape of observations{path}", array.shape, expected[path].shape, remedy, step)
    if not space.contains(moment.observations):
        raise ConformanceError(
            rule,
            "observations are not in observation_space",
            "Widen the bounds of the space or clip the observations.",
            step=step,
            got=moment.observations,
            expected=space,
        )
    if not isinstance(moment.infos, dict):
        raise ConformanceError(
            rule, "infos", "Return a dict.", step=step, got=type(moment.infos), expected=dict
        )
    _check_infos(num_envs, ignored, moment.infos, "infos", step)
    _check_action_mask(moment, step)
    if moment.rewards is None:
        return
    if not np.issubdtype(moment.rewards.dtype, np.floating):
        raise ConformanceError(
            rule, "type of rewards", "Use floats.", step=step, got=moment.rewards.dtype, expected="floats"
        )
    remedy = "Return rewards in the type that the environment's array `rewards`, or reward_dtype, declares."
    _equal(rule, "type of rewards", moment.rewards.dtype, reward_dtype, remedy, step)
    _equal(rule, "shape of rewards", moment.rewards.shape, rows, "One reward for each row.", step)
    if not np.isfinite(moment.rewards).all():
        row = int(np.isfinite(moment.rewards).argmin())
        raise ConformanceError(
            rule,
            f"the reward is {'not a number' if np.isnan(moment.rewards[row]) else 'infinite'}",
            "Look for a division by 0 and for inf - inf where it is computed.",
            row=row,
            step=step,
        )
    for name in ("terminated", "truncated"):
        flag = getattr(moment, name)
        got = (getattr(flag, "dtype", None), getattr(flag, "shape", None))
        _equal(rule, name, got, (np.dtype(bool), rows), "One bool for each row.", step)


def _check_action_mask(moment: Moment, step: int) -> None:
    """Check that every row whose episode goes on may do something."""
    mask = moment.infos.get("action_mask")
    if mask is None or not isinstance(mask, np.ndarray) or mask.ndim < 2:
        return
    allowed = mask.reshape(len(mask), -1).any(axis=1)
    going_on = ~moment.ended if moment.rewards is not None else np.ones(len(mask), dtype=bool)
    for row in np.flatnonzero(~allowed & going_on).tolist():
        raise ConformanceError(
            "spaces",
            "action_mask allows no action and the episode goes on",
            "Allow an action that waits, or end the episode.",
            row=row,
            step=step,
        )


def _check_infos(
    num_envs: int, ignored: frozenset[str], infos: dict[str, Any], where: str, step: int
) -> None:
    """Check that every info, also inside dicts, has one entry for each row."""
    for name, values in infos.items():
        place = f"{where}[{name!r}]"
        if isinstance(values, dict):
            _check_infos(num_envs, ignored, values, place, step)
        elif name.startswith("_"):
            remedy = "A mask `_name` is a bool array with one entry for each row."
            got = (getattr(values, "dtype", None), getattr(values, "shape", None))
            _equal("spaces", place, got, (np.dtype(bool), (num_envs,)), remedy, step)
        elif name not in ignored:
            remedy = (
                "An info is an array or a list with one entry for each row (what is one for all rows can be "
                f"an attribute of the environment), or pass ignore_infos=({name!r},)."
            )
            is_batch = isinstance(values, (list, tuple)) or np.ndim(values) > 0
            length = len(values) if is_batch else "no rows"
            _equal("spaces", f"length of {place}", length, num_envs, remedy, step)


def same_seed(case: Case) -> str:
    """Same seed and actions, same results: in another environment, after another run and after an end."""
    remedy = (
        "reset(seed=...) must reset everything that affects later steps: "
        "draw random numbers from the seeded generator only, and forget the previous episode."
    )
    for mode in case.modes():
        recorded = case.recordings(mode)
        with case.env(mode=mode) as env:
            for seed in reversed(case.seeds):
                actions = [moment.actions for moment in recorded[seed][1:]]
                again = case.play(env, seed, mode=mode, steps=case.steps, actions=actions)
                case.compare("same_seed", again, recorded[seed], remedy)
            # Options that say nothing change nothing.
            observations, infos = copy.deepcopy(env.reset(seed=case.seeds[0], options={}))
            start = Moment(None, observations, None, None, None, infos)
            case.compare(
                "same_seed",
                [start],
                recorded[case.seeds[0]][:1],
                "reset(seed=..., options={}) must do what reset(seed=...) does.",
            )
            # Once more, where rows wait for their reset.
            moments = recorded[case.seeds[0]]
            first_end = next((step for step, moment in enumerate(moments) if moment.ended.any()), 0)
            env.reset(seed=case.seeds[0])
            for moment in moments[1 : first_end + 1]:
                env.step(copy.deepcopy(moment.actions))
            actions = [moment.actions for moment in moments[1 : _AFTER_AN_END + 1]]
            again = case.play(env, case.seeds[0], mode=mode, steps=len(actions), actions=actions)
            case.compare("same_seed", again, moments[: len(actions) + 1], remedy)
    return f"seeds {_listed(case.seeds)} twice, in two environments, in {len(case.modes())} autoreset modes"


def instances(case: Case) -> str:
    """Two environments that step in turn do not affect each other."""
    remedy = "Environments must share no state: keep arrays and generators in the instance, not in the class."
    for mode in case.modes():
        recorded = case.recordings(mode)
        plays = [recorded[case.seeds[0]], recorded[case.seeds[-1]]]
        with case.env(mode=mode) as one, case.env(mode=mode) as other:
            pairs = list(zip((one, other), (case.seeds[0], case.seeds[-1]), plays, strict=True))
            for env, seed, moments in pairs:
                case.compare(
                    "instances", case.play(env, seed, mode=mode, steps=0, actions=[]), moments[:1], remedy
                )
            for step in range(1, len(plays[0])):
                for env, _, moments in pairs:
                    stepped = case.go_on(
                        env, [moments[step].actions], disabled=mode == AutoresetMode.DISABLED
                    )
                    case.compare("instances", stepped, [moments[step]], remedy, first_step=step)
    return f"two environments in turn, in {len(case.modes())} autoreset modes"


def different_seeds(case: Case) -> str:
    """Different seeds, and different rows of a batch, give different results for the same actions."""
    if len(case.seeds) < 2:
        raise Unchecked("this needs at least two seeds")
    mode = case.modes()[0]
    first = case.recordings(mode)[case.seeds[0]]
    actions = [moment.actions for moment in first[1:]]
    with case.env(mode=mode) as env:
        for seed in case.seeds[1:]:
            other = case.play(env, seed, mode=mode, steps=case.steps, actions=actions)
            try:
                case.compare("different_seeds", other, first, "")
            except ConformanceError:
                continue
            raise ConformanceError(
                "different_seeds",
                f"seeds {case.seeds[0]} and {seed} give the same results for {case.steps} steps",
                "Seed the generator in reset(seed=...); if nothing in the environment is random, "
                "pass skip=('different_seeds',).",
            )
    return f"seeds {_listed(case.seeds)} with the same actions"


def stream_continues(case: Case) -> str:
    """reset() without a seed continues the random stream; it neither reseeds nor restarts it."""
    mode, seed, steps = case.modes()[0], case.seeds[0], min(case.steps, 30)
    actions = [moment.actions for moment in case.recordings(mode)[seed][1 : steps + 1]]

    def three_plays() -> list[list[Moment]]:
        with case.env(mode=mode) as env:
            return [case.play(env, s, mode=mode, steps=steps, actions=actions) for s in (seed, None, None)]

    once, again = three_plays(), three_plays()
    for got, expected in zip(again, once, strict=True):
        case.compare(
            "stream_continues",
            got,
            expected,
            "reset() without a seed must continue with the generator of reset(seed=...), not create one.",
        )
    if case.random and all(_alike(case, one, once[0]) for one in once[1:]):
        raise ConformanceError(
            "stream_continues",
            f"reset() without a seed repeats the results of reset(seed={seed})",
            "Do not touch the generator if seed is None.",
        )
    return "two resets without a seed after one with a seed, in two environments"


def batch_size(case: Case) -> str:
    """Row i of a batch seeded with s equals a single row seeded with s + i.

    With autoreset disabled, `reset_mask` checks it.
    """
    modes = [mode for mode in case.modes() if mode != AutoresetMode.DISABLED]
    if not modes:
        raise Unchecked("autoreset is always disabled; see the rule reset_mask")
    for mode in modes:
        recorded = case.recordings(mode)
        with case.env(1, mode) as env:
            for seed, moments in recorded.items():
                for row in range(case.num_envs):
                    actions = [moment.actions[row : row + 1] for moment in moments[1:]]
                    alone = case.play(env, seed + row, mode=mode, steps=case.steps, actions=actions)
                    case.compare(
                        "batch_size",
                        moments,
                        alone,
                        "A row may depend on its own seed and actions only: give each row a generator "
                        "seeded with seed + row (or pass skip=('batch_size',) if they share one by design).",
                        rows=[(row, 0)],
                    )
    lists = _check_lists_of_seeds(case, modes[0])
    return f"rows of {case.num_envs} against rows alone, in {len(modes)} autoreset modes; {lists}"


def _check_lists_of_seeds(case: Case, mode: Any) -> str:
    """Check that a list seeds each row by itself; say if the environment takes none."""
    seed, steps = case.seeds[0], min(case.steps, 30)
    moments = case.recordings(mode)[seed][: steps + 1]
    rows = list(range(case.num_envs))
    seeds = [seed + row for row in reversed(rows)]
    with case.env(mode=mode) as env:
        try:
            env.reset(seed=seeds)
        except Exception as refused:  # Gymnasium leaves it to the environment
            return f"lists of seeds are refused ({type(refused).__name__})"
        actions = [moment.actions[::-1].copy() for moment in moments[1:]]
        case.compare(
            "batch_size",
            case.play(env, seeds, mode=mode, steps=steps, actions=actions),
            moments,
            f"reset(seed={seeds}) must seed each row with its own number.",
            rows=list(zip(rows, reversed(rows), strict=True)),
        )
    return "lists of seeds, too"


def reset_mask(case: Case) -> str:
    """With autoreset disabled, `reset_mask` does to its rows what reset() does to one row, and no more."""
    mode = AutoresetMode.DISABLED
    if mode not in case.modes():
        raise Unchecked("autoreset cannot be disabled")
    ends = 0
    for seed in case.seeds:
        _check_reset_midway(case, seed)
    with case.env(1, mode) as env:
        for seed, moments in case.recordings(mode).items():
            for row in range(case.num_envs):
                env.reset(seed=seed + row)
                alone = []
                for moment in moments[1:]:
                    stepped = moment_of(None, env.step(copy.deepcopy(moment.actions[row : row + 1])))
                    if stepped.ended.any():
                        ends += 1
                        stepped = replace(stepped, after_reset=copy.deepcopy(env.reset()))
                    alone.append(stepped)
                case.compare(
                    "reset_mask",
                    moments[1:],
                    alone,
                    "reset(options={'reset_mask': rows}) must do to each marked row what reset() does to a "
                    "single one (its state, step count and random numbers), and nothing to the others.",
                    rows=[(row, 0)],
                    first_step=1,
                )
                case.steps_taken += case.steps
    if not ends:
        raise Unchecked(f"no episode ended in {case.steps} steps")
    return f"{ends} resets of some rows against resets of a single row"


def _check_reset_midway(case: Case, seed: int) -> None:
    """Check `reset_mask` with rows in the middle of an episode."""
    remedy = (
        "reset(options={'reset_mask': rows}) must do to each marked row what reset() does to a single one, "
        "also in the middle of an episode, and nothing to the others."
    )
    played: list[tuple[Any, Moment]] = []  # rows that were reset after the step, and the step
    rng = np.random.default_rng(0)
    with case.env(mode=AutoresetMode.DISABLED) as env:
        _, infos = env.reset(seed=seed)
        for step in range(1, min(case.steps, _AFTER_AN_END) + 1):
            actions = case.choose(env, infos, rng)
            moment = moment_of(copy.deepcopy(actions), env.step(actions))
            infos, marked = moment.infos, moment.ended.copy()
            if step % _RESET_EVERY == 0:
                marked[step // _RESET_EVERY % case.num_envs] = True
            if marked.any():
                after = copy.deepcopy(env.reset(options={"reset_mask": marked.copy()}))
                moment, infos = replace(moment, after_reset=after), after[1]
                for row in np.flatnonzero(~marked).tolist():
                    _equal_rows(after[0], moment.observations, row, step, remedy)
            played.append((marked, moment))
    with case.env(1, AutoresetMode.DISABLED) as alone:
        for row in range(case.num_envs):
            alone.reset(seed=seed + row)
            for step, (marked, moment) in enumerate(played, start=1):
                pairs = [(moment, moment_of(None, alone.step(copy.deepcopy(moment.actions[row : row + 1]))))]
                if marked[row]:
                    pairs.append((_start(moment.after_reset), _start(copy.deepcopy(alone.reset()))))
                for got, expected in pairs:
                    case.compare(
                        "reset_mask",
                        [replace(got, after_reset=None)],
                        [expected],
                        remedy,
                        rows=[(row, 0)],
                        first_step=step,
                    )


def _start(handed: Any) -> Moment:
    """The moment that a reset hands out."""
    return Moment(None, handed[0], None, None, None, handed[1])


def _equal_rows(got: Any, expected: Any, row: int, step: int, remedy: str) -> None:
    if not same(row_of(got, row), row_of(expected, row)):
        raise ConformanceError(
            "reset_mask",
            "observation of a row that reset_mask leaves out",
            remedy,
            row=row,
            step=step,
            got=row_of(got, row),
            expected=row_of(expected, row),
        )


def aliasing(case: Case) -> str:
    """Results are not overwritten later and may be written to; actions are not modified."""
    for mode in case.modes():
        moments = case.recordings(mode)[case.seeds[0]]
        with case.env(mode=mode) as env:
            if getattr(env, "copy", True) is False:
                raise Unchecked("the environment declares copy=False")
            _keep_everything(env, case.seeds[0], moments)
        with case.env(mode=mode) as env:
            _write_over_everything(case, env, case.seeds[0], moments)
        with case.env(mode=mode) as env:
            _reuse_actions(case, env, case.seeds[0], moments)
        case.steps_taken += 3 * case.steps
    return f"{case.steps} steps kept, {case.steps} written over, in {len(case.modes())} autoreset modes"


def _keep_everything(env: Any, seed: int, moments: list[Moment]) -> None:
    handed: list[tuple[int, Any, Any]] = []

    def keep(step: int, outcome: Any) -> None:
        handed.append((step, outcome, copy.deepcopy(outcome)))

    keep(0, env.reset(seed=seed))
    for step, moment in enumerate(moments[1:], start=1):
        actions = copy.deepcopy(moment.actions)
        keep(step, env.step(actions))
        if not same(actions, moment.actions):
            remedy = "Copy the actions before changing them."
            raise ConformanceError(
                "aliasing",
                "the actions passed to step",
                remedy,
                step=step,
                got=actions,
                expected=moment.actions,
            )
        if moment.after_reset is not None:
            mask = moment.ended.copy()
            keep(step, env.reset(options={"reset_mask": mask}))
            if not same(mask, moment.ended):
                remedy = "Copy the mask before changing it."
                raise ConformanceError(
                    "aliasing",
                    "the reset_mask passed to reset",
                    remedy,
                    step=step,
                    got=mask,
                    expected=moment.ended,
                )
    for step, now, then in handed:
        for path, before in _arrays(then).items():
            after = _arrays(now).get(path)
            if not same(after, before):
                raise ConformanceError(
                    "aliasing",
                    f"{path} was overwritten after it was returned",
                    "Return copies, or declare copy=False.",
                    step=step,
                    got=after,
                    expected=before,
                )


def _write_over_everything(case: Case, env: Any, seed: int, moments: list[Moment]) -> None:
    remedy = "Writing to returned arrays changed later results: return copies."
    _scribble(env.reset(seed=seed))
    for step, moment in enumerate(moments[1:], start=1):
        outcome = env.step(moment.actions)
        now = replace(moment_of(moment.actions, outcome), after_reset=moment.after_reset)
        case.compare("aliasing", [now], [moment], remedy, first_step=step)
        _scribble(outcome)
        if moment.after_reset is not None:
            _scribble(env.reset(options={"reset_mask": moment.ended.copy()}))


def _reuse_actions(case: Case, env: Any, seed: int, moments: list[Moment]) -> None:
    """Pass the same array in every step, as callers do to save time."""
    remedy = "The caller may write over the actions after the step: copy what a later step needs."
    env.reset(seed=seed)
    buffers = copy.deepcopy(moments[1].actions)
    for step, moment in enumerate(moments[1:], start=1):
        for (_, buffer), (_, action) in zip(leaves(buffers), leaves(moment.actions), strict=True):
            if not isinstance(buffer, np.ndarray) or buffer.dtype == object:
                return  # no array to write to
            buffer[...] = action
        now = replace(moment_of(moment.actions, env.step(buffers)), after_reset=moment.after_reset)
        case.compare("aliasing", [now], [moment], remedy, first_step=step)
        if moment.after_reset is not None:
            env.reset(options={"reset_mask": moment.ended.copy()})


def no_copies(case: Case) -> str:
    """copy=False returns the environment's own arrays, with the same content."""
    if "copy" not in case.accepts:
        raise Unchecked("the environment has no parameter copy")
    for mode in case.modes():
        with case.env(mode=mode, copy=False) as env:
            _replay(case, "no_copies", env, mode, "copy=False must return the same numbers as copy=True.")
    return f"copy=False and copy=True give the same results in {len(case.modes())} autoreset modes"


def threads(case: Case) -> str:
    """The number of threads does not change results."""
    if "num_threads" not in case.accepts:
        raise Unchecked("the environment has no parameter num_threads")
    for mode in case.modes():
        for number in thread_counts(case.num_envs):
            with case.env(mode=mode, num_threads=number) as env:
                remedy = (
                    f"num_threads={number} must give the same results as one thread: "
                    "threads must not share state or generators."
                )
                _replay(case, "threads", env, mode, remedy)
    *some, most = map(str, thread_counts(case.num_envs))
    return f"{', '.join(some)} and {most} threads in {len(case.modes())} autoreset modes"


def thread_counts(num_envs: int) -> list[int]:
    """Return numbers of threads: one for each row, one more than rows, and one that does not divide them."""
    uneven = next((number for number in range(2, num_envs) if num_envs % number), 2)
    return sorted({2, uneven, num_envs, num_envs + 1})


RULES: dict[str, Rule] = {
    "spaces": spaces,
    "same_seed": same_seed,
    "instances": instances,
    "different_seeds": different_seeds,
    "stream_continues": stream_continues,
    "batch_size": batch_size,
    "reset_mask": reset_mask,
    "autoreset": autoreset,
    "flags": flags,
    "time_limit": time_limit,
    "aliasing": aliasing,
    "no_copies": no_copies,
    "threads": threads,
    "copies": copies,
    "saved_state": saved_state,
    "twin": twin,
}


def _replay(case: Case, rule: str, env: Any, mode: Any, remedy: str) -> None:
    for seed, moments in case.recordings(mode).items():
        actions = [moment.actions for moment in moments[1:]]
        case.compare(
            rule, case.play(env, seed, mode=mode, steps=case.steps, actions=actions), moments, remedy
        )


def _alike(case: Case, one: list[Moment], other: list[Moment]) -> bool:
    try:
        case.compare("", one, other, "")
    except ConformanceError:
        return False
    return True


def _equal(rule: str, what: str, got: Any, expected: Any, remedy: str, step: int | None = None) -> None:
    if got != expected:
        raise ConformanceError(rule, what, remedy, step=step, got=got, expected=expected)


def _arrays(handed: Any) -> dict[str, Any]:
    """Return every array and list in the result of reset or step by name, also those in object arrays."""
    of_step = ["observations", "rewards", "terminated", "truncated", "infos"]
    names = ["observations", "infos"] if len(handed) == 2 else of_step
    found: dict[str, Any] = {}
    for name, part in zip(names, handed, strict=True):
        for path, leaf in leaves(part, name):
            if isinstance(leaf, np.ndarray) and leaf.dtype == object:
                inside = ((f"{path}[{row}]", one) for row, one in enumerate(leaf))
                found.update({where: one for where, one in inside if isinstance(one, np.ndarray)})
            elif isinstance(leaf, (np.ndarray, list)):
                found[path] = leaf
    return found


def _scribble(handed: Any) -> None:
    for values in _arrays(handed).values():
        if isinstance(values, list):
            values[:] = [None] * len(values)
        elif values.flags.writeable:
            values[...] = 1


def _listed(seeds: tuple[int, ...]) -> str:
    return ", ".join(map(str, seeds))
