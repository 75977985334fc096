"""A workload of ours as something to tune: its settings, its memory plan, and the process that probes it."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop.machine.health import memory_available_bytes
from hotloop.tuning.memory import TUNED_SHARE
from hotloop.tuning.model import Probe
from hotloop.tuning.space import Settings, Space, Value
from hotloop.tuning.starting import whole_cores
from hotloop.workflows.experiments import plain_environment
from hotloop.workflows.memory import memory_plan
from hotloop.workflows.probes import CONFIG_VARIABLE, SCRIPT_CYCLES, Host, Running
from hotloop.workflows.train import config_class
from hotloop.workflows.tune_knobs import TUNABLE, stage_names

# Not part of what is tuned, and not to be touched by probes.
LEFT_OUT = (
    *(
        "seed",
        "checkpoint",
        "resume",
        "metrics",
        "tensorboard_log",
        "log",
        "learning_check",
        "evaluation_boards",
    ),
    *("play", "speedup"),
)


class WorkloadTarget:
    """A workload of ours with its settings."""

    own_words = True

    def __init__(self, workload: str, config: Any, cores_granted: float, also: Sequence[str] = ()):
        config_class(workload)
        if workload not in TUNABLE:
            raise HotloopError(f"{workload} has no settings to tune; there is {', '.join(TUNABLE)}.")
        self.workload, self.config, self.tunable = workload, config, TUNABLE[workload]
        cores = whole_cores(cores_granted)
        more = {knob.name: knob for knob in self.tunable.also(config, cores)}
        unknown = [word for word in also if word not in more]
        if unknown:
            there = f"there is {', '.join(more)}" if more else f"{workload} has none beside the usual ones"
            raise HotloopError(f"--also {unknown[0]} is not known; {there}.")
        knobs = [*self.tunable.knobs(config, cores), *(more[word] for word in also)]
        self.name = stage_names(workload, getattr(config, "stage", None))[0]
        self.space = Space(tuple(knobs), self._is_allowed)
        self.command_line = ("hotloop", "train", workload)
        accounts = self.tunable.ends_its_cycle(config)
        self.cycles = 0 if accounts else SCRIPT_CYCLES
        self.settling = 0 if accounts else self.tunable.settling
        self.compare_s = self.tunable.compare_s(config)
        self._host: Host | None = None
        self._planned: dict[Settings, int | None] = {}
        self._room_bytes = TUNED_SHARE * memory_available_bytes()

    def check(self) -> None:
        """What the workload itself says of the settings in use, before anything is started."""
        importlib.import_module(f"hotloop.rl.workloads.{self.workload}").check(self.config)

    @property
    def base(self) -> dict[str, Any]:
        """What was not tuned."""
        tuned = {name for name, _ in self.space.current}
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self.config), default=str))
        return {k: v for k, v in plain.items() if k not in tuned and k not in LEFT_OUT}

    def changes(self, settings: Settings) -> dict[str, Any]:
        """Fields of the config that differ with these settings, those that follow from them included."""
        new, old = dataclasses.asdict(self.config_of(settings)), dataclasses.asdict(self.config)
        return {name: value for name, value in new.items() if value != old[name]}

    def config_of(self, settings: Settings) -> Any:
        """The config with the settings and what follows from them."""
        changed = dict(self.space.changed(settings))
        return self.tunable.change(self.config, changed, dict(settings)) if changed else self.config

    def command(self, settings: Settings) -> tuple[str, ...]:
        """What a person would type."""
        return self._typed(self.config_of(settings))

    def command_for(self, changes: Mapping[str, Any]) -> tuple[str, ...]:
        """The same for who takes these changes from tuning: flags would win over them."""
        plain = config_class(self.workload)()
        left = {name: getattr(plain, name) for name in changes}
        return self._typed(dataclasses.replace(self.config, **left))

    def _typed(self, given: Any) -> tuple[str, ...]:
        words, plain = list(self.command_line), config_class(self.workload)()
        for field in dataclasses.fields(given):
            value = getattr(given, field.name)
            if value != getattr(plain, field.name) and field.name not in LEFT_OUT:
                flag = field.name.replace("_", "-")
                if isinstance(value, bool):
                    words.append(f"--{flag}" if value else f"--no-{flag}")
                else:
                    words += [f"--{flag}", *map(str, value if isinstance(value, tuple) else (value,))]
        return tuple(words)

    def variables(self, settings: Settings) -> tuple[tuple[str, str], ...]:
        """What tells the host how to train."""
        config = self.tunable.endless(self.config_of(settings))
        fields = {k: v for k, v in dataclasses.asdict(config).items() if k not in LEFT_OUT}
        return ((CONFIG_VARIABLE, json.dumps(fields | {"seed": config.seed}, default=str)),)

    def fits(self, settings: Settings, probes: Sequence[Probe]) -> bool:
        """Whether its memory plan stays below half of what is free."""
        planned = self.memory_bytes(settings, probes)
        return planned is None or planned <= self._room_bytes

    def memory_bytes(self, settings: Settings, probes: Sequence[Probe]) -> int | None:
        """What its plan says; a forked probe shares too much with its host to be measured."""
        if settings not in self._planned:
            plan = memory_plan(self.workload, self.config_of(settings))
            self._planned[settings] = None if plan is None else plan.total_bytes
        return self._planned[settings]

    def starter(self) -> AbstractContextManager[Host]:
        """The process that probes are forked from."""
        self._host = Host(self.workload, plain_environment(), accounts=not self.cycles)
        return self._host

    def start(self, job: Any) -> Running:
        """Start one probe."""
        assert self._host is not None
        return self._host.start(job)

    def _is_allowed(self, settings: Mapping[str, Value]) -> bool:
        knobs = {knob.name: knob for knob in self.space.knobs}
        there = all(value in knobs[name].all_values for name, value in settings.items())
        return there and self.tunable.allowed(self.config, settings)
