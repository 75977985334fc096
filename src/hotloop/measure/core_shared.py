"""Shared by both cores: a recorder's flags, and what is known about a region when it is created."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType

# Bits of `Recorder.flags`; state.h defines the same.
RECORD_TIMELINE, RECORD_GAPS, RECORD_ROUNDS, RECORD_CALLS = 1, 2, 4, 8

PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_IMPORTLIB = os.path.join(os.path.dirname(os.__file__), "importlib") + os.sep
_OWN_TRAINING = os.path.join(PACKAGE, "rl") + os.sep  # marks regions as a user's code does


PACKAGE_FOLDERS = ("site-packages", "dist-packages")


def _library_folders() -> tuple[str, ...]:
    """Where Python keeps its own and installed packages, longest first, so that site-packages goes first.

    Packages are elsewhere, too: those of the Python below in a venv with `--system-site-packages`,
    Debian's, and those that a `.pth` file or PYTHONPATH adds.
    """
    schemes = [sysconfig.get_paths()]
    user_scheme = sysconfig.get_preferred_scheme("user")
    if user_scheme in sysconfig.get_scheme_names():
        schemes.append(sysconfig.get_paths(user_scheme))
    keys = ("stdlib", "platstdlib", "purelib", "platlib")
    found = {paths[key] for paths in schemes for key in keys if paths.get(key)}
    found |= {path for path in sys.path if os.path.basename(path.rstrip(os.sep)) in PACKAGE_FOLDERS}
    found |= {os.path.realpath(path) for path in found}
    return tuple(
        sorted({path.rstrip(os.sep) + os.sep for path in found}, key=lambda path: (-len(path), path))
    )


LIBRARIES = _library_folders()
DEVICE_NAMES = frozenset(
    ("policy_forward", "learner_forward", "loss", "backward", "optimizer_step", "transfer", "advantage")
)
DEVICE_CATEGORIES = frozenset(("policy", "model", "loss", "backward", "optimizer", "transfer"))


def describe_region(name: object, category: object, device: object) -> tuple[bool, str]:
    """Whether the region gets device time, and the file:line outside hotloop that created it.

    Raises TypeError when the name or the category is not a string.
    """
    if not isinstance(name, str):
        raise TypeError(f"A region's name is a string, not {type(name).__name__} ({name!r}).")
    if category is not None and not isinstance(category, str):
        raise TypeError(f"A category is a string, not {type(category).__name__} ({category!r}).")
    if device is None:
        device = name in DEVICE_NAMES or category in DEVICE_CATEGORIES
    return bool(device), call_site()


def call_site() -> str:
    """file:line of the nearest caller outside hotloop and the import system; "" when there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OWN_TRAINING) or not file.startswith((PACKAGE, "<frozen ", _IMPORTLIB)):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def user_site() -> str:
    """file:line of the user's code that is running now; "" when only libraries are on the stack."""
    return user_line(sys._getframe().f_back) or ""  # a call from C may have no caller


def is_library(file: str) -> bool:
    """Whether a file belongs to Python or an installed package; hotloop itself is not meant."""
    return file.startswith(("<", *LIBRARIES))


def user_line(frame: FrameType | None) -> str | None:
    """file:line of the innermost frame that belongs to no library."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE) and not is_library(file):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None
