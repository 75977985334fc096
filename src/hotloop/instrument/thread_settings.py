"""How many threads torch and numba use, as far as this process has loaded them."""

from __future__ import annotations

import sys
from typing import Any


def library_threads() -> dict[str, Any]:
    """Settings by library: `torch`, `torch_interop`, `numba`; a library that is not loaded is left out."""
    found: dict[str, Any] = {}
    torch: Any = sys.modules.get("torch")
    numba = sys.modules.get("numba")
    # Neither is asked while it is being imported; numba.get_num_threads() would start its threads.
    if hasattr(torch, "get_num_threads") and hasattr(torch, "get_num_interop_threads"):
        found |= {"torch": torch.get_num_threads(), "torch_interop": torch.get_num_interop_threads()}
    numba_threads = getattr(getattr(numba, "config", None), "NUMBA_NUM_THREADS", None)
    if numba_threads is not None:
        found["numba"] = numba_threads
    return found
