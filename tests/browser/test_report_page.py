"""The HTML page in a real browser: it works by mouse and keyboard, loads nothing, runs nothing foreign."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hotloop.report.html import html
from hotloop.report.safe_text import shown
from tests.browser.accessibility import complaints
from tests.golden import findings as golden

Open = Callable[..., Any]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for name in ("rich", "bare", "hostile"):
        made[name] = folder / f"{name}.html"
        made[name].write_text(html(getattr(golden, name)(), "hotloop-runs/demo"), encoding="utf-8")
    return made


@pytest.fixture
def open_page(browser: Any, files: dict[str, Path]) -> Iterator[Open]:
    """Opens a page; at the end there must have been no error, no message and no request."""
    contexts, complaints = [], []

    def opened(name: str = "rich", width: int = 1280, scheme: str = "light", **more: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)  # a busy machine is no failure
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (complaints.append("a dialog opened"), dialog.dismiss()))
        page.on("request", lambda request: complaints.append(request.url) if outside(request.url) else None)
        page.goto(files[name].as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def outside(url: str) -> bool:
    return not url.startswith(("file:", "data:", "blob:"))


def names(page: Any) -> list[str]:
    found: list[str] = page.locator("#regions tbody tr:visible .name").all_text_contents()
    return found


def background(page: Any) -> str:
    found: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return found


def open_regions(page: Any) -> None:
    """The table of all regions is closed at first."""
    page.locator('nav a[href="#all-regions"]').click()


def test_page_opens_with_cards_charts_and_table(open_page: Open) -> None:
    page = open_page()
    assert page.locator("article.card").count() == 3
    assert page.locator("#icicle .slice").count() == len(golden.REGIONS) + 2
    assert page.locator("#time-series .plot").count() == 3
    assert page.locator("#time-series path[fill]").count() == len(golden.LOOP)
    assert names(page) == []
    open_regions(page)
    assert len(names(page)) == 8
    page.get_by_role("button", name=f"Show all {len(golden.REGIONS)} rows").click()
    assert len(names(page)) == len(golden.REGIONS)
    assert page.locator("#shown").text_content() == f"{len(golden.REGIONS)} of {len(golden.REGIONS)} rows"


def test_the_answer_and_the_first_action_are_above_the_fold(open_page: Open) -> None:
    page = open_page()
    for part in ("h1", ".hero .stack", ".hero .figures", "article.card .gain strong", "article.card .copy"):
        box = page.locator(part).first.bounding_box()
        assert box["y"] + box["height"] < 720, part
    assert page.evaluate("document.documentElement.scrollHeight") < 4.8 * 900  # this run has every section


def test_navigation_stays_on_top_and_marks_the_section(open_page: Open) -> None:
    page = open_page()
    page.locator('nav a[href="#tree"]').click()
    page.locator('nav a[href="#tree"][aria-current]').wait_for()
    assert page.locator("header").bounding_box()["y"] == 0
    assert page.locator("#tree-title").bounding_box()["y"] > page.locator("header").bounding_box()["height"]


def test_values_at_the_pointer_have_units(open_page: Open) -> None:
    page = open_page()
    page.locator("#icicle .slice", has_text="learn").first.hover()
    assert "total " in page.locator("#tip").text_content()
    assert " s, own " in page.locator("#tip").text_content()
    page.locator(".plots").hover()
    told = page.locator("#tip").text_content()
    assert " %" in told
    assert " GiB" in told
    assert "env steps/s " in told
    page.locator("h1").hover()
    assert not page.locator("#tip").is_visible()


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("rich", "dark"),
        ("hostile", "light"),
        pytest.param("rich", "light", marks=pytest.mark.long),
        pytest.param("hostile", "dark", marks=pytest.mark.long),
    ],
)
def test_page_is_accessible(open_page: Open, name: str, scheme: str) -> None:
    assert complaints(open_page(name, scheme=scheme)) == []


def test_accessibility_check_finds_planted_faults(open_page: Open) -> None:
    page = open_page("bare")
    page.evaluate("""() => { document.querySelector("main").insertAdjacentHTML("beforeend",
      '<p style="color:#999">faint</p><input><button></button><h4 id="main">deep</h4><svg></svg>') }""")
    found = " ".join(complaints(page))
    for fault in (
        "color-contrast at p",
        "label at input",
        "button-name at main > button",
        "heading-order at h4",
    ):
        assert fault in found, fault


def test_page_without_charts_opens_too(open_page: Open) -> None:
    page = open_page("bare")
    assert page.locator("h1").text_content() == golden.bare().headline
    assert page.locator("article.card, #icicle, #regions").count() == 0


def test_table_sorts_by_click(open_page: Open) -> None:
    page = open_page()
    open_regions(page)
    page.get_by_role("button", name=f"Show all {len(golden.REGIONS)} rows").click()
    head = page.locator("#regions thead th").nth(4)
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    regions = golden.rich().regions
    assert names(page) == [r.name for r in sorted(regions, key=lambda r: -r.own_ns)]
    page.locator("#regions thead th").nth(2).get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "none"
    assert names(page)[-2:] == ["evaluate", "train_loop"]  # 48 calls and 1
    page.locator("#regions thead th").nth(2).get_by_role("button").click()
    assert page.locator("#regions thead th").nth(2).get_attribute("aria-sort") == "ascending"
    assert names(page)[:2] == ["train_loop", "evaluate"]
    assert page.locator('#regions th[aria-sort="none"]').count() == 9


def test_table_sorts_by_keyboard(open_page: Open) -> None:
    page = open_page()
    open_regions(page)
    page.locator("#only").focus()
    page.keyboard.press("Tab")  # the table itself, which scrolls
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "region"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.locator("#regions thead th").first.get_attribute("aria-sort") == "ascending"
    assert names(page) == sorted(r.name for r in golden.rich().regions)[:8]
    assert "sorted by region" in page.locator("#status").text_content()


def test_filter_by_words_and_by_category(open_page: Open) -> None:
    page = open_page()
    open_regions(page)
    page.get_by_label("Filter").fill("learn replay")
    assert names(page) == ["replay_sample"]
    assert page.locator("#shown").text_content() == "1 of 19 rows"
    page.get_by_label("Filter").fill("")
    page.locator("#only").select_option("wait")
    assert names(page) == ["queue_get", "ipc_wait", "lock_wait"]


def test_tree_zooms_by_click_and_back(open_page: Open) -> None:
    page = open_page()
    wide = page.locator("#icicle").bounding_box()["width"]
    learn = page.locator("#icicle .slice", has_text="learn 1").first
    assert learn.bounding_box()["width"] < 0.3 * wide
    learn.click()
    assert learn.bounding_box()["width"] > 0.98 * wide
    shown_now = page.locator("#icicle .slice:visible").all_text_contents()
    assert any("backward" in text for text in shown_now)
    assert any("train_loop" in text for text in shown_now)  # its caller stays, to zoom out
    assert not any("queue_get" in text for text in shown_now)
    page.locator("#whole").click()
    assert learn.bounding_box()["width"] < 0.3 * wide


def test_tree_zooms_by_keyboard(open_page: Open) -> None:
    page = open_page()
    page.locator("#zoom").focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_function("document.querySelector('#icicle').dataset.level !== 'root'")
    assert "zoomed to" in page.locator("#status").text_content()


def test_hostile_names_are_shown_and_not_run(open_page: Open) -> None:
    page = open_page("hostile")
    for label in page.locator("#icicle .slice").all():
        label.hover(force=True)
    open_regions(page)
    page.locator("#filter").fill("script")
    assert page.title().endswith(" · hotloop")
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 3
    page.locator("#filter").fill("")
    seen = names(page)
    for name in golden.HOSTILE_NAMES:
        assert shown(name, 120) in seen
    assert "<script>document" in " ".join(page.locator("#icicle .slice").all_text_contents())


def test_foreign_script_is_refused_even_if_it_got_in(browser: Any, files: dict[str, Path]) -> None:
    """The policy is the second wall: breaks into the page on purpose and sees that nothing runs."""
    broken = files["bare"].with_name("broken.html")
    attack = "<script>document.title='run'</script><img src='data:,' onerror=\"document.title='run'\">"
    source = files["bare"].read_text(encoding="utf-8")
    broken.write_text(source.replace("</main>", f"{attack}</main>"), encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    page.goto(broken.as_uri())
    page.wait_for_timeout(200)
    assert page.locator("main img").count() == 1
    assert page.title() == "report · hotloop"
    context.close()


def test_theme_follows_the_system_until_the_reader_chooses(open_page: Open) -> None:
    light, dark = open_page(scheme="light"), open_page(scheme="dark")
    assert background(light) == "rgb(251, 250, 247)"
    assert background(dark) == "rgb(19, 20, 22)"
    light.locator("#theme").click()
    assert background(light) == background(dark)
    ink = "getComputedStyle(document.querySelector('#time-series .accent')).stroke"
    assert light.evaluate(ink) == dark.evaluate(ink)
    light.reload()
    assert background(light) == background(dark)
    light.locator("#theme").click()
    assert background(light) == "rgb(251, 250, 247)"


@pytest.mark.parametrize("name", ["rich", "bare", "hostile"])
def test_phone_has_no_horizontal_scroll(open_page: Open, name: str) -> None:
    page = open_page(name, width=390)
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_printed_page_is_light_and_has_four_pages_at_most(open_page: Open) -> None:
    page = open_page(scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert background(page) == "rgb(255, 255, 255)"
    assert not page.locator("#theme").is_visible()
    assert not page.locator("#filter").is_visible()
    assert page.locator("article.card").first.is_visible()
    assert page.locator("#icicle").is_visible()
    printed = page.pdf(format="A4")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 4


def test_copy_button_copies_the_command(open_page: Open) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    button = page.locator("article.card .copy button").first
    button.click()
    page.wait_for_function("document.querySelector('article.card .copy button').textContent === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") == golden.RUN


def test_first_tab_leads_past_the_header(open_page: Open) -> None:
    page = open_page()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
