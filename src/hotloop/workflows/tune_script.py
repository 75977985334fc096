"""What can be tuned in a script of the user's: names in braces in its command, and torch's threads.

    python train.py --n-envs {n_envs=8} --n-steps {n_steps=256}

The value after `=` is what is used now. `n_steps` and `gradient_steps` are never searched: they follow from
the number of environments, so that n_envs x n_steps and updates per env step stay as they are.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop.capture.plan import Safety
from hotloop.machine.health import memory_available_bytes
from hotloop.tuning.memory import TUNED_SHARE, measured_fit
from hotloop.tuning.model import Probe
from hotloop.tuning.space import Knob, Role, Settings, Space, Value, doubling
from hotloop.tuning.starting import starting_settings, whole_cores
from hotloop.workflows.probes import COMPARE_S, SCRIPT_CYCLES, Running, start_script

PLACE = re.compile(r"\{([A-Za-z_]\w*)(?:=([^{}]*))?\}")
RESERVED = ("seed", "n")  # filled in by the lab
THREADS_VARIABLE = "OMP_NUM_THREADS"
ROLES: dict[str, Role] = {
    **dict.fromkeys(("n_envs", "num_envs", "envs"), "envs"),
    **dict.fromkeys(("n_workers", "num_workers", "workers"), "workers"),
    **dict.fromkeys(("n_threads", "num_threads", "threads"), "threads"),
    **dict.fromkeys(("batch_size", "minibatch", "minibatch_size"), "batch"),
}
ROLLOUTS = ("n_steps", "num_steps", "rollout_steps")  # follow from the envs: their product stays
UPDATES = ("gradient_steps",)  # follow from the envs: updates per env step stay
SAFE_ROLES = ("threads", "workers")


@dataclass(frozen=True)
class Wish:
    """What the user says about the names in the command."""

    values: tuple[str, ...] = ()  # NAME=1,2,4
    safe: tuple[str, ...] = ()  # names whose values do not change results
    threads: bool = True  # whether to try OMP_NUM_THREADS


class ScriptTarget:
    """A command with places for settings."""

    cycles = SCRIPT_CYCLES
    settling = 0
    compare_s = COMPARE_S
    own_words = False

    def __init__(self, command: Sequence[str], cores_granted: float, wish: Wish | None = None):
        wish = wish or Wish()
        self.template = tuple(command)
        self.name = shlex.join(command)
        self._cores = whole_cores(cores_granted)
        places = self._places()
        listed = _listed(wish.values, places)
        self._follow = {
            name: _whole(name, now) for name, now in places.items() if name in (*ROLLOUTS, *UPDATES)
        }
        knobs = [
            self._knob(name, now, listed.get(name), wish)
            for name, now in places.items()
            if name not in self._follow
        ]
        if wish.threads and self._cores > 1 and not any(knob.role == "threads" for knob in knobs):
            knobs.append(self._threads_knob())
        if not knobs:
            raise HotloopError(
                "the command has nothing to tune; write a name in braces where a setting goes, "
                "as in: hotloop tune -- python train.py --n-envs {n_envs=8}"
            )
        self._envs_name = next((knob.name for knob in knobs if knob.role == "envs"), None)
        if self._follow and self._envs_name is None:
            raise HotloopError(
                f"{next(iter(self._follow))} follows from the number of envs, which the command "
                "does not have; write {n_envs=8} where that goes."
            )
        self.space = Space(tuple(knobs), self._is_allowed)
        self._room_bytes = TUNED_SHARE * memory_available_bytes()

    # ---- reading the command

    def _places(self) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        for word in self.template:
            for name, now in PLACE.findall(word):
                if name in RESERVED:
                    continue
                if found.get(name) and now and found[name] != now:
                    raise HotloopError(
                        f"{name} is {found[name]} in one place and {now} in another; give one."
                    )
                found[name] = now or found.get(name)
        return found

    def _knob(self, name: str, now: str | None, listed: tuple[str, ...] | None, wish: Wish) -> Knob:
        role = ROLES.get(name, "switch")
        safety: Safety = "safe" if role in SAFE_ROLES or name in wish.safe else "semantic"
        if role == "switch":
            if listed is None:
                raise HotloopError(f"{name} has no values to try; give them as --values {name}=a,b,c")
            return Knob(name, listed, now or listed[0], role, safety)
        values = (
            tuple(sorted(_whole(name, word) for word in listed)) if listed else self._usual(name, role, now)
        )
        current = _whole(name, now) if now else self._rule(name, role, values)
        return Knob(name, values, current, role, safety, self._invariant(name, role))

    def _usual(self, name: str, role: Role, now: str | None) -> tuple[int, ...]:
        if role == "envs":
            most = max(4 * self._cores, 16, 2 * _whole(name, now) if now else 0)
            return doubling(1, most)
        if role == "workers":
            return tuple(range(self._cores + 1))
        if role == "threads":
            return tuple(sorted({1, self._cores}))
        if not now:
            raise HotloopError(
                f"{name} needs a value to start from or values to try; write {{{name}=256}} or "
                f"--values {name}=128,256,512"
            )
        size = _whole(name, now)
        return tuple(sorted({max(size // 2, 1), size, 2 * size, 4 * size}))

    def _rule(self, name: str, role: Role, values: Sequence[int]) -> int:
        """Where the starting rules begin, when the command does not say what is used now."""
        rules = {one.name: one.value for one in starting_settings(self._cores)}
        start = {"envs": rules["envs"], "workers": rules["loading workers"], "threads": self._cores}.get(role)
        return start if isinstance(start, int) and start in values else values[0]

    def _invariant(self, name: str, role: Role) -> str:
        if role != "envs":
            return "updates per env step may change" if role == "batch" else ""
        steps = [follows for follows in self._follow if follows in ROLLOUTS]
        kept = [f"{name} x {steps[0]} stays the same"] if steps else []
        kept += ["updates per env step stay the same"] if any(f in UPDATES for f in self._follow) else []
        return ", ".join(kept) or (
            f"the steps of each env between two rounds of learning stay: more {name}, larger rollouts and "
            "fewer updates; divide n_steps by the same factor to keep them"
        )

    def _threads_knob(self) -> Knob:
        set_now = os.environ.get(THREADS_VARIABLE, "")
        current = int(set_now) if set_now.isdigit() and int(set_now) else self._cores
        return Knob(THREADS_VARIABLE, (1, self._cores), current, "threads")

    # ---- what tuning asks

    @property
    def base(self) -> dict[str, Any]:
        """What was not tuned: the command as typed."""
        return {"command": list(self.template)}

    def changes(self, settings: Settings) -> dict[str, Any]:
        """What differs with these settings, what follows from them included."""
        new, old = self._filled(settings), self._filled(self.space.current)
        return {name: value for name, value in new.items() if value != old[name]}

    def command(self, settings: Settings) -> tuple[str, ...]:
        """The command with the settings in it."""
        values = self._filled(settings)
        return tuple(
            PLACE.sub(lambda m: m[0] if m[1] in RESERVED else str(values[m[1]]), word)
            for word in self.template
        )

    def command_for(self, changes: Mapping[str, Any]) -> tuple[str, ...]:
        """The command as typed: nobody else fills in its places."""
        return self.template

    def variables(self, settings: Settings) -> tuple[tuple[str, str], ...]:
        """Environment variables of a run."""
        return tuple((name, str(value)) for name, value in settings if name == THREADS_VARIABLE)

    def fits(self, settings: Settings, probes: Sequence[Probe]) -> bool:
        """Whether what probes held lets expect less than half of what is free."""
        expected = measured_fit(self.space, probes)
        return expected is None or expected(settings) <= self._room_bytes

    def memory_bytes(self, settings: Settings, probes: Sequence[Probe]) -> int | None:
        """The most that its probes held."""
        return max((p.peak_bytes for p in probes if p.settings == settings and p.peak_bytes), default=None)

    def check(self) -> None:
        """Whether it can be started is seen when it is."""

    def starter(self) -> AbstractContextManager[None]:
        """Nothing is needed to start a script."""
        return nullcontext()

    def start(self, job: Any) -> Running:
        """Start one probe."""
        return start_script(job)

    def _filled(self, settings: Settings) -> dict[str, Value]:
        """All names of the command and what they are set to."""
        values = dict(settings)
        if self._envs_name is None:
            return values
        envs, now = int(values[self._envs_name]), int(self.space.knob(self._envs_name).current)
        for name, value in self._follow.items():
            values[name] = value * now // envs if name in ROLLOUTS else value * envs // now
        return values

    def _is_allowed(self, settings: Mapping[str, Value]) -> bool:
        """Whether what follows comes out whole."""
        if self._envs_name is None:
            return True
        envs, now = int(settings[self._envs_name]), int(self.space.knob(self._envs_name).current)
        for name, value in self._follow.items():
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
            raise HotloopError(f"--values {word!r} is no list; write it as n_envs=1,2,4,8.")
        if name not in places:
            raise HotloopError(f"--values {name} is not in the command; write {{{name}}} where it goes.")
        if name in (*ROLLOUTS, *UPDATES):
            raise HotloopError(f"{name} follows from the number of envs; leave it out of --values.")
        found[name] = split
    return found


def _whole(name: str, word: str | None) -> int:
    if word is None:
        raise HotloopError(f"{name} needs the value used now; write {{{name}=256}}.")
    try:
        number = int(word.replace("_", ""))
    except ValueError:
        number = -1
    if number < 0:
        raise HotloopError(f"{name} is {word!r}; it must be a whole number from 0.")
    return number
