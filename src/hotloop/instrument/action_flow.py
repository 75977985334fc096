"""Where the action of an env step came from: numbers that left torch on the way, and the lines of the step.

What a network returns reaches an env as numbers that were read from tensors (`item`, `numpy`, ...). While it
is not known yet which calls act, a window is open from a forward pass to the next env step: it notes the
numbers that are read, and compares them with the action. Reading is watched in windows only, and none opens
where something is compiled, since a tracer would see the replacements.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import CodeType, FrameType
from typing import Any

from hotloop._util.interrupts import suppress_own

READS = ("item", "tolist", "numpy", "__array__", "__int__", "__index__", "__float__")  # of tensors
MAX_READS = 64  # in one window
MAX_NUMBERS = 4096  # in one of them
MAX_PARTS = 64  # of an action
MIN_PAIRS, MAX_PAIRS = 6, 32  # of a number that was read and an action
MAX_FRAMES = 200
Stack = tuple[tuple[CodeType, int], ...]  # outermost first: code, and the instruction it is at

_reads: list[Any] = []  # arrays of the numbers read in this window
_replaced: dict[
    str, Any
] = {}  # method of torch.Tensor -> what its class had before; empty: no window is open
_thread = 0  # that opened the window
_at_end: Callable[[], object] | None = None
_quiet = False  # hotloop itself reads
_told: list[Any] = []  # counters that are to tell of their next step
_step: Stack = ()


def reset() -> None:
    """Close the window and forget the last step."""
    global _step
    close()
    _reads.clear()
    while _told:
        _told.pop().on_step = None
    _step = ()


@contextmanager
def reads_of_ours() -> Iterator[None]:
    """What is read inside is no action."""
    global _quiet
    was, _quiet = _quiet, True
    try:
        yield
    finally:
        _quiet = was


# -- windows -----------------------------------------------------------------------------------------------


def open_window(at_end: Callable[[], object], anew: bool) -> bool:
    """Begin to note what is read from tensors; false if that is done already.

    `at_end` is called when the window closes. `anew` forgets what was read before.
    """
    global _thread, _at_end
    if _replaced:
        return False
    tensor = sys.modules["torch"].Tensor
    if anew:
        _reads.clear()
    _thread, _at_end = threading.get_ident(), at_end
    for name in READS:
        _replaced[name] = vars(tensor).get(name)
        setattr(tensor, name, _watched(getattr(tensor, name)))
    return True


def is_open() -> bool:
    """Whether a window is open."""
    return bool(_replaced)


def close() -> None:
    """Put the methods of tensors back; what was read is kept until the next step."""
    if not _replaced:
        return
    tensor = sys.modules["torch"].Tensor
    for name, before in _replaced.items():
        if not hasattr(vars(tensor).get(name), "_hotloop_reads"):
            continue  # someone else has replaced it since, and may call ours
        if before is None:
            delattr(tensor, name)
        else:
            setattr(tensor, name, before)
    _replaced.clear()
    if _at_end is not None:
        _at_end()


def read_so_far() -> int:
    """How many times something was read in this window."""
    return len(_reads)


def _watched(original: Callable[..., Any]) -> Callable[..., Any]:
    def read(tensor: Any, *args: Any, **words: Any) -> Any:
        value = original(tensor, *args, **words)
        if _replaced and not _quiet and threading.get_ident() == _thread:
            with suppress_own(Exception):
                _note(value)
        return value

    read.__wrapped__ = getattr(original, "__wrapped__", original)  # type: ignore[attr-defined]
    read._hotloop_reads = True  # type: ignore[attr-defined]
    return read


def _note(value: Any) -> None:
    numbers = _array(value)
    if numbers is not None and 0 < numbers.size <= MAX_NUMBERS:
        _reads.append(numbers.copy())  # `numpy` is a view of what may change
        if len(_reads) >= MAX_READS:
            close()


def _array(value: Any) -> Any:
    """Numbers as an array; None for anything else."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    array = numpy.asarray(value)
    return array if array.dtype.kind in "biuf" else None


# -- comparing with the action -----------------------------------------------------------------------------


SURE = 3  # what a comparison says that cannot agree by chance


@dataclass(slots=True)
class Evidence:
    """What the actions that followed the calls of one path say."""

    agreed: int = 0  # what was read became the action
    differed: int = 0
    table: dict[int, bytes] = field(default_factory=dict)  # index that was read -> action that followed
    pairs: list[tuple[float, float]] = field(
        default_factory=list
    )  # number that was read, action that followed

    def chooses(self) -> bool:
        """Whether results become actions, as far as is known."""
        return self.agreed >= SURE and self.agreed > 3 * self.differed

    def add(self, action: Any, reads: list[Any]) -> None:
        """A step with this action followed, and these numbers were read in between."""
        found = agreement(action, reads, self)
        self.agreed += max(found, 0)
        self.differed += found < 0


def agreement(action: Any, reads: list[Any], known: Evidence) -> int:
    """1 if numbers that were read became an action, 3 if surely; -1 if not, 0 if it cannot be told."""
    if is_unknown(action):
        return SURE  # order alone decides
    with reads_of_ours():
        parts = _parts(action)
        if not parts or not reads:
            return 0
        if all(part.dtype.kind in "biu" for part in parts):
            return _of_indices(parts, reads, known)
        return _of_numbers(parts, reads, known)


def is_unknown(action: Any) -> bool:
    """No action is known, or it did not leave torch."""
    return action is None or hasattr(action, "detach")


def _of_indices(parts: list[Any], reads: list[Any], known: Evidence) -> int:
    """For discrete actions. One of few agrees by chance, a row of them hardly."""
    sure = SURE if parts[0].size > 4 else 1
    arrays = [one for one in reads if one.size > 1]
    if any(_same(one, part) for one in arrays for part in parts):
        return sure
    indices = [one for one in reads if one.size == 1 and one.dtype.kind in "iu"]
    if indices:
        return _in_table(indices, parts, known.table)
    values = [one for one in arrays if one.ndim and one.shape[-1] > 1]
    if any(_same(one.argmax(-1), part) or _are_probabilities(one) for one in values for part in parts):
        return sure
    return -1


def _of_numbers(parts: list[Any], reads: list[Any], known: Evidence) -> int:
    """For actions of real numbers, which may be scaled or get noise after they left torch."""
    if any(_same(one, part) for one in reads for part in parts):
        return SURE
    shapes = [_shape(part) for part in parts]
    alike = [one for one in reads if one.dtype.kind == "f" and _shape(one) in shapes]
    if alike and parts[0].size > 1:
        return SURE
    if alike:
        if len(known.pairs) < MAX_PAIRS:
            known.pairs.append((float(alike[-1].reshape(-1)[0]), float(parts[0].reshape(-1)[0])))
        return _in_line(known.pairs) if alike[-1].ndim else 0
    indices = [one for one in reads if one.size == 1 and one.dtype.kind in "iu"]
    return _in_table(indices, parts, known.table) if indices else -1


def _shape(array: Any) -> tuple[int, ...]:
    """Without the dimensions of one before others."""
    shape = array.shape
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return tuple(shape)


def _in_line(pairs: list[tuple[float, float]]) -> int:
    """Whether one number goes up and down with the other."""
    if len(pairs) < MIN_PAIRS:
        return SURE
    numpy = sys.modules["numpy"]
    x, y = (numpy.asarray(column) for column in zip(*pairs, strict=True))
    spread = float(x.std() * y.std())
    return 0 if not spread else 1 if abs(((x - x.mean()) * (y - y.mean())).mean()) > 0.6 * spread else -1


def _in_table(indices: list[Any], parts: list[Any], table: dict[int, bytes]) -> int:
    """Whether the same index was followed by the same action before: `env.step(ACTIONS[index])`."""
    key, followed = int(indices[-1].reshape(-1)[0]), parts[0].tobytes()
    if key not in table:
        if len(table) < MAX_NUMBERS:
            table[key] = followed
        return int(any(_same(indices[-1], part) for part in parts))
    return 1 if table[key] == followed else -1


def _same(a: Any, b: Any) -> bool:
    if a.size != b.size:
        return False
    a, b = a.reshape(-1).astype(float), b.reshape(-1).astype(float)
    return bool((abs(a - b) <= abs(b) * 1e-5 + 1e-7).all())


def _are_probabilities(values: Any) -> bool:
    return values.dtype.kind == "f" and bool((values >= 0).all() and (abs(values.sum(-1) - 1) < 1e-3).all())


def _parts(action: Any) -> list[Any]:
    """An action as arrays: the whole of it, and the actions of single agents or envs."""
    if isinstance(action, dict):
        action = list(action.values())
    if isinstance(action, (list, tuple)):
        found = [part for item in action[:MAX_PARTS] for part in _parts(item)[:1]]
        whole = _array(action) if len({part.shape for part in found}) == 1 else None
        return found if whole is None else [whole, *found]
    whole = _array(action)
    if whole is None:
        return []
    return [whole, *(whole if whole.ndim and 1 < len(whole) <= MAX_PARTS else ())]


# -- the lines of the step ---------------------------------------------------------------------------------


def tell(counter: Any, stepped: Callable[[Any, Any, list[Any], bool], object]) -> None:
    """At the next step that `counter` counts, close the window and call `stepped`.

    It gets the env, the action, what was read, and whether the window was open until now.
    """

    def on_step(env: Any, action: Any) -> None:
        if counter in _told:
            _told.remove(counter)
        note_step(sys._getframe(1))
        was_open = is_open()
        close()
        reads = _reads[:]
        _reads.clear()
        stepped(env, action, reads, was_open)

    if counter not in _told:
        _told.append(counter)
        counter.on_step = on_step


def note_step(frame: FrameType | None) -> None:
    """An env was stepped from here."""
    global _step
    _step = stack_of(frame)


def stack_of(frame: FrameType | None) -> Stack:
    """Code and instruction of a frame and those that called it, outermost first."""
    found: list[tuple[CodeType, int]] = []
    while frame is not None and len(found) < MAX_FRAMES:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(reversed(found))


def is_behind_step(frame: FrameType | None) -> bool:
    """Whether a call comes after the env step in a round of the loop around both."""
    for (code, at), (step_code, step_at) in zip(stack_of(frame), _step, strict=False):
        if code is not step_code:
            return False
        if at != step_at:
            return at > step_at and any(begin <= step_at and at <= end for begin, end in loops_of(code))
    return False


@cache
def loops_of(code: CodeType) -> tuple[tuple[int, int], ...]:
    """First and last instruction of each loop."""
    jumps = (i for i in dis.get_instructions(code) if i.opcode in dis.hasjrel)
    return tuple((i.argval, i.offset) for i in jumps if i.argval < i.offset)
