"""A user's script as a target of `hotloop tune`: names in braces in its command, and OMP_NUM_THREADS.

    python train.py --n-envs {n_envs=8} --n-steps {n_steps=256}

The value after `=` is the current one. `n_steps` and `gradient_steps` are not searched: they are computed
from the number of environments, so that n_envs * n_steps and the updates per env step stay the same.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop._util.redact import redact
from hotloop.capture.plan import Safety
from hotloop.lab.process import Job, Outcome
from hotloop.machine.facts import cores_granted
from hotloop.machine.health import memory_available_bytes
from hotloop.tuning.memory_plan import TUNED_SHARE, fit_peak_memory
from hotloop.tuning.space import Knob, Role, Settings, Space, Value, doubling
from hotloop.tuning.starting_rules import starting_settings, whole_cores
from hotloop.tuning.time_model import Probe
from hotloop.workflows.probes import (
    COMPARE_S,
    SCRIPT_CYCLES,
    ProbeLength,
    Running,
    StartOnNode,
    ended_early_on_nodes,
    start_script,
)

PLACE = re.compile(r"\{([A-Za-z_]\w*)(?:=([^{}]*))?\}")
RESERVED = ("seed", "n")  # replaced by the lab
THREADS_VARIABLE = "OMP_NUM_THREADS"
ROLES: dict[str, Role] = {
    **dict.fromkeys(("n_envs", "num_envs", "envs"), "envs"),
    **dict.fromkeys(("n_workers", "num_workers", "workers"), "workers"),
    **dict.fromkeys(("n_threads", "num_threads", "threads"), "threads"),
    **dict.fromkeys(("batch_size", "minibatch", "minibatch_size"), "batch"),
}
ROLLOUTS = ("n_steps", "num_steps", "rollout_steps")  # computed from the envs: the product stays the same
UPDATES = ("gradient_steps",)  # computed from the envs: updates per env step stay the same
SAFE_ROLES = ("threads", "workers")


@dataclass(frozen=True)
class TriedValues:
    """What to try for the names in the command."""

    values: tuple[str, ...] = ()  # as NAME=1,2,4
    safe: tuple[str, ...] = ()  # names whose values do not change results
    threads: bool = True  # try OMP_NUM_THREADS


class ScriptTarget:
    """A command with placeholders for settings; by default with the cores and memory of this machine."""

    cycles = SCRIPT_CYCLES
    warm_up_updates = 0
    compare_s = COMPARE_S
    is_workload = False

    def __init__(
        self,
        command: Sequence[str],
        options: TriedValues | None = None,
        cores: float | None = None,
        free_bytes: int | None = None,
    ):
        options = options or TriedValues()
        self.template = tuple(command)
        self.name = shlex.join(redact(command).words)  # stored and shown
        self._cores = whole_cores(cores_granted() if cores is None else cores)
        places = self._places()
        listed = _listed(options.values, places)
        self._dependent = {
            name: _whole(name, now) for name, now in places.items() if name in (*ROLLOUTS, *UPDATES)
        }
        knobs = [
            self._knob(name, now, listed.get(name), options)
            for name, now in places.items()
            if name not in self._dependent
        ]
        if options.threads and self._cores > 1 and not any(knob.role == "threads" for knob in knobs):
            knobs.append(self._threads_knob())
        if not knobs:
            raise HotloopError(
                "the command has nothing to tune; put a name in braces in place of a setting, "
                "as in: hotloop tune -- python train.py --n-envs {n_envs=8}"
            )
        self._envs_name = next((knob.name for knob in knobs if knob.role == "envs"), None)
        if self._dependent and self._envs_name is None:
            raise HotloopError(
                f"{next(iter(self._dependent))} is computed from the number of envs, which is missing in the "
                "command; write it as {n_envs=8}."
            )
        self.space = Space(tuple(knobs), self._is_allowed)
        self._room_bytes = TUNED_SHARE * (memory_available_bytes() if free_bytes is None else free_bytes)

    # ---- reading the command

    def _places(self) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        for word in self.template:
            for name, now in PLACE.findall(word):
                if name in RESERVED:
                    continue
                if found.get(name) and now and found[name] != now:
                    raise HotloopError(
                        f"{name} is {found[name]} in one place and {now} in another; use one value."
                    )
                found[name] = now or found.get(name)
        return found

    def _knob(self, name: str, now: str | None, listed: tuple[str, ...] | None, options: TriedValues) -> Knob:
        role = ROLES.get(name, "choice")
        safety: Safety = "safe" if role in SAFE_ROLES or name in options.safe else "semantic"
        if role == "choice":
            if listed is None:
                raise HotloopError(f"{name} has no values to try; list them with --values {name}=a,b,c")
            return Knob(name, listed, now or listed[0], role, safety)
        values = (
            tuple(sorted(_whole(name, word) for word in listed))
            if listed
            else self._default_values(name, role, now)
        )
        current = _whole(name, now) if now else self._rule(name, role, values)
        return Knob(name, values, current, role, safety, self._invariant(name, role))

    def _default_values(self, name: str, role: Role, now: str | None) -> tuple[int, ...]:
        if role == "envs":
            most = max(4 * self._cores, 16, 2 * _whole(name, now) if now else 0)
            return doubling(1, most)
        if role == "workers":
            return tuple(range(self._cores + 1))
        if role == "threads":
            return tuple(sorted({1, self._cores}))
        if not now:
            raise HotloopError(
                f"{name} needs a current value or values to try; write {{{name}=256}} or "
                f"--values {name}=128,256,512"
            )
        size = _whole(name, now)
        return tuple(sorted({max(size // 2, 1), size, 2 * size, 4 * size}))

    def _rule(self, name: str, role: Role, values: Sequence[int]) -> int:
        """Value of the starting rules, for a name without a current value."""
        rules = {one.name: one.value for one in starting_settings(self._cores)}
        start = {"envs": rules["envs"], "workers": rules["loading workers"], "threads": self._cores}.get(role)
        return start if isinstance(start, int) and start in values else values[0]

    def _invariant(self, name: str, role: Role) -> str:
        if role != "envs":
            return "the updates per env step may change" if role == "batch" else ""
        steps = [follows for follows in self._dependent if follows in ROLLOUTS]
        kept = [f"{name} * {steps[0]} stays the same"] if steps else []
        kept += (
            ["the updates per env step stay the same"] if any(f in UPDATES for f in self._dependent) else []
        )
        return ", ".join(kept) or (
            f"the rollout length of each env stays the same, so more {name} mean larger rollouts and fewer "
            "updates; write n_steps as {n_steps=...} to keep n_envs * n_steps"
        )

    def _threads_knob(self) -> Knob:
        set_now = os.environ.get(THREADS_VARIABLE, "")
        current = int(set_now) if set_now.isdigit() and int(set_now) else self._cores
        return Knob(THREADS_VARIABLE, (1, self._cores), current, "threads")

    # ---- the protocol `Target`

    @property
    def base(self) -> dict[str, Any]:
        """The command as typed."""
        return {"command": list(self.template)}

    def changes(self, settings: Settings) -> dict[str, Any]:
        """Changes from the current settings, including dependent ones."""
        new, old = self._filled(settings), self._filled(self.space.current)
        return {name: value for name, value in new.items() if value != old[name]}

    def command(self, settings: Settings) -> tuple[str, ...]:
        """The command with these settings filled in."""
        values = self._filled(settings)
        return tuple(
            PLACE.sub(lambda m: m[0] if m[1] in RESERVED else str(values[m[1]]), word)
            for word in self.template
        )

    def command_for(self, changes: Mapping[str, Any]) -> tuple[str, ...]:
        """The command as typed: `hotloop train --tuned` does not apply to scripts."""
        return self.template

    def variables(self, settings: Settings) -> tuple[tuple[str, str], ...]:
        """Environment variables of a run."""
        return tuple((name, str(value)) for name, value in settings if name == THREADS_VARIABLE)

    def fits(self, settings: Settings, probes: Sequence[Probe]) -> bool:
        """Whether the memory expected from the probes is below half of what is free."""
        expected = fit_peak_memory(self.space, probes)
        return expected is None or expected(settings) <= self._room_bytes

    def memory_bytes(self, settings: Settings, probes: Sequence[Probe]) -> int | None:
        """Largest memory of the probes with these settings."""
        return max((p.peak_bytes for p in probes if p.settings == settings and p.peak_bytes), default=None)

    def check(self) -> None:
        """Nothing can be checked before the first probe."""

    def starter(self) -> AbstractContextManager[None]:
        """Nothing is needed to start a script."""
        return nullcontext()

    def start(self, job: Any) -> Running:
        """Start one probe."""
        return start_script(job)

    def run_on_nodes(self, start: StartOnNode, length: ProbeLength) -> Callable[[Job], Outcome]:
        """A function that makes one probe on a node of a cluster."""
        return ended_early_on_nodes(start, length)

    def _filled(self, settings: Settings) -> dict[str, Value]:
        """Values of all names in the command."""
        values = dict(settings)
        if self._envs_name is None:
            return values
        envs, now = int(values[self._envs_name]), int(self.space.knob(self._envs_name).current)
        for name, value in self._dependent.items():
            values[name] = value * now // envs if name in ROLLOUTS else value * envs // now
        return values

    def _is_allowed(self, settings: Mapping[str, Value]) -> bool:
        """Whether the dependent settings are whole numbers."""
        if self._envs_name is None:
            return True
        envs, now = int(settings[self._envs_name]), int(self.space.knob(self._envs_name).current)
        for name, value in self._dependent.items():
            top, bottom = (value * now, envs) if name in ROLLOUTS else (value * envs, now)
            if bottom < 1 or top % bottom or top < bottom:
                return False
        return envs >= 1


def _listed(given: Sequence[str], places: Mapping[str, str | None]) -> dict[str, tuple[str, ...]]:
    found = {}
    for word in given:
        name, has, values = word.partition("=")
        split = tuple(value.strip() for value in values.split(",") if value.strip())
        if not has or not split:
            raise HotloopError(f"--values {word!r} is not a list; write it as n_envs=1,2,4,8.")
        if name not in places:
            raise HotloopError(
                f"--values {name} is not in the command; write {{{name}}} in place of its value."
            )
        if name in (*ROLLOUTS, *UPDATES):
            raise HotloopError(f"{name} is computed from the number of envs; leave it out of --values.")
        found[name] = split
    return found


def _whole(name: str, word: str | None) -> int:
    if word is None:
        raise HotloopError(f"{name} needs its current value; write {{{name}=256}}.")
    try:
        number = int(word.replace("_", ""))
    except ValueError:
        number = -1
    if number < 0:
        raise HotloopError(f"{name} is {word!r}; it must be a whole number, 0 or more.")
    return number
