"""The bytes of a part file, declared once: dtypes for numpy readers, structs for the compiled core.

A part is one process's recording. It is a HEADER page followed by blocks, each starting with a
BLOCK header; a reader walks from block to block up to `used_bytes`. Everything is little endian,
8-byte aligned and written in place, so a part reads while its process runs and after any death.

This file imports nothing but the standard library: `setup.py` runs it to write `layout.h`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

# Version history (bump on any change a reader of the old layout would misread):
#   1  first layout
VERSION = 1
MAGIC = b"hotloop\n"

MAX_DEPTH = 256  # open regions of one thread; deeper ones are counted, their time stays above
MAX_WINDOWS = 96  # when full, every second window is dropped and the interval doubles
FIRST_WINDOW_NS = 50_000_000
EVENTS_PER_BLOCK = 8192  # the timeline's ring, one for each thread, only when asked for
NODES_PER_BLOCK = 16
REGIONS_PER_BLOCK = 32
MAX_REGIONS = 4096  # different names; the rest share OTHER_NAMES
MAX_NODES = 16384  # different paths in one process; the rest share OTHER_PATHS in each thread
MAX_ARENAS = 1024  # threads alive at once that are recorded
FOLD_AFTER = 64  # threads kept apart; beyond that, ended ones are folded into one arena
NAME_BYTES = 256
CATEGORY_BYTES = 32
SITE_BYTES = 216
OTHER_NAMES = "(other names)"
OTHER_PATHS = "(other paths)"
SITE_CATEGORY = "(site)"  # regions that only hold a file:line for nodes

# Histogram of durations: 4 linear steps per octave, from 2^FIRST_OCTAVE ns up.
FIRST_OCTAVE = 4
BUCKETS = 160  # 40 octaves: 16 ns to 4.9 hours; both ends catch what lies beyond

PAGE = 4096
NO_PARENT = 0xFFFFFFFF
UNNAMED = 0xFFFFFFFF  # region of a root node

BLOCK_FILLER, BLOCK_REGIONS, BLOCK_ARENA, BLOCK_NODES, BLOCK_EVENTS = 0, 1, 2, 3, 4
ARENA_LIVE, ARENA_ENDED, ARENA_FOLDED = 1, 2, 3
NODE_OUT_OF_ORDER = 1  # flag: a region of this node was closed while another one was on top
CORE_COMPILED, CORE_PYTHON = 1, 2

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
    ("end_ns", "u8"),  # 0 until the recording was closed in good order
    ("used_bytes", "u8"),  # published last: everything below it is complete
    ("region_count", "u4"),
    ("flags", "u4"),
    ("rss_bytes", "u8"),
    ("rss_peak_bytes", "u8"),
    ("unsaved_blocks", "u8"),  # blocks that live in memory because the disk was full
    ("host", "u1", 64),
    ("label", "u1", 256),  # what the process calls itself
)

BLOCK: tuple[Field, ...] = (
    ("kind", "u4"),
    ("owner", "u4"),  # arena number of a BLOCK_ARENA or BLOCK_NODES
    ("bytes", "u8"),
    ("first", "u8"),  # number of the block's first region or node
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

# The first 64 bytes are what every event touches: one cache line.
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
    ("reserved2", "u8", 6),
)

NODE_WINDOW: tuple[Field, ...] = (("calls", "u8"), ("total_ns", "u8"), ("own_ns", "u8"))

EVENT: tuple[Field, ...] = (
    ("node", "u4"),
    ("reserved", "u4"),
    ("start_ns", "u8"),
    ("duration_ns", "u8"),
)

REGION_BLOCK: tuple[Field, ...] = (("block", "BLOCK"), ("regions", "REGION", REGIONS_PER_BLOCK))
ARENA_BLOCK: tuple[Field, ...] = (("block", "BLOCK"), ("arena", "ARENA"))
NODE_BLOCK: tuple[Field, ...] = (
    ("block", "BLOCK"),
    ("pad", "u1", 32),
    ("nodes", "NODE", NODES_PER_BLOCK),
    ("buckets", "BUCKETS", NODES_PER_BLOCK),
    ("windows", "NODE_WINDOWS", NODES_PER_BLOCK),
)
EVENT_BLOCK: tuple[Field, ...] = (("block", "BLOCK"), ("events", "EVENT", EVENTS_PER_BLOCK))

STRUCTS = {
    "HEADER": HEADER,
    "BLOCK": BLOCK,
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
    "REGION_BLOCK": REGION_BLOCK,
    "ARENA_BLOCK": ARENA_BLOCK,
    "NODE_BLOCK": NODE_BLOCK,
    "EVENT_BLOCK": EVENT_BLOCK,
}
C_TYPES = {
    "u1": "uint8_t",
    "u2": "uint16_t",
    "u4": "uint32_t",
    "u8": "uint64_t",
    "i8": "int64_t",
    "f8": "double",
}


def item_bytes(kind: str) -> int:
    """Size of one scalar or struct."""
    if kind in STRUCTS:
        return sum(field_bytes(field) for field in STRUCTS[kind])
    return int(kind[1])


def field_bytes(field: Field) -> int:
    """Size of a field, its repetitions included."""
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


def pages(struct: str) -> int:
    """Bytes a block takes in the file: its size rounded up to whole pages."""
    return -(-item_bytes(struct) // PAGE) * PAGE


def dtype(struct: str) -> np.dtype[np.void]:
    """The struct as a numpy dtype."""
    import numpy as np

    def kind_of(kind: str) -> np.dtype[np.void] | str:
        return dtype(kind) if kind in STRUCTS else "<" + kind

    return np.dtype(
        [(f[0], kind_of(f[1])) if len(f) == 2 else (f[0], kind_of(f[1]), (f[2],)) for f in STRUCTS[struct]]
    )


def bucket_of(duration_ns: int) -> int:
    """Histogram bucket of a duration; the slow twin of the compiled core's `bucket_of`."""
    if duration_ns < 1 << FIRST_OCTAVE:
        return 0
    octave = duration_ns.bit_length() - 1
    step = (duration_ns >> (octave - 2)) & 3
    return min((octave - FIRST_OCTAVE) * 4 + step, BUCKETS - 1)


def bucket_edges_ns() -> list[int]:
    """Lower edge of every bucket, and the upper edge of the last."""
    return [(4 + b % 4) << (FIRST_OCTAVE + b // 4 - 2) for b in range(BUCKETS + 1)]


def c_header() -> str:
    """`layout.h`: the same structs and constants for the compiled core."""
    lines = ["/* Written by hotloop/capture/layout.py; do not edit. */", "#include <stdint.h>"]
    lines += [
        f"#define HL_{name} {value}"
        for name, value in globals().items()
        if name.isupper() and isinstance(value, int)
    ]
    lines += [f'#define HL_{n} "{globals()[n]}"' for n in ("OTHER_NAMES", "OTHER_PATHS", "SITE_CATEGORY")]
    for struct, fields in STRUCTS.items():
        lines.append("typedef struct {")
        for field in fields:
            name, kind, *count = field
            c_type = C_TYPES.get(kind, f"HL_{kind}_t")
            lines.append(f"    {c_type} {name}{f'[{count[0]}]' if count else ''};")
        lines.append(f"}} HL_{struct}_t;")
        lines.append(f'_Static_assert(sizeof(HL_{struct}_t) == {item_bytes(struct)}, "{struct} size");')
    return "\n".join(lines) + "\n"
