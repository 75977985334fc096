"""For scripts that want to show their own performance: a callback, a wrapper, a hook, scalars for loggers.

`HotloopCallback` (Stable-Baselines3) and `ProfiledEnv` (Gymnasium) derive from classes of these libraries
and are created on first use, so that importing this module costs nothing. Everything here reads what this
process has recorded. If nothing is being recorded yet, a `Meter` records in memory and wraps the known
libraries until it is closed.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hotloop._util.errors import HotloopError
from hotloop._util.extras import require_extra
from hotloop.capture.region_names import FIXED_NAMES
from hotloop.instrument import libraries, step_counting
from hotloop.measure.profiler import default

if TYPE_CHECKING:
    HotloopCallback: Any
    ProfiledEnv: Any

__all__ = ["HotloopCallback", "Meter", "ProfiledEnv", "Reading", "TorchRLHook", "write_scalars"]

# Diagnosis of a loop that first collects, then learns: categories -> sentence.
SENTENCES = (
    (("environment", "rendering", "ipc", "wait"), "learner waits {share:.0%} for env"),
    (("policy",), "env waits {share:.0%} for the policy"),
    (
        ("model", "loss", "backward", "optimizer", "advantage", "replay", "data", "transfer"),
        "env waits {share:.0%} for the learner",
    ),
    (("logging", "evaluation", "checkpoint"), "training waits {share:.0%} for {most}"),
    (("compilation",), "{share:.0%} goes to compilation"),
    (("framework",), "{share:.0%} goes to the framework around it all"),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What one thread did between two readings."""

    wall_s: float
    env_steps: int
    shares: dict[str, float]  # fraction of wall time by category; they add up to 1
    bottleneck: str | None  # the category with the most time; None when nothing was recorded
    diagnosis: str  # one sentence

    @property
    def sps(self) -> float | None:
        """Env steps per second; None when no steps were counted."""
        return self.env_steps / self.wall_s if self.env_steps and self.wall_s else None

    @property
    def scalars(self) -> dict[str, float]:
        """The numbers under the names for loggers: perf/sps and perf/share_<category>."""
        found = {f"perf/share_{category}": share for category, share in self.shares.items()}
        return found if self.sps is None else {"perf/sps": self.sps, **found}


class Meter:
    """Reads what the calling thread has done since the last reading."""

    def __init__(self, wrap: bool = True) -> None:
        """Record in memory and, with `wrap`, wrap the known libraries, unless this is done already."""
        self._started = not default.is_recording
        self._instrument: libraries.Instrumentation | None = None
        if self._started:
            default.start()
        if wrap and libraries.current is None:
            self._instrument = libraries.current = libraries.Instrumentation()
            self._instrument.install()
        self._before = _Totals.now()

    def read(self) -> Reading:
        """What the calling thread did since the last reading."""
        now = _Totals.now()
        before, self._before = self._before, now
        wall_ns = now.wall_ns - before.wall_ns
        spent = {kind: ns - before.own_ns.get(kind, 0) for kind, ns in now.own_ns.items()}
        shares = {kind: ns / wall_ns for kind, ns in sorted(spent.items()) if ns > 0 and wall_ns > 0}
        known = {kind: share for kind, share in shares.items() if kind not in ("other", "unattributed")}
        return Reading(
            wall_s=wall_ns / 1e9,
            env_steps=now.env_steps - before.env_steps,
            shares=shares,
            bottleneck=max(known, key=lambda kind: known[kind]) if known else None,
            diagnosis=diagnose(shares),
        )

    def close(self) -> None:
        """Undo what this meter has installed."""
        if self._instrument is not None:
            self._instrument.remove()
            libraries.current = self._instrument = None
        if self._started:
            default.stop()
            self._started = False


@dataclass(frozen=True, slots=True)
class _Totals:
    """Figures of one thread since its start."""

    wall_ns: int
    env_steps: int
    own_ns: dict[str, int]  # by category

    @classmethod
    def now(cls) -> _Totals:
        """Read inside a region, so that the time before it already has its final name."""
        with default.profile("hotloop_meter", "hotloop"):
            return cls.of(default.capture())

    @classmethod
    def of(cls, capture: Any) -> _Totals:
        native_id = threading.get_native_id()
        mine = [t for t in capture.threads if t.native_id == native_id and not t.ended]
        if not mine:
            return cls(0, 0, {})
        own_ns: dict[str, int] = {}
        todo: list[tuple[Any, str]] = [(mine[0].root, "unattributed")]
        while todo:
            node, kind = todo.pop()
            own_ns[kind] = own_ns.get(kind, 0) + node.own_ns
            inherited = "other" if kind == "unattributed" else kind
            todo += [(c, c.category or FIXED_NAMES.get(c.name, inherited)) for c in node.children]
        return cls(sum(own_ns.values()), capture.progress.env_steps, own_ns)


def diagnose(shares: dict[str, float]) -> str:
    """One sentence about the group of categories with the most time."""
    best, words = 0.0, "nothing was recorded"
    for kinds, sentence in SENTENCES:
        share = sum(shares.get(kind, 0.0) for kind in kinds)
        if share > best:
            most = max(kinds, key=lambda kind: shares.get(kind, 0.0))
            best, words = share, sentence.format(share=share, most=most).replace("%", " %")
    return words


def write_scalars(writer: Any, reading: Reading, step: int) -> None:
    """Write a reading to a TensorBoard `SummaryWriter`, a wandb run, or the wandb module."""
    if hasattr(writer, "add_scalar"):
        for name, value in reading.scalars.items():
            writer.add_scalar(name, value, step)
        if reading.bottleneck is not None:
            writer.add_text("perf/bottleneck", reading.bottleneck, step)
    elif hasattr(writer, "log"):
        writer.log({**reading.scalars, "perf/bottleneck": reading.bottleneck}, step=step)
    else:
        raise HotloopError(
            f"{type(writer).__name__} is neither a SummaryWriter (add_scalar) nor a wandb run (log);"
            " pass one of these."
        )


class _Regular:
    """Takes a reading every `every_s` seconds and prints its diagnosis with `say`."""

    def __init__(self, every_s: float, say: Callable[[str], object]):
        self._every_s = every_s
        self._say = say
        self._meter: Meter | None = None
        self._due_s = 0.0

    def start(self) -> None:
        if self._meter is None:
            self._meter = Meter()
            self._due_s = time.monotonic() + self._every_s

    def read_if_due(self, now: bool = False) -> Reading | None:
        """A reading when one is due or with `now`; None otherwise."""
        if self._meter is None or (not now and time.monotonic() < self._due_s):
            return None
        self._due_s = time.monotonic() + self._every_s
        reading = self._meter.read()
        rate = "" if reading.sps is None else f"{reading.sps:,.0f} steps/s; "
        self._say(f"hotloop: {rate}{reading.diagnosis}")
        return reading

    def stop(self) -> None:
        if self._meter is not None:
            self._meter.close()
            self._meter = None


def _print(line: str) -> None:
    print(line, file=sys.stderr)


class TorchRLHook:
    """For TorchRL: `hook.register(trainer)`, or call it once per batch in your own loop."""

    def __init__(self, every_s: float = 10.0, say: Callable[[str], object] = _print):
        """Print a diagnosis with `say` every `every_s` seconds."""
        self._regular = _Regular(every_s, say)
        self._regular.start()

    def __call__(self, batch: Any = None) -> dict[str, float] | None:
        """The scalars when they are due, else None, as TorchRL's logging hooks return them."""
        reading = self._regular.read_if_due()
        return None if reading is None else reading.scalars

    def register(self, trainer: Any, name: str = "hotloop") -> None:
        """Log through a `torchrl.trainers.Trainer`."""
        trainer.register_op("post_steps_log", self)

    def close(self) -> None:
        """Undo what the hook has installed."""
        self._regular.stop()


def _make_callback() -> type:
    base: Any = require_extra("stable_baselines3.common.callbacks", "sb3").BaseCallback

    class HotloopCallback(base):  # type: ignore[misc]
        """Records perf/sps, perf/share_<category> and perf/bottleneck in the model's logger.

        Every `every_s` seconds, at a step or at the end of a rollout, and once at the end.
        """

        def __init__(self, every_s: float = 10.0, say: Callable[[str], object] = _print):
            super().__init__()
            self._regular = _Regular(every_s, say)

        def _on_training_start(self) -> None:
            self._regular.start()

        def _on_step(self) -> bool:
            self._record(self._regular.read_if_due())
            return True

        def _on_training_end(self) -> None:
            self._record(self._regular.read_if_due(now=True))
            self._regular.stop()

        def _record(self, reading: Reading | None) -> None:
            if reading is not None:
                for name, value in reading.scalars.items():
                    self.logger.record(name, value)
                if reading.bottleneck is not None:
                    self.logger.record("perf/bottleneck", reading.bottleneck)

    HotloopCallback.__qualname__ = "HotloopCallback"
    return HotloopCallback


def _make_wrapper() -> type:
    base: Any = require_extra("gymnasium", "rl").Wrapper
    step, reset, render = (default.profile(name) for name in ("env_step", "env_reset", "env_render"))

    class ProfiledEnv(base):  # type: ignore[misc]
        """An env whose steps, resets and renderings are recorded, and whose steps are counted.

        Has no effect inside `hotloop run`, which records every env.
        """

    for name, region, after in (
        ("step", step, step_counting.single_step),
        ("reset", reset, step_counting.single_reset),
        ("render", render, None),
    ):
        setattr(ProfiledEnv, name, region.wrap(getattr(base, name), skip_inside=(region,), after=after))
    ProfiledEnv.__qualname__ = "ProfiledEnv"
    return ProfiledEnv


_MADE_LATER = {"HotloopCallback": _make_callback, "ProfiledEnv": _make_wrapper}


def __getattr__(name: str) -> Any:
    if name in _MADE_LATER:
        made = globals()[name] = _MADE_LATER[name]()
        return made
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
