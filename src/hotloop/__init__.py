"""hotloop finds the hot loop of an RL training run, proves what would make it faster, ships fast parts."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from hotloop._util import early_interrupt

early_interrupt.begin_import()

from hotloop._util import HOTLOOP_VERSION as __version__  # noqa: E402
from hotloop.measure.profiler import Profiler  # noqa: E402
from hotloop.measure.profiler import default as _default  # noqa: E402

if TYPE_CHECKING:
    from hotloop.boost import boost as boost
    from hotloop.capture.model import Capture as Capture
    from hotloop.capture.reader import load as load
    from hotloop.capture.stats import ProfilerStats as ProfilerStats
    from hotloop.instrument.live_metrics import Meter as Meter
    from hotloop.instrument.live_metrics import TorchRLHook as TorchRLHook
    from hotloop.instrument.live_metrics import write_scalars as write_scalars
    from hotloop.workflows.collect import collect as collect
    from hotloop.workflows.compare_captures import compare as compare
    from hotloop.workflows.inline_ab import arm as arm
    from hotloop.workflows.record import start as start
    from hotloop.workflows.record import stop as stop
    from hotloop.workflows.record import summary as summary

profile = _default.profile
profile_function = _default.profile_function
progress = _default.progress

_LAZY = {
    "HotloopCallback": "hotloop.instrument.live_metrics",
    "Meter": "hotloop.instrument.live_metrics",
    "ProfiledEnv": "hotloop.instrument.live_metrics",
    "TorchRLHook": "hotloop.instrument.live_metrics",
    "Capture": "hotloop.capture.model",
    "ProfilerStats": "hotloop.capture.stats",
    "arm": "hotloop.workflows.inline_ab",
    "boost": "hotloop.boost",
    "collect": "hotloop.workflows.collect",
    "compare": "hotloop.workflows.compare_captures",
    "load": "hotloop.capture.reader",
    "load_ipython_extension": "hotloop.workflows.notebook",
    "start": "hotloop.workflows.record",
    "stop": "hotloop.workflows.record",
    "summary": "hotloop.workflows.record",
    "write_scalars": "hotloop.instrument.live_metrics",
}
__all__ = ["Profiler", "__version__", "profile", "profile_function", "progress", *_LAZY]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        if "IPython" in sys.modules and name in ("load", "compare"):
            importlib.import_module("hotloop.workflows.notebook").show_results()
        value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
        return value
    raise AttributeError(f"module 'hotloop' has no attribute {name!r}; it offers {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if os.environ.get("HOTLOOP_CAPTURE"):
    from hotloop.measure.profiler import join_from_environment as _join

    _join()
