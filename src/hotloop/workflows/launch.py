"""The environment in which a program, and everything it starts, records itself."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hotloop
from hotloop.instrument.bootstrap import RUN_VARIABLE
from hotloop.measure.profiler import CAPTURE_VARIABLE

PACKAGE = Path(hotloop.__file__).parent
STARTUP = PACKAGE / "instrument" / "startup"


def recording_environment(
    folder: Path, base: Mapping[str, str] | None = None, options: dict[str, Any] | None = None
) -> dict[str, str]:
    """Environment variables that make any Python below record into `folder`, unmodified.

    Our start-up folder goes first on PYTHONPATH; its sitecustomize gives way to the user's own.
    """
    environment = dict(os.environ if base is None else base)
    environment[CAPTURE_VARIABLE] = str(folder.absolute())
    environment[RUN_VARIABLE] = json.dumps(options or {"on": True})
    environment["HOTLOOP_HOME"] = str(PACKAGE.parent)
    before = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(STARTUP), *([before] if before else [])])
    return environment
