"""What can be tuned in our own workloads: the knobs of each, and the settings that follow from them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop.machine.health import memory_available_bytes
from hotloop.tuning.memory import TUNED_SHARE
from hotloop.tuning.model import Probe
from hotloop.tuning.space import Knob, Settings, Space, Value, doubling
from hotloop.tuning.starting import whole_cores
from hotloop.workflows.experiments import plain_environment
from hotloop.workflows.memory import memory_plan
from hotloop.workflows.probes import CONFIG_VARIABLE, SCRIPT_CYCLES, Host, Running
from hotloop.workflows.train import config_class

ENDLESS = 1_000_000_000  # steps of a probe, which is ended from outside
# Not part of what is tuned, and not to be touched by probes.
LEFT_OUT = ("seed", "checkpoint", "resume", "metrics", "log", "learning_check")

Change = Callable[[Any, Mapping[str, Value]], Any]  # config, settings -> config


@dataclass(frozen=True)
class Tunable:
    """How one workload is tuned."""

    knobs: Callable[[Any, int], Sequence[Knob]]  # config, cores
    also: Callable[[Any, int], Sequence[Knob]]  # knobs that are searched only when named
    change: Change
    endless: Change


# ---- petri


def _petri_knobs(config: Any, cores: int) -> list[Knob]:
    frames = config.frames_per_batch
    return [
        Knob("learner", ("fused", "torch"), config.learner),
        *([] if config.turbo else [Knob("turbo", (True,), False)]),
        Knob(
            "envs",
            tuple(n for n in doubling(1, 1024) if frames % n == 0),
            config.envs,
            "envs",
            "semantic",
            f"frames_per_batch stays {frames}: more tools, fewer steps of each",
        ),
    ]


def _petri_also(config: Any, cores: int) -> list[Knob]:
    sizes = tuple(n for n in doubling(64, config.frames_per_batch) if config.frames_per_batch % n == 0)
    said = "frames and epochs stay, so the number of updates changes: a different amount of learning"
    return [Knob("minibatch", sizes or (config.minibatch,), config.minibatch, "batch", "semantic", said)]


def _petri_endless(config: Any, settings: Mapping[str, Value]) -> Any:
    # `auto` measures the learners, with an eye on how long the training is: it keeps the user's length
    return config if config.learner == "auto" else replace(config, timesteps=ENDLESS, batches=0)


# ---- ricochet


def _ricochet_knobs(config: Any, cores: int) -> list[Knob]:
    samples = config.envs * config.rollout_steps
    pictures = config.obs_mode == "rgb_image" and config.trainer == "hotloop"
    return [
        *([] if config.rendering == "compiled" else [Knob("rendering", ("compiled",), config.rendering)]),
        *([Knob("threads", tuple(range(1, cores + 1)), config.threads, "threads")] if pictures else []),
        Knob(
            "envs",
            tuple(n for n in doubling(4, 256) if samples % n == 0 and samples // n >= 4) or (config.envs,),
            config.envs,
            "envs",
            "semantic",
            f"envs x rollout_steps stays {samples}, and so does the number of updates",
        ),
    ]


def _ricochet_change(config: Any, settings: Mapping[str, Value]) -> Any:
    envs = int(settings["envs"])
    steps = config.envs * config.rollout_steps // envs
    return replace(config, **{**settings, "envs": envs, "rollout_steps": steps})


def _ricochet_endless(config: Any, settings: Mapping[str, Value]) -> Any:
    auto = config.obs_mode != "rgb_image"  # then the learner is measured, see petri
    return config if auto else replace(config, timesteps=ENDLESS)


# ---- snake

_SNAKE_SWITCHES: dict[str, tuple[Value, ...]] = {
    "learner": ("fused", "torch"),
    "loop": ("kernel",),
    "push": ("batch",),
    "transfers": ("batch",),
    "split": ("off",),
    "logging": ("off",),
}


def _snake_knobs(config: Any, cores: int) -> list[Knob]:
    now = config.switches
    found = []
    for name, values in _SNAKE_SWITCHES.items():
        current = getattr(now, name)
        if config.trainer == "hotloop" and (len(values) > 1 or current != values[0]):
            found.append(Knob(name, values, current))
    if now.flood_fill in ("python", "cached"):
        found.append(Knob("flood_fill", ("compiled",), now.flood_fill))
    said = "updates for each env step stay the same, and so does the replay"
    games = tuple(n for n in doubling(16, 4096) if n <= config.capacity)
    return [*found, Knob("envs", games or (config.envs,), config.envs, "envs", "semantic", said)]


def _snake_also(config: Any, cores: int) -> list[Knob]:
    said = "updates for each env step stay the same, each from more or fewer transitions"
    return [Knob("batch_size", doubling(32, 512), config.batch_size, "batch", "semantic", said)]


def _snake_change(config: Any, settings: Mapping[str, Value]) -> Any:
    updates = str(config.switches.updates)
    if not updates.startswith("n"):  # for each step of all games: more games, more of them
        updates = str(Fraction(updates) * int(settings["envs"]) / config.envs)
    return replace(config, **{**settings, "updates": updates})


# ---- mario


def _mario_knobs(config: Any, cores: int) -> list[Knob]:
    said = "learn_per_step stays: transitions learnt from for each one collected"
    now = config.machinery
    return [
        Knob("layout", ("fast",), now.layout),
        Knob("threads", tuple(range(1, cores + 1)), config.threads, "threads"),
        Knob("collectors", doubling(1, max(2 * cores, 4)), now.collectors, "workers", "semantic", said),
        Knob("envs", doubling(1, 32), now.envs, "envs", "semantic", said),
    ]


# ---- imitate


def _imitate_knobs(config: Any, cores: int) -> list[Knob]:
    learner = Knob("learner", ("fused", "torch"), config.learner)
    if config.stage == "demos":
        return [Knob("workers", tuple(range(1, cores + 1)), config.demonstration_workers, "workers")]
    if config.stage == "bc":
        loading = config.loading or ("index" if config.loaders is None else "loader")
        return [learner, Knob("loading", ("index", "loader"), loading)]
    if config.stage == "rl":
        said = "updates for each env step stay the same"
        return [learner, Knob("envs", doubling(1, 64), config.envs, "envs", "semantic", said)]
    raise HotloopError("imitate is tuned stage by stage; add --stage demos, --stage bc or --stage rl.")


def _imitate_endless(config: Any, settings: Mapping[str, Value]) -> Any:
    # reinforcement learning begins anew, so that probes do not need a clone; its speed is the same
    return replace(config, episodes=ENDLESS, epochs=ENDLESS, timesteps=ENDLESS, start="scratch")


def _replaced(config: Any, settings: Mapping[str, Value]) -> Any:
    return replace(config, **settings)


def _nothing_more(config: Any, cores: int) -> list[Knob]:
    return []


TUNABLE = {
    "petri": Tunable(_petri_knobs, _petri_also, _replaced, _petri_endless),
    "ricochet": Tunable(_ricochet_knobs, _nothing_more, _ricochet_change, _ricochet_endless),
    "snake": Tunable(
        _snake_knobs,
        _snake_also,
        _snake_change,
        lambda config, settings: replace(config, episodes=ENDLESS, steps=0),
    ),
    "imitate": Tunable(_imitate_knobs, _nothing_more, _replaced, _imitate_endless),
    "mario": Tunable(
        _mario_knobs, _nothing_more, _replaced, lambda config, settings: replace(config, epochs=ENDLESS)
    ),
}


class WorkloadTarget:
    """A workload of ours with its settings."""

    def __init__(self, name: str, config: Any, cores_granted: float, also: Sequence[str] = ()):
        config_class(name)
        if name not in TUNABLE:
            raise HotloopError(f"{name} has no settings to tune; there is {', '.join(TUNABLE)}.")
        self.name, self.config, self.tunable = name, config, TUNABLE[name]
        cores = whole_cores(cores_granted)
        more = {knob.name: knob for knob in self.tunable.also(config, cores)}
        unknown = [word for word in also if word not in more]
        if unknown:
            raise HotloopError(f"--also {unknown[0]} is not known; there is {', '.join(more) or 'nothing'}.")
        knobs = [*self.tunable.knobs(config, cores), *(more[word] for word in also)]
        self.space = Space(tuple(knobs), self._is_allowed)
        self.command_line = ("hotloop", "train", name)
        # our trainers end an iteration before they stop; other libraries are cut off
        self.cycles = 0 if getattr(config, "trainer", "hotloop") == "hotloop" else SCRIPT_CYCLES
        self._host: Host | None = None
        self._planned: dict[Settings, int | None] = {}
        free = memory_available_bytes()
        self._room_bytes = None if free is None else TUNED_SHARE * free

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
        now = dict(self.space.current)
        changed = {name: value for name, value in settings if value != now[name]}
        return self.tunable.change(self.config, now | changed) if changed else self.config

    def command(self, settings: Settings) -> tuple[str, ...]:
        """What a person would type."""
        words = list(self.command_line)
        plain, given = config_class(self.name)(), self.config_of(settings)
        for field in dataclasses.fields(given):
            value = getattr(given, field.name)
            if value != getattr(plain, field.name) and field.name not in LEFT_OUT:
                flag = field.name.replace("_", "-")
                words += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else []
                words += [] if isinstance(value, bool) else [f"--{flag}", str(value)]
        return tuple(words)

    def variables(self, settings: Settings) -> tuple[tuple[str, str], ...]:
        """What tells the host how to train."""
        config = self.tunable.endless(self.config_of(settings), dict(settings))
        fields = {k: v for k, v in dataclasses.asdict(config).items() if k not in LEFT_OUT}
        return ((CONFIG_VARIABLE, json.dumps(fields | {"seed": config.seed}, default=str)),)

    def fits(self, settings: Settings, probes: Sequence[Probe]) -> bool:
        """Whether its memory plan stays below half of what is free."""
        planned = self.memory_bytes(settings, probes)
        return planned is None or self._room_bytes is None or planned <= self._room_bytes

    def memory_bytes(self, settings: Settings, probes: Sequence[Probe]) -> int | None:
        """What its plan says; a forked probe shares too much with its host to be measured."""
        if settings not in self._planned:
            plan = memory_plan(self.name, self.config_of(settings))
            self._planned[settings] = None if plan is None else plan.total_bytes
        return self._planned[settings]

    def starter(self) -> AbstractContextManager[Host]:
        """The process that probes are forked from."""
        self._host = Host(self.name, plain_environment())
        return self._host

    def start(self, job: Any) -> Running:
        """Start one probe."""
        assert self._host is not None
        return self._host.start(job)

    def _is_allowed(self, settings: Mapping[str, Value]) -> bool:
        knobs = {knob.name: knob for knob in self.space.knobs}
        return all(value in knobs[name].all_values for name, value in settings.items())
