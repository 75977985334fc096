"""Tells exceptions of the user's from our own, where our code runs inside the user's program.

Python runs signal handlers between two instructions of the main thread, so that whatever they raise may come
out of a line of ours. Such an exception belongs to the user and must be passed on; our own must not be.
An `except` clause is not enough: the usual exception of a timeout, TimeoutError, is an OSError. Functions of
the standard library swallow such exceptions, too (`Path.mkdir`, `os.path.realpath`, `importlib.metadata`), so
what calls them runs in a separate thread, where Python runs no signal handlers: see `undisturbed`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import contextlib
import opcode
import os
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeVar

Answer = TypeVar("Answer")
MOST_REPORTS = 20
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_STANDARD = os.path.dirname(os.__file__) + os.sep
_NOT_THE_USERS = frozenset({"builtins", "hotloop", *sys.stdlib_module_names})  # modules of exceptions
# Instructions that cannot fail themselves: Python handles signals there.
_HARMLESS = {opcode.opmap[name] for name in ("RESUME", "JUMP_BACKWARD") if name in opcode.opmap}


def is_users(error: BaseException) -> bool:
    """Whether an exception that came out of our code was raised by the user's.

    True for what is raised by a signal handler or a trace function, and for what another thread throws in.
    False for errors of our own, and of libraries that we call.
    """
    if not isinstance(error, Exception):
        return True  # Ctrl-C, sys.exit(): never ours
    traceback, caller, handlers = error.__traceback__, None, _handler_codes()
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code in handlers or (caller is not None and _got(frame, caller)):
            return True
        caller, innermost, traceback = frame, traceback, traceback.tb_next
    return caller is not None and _came_in(innermost, error)


class suppress_own(contextlib.suppress):
    """Like `contextlib.suppress`, but exceptions of the user's pass."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return bool(super().__exit__(kind, error, trace)) and error is not None and not is_users(error)


def undisturbed(work: Callable[[], Answer]) -> Answer:
    """Do something where no signal handler can run, and return or raise what it does.

    What a handler raises meanwhile is raised when the work is done. `work` must not record regions or ask for
    the current thread: `threading` would list that one for ever. Takes some 50 us more than a call.
    """
    if _thread.get_ident() != threading.main_thread().ident:
        return work()
    done: list[tuple[Answer | None, BaseException | None]] = []
    finished = _thread.allocate_lock()
    finished.acquire()

    def run() -> None:
        try:
            done.append((work(), None))
        except BaseException as error:
            done.append((None, error))
        finally:
            finished.release()

    interrupt: BaseException | None = None
    started = False
    while not done:
        try:
            if not started:
                started = True
                _thread.start_new_thread(run, ())
            finished.acquire()
        except BaseException as error:
            if isinstance(error, RuntimeError) and not is_users(error):
                return work()  # there can be no more threads
            interrupt = error
    answer, failure = done[0]
    if interrupt is not None:
        raise interrupt
    if failure is not None:
        raise failure
    return answer  # type: ignore[return-value]


_reported: set[tuple[Any, ...]] = set()


def report_own(error: Exception) -> None:
    """Print an error of our own, which must not reach the user's program; the same one only once."""
    import traceback  # seldom needed, and not light

    with suppress_own(Exception):  # stderr may be closed
        last = traceback.extract_tb(error.__traceback__)[-1:]
        where = (type(error), *[(frame.filename, frame.lineno) for frame in last])
        if where in _reported or len(_reported) >= MOST_REPORTS:
            return
        _reported.add(where)
        print("hotloop: an error that does not stop your program:", file=sys.stderr)
        traceback.print_exception(error, file=sys.stderr)


def _got(frame: FrameType, caller: FrameType) -> bool:
    """Whether a function was called with its caller's frame, as Python calls signal handlers and tracers."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args, **kwargs
    for name in code.co_varnames[:count]:
        value = frame.f_locals.get(name)
        if value is caller or (isinstance(value, tuple) and any(item is caller for item in value)):
            return True
    return False


def _handler_codes() -> set[CodeType]:
    # `signal` itself would make an enum of each answer.
    given: list[Any] = [_signal.getsignal(number) for number in range(1, _signal.NSIG)]
    handlers = [handler for handler in given if callable(handler)]
    codes = [getattr(getattr(h, "__func__", h), "__code__", None) for h in handlers]
    return {code for code in codes if isinstance(code, CodeType)}


def _came_in(innermost: TracebackType, error: Exception) -> bool:
    """Whether a frame of ours or of a library, the last of a traceback, did not raise it itself."""
    code = innermost.tb_frame.f_code
    if not code.co_filename.startswith((_PACKAGE, _STANDARD, "<")) and "-packages" not in code.co_filename:
        return False  # code of the user's that we have called
    if code.co_code[innermost.tb_lasti] in _HARMLESS:
        return True
    # Else it is the user's if its class is.
    name = type(error).__module__
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return name.partition(".")[0] not in _NOT_THE_USERS and "-packages" not in file
