"""Records runs of vector environments, so that the conformance kit can compare them.

Everything is copied as soon as it is returned, so an environment that overwrites its arrays later cannot
change a recording.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Choose = Callable[[Any, dict[str, Any], np.random.Generator], Any]  # env, infos, rng -> actions
FINAL = ("final_obs", "final_info")


@dataclass(frozen=True, slots=True)
class Moment:
    """Result of one vector step, or of the reset: then without actions, rewards and flags."""

    actions: Any
    observations: Any
    rewards: NDArray[np.float64] | None
    terminated: NDArray[np.bool_] | None
    truncated: NDArray[np.bool_] | None
    infos: dict[str, Any]
    # With autoreset disabled: result of resetting the ended rows; None if none had ended.
    after_reset: tuple[Any, dict[str, Any]] | None = None

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Rows whose episode ended in this step."""
        if self.terminated is None or self.truncated is None:
            return np.zeros(0, dtype=np.bool_)
        return np.asarray(self.terminated | self.truncated)


def random_actions(env: Any, infos: dict[str, Any], rng: np.random.Generator) -> Any:
    """Draw a random action for each row, within `action_mask` if infos have one."""
    mask = infos.get("action_mask")
    if mask is None:
        env.action_space.seed(int(rng.integers(1 << 31)))
        return env.action_space.sample()
    # Rows that only reset allow nothing: they get action 0.
    weights = rng.random(mask.shape) * np.asarray(mask, dtype=bool)
    first = getattr(env.single_action_space, "start", 0)
    return (weights.argmax(axis=-1) + first).astype(env.action_space.dtype)


def play(
    env: Any,
    seed: int | list[int] | None,
    steps: int,
    *,
    actions: list[Any] | None = None,
    choose: Choose = random_actions,
    disabled: bool = False,
) -> list[Moment]:
    """Reset with the seed, then step with `actions`, or with those that `choose` returns.

    With `disabled`, ended rows are reset by hand after each step. The list starts with the reset.
    """
    rng = np.random.default_rng(0)
    observations, infos = env.reset(seed=seed)
    moments = [Moment(None, copy.deepcopy(observations), None, None, None, copy.deepcopy(infos))]
    if actions is not None:
        return moments + go_on(env, actions[:steps], disabled=disabled)
    for _ in range(steps):
        moments.append(_step(env, choose(env, infos, rng), disabled))
        after = moments[-1].after_reset
        infos = moments[-1].infos if after is None else after[1]
    return moments


def go_on(env: Any, actions: list[Any], *, disabled: bool) -> list[Moment]:
    """Continue to step an environment with these actions."""
    return [_step(env, copy.deepcopy(chosen), disabled) for chosen in actions]


def _step(env: Any, chosen: Any, disabled: bool) -> Moment:
    moment = moment_of(copy.deepcopy(chosen), env.step(chosen))
    if disabled and moment.ended.any():
        after = copy.deepcopy(env.reset(options={"reset_mask": moment.ended.copy()}))
        moment = replace(moment, after_reset=after)
    return moment


def moment_of(actions: Any, outcome: tuple[Any, Any, Any, Any, dict[str, Any]]) -> Moment:
    """Copy the result of `step`."""
    observations, rewards, terminated, truncated, infos = copy.deepcopy(outcome)
    return Moment(actions, observations, rewards, terminated, truncated, infos)


def leaves(observations: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the arrays inside an observation with their paths; enters dicts and tuples."""
    if isinstance(observations, dict):
        for key in sorted(observations):
            yield from leaves(observations[key], f"{path}[{key!r}]")
    elif isinstance(observations, tuple):
        for index, part in enumerate(observations):
            yield from leaves(part, f"{path}[{index}]")
    else:
        yield path, observations


def row_of(observations: Any, row: int) -> Any:
    """Return one row of batched observations as a single observation."""
    if isinstance(observations, dict):
        return {key: row_of(part, row) for key, part in observations.items()}
    if isinstance(observations, tuple) and observations and not np.isscalar(observations[0]):
        return tuple(row_of(part, row) for part in observations)
    return observations[row]


def row_infos(infos: dict[str, Any], row: int, ignored: Collection[str] = ()) -> dict[str, Any]:
    """Return the infos of one row: those that the masks of the vector infos allow, without the `ignored`."""
    found = {}
    for name, values in infos.items():
        mask = infos.get(f"_{name}")
        hidden = name.startswith("_") or name in FINAL or name in ignored
        if hidden or (mask is not None and not mask[row]):
            continue
        found[name] = row_infos(values, row) if isinstance(values, dict) else values[row]
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two observations, infos or numbers are bit-identical; NaN equals NaN."""
    if isinstance(one, dict) or isinstance(other, dict):
        return (
            isinstance(one, dict)
            and isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(one[key], other[key]) for key in one)
        )
    if isinstance(one, (list, tuple)) or (isinstance(one, np.ndarray) and one.dtype == object):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if one is None or other is None or isinstance(one, str):
        return type(one) is type(other) and bool(one == other)
    a, b = np.asarray(one), np.asarray(other)
    number = np.issubdtype(a.dtype, np.inexact) and np.issubdtype(b.dtype, np.inexact)
    return bool(np.array_equal(a, b, equal_nan=number))
