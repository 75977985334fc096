"""Checkpoints: one safetensors file with every array and, as JSON in its header, everything else.

Written beside the old one and put in its place in one step, so a crash leaves the old or the new one whole.
Nothing is pickled: reading a checkpoint runs no code.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError

FORMAT_VERSION = 1  # 1: the first


class CheckpointError(HotloopError):
    """A file that is not a whole checkpoint, or not one of this run."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was saved."""

    arrays: dict[str, NDArray[Any]]
    """Weights, moments, buffers, env states by name."""
    state: dict[str, Any]
    """Counters, RNG states: whatever JSON holds."""
    config: dict[str, Any]
    """The settings of the run that saved it."""


def save_checkpoint(
    path: Path, arrays: dict[str, NDArray[Any]], state: dict[str, Any], config: dict[str, Any]
) -> None:
    """Replace `path` by a checkpoint in one step; on failure the old one stays and no litter is left."""
    from safetensors.numpy import save

    header = {
        "format_version": str(FORMAT_VERSION),
        "state": json.dumps(state),
        "config": json.dumps(config),
    }
    # safetensors has no scalars of rank 0 that come back as arrays of rank 0 everywhere: keep rank 1.
    whole = {name: np.ascontiguousarray(np.atleast_1d(array)) for name, array in arrays.items()}
    content = save(whole, metadata=header)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; raises CheckpointError when it is missing, cut, or of an unknown version."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path}; check the path, or train without resuming.")
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} is cut or damaged and cannot be read ({error}); take an earlier checkpoint."
        ) from error
    version = header.get("format_version")
    if version != str(FORMAT_VERSION) or "state" not in header or "config" not in header:
        raise CheckpointError(
            f"{path} was written as checkpoint version {version}; this hotloop reads {FORMAT_VERSION}."
        )
    return Checkpoint(arrays, json.loads(header["state"]), json.loads(header["config"]))


def check_config(path: Path, saved: dict[str, Any], own: dict[str, Any], may_differ: frozenset[str]) -> None:
    """Raise CheckpointError when a setting that decides the numbers differs from the saved run's."""
    names = sorted((saved.keys() | own.keys()) - may_differ)
    missing = object()
    wrong = [
        f"{name} was {saved.get(name)!r}, is {own.get(name)!r}"
        for name in names
        if json.dumps(saved.get(name, repr(missing))) != json.dumps(own.get(name, repr(missing)))
    ]
    if wrong:
        raise CheckpointError(
            f"{path} belongs to a run with other settings ({'; '.join(wrong)}); "
            "give the same settings, or another checkpoint path."
        )
