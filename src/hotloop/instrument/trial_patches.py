"""Safe patches that can be switched on and off while a script runs; the line that makes each permanent.

Safe means: the script computes the same up to rounding, and `off` leaves everything as `on` found it.
Those that need torch are in `toggles_torch.py`.
"""

from __future__ import annotations

import gc
import importlib
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, Literal

from hotloop.instrument.patch import Patch, Patches

# Where the line goes: after the imports, before training, into the call that makes the model or
# optimizer, into `learn`.
Place = Literal["imports", "training", "model", "learn"]
OUR_THREADS = "hotloop"
DEFERRED = (50_000, 20, 100)  # gc thresholds: young objects are still collected, old ones rarely


def alive(*kinds: type) -> list[Any]:
    """All objects of some kinds; takes some hundredths of a second."""
    # Not isinstance: it would run code of objects that pose as others, and of abstract classes.
    wanted = frozenset(kinds)
    return [thing for thing in gc.get_objects() if not wanted.isdisjoint(type(thing).__mro__)]


class Toggle:
    """One patch. `on` and `off` are called in turn, from the thread that trains."""

    name = ""
    line = ""  # what a user would write
    why = ""  # what it does and what it gives up
    needs: tuple[str, ...] = ()  # imports the line needs
    place: Place = "imports"
    between = False  # acts only between collecting and learning
    workers = False  # may change something in worker processes, too
    conflicts: tuple[str, ...] = ()  # names it must not be combined with

    def why_not(self) -> str | None:
        """Why it would change nothing here; None when it would do something."""
        raise NotImplementedError

    def applies(self) -> bool:
        """Whether its library is in use and it would change anything."""
        return self.why_not() is None

    def on(self) -> None:
        """Switch it on."""
        raise NotImplementedError

    def off(self) -> None:
        """Put back exactly what was there."""
        raise NotImplementedError


class PatchToggle(Toggle):
    """A toggle made of patches."""

    def __init__(self) -> None:
        self._applied = Patches()

    def patches(self) -> Iterable[Patch]:
        """What to patch while it is on."""
        raise NotImplementedError

    def on(self) -> None:
        """Apply the patches."""
        self._applied.apply(self.patches())

    def off(self) -> None:
        """Undo them."""
        self._applied.undo()


class Collector(Toggle):
    """Garbage collection put off."""

    name = "gc"
    workers = True
    line = "gc.collect(); gc.freeze(); gc.set_threshold(50_000, 20, 100)"
    needs = ("import gc",)
    place: Place = "training"  # what is made before is what it no longer looks through
    why = (
        "The garbage collector stops looking through old objects again and again; young ones are still "
        "collected. Programs that make much cyclic garbage use more memory."
    )

    def __init__(self) -> None:
        self._was = gc.get_threshold()
        self._froze = False

    def why_not(self) -> str | None:
        """Unless it is off or rarer already."""
        if not gc.isenabled():
            return "the garbage collector is off already"
        if gc.get_threshold()[0] >= DEFERRED[0]:
            return "garbage is collected rarely already"
        return None

    def on(self) -> None:
        """Old objects out of its sight, if nobody else has put any there; higher thresholds."""
        self._was = gc.get_threshold()
        self._froze = gc.get_freeze_count() == 0
        if self._froze:
            gc.freeze()
        gc.set_threshold(*DEFERRED)

    def off(self) -> None:
        """As before."""
        gc.set_threshold(*self._was)
        if self._froze:
            gc.unfreeze()
            self._froze = False


class SwitchInterval(Toggle):
    """Threads of Python hand over less often."""

    name = "switch_interval"
    workers = True
    line = "sys.setswitchinterval(0.05)"
    needs = ("import sys",)
    why = "Python threads take the interpreter from each other every 50 ms instead of every 5 ms."
    LONG_S = 0.05

    def __init__(self) -> None:
        self._was_s = sys.getswitchinterval()

    def why_not(self) -> str | None:
        """Only where there are threads."""
        others = [t for t in threading.enumerate() if not t.name.startswith(OUR_THREADS)]
        if len(others) < 2:
            return "the script has one Python thread"
        return None if sys.getswitchinterval() < self.LONG_S else "threads hand over rarely already"

    def on(self) -> None:
        """50 ms."""
        self._was_s = sys.getswitchinterval()
        sys.setswitchinterval(self.LONG_S)

    def off(self) -> None:
        """As before."""
        sys.setswitchinterval(self._was_s)


class EnvChecks(PatchToggle):
    """Gymnasium's checking wrappers passed by."""

    name = "env_checks"
    workers = True
    line = (
        "for spec in gymnasium.registry.values(): spec.disable_env_checker, spec.order_enforce = True, False"
    )
    needs = ("import gymnasium",)
    why = (
        "Each step passes by two wrappers that gymnasium.make adds to find mistakes (PassiveEnvChecker, "
        "OrderEnforcing); a step before the first reset is then no longer noticed."
    )

    def _wrappers(self) -> list[type]:
        module = sys.modules.get("gymnasium.wrappers.common")
        names = ("PassiveEnvChecker", "OrderEnforcing")
        return [vars(module)[name] for name in names if name in vars(module)] if module else []

    def why_not(self) -> str | None:
        """Only where an env is wrapped in one."""
        if not self._wrappers():
            return "gymnasium's wrappers are not imported"
        return None if alive(*self._wrappers()) else "no env of this process has a checking wrapper"

    def patches(self) -> Iterable[Patch]:
        """The wrappers' `step`; the checker's first steps are still checked."""

        def direct(step: Any) -> Any:
            def passed_by(self: Any, action: Any) -> Any:
                if vars(self).get("checked_data_reuse", True) is False or not vars(self).get(
                    "_has_reset", True
                ):
                    return step(self, action)
                return self.env.step(action)

            return passed_by

        return [Patch(cls, "step", direct) for cls in self._wrappers()]


class Logging(PatchToggle):
    """Logs written later, and not while the time is taken."""

    name = "logging"
    line = "log_interval=100"
    place: Place = "learn"
    why = (
        "Log rows are kept and written when the patch is switched off, so none is lost here; what is "
        "measured is the most that logging less often can bring."
    )
    between = True

    def __init__(self) -> None:
        super().__init__()
        self._later: list[Any] = []

    def _owners(self) -> list[tuple[type, str, Any]]:
        found: list[tuple[type, str, Any]] = []
        logger = sys.modules.get("stable_baselines3.common.logger")
        if logger is not None and hasattr(logger, "Logger"):
            found.append((logger.Logger, "dump", self._keep_rows(logger)))
            found.append((logger.Logger, "close", self._write_first))
        for name in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
            writer = sys.modules.get(name)
            if writer is not None and hasattr(writer, "SummaryWriter"):
                found.append((writer.SummaryWriter, "add_scalar", self._keep_scalar))
                found.append((writer.SummaryWriter, "close", self._write_first))
        return found

    def why_not(self) -> str | None:
        """Only where something logs."""
        owners = [owner for owner, _, _ in self._owners()]
        in_use = owners and alive(*owners)
        return None if in_use else "no logger it knows (Stable-Baselines3, SummaryWriter) is in use"

    def patches(self) -> Iterable[Patch]:
        """`Logger.dump` and `SummaryWriter.add_scalar`; closing writes what was kept."""
        return [Patch(owner, name, make) for owner, name, make in self._owners()]

    def off(self) -> None:
        """Write what was kept, in its order."""
        super().off()
        self._write()

    def _write(self) -> None:
        later, self._later = self._later, []
        for write in later:
            write()

    def _write_first(self, close: Any) -> Any:
        def write_and_close(logger: Any, *args: Any, **words: Any) -> Any:
            self._write()
            return close(logger, *args, **words)

        return write_and_close

    def _keep_rows(self, module: Any) -> Any:
        def make(dump: Any) -> Any:
            def keep(logger: Any, step: int = 0) -> None:
                if logger.level == module.DISABLED:
                    return
                values, excluded = dict(logger.name_to_value), dict(logger.name_to_excluded)
                for form in logger.output_formats:
                    if isinstance(form, module.KVWriter):
                        self._later.append(lambda form=form: form.write(values, excluded, step))
                for kept in (logger.name_to_value, logger.name_to_count, logger.name_to_excluded):
                    kept.clear()

            return keep

        return make

    def _keep_scalar(self, add: Any) -> Any:
        def keep(writer: Any, tag: str, value: Any, *args: Any, **words: Any) -> None:
            if len(args) < 2:
                words.setdefault("walltime", time.time())
            fixed = float(value) if hasattr(value, "item") else value
            self._later.append(lambda: add(writer, tag, fixed, *args, **words))

        return keep


class Nothing(Toggle):
    """A patch that does nothing: what it is found to change is noise."""

    line = "pass"
    why = "It does nothing; what it is found to change is noise."

    def __init__(self, number: int):
        self.name = f"nothing_{number}"

    def why_not(self) -> str | None:
        """Always."""
        return None

    def on(self) -> None:
        """Nothing."""

    def off(self) -> None:
        """Nothing."""


def no_toggles(count: int) -> list[Toggle]:
    """As many that do nothing, for a trial of the script against itself."""
    return [Nothing(number) for number in range(1, count + 1)]


def all_toggles() -> list[Toggle]:
    """Every toggle, whether it applies or not. Imports nothing the script has not imported."""
    found: list[Toggle] = [Collector(), SwitchInterval(), EnvChecks(), Logging()]
    if "torch" in sys.modules:
        found += importlib.import_module("hotloop.instrument.trial_patches_torch").torch_toggles()
    return found


NAMES = (
    *("gc", "switch_interval", "env_checks", "logging"),
    *("threads", "denormals", "validation", "fused_optimizer", "inference_mode"),
    *("anomaly", "clip", "channels_last", "matmul_precision"),
)
