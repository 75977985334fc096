"""Optional packages: one way to import them, one wording when they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from hotloop._util.errors import HotloopError


def require_extra(module: str, extra: str) -> ModuleType:
    """Import `module`; raise a HotloopError that names the extra to install when it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        raise HotloopError(
            f"This needs the package {module!r}, which is not installed ({missing}); "
            f"install it with: pip install 'hotloop[{extra}]'"
        ) from missing
