"""`hotloop serve` in a real browser: list, filter, live page, comparison; nothing foreign runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hotloop.workflows.serve import prepare
from tests.browser.accessibility import complaints
from tests.unit.test_serve import HOSTILE, folder, join_workers

__all__ = ["folder"]


@pytest.fixture
def address(folder: Any) -> Iterator[str]:
    served = prepare(folder)
    running = threading.Thread(target=served.run)
    running.start()
    yield served.address
    served.stop()
    running.join(60)
    join_workers()


def faults(page: Any) -> list[str]:
    """What is wrong with the page in light and in dark."""
    found = []
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        found += [f"{scheme}: {complaint}" for complaint in complaints(page)]
    return found


def test_list_live_and_comparison(browser: Any, address: str) -> None:
    told: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("dialog", lambda dialog: (told.append("a dialog opened"), dialog.dismiss()))
    page.on("request", lambda request: None if request.url.startswith(address) else told.append(request.url))
    page.goto(address)
    assert faults(page) == []
    assert HOSTILE in page.locator("#runs-table tbody th a").all_text_contents()
    assert page.locator("img").count() == 0
    page.get_by_label("Filter").fill("under")
    assert page.locator("#runs-table tbody tr:visible").count() == 1
    page.get_by_label("Filter").fill("")
    assert page.locator("#compare").is_disabled()
    for box in page.locator('input[name="run"]').all()[:2]:
        box.check()
    page.locator("#compare").click()
    page.locator("h1").wait_for()
    assert page.title() == "two runs · hotloop"
    assert faults(page) == []
    page.locator("a.brand").click()
    page.get_by_role("link", name="under-way").click()
    page.locator(".hero h1").wait_for()
    first = page.locator(".figures dd").first.text_content()
    with page.expect_response("**/now"):  # asked again without the page being loaded again
        pass
    page.locator(".figures dd").first.wait_for()
    assert first is not None
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    page.locator("a.brand").click()
    page.get_by_role("link", name="first").click()
    assert page.locator("#theme").is_visible()
    page.locator("a.brand").click()
    page.get_by_role("link", name="pairs").click()
    assert "faster" in page.locator("h1").text_content()
    assert faults(page) == []
    context.close()
    assert told == []
