"""Ctrl-C while the `hotloop` command is still being imported: one line and exit code 130, no traceback.

Nothing has been started by then. In any other process, importing hotloop changes no signal handler.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import sys
import threading
from types import FrameType

NAMES = ("hotloop", "hotloop.exe")
INTERRUPTED = 130


def is_our_command() -> bool:
    """Whether this process is the command line of hotloop, and not a program that imports it."""
    given = list(getattr(sys, "orig_argv", ()))
    as_module = "-m" in given and given[given.index("-m") + 1 :][:1] == ["hotloop"]
    return as_module or os.path.basename((getattr(sys, "argv", None) or [""])[0]) in NAMES


def leave(number: int, frame: FrameType | None) -> None:
    """Say so, and end the process at once."""
    os.write(2, b"hotloop: interrupted\n")
    os._exit(INTERRUPTED)


def begin_import() -> None:
    """Called first by `import hotloop`: handle Ctrl-C until `end_import`, if this is our command."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    handled_by_python = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    if is_our_command() and in_main_thread and handled_by_python:
        _signal.signal(_signal.SIGINT, leave)


def end_import() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if _signal.getsignal(_signal.SIGINT) is leave:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
