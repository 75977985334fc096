"""A reference workload as a target of `hotloop tune`."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop.lab.process import Job, Outcome
from hotloop.machine.facts import cores_granted
from hotloop.machine.health import memory_available_bytes
from hotloop.tuning.memory_plan import TUNED_SHARE
from hotloop.tuning.space import Settings, Space, Value
from hotloop.tuning.starting_rules import whole_cores
from hotloop.tuning.time_model import Probe
from hotloop.workflows.experiments import plain_environment
from hotloop.workflows.probes import (
    CONFIG_VARIABLE,
    SCRIPT_CYCLES,
    Host,
    ProbeLength,
    Running,
    StartOnNode,
    ended_early_on_nodes,
)
from hotloop.workflows.train import config_class
from hotloop.workflows.train_predictions import memory_plan
from hotloop.workflows.tune_knobs import TUNABLE, stage_names

# Not tuned, and not passed to probes.
NOT_TUNED = (
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
    """A reference workload with its settings; by default with the cores and memory of this machine."""

    is_workload = True

    def __init__(
        self,
        workload: str,
        config: Any,
        also: Sequence[str] = (),
        cores: float | None = None,
        free_bytes: int | None = None,
    ):
        config_class(workload)
        if workload not in TUNABLE:
            raise HotloopError(f"{workload} has no settings to tune; use one of {', '.join(TUNABLE)}.")
        self.workload, self.config, self.tunable = workload, config, TUNABLE[workload]
        n_cores = whole_cores(cores_granted() if cores is None else cores)
        more = {knob.name: knob for knob in self.tunable.also(config, n_cores)}
        unknown = [word for word in also if word not in more]
        if unknown:
            known = f"use one of {', '.join(more)}" if more else f"{workload} has no further settings"
            raise HotloopError(f"--also {unknown[0]} is unknown; {known}.")
        knobs = [*self.tunable.knobs(config, n_cores), *(more[word] for word in also)]
        self.name = stage_names(workload, getattr(config, "stage", None))[0]
        self.space = Space(tuple(knobs), self._is_allowed)
        self.command_line = ("hotloop", "train", workload)
        completes = self.tunable.completes_cycle(config)
        self.cycles = 0 if completes else SCRIPT_CYCLES
        self.warm_up_updates = 0 if completes else self.tunable.warm_up_updates
        self.compare_s = self.tunable.compare_s(config)
        self._host: Host | None = None
        self._planned: dict[Settings, int | None] = {}
        self._room_bytes = TUNED_SHARE * (memory_available_bytes() if free_bytes is None else free_bytes)

    def check(self) -> None:
        """Raise HotloopError if the workload rejects the current settings."""
        importlib.import_module(f"hotloop.rl.workloads.{self.workload}").check(self.config)

    @property
    def base(self) -> dict[str, Any]:
        """Settings that are not tuned."""
        tuned = {name for name, _ in self.space.current}
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self.config), default=str))
        return {k: v for k, v in plain.items() if k not in tuned and k not in NOT_TUNED}

    def changes(self, settings: Settings) -> dict[str, Any]:
        """Fields of the config that differ with these settings, including dependent ones."""
        new, old = dataclasses.asdict(self.config_of(settings)), dataclasses.asdict(self.config)
        return {name: value for name, value in new.items() if value != old[name]}

    def config_of(self, settings: Settings) -> Any:
        """The config with these settings and those that depend on them."""
        changed = dict(self.space.changed(settings))
        return self.tunable.change(self.config, changed, dict(settings)) if changed else self.config

    def command(self, settings: Settings) -> tuple[str, ...]:
        """Command line with these settings."""
        return self._typed(self.config_of(settings))

    def command_for(self, changes: Mapping[str, Any]) -> tuple[str, ...]:
        """Command line to which --tuned adds these changes: flags would override them."""
        plain = config_class(self.workload)()
        left = {name: getattr(plain, name) for name in changes}
        return self._typed(dataclasses.replace(self.config, **left))

    def _typed(self, given: Any) -> tuple[str, ...]:
        words, plain = list(self.command_line), config_class(self.workload)()
        for field in dataclasses.fields(given):
            value = getattr(given, field.name)
            if value != getattr(plain, field.name) and field.name not in NOT_TUNED:
                flag = field.name.replace("_", "-")
                if isinstance(value, bool):
                    words.append(f"--{flag}" if value else f"--no-{flag}")
                else:
                    words += [f"--{flag}", *map(str, value if isinstance(value, tuple) else (value,))]
        return tuple(words)

    def variables(self, settings: Settings) -> tuple[tuple[str, str], ...]:
        """The config for the host, as an environment variable."""
        config = self.tunable.endless(self.config_of(settings))
        fields = {k: v for k, v in dataclasses.asdict(config).items() if k not in NOT_TUNED}
        return ((CONFIG_VARIABLE, json.dumps(fields | {"seed": config.seed}, default=str)),)

    def fits(self, settings: Settings, probes: Sequence[Probe]) -> bool:
        """Whether the predicted memory is below half of what is free."""
        planned = self.memory_bytes(settings, probes)
        return planned is None or planned <= self._room_bytes

    def memory_bytes(self, settings: Settings, probes: Sequence[Probe]) -> int | None:
        """Predicted memory; a forked probe shares too much with its host to be measured."""
        if settings not in self._planned:
            plan = memory_plan(self.workload, self.config_of(settings))
            self._planned[settings] = None if plan is None else plan.total_bytes
        return self._planned[settings]

    def starter(self) -> AbstractContextManager[Host]:
        """Start the process that probes are forked from."""
        self._host = Host(self.workload, plain_environment(), save_outcome=not self.cycles)
        return self._host

    def start(self, job: Any) -> Running:
        """Start one probe."""
        assert self._host is not None
        return self._host.start(job)

    def run_on_nodes(self, start: StartOnNode, length: ProbeLength) -> Callable[[Job], Outcome]:
        """A function that makes one probe on a node of a cluster."""
        return ended_early_on_nodes(start, length, self.workload, save_outcome=not self.cycles)

    def _is_allowed(self, settings: Mapping[str, Value]) -> bool:
        knobs = {knob.name: knob for knob in self.space.knobs}
        there = all(value in knobs[name].all_values for name, value in settings.items())
        return there and self.tunable.allowed(self.config, settings)
