"""A region of the Python twin: entering it, leaving it, wrapping functions in it.

`compiled/hot_path.h`, `region.h` and `wrap.h` are the same in C. One thing C can do and Python cannot: a
signal handler may raise when `__exit__` is called, before its first line. The region then stays open, and is
closed when the same `with` statement is entered again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from math import isfinite
from opcode import opmap
from sys import _getframe
from types import FrameType
from typing import TYPE_CHECKING, Any

from hotloop._util.interrupts import is_users, report_own, suppress_own
from hotloop.capture import layout
from hotloop.measure.core_shared import RECORD_CALLS, RECORD_GAPS, RECORD_ROUNDS, RECORD_TIMELINE
from hotloop.measure.decorate import decorate
from hotloop.measure.twin import call_path
from hotloop.measure.twin.arena import DEPTH, FRAME_WORDS, LAST, LAST_BUCKET, OCTAVE_BASE, SEQ, STACK, Arena
from hotloop.measure.twin.step_counter import StepCounter

if TYPE_CHECKING:
    from hotloop.measure.twin.arena import Node
    from hotloop.measure.twin.recorder import Recorder

MAX_SET = 7  # regions in each set of `wrap`
BEFORE_WITH = opmap.get("BEFORE_WITH")  # None in versions of Python that have another instruction
ASK_EVERY = 256  # calls: a settled answer of `pick` is checked now and then


def is_over(frame: FrameType, entered_at: int) -> bool:
    """Whether the `with` statement at that instruction of a frame is over, now that another one begins.

    Inner statements come later in the code, and a frame lives until its statements are over.
    """
    code = frame.f_code.co_code
    return entered_at < len(code) and code[entered_at] == BEFORE_WITH == code[frame.f_lasti]


class Region:
    """A named stretch of code: created once, entered any number of times, from any thread."""

    __slots__ = ("category", "device", "name", "number", "recorder", "site")

    def __init__(self, recorder: Recorder, number: int, name: str, category: str, device: bool, site: str):
        self.recorder = recorder
        self.number = number
        self.name = name
        self.category = category
        self.device = device
        self.site = site

    def __repr__(self) -> str:
        return f"<hotloop region {self.name!r}>"

    def __enter__(self) -> Region:
        recorder = self.recorder
        if not recorder.epoch:
            return self
        try:
            arena = recorder.local.arena
        except AttributeError:
            arena = None
        if arena is None or arena.epoch != recorder.epoch:
            arena = recorder.attach()
            if arena is None:
                return self
        if arena.busy:
            return self  # a finalizer or signal handler, in the middle of our bookkeeping
        caller = _getframe(1)
        place = id(caller), caller.f_lasti
        depth = arena.depth
        top = arena.open[depth]
        while depth:  # a region whose `__exit__` was cut off by a signal handler is still open
            frame, entered_at = arena.frames[depth - 1][3]
            if frame != place[0] or entered_at < place[1] or not is_over(caller, entered_at):
                break
            top.region._leave_lost(top)
            if arena.depth == depth:
                break
            depth = arena.depth
            top = arena.open[depth]
        arena.busy = True
        try:
            if depth >= arena.limit:
                arena.begin_unrecorded()
                return self
            node = top.children.get(self) or recorder.safely(arena.child, top, self)
            if node is None:
                arena.begin_unrecorded()
                return self
            if self.device and recorder.device is not None:
                recorder.safely(recorder.device.enter, depth)
            now = recorder.now()
            if recorder.flags & RECORD_GAPS and not depth and arena.last_outermost is not None:
                recorder.safely(recorder.credit_gap, arena, arena.last_outermost, self, now)
            words = arena.words
            at = STACK + depth * FRAME_WORDS
            # Plain assignments from here on: all or nothing, whatever a signal handler does.
            words[SEQ] = arena.seq + 1
            top.own = top.words[top.own_word] = top.own + now - arena.last
            words[at] = node.frame_word
            words[at + 1] = now
            arena.frames[depth] = (node, self, now, place)
            depth += 1
            arena.open[depth] = node
            arena.depth = words[DEPTH] = depth
            arena.last = words[LAST] = now
            arena.seq = words[SEQ] = arena.seq + 2
        finally:
            arena.busy = False
        return self

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        if not self.recorder.epoch:
            return
        try:
            more = self._leave()
        except BaseException as interrupt:
            self._leave_after(interrupt)
            return
        if more is not None:
            self._after_leaving(*more)

    def _leave(self) -> tuple[Arena, Node | None, int, int] | None:
        """Close the region, or raise before anything is done. Returns None if nothing else is to be done."""
        recorder = self.recorder
        now = recorder.now()
        try:
            arena: Arena = recorder.local.arena
        except AttributeError:
            return None  # this thread has entered nothing
        if arena.epoch != recorder.epoch or arena.busy:
            return None  # begun before the recording, before a fork, or in the middle of our bookkeeping
        if arena.overflow:
            arena.end_unrecorded()
            return None
        depth = arena.depth - 1
        if depth < 0 or arena.frames[depth][1] is not self:
            arena.busy = True
            try:
                recorder.safely(arena.close_out_of_order, self, now)
            finally:
                arena.busy = False
            return (arena, None, now, now) if now >= arena.due else None
        node, _, start, _ = arena.frames[depth]
        duration = now - start
        if duration >= 16:
            octave = duration.bit_length() - 1
            bucket = octave * 4 - OCTAVE_BASE + ((duration >> (octave - 2)) & 3)
            if bucket > LAST_BUCKET:
                bucket = LAST_BUCKET
        else:
            bucket = 0
        words = arena.words
        figures, own = node.words, node.own_word  # calls, total and own time are neighbours
        # Plain assignments from here on, as in __enter__.
        words[SEQ] = arena.seq + 1
        if node.calls:
            if duration < node.least:
                node.least = figures[own + 1] = duration
            if duration > node.most:
                node.most = figures[own + 2] = duration
            away = duration - node.first
            node.squares = node.floats[own + 4] = node.squares + away * away * 1.0
        else:
            node.least = node.most = node.first = duration
            figures[own + 1] = figures[own + 2] = figures[own + 3] = duration
        node.calls = figures[own - 2] = node.calls + 1
        node.total = figures[own - 1] = node.total + duration
        node.own = figures[own] = node.own + now - arena.last
        figures[node.bucket_word + bucket] += 1
        arena.depth = words[DEPTH] = depth
        arena.last = words[LAST] = now
        arena.seq = words[SEQ] = arena.seq + 2
        if recorder.flags and not depth:
            arena.last_outermost = self
        if now >= arena.due or recorder.flags or (self.device and recorder.device is not None):
            return arena, node, start, now
        return None

    def _leave_after(self, error: BaseException) -> None:
        """Leave the region although something was raised before that; raise it if it is the user's."""
        users = False
        for _ in range(99):  # signals may come again and again
            try:
                users = is_users(error)
                if users:
                    self._leave()
                break
            except BaseException as another:
                error = another
        if users or not isinstance(error, Exception):
            raise error
        report_own(error)

    def _after_leaving(self, arena: Arena, node: Node | None, start: int, now: int) -> None:
        """The timeline, the device, and the window if it is due."""
        recorder = self.recorder
        if node is not None:
            arena.busy = True
            try:
                if recorder.flags & RECORD_TIMELINE:
                    recorder.safely(arena.record_event, node, start, now)
                if recorder.flags & RECORD_ROUNDS and arena.shows_round(now - start, now):
                    recorder.safely(arena.record_round, node, start, now)
                if recorder.flags & RECORD_CALLS and (
                    now >= arena.burst_due or now - start >= arena.least_call_ns
                ):
                    recorder.safely(arena.record_call, node, start, now)
                if self.device and recorder.device is not None:
                    recorder.safely(recorder.device.exit, node, arena.depth)
            finally:
                arena.busy = False
        if now >= arena.due:
            recorder.window(arena, now)

    def _leave_lost(self, node: Node) -> None:
        """Leave the region, whose `__exit__` was cut off when it was entered last."""
        node.flag(layout.NODE_OUT_OF_ORDER)
        self._leave()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Use as a decorator: every call of `function` becomes a call of this region."""
        return decorate(self, function)

    def is_open(self) -> bool:
        """Whether the calling thread is inside this region."""
        recorder = self.recorder
        arena = getattr(recorder.local, "arena", None)
        if not recorder.epoch or arena is None or arena.epoch != recorder.epoch:
            return False
        return any(frame[1] is self for frame in arena.frames[: arena.depth])

    def on_collection(self, phase: str, info: dict[str, int]) -> None:
        """For gc.callbacks: full collections on recorded threads become calls of this region."""
        arena = getattr(self.recorder.local, "arena", None)
        if info["generation"] == 2 and arena is not None and arena.epoch == self.recorder.epoch:
            if phase == "start":
                self.__enter__()
            else:
                self.__exit__()

    def wrap(
        self,
        function: Callable[..., Any],
        *,
        outer: Region | None = None,
        no_outer_inside: tuple[Region, ...] = (),
        skip_inside: tuple[Region, ...] = (),
        choose: Callable[[], object] | tuple[Callable[[], object], ...] | None = None,
        always: tuple[Region, ...] = (),
        never: tuple[Region, ...] = (),
        otherwise: Region | None = None,
        otherwise_outer: Region | None = None,
        after: Callable[[Any, Any], object] | None = None,
        pick: Callable[..., Region | None] | None = None,
        settled: dict[int, Region] | None = None,
        detail: Callable[[Any], Region | None] | None = None,
    ) -> Callable[..., Any]:
        """A function that runs `function` inside this region.

        `outer` is opened around it, unless it or one of `no_outer_inside` is already open on this thread.
        When one of `skip_inside` is open, the call is not recorded.

        With `otherwise`, a call belongs to this region or to that one: to `otherwise` when one of `never` is
        open, else to this one when one of `always` is open or all of `choose` return true.
        `otherwise_outer` replaces `outer` for calls that belong to `otherwise`.

        `pick(path, previous path, *args, **kwargs)` returns the region of a call when none of `always` and
        `never` is open, or None to leave it unrecorded. `path` is a number for the Python frames that led
        to the call; the previous path is that of the last call before it, 0 if an env was stepped or reset
        since. Paths in `settled` are recorded as the region there, and `pick` is called only now and then.

        `detail(first argument)` returns a region that is opened inside this one, or None; it is asked once
        for each object, which remembers the answer in the attribute `_hotloop_detail`.

        `after(first argument, result)` is called at the end of calls that opened `outer` (of all calls when
        there is no `outer`). Its exceptions are reported but not raised, and its time goes to a region of
        ours, unless it is a counter of the core's that called no Python code.
        """
        sets = {
            "no_outer_inside": no_outer_inside,
            "skip_inside": skip_inside,
            "always": always,
            "never": never,
        }
        for word, given in sets.items():
            if len(given) > MAX_SET:
                raise ValueError(f"{word}= takes at most {MAX_SET} regions, not {len(given)}.")
        questions = choose if isinstance(choose, tuple) else () if choose is None else (choose,)

        def is_chosen() -> bool:
            if any(region.is_open() for region in never):
                return False
            if any(region.is_open() for region in always):
                return True
            return bool(
                self.recorder.safely(lambda: all(question() for question in questions), otherwise=True)
            )

        known: dict[int, Region] = {} if settled is None else settled
        lookups = 0

        def picked(frame: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Region | None:
            nonlocal lookups
            path, previous = call_path.call_path(frame), call_path.last_path
            call_path.last_path = path
            lookups += 1
            if lookups % ASK_EVERY and path in known:
                return known[path]
            try:
                return pick(path, previous, *args, **kwargs) if pick is not None else self
            except Exception as error:
                if is_users(error):
                    raise
                report_own(error)
                return self

        def detail_of(first: Any) -> Region | None:
            found = getattr(first, "_hotloop_detail", self)
            if found is self and detail is not None:
                found = self.recorder.safely(detail, first)
                with suppress_own(Exception):
                    first._hotloop_detail = found
            return found if isinstance(found, Region) else None

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if not self.recorder.epoch or any(region.is_open() for region in skip_inside):
                return function(*args, **kwargs)
            region, around = self, outer
            if pick is not None and not any(r.is_open() for r in (*never, *always)):
                answer = picked(sys._getframe(1), args, kwargs)
                if answer is None:
                    return function(*args, **kwargs)
                region = answer
            elif otherwise is not None and not is_chosen():
                region, around = otherwise, otherwise_outer or outer
            has_outer = around is not None
            if around is not None and (around.is_open() or any(r.is_open() for r in no_outer_inside)):
                around = None
            inside = detail_of(args[0]) if detail is not None and args else None
            with around or nullcontext(), region, inside or nullcontext():
                result = function(*args, **kwargs)
            if after is not None and (around is not None or not has_outer):
                first, second = (*args, None, None)[:2]
                if isinstance(after, StepCounter):
                    self.recorder.safely(after.count, first, second, result)
                else:
                    self.recorder.safely(after, first, result)
                if getattr(after, "called_out", True):
                    self.recorder.safely(self.recorder.credit_hook)
            return result

        return wrapped

    def add(self, *, bytes: float = 0, flops: float = 0) -> None:
        """Add what the open call of this region moved (bytes) or computed (flops)."""
        recorder = self.recorder
        arena = getattr(recorder.local, "arena", None)
        if not recorder.epoch or arena is None or arena.epoch != recorder.epoch:
            return
        for node, region, *_ in reversed(arena.frames[: arena.depth]):
            if region is self:
                items = []
                for field, value in (("bytes", bytes), ("flops", flops)):
                    total = node.read(field, "<d") + value
                    if isfinite(total):
                        items.append((node.floats, node.at(field) // 8, total))
                    else:  # one inf or nan would hide all other calls: it is left out, and readers are told
                        node.flag(layout.NODE_ODD_FIGURES)
                arena.write_all(items)
                return
