"""The part file of one process: sections in space that is allocated on disk before it is mapped.

Both cores get their sections from a `Part` and write into the memory it returns. Space comes in segments
(128 KiB, then doubling), so that a process needs a handful of mappings, not thousands. When the disk is
full, further segments are plain memory; `close` tries to save them.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hotloop._util.files import host_name, replacing
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
        self._file: int | None = None
        self._next_copy_ns = start_ns + COPY_INTERVAL_NS
        self.segments: list[Segment] = []
        self._lock = threading.RLock()
        self._regions: memoryview | None = None  # the section that takes the next names
        self.region_count = 0
        self.samples: memoryview | None = None  # the section of line samples, once there is one
        self._threads: list[memoryview] = []
        self.at_window: Callable[[int], None] | None = None  # called after each window with its time
        if folder is not None:
            self._open(folder, start_ns, live_folder)
        self.header = memoryview(self._carve(layout.PAGE))
        self._write_header(core, start_ns)

    # -- opening ---------------------------------------------------------------------------------

    def _open(self, folder: Path, start_ns: int, live_folder: Path | None) -> None:
        name = f"{host_name()}-{self.pid}-{start_ns}.part"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.path = folder / name
            live = live_folder or (Path("/dev/shm") if is_on_network(folder) else None)
            if live is not None:
                self._live_path = live / f"hotloop-{name}"
                (folder / f"{name}.live").write_text(str(self._live_path), encoding="utf-8")
            target = self._live_path or self.path
            self._file = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            self.path = self._live_path = self._file = None
            self.warn(f"cannot write to {folder} ({error.strerror}); this process is recorded in memory only")

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
        mean "nothing here yet", and only one thread may write it. A section of bytes holds `data` and is
        complete when readers first see it.
        """
        versions = layout.SECTIONS[name]
        struct_name = versions[-1]
        payload_bytes = len(data) if struct_name is None else layout.item_bytes(struct_name)
        with self._lock:
            memory = self._carve(layout.section_bytes(payload_bytes))
            payload = memory[_SECTION_BYTES : _SECTION_BYTES + payload_bytes]
            payload[: len(data)] = data
            _write_section_header(memory, name, owner, len(memory), payload_bytes, first)
            self._publish_used()
        if name == "samples":
            self.samples = payload
        elif name == "thread":
            self._threads.append(payload)
        return payload

    def add_region(self, name: str, category: str, site: str) -> int:
        """Publish a region's name; returns its number."""
        texts = (
            ("name", encode(name, layout.NAME_BYTES)),
            ("category", encode(category, layout.CATEGORY_BYTES)),
            ("site", encode(site, layout.SITE_BYTES)),
        )
        with self._lock:
            number = self.region_count
            if number % layout.REGIONS_PER_SECTION == 0:
                self._regions = self.add_section("regions", first=number)
            assert self._regions is not None
            base = number % layout.REGIONS_PER_SECTION * _REGION_BYTES
            for field, data in texts:
                at = base + _REGION_AT[field]
                self._regions[at : at + len(data)] = data
                struct.pack_into("<H", self._regions, base + _REGION_AT[f"{field}_bytes"], len(data))
            self.region_count += 1
            self.set("region_count", self.region_count)
        return number

    def _carve(self, length: int) -> memoryview:
        segment = self.segments[-1] if self.segments else None
        if segment is None or len(segment.memory) - segment.used < length:
            if segment is not None and segment.used < len(segment.memory):
                gap = len(segment.memory) - segment.used
                rest = memoryview(segment.memory)[segment.used :]
                _write_section_header(rest, "filler", 0, gap, 0, 0)
                segment.used = len(segment.memory)
            segment = self._new_segment(length)
        at = segment.used
        segment.used += length
        return memoryview(segment.memory)[at : at + length]

    def _new_segment(self, at_least: int) -> Segment:
        offset = sum(len(s.memory) for s in self.segments)
        wanted = min(FIRST_SEGMENT_BYTES << len(self.segments), LARGEST_SEGMENT_BYTES)
        sizes = (max(wanted, at_least), at_least)
        file = self._file if not self.segments or self.segments[-1].on_disk else None
        for size in sizes if file is not None else ():
            assert file is not None
            try:
                _allocate(file, offset, size)
                memory = mmap.mmap(file, size, offset=offset)
            except OSError as error:
                reason = error.strerror
                continue
            self.segments.append(Segment(offset, memory, on_disk=True))
            return self.segments[-1]
        if file is not None:
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
        saved = [s for s in self.segments if s.on_disk or self._file is None]
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
            self.warn(f"cannot copy the recording to {self.path} ({error.strerror})")

    def close(self, end_ns: int) -> None:
        """Mark the end of the recording, save what did not fit on the disk before, and close the file."""
        self.set("alive_ns", end_ns)
        self.set("end_ns", end_ns)
        if self._file is not None:
            self._save_unsaved()
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, sum(s.used for s in self.segments if s.on_disk))
            if self._live_path is not None and self.path is not None:
                self._copy_live()
                if self.path.exists():
                    self._live_path.unlink(missing_ok=True)
                    self.path.with_name(self.path.name + ".live").unlink(missing_ok=True)
            self._seal()
            os.close(self._file)
            self._file = None

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
        with contextlib.suppress(OSError), replacing(self.path) as file:
            file.write(content)

    def _save_unsaved(self) -> None:
        assert self._file is not None
        for segment in self.segments:
            if segment.on_disk:
                continue
            try:
                _allocate(self._file, segment.offset, segment.used)
                os.pwrite(self._file, segment.memory[: segment.used], segment.offset)
            except OSError as error:
                self.warn(
                    f"{segment.used} bytes of the recording did not fit on the disk "
                    f"({error.strerror}); {self.path} holds what was saved before"
                )
                break
            segment.on_disk = True
        self._publish_used()

    def _discard_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
        for path in (self.path, self._live_path):
            if path is not None:
                path.unlink(missing_ok=True)
                path.with_name(path.name + ".live").unlink(missing_ok=True)
        self._file = self.path = self._live_path = None

    def forget(self) -> None:
        """In a forked child: drop the parent's file without changing it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


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
    except OSError:
        return False
    return kind.split(".")[0] in NETWORK_FILE_SYSTEMS
