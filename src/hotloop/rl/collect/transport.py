"""Ring, bell and board in shared memory: the C extension, or its slow Python twin with a notice."""

from __future__ import annotations

import os
import sys
from typing import Any

BELL_BYTES, RING_HEADER_BYTES, BOARD_HEADER_BYTES = 64, 512, 256

Bell: Any
Ring: Any
Board: Any

if os.environ.get("HOTLOOP_TRANSPORT") == "python":
    from hotloop.rl.collect.transport_twin import Bell, Board, Ring
else:
    try:
        from hotloop.rl.collect._transport import Bell, Board, Ring
    except ImportError:
        print(
            "hotloop: the compiled transport is missing (no C compiler at installation); using Python code",
            file=sys.stderr,
        )
        from hotloop.rl.collect.transport_twin import Bell, Board, Ring

__all__ = ["BELL_BYTES", "BOARD_HEADER_BYTES", "RING_HEADER_BYTES", "Bell", "Board", "Ring"]
