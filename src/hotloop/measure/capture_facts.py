"""The contents of a new capture.json: what is known when a recording begins."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from hotloop._util import HOTLOOP_VERSION
from hotloop.capture.folder import FORMAT_VERSION
from hotloop.capture.secrets import facts_without_secrets
from hotloop.machine import facts, limits
from hotloop.measure import core_choice


def new_facts(
    *,
    command: list[str] | None = None,
    core_name: core_choice.CoreName = "auto",
    device_name: str | None = None,
    injected_clock: bool = False,
    config: dict[str, Any] | None = None,
    seeds: dict[str, int] | None = None,
) -> dict[str, Any]:
    """Facts about the run and the machine, without secrets; end and exit status are not known yet."""
    facts_now = {
        "format_version": FORMAT_VERSION,
        "hotloop_version": HOTLOOP_VERSION,
        "command": command or list(sys.orig_argv),
        "working_folder": os.getcwd(),
        "config": config or {},
        "seeds": seeds or {},
        "started_at_ns": time.time_ns(),
        "ended_at_ns": None,
        "exit_status": None,
        "pid": os.getpid(),
        "machine": facts.machine_facts(),
        "limits": limits.cached_limits(),
        "versions": facts.library_versions(),
        "git_hash": facts.git_hash(Path.cwd()),
        "clock": "injected" if injected_clock else "monotonic",
        "core": "compiled" if core_choice.pick_core(core_name) is core_choice.compiled else "python",
        "region_cost_ns": core_choice.region_cost_ns(core_name),
        **device_facts(device_name),
    }
    return facts_without_secrets(facts_now)


def device_facts(name: str | None) -> dict[str, Any]:
    """Which device is timed and how; None where none is."""
    return {
        "device": name,
        "device_policy": "events, queried, never synchronised" if name is not None else None,
    }
