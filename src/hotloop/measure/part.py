"""The part file of one process: sections in space that is allocated on disk before it is mapped.

Both cores get their sections from a `Part` and write into the memory it returns. Space comes in segments
(128 KiB, then doubling), so that a process needs a handful of mappings, not thousands. When the disk is
full, further segments are plain memory; `close` tries to save them. The file gets its name when its header is
complete, so that a process that is killed before leaves no part that cannot be read.

A signal handler of the user's may raise anywhere in here, and its exception is passed on. What was half
done then is done again by the next call: a section counts as used only when it is complete, and asking for it
again returns the same one. Python runs signal handlers at calls and at the end of a loop's body, not between
plain assignments, so that several of these in a row are done all or not at all.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hotloop._util.files import UNFINISHED, host_name, replacing
from hotloop._util.interrupts import is_users, suppress_own, undisturbed
from hotloop.capture import layout

FIRST_SEGMENT_BYTES = 128 * 1024
LARGEST_SEGMENT_BYTES = 8 * 1024 * 1024
COPY_INTERVAL_NS = 10_000_000_000
SEAL_ATTEMPTS = 5  # a millisecond each, for threads in the middle of an update
NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse", "lustre", "beegfs", "gpfs", "afs"}
_HEADER_SIZES = {field[0]: layout.field_bytes(field) for field in layout.HEADER}
_HEADER_SLICES = {name: slice(at, at + _HEADER_SIZES[name]) for name, at in layout.offsets("HEADER").items()}
_REGION_AT = layout.offsets("REGION")
_REGION_BYTES = layout.item_bytes("REGION")
_SECTION_BYTES = layout.item_bytes("SECTION")
_SECTION_HEADER = struct.Struct(f"<{layout.SECTION_NAME_BYTES}sIIQQQQ")


@dataclass
class Segment:
    """A stretch of the file, mapped as one piece."""

    offset: int
    memory: mmap.mmap
    on_disk: bool
    used: int = 0
    touched: int = 0  # bytes that may not be zero any more: more than `used` in the middle of an addition


class Part:
    """The recording of one process, in a file in `folder` or, without a folder, in memory only."""

    def __init__(
        self,
        folder: Path | None,
        core: int,
        start_ns: int,
        warn: Callable[[str], None] = lambda text: None,
        live_folder: Path | None = None,
    ):
        self.warn = warn
        self.pid = os.getpid()
        self.path: Path | None = None
        self._live_path: Path | None = None
        self._unnamed: Path | None = None  # what the file is called until its header is complete
        self._file: int | None = None
        self._identity: tuple[int, int] | None = None  # of the file: its device and inode
        self._next_copy_ns = start_ns + COPY_INTERVAL_NS
        self.segments: list[Segment] = []
        self._lock = threading.RLock()
        self._sections: dict[tuple[str, int, int], memoryview] = {}  # payloads by name, owner, first
        self._names: list[memoryview] = []  # the sections of regions
        self.samples: memoryview | None = None  # the section of line samples, once there is one
        self._threads: list[memoryview] = []
        self.at_window: Callable[[int], None] | None = None  # called after each window with its time
        try:
            if folder is not None:
                problem = undisturbed(lambda: self._open(folder, start_ns, live_folder))
                if problem is not None:
                    self._do_without_file(folder, problem)
            self.header = self._room(layout.PAGE)
            self.segments[-1].used = layout.PAGE
            self._write_header(core, start_ns)
            self._name_file()
        except BaseException:  # there will be another part, and this one would never be complete
            for path in (self._unnamed, self._live_path or self.path):
                for file in _open_files(path):
                    os.close(file)
            self._discard_file()
            raise

    # -- opening ---------------------------------------------------------------------------------

    def _open(self, folder: Path, start_ns: int, live_folder: Path | None) -> Exception | None:
        """Open the file; returns why it cannot be."""
        name = f"{host_name()}-{self.pid}-{start_ns}.part"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.path = folder / name
            live = live_folder or (Path("/dev/shm") if is_on_network(folder) else None)
            if live is not None:
                self._live_path = live / f"hotloop-{name}"
                (folder / f"{name}.live").write_text(str(self._live_path), encoding="utf-8")
            target = self._live_path or self.path
            self._unnamed = target.with_name(f".{target.name}{UNFINISHED}")
            self._file = os.open(self._unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            self._identity = _identity(self._file)
        except (OSError, ValueError) as error:
            if is_users(error):
                raise
            return error
        return None

    def _name_file(self) -> None:
        """Let readers find the file, now that its header is complete."""
        target = self._live_path or self.path
        if self._unnamed is None or target is None:
            return
        try:
            os.link(self._unnamed, target)  # unlike a renaming, it never replaces another part
            with suppress_own(OSError):
                os.unlink(self._unnamed)
            self._unnamed = None
        except OSError as error:
            if is_users(error):
                raise
            self._do_without_file(target.parent, error)

    def _do_without_file(self, folder: Path, error: Exception) -> None:
        self.path = self._live_path = None  # if there is such a file, it is not ours
        self._discard_file()
        reason = getattr(error, "strerror", None) or error
        self.warn(f"cannot write to {folder} ({reason}); this process is recorded in memory only")

    def _write_header(self, core: int, start_ns: int) -> None:
        self.set("version", layout.VERSION)
        self.set("core", core)
        self.set("pid", self.pid)
        self.set("parent_pid", os.getppid())
        self.set("start_ns", start_ns)
        self.set("start_real_ns", time.time_ns())
        self.set("alive_ns", start_ns)
        self._set_text("host", host_name(), 64)
        self._set_text("label", process_label(), 256)
        self._publish_used()
        self.header[0:8] = layout.MAGIC

    # -- header fields ---------------------------------------------------------------------------

    def set(self, field: str, value: int) -> None:
        # In one copy: `struct.pack_into` clears the bytes first, which a reader could see.
        self.header[_HEADER_SLICES[field]] = value.to_bytes(_HEADER_SIZES[field], "little")

    def get(self, field: str) -> int:
        return int.from_bytes(self.header[_HEADER_SLICES[field]], "little")

    def _set_text(self, field: str, text: str, limit: int) -> None:
        data = encode(text, limit - 1)
        at = layout.offsets("HEADER")[field]
        self.header[at : at + len(data)] = data

    def raise_flag(self, flag: int, warning: str) -> None:
        """Set a header flag, and warn the first time."""
        if not self.get("flags") & flag:
            self.set("flags", self.get("flags") | flag)
            self.warn(warning)

    # -- sections --------------------------------------------------------------------------------

    def add_section(self, name: str, owner: int = 0, first: int = 0, data: bytes = b"") -> memoryview:
        """Append a section, in its latest version, and return its payload for the caller to write.

        A section that is declared with a struct starts zeroed, and readers can see it at once: zeros must
        mean "nothing here yet", and only one thread may write it. There is one for each name, owner and
        first; asking again returns the same. A section of bytes holds `data` and is complete when readers
        first see it.
        """
        struct_name = layout.SECTIONS[name][-1]
        payload_bytes = len(data) if struct_name is None else layout.item_bytes(struct_name)
        total_bytes = layout.section_bytes(payload_bytes)
        key = (name, owner, first)
        with self._lock:
            payload = self._sections.get(key)
            if payload is None:
                memory = self._room(total_bytes)
                payload = memory[_SECTION_BYTES : _SECTION_BYTES + payload_bytes]
                payload[: len(data)] = data
                _write_section_header(memory, name, owner, total_bytes, payload_bytes, first)
                segment = self.segments[-1]
                if struct_name is not None:
                    self._sections[key] = payload
                segment.used += total_bytes
            self._publish_used()
        if name == "samples":
            self.samples = payload
        elif name == "thread":
            self._threads.append(payload)
        return payload

    def publish_region(self, number: int, name: str, category: str, site: str) -> None:
        """Write a region's name; call it before anything in the part refers to that number."""
        texts = (
            ("name", encode(name, layout.NAME_BYTES)),
            ("category", encode(category, layout.CATEGORY_BYTES)),
            ("site", encode(site, layout.SITE_BYTES)),
        )
        section, place = divmod(number, layout.REGIONS_PER_SECTION)
        with self._lock:
            while len(self._names) <= section:  # readers expect them in order
                first = len(self._names) * layout.REGIONS_PER_SECTION
                self._names.append(self.add_section("regions", first=first))
            names = self._names[section]
            for field, data in texts:
                at = place * _REGION_BYTES + _REGION_AT[field]
                names[at : at + len(data)] = data
                length_at = place * _REGION_BYTES + _REGION_AT[f"{field}_bytes"]
                names[length_at : length_at + 2] = len(data).to_bytes(2, "little")
            if number >= self.get("region_count"):
                self.set("region_count", number + 1)

    def _room(self, length: int) -> memoryview:
        """Zeroed memory behind what is used; adding its length to `used` of the last segment takes it."""
        segment = self.segments[-1] if self.segments else None
        if segment is None or len(segment.memory) - segment.used < length:
            if segment is not None and segment.used < len(segment.memory):
                gap = len(segment.memory) - segment.used
                segment.touched = segment.used + _SECTION_BYTES
                rest = memoryview(segment.memory)[segment.used :]
                _write_section_header(rest, "filler", 0, gap, 0, 0)
                segment.used += gap
            segment = self._new_segment(length)
        if segment.touched > segment.used:  # an addition was interrupted
            segment.memory[segment.used : segment.touched] = bytes(segment.touched - segment.used)
        segment.touched = segment.used + length
        return memoryview(segment.memory)[segment.used : segment.touched]

    def _new_segment(self, at_least: int) -> Segment:
        offset = sum(len(s.memory) for s in self.segments)
        wanted = min(FIRST_SEGMENT_BYTES << len(self.segments), LARGEST_SEGMENT_BYTES)
        sizes = (max(wanted, at_least), at_least)
        to_disk = self.path is not None and (not self.segments or self.segments[-1].on_disk)
        for size in sizes if to_disk else ():
            try:
                file = self._descriptor()
                _allocate(file, offset, size)
                memory = mmap.mmap(file, size, offset=offset)
            except OSError as error:
                if is_users(error):
                    raise
                reason = error.strerror
                continue
            self.segments.append(Segment(offset, memory, on_disk=True))
            return self.segments[-1]
        if to_disk:
            full = f"no space for {self.path} ({reason}); recording continues in memory"
            if self.segments:
                self.raise_flag(layout.FLAG_DISK_FULL, full)
            else:
                self.warn(full)
                self._discard_file()
        self.segments.append(Segment(offset, mmap.mmap(-1, max(sizes)), on_disk=False))
        return self.segments[-1]

    @property
    def total_bytes(self) -> int:
        """Bytes used so far, on disk and in memory."""
        return sum(s.used for s in self.segments)

    def _publish_used(self) -> None:
        saved = [s for s in self.segments if s.on_disk or self.path is None]
        self.set("used_bytes", sum(s.used for s in saved))
        self.set("unsaved_segments", len(self.segments) - len(saved))

    # -- copying and closing ---------------------------------------------------------------------

    def window_taken(self, now_ns: int) -> None:
        """Called by both cores after each window."""
        if self.at_window is not None:
            self.at_window(now_ns)
        self._copy_if_due(now_ns)

    def _copy_if_due(self, now_ns: int) -> None:
        """On a network file system: update the copy in the folder every few seconds."""
        if self._live_path is not None and now_ns >= self._next_copy_ns:
            self._next_copy_ns = now_ns + COPY_INTERVAL_NS
            self._copy_live()

    def _copy_live(self) -> None:
        assert self._live_path is not None and self.path is not None
        temporary = self.path.with_suffix(".copy")
        try:
            import shutil  # seldom needed, and not light

            shutil.copyfile(self._live_path, temporary)
            os.replace(temporary, self.path)
        except OSError as error:
            if is_users(error):
                raise
            self.warn(f"cannot copy the recording to {self.path} ({error.strerror})")

    def close(self, end_ns: int) -> None:
        """Mark the end of the recording, save what did not fit on the disk before, and close the file.

        Does the rest when it is called again after an interrupt.
        """
        self.set("alive_ns", end_ns)
        self.set("end_ns", end_ns)
        if self._file is None:
            return
        try:
            self._save_unsaved()
            with suppress_own(OSError):
                os.ftruncate(self._descriptor(), sum(s.used for s in self.segments if s.on_disk))
            if self._live_path is not None and self.path is not None:
                self._copy_live()
                if self.path.exists():
                    self._remove_live(self._live_path, self.path)
            self._seal()
        finally:
            self._close_file()

    def _seal(self) -> None:
        """Replace the file with a copy that has a checksum; without room for one, the file stays as it is.

        The mapped file itself cannot have one: a thread that was in the middle of an update when the
        recording ended still writes to it.
        """
        if self.path is None or not all(segment.on_disk for segment in self.segments):
            return
        for _ in range(SEAL_ATTEMPTS):
            if not any(thread[0] & 1 for thread in self._threads):  # their sequence numbers
                break
            time.sleep(0.001)
        content = bytearray().join(memoryview(s.memory)[: s.used] for s in self.segments)
        content[_HEADER_SLICES["checksum"]] = bytes(8)
        content[_HEADER_SLICES["checksum"]] = struct.pack("<Q", layout.checksum_of(content))
        with suppress_own(OSError), replacing(self.path) as file:
            file.write(content)

    def _save_unsaved(self) -> None:
        for segment in self.segments:
            if segment.on_disk:
                continue
            try:
                file = self._descriptor()
                _allocate(file, segment.offset, segment.used)
                os.pwrite(file, segment.memory[: segment.used], segment.offset)
            except OSError as error:
                if is_users(error):
                    raise
                self.warn(
                    f"{segment.used} bytes of the recording did not fit on the disk "
                    f"({error.strerror}); {self.path} holds what was saved before"
                )
                break
            segment.on_disk = True
        self._publish_used()

    def _descriptor(self) -> int:
        """The number of our open file, or OSError.

        A program that becomes a daemon closes every file; the number may then be that of one of its files.
        """
        if self._file is None or _identity(self._file) != self._identity:
            self._file = None
            file = os.open(str(self._unnamed or self._live_path or self.path), os.O_RDWR | os.O_CLOEXEC)
            if _identity(file) != self._identity:
                os.close(file)
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            self._file = file
        return self._file

    def _discard_file(self) -> None:
        self._close_file()
        for path in (self.path, self._live_path, self._unnamed):
            if path is not None:
                self._remove_live(path, path)
        self.path = self._live_path = self._unnamed = None

    @staticmethod
    def _remove_live(live: Path, part: Path) -> None:
        """Remove a live part and the pointer to it."""
        with suppress_own(OSError):
            live.unlink(missing_ok=True)
            part.with_name(part.name + ".live").unlink(missing_ok=True)

    def _close_file(self) -> None:
        if self._file is not None and self._identity in (None, _identity(self._file)):
            with suppress_own(OSError):
                os.close(self._file)
        self._file = None

    def forget(self) -> None:
        """Give up a part in which nothing was recorded, or, in a forked child, the part of its parent."""
        if self.pid == os.getpid():
            self._discard_file()
        else:
            self._close_file()


def _identity(file: int) -> tuple[int, int] | None:
    """Device and inode of an open file; None for a number that is not open."""
    try:
        found = os.fstat(file)
    except OSError as error:
        if is_users(error):
            raise
        return None
    return found.st_dev, found.st_ino


def _open_files(path: Path | None) -> list[int]:
    """Numbers under which this process has a file open: after an interrupt, nobody may know them."""
    try:
        wanted = os.stat(path or "")
        numbers = [int(name) for name in os.listdir("/dev/fd")]
    except OSError as error:
        if is_users(error):
            raise
        return []
    return [file for file in numbers if _identity(file) == (wanted.st_dev, wanted.st_ino)]


def _write_section_header(
    memory: memoryview, name: str, owner: int, total_bytes: int, payload_bytes: int, first: int
) -> None:
    version = len(layout.SECTIONS[name])
    _SECTION_HEADER.pack_into(
        memory, 0, name.encode("ascii"), version, owner, total_bytes, payload_bytes, first, 0
    )


def _allocate(file: int, offset: int, size: int) -> None:
    """Allocate the space now, so that a later write into the mapping cannot fail."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, offset, size)
    else:
        os.pwrite(file, bytes(size), offset)


def encode(text: str, limit: int) -> bytes:
    """UTF-8 of at most `limit` bytes; a longer text keeps its beginning and a hash of the whole."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= limit:
        return data
    import hashlib  # seldom needed, and not light

    mark = "~" + hashlib.blake2b(data, digest_size=4).hexdigest()
    head = data[: limit - len(mark)]
    while head and head[-1] & 0xC0 == 0x80:  # back to a character's first byte
        head = head[:-1]
    if head and head[-1] >= 0xC0:
        head = head[:-1]
    return head + mark.encode()


def process_label() -> str:
    """A readable name for this process: its multiprocessing name or its script."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    name: str = multiprocessing.current_process().name if multiprocessing else "MainProcess"
    if name != "MainProcess":
        return name
    given = sys.orig_argv[1:]
    while given and given[0].startswith("-") and given[0] not in ("-c", "-m"):
        del given[: 2 if given[0] in ("-W", "-X") else 1]
    if len(given) > 1 and given[0] == "-m":  # its file may be a __main__.py, or not known yet
        return f"-m {given[1]}"
    return os.path.basename((getattr(sys, "argv", None) or [""])[0]) or "python"


def is_on_network(folder: Path) -> bool:
    """Whether a folder is on a network file system, where mapped files are slow or unsafe."""
    # Not psutil.disk_partitions: every recorded process would load psutil at its start for this.
    best, kind = "", ""
    try:
        target = str(folder.resolve())
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                _, mount, type_name, *_ = line.split(" ")
                mount = mount.replace("\\040", " ")
                inside = target == mount or target.startswith(mount.rstrip("/") + "/")
                if inside and len(mount) >= len(best):
                    best, kind = mount, type_name
    except OSError as error:
        if is_users(error):
            raise
        return False
    return kind.split(".")[0] in NETWORK_FILE_SYSTEMS
