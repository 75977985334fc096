"""From bytes to a `Capture`: works on a finished run, a running one, and one that was killed."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import CaptureError
from hotloop._util.files import host_name
from hotloop.capture import layout
from hotloop.capture.folder import FORMAT_VERSION
from hotloop.capture.model import (
    Capture,
    Event,
    Node,
    OpenRegion,
    Process,
    Progress,
    Thread,
    Windows,
)

RETRIES = 20  # copies of a busy thread's figures before the latest events are called uncertain

Bytes = NDArray[np.uint8]
Struct = NDArray[np.void]

_HEADER = layout.dtype("HEADER")
_BLOCK = layout.dtype("BLOCK")
_PARSED = {
    layout.BLOCK_REGIONS: layout.dtype("REGION_BLOCK"),
    layout.BLOCK_ARENA: layout.dtype("ARENA_BLOCK"),
    layout.BLOCK_NODES: layout.dtype("NODE_BLOCK"),
    layout.BLOCK_EVENTS: layout.dtype("EVENT_BLOCK"),
}


def load(path: str | os.PathLike[str]) -> Capture:
    """Read a capture folder. Parts that cannot be read are left out and named in `warnings`."""
    folder = Path(path)
    facts = read_facts(folder)
    processes, warnings = [], []
    parts = folder / "parts"
    for file in sorted(parts.glob("*.part")) if parts.is_dir() else []:
        try:
            processes.append(read_part(file))
        except CaptureError as problem:
            warnings.append(f"left out {file.name}: {problem}")
    for pointer in sorted(parts.glob("*.part.live")) if parts.is_dir() else []:
        live = Path(pointer.read_text(encoding="utf-8"))
        if not (parts / pointer.name.removesuffix(".live")).exists() and live.exists():
            processes.append(read_part(live))
    if not processes:
        warnings.append("no process has recorded anything yet")
    if (folder / "lines").is_dir():
        facts["lines"] = read_lines(folder / "lines")
    warnings += read_problems(folder / "problems")
    processes.sort(key=lambda p: (p.start_real_ns, p.pid))
    return Capture(folder, facts, tuple(processes), tuple(warnings))


def read_facts(folder: Path) -> dict[str, Any]:
    """capture.json, checked."""
    file = folder / "capture.json"
    if not folder.exists():
        raise CaptureError(f"There is no capture at {folder}: no such file or folder.")
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        version = facts["format_version"]
    except FileNotFoundError:
        raise CaptureError(
            f"{folder} is not a capture: it has no capture.json; give the folder that a recording wrote."
        ) from None
    except NotADirectoryError:
        raise CaptureError(f"{folder} is not a capture: a capture is a folder.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CaptureError(f"{file} cannot be read ({error}); restore it or record again.") from error
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise CaptureError(
            f"{folder} was written by hotloop {facts.get('hotloop_version', 'unknown')} in capture format "
            f"{version}; this hotloop reads up to {FORMAT_VERSION}. Update hotloop to read it."
        )
    return dict(facts)


def read_lines(folder: Path) -> dict[str, Any]:
    """Lines of the user's code seen outside all regions, over all processes that were sampled."""
    total: dict[str, Any] = {"samples": 0, "lines": {}}
    for file in sorted(folder.glob("*.json")):
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            total["samples"] += int(data["samples"])
            for line, count in data["lines"].items():
                total["lines"][line] = total["lines"].get(line, 0) + int(count)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # half a file of a process that is being written: next time
    return total


def read_problems(folder: Path) -> list[str]:
    """What processes could not record, a sentence each; what several of them say, once."""
    said: dict[str, None] = {}
    for file in sorted(folder.glob("*.txt")):
        with contextlib.suppress(OSError):
            said |= dict.fromkeys(file.read_text(encoding="utf-8", errors="replace").splitlines())
    return list(said)


def read_part(file: Path) -> Process:
    """Read the part of one process."""
    try:
        size = file.stat().st_size
        if size < _HEADER.itemsize:
            raise CaptureError(f"it is cut short ({size} bytes, the header alone has {_HEADER.itemsize})")
        data = np.memmap(file, mode="r", dtype=np.uint8)
    except OSError as error:
        raise CaptureError(f"it cannot be opened ({error.strerror})") from error
    return parse_part([data])


def parse_part(segments: list[Any], used_bytes: int | None = None) -> Process:
    """Read a part from its mapped pieces, the first of which starts with the header.

    One piece for a file. Several for the recording of this very process, which may lie in memory
    and be longer than what the header tells readers of the file.
    """
    pieces = [np.frombuffer(s, dtype=np.uint8) for s in segments]
    header = _header(pieces)
    if header["magic"].tobytes() != layout.MAGIC:
        raise CaptureError("it is not a hotloop part (wrong first bytes)")
    if header["version"] != layout.VERSION:
        raise CaptureError(
            f"it has part version {header['version']}; this hotloop reads version {layout.VERSION}: "
            "use the hotloop that wrote it, or update"
        )
    # A running process goes on while we read. Threads are copied first and names read after them:
    # a name is published before the first node that bears it.
    for _ in range(RETRIES):
        blocks, copies = _copy_threads(pieces, used_bytes or int(_header(pieces)["used_bytes"]))
        if not any(copy.lacks_nodes for copy in copies):
            break
    warnings: list[str] = []
    header = _header(pieces)
    blocks = _walk(pieces, used_bytes or int(header["used_bytes"]), warnings)
    regions = _regions(blocks, int(header["region_count"]))
    pid, host = int(header["pid"]), _text(header["host"])
    closed = bool(header["end_ns"])
    alive = not closed and host == host_name() and _is_running(pid)
    end_ns = int(header["end_ns"]) or int(header["alive_ns"])
    threads = [_thread(c, blocks, regions, end_ns, warnings) for c in copies if c.arena["state"]]
    warnings += _flag_warnings(int(header["flags"]), int(header["unsaved_blocks"]))
    return Process(
        host=host,
        pid=pid,
        parent_pid=int(header["parent_pid"]),
        label=_text(header["label"]),
        core="compiled" if header["core"] == layout.CORE_COMPILED else "python",
        start_ns=int(header["start_ns"]),
        start_real_ns=int(header["start_real_ns"]),
        end_ns=max([end_ns, *(t.end_ns for t in threads if t.folded_threads == 0)]),
        closed=closed,
        alive=alive,
        rss_bytes=int(header["rss_bytes"]) or None,
        rss_peak_bytes=int(header["rss_peak_bytes"]) or None,
        threads=tuple(threads),
        warnings=tuple(warnings),
    )


# -- blocks --------------------------------------------------------------------------------------

Blocks = list[tuple[int, int, int, Bytes]]  # kind, owner, first, memory


def _walk(pieces: list[Bytes], used_bytes: int, warnings: list[str]) -> Blocks:
    found: Blocks = []
    left = used_bytes - layout.PAGE
    for number, piece in enumerate(pieces):
        at = layout.PAGE if number == 0 else 0
        while left > 0 and at < len(piece):
            if at + _BLOCK.itemsize > len(piece):
                break
            head = piece[at : at + _BLOCK.itemsize].view(_BLOCK)[0]
            length, kind = int(head["bytes"]), int(head["kind"])
            parsed = _PARSED.get(kind)
            if length < _BLOCK.itemsize or length % 8 or (parsed and length < parsed.itemsize):
                if length or kind or len(pieces) == 1:
                    warnings.append(f"a scribbled block at byte {at}; what follows it is left out")
                break
            if at + length > len(piece) and kind != layout.BLOCK_FILLER:
                warnings.append(f"cut short at byte {len(piece)} of {used_bytes}; the rest is left out")
                return found
            if parsed is not None:
                found.append((kind, int(head["owner"]), int(head["first"]), piece[at : at + length]))
            at += length
            left -= length
    if left > 0 and len(pieces) == 1 and not warnings:
        warnings.append(f"cut short at byte {len(pieces[0])} of {used_bytes}; the rest is left out")
    return found


def _of_kind(blocks: Blocks, kind: int) -> list[tuple[int, Struct]]:
    dtype = _PARSED[kind]
    return [(b[1], b[3][: dtype.itemsize].view(dtype)[0]) for b in blocks if b[0] == kind]


def _regions(blocks: Blocks, count: int) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    for _, block in _of_kind(blocks, layout.BLOCK_REGIONS):
        for row in block["regions"][: max(count - len(found), 0)]:
            found.append(
                (
                    _decode(row["name"][: row["name_bytes"]].tobytes()),
                    _decode(row["category"][: row["category_bytes"]].tobytes()),
                    _decode(row["site"][: row["site_bytes"]].tobytes()),
                )
            )
    return found


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def _text(field: Bytes) -> str:
    return _decode(field.tobytes().split(b"\0", 1)[0])


def _is_running(pid: int) -> bool:
    if pid == os.getpid():
        return True
    import psutil  # only to read unfinished captures of other processes; takes longer to load than we do

    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def _flag_warnings(flags: int, unsaved: int) -> list[str]:
    texts = {
        layout.FLAG_NAMES_OVERFLOW: f"more than {layout.MAX_REGIONS} names; the rest is in "
        f"{layout.OTHER_NAMES!r}",
        layout.FLAG_PATHS_OVERFLOW: f"more than {layout.MAX_NODES} paths; the rest is in "
        f"{layout.OTHER_PATHS!r}",
        layout.FLAG_THREADS_OVERFLOW: f"more than {layout.MAX_ARENAS} threads at once; the rest is missing",
        layout.FLAG_DISK_FULL: f"the disk was full; {unsaved} pieces of the recording were not saved",
    }
    if not unsaved:
        del texts[layout.FLAG_DISK_FULL]
    return [text for flag, text in texts.items() if flags & flag]


# -- threads -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Copy:
    """One thread's figures, taken out of the shared memory."""

    number: int
    arena: Struct
    nodes: Struct
    buckets: NDArray[np.uint64]
    windows: Struct
    uncertain: bool  # an update was under way whenever we looked

    @property
    def lacks_nodes(self) -> bool:
        return bool(self.arena["node_count"] > len(self.nodes))


def _copy_threads(pieces: list[Bytes], used_bytes: int) -> tuple[Blocks, list[_Copy]]:
    blocks = _walk(pieces, used_bytes, [])
    node_blocks: dict[int, list[tuple[int, Struct]]] = {}
    for kind, owner, first, memory in blocks:
        if kind == layout.BLOCK_NODES:
            dtype = _PARSED[kind]
            node_blocks.setdefault(owner, []).append((first, memory[: dtype.itemsize].view(dtype)[0]))
    copies = []
    for number, block in _of_kind(blocks, layout.BLOCK_ARENA):
        mine = [nodes for _, nodes in sorted(node_blocks.get(number, []), key=lambda pair: pair[0])]
        copies.append(_consistent_copy(number, block["arena"], mine))
    return blocks, copies


def _header(pieces: list[Bytes]) -> Struct:
    header: Struct = pieces[0][: _HEADER.itemsize].copy().view(_HEADER)[0]
    return header


def _thread(
    copy: _Copy,
    blocks: Blocks,
    regions: list[tuple[str, str, str]],
    heartbeat_ns: int,
    warnings: list[str],
) -> Thread:
    arena, nodes = copy.arena, copy.nodes
    missing = int(arena["node_count"]) - len(nodes)
    if missing > 0:
        warnings.append(f"{missing} nodes of thread {_text(arena['thread_name'])!r} are missing")
    ended = bool(arena["state"] != layout.ARENA_LIVE)
    last_ns = int(arena["last_ns"])
    end_ns = last_ns if ended else max(last_ns, heartbeat_ns)
    built, paths = _tree(nodes, copy.buckets, regions, warnings)
    depth = min(int(arena["depth"]), layout.MAX_DEPTH)
    opened = []
    for frame in arena["stack"][:depth]:
        if frame["node"] < len(built):
            node = built[frame["node"]]
            open_ns = max(end_ns - int(frame["start_ns"]), 0)
            node.open_calls += 1
            node.open_ns += open_ns
            node.total_ns += open_ns
            opened.append(OpenRegion(node.name, int(frame["start_ns"])))
    top = int(arena["stack"][depth - 1]["node"]) if depth else 0
    if built:
        built[min(top, len(built) - 1)].own_ns += end_ns - last_ns
    own_wall = end_ns - int(arena["start_ns"]) if arena["state"] != layout.ARENA_FOLDED else 0
    wall_ns = own_wall + int(arena["folded_wall_ns"])
    root = built[0] if built else Node("", own_ns=wall_ns)  # a thread that was just beginning to record
    root.total_ns = wall_ns
    return Thread(
        name=_text(arena["thread_name"]),
        native_id=int(arena["native_id"]),
        start_ns=int(arena["start_ns"]),
        end_ns=end_ns,
        wall_ns=wall_ns,
        cpu_ns=(int(arena["cpu_ns"]) + int(arena["folded_cpu_ns"])) or None,
        folded_threads=int(arena["folded_threads"]),
        ended=ended,
        progress=_progress(arena["progress"]),
        open=tuple(opened),
        paths=tuple(paths),
        root=root,
        windows=_windows(arena, copy.windows),
        events=_events(arena, blocks, copy.number),
        uncertain=copy.uncertain,
    )


def _consistent_copy(number: int, shared: Struct, node_blocks: list[Struct]) -> _Copy:
    """Copy what belongs together between two looks at the sequence number.

    A thread that is never still is taken from the try that met the fewest updates: a reader that lost
    its core for a while holds figures from before and after.
    """
    fewest = None
    for _ in range(RETRIES):
        seq = int(shared["seq"])
        arena = shared.copy()
        count = int(arena["node_count"])
        nodes = _joined(node_blocks, "nodes", count)
        buckets = _joined(node_blocks, "buckets", count)["count"]
        windows = _joined(node_blocks, "windows", count)["at"]
        updates = int(shared["seq"]) - seq + seq % 2
        if fewest is None or updates < fewest:
            fewest = updates
            best = _Copy(number, arena, nodes, buckets, windows, uncertain=updates != 0)
        if not updates:
            break
    return best


def _joined(node_blocks: list[Struct], name: str, count: int) -> Struct:
    dtype = _PARSED[layout.BLOCK_NODES][name].base
    if not node_blocks:
        return np.zeros(0, dtype=dtype)
    rows = [block[name] for block in node_blocks]
    left = []
    for row in rows:
        left.append(row[: max(count, 0)].copy())
        count -= len(left[-1])
    return np.concatenate(left)


def _tree(
    nodes: Struct,
    buckets: NDArray[np.uint64],
    regions: list[tuple[str, str, str]],
    warnings: list[str],
) -> tuple[list[Node], list[tuple[str, ...]]]:
    built: list[Node] = []
    paths: list[tuple[str, ...]] = []
    for row, histogram in zip(nodes.tolist(), buckets, strict=True):
        (region, flags, calls, total, own, least, most, first, squares, parent, at, moved, flops, *rest) = row
        device_ns, device_calls, device_growth, device_peak, growth, peak, samples, _ = rest
        name, category, site = ("", "", "")
        if built:
            if region >= len(regions) or parent >= len(built):
                warnings.append(f"a scribbled node ({region}, {parent}) is shown as (unreadable)")
                parent = parent if parent < len(built) else 0
                name = "(unreadable)"
            else:
                name, category, site = regions[region]
                if 0 < at <= len(regions):
                    site = regions[at - 1][0]
        about_mean = squares - (total - calls * first) ** 2 / calls if calls else 0.0
        node = Node(
            name,
            category,
            site,
            calls=calls,
            total_ns=total,
            own_ns=own,
            min_ns=least if calls else None,
            max_ns=most if calls else None,
            squares=max(about_mean, 0.0),
            buckets=histogram if calls else None,
            bytes_moved=moved,
            flops=flops,
            device_ns=device_ns if device_calls else None,
            device_growth_bytes=device_growth if device_calls else None,
            device_peak_bytes=device_peak if device_calls else None,
            rss_growth_bytes=growth if samples else None,
            rss_peak_bytes=peak if samples else None,
            out_of_order=bool(flags & layout.NODE_OUT_OF_ORDER),
        )
        if built:
            built[parent].children.append(node)
            paths.append((*paths[parent], name))
        else:
            paths.append(())
        built.append(node)
    return built, paths


def _progress(row: Struct) -> Progress:
    return Progress(*row.item())


def _windows(arena: Struct, columns: Struct) -> Windows:
    count = min(int(arena["window_count"]), layout.MAX_WINDOWS)
    rows = arena["windows"][:count]
    by_window = columns[:, :count].T
    return Windows(
        time_ns=rows["time_ns"],
        real_ns=rows["real_ns"],
        cpu_ns=rows["cpu_ns"],
        rss_bytes=rows["rss_bytes"],
        progress={name: rows["progress"][name] for name in rows["progress"].dtype.names or ()},
        calls=by_window["calls"],
        total_ns=by_window["total_ns"],
        own_ns=by_window["own_ns"],
    )


def _events(arena: Struct, blocks: Blocks, number: int) -> tuple[Event, ...]:
    count = int(arena["event_count"])
    for kind, owner, _, memory in blocks:
        if kind == layout.BLOCK_EVENTS and owner == number and count:
            dtype = _PARSED[kind]
            ring = memory[: dtype.itemsize].view(dtype)[0]["events"].copy()
            ring = np.roll(ring, -count) if count > len(ring) else ring[:count]
            return tuple(Event(int(e["node"]), int(e["start_ns"]), int(e["duration_ns"])) for e in ring)
    return ()
