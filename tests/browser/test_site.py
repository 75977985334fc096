"""The documentation site in a real browser, opened from a folder as a reader without a network would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.long  # the site is built, and each of its pages is opened


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 390, "height": 844})
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    yield opened
    context.close()


def test_no_page_loads_anything_from_elsewhere_or_fails(site: Path, page: Any) -> None:
    wanted: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: wanted.append(request.url))
    page.on("requestfailed", lambda request: wrong.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    files = sorted(set(site.rglob("*.html")) - {site / "404.html"})  # which only a server shows
    assert len(files) > 50
    for file in files:
        page.goto(file.as_uri())
        page.wait_for_load_state()
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{file.name} is wider than a phone"
        broken = page.evaluate(
            "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
        )
        assert broken == [], file.name
    assert [address for address in wanted if not address.startswith(site.as_uri())] == []
    assert wrong == []


def test_the_search_works_without_a_server(site: Path, page: Any) -> None:
    page.goto((site / "index.html").as_uri())
    page.locator("label[for=__search]").first.click()
    page.locator("input.md-search__input").press_sequentially("SubprocVecEnv")
    page.locator(".md-search-result__link").first.wait_for()
    assert page.locator(".md-search-result__link").count() > 1
