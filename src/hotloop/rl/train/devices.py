"""Chooses the device that a learner runs on and the precision of its matrix products."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import torch

from hotloop._util.errors import HotloopError

Precision = Literal["auto", "float32", "bfloat16", "float16"]


def choose_device(wanted: str) -> torch.device:
    """The device to learn on; raises HotloopError if it is unknown or missing."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(wanted)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise HotloopError(f"device={wanted!r} is unknown; use auto, cpu or cuda.")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise HotloopError(f"device={wanted!r} needs a GPU, and torch finds none; use cpu.")
    return found


def choose_precision(wanted: Precision, device: torch.device) -> str:
    """See `AsyncDQNConfig.precision`."""
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        return "float16"
    return "bfloat16" if cpu_has_bfloat16() else "float32"


def cpu_has_bfloat16(description: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU has bfloat16 products that can be relied on; without them float32 is faster.

    With AMX in a virtual machine, torch 2.13's bfloat16 convolutions ended the process with SIGILL (seen
    under Firecracker on a Xeon; with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 they work), so there AMX does not
    count.
    """
    try:
        flags = description.read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    if "amx_bf16" in flags and "hypervisor" in flags and "ONEDNN_MAX_CPU_ISA" not in os.environ:
        return False
    return any(word in flags for word in ("avx512_bf16", "amx_bf16", " bf16"))
