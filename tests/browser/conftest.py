"""A real browser for the page's tests: Debian's chromium, driven by playwright."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
REMEDY = "install it with: apt-get install chromium, and playwright with: pip install 'hotloop[dev]'"


def missing(what: str) -> None:
    """Without a browser nothing is tested: loud here, a failure in CI."""
    said = f"the page was NOT tested in a browser: {what}; {REMEDY}"
    if os.environ.get("CI"):
        pytest.fail(said)
    warnings.warn(said, stacklevel=2)
    pytest.skip(said)


@pytest.fixture(scope="module")  # not longer: while it is open, an event loop runs in this thread
def browser() -> Iterator[Any]:
    path = shutil.which("chromium")
    if path is None:
        missing("there is no chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        missing(str(error))
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield opened
        opened.close()
