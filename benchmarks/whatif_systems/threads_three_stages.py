"""Three threads in a row: read (I/O), decode (native code), learn (native code); decoding is the slowest."""

from __future__ import annotations

import queue
import threading

from parts import meter, nap, native, parameters

import hotloop

WHAT_IFS = {
    "read=2x": {"read": 0.5},
    "decode=2x": {"decode": 0.5},
    "decode=1.25x": {"decode": 0.8},
    "learn=2x": {"learn": 0.5},
}
LIMIT = "decode"


def main() -> None:
    p = parameters(read=1, decode=1, learn=1, depth=3)
    raw: queue.Queue[int] = queue.Queue(int(p["depth"]))
    decoded: queue.Queue[int] = queue.Queue(int(p["depth"]))

    def read() -> None:
        while True:
            with hotloop.profile("read"):
                nap(4 * p["read"])
            raw.put(1)

    def decode() -> None:
        while True:
            raw.get()
            with hotloop.profile("decode"):
                native(6 * p["decode"])
            decoded.put(1)

    def cycle() -> float:
        decoded.get()
        with hotloop.profile("learn"):
            native(2.5 * p["learn"])
        hotloop.progress(updates=1)
        return 1

    for target in (read, decode):
        threading.Thread(target=target, daemon=True, name=target.__name__).start()
    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
