"""The contents of a new capture.json: what is known when a recording begins."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotloop._util import HOTLOOP_VERSION
from hotloop._util.interrupts import is_users
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
    run_id: str | None = None,
    joinable: bool = False,
) -> dict[str, Any]:
    """Facts about the run and the machine, plain enough for JSON and without secrets.

    End and exit status are not known yet. What cannot be found out is None: a recording never fails for that.
    """
    here = known(Path.cwd)  # None: the folder was deleted
    facts_now = {
        "format_version": FORMAT_VERSION,
        "hotloop_version": HOTLOOP_VERSION,
        "run_id": run_id,
        "joinable": joinable,  # by processes that have no run id
        "command": command or list(sys.orig_argv),
        "interpreter": sys.executable,  # of whoever made the folder: `hotloop run`, or the script itself
        "working_folder": str(here) if here is not None else None,
        "config": plain(config or {}),
        "seeds": plain(seeds or {}),
        "started_at_ns": time.time_ns(),
        "ended_at_ns": None,
        "exit_status": None,
        "pid": os.getpid(),
        "machine": known(facts.machine_facts) or {},
        "limits": known(limits.cached_limits),
        "versions": known(facts.library_versions) or {},
        "git_hash": known(facts.git_hash, here) if here is not None else None,
        "clock": "injected" if injected_clock else "monotonic",
        "core": "compiled" if core_choice.pick_core(core_name) is core_choice.compiled else "python",
        "region_cost_ns": known(core_choice.region_cost_ns, core_name),
        **device_facts(device_name),
    }
    return facts_without_secrets(facts_now)


def known(ask: Callable[..., Any], *args: Any) -> Any:
    """The answer, or None where there is none: a strange machine must not end a run."""
    try:
        return ask(*args)
    except Exception as error:
        if is_users(error):
            raise
        return None


def plain(given: dict[str, Any]) -> dict[str, Any]:
    """Values as JSON has them, and text for all others, inf and nan included."""
    try:
        text = json.dumps(given, default=str, skipkeys=True)
        found: dict[str, Any] = json.loads(text, parse_constant=str)
        return found
    except Exception as error:  # it contains itself, or something whose text cannot be had
        if is_users(error):
            raise
        return {"unreadable": type(error).__name__}


def device_facts(name: str | None) -> dict[str, Any]:
    """Which device is timed and how; None where none is."""
    return {
        "device": name,
        "device_policy": "events, queried, never synchronised" if name is not None else None,
    }
