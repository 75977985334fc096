"""Printing from a program of ours: in any locale, to a full disk, into a closed pipe."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Callable

from hotloop._util.errors import HotloopError
from hotloop._util.visible import visible

OK, OUR_FAILURE, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130
_IN_ASCII = {"…": "~", "─": "-", "·": "-", "›": ">"}  # what we print ourselves; Pen knows about bars


def guarded(run: Callable[[], int]) -> int:
    """Run a verb and return its exit code; what goes wrong on purpose becomes one sentence on stderr."""
    _prepare_streams()
    code = OK
    try:
        code = _exit_code(run)
        sys.stdout.flush()
    except BrokenPipeError:  # `hotloop show | head`
        _discard_output()
        return code
    except OSError as error:
        if error.filename is not None:  # about a file and not about our output: a bug
            raise
        _discard_output()
        note(f"hotloop: The output cannot be written ({error.strerror}); send it to another place.")
        return OUR_FAILURE
    return code


def _exit_code(run: Callable[[], int]) -> int:
    try:
        return run()
    except HotloopError as error:
        note(f"hotloop: {error}")
        return WRONG_USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as end:  # of the parser of arguments, which has printed help or what is wrong
        return end.code if isinstance(end.code, int) else OK if end.code is None else OUR_FAILURE


def _prepare_streams() -> None:
    """Replace streams that were closed before we started; print any character in any locale."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors=_in_ascii.__name__)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(
        _IN_ASCII.get(c) or c.encode("ascii", "backslashreplace").decode("ascii") for c in text
    ), error.end


codecs.register_error(_in_ascii.__name__, _in_ascii)


def _discard_output() -> None:
    """Send what is still in the buffer of stdout to nowhere: Python would complain about it at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def note(sentence: str) -> None:
    """Print something that is not the result, to stderr; foreign names in it cannot control the terminal."""
    with contextlib.suppress(OSError):  # nobody reads it, which is no reason to stop
        print("\n".join(visible(line) for line in sentence.split("\n")), file=sys.stderr)
