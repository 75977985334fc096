"""What axe-core complains about on a page, with everything on it opened."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe


def complaints(page: Any) -> list[str]:
    """A line for each fault of the page as it is now: the rule, the element and why."""
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    page.evaluate("document.querySelectorAll('.folded').forEach((part) => part.classList.remove('folded'))")
    return [
        f"{found['id']} at {node['target'][0]}: {node['failureSummary']}"
        for found in Axe().run(page).response["violations"]
        for node in found["nodes"]
    ]
