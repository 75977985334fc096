"""Reads a capture folder into a `Capture`: of a finished run, a running one, or one that was killed."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import CaptureError
from hotloop._util.files import host_name
from hotloop._util.read_files import Reader, files_in
from hotloop._util.visible import visible
from hotloop.capture import layout
from hotloop.capture.channels import fold_channels
from hotloop.capture.clock_alignment import align_processes
from hotloop.capture.facts import read_facts, read_libraries, read_lines, read_problems
from hotloop.capture.model import (
    ROUND_DTYPE,
    Capture,
    Event,
    Node,
    OpenRegion,
    Process,
    Progress,
    Rounds,
    Thread,
    Windows,
    no_rounds,
)
from hotloop.capture.nodes import NodeFacts, describe_missing, node_of, read_nodes
from hotloop.capture.plausible import (
    MOST,
    implausible_process,
    implausible_thread,
    no_windows,
    plausible_scheduling,
    plausible_windows,
    with_finite_work,
)
from hotloop.capture.read_samples import (
    read_channels,
    read_origin,
    read_process_scheduling,
    read_samples,
    read_scheduling,
    read_settings,
)
from hotloop.capture.samples import lines_outside_regions
from hotloop.capture.secrets import REDACTED, describe
from hotloop.capture.sections import (
    DTYPES,
    Bytes,
    Section,
    SkippedSections,
    Struct,
    consecutive,
    describe_skipped,
    find_sections,
)
from hotloop.capture.summary import read_folded

LEFT_OUT = "left out"  # begins a warning about a part
NOT_YET = "it has only just been created"
DAMAGED = "damaged: the recording does not match its checksum, so its figures may be wrong"
LINKED_PARTS = "parts is a link, which hotloop does not follow: put the folder itself there"
RETRIES = 20  # copies of a busy thread's figures before its latest events are called uncertain
_HEADER = layout.dtype("HEADER")
_CHECKSUM_AT = layout.offsets("HEADER")["checksum"]
_PART = Reader(1 << 30, CaptureError, follow=False)  # three times what the limits in layout.py allow
_POINTER = Reader(4096, CaptureError, follow=False)


def load(path: str | os.PathLike[str]) -> Capture:
    """Read a capture folder.

    `warnings` of the capture names the parts that cannot be read and the sections that were skipped because
    a newer hotloop wrote them. Raises CaptureError when `path` is not a capture.
    """
    folder = Path(path)
    facts = read_facts(folder)
    processes: list[Process] = []
    warnings: list[str] = []
    skipped: SkippedSections = SkippedSections()
    for file in _part_files(folder / "parts", warnings):
        try:
            processes.append(read_part(file, skipped))
        except CaptureError as problem:
            warnings.append(visible(f"{LEFT_OUT} {file.name}: {problem}"))
    warnings += describe_skipped(skipped)
    if (folder / "parts").is_symlink():
        warnings.append(LINKED_PARTS)
    elif not processes:
        warnings.append("no process has recorded anything yet")
    if (folder / "lines").is_dir():
        facts["lines"] = read_lines(folder / "lines", warnings)
    elif (lines := lines_outside_regions(processes)) is not None:
        facts["lines"] = lines
    if (folder / "libraries").is_dir():
        facts["libraries"] = read_libraries(folder / "libraries", warnings)
    warnings += read_problems(folder / "problems", warnings)
    if facts.get(REDACTED):
        warnings.append(visible(describe(facts[REDACTED])))
    nodes = read_nodes(folder, warnings)
    if nodes:
        warnings += describe_missing(nodes, facts.get("ended_at_ns"))
        processes = _of_nodes(processes, nodes, has_ended=facts.get("ended_at_ns") is not None)
    processes.sort(key=lambda p: (p.start_real_ns, p.pid))
    folded = read_folded(folder, warnings) if nodes else ()
    return Capture(folder, facts, tuple(processes), tuple(warnings), nodes=nodes, folded=folded)


def _of_nodes(processes: list[Process], nodes: tuple[NodeFacts, ...], has_ended: bool) -> list[Process]:
    """Processes on several computers: on one clock, and alive if their node says so while the run goes on."""
    home = {node.node for node in nodes if node.driver}
    drivers = [p for p in processes if node_of(p.host, p.origin.node if p.origin else "", nodes) in home]
    first = min(drivers, key=lambda p: p.start_real_ns, default=None)
    aligned = align_processes(processes, nodes, first)
    now_ns = time.time_ns()
    running = {(node.node, pid) for node in nodes if node.is_fresh(now_ns) for pid in node.running}
    if has_ended:  # also by a kill, after which no node says that its processes ended
        running.clear()
    return [
        replace(p, alive=True) if p.origin is not None and (p.origin.node, p.pid) in running else p
        for p in aligned
    ]


def _part_files(parts: Path, warnings: list[str]) -> list[Path]:
    """The parts in a folder, and those still in shared memory because the folder is on a network."""
    found = files_in(parts, ".part", CaptureError)
    for pointer in files_in(parts, ".part.live", CaptureError):
        try:
            live = Path(_POINTER.read_text(pointer).replace("\0", ""))
        except CaptureError as problem:
            warnings.append(visible(f"{LEFT_OUT}: {problem}"))
            continue
        ours = live.is_absolute() and live.name == f"hotloop-{pointer.stem}"
        if ours and not pointer.with_suffix("").exists() and live.exists():
            found.append(live)
    return found


def read_part(file: Path, skipped: SkippedSections | None = None) -> Process:
    """Read the part of one process; `skipped` counts the sections that were skipped."""
    for _ in range(RETRIES):
        found = SkippedSections()
        with open(_PART.open_file(file), "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if size < _HEADER.itemsize:
                raise CaptureError(f"it is cut short ({size} bytes, the header alone has {_HEADER.itemsize})")
            try:
                data = np.memmap(opened, mode="r", dtype=np.uint8)
            except (OSError, ValueError) as error:
                raise CaptureError(f"it cannot be mapped ({error})") from error
            process = parse_part([data], skipped=found)
            if _header([data])["used_bytes"] <= len(data) or os.fstat(opened.fileno()).st_size <= len(data):
                break  # else it has grown since, and names of what was read may lie beyond
    if skipped is not None:
        skipped.update(found)
    return process if _is_intact(data) else replace(process, warnings=(DAMAGED, *process.warnings))


def _is_intact(data: Bytes) -> bool:
    """Whether the bytes of a part match its checksum; True for a part that was not closed and has none."""
    header = _header([data])
    if not header["checksum"]:
        return True
    used = bytearray(data[: int(header["used_bytes"])])
    used[_CHECKSUM_AT : _CHECKSUM_AT + 8] = bytes(8)
    return layout.checksum_of(used) == int(header["checksum"])


def parse_part(
    segments: list[Any], used_bytes: int | None = None, skipped: SkippedSections | None = None
) -> Process:
    """Read a part from its mapped segments, the first of which starts with the header.

    A file is one segment. The recording of this very process has several: some may be in memory only, so
    `used_bytes` can be more than the header tells readers of the file.
    """
    pieces = [np.frombuffer(s, dtype=np.uint8) for s in segments]
    header = _header(pieces)
    version = int(header["version"])
    if header["magic"].tobytes() != layout.MAGIC:
        begun = header["magic"].any()
        raise CaptureError("it is not a hotloop part (wrong first bytes)" if begun else NOT_YET)
    if not 1 <= version <= layout.VERSION:
        raise CaptureError(
            f"it has part version {version}; this hotloop reads up to version {layout.VERSION}: "
            "use the hotloop that wrote it, or update"
        )
    # A running process continues while we read. Copy the threads first and read names after them: a name is
    # published before the first node that uses it.
    for _ in range(RETRIES):
        sections = find_sections(pieces, used_bytes or int(_header(pieces)["used_bytes"]), version)
        copies = _copy_threads(sections)
        if not any(copy.lacks_nodes for copy in copies):
            break
    warnings: list[str] = []
    header = _header(pieces)
    sections = find_sections(pieces, used_bytes or int(header["used_bytes"]), version, warnings, skipped)
    regions = _regions(sections, int(header["region_count"]))
    pid, host = int(header["pid"]), _text(header["host"])
    closed = bool(header["end_ns"])
    alive = not closed and host == host_name() and _is_running(pid)
    end_ns = int(header["end_ns"]) or int(header["alive_ns"])
    threads: list[Thread] = []
    place_of_thread: dict[int, int] = {}
    nodes_of_thread: dict[int, NDArray[np.int64]] = {}
    for copy in copies:
        if copy.arena["state"]:
            thread, stands_for = _thread(copy, sections, regions, end_ns, warnings)
            problem = implausible_thread(thread)
            if problem is not None:
                warnings.append(f"left out thread {thread.name!r}: {problem}")
                continue
            place_of_thread[copy.number] = len(threads)
            nodes_of_thread[len(threads)] = stands_for
            threads.append(_plausible(thread, warnings))
    scheduling = plausible_scheduling(read_process_scheduling(sections, warnings))
    warnings += _flag_warnings(int(header["flags"]), int(header["unsaved_segments"]))
    origin = read_origin(sections)
    label = _text(header["label"])
    if origin is not None and origin.ray == "worker":  # else all are called after the same file of Ray
        label = origin.actor or "Ray worker"
    process = Process(
        host=host,
        pid=pid,
        parent_pid=int(header["parent_pid"]),
        label=label,
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
        scheduling=scheduling,
        thread_settings=read_settings(sections),
        origin=origin,
        channels=read_channels(sections),
        **read_samples(sections, place_of_thread, nodes_of_thread, threads),
    )
    problem = implausible_process(process)
    if problem is not None:
        raise CaptureError(problem)
    return process


def _plausible(thread: Thread, warnings: list[str]) -> Thread:
    """The thread without figures that cannot be true; `warnings` says which."""
    warnings += with_finite_work(thread.root)
    if plausible_windows(thread) is not None:
        return thread
    warnings.append(f"left out the windows of thread {thread.name!r}: they make no sense")
    return replace(thread, windows=no_windows(len(thread.paths)))


# -- the header and names ------------------------------------------------------------------------


def _header(pieces: list[Bytes]) -> Struct:
    header: Struct = pieces[0][: _HEADER.itemsize].copy().view(_HEADER)[0]
    return header


def _regions(sections: list[Section], count: int) -> list[tuple[str, str, str]]:
    """Name, category and site of every region that is published."""
    found: list[tuple[str, str, str]] = []
    for section in consecutive(sections, "regions"):
        for row in section["regions"][: max(count - len(found), 0)]:
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
        layout.FLAG_DISK_FULL: f"the disk was full; {unsaved} segments of the recording were not saved",
    }
    if not unsaved:
        del texts[layout.FLAG_DISK_FULL]
    return [text for flag, text in texts.items() if flags & flag]


# -- threads -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Copy:
    """The figures of one thread, copied from the shared memory."""

    number: int
    arena: Struct
    nodes: Struct
    buckets: NDArray[np.uint64]
    windows: Struct
    uncertain: bool  # every copy met an update

    @property
    def lacks_nodes(self) -> bool:
        return bool(self.arena["node_count"] > len(self.nodes))


def _copy_threads(sections: list[Section]) -> list[_Copy]:
    return [
        _consistent_copy(s.owner, s.struct(), consecutive(sections, "nodes", s.owner))
        for s in sections
        if s.name == "thread"
    ]


def _thread(
    copy: _Copy,
    sections: list[Section],
    regions: list[tuple[str, str, str]],
    heartbeat_ns: int,
    warnings: list[str],
) -> tuple[Thread, NDArray[np.int64]]:
    """The thread, and the node that stands for each node of the recording."""
    arena, nodes = copy.arena, copy.nodes
    missing = int(arena["node_count"]) - len(nodes)
    if missing > 0:
        warnings.append(f"{missing} nodes of thread {_text(arena['thread_name'])!r} are missing")
    ended = bool(arena["state"] != layout.ARENA_LIVE)
    last_ns = int(arena["last_ns"])
    end_ns = last_ns if ended else max(last_ns, heartbeat_ns)
    built, _ = _tree(nodes, copy.buckets, regions, warnings)
    depth = min(int(arena["depth"]), layout.MAX_DEPTH)
    opened = []
    for frame in arena["stack"][:depth]:
        if frame["node"] < len(built):
            node = built[frame["node"]]
            open_ns = max(end_ns - int(frame["start_ns"]), 0)
            node.open_calls += 1
            node.open_ns += open_ns
            node.total_ns += open_ns
            if node.category != layout.CHANNEL_CATEGORY:
                opened.append(OpenRegion(node.name, int(frame["start_ns"])))
    top = int(arena["stack"][depth - 1]["node"]) if depth else 0
    if built:
        built[min(top, len(built) - 1)].own_ns += end_ns - last_ns
    own_wall = end_ns - int(arena["start_ns"]) if arena["state"] != layout.ARENA_FOLDED else 0
    wall_ns = own_wall + int(arena["folded_wall_ns"])
    root = built[0] if built else Node("", own_ns=wall_ns)  # the thread has only just begun to record
    root.total_ns = wall_ns
    parents = [min(int(parent), max(number - 1, 0)) for number, parent in enumerate(nodes["parent"])]
    start_ns = int(arena["start_ns"])
    paths, stands_for, windows, channels = fold_channels(
        built, parents, _windows(arena, copy.windows), start_ns, end_ns
    )
    thread = Thread(
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
        windows=windows,
        events=_events(arena, sections, copy.number, stands_for),
        rounds=_rounds(sections, copy.number, stands_for),
        calls=_calls(sections, copy.number, stands_for),
        channels=channels,
        scheduling=plausible_scheduling(read_scheduling(sections, copy.number, int(arena["native_id"]))),
        uncertain=copy.uncertain,
    )
    return thread, stands_for


def _consistent_copy(number: int, shared: Struct, node_sections: list[Struct]) -> _Copy:
    """Copy what belongs together between two readings of the sequence number.

    For a thread that never pauses, keep the copy that met the fewest updates: a reader that loses its core
    for a while mixes figures from before and after.
    """
    fewest = None
    for _ in range(RETRIES):
        seq = int(shared["seq"])
        arena = shared.copy()
        count = int(arena["node_count"])
        nodes = _joined(node_sections, "nodes", count)
        buckets = _joined(node_sections, "buckets", count)["count"]
        windows = _joined(node_sections, "windows", count)["at"]
        updates = int(shared["seq"]) - seq + seq % 2
        if fewest is None or updates < fewest:
            fewest = updates
            best = _Copy(number, arena, nodes, buckets, windows, uncertain=updates != 0)
        if not updates:
            break
    return best


def _joined(node_sections: list[Struct], name: str, count: int) -> Struct:
    dtype = DTYPES["nodes", 1][name].base
    if not node_sections:
        return np.zeros(0, dtype=dtype)
    rows = [section[name] for section in node_sections]
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
    unrecorded: dict[str, int] = {}
    odd: dict[str, None] = {}
    for row, histogram in zip(nodes.tolist(), buckets, strict=True):
        (region, flags, calls, total, own, least, most, first, squares, parent, at, moved, flops, *rest) = row
        device_ns, device_calls, device_growth, device_peak, growth, peak, samples, too_deep, _ = rest
        name, category, site = ("", "", "")
        if built:
            if region >= len(regions) or parent >= len(built):
                warnings.append(f"a damaged node ({region}, {parent}) is shown as (unreadable)")
                parent = parent if parent < len(built) else 0
                name = "(unreadable)"
            else:
                name, category, site = regions[region]
                if 0 < at <= len(regions):
                    site = regions[at - 1][0]
        if too_deep:
            unrecorded[name] = unrecorded.get(name, 0) + too_deep
        if flags & layout.NODE_ODD_FIGURES or not (math.isfinite(moved) and math.isfinite(flops)):
            odd[name] = None
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
            bytes_moved=moved if math.isfinite(moved) else 0.0,
            flops=flops if math.isfinite(flops) else 0.0,
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
    if unrecorded:
        below = ", ".join(repr(name) for name in sorted(unrecorded, key=lambda name: -unrecorded[name])[:3])
        warnings.append(
            f"{sum(unrecorded.values()):,} calls were nested deeper than {layout.MAX_DEPTH} regions and are "
            f"not recorded; their time is counted in the regions around them ({below})"
        )
    if odd:
        warnings.append(
            f"bytes or flops of {', '.join(map(repr, odd))} were not finite (inf or nan) in some calls; "
            "these are left out"
        )
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


def _rounds(sections: list[Section], number: int, stands_for: NDArray[np.int64]) -> Rounds:
    """Calls of the last seconds, without those of channels."""
    for section in sections:
        if section.name == "rounds" and section.owner == number:
            data = section.struct()
            count = int(data["count"])
            ring = data["events"].copy()
            ring = np.roll(ring, -count) if count > len(ring) else ring[:count]
            return _as_calls(ring, stands_for)
    return no_rounds()


def _calls(sections: list[Section], number: int, stands_for: NDArray[np.int64]) -> Rounds:
    """The sample of calls over the whole run, without those of channels."""
    for section in sections:
        if section.name == "calls" and section.owner == number:
            data = section.struct()
            for _ in range(RETRIES):
                seq = int(data["seq"])
                kept = data["events"][: min(int(data["count"]), layout.MAX_CALLS)].copy()
                if seq % 2 == 0 and int(data["seq"]) == seq:
                    break
            return np.unique(_as_calls(kept, stands_for))  # a process killed while it thinned has doubles
    return no_rounds()


def _as_calls(rows: Struct, stands_for: NDArray[np.int64]) -> Rounds:
    rows = rows[rows["node"] < len(stands_for)]
    rows = rows[(rows["start_ns"] < MOST) & (rows["duration_ns"] < MOST)]
    rows = rows[stands_for[rows["node"]] == rows["node"]]
    found = np.zeros(len(rows), dtype=ROUND_DTYPE)
    found["path"] = rows["node"]
    found["start_ns"], found["duration_ns"] = rows["start_ns"], rows["duration_ns"]
    return found


def _events(
    arena: Struct, sections: list[Section], number: int, stands_for: NDArray[np.int64]
) -> tuple[Event, ...]:
    count = int(arena["event_count"])
    for section in sections:
        if section.name == "events" and section.owner == number and count:
            ring = section.struct()["events"].copy()
            ring = np.roll(ring, -count) if count > len(ring) else ring[:count]
            known = ring[ring["node"] < len(stands_for)]
            known = known[(known["start_ns"] < MOST) & (known["duration_ns"] < MOST)]
            known = known[stands_for[known["node"]] == known["node"]]
            return tuple(Event(int(e["node"]), int(e["start_ns"]), int(e["duration_ns"])) for e in known)
    return ()
