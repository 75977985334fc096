"""Which core records: the compiled one, or its Python twin."""

from __future__ import annotations

import importlib
import os
import time
from functools import cache
from types import ModuleType
from typing import Literal

from hotloop._util.errors import HotloopError
from hotloop.capture import layout
from hotloop.measure import twin
from hotloop.measure.part import Part

CoreName = Literal["auto", "compiled", "python"]

_OLD_BUILD = "it was built from other sources; build it again with pip install -e ."

compiled: ModuleType | None = None
why_not_compiled = ""
try:
    compiled = importlib.import_module("hotloop.measure._core")
    if getattr(compiled, "LAYOUT_CRC", None) != layout.layout_crc():
        compiled, why_not_compiled = None, _OLD_BUILD
except ImportError as missing:
    why_not_compiled = str(missing)
except SystemError:  # the build looks for a module of ours that has moved
    why_not_compiled = _OLD_BUILD


def odd_wish() -> str:
    """What is wrong with HOTLOOP_CORE, which must not end a program that imports us; "" if nothing is."""
    wanted = os.environ.get("HOTLOOP_CORE", "auto")
    if wanted not in ("auto", "compiled", "python"):
        return f"HOTLOOP_CORE is {wanted!r} and is ignored; use 'compiled', 'python' or 'auto'"
    if compiled is None and wanted != "python":
        return (
            f"the compiled core is not available ({why_not_compiled}); recording with the Python twin, at a "
            "few microseconds per region"
        )
    return ""


def pick_core(name: CoreName = "auto") -> ModuleType:
    """The module with the `Recorder`; HOTLOOP_CORE=python selects the twin."""
    if name == "auto":
        wanted = os.environ.get("HOTLOOP_CORE")
        return twin if wanted == "python" or compiled is None else compiled
    if name == "python":
        return twin
    if compiled is None:
        raise HotloopError(
            f"The compiled core is not available ({why_not_compiled}); install a C compiler and "
            "reinstall hotloop, or use the core 'python'."
        )
    return compiled


PAIRS = 24
COPIED_BYTES = 1 << 20  # as much as the caches of one core hold
OTHER_CODE = """
def f{0}(a, b):
    for i in range(a):
        b = [x * i for x in b if x > {0}]
    return {{"a": b, "c": (a, b[0])}}
class A:
    def m(self): return self.x + 1
"""


@cache
def region_cost_ns(name: CoreName) -> float:
    """Cost of entering and leaving one region on this machine, between other work as in a training loop.

    In a loop of its own a region costs a third of that: its code, its data and what the processor learnt
    about its branches stay in the caches. So each region here follows a copy of a megabyte and a run of
    Python's compiler. The figure is the median with a region less that without one.
    """
    module = pick_core(name)
    recorder = module.Recorder()
    region = recorder.profile("calibration")
    data = bytearray(COPIED_BYTES)
    empty_ns, full_ns = [], []
    try:
        recorder.start(lambda: Part(None, module.KIND, time.monotonic_ns()), sample_memory=False)
        for number in range(PAIRS):
            _work_on_something_else(data, 2 * number)
            start = time.perf_counter_ns()
            with region:
                pass
            full_ns.append(time.perf_counter_ns() - start)
            _work_on_something_else(data, 2 * number + 1)
            start = time.perf_counter_ns()
            empty_ns.append(time.perf_counter_ns() - start)
    finally:
        recorder.stop()
    return max(float(sorted(full_ns)[PAIRS // 2] - sorted(empty_ns)[PAIRS // 2]), 0.0)


def _work_on_something_else(data: bytearray, number: int) -> None:
    bytes(data)
    compile(OTHER_CODE.format(number), "calibration", "exec")
