"""What becomes of the gradients that a backward pass leaves in parameters: stepped, read or cleared.

The actor's loss of DDPG or Dreamer goes through networks that other optimizers train. It leaves gradients in
them, and their own `zero_grad` clears these before anybody steps. That is seen here, whichever way a script
clears: as long as passes are watched, `Parameter.grad` is a property, and optimizers tell before they step.

A gradient counts as used if its optimizer steps while it is there, if anything reads it first (clipping,
norms that are logged, copies of it), or if what becomes of it is not known. Adding up over several passes
changes nothing about that: what is cleared or stepped is the sum, and each pass has its part in it. Tests for
None and code that zeroes are no readers.
"""

from __future__ import annotations

import dis
import functools
import os
import sys
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from hotloop._util.interrupts import suppress_own
from hotloop.instrument import process_facts, update_counting
from hotloop.instrument.patch import Patches, Replacement
from hotloop.measure.core_shared import PACKAGE

Frames = tuple[tuple[str, int, int], ...]
ACCESS_NS = 1_000  # what the property costs, each time
CLEARING = frozenset({"zero_", "detach_", "requires_grad_"})  # methods that let nobody know a gradient
PLAIN = frozenset({"is_sparse", "device", "dtype", "shape", "grad_fn", "requires_grad"})
_OURS = os.path.join(PACKAGE, "instrument") + os.sep
_OPTIMIZERS = os.path.join("torch", "optim") + os.sep
MOST_READERS = 64
LEAST_PASSES = 2  # whose gradients were cleared unread


@dataclass(eq=False)
class _Fate:
    """Of one parameter's gradients from one line."""

    cleared: int = 0
    stepped: int = 0
    used: int = 0  # read, or not known


@dataclass(eq=False)
class _Watched:
    """A pass whose gradients are watched."""

    frames: Frames
    is_cleared: bool = False  # some gradient of it was, unread


@dataclass(eq=False)
class _Held:
    """A parameter that an optimizer has, and its gradient as it was when it was last looked at."""

    parameter: weakref.ref[Any]
    fates: dict[Frames, _Fate] = field(default_factory=dict)
    passes: list[_Watched] = field(default_factory=list)  # that left something in the gradient
    were_read: int = 0  # the first so many of them, by something else than a step
    gradient: Any = None  # weak reference
    version: int = 0
    touched: bool = False  # by code that may have zeroed it


class GradientFates:
    """What is known about the gradients of the parameters that optimizers have."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}
        self._cleared: dict[Frames, int] = {}  # passes with gradients that were cleared unread
        self._settled: dict[Frames, int] = {}  # parameters whose gradients found their end
        self._patches = Patches()
        self._handles: list[Any] = []
        self._steps = 0  # that are under way
        self.accesses = 0
        self.readers: set[tuple[str, int]] = set()  # file and line of code that reads gradients
        self._plain: Any = None  # torch's own attribute

    # -- while passes are watched ------------------------------------------------------------------------

    def begin(self) -> None:
        """Watch gradients from now on."""
        torch = sys.modules["torch"]
        hooks = sys.modules["torch.optim.optimizer"]
        if self._handles or (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return  # a reducer reads gradients where nobody sees it
        if process_facts.is_boosted:
            return
        self._plain = torch.Tensor.grad
        self._steps = 0
        self._handles = [
            hooks.register_optimizer_step_pre_hook(self._before_step),
            hooks.register_optimizer_step_post_hook(self._after_step),
        ]
        kind = torch.nn.Parameter
        self._patches.apply(Replacement(kind, name, self._property) for name in ("grad", "_grad"))

    def end(self) -> None:
        """Stop watching; what has not found its end by now is not known."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._patches.undo()
        for held in self._held.values():
            held.passes.clear()
            held.were_read = 0
            held.gradient = None

    @property
    def is_watching(self) -> bool:
        return bool(self._handles)

    @property
    def has_open_ends(self) -> bool:
        """Whether some gradients have found no end yet."""
        return any(held.passes for held in self._held.values())

    def look(self) -> None:
        """Another pass begins: see what was cleared meanwhile."""
        for held in self._held.values():
            if held.passes:
                self._settle_if_cleared(held)

    def passed(self, frames: Frames, parameters: Iterable[Any]) -> None:
        """A pass has left gradients in these parameters."""
        if not self.is_watching or self._steps:  # inside `step(closure)`
            return
        watched = _Watched(frames)
        for parameter in parameters:
            held = self._held_of(parameter)
            gradient = self._plain.__get__(parameter)
            if (
                gradient is None
                or gradient.layout is not sys.modules["torch"].strided
                or _is_hooked(parameter)
            ):
                held.fates.setdefault(frames, _Fate()).used += 1
                continue
            held.passes.append(watched)
            _remember(held, gradient)

    def _held_of(self, parameter: Any) -> _Held:
        held = self._held.get(id(parameter))
        if held is None or held.parameter() is not parameter:
            held = self._held[id(parameter)] = _Held(weakref.ref(parameter))
        return held

    def _settle_if_cleared(self, held: _Held) -> bool:
        """Whether the gradient that passes left there is gone; then they are told."""
        parameter = held.parameter()
        if parameter is None:
            held.passes.clear()
            held.were_read = 0
            return False
        gradient = self._plain.__get__(parameter)
        if gradient is None:
            self._settle(held, "cleared")
            return True
        known = held.gradient() if held.gradient is not None else None
        is_same = known is not None and known is gradient and known._version == held.version
        if is_same and not held.touched:
            return False
        if not bool(gradient.any()):
            self._settle(held, "cleared")
            return True
        _remember(held, gradient)  # another pass added to it
        return False

    def _settle(self, held: _Held, end: str) -> None:
        for number, watched in enumerate(held.passes):
            fate = held.fates.setdefault(watched.frames, _Fate())
            self._settled[watched.frames] = self._settled.get(watched.frames, 0) + 1
            if end == "stepped":
                fate.stepped += 1
            elif end == "used":
                fate.used += 1
            elif number >= held.were_read:
                fate.cleared += 1
                if not watched.is_cleared:
                    watched.is_cleared = True
                    self._cleared[watched.frames] = self._cleared.get(watched.frames, 0) + 1
        held.passes.clear()
        held.were_read = 0
        held.gradient = None
        held.touched = False

    def _before_step(self, optimizer: Any, args: Any, words: Any) -> None:
        self._steps += 1
        with suppress_own(Exception):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    held = self._held.get(id(parameter))
                    if held is not None and held.passes and not self._settle_if_cleared(held):
                        self._settle(held, "stepped")

    def _after_step(self, optimizer: Any, args: Any, words: Any) -> None:
        self._steps = max(self._steps - 1, 0)

    def _property(self, absent: Any) -> Any:
        plain, all_held = self._plain, self._held

        def get(parameter: Any) -> Any:
            self.accesses += 1
            with suppress_own(Exception):
                frame = sys._getframe(1)
                purpose = _purpose(frame.f_code, frame.f_lasti)
                if purpose != "tests":
                    self._accessed(purpose, all_held.get(id(parameter)), frame)
            return plain.__get__(parameter)

        def put(parameter: Any, value: Any) -> None:
            self.accesses += 1
            held = all_held.get(id(parameter))
            if held is not None and held.passes:
                with suppress_own(Exception):
                    if not self._settle_if_cleared(held):
                        self._settle(held, "cleared" if value is None else "used")
            plain.__set__(parameter, value)

        def drop(parameter: Any) -> None:
            put(parameter, None)

        return property(get, put, drop, plain.__doc__)

    def _accessed(self, purpose: str, held: _Held | None, frame: FrameType) -> None:
        if purpose == "reads" and len(self.readers) < MOST_READERS:
            self.readers.add((frame.f_code.co_filename, frame.f_lineno))
        if held is None or not held.passes:
            return
        if purpose == "clears":
            held.touched = True
        elif held.were_read < len(held.passes) and not self._settle_if_cleared(held):
            for watched in held.passes[held.were_read :]:
                held.fates.setdefault(watched.frames, _Fate()).used += 1
            held.were_read = len(held.passes)

    # -- what was learnt ---------------------------------------------------------------------------------

    def may_be_unread(self, frames: Frames, parameter: Any) -> bool:
        """Whether nothing speaks against it that its gradients from there are cleared unread."""
        held = self._held.get(id(parameter))
        if held is None or held.parameter() is not parameter:
            return False
        fate = held.fates.get(frames)
        return fate is not None and fate.cleared > 0 and not fate.stepped and not fate.used

    def is_unread(self, frames: Frames, parameter: Any) -> bool:
        """Whether its gradients from there are cleared unread, while those of another line are stepped.

        Without the latter, a step that comes rarely may need them: an actor that is trained at every tenth
        pass, or a parameter that moves by weight decay as soon as it has a gradient of zeros.
        """
        if not self.may_be_unread(frames, parameter) or self._cleared.get(frames, 0) < LEAST_PASSES:
            return False
        fates = self._held[id(parameter)].fates
        return any(fate.stepped for other, fate in fates.items() if other != frames)

    def steps_some(self, frames: Frames, parameters: Iterable[Any]) -> bool:
        """Whether gradients of this line were stepped in one of these parameters."""
        found = (self._held.get(id(one)) for one in parameters)
        return any(held is not None and frames in held.fates and held.fates[frames].stepped for held in found)

    def known_frames(self) -> list[Frames]:
        """Lines whose gradients found their end in at least two passes of each parameter, on average."""
        found = []
        for frames, ends in self._settled.items():
            parameters = sum(frames in held.fates for held in self._held.values())
            if ends >= LEAST_PASSES * max(parameters, 1):
                found.append(frames)
        return found


def owned_parameters() -> set[int]:
    """Ids of the parameters that optimizers have."""
    return {
        id(parameter)
        for optimizer in update_counting.live_optimizers()
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def _remember(held: _Held, gradient: Any) -> None:
    held.gradient = weakref.ref(gradient)
    held.version = gradient._version
    held.touched = False


def _is_hooked(parameter: Any) -> bool:
    """Whether something is called with the gradient."""
    return bool(parameter._backward_hooks) or bool(getattr(parameter, "_post_accumulate_grad_hooks", None))


@functools.lru_cache(maxsize=4096)
def _purpose(code: CodeType, at: int) -> str:
    """What code that gets a gradient does with it: "tests" it for None, "clears" or "reads" it."""
    file = code.co_filename
    if file.startswith(_OURS) or (_OPTIMIZERS in file and code.co_name != "zero_grad"):
        return "tests"  # whoever steps told before
    if code.co_name == "zero_grad" and f"{os.sep}torch{os.sep}" in file:
        return "clears"
    behind = [one for one in dis.get_instructions(code) if one.offset > at][:3]
    names = [one.argval if one.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")) else "" for one in behind]
    if not behind:
        return "reads"
    if names[0] in CLEARING or names[:2] == ["data", "zero_"]:
        return "clears"
    if names[0] in PLAIN or ("JUMP" in behind[0].opname and "NONE" in behind[0].opname):
        return "tests"
    is_none = behind[0].opname == "LOAD_CONST" and behind[0].argval is None
    return "tests" if is_none and behind[1].opname == "IS_OP" else "reads"
