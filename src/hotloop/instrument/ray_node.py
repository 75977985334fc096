"""A node of a Ray cluster: where its processes record, and what of it has not been sent to the driver yet.

Loaded in the workers of the cluster and, on nodes other than the driver's, in one small actor that the driver
asks for news. Nothing here needs Ray.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hotloop._util import HOTLOOP_VERSION
from hotloop._util.errors import CaptureError, FileError
from hotloop._util.files import UNFINISHED, host_name, write_atomically
from hotloop._util.interrupts import is_users, suppress_own
from hotloop.capture import layout
from hotloop.capture.folder import FACTS

if TYPE_CHECKING:
    from hotloop.capture.model import Process

NODE_FOLDER_VARIABLE = "HOTLOOP_NODE_FOLDER"  # environment of a node: where its processes record
FOLDERS = ("parts", "messages", "libraries", "problems", "summaries")  # of a capture: what is sent
FOLDED = ("parts", "messages")  # what a summary stands for
FOLD_INTERVAL_S = 10.0
BLOCK_BYTES = 64 * 1024
MOST_BYTES = 32 << 20  # of one answer, before compression


class FileNews(NamedTuple):
    """The blocks of a file that have changed, compressed."""

    name: str  # "parts/host-1-2.part"
    size: int
    blocks: list[tuple[int, bytes]]  # offset, content


def recording_folder(capture: str, run_id: str) -> tuple[Path, bool]:
    """Where processes on this node record, and whether that is the capture itself, which all nodes share.

    The capture is shared if its capture.json can be read here and has the id of this run.
    """
    chosen = os.environ.get(NODE_FOLDER_VARIABLE)
    if not chosen:
        with suppress_own(FileError, OSError, ValueError):
            if FACTS.read_object(Path(capture) / "capture.json").get("run_id") == run_id:
                return Path(capture), True
    return Path(chosen or tempfile.gettempdir()) / f"hotloop-{run_id}", False


def clock_id() -> str:
    """Identifies the monotonic clock of this process: computer since its start, and time namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError as error:
        if is_users(error):
            raise
        return ""
    with suppress_own(OSError):  # containers may have a clock of their own
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    return boot


def network_id() -> str:
    """Identifies the network interfaces of this process: its computer since it started, and its namespace."""
    with suppress_own(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/net')}"
    return ""


class NetworkMeter:
    """Bytes that went over the busiest network interface of this computer since the meter was made."""

    def __init__(self) -> None:
        self._began_ns = time.monotonic_ns()
        self._before = _by_interface()

    def read(self) -> tuple[int, int, int] | None:
        """Nanoseconds, bytes received and bytes sent, by all programs; None: not known."""
        since = [
            tuple(now - then for now, then in zip(counts, self._before[name], strict=True))
            for name, counts in _by_interface().items()
            if name in self._before
        ]
        if not since:
            return None
        received, sent = max(since, key=sum)
        return time.monotonic_ns() - self._began_ns, received, sent


def _by_interface() -> dict[str, tuple[int, int]]:
    """Bytes received and sent, by the name of the interface; without the one to this computer itself."""
    found: dict[str, tuple[int, int]] = {}
    with suppress_own(OSError, ValueError, IndexError):
        for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines()[2:]:
            name, _, counts = line.partition(":")
            words = counts.split()
            if name.strip() != "lo":
                found[name.strip()] = int(words[0]), int(words[8])
    return found


class Asked(NamedTuple):
    """What the driver wants to know."""

    again: bool = False  # send everything: the last answer was lost
    last: bool = False  # the run ends
    most_parts: int = 1 << 30  # a node with more recordings sends one summary instead
    node: str = ""
    begin_real_ns: int = 0  # of the run
    now_real_ns: int = 0


class News(NamedTuple):
    """The answer."""

    files: list[FileNews]
    running: list[int]  # processes
    more: bool  # ask again
    folded: int = 0  # processes in the summary of this node; 0: it sends its recordings
    network: tuple[int, int, int] | None = None  # as `NetworkMeter.read` says


class NodeRecordings:
    """Answers the driver's questions about the recordings on this node."""

    def __init__(self, capture: str, run_id: str):
        self.folder, self.shared = recording_folder(capture, run_id)
        self._network = NetworkMeter()
        self._folded = 0  # processes in the summary; 0: none was made
        self._folded_s = -FOLD_INTERVAL_S
        self._sent: dict[str, list[bytes]] = {}  # file -> digests of the blocks that were sent

    def hello(self) -> dict[str, Any]:
        """Facts that do not change."""
        return {
            "version": HOTLOOP_VERSION,
            "part_version": layout.VERSION,
            "host": host_name(),
            "clock_id": clock_id(),
            "network_id": network_id(),
            "shared": self.shared,
            "folder": str(self.folder),
        }

    def clock(self) -> tuple[int, int]:
        """Monotonic and real time here and now, in ns."""
        return time.monotonic_ns(), time.time_ns()

    def news(self, asked: Asked = Asked()) -> News:  # noqa: B008 a tuple
        """What has changed since the last call."""
        if asked.again:
            self._sent.clear()
        found: list[FileNews] = []
        total = 0
        files = [] if self.shared else _files(self.folder)
        parts = [file for file in files if file.suffix == ".part"]
        if self._folded or len(parts) > asked.most_parts:
            self._fold(parts, asked)
            files = [file for file in _files(self.folder) if file.parent.name not in FOLDED]
        for file in files:
            name = str(file.relative_to(self.folder))
            news = self._changed(file, name)
            if news is not None:
                found.append(news[0])
                total += news[1]
            if total > MOST_BYTES:
                return News(found, _running(parts), True, self._folded, self._network.read())
        return News(found, _running(parts), False, self._folded, self._network.read())

    def _fold(self, parts: list[Path], asked: Asked) -> None:
        """Write the summary of this node, now and then and at the end."""
        if time.monotonic() - self._folded_s < FOLD_INTERVAL_S and not asked.last:
            return
        from hotloop.capture.reader import read_part  # most nodes have few processes and need none of this
        from hotloop.capture.summary import FOLDER, fold, save_summary

        def readable() -> Iterator[Process]:
            for file in parts:
                with suppress_own(CaptureError):
                    yield read_part(file)

        summary = fold(readable(), asked.begin_real_ns, asked.now_real_ns)
        (self.folder / FOLDER).mkdir(exist_ok=True)
        save_summary(summary, self.folder / FOLDER / f"{asked.node}.json")
        self._folded, self._folded_s = max(summary.processes, 1), time.monotonic()

    def _changed(self, file: Path, name: str) -> tuple[FileNews, int] | None:
        try:
            data = file.read_bytes()
        except OSError as error:
            if is_users(error):
                raise
            return None
        before = self._sent.get(name, [])
        digests: list[bytes] = []
        blocks: list[tuple[int, bytes]] = []
        changed = 0
        for number, at in enumerate(range(0, len(data), BLOCK_BYTES)):
            block = data[at : at + BLOCK_BYTES]
            digest = hashlib.blake2b(block, digest_size=16).digest()
            digests.append(digest)
            if number >= len(before) or before[number] != digest:
                blocks.append((at, zlib.compress(block, 1)))
                changed += len(block)
        self._sent[name] = digests
        if not blocks and len(digests) == len(before):
            return None
        return FileNews(name, len(data), blocks), changed

    def forget(self) -> None:
        """Delete what was recorded here: the driver has it."""
        if self.shared:
            return
        for file in _files(self.folder):
            with suppress_own(OSError):
                file.unlink()
        with suppress_own(OSError):
            (self.folder / "capture.json").unlink(missing_ok=True)
            for folder in (*(self.folder / name for name in FOLDERS), self.folder):
                if folder.is_dir():
                    folder.rmdir()


def _files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for name in FOLDERS:
        with suppress_own(OSError), os.scandir(folder / name) as entries:
            for entry in entries:
                hidden = entry.name.startswith(".") or entry.name.endswith(UNFINISHED)
                if not hidden and entry.is_file(follow_symlinks=False):
                    found.append(Path(entry.path))
    return sorted(found)


def _running(files: Iterable[Path]) -> list[int]:
    """Processes of these parts that still run."""
    found = []
    for file in files:
        words = file.name.rsplit("-", 2)
        if file.suffix == ".part" and len(words) == 3 and words[1].isdecimal():
            pid = int(words[1])
            with suppress_own(OSError):
                os.kill(pid, 0)
                found.append(pid)
    return found


def store(folder: Path, news: Iterable[FileNews]) -> int:
    """Write what a node sent into the capture; returns how many bytes came over the network.

    Raises OSError if it cannot be written, ValueError for a name that no capture has.
    """
    received = 0
    for name, size, blocks in news:
        place, _, file_name = name.partition("/")
        if place not in FOLDERS or not file_name or "/" in file_name or file_name.startswith("."):
            raise ValueError(f"{name!r} is no file of a capture")
        received += sum(len(block) for _, block in blocks)
        path = folder / place / file_name
        path.parent.mkdir(exist_ok=True)
        if size <= BLOCK_BYTES and len(blocks) == 1:
            write_atomically(path, zlib.decompress(blocks[0][1]))
            continue
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            # The header, in the first block, says how much of the file may be read: it comes last.
            for at, block in sorted(blocks, reverse=True):
                os.pwrite(file, zlib.decompress(block), at)
            os.ftruncate(file, size)
        finally:
            os.close(file)
    return received
