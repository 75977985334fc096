"""Files that are written whole or not at all, and the computer's name as file names spell it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace `path` with `content` in one step; a failure leaves the old file and no temporary one."""
    temporary = _write_beside(path, content)
    try:
        os.replace(temporary, path)
    except BaseException:
        _remove(temporary)
        raise


def create_exclusively(path: Path, content: str | bytes) -> bool:
    """Write a new file in one step; False when it exists already."""
    temporary = _write_beside(path, content)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        _remove(temporary)
    return True


def host_name() -> str:
    """This computer's node name, with characters a file name cannot have replaced by `_`."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in os.uname().nodename) or "host"


def _write_beside(path: Path, content: str | bytes) -> str:
    import tempfile  # loads twenty modules that `import hotloop` does not need

    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
    except BaseException:
        _remove(temporary)
        raise
    return temporary


def _remove(temporary: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(temporary)
