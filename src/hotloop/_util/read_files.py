"""The one way to read files that may be damaged or foreign.

Only regular files are read, and only up to a size: a FIFO would block, a device never ends. JSON is checked
against its checksum if it has one. Whatever is wrong becomes one sentence in one `FileError`.
"""

from __future__ import annotations

import json
import math
import os
import stat
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop._util.errors import FileError
from hotloop._util.interrupts import is_users
from hotloop._util.units import size

MOST_LEVELS = 60  # of nesting in a JSON file
MOST_FILES = 20_000  # of one kind in a folder
CHECKSUM = "checksum"  # key of a JSON object
CHECKSUM_KIND = "crc32:"  # how its value begins

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISSOCK, "a socket"),
)


@dataclass(frozen=True, slots=True)
class Reader:
    """How files of one kind are read."""

    most_bytes: int
    error: type[FileError] = FileError
    remedy: str = ""  # completes the sentence: what the user can do
    follow: bool = True  # symbolic links; not for files that were found in a folder from elsewhere

    def open_file(self, file: Path) -> int:
        """A descriptor of the file, which the caller closes."""
        try:
            self._check(file, os.stat(file, follow_symlinks=self.follow))
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if self.follow else os.O_NOFOLLOW)
            descriptor = os.open(file, flags)
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
            if is_users(error):
                raise
            raise self.fail(file, f"cannot be read ({_reason(error)})") from None
        try:
            self._check(file, os.fstat(descriptor))  # it may have been exchanged meanwhile
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def read_bytes(self, file: Path) -> bytes:
        """The content of the file."""
        with open(self.open_file(file), "rb") as opened:
            try:
                content = opened.read(self.most_bytes + 1)
            except OSError as error:
                if is_users(error):
                    raise
                raise self.fail(file, f"cannot be read ({_reason(error)})") from None
        if len(content) > self.most_bytes:
            raise self.fail(file, f"has more than {size(self.most_bytes)}, the most that is read")
        return content

    def read_text(self, file: Path) -> str:
        """The content of the file as UTF-8, without the byte order mark that some editors put first."""
        try:
            return self.read_bytes(file).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise self.fail(file, f"is not UTF-8 text ({error.reason} at byte {error.start})") from None

    def read_json(self, file: Path, first: Callable[[Any], None] = lambda data: None) -> Any:
        """The content of the file as JSON; a checksum is verified and removed.

        `first` sees the data before that: it raises an error for a file of another kind or version.
        """
        return self.parse_json(file, self.read_bytes(file), first)

    def read_object(self, file: Path, first: Callable[[Any], None] = lambda data: None) -> dict[str, Any]:
        """The same for a file that must hold a JSON object."""
        found = self.read_json(file, first)
        if not isinstance(found, dict):
            raise self.fail(file, "does not hold a JSON object")
        return found

    def parse_json(self, file: Path, content: bytes, first: Callable[[Any], None] = lambda data: None) -> Any:
        """The same as `read_json` for content that was read before."""
        try:
            found = json.loads(content)
            if _levels(found) > MOST_LEVELS:
                raise RecursionError
        except (ValueError, RecursionError) as error:
            if is_users(error):
                raise
            if isinstance(error, UnicodeDecodeError):
                raise self.fail(file, "is not JSON, since it is not UTF-8 text") from None
            if isinstance(error, RecursionError):
                raise self.fail(file, f"is nested more than {MOST_LEVELS} levels deep") from None
            raise self.fail(file, f"is not valid JSON ({error})") from None
        first(found)
        written = _take_checksum(found) if isinstance(found, dict) else None
        if written is not None and written != checksum_of(found):
            raise self.fail(
                file, "does not match its checksum, so it is damaged or was edited (then delete its checksum)"
            )
        return _decoded(found) if b'"$float"' in content else found

    def fail(self, file: Path, reason: str) -> FileError:
        """The error for a file; `reason` completes the sentence that begins with its name."""
        return self.error(f"{file} {reason}; {self.remedy}." if self.remedy else f"{file} {reason}.")

    def _check(self, file: Path, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            kind = next((name for test, name in _KINDS if test(found.st_mode)), "a device")
            raise self.fail(file, f"is {kind} and not a regular file")
        if found.st_size > self.most_bytes:
            raise self.fail(file, f"has {size(found.st_size)}; at most {size(self.most_bytes)} are read")


def files_in(
    folder: Path, ending: str, error: type[FileError] = FileError, most: int = MOST_FILES
) -> list[Path]:
    """Files of a folder by name, whatever they are; [] if there is no such folder.

    Raises `error` for more files than any recording has.
    """
    found: list[Path] = []
    try:
        if stat.S_ISDIR(os.lstat(folder).st_mode):
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.endswith(ending):
                        found.append(folder / entry.name)
                    if len(found) > most:
                        raise error(f"{folder} has more than {most:,} files; remove some.")
    except (OSError, ValueError) as problem:
        if is_users(problem):
            raise
        return []
    return sorted(found)


def json_text(data: dict[str, Any], *, indent: int | None = 1, default: Any = None) -> str:
    """Strict JSON of an object, with a checksum; a float that JSON cannot hold is {"$float": "nan"}.

    Raises TypeError or ValueError for data that cannot be written, or not be read again.
    """
    plain = json.loads(json.dumps(data, default=default))
    if _levels(plain) > MOST_LEVELS:
        raise ValueError(f"it is nested more than {MOST_LEVELS} levels deep")
    plain = _encoded(plain)
    return json.dumps(plain | {CHECKSUM: checksum_of(plain)}, indent=indent) + "\n"


def _take_checksum(data: dict[str, Any]) -> Any:
    """Remove and return an object's checksum; one whose own name is damaged counts, and fits no content."""
    if CHECKSUM in data:
        return data.pop(CHECKSUM)
    return next((v for v in data.values() if isinstance(v, str) and v.startswith(CHECKSUM_KIND)), None)


def checksum_of(data: dict[str, Any]) -> str:
    """Checksum of what a JSON object says, however it is laid out."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return f"{CHECKSUM_KIND}{zlib.crc32(text.encode('ascii')):08x}"


def _encoded(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, dict):
        return {key: _encoded(item) for key, item in value.items()}
    return [_encoded(item) for item in value] if isinstance(value, list) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"$float"} and value["$float"] in ("nan", "inf", "-inf"):
            return float(value["$float"])
        return {key: _decoded(item) for key, item in value.items()}
    return [_decoded(item) for item in value] if isinstance(value, list) else value


def _levels(data: Any) -> int:
    """Levels of nesting, counted without recursion and no further than needed."""
    levels, level = 0, [data]
    while level and levels <= MOST_LEVELS:
        inside = [
            list(v.values()) if isinstance(v, dict) else v for v in level if isinstance(v, (dict, list))
        ]
        level = [item for items in inside for item in items if isinstance(item, (dict, list))]
        levels += 1
    return levels


def _reason(error: OSError | ValueError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
