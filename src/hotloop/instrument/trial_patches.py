"""The patches of `hotloop try` that need no torch, and the list of all patches."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from hotloop.instrument.patch import Patch
from hotloop.instrument.trial_patch import Place, TrialPatch, WrappingPatch, live_objects
from hotloop.instrument.trial_patches_torch import torch_patches

OUR_THREADS = "hotloop"  # how their names begin
DEFERRED = (50_000, 20, 100)  # gc thresholds: young objects are still collected, old ones rarely


class DeferredCollection(TrialPatch):
    """Garbage collection less often."""

    name = "gc"
    in_workers = True
    line = "gc.collect(); gc.freeze(); gc.set_threshold(50_000, 20, 100)"
    needs = ("import gc",)
    place: Place = "training"  # objects made before are the ones it skips
    why = (
        "The garbage collector skips old objects; young ones are still collected. Programs that create much "
        "cyclic garbage use more memory."
    )

    def __init__(self) -> None:
        self._was = gc.get_threshold()
        self._froze = False

    def skip_reason(self) -> str | None:
        if not gc.isenabled():
            return "the garbage collector is already off"
        if gc.get_threshold()[0] >= DEFERRED[0]:
            return "garbage is already collected rarely"
        return None

    def apply(self) -> None:
        self._was = gc.get_threshold()
        self._froze = gc.get_freeze_count() == 0  # otherwise the script has frozen objects itself
        if self._froze:
            gc.freeze()
        gc.set_threshold(*DEFERRED)

    def undo(self) -> None:
        gc.set_threshold(*self._was)
        if self._froze:
            gc.unfreeze()
            self._froze = False


class SwitchInterval(TrialPatch):
    """Longer time slices for Python threads."""

    name = "switch_interval"
    in_workers = True
    line = "sys.setswitchinterval(0.05)"
    needs = ("import sys",)
    why = "Python threads switch every 50 ms instead of every 5 ms."
    LONG_S = 0.05

    def __init__(self) -> None:
        self._was_s = sys.getswitchinterval()

    def skip_reason(self) -> str | None:
        others = [t for t in threading.enumerate() if not t.name.startswith(OUR_THREADS)]
        if len(others) < 2:
            return "the script has one Python thread"
        return None if sys.getswitchinterval() < self.LONG_S else "threads already switch rarely"

    def apply(self) -> None:
        self._was_s = sys.getswitchinterval()
        sys.setswitchinterval(self.LONG_S)

    def undo(self) -> None:
        sys.setswitchinterval(self._was_s)


class EnvChecks(WrappingPatch):
    """Steps bypass Gymnasium's checking wrappers."""

    name = "env_checks"
    in_workers = True
    line = (
        "for spec in gymnasium.registry.values(): spec.disable_env_checker, spec.order_enforce = True, False"
    )
    needs = ("import gymnasium",)
    why = (
        "Steps bypass two wrappers that gymnasium.make adds to find mistakes (PassiveEnvChecker, "
        "OrderEnforcing); a step before the first reset is no longer an error."
    )

    def _wrappers(self) -> list[type]:
        module = sys.modules.get("gymnasium.wrappers.common")
        names = ("PassiveEnvChecker", "OrderEnforcing")
        return [vars(module)[name] for name in names if name in vars(module)] if module else []

    def skip_reason(self) -> str | None:
        if not self._wrappers():
            return "gymnasium's wrappers are not imported"
        return None if live_objects(*self._wrappers()) else "no env in this process has a checking wrapper"

    def wrapped(self) -> Iterable[Patch]:
        """`step` of the wrappers; the first steps of an env are still checked."""

        def direct(step: Any) -> Any:
            def bypassed(self: Any, action: Any) -> Any:
                if vars(self).get("checked_data_reuse", True) is False or not vars(self).get(
                    "_has_reset", True
                ):
                    return step(self, action)
                return self.env.step(action)

            return bypassed

        return [Patch(cls, "step", direct) for cls in self._wrappers()]


class Logging(WrappingPatch):
    """Log rows are written later, outside of the measured time."""

    name = "logging"
    line = "log_interval=100"
    place: Place = "learn"
    why = (
        "In the trial, log rows are buffered and written when the patch is undone, so none is lost; the "
        "verdict is the most you can gain by logging less often."
    )
    between_phases = True

    def __init__(self) -> None:
        super().__init__()
        self._buffered: list[Any] = []

    def _owners(self) -> list[tuple[type, str, Any]]:
        found: list[tuple[type, str, Any]] = []
        logger = sys.modules.get("stable_baselines3.common.logger")
        if logger is not None and hasattr(logger, "Logger"):
            found.append((logger.Logger, "dump", self._buffer_rows(logger)))
            found.append((logger.Logger, "close", self._write_first))
        for name in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
            writer = sys.modules.get(name)
            if writer is not None and hasattr(writer, "SummaryWriter"):
                found.append((writer.SummaryWriter, "add_scalar", self._buffer_scalar))
                found.append((writer.SummaryWriter, "close", self._write_first))
        return found

    def skip_reason(self) -> str | None:
        owners = [owner for owner, _, _ in self._owners()]
        in_use = owners and live_objects(*owners)
        return None if in_use else "no known logger (Stable-Baselines3, SummaryWriter) is in use"

    def wrapped(self) -> Iterable[Patch]:
        """`Logger.dump` and `SummaryWriter.add_scalar`; closing writes the buffered rows first."""
        return [Patch(owner, name, make) for owner, name, make in self._owners()]

    def undo(self) -> None:
        super().undo()
        self._write()

    def _write(self) -> None:
        buffered, self._buffered = self._buffered, []
        for write in buffered:
            write()

    def _write_first(self, close: Any) -> Any:
        def write_and_close(logger: Any, *args: Any, **words: Any) -> Any:
            self._write()
            return close(logger, *args, **words)

        return write_and_close

    def _buffer_rows(self, module: Any) -> Any:
        def make(dump: Any) -> Any:
            def buffer(logger: Any, step: int = 0) -> None:
                if logger.level == module.DISABLED:
                    return
                values, excluded = dict(logger.name_to_value), dict(logger.name_to_excluded)
                for form in logger.output_formats:
                    if isinstance(form, module.KVWriter):
                        self._buffered.append(lambda form=form: form.write(values, excluded, step))
                for values_of_row in (logger.name_to_value, logger.name_to_count, logger.name_to_excluded):
                    values_of_row.clear()

            return buffer

        return make

    def _buffer_scalar(self, add: Any) -> Any:
        def buffer(writer: Any, tag: str, value: Any, *args: Any, **words: Any) -> None:
            if len(args) < 2:
                words.setdefault("walltime", time.time())
            fixed = float(value) if hasattr(value, "item") else value
            self._buffered.append(lambda: add(writer, tag, fixed, *args, **words))

        return buffer


class InertPatch(TrialPatch):
    """A patch without any effect: whatever it seems to change is noise."""

    line = "pass"
    why = "It does nothing; any change is noise."

    def __init__(self, number: int):
        self.name = f"nothing_{number}"

    def skip_reason(self) -> str | None:
        return None

    def apply(self) -> None:
        pass

    def undo(self) -> None:
        pass


def inert_patches(count: int) -> list[TrialPatch]:
    """Patches without effect, for `--selftest`."""
    return [InertPatch(number) for number in range(1, count + 1)]


more_patches: list[Callable[[], TrialPatch]] = []  # of other parts of hotloop, which add theirs at start-up


def all_patches() -> list[TrialPatch]:
    """Every patch, whether it applies or not. Imports nothing that the script has not imported."""
    found: list[TrialPatch] = [DeferredCollection(), SwitchInterval(), EnvChecks(), Logging()]
    found += torch_patches() if "torch" in sys.modules else []
    return found + [make() for make in more_patches]


NAMES = (
    *("gc", "switch_interval", "env_checks", "logging"),
    *("threads", "denormals", "validation", "fused_optimizer", "inference_mode"),
    *("anomaly", "clip", "channels_last", "matmul_precision"),
    "boost",
)
