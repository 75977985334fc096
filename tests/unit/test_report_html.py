"""The HTML page's structure, read with a parser: landmarks, captions, escaping, what is embedded."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop._util import HOTLOOP_VERSION
from hotloop.analysis.findings import Estimate, Findings
from hotloop.report.html import html, policy
from hotloop.report.safe_text import shown
from hotloop.report.to_json import findings_json
from tests.golden import findings as golden

VOID = {"meta", "link", "input", "br", "wbr", "img", "line", "circle", "path"}
Attributes = dict[str, str | None]


class Page(HTMLParser):
    """Elements with their attributes and text; complains about tags that do not match."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, Attributes, list[str]]] = []
        self.open: list[tuple[str, list[str]]] = []
        self.feed(source)
        self.close()
        assert self.open == [], f"left open: {[tag for tag, _ in self.open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        text: list[str] = []
        self.elements.append((tag, dict(attrs), text))
        if tag not in VOID:
            self.open.append((tag, text))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        before, _ = self.open.pop()
        assert before == tag, f"</{tag}> closes <{before}>"

    def handle_data(self, data: str) -> None:
        for _, text in self.open:
            text.append(data)

    def all(self, tag: str, **wanted: str) -> list[tuple[Attributes, str]]:
        return [
            (attrs, "".join(text))
            for name, attrs, text in self.elements
            if name == tag and all(attrs.get(key.rstrip("_")) == value for key, value in wanted.items())
        ]

    def script(self, identifier: str) -> str:
        return self.all("script", id=identifier)[0][1]


@cache
def source(name: str) -> str:
    return html(getattr(golden, name)(), "hotloop-runs/20260301-101500-train")


@cache
def page(name: str) -> Page:
    return Page(source(name))


@pytest.fixture(params=["rich", "bare", "hostile"])
def any_page(request: pytest.FixtureRequest) -> Page:
    return page(request.param)


def test_landmarks_and_headings(any_page: Page) -> None:
    assert [len(any_page.all(tag)) for tag in ("main", "header", "footer", "h1", "nav")] == [1] * 5
    assert any_page.all("html")[0][0]["lang"] == "en"
    identifiers = [attrs["id"] for _, attrs, _ in any_page.elements if "id" in attrs]
    assert len(identifiers) == len(set(identifiers))
    for attrs, _ in any_page.all("section"):
        assert attrs["aria-labelledby"] in identifiers
    for attrs, _ in any_page.all("a"):
        assert attrs["href"] is not None
        assert attrs["href"].removeprefix("#") in identifiers


def test_every_table_has_a_caption_and_headings_with_scope(any_page: Page) -> None:
    assert len(any_page.all("caption")) == len(any_page.all("table")) > 0
    assert all(text.strip() for _, text in any_page.all("caption"))
    assert all(attrs.get("scope") for attrs, _ in any_page.all("th"))


def test_pictures_have_words(any_page: Page) -> None:
    drawn = [attrs for _, attrs, _ in any_page.elements if attrs.get("role") == "img"]
    assert all(attrs.get("aria-label") for attrs in drawn)
    assert any_page.all("img") == []


def test_the_rich_page_has_every_section() -> None:
    sections = [attrs["id"] for attrs, _ in page("rich").all("section")]
    assert sections == [
        "advice", "time", "over-time", "lines", "bottlenecks", "tree", "growth", "threads", "roofline",
        "all-regions", "machine", "reproduce",
    ]  # fmt: skip
    assert [text for _, text in page("rich").all("h1")] == [golden.rich().headline]


def test_a_card_for_each_recommendation_worth_it() -> None:
    cards = page("rich").all("article")
    assert len(cards) == 3
    assert "1.38x" in cards[0][1]
    assert "predicted [1.34, 1.42]" in cards[0][1]
    assert "Gain unknown until tested" in cards[2][1]
    assert "Not worth optimising" in source("rich")


def test_regions_sort_and_start_unsorted_as_given() -> None:
    heads = [attrs for attrs, _ in page("rich").all("th", scope="col") if "aria-sort" in attrs]
    assert len(heads) == 10
    assert {attrs["aria-sort"] for attrs in heads} == {"none"}


def test_embedded_findings_are_the_findings() -> None:
    for name in ("rich", "bare", "hostile"):
        embedded = json.loads(page(name).script("hotloop-findings"))
        assert embedded.pop("left_out") == {}
        assert embedded == findings_json(getattr(golden, name)())


def test_hostile_names_are_text_and_nothing_else() -> None:
    scripts = page("hostile").all("script")
    assert [attrs.get("type") for attrs, _ in scripts] == ["application/json", "application/json", None]
    names = [text for attrs, text in page("hostile").all("span", class_="name")]
    for name in golden.HOSTILE_NAMES:
        assert any(text == shown(name, 90) or text == shown(name, 120) for text in names), name
    used = {name for _, attrs, _ in page("hostile").elements for name in attrs}
    ours = {name for _, attrs, _ in page("rich").elements for name in attrs}
    assert used - ours == set()


def test_title_is_the_name_of_the_script_and_the_version_is_shown() -> None:
    assert page("rich").all("title")[0][1] == "train.py · hotloop"
    footer = page("rich").all("footer")[0][1]
    assert footer.startswith("Recorded by hotloop 0.1.0 on 2026-03-01 at 10:15 UTC.")
    assert f"Page made by hotloop {HOTLOOP_VERSION}" in footer
    assert "Recorded" not in page("bare").all("footer")[0][1]


def test_paths_are_those_of_the_project() -> None:
    main = source("rich").partition("<main")[2].partition("</main>")[0]
    assert "/home/ana" not in main
    assert "replay.py:41" in main


def test_lines_of_the_script_with_their_time() -> None:
    captions = [text for _, text in page("rich").all("caption")]
    assert "replay.py: 33.1 % of training." in captions
    assert any("train.py: 21.0 %" in c and "changed during the run" in c for c in captions)
    tips = [attrs["data-tip"] for _, attrs, _ in page("rich").elements if "data-tip" in attrs]
    assert (
        "train.py:91\n17.1 % of training, 28.5 us per env step\nmostly in torch._tensor.Tensor.backward"
        in tips
    )


def test_a_single_line_that_does_everything_is_not_shown() -> None:
    found = golden.rich()
    learn = dataclasses.replace(found.hot_lines[0], share=0.97)
    made = html(dataclasses.replace(found, hot_lines=(learn,)))
    assert 'id="lines"' not in made


def test_long_tables_show_eight_rows_first() -> None:
    regions = page("rich").all("table", id="regions")
    assert regions[0][0]["class"] == "folded"
    rows = [attrs for attrs, _ in page("rich").all("tr") if "data-category" in attrs]
    assert [attrs.get("class") for attrs in rows] == [None] * 8 + ["rest"] * (len(golden.REGIONS) - 8)
    buttons = [text for attrs, text in page("rich").all("button") if attrs.get("class") == "all"]
    assert f"Show all {len(golden.REGIONS)} rows" in buttons


def test_regions_that_gain_nothing_are_folded_away() -> None:
    found = golden.rich()
    first = found.bottlenecks[0]
    nothing = dataclasses.replace(first, name="idle", gain_if_twice_as_fast=Estimate(1.002, 1.001, 1.003))
    made = Page(html(dataclasses.replace(found, bottlenecks=(first, *[nothing] * 4))))
    rows = [
        attrs.get("class")
        for attrs, text in made.all("tr")
        if text.startswith(("idle", first.name)) and "1." in text
    ]
    assert rows.count("rest") == 4


def test_start_up_and_warm_up_are_apart() -> None:
    bar = [attrs for _, attrs, _ in page("rich").elements if "start-up" in (attrs.get("aria-label") or "")]
    assert (
        bar[0]["aria-label"]
        == "3.20 s start-up, 1.40 s warm-up, 3 min 16 s training (shown below), 100 ms shutdown"
    )
    assert source("rich").count('class="shade"') == 1  # shutdown is too short to see


def test_nothing_is_loaded_and_only_own_scripts_run() -> None:
    content = page("rich").all("meta", **{"http-equiv": "Content-Security-Policy"})[0][0]["content"]
    assert content is not None
    assert content.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in content.partition("script-src")[2].partition(";")[0]
    own = [text for attrs, text in page("rich").all("script") if "type" not in attrs]
    assert content == policy(*own)
    for _, attrs, _ in page("rich").elements:
        assert not {"src", "srcset", "action", "onload", "onerror"} & set(attrs)


def test_the_tree_hangs_together() -> None:
    shapes = {}
    for attrs, _ in page("rich").all("span", class_="slice"):
        found = re.search(r"--x:([\d.e-]+);--w:([\d.e-]+);--d:(\d+)", attrs["style"] or "")
        assert found is not None
        shapes[attrs["data-key"]] = (float(found[1]), float(found[1]) + float(found[2]), int(found[3]))
    assert len(shapes) == len(golden.REGIONS) + 2
    assert shapes["root"] == (0.0, 1.0, 0)
    for left, right, depth in shapes.values():
        above = [
            s for s in shapes.values() if s[2] == depth - 1 and s[0] <= left + 1e-5 and right <= s[1] + 1e-5
        ]
        assert depth == 0 or len(above) == 1
    for depth in range(4):
        row = sorted(s for s in shapes.values() if s[2] == depth)
        assert all(one[1] <= other[0] + 1e-5 for one, other in pairwise(row))


def test_a_page_without_charts_is_small() -> None:
    assert len(source("bare")) < 50_000
    assert "Nothing was recorded inside a region" in source("bare")


def huge(name: str) -> Findings:
    found = golden.rich()
    row = found.regions[0]
    regions = tuple(
        dataclasses.replace(
            row, path=("loop", f"group_{i % 500}", f"{name}{i}"), name=f"{name}{i}", site=name
        )
        for i in range(50_000)
    )
    use = found.utilisation[1]
    uses = tuple(dataclasses.replace(use, process=f"worker {i // 3} (pid {i})") for i in range(600))
    return dataclasses.replace(found, regions=regions, utilisation=uses)


@pytest.mark.parametrize("name", ["region_", "<観測を描く>'" * 24], ids=["plain", "long"])
def test_a_huge_capture_gives_a_small_page_quickly(name: str) -> None:
    found = huge(name)
    before = time.process_time()
    made = html(found)
    assert time.process_time() - before < 3.0
    assert len(made.encode()) < 1.5 * 2**20
    embedded = json.loads(Page(made).script("hotloop-findings"))
    assert len(embedded["regions"]) + embedded["left_out"]["regions"] == 50_000


@settings(max_examples=30, deadline=None)
@given(name=st.text(min_size=1, max_size=200))
def test_any_name_leaves_the_page_in_one_piece(name: str) -> None:
    def tags(word: str) -> list[str]:
        row = dataclasses.replace(golden.rich().regions[2], name=word, path=(word,), site=word, category=word)
        found = dataclasses.replace(
            golden.bare(), headline=word, regions=(row,), warnings=(word,), command=(word,)
        )
        made = html(found)
        made.encode("utf-8")
        return [tag for tag, _, _ in Page(made).elements if tag != "wbr"]

    assert tags(name) == tags("x")
