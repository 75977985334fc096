"""What a checker of accessible pages would complain about, found in the browser itself.

Contrast of every visible text against what is behind it, names of controls and pictures, the order of
headings, double identifiers, controls inside controls, and places that scroll but cannot be reached.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

COMPLAINTS = Path(__file__).with_name("accessibility.js").read_text(encoding="utf-8")


def complaints(page: Any) -> list[str]:
    """One line for each fault of the page as it is now; closed parts are opened first."""
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    page.evaluate("document.querySelectorAll('.folded').forEach((part) => part.classList.remove('folded'))")
    found: list[str] = page.evaluate(COMPLAINTS)
    return found
