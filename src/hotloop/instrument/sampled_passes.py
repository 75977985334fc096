"""Looks closely at a few backward passes of a run, and at the forward passes that lead to them.

After the 10th, 21st, 44th, 89th, ... backward pass a window of three passes opens. Only in a window are
`torch.autograd.backward` and the `forward` of a few modules replaced, so that all other passes cost one
addition more. Windows begin at distances that are no multiples of each other: else the fourth of four losses
might never be seen. What becomes of the gradients of a window is followed until they are cleared or stepped,
for some passes more at most. Looking stops as soon as it has taken half a percent of the time since it began,
and it does not begin where something is compiled: a tracer would see the replacements.

What it learns is a fact of the process: which gradients nobody uses (`unused_gradients`), and which positions
of sequences a loss leaves out (`unused_positions`).
"""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType, ModuleType
from typing import Any

from hotloop._util.interrupts import suppress_own
from hotloop.instrument import backward_passes, method_patches, process_facts
from hotloop.instrument.gradient_fates import ACCESS_NS
from hotloop.instrument.patch import Patch, Patches
from hotloop.instrument.unused_gradients import UnusedGradients
from hotloop.instrument.unused_positions import UnusedPositions
from hotloop.measure.core_shared import PACKAGE, is_library

FIRST = 10  # passes before the first window
LENGTH = 3  # passes in a window: those of the actor, the critic and the temperature
MOST_FOLLOWED = 32  # passes after a window until which gradients are followed
MOST_WINDOWS = 12
MOST_SHARE = 0.005  # of the time since the first backward pass, spent in looking
MOST_FRAMES = 32


class SampledPasses:
    """Counts backward passes and opens windows; one for each process."""

    def __init__(self) -> None:
        self._forget()
        self._lock = threading.Lock()
        self._looking = threading.local()
        self._patches = Patches()
        self._forward_patches = Patches()

    def _forget(self) -> None:
        self._passes = 0
        self._turn_at = FIRST - 1
        self._windows = 0
        self._is_open = False
        self._is_watching = False  # a window is open, or its gradients have found no end yet
        self._followed = 0  # passes since the window closed
        self._began_ns = 0
        self._spent_ns = 0
        self.gradients = UnusedGradients()
        self.positions = UnusedPositions()

    def passed(self, passes: int = 1) -> int:
        """Backward passes ended; returns after how many more it wants to know."""
        self._passes += passes
        self._began_ns = self._began_ns or time.perf_counter_ns()
        if self._passes >= self._turn_at and self._lock.acquire(blocking=False):
            try:
                with suppress_own(Exception):  # tensors and modules of the user's own making
                    self._turn()
            finally:
                self._lock.release()
        return max(1, self._turn_at - self._passes)

    def _turn(self) -> None:
        """Open a window, or close it."""
        began = time.perf_counter_ns()
        if self._is_watching:
            self._stop_looking()
            if self.gradients.fates.has_open_ends and self._followed < MOST_FOLLOWED:
                self._followed += 1
                self._turn_at = self._passes + 1
            else:
                self.close()
                self._note()
            return
        allowed = MOST_SHARE * (began - self._began_ns) / max(self._spent_ns, 1)
        if self._windows >= MOST_WINDOWS or method_patches.compiles():
            self._turn_at = backward_passes.NEVER
        elif allowed < 1:
            self._turn_at = self._passes + max(LENGTH, int(self._passes * min(1 / allowed - 1, 1)))
        else:
            self._windows += 1
            self._open()
            self._turn_at = self._passes + LENGTH
        self._spent_ns += time.perf_counter_ns() - began

    def _schedule(self) -> None:
        self._turn_at = max(FIRST * 2**self._windows + self._windows**2 - 1, self._passes + LENGTH)

    def _open(self) -> None:
        torch = sys.modules["torch"]
        self.gradients.open()
        self.gradients.fates.begin()
        self._patches.apply([Patch(torch.autograd, "backward", self._watched_backward)])
        for name in self.positions.KINDS:
            self._forward_patches.apply([Patch(getattr(torch.nn, name), "forward", self._watched_forward)])
        self._is_open = self._is_watching = True

    def _stop_looking(self) -> None:
        """The window is over; its gradients are still followed."""
        self._forward_patches.undo()
        self._is_open = False

    def close(self) -> None:
        """Put everything back."""
        if self._is_watching:
            self._is_watching = False
            self._stop_looking()
            self._patches.undo()
            fates = self.gradients.fates
            fates.end()
            self._spent_ns += fates.accesses * ACCESS_NS
            fates.accesses = 0
            self._followed = 0
            self._schedule()

    def _note(self) -> None:
        began = time.perf_counter_ns()
        found = {**self.gradients.facts(), **self.positions.facts()}
        for name, value in found.items():
            process_facts.note(name, value)
        self._spent_ns += time.perf_counter_ns() - began

    def _watched_backward(self, original: Any) -> Any:
        def backward(tensors: Any, *args: Any, **words: Any) -> Any:
            # Those inside another one (checkpoints of activations) belong to it; `inputs` is what is wanted.
            given = words.get("inputs", args[4] if len(args) > 4 else None)
            keeps = words.get("retain_graph", args[1] if len(args) > 1 else False)
            again = words.get("create_graph", args[2] if len(args) > 2 else False)
            is_inner = getattr(self._looking, "now", False) or _is_captured()
            if not is_inner:
                began = time.perf_counter_ns()
                with suppress_own(Exception):
                    self.gradients.fates.look()
                self._spent_ns += time.perf_counter_ns() - began
            if given is not None or again or is_inner or not self._is_open:
                return original(tensors, *args, **words)
            look = None
            self._looking.now = True
            began = time.perf_counter_ns()
            try:
                with suppress_own(Exception):
                    frames = users_frames(sys._getframe(1))
                    self.positions.backward = frames
                    look = self.gradients.before(tensors, frames, sys._getframe(1), bool(keeps))
                self._spent_ns += time.perf_counter_ns() - began
                return original(tensors, *args, **words)
            finally:
                self._looking.now = False
                self.positions.backward = ()
                if look is not None:
                    began = time.perf_counter_ns()
                    with suppress_own(Exception):
                        self._spent_ns += look.finish()
                    self._spent_ns += time.perf_counter_ns() - began

        return backward

    def _watched_forward(self, original: Any) -> Any:
        def forward(module: Any, *args: Any, **words: Any) -> Any:
            result = original(module, *args, **words)
            if self._is_open and args:
                began = time.perf_counter_ns()
                with suppress_own(Exception):  # what is given may be no tensor at all
                    if self.positions.wants(module, args[0]) and not _is_captured():
                        frames = users_frames(sys._getframe(1))
                        self.positions.look(module, args[0], result, frames)
                self._spent_ns += time.perf_counter_ns() - began
            return result

        return forward

    def forget_parent(self) -> None:
        """In a forked child: passes so far are the parent's."""
        with suppress_own(Exception):
            self.close()
        self._lock = threading.Lock()
        self._forget()
        backward_passes.tell_next()


def _is_captured() -> bool:
    """Whether a CUDA graph is being captured: reading a value would break that."""
    cuda = sys.modules["torch"].cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def users_frames(frame: FrameType | None) -> tuple[tuple[str, int, int], ...]:
    """The user's code on this stack, outermost first: file, first line of the function, line."""
    found: list[tuple[str, int, int]] = []
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        if not file.startswith((PACKAGE, "<frozen ")) and not is_library(file):
            found.append((file, code.co_firstlineno, frame.f_lineno))
        frame = frame.f_back
    return tuple(reversed(found[:MOST_FRAMES]))


passes = SampledPasses()
backward_passes.listen(passes.passed)
process_facts.at_fork(passes.forget_parent)


class WhileRecording(Patch):
    """Nothing is replaced as long as no window is open; undone, it closes the window."""

    def __init__(self, torch: ModuleType):
        super().__init__(torch, "autograd", lambda f: f)

    def apply(self) -> None:
        """A window opens later."""

    def undo(self) -> bool:
        passes.close()
        return True
