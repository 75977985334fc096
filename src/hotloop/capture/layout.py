"""The bytes of a part file, declared once: dtypes for numpy readers, structs for the compiled core.

A part is the recording of one process: a HEADER page, then sections. Each section begins with a SECTION
header that holds its name, its version and its length; a reader walks from one to the next up to
`used_bytes` and skips those it does not know, with a note. Everything is little endian, 8-byte aligned
and written in place, so a part can be read while its process runs and after any kind of death.

To add data to captures, declare a struct and an entry in SECTIONS here, write it with
`Part.add_section` (`new_section` in C) and read it in `reader.py`; docs/capture-format.md has the rules.

This file imports only the standard library: `setup.py` runs it to write `layout.h`.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

# Version of the frame: the header page and the section header. New data is a new section or a new
# version of one and does not change it.
#   1  blocks with a number for their kind (hotloop 0.1; still read)
#   2  sections with a name, a version and a length
VERSION = 2
MAGIC = b"hotloop\n"

# Open regions of one thread; deeper calls are counted, and their time stays with the level above.
MAX_DEPTH = 256
MAX_WINDOWS = 96  # once full, every second window is dropped and the interval doubles
FIRST_WINDOW_NS = 50_000_000
EVENTS_PER_SECTION = 8192  # ring buffer of the timeline, one per thread, only on request
ROUND_EVENTS = 4096  # ring of calls that show rounds, one per thread
ROUND_EVENTS_PER_BURST = 1024
ROUND_BURST_SHIFT = 28  # calls are kept in each stretch of 2^28 ns (a quarter of a second) ...
ROUND_BURST_MASK = 3  # ... whose number has none of these bits
ROUND_LONG_SHIFT = 27  # calls of 2^27 ns or more are always kept
MAX_CALLS = 8192  # sample of a thread's calls over the whole run; thinned when full
CALLS_PER_BURST = 128  # calls in a row, at the beginning of each stretch of time ...
FIRST_BURST_SHIFT = 26  # ... of 2^26 ns (a fifteenth of a second) at first; doubled when thinned
FIRST_LONG_CALL_NS = 1_000_000  # longer calls are kept outside bursts, too; doubled when thinned
NO_BURST = 0xFFFFFFFF
NODES_PER_SECTION = 16
REGIONS_PER_SECTION = 32
MAX_REGIONS = 4096  # distinct names; the rest share OTHER_NAMES
MAX_NODES = 16384  # distinct paths in one process; the rest share OTHER_PATHS in each thread
MAX_ARENAS = 1024  # recorded threads alive at the same time
FOLD_AFTER = 64  # threads kept apart; beyond that, ended ones are merged into one arena
MAX_SCHEDULING = 96  # rows of scheduling figures; thinned like windows
FIRST_SCHEDULING_NS = 50_000_000
MAX_SAMPLES = 16384  # rows of line samples; once full, every second moment is dropped
FIRST_SAMPLE_NS = 10_000_000
MAX_SAMPLED_FILES = 256
MAX_SAMPLED_FUNCTIONS = 1024
MAX_SAMPLED_PATHS = 8192
RESERVED_PATHS = 1024  # for single lines, once there are too many distinct paths
MAX_EXPRESSION_PATHS = 6144  # beyond, paths end with their line
LAST_COLUMN = 0xFFFF  # of an expression; what lies beyond has its line alone
MAX_PATH_FRAMES = 32  # frames of the user's code on one path: the innermost 24 and the outermost 8
OUTERMOST_FRAMES = 8
SECTION_NAME_BYTES = 24
NAME_BYTES = 256
CATEGORY_BYTES = 32
SITE_BYTES = 216
OTHER_NAMES = "(other names)"
OTHER_PATHS = "(other paths)"
CHANNEL_CATEGORY = "(channel)"  # of regions that stand for one pipe or queue
SITE_CATEGORY = "(site)"  # of regions that only hold a file:line for nodes

# Histogram of durations: 4 linear steps per octave, from 2^FIRST_OCTAVE ns up.
FIRST_OCTAVE = 4
BUCKETS = 160  # 40 octaves: 16 ns to 4.9 hours; the first and last also count what lies beyond

PAGE = 4096
NO_PARENT = 0xFFFFFFFF
UNNAMED = 0xFFFFFFFF  # region of a root node

ARENA_LIVE, ARENA_ENDED, ARENA_FOLDED = 1, 2, 3
# Flags of nodes: a region was closed while another one was on top; `add` was called with inf or nan
NODE_OUT_OF_ORDER, NODE_ODD_FIGURES = 1, 2
CORE_COMPILED, CORE_PYTHON = 1, 2

# Line samples: how they were taken, what a step of a path is, and what the thread was doing
SAMPLED_NATIVELY, SAMPLED_BY_PYTHON = 1, 2
STEP_OTHER, STEP_LINE, STEP_CALLED, STEP_INNERMOST, STEP_LEFT_OUT, STEP_EXPRESSION = 0, 1, 2, 3, 4, 5
STATE_UNKNOWN, STATE_RUNNING, STATE_RUNNABLE, STATE_SLEEPING = 0, 1, 2, 3
# What a sleeping thread waits for, as far as its system call tells
REASON_UNKNOWN, REASON_GIL, REASON_LOCK, REASON_SLEEP = 0, 1, 2, 3
REASON_INPUT, REASON_OUTPUT, REASON_EVENT, REASON_CHILD, REASON_DISK = 4, 5, 6, 7, 8
# Whether a sampled thread had the GIL: the upper two bits of `reason`
GIL_UNKNOWN, GIL_ELSEWHERE, GIL_HELD = 0, 1, 2
GIL_SHIFT = 6
NO_THREAD = 0xFFFF  # of a sample: its thread has opened no region

# Scheduling figures that the system reports (bits of `known`)
KNOWN_SCHEDSTAT, KNOWN_SWITCHES, KNOWN_PYTHON_THREADS = 1, 2, 4

# Header flags
FLAG_NAMES_OVERFLOW, FLAG_PATHS_OVERFLOW, FLAG_THREADS_OVERFLOW, FLAG_DISK_FULL = 1, 2, 4, 8

Field = tuple[str, str] | tuple[str, str, int]

HEADER: tuple[Field, ...] = (
    ("magic", "u1", 8),
    ("version", "u4"),
    ("core", "u4"),
    ("pid", "u8"),
    ("parent_pid", "u8"),
    ("start_ns", "u8"),  # monotonic, the time base of every other time here
    ("start_real_ns", "u8"),  # wall clock at start_ns, to align hosts
    ("alive_ns", "u8"),  # last heartbeat
    ("end_ns", "u8"),  # 0 until the recording is closed properly
    ("used_bytes", "u8"),  # published last: all sections below it are complete
    ("region_count", "u4"),
    ("flags", "u4"),
    ("rss_bytes", "u8"),
    ("rss_peak_bytes", "u8"),
    ("unsaved_segments", "u8"),  # stretches of the part kept in memory because the disk was full
    ("host", "u1", 64),
    ("label", "u1", 256),  # name of the process: its multiprocessing name or its script
    ("checksum", "u8"),  # 2^32 + CRC-32 of the used bytes with zeros here; 0 until the recording is closed
)

SECTION: tuple[Field, ...] = (
    ("name", "u1", SECTION_NAME_BYTES),  # lower-case ASCII, padded with zeros
    ("version", "u4"),
    ("owner", "u4"),  # number of the thread it belongs to; 0 where that has no meaning
    ("bytes", "u8"),  # from here to the next section, in whole pages
    ("payload_bytes", "u8"),  # after this header
    ("first", "u8"),  # number of its first region or node
    ("reserved", "u8"),
)

REGION: tuple[Field, ...] = (
    ("name_bytes", "u2"),
    ("category_bytes", "u2"),
    ("site_bytes", "u2"),
    ("reserved", "u2"),
    ("name", "u1", NAME_BYTES),
    ("category", "u1", CATEGORY_BYTES),
    ("site", "u1", SITE_BYTES),
)

PROGRESS: tuple[Field, ...] = (
    ("env_steps", "u8"),
    ("updates", "u8"),
    ("episodes", "u8"),
    ("length_sum", "f8"),
    ("length_count", "u8"),
    ("return_sum", "f8"),
    ("return_count", "u8"),
    ("loss_sum", "f8"),
    ("loss_count", "u8"),
)

FRAME: tuple[Field, ...] = (("node", "u4"), ("region", "u4"), ("start_ns", "u8"))

WINDOW: tuple[Field, ...] = (
    ("time_ns", "u8"),
    ("real_ns", "u8"),
    ("cpu_ns", "u8"),
    ("rss_bytes", "u8"),
    ("progress", "PROGRESS"),
)

ARENA: tuple[Field, ...] = (
    ("seq", "u8"),  # odd while the owner is writing
    ("state", "u4"),
    ("node_count", "u4"),
    ("depth", "u4"),
    ("overflow", "u4"),  # regions open beyond MAX_DEPTH
    ("window_count", "u4"),
    ("folded_threads", "u4"),
    ("start_ns", "u8"),
    ("last_ns", "u8"),  # last event seen; own times are complete up to here
    ("folded_wall_ns", "u8"),  # wall time of threads folded in
    ("folded_cpu_ns", "u8"),
    ("cpu_ns", "u8"),  # CPU time of the thread, read at windows
    ("native_id", "u8"),
    ("window_interval_ns", "u8"),
    ("event_count", "u8"),  # events written to the timeline so far; the ring holds the last ones
    ("progress", "PROGRESS"),
    ("thread_name", "u1", 64),
    ("stack", "FRAME", MAX_DEPTH),
    ("windows", "WINDOW", MAX_WINDOWS),
)

# Every event touches the first 64 bytes only: one cache line.
NODE: tuple[Field, ...] = (
    ("region", "u4"),
    ("flags", "u4"),
    ("calls", "u8"),
    ("total_ns", "u8"),
    ("own_ns", "u8"),
    ("min_ns", "u8"),
    ("max_ns", "u8"),
    ("first_ns", "u8"),  # the first duration; squares are taken about it
    ("squares", "f8"),  # sum of (duration - first_ns)^2
    ("parent", "u4"),
    ("site", "u4"),  # 1 + the region whose name is file:line of the first caller; 0: not located
    ("bytes", "f8"),
    ("flops", "f8"),
    ("device_ns", "u8"),
    ("device_calls", "u8"),  # calls with a device time; 0: not measured
    ("device_growth_bytes", "i8"),
    ("device_peak_bytes", "u8"),
    ("rss_growth_bytes", "i8"),  # while innermost; written by the sampler
    ("rss_peak_bytes", "u8"),  # while open
    ("rss_samples", "u8"),  # 0: not measured
    ("unrecorded_calls", "u8"),  # made directly below it with MAX_DEPTH regions open, so not recorded
    ("reserved2", "u8", 5),
)

NODE_WINDOW: tuple[Field, ...] = (("calls", "u8"), ("total_ns", "u8"), ("own_ns", "u8"))

EVENT: tuple[Field, ...] = (
    ("node", "u4"),
    ("burst", "u4"),  # of CALLS: number of the stretch in which the burst began, or NO_BURST; else 0
    ("start_ns", "u8"),
    ("duration_ns", "u8"),
)

# Calls of the last seconds, for the rounds in which threads and processes work together. Short ones are kept
# for a quarter of each second, the same one in all processes of a host, long ones always.
ROUNDS: tuple[Field, ...] = (
    ("count", "u8"),  # written so far; the ring holds the last ones
    ("least_ns", "u8"),  # shorter calls are left out: doubled when there are too many
    ("events", "EVENT", ROUND_EVENTS),
)

# A sample of the calls over the whole run: long calls, and bursts of calls in a row at the beginning of equal
# stretches of time, the same ones in all processes of a host. When it is full, every second burst is dropped
# and stretches double, or the limit for long calls doubles, whichever make up more.
CALLS: tuple[Field, ...] = (
    ("seq", "u8"),  # odd while it is thinned
    ("count", "u8"),
    ("burst_shift", "u8"),  # a stretch has 2^burst_shift ns
    ("least_ns", "u8"),  # of calls outside bursts
    ("events", "EVENT", MAX_CALLS),
)

# Cumulative, from the start of the thread.
SCHEDULING_ROW: tuple[Field, ...] = (
    ("time_ns", "u8"),
    ("on_core_ns", "u8"),
    ("run_queue_ns", "u8"),  # ready to run, but without a core
    ("voluntary_switches", "u8"),
    ("involuntary_switches", "u8"),
)
# One page with its section header. Written by the sampler.
SCHEDULING: tuple[Field, ...] = (
    ("seq", "u8"),  # odd while it is written
    ("count", "u4"),
    ("known", "u4"),
    ("native_id", "u8"),
    ("reserved", "u8"),
    ("rows", "SCHEDULING_ROW", MAX_SCHEDULING),
)
# "Native" threads run no Python: pools for arithmetic. Threads that have ended still count.
PROCESS_SCHEDULING_ROW: tuple[Field, ...] = (
    ("time_ns", "u8"),
    ("os_threads", "u4"),
    ("python_threads", "u4"),
    ("cpu_ns", "u8"),  # all threads
    ("native_on_core_ns", "u8"),
    ("native_run_queue_ns", "u8"),
    ("hotloop_ns", "u8"),  # CPU time of our sampler
)
PROCESS_SCHEDULING: tuple[Field, ...] = (
    ("seq", "u8"),
    ("count", "u4"),
    ("known", "u4"),
    ("interval_ns", "u8"),
    ("reserved", "u8"),
    ("rows", "PROCESS_SCHEDULING_ROW", MAX_SCHEDULING),
)

SAMPLED_FILE: tuple[Field, ...] = (
    ("name_bytes", "u4"),
    ("library_bytes", "u4"),  # of the name: the folder that holds the library; 0 for the user's files
    ("name", "u1", 248),  # a longer name keeps its end
)
SAMPLED_FUNCTION: tuple[Field, ...] = (
    ("file", "u4"),
    ("first_line", "u4"),
    ("on_path_us", "u8"),  # time for which a line of it was on a sampled path
    ("name_bytes", "u4"),
    ("reserved", "u4"),
    ("name", "u1", 104),  # qualified
)
# A path is a chain of steps from the innermost one outwards; path 0 stands for all that did not fit.
SAMPLED_STEP: tuple[Field, ...] = (
    ("parent", "u4"),  # 1 + the next step outwards; 0: none
    ("function", "u4"),  # of an expression: its first column, and its end column times 65536, in bytes
    ("line", "u4"),  # of an expression: its last line; it begins in the innermost line of the path
    ("kind", "u4"),  # STEP_...
)
SAMPLE: tuple[Field, ...] = (
    ("time_ns", "u8"),
    ("native_id", "u4"),
    ("path", "u2"),
    ("thread", "u2"),  # number of its thread section, or NO_THREAD
    ("node", "u2"),  # the innermost open region of that thread; 0: none
    ("state", "u1"),  # STATE_...
    ("reason", "u1"),  # REASON_..., of a sleeping thread; always 0 in version 1; and GIL_... << GIL_SHIFT
    ("weight_us", "u4"),  # the time it stands for
)
# Written by one thread; rows are complete before their count.
SAMPLES: tuple[Field, ...] = (
    ("seq", "u8"),  # odd while rows are thinned
    ("count", "u4"),
    ("file_count", "u4"),
    ("function_count", "u4"),
    ("path_count", "u4"),
    ("method", "u4"),  # SAMPLED_...
    ("thinned", "u4"),  # how often every second moment was dropped
    ("interval_ns", "u8"),  # at the moment
    ("moments", "u8"),  # looked at so far, thinned ones included
    ("cost_ns", "u8"),  # CPU time of all of them
    ("unread", "u8"),  # threads whose frames could not be read
    ("files", "SAMPLED_FILE", MAX_SAMPLED_FILES),
    ("functions", "SAMPLED_FUNCTION", MAX_SAMPLED_FUNCTIONS),
    ("paths", "SAMPLED_STEP", MAX_SAMPLED_PATHS),
    ("rows", "SAMPLE", MAX_SAMPLES),
)

REGIONS: tuple[Field, ...] = (("regions", "REGION", REGIONS_PER_SECTION),)
NODES: tuple[Field, ...] = (
    ("nodes", "NODE", NODES_PER_SECTION),
    ("buckets", "BUCKETS", NODES_PER_SECTION),
    ("windows", "NODE_WINDOWS", NODES_PER_SECTION),
)
EVENTS: tuple[Field, ...] = (("events", "EVENT", EVENTS_PER_SECTION),)

STRUCTS = {
    "HEADER": HEADER,
    "SECTION": SECTION,
    "REGION": REGION,
    "PROGRESS": PROGRESS,
    "FRAME": FRAME,
    "WINDOW": WINDOW,
    "ARENA": ARENA,
    "NODE": NODE,
    "NODE_WINDOW": NODE_WINDOW,
    "BUCKETS": (("count", "u8", BUCKETS),),
    "NODE_WINDOWS": (("at", "NODE_WINDOW", MAX_WINDOWS),),
    "EVENT": EVENT,
    "SCHEDULING_ROW": SCHEDULING_ROW,
    "SCHEDULING": SCHEDULING,
    "PROCESS_SCHEDULING_ROW": PROCESS_SCHEDULING_ROW,
    "PROCESS_SCHEDULING": PROCESS_SCHEDULING,
    "SAMPLED_FILE": SAMPLED_FILE,
    "SAMPLED_FUNCTION": SAMPLED_FUNCTION,
    "SAMPLED_STEP": SAMPLED_STEP,
    "SAMPLE": SAMPLE,
    "SAMPLES": SAMPLES,
    "REGIONS": REGIONS,
    "NODES": NODES,
    "EVENTS": EVENTS,
    "ROUNDS": ROUNDS,
    "CALLS": CALLS,
}

# Section -> the struct of each of its versions, from 1 up. The last version is written, all are read.
# None: bytes of any length.
SECTIONS: dict[str, tuple[str | None, ...]] = {
    "filler": (None,),  # unused space at the end of a segment
    "regions": ("REGIONS",),
    "thread": ("ARENA",),
    "nodes": ("NODES",),
    "events": ("EVENTS",),
    "rounds": ("ROUNDS",),
    "calls": ("CALLS",),
    "scheduling": ("SCHEDULING",),  # of one thread
    "process_scheduling": ("PROCESS_SCHEDULING",),
    # 2: with `reason`; 3: with STEP_EXPRESSION; 4: with GIL_...
    "samples": ("SAMPLES", "SAMPLES", "SAMPLES", "SAMPLES"),
    "thread_settings": (None,),  # JSON: time_ns and the number of threads each library may use
    "sources": (None,),  # JSON: source text of functions that were sampled often
    "origin": (None,),  # JSON: program, target, rank; how the process came to be
    "channels": (None,),  # JSON: pipes and queues of the process by the name of their region
    "sampled_threads": (None,),  # JSON: native id -> Python's name of the thread
}
# What stood in the place of sections in version 1: kind -> section and where its payload begins.
VERSION_1_KINDS = {
    0: ("filler", 32),
    1: ("regions", 32),
    2: ("thread", 32),
    3: ("nodes", 64),
    4: ("events", 32),
}
VERSION_1_BLOCK: tuple[Field, ...] = (
    ("kind", "u4"),
    ("owner", "u4"),
    ("bytes", "u8"),
    ("first", "u8"),
    ("reserved", "u8"),
)

C_TYPES = {
    "u1": "uint8_t",
    "u2": "uint16_t",
    "u4": "uint32_t",
    "u8": "uint64_t",
    "i8": "int64_t",
    "f8": "double",
}


def item_bytes(kind: str) -> int:
    """Size of a scalar type or a struct."""
    if kind in STRUCTS:
        return sum(field_bytes(field) for field in STRUCTS[kind])
    return int(kind[1])


def field_bytes(field: Field) -> int:
    """Size of a field, with its repetitions."""
    return item_bytes(field[1]) * (field[2] if len(field) == 3 else 1)


def offsets(struct: str) -> dict[str, int]:
    """Byte offset of every field of a struct; nested structs as `progress.env_steps`."""
    found: dict[str, int] = {}
    at = 0
    for field in STRUCTS[struct]:
        found[field[0]] = at
        if field[1] in STRUCTS and len(field) == 2:
            found.update({f"{field[0]}.{name}": at + o for name, o in offsets(field[1]).items()})
        at += field_bytes(field)
    return found


def section_bytes(payload_bytes: int) -> int:
    """Size of a section in the file: its header and payload, rounded up to whole pages."""
    return -(-(item_bytes("SECTION") + payload_bytes) // PAGE) * PAGE


def dtype(struct: str) -> np.dtype[np.void]:
    """The struct as a numpy dtype."""
    return fields_dtype(STRUCTS[struct])


def fields_dtype(fields: tuple[Field, ...]) -> np.dtype[np.void]:
    """Fields as a numpy dtype."""
    import numpy as np  # not at the top: setup.py runs this file, and recording needs no numpy

    def kind_of(kind: str) -> np.dtype[np.void] | str:
        return dtype(kind) if kind in STRUCTS else "<" + kind

    return np.dtype(
        [(f[0], kind_of(f[1])) if len(f) == 2 else (f[0], kind_of(f[1]), (f[2],)) for f in fields]
    )


def checksum_of(used: bytes | bytearray | memoryview) -> int:
    """The checksum of a part, from its used bytes with zeros in its place; never 0."""
    return 2**32 + zlib.crc32(used)


def bucket_of(duration_ns: int) -> int:
    """Histogram bucket of a duration; `bucket_of` in tree.h is the same in C."""
    if duration_ns < 1 << FIRST_OCTAVE:
        return 0
    octave = duration_ns.bit_length() - 1
    step = (duration_ns >> (octave - 2)) & 3
    return min((octave - FIRST_OCTAVE) * 4 + step, BUCKETS - 1)


def bucket_edges_ns() -> list[int]:
    """Lower edge of every bucket and the upper edge of the last one."""
    return [(4 + b % 4) << (FIRST_OCTAVE + b // 4 - 2) for b in range(BUCKETS + 1)]


def c_header() -> str:
    """Text of `layout.h`: the same structs and constants for the compiled core."""
    body = _c_declarations()
    lines = [
        "/* Written by hotloop/capture/layout.py; do not edit. */",
        "#ifndef HOTLOOP_LAYOUT_H",
        "#define HOTLOOP_LAYOUT_H",
        "#include <stdint.h>",
        f"#define HL_LAYOUT_CRC {zlib.crc32(body.encode())}u",
        body,
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def layout_crc() -> int:
    """Checksum of the declarations, to notice a compiled core that was built from other ones."""
    return zlib.crc32(_c_declarations().encode())


def _c_declarations() -> str:
    lines = [
        f"#define HL_{name} {value}"
        for name, value in globals().items()
        if name.isupper() and type(value) is int
    ]
    lines += [f'#define HL_{n} "{globals()[n]}"' for n in ("OTHER_NAMES", "OTHER_PATHS", "SITE_CATEGORY")]
    lines += [f'#define HL_SECTION_{name.upper()} "{name}"' for name in SECTIONS]
    for struct, fields in STRUCTS.items():
        lines.append("typedef struct {")
        for field in fields:
            name, kind, *count = field
            c_type = C_TYPES.get(kind, f"HL_{kind}_t")
            lines.append(f"    {c_type} {name}{f'[{count[0]}]' if count else ''};")
        lines.append(f"}} HL_{struct}_t;")
        lines.append(f'_Static_assert(sizeof(HL_{struct}_t) == {item_bytes(struct)}, "{struct} size");')
    return "\n".join(lines)
