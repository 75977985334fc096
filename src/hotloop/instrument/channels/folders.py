"""Messages that are files: one process moves them into a folder, another one takes them out of it.

Rollouts and self-play games are often passed on in this way. A file that gets a name in a folder is sent,
one that is removed or moved elsewhere is received, and whoever lists the folder looks for some. Folders of
which only one side is known (checkpoints, logs) are left out by the analysis.
"""

from __future__ import annotations

import os
import posixpath
from types import ModuleType
from typing import Any

from hotloop._util.interrupts import suppress_own
from hotloop.capture.message_format import LOOK, RECEIVE, SEND
from hotloop.instrument.channels.logged_calls import now_ns, this_thread
from hotloop.instrument.channels.message_log import NO_CHANNEL, log
from hotloop.instrument.patch import Patch, Patches
from hotloop.measure.profiler import default

MOST_FOLDERS = 32


def patch_folders(module: ModuleType, into: Patches) -> None:
    """`os`: moving, removing and listing."""
    makers = {
        **dict.fromkeys(("rename", "replace"), _log_move),
        **dict.fromkeys(("unlink", "remove"), _log_removal),
        **dict.fromkeys(("listdir", "scandir"), _log_list),
    }
    before = {name: getattr(module, name) for name in makers}
    into.apply([Patch(module, name, make) for name, make in makers.items()])
    # `shutil` and others ask these sets what a function is able to do.
    for able in (module.supports_dir_fd, module.supports_fd, module.supports_follow_symlinks):
        able |= {getattr(module, name) for name, f in before.items() if f in able}


def _log_move(f: Any) -> Any:
    def move(src: Any, dst: Any, **more: Any) -> Any:
        begin = now_ns()
        found = f(src, dst, **more)
        if not this_thread.inside and not more:
            with suppress_own(Exception):
                old, new = _folder(posixpath.dirname(src)), _folder(posixpath.dirname(dst))
                end = now_ns()
                if old != new:
                    log.write(old, RECEIVE, begin, end)
                log.write(new, SEND, begin, end)
        return found

    return move


def _log_removal(f: Any) -> Any:
    def remove(path: Any, **more: Any) -> Any:
        begin = now_ns()
        found = f(path, **more)
        if not this_thread.inside and not more:
            with suppress_own(Exception):
                log.write(_folder(posixpath.dirname(path)), RECEIVE, begin, now_ns())
        return found

    return remove


def _log_list(f: Any) -> Any:
    def listed(path: Any = ".") -> Any:
        begin = now_ns()
        found = f(path)
        if not this_thread.inside:
            with suppress_own(Exception):
                log.write(_folder(path, known_only=True), LOOK, begin, now_ns())
        return found

    return listed


def _folder(path: Any, *, known_only: bool = False) -> int:
    """The channel of a folder; those of our own captures have none."""
    if not isinstance(path, str | os.PathLike):
        return NO_CHANNEL
    about = os.stat(path or ".")
    key = f"folder {about.st_dev}:{about.st_ino}"
    known = _known.get(key)
    if known is None and known_only:
        return NO_CHANNEL
    if known is None:
        ours = default.folder is not None and os.path.realpath(path or ".").startswith(str(default.folder))
        many = sum(channel["kind"] == "folder" for channel in log.channels) >= MOST_FOLDERS
        known = NO_CHANNEL if ours or many else log.channel(key, "folder")
        _known[key] = known
    return known


_known: dict[str, int] = {}
