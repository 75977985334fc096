"""A region of the Python twin: entering it, leaving it, wrapping functions in it.

`compiled/hot_path.h`, `region.h` and `wrap.h` are the same in C.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from hotloop.capture import layout
from hotloop.measure.core_shared import RECORD_GAPS, RECORD_TIMELINE
from hotloop.measure.decorate import decorate
from hotloop.measure.twin import call_path
from hotloop.measure.twin.arena import DEPTH, FRAME_WORDS, LAST, LAST_BUCKET, OCTAVE_BASE, SEQ, STACK, Arena

if TYPE_CHECKING:
    from hotloop.measure.twin.recorder import Recorder

MAX_SET = 7  # regions in each set of `wrap`
ASK_EVERY = 256  # calls: a settled answer of `pick` is checked now and then


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
        arena = getattr(recorder.local, "arena", None)
        if arena is None or arena.epoch != recorder.epoch:
            arena = recorder.attach()
            if arena is None:
                return self
        if arena.busy:
            return self  # a finalizer or signal handler, in the middle of our bookkeeping
        if arena.depth == layout.MAX_DEPTH:
            arena.overflow += 1
            return self
        arena.busy = True
        try:
            if self.device and recorder.device is not None:
                recorder.device.enter()
            top = arena.open[-1]
            node = top.children.get(self) or arena.child(top, self)
            now = recorder.now()
            if recorder.flags & RECORD_GAPS and not arena.depth and arena.last_outermost is not None:
                recorder.credit_gap(arena, arena.last_outermost, self, now)
            words = arena.words
            words[SEQ] = arena.seq + 1
            top.own += now - arena.last
            top.words[top.own_word] = top.own
            at = STACK + arena.depth * FRAME_WORDS
            words[at] = node.index | self.number << 32
            words[at + 1] = now
            arena.frames.append((node, self, now))
            arena.open.append(node)
            arena.depth += 1
            words[DEPTH] = arena.depth
            arena.last = words[LAST] = now
            arena.seq += 2
            words[SEQ] = arena.seq
        except BaseException:  # Ctrl-C in the middle: an odd number shows readers that an event is uncertain
            arena.seq |= 1
            raise
        finally:
            arena.busy = False
        return self

    def __exit__(self, *exception: object) -> None:
        recorder = self.recorder
        if not recorder.epoch:
            return
        now = recorder.now()
        try:
            arena = recorder.local.arena
        except AttributeError:
            return  # this thread has entered nothing
        if arena.epoch != recorder.epoch or arena.busy:
            return  # begun before the recording, before a fork, or in the middle of our bookkeeping
        if arena.overflow:
            arena.overflow -= 1
            return
        arena.busy = True
        try:
            if not arena.depth or arena.frames[-1][1] is not self:
                arena.close_out_of_order(self, now)
            else:
                self._close_innermost(arena, now)
        except BaseException:  # as in __enter__
            arena.seq |= 1
            raise
        finally:
            arena.busy = False
        if now >= arena.due:
            recorder.window(arena, now)

    def _close_innermost(self, arena: Arena, now: int) -> None:
        recorder = self.recorder
        words = arena.words
        node, _, start = arena.frames.pop()
        arena.open.pop()
        words[SEQ] = arena.seq + 1
        node.own += now - arena.last
        duration = now - start
        figures, own = node.words, node.own_word  # calls, total and own time are neighbours
        if node.calls:
            if duration < node.least:
                node.least = figures[own + 1] = duration
            if duration > node.most:
                node.most = figures[own + 2] = duration
            away = duration - node.first
            node.squares = node.floats[own + 4] = node.squares + float(away * away)
        else:
            node.least = node.most = node.first = duration
            figures[own + 1] = figures[own + 2] = figures[own + 3] = duration
        node.calls = figures[own - 2] = node.calls + 1
        node.total = figures[own - 1] = node.total + duration
        figures[own] = node.own
        if duration >= 16:
            octave = duration.bit_length() - 1
            bucket = octave * 4 - OCTAVE_BASE + ((duration >> (octave - 2)) & 3)
            if bucket > LAST_BUCKET:
                bucket = LAST_BUCKET
        else:
            bucket = 0
        figures[node.bucket_word + bucket] += 1
        arena.depth -= 1
        words[DEPTH] = arena.depth
        arena.last = words[LAST] = now
        arena.seq += 2
        words[SEQ] = arena.seq
        if recorder.flags:
            if recorder.flags & RECORD_TIMELINE:
                arena.record_event(node, start, now)
            if not arena.depth:
                arena.last_outermost = self
        if self.device and recorder.device is not None:
            recorder.device.exit(node)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Use as a decorator: every call of `function` becomes a call of this region."""
        return decorate(self, function)

    def is_open(self) -> bool:
        """Whether the calling thread is inside this region."""
        recorder = self.recorder
        arena = getattr(recorder.local, "arena", None)
        if not recorder.epoch or arena is None or arena.epoch != recorder.epoch:
            return False
        return any(region is self for _, region, _ in arena.frames)

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

        `after(first argument, result)` is called at the end of calls that opened `outer` (of all calls when
        there is no `outer`). Its exceptions are reported but not raised, and its time goes to a region of
        ours, unless it is a step counter that called no Python code.
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
            try:
                return all(question() for question in questions)
            except Exception:  # must not reach the caller of `function`
                sys.excepthook(*sys.exc_info())
                return True

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
            except Exception:  # as above
                sys.excepthook(*sys.exc_info())
                return self

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
            with around or nullcontext(), region:
                result = function(*args, **kwargs)
            if after is not None and (around is not None or not has_outer):
                try:
                    after(args[0] if args else None, result)
                except Exception:  # `function` succeeded, and its caller must get the result
                    sys.excepthook(*sys.exc_info())
                if getattr(after, "called_out", True):
                    self.recorder.credit_hook()
            return result

        return wrapped

    def add(self, *, bytes: float = 0, flops: float = 0) -> None:
        """Add what the open call of this region moved (bytes) or computed (flops)."""
        recorder = self.recorder
        arena = getattr(recorder.local, "arena", None)
        if not recorder.epoch or arena is None or arena.epoch != recorder.epoch:
            return
        for node, region, _ in reversed(arena.frames):
            if region is self:
                arena.begin()
                node.write("bytes", node.read("bytes", "<d") + bytes, "<d")
                node.write("flops", node.read("flops", "<d") + flops, "<d")
                arena.end()
                return
