"""The environment under test: how to create it, its recordings, and the error for a broken rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from hotloop._util.errors import HotloopError
from hotloop.testing.trajectories import Choose, Moment, go_on, play, row_infos, row_of, same

OPTIONS = ("autoreset_mode", "copy", "num_threads")  # passed by name if `make` accepts them


class ConformanceError(HotloopError):
    """The environment breaks a rule: which, where, what it did and what was expected."""

    def __init__(
        self,
        rule: str,
        what: str,
        remedy: str,
        *,
        row: int | None = None,
        step: int | None = None,
        got: Any = None,
        expected: Any = None,
    ):
        self.rule, self.what, self.row, self.step = rule, what, row, step
        self.got, self.expected = got, expected
        where = "".join(
            f", {name} {value}" for name, value in (("row", row), ("step", step)) if value is not None
        )
        seen = "" if got is None and expected is None else f": got {_short(got)}, expected {_short(expected)}"
        super().__init__(f"rule {rule!r} is broken{where}: {what}{seen}. {remedy}")


class Unchecked(Exception):
    """A rule cannot be checked on this environment; the message says why."""


class Case:
    """The environment, and recordings that rules share: one per mode and seed."""

    def __init__(
        self,
        make: Callable[..., Any],
        *,
        num_envs: int,
        steps: int,
        seeds: Sequence[int],
        choose: Choose,
        make_twin: Callable[[int], Any] | None,
        ignore_infos: Sequence[str],
        random: bool = True,
        reward_dtype: Any = None,
        max_episode_steps: int | None = None,
    ):
        self.make = make
        self.num_envs, self.steps, self.seeds = num_envs, steps, tuple(seeds)
        self.random = random  # whether the environment is stochastic
        self.choose, self.make_twin, self.ignore_infos = choose, make_twin, frozenset(ignore_infos)
        self.reward_dtype, self.max_episode_steps = reward_dtype, max_episode_steps
        parameters = inspect.signature(make).parameters
        self.accepts = frozenset(name for name in OPTIONS if name in parameters)
        self.steps_taken = 0
        self.episodes = 0
        self._recordings: dict[tuple[Any, int], dict[int, list[Moment]]] = {}

    @contextmanager
    def env(self, num_envs: int | None = None, mode: Any = None, **options: Any) -> Iterator[Any]:
        """Create an environment and close it afterwards."""
        if mode is not None and "autoreset_mode" in self.accepts:
            options["autoreset_mode"] = mode
        made = self.make(self.num_envs if num_envs is None else num_envs, **options)
        try:
            yield made
        finally:
            made.close()

    def modes(self) -> list[Any]:
        """Return the autoreset modes that `make` accepts; otherwise only the declared one."""
        if "autoreset_mode" in self.accepts:
            return list(AutoresetMode)
        with self.env() as env:
            declared = env.metadata.get("autoreset_mode")
        if not isinstance(declared, AutoresetMode):
            raise ConformanceError(
                "autoreset",
                "metadata['autoreset_mode'] is missing or invalid",
                "Set it to a member of gymnasium.vector.AutoresetMode.",
                got=declared,
                expected="an AutoresetMode",
            )
        return [declared]

    def recordings(self, mode: Any, num_envs: int | None = None) -> dict[int, list[Moment]]:
        """Return recordings of a batch by seed; one environment plays all seeds."""
        size = self.num_envs if num_envs is None else num_envs
        if (mode, size) not in self._recordings:
            with self.env(size, mode) as env:
                self._recordings[mode, size] = {
                    seed: self.play(env, seed, mode=mode, steps=self.steps) for seed in self.seeds
                }
        return self._recordings[mode, size]

    def all_recordings(self) -> list[tuple[Any, list[Moment]]]:
        """Return every recording of the full batch with its mode."""
        return [(mode, moments) for mode in self.modes() for moments in self.recordings(mode).values()]

    def play(
        self, env: Any, seed: Any, *, mode: Any, steps: int, actions: list[Any] | None = None
    ) -> list[Moment]:
        """Play, and count steps and episodes."""
        moments = play(
            env,
            seed,
            steps,
            actions=actions,
            choose=self.choose,
            disabled=mode == AutoresetMode.DISABLED,
        )
        self.steps_taken += steps
        self.episodes += sum(int(moment.ended.sum()) for moment in moments)
        return moments

    def go_on(self, env: Any, actions: list[Any], *, disabled: bool) -> list[Moment]:
        """Continue to step an environment with these actions."""
        moments = go_on(env, actions, disabled=disabled)
        self.steps_taken += len(actions)
        return moments

    def compare(
        self,
        rule: str,
        got: list[Moment],
        expected: list[Moment],
        remedy: str,
        rows: Sequence[tuple[int, int]] | None = None,
        first_step: int = 0,
    ) -> None:
        """Raise if two recordings differ; `rows` pairs the rows of one with those of the other."""
        pairs = rows or [(row, row) for row in range(self.num_envs)]
        for step, (one, other) in enumerate(zip(got, expected, strict=True), start=first_step):
            if rows is None and _alike(one, other):
                continue
            for row, of_other in pairs:
                mine = facts_of(one, row, self.ignore_infos)
                theirs = facts_of(other, of_other, self.ignore_infos)
                for what in {**mine, **theirs}:
                    if not same(mine.get(what), theirs.get(what)):
                        raise ConformanceError(
                            rule,
                            what,
                            remedy,
                            row=row,
                            step=step,
                            got=mine.get(what),
                            expected=theirs.get(what),
                        )


def facts_of(moment: Moment, row: int, ignored: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return all results of one step for one row, by name; without the infos named in `ignored`."""
    facts: dict[str, Any] = {
        "observation": row_of(moment.observations, row),
        "info": row_infos(moment.infos, row, ignored),
    }
    for name in ("rewards", "terminated", "truncated"):
        values = getattr(moment, name)
        if values is not None:
            facts[name] = values[row]
    final = moment.infos.get("_final_obs")
    if final is not None and final[row]:
        facts["final_obs"] = row_of(moment.infos["final_obs"], row)
        facts["final_info"] = row_infos(moment.infos.get("final_info", {}), row, ignored)
    if moment.after_reset is not None and moment.ended[row]:
        facts["observation after reset"] = row_of(moment.after_reset[0], row)
    return facts


def _alike(one: Moment, other: Moment) -> bool:
    """Fast check: whether two moments are equal, masked rows included."""
    names = ("observations", "rewards", "terminated", "truncated", "infos", "after_reset")
    return all(same(getattr(one, name), getattr(other, name)) for name in names)


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        text = np.array2string(value, threshold=12, edgeitems=3, floatmode="unique", separator=", ")
    else:
        text = repr(value.item() if isinstance(value, np.generic) else value)
    text = " ".join(text.split())
    return text if len(text) <= 160 else f"{text[:157]}..."
