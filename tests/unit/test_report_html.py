"""The HTML page's structure, read with a parser: landmarks, captions, escaping, what is embedded."""

from __future__ import annotations

import dataclasses
import json
import time
from functools import cache
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.analysis.findings import Findings
from hotloop.report.html import html, policy
from hotloop.report.safe_text import shown
from hotloop.report.to_json import findings_json
from tests.golden import findings as golden

VOID = {"meta", "link", "input", "br", "img", "line", "circle"}
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
        "advice", "time", "lines", "bottlenecks", "tree", "over-time", "growth", "threads", "roofline",
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
    assert [attrs.get("type") for attrs, _ in scripts] == ["application/json", "application/json", None, None]
    names = [text for attrs, text in page("hostile").all("span", class_="name")]
    for name in golden.HOSTILE_NAMES:
        assert any(text == shown(name, 90) or text == shown(name, 120) for text in names), name
    used = {name for _, attrs, _ in page("hostile").elements for name in attrs}
    ours = {name for _, attrs, _ in page("rich").elements for name in attrs}
    assert used - ours == set()


def test_chart_labels_are_escaped_for_plotly() -> None:
    charts = json.loads(page("hostile").script("hotloop-charts"))
    labels = charts["icicle"]["data"][0]["labels"]
    assert labels[1] == "&lt;script&gt;document.…tle='run'&lt;/script&gt;"
    assert not any("<" in label or "$" in label for label in labels)


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
    trace = json.loads(page("rich").script("hotloop-charts"))["icicle"]["data"][0]
    value = dict(zip(trace["ids"], trace["values"], strict=True))
    assert len(value) == len(trace["ids"])
    inside = dict.fromkeys(value, 0)
    for parent, ns in zip(trace["parents"], trace["values"], strict=True):
        if parent:
            inside[parent] += ns
    assert all(inside[key] <= value[key] for key in value)
    assert value["root"] == golden.rich().all_threads.wall_ns


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
def test_a_huge_capture_gives_a_page_below_6_mb_quickly(name: str) -> None:
    found = huge(name)
    before = time.process_time()
    made = html(found)
    assert time.process_time() - before < 3.0
    assert len(made.encode()) < 6_000_000
    embedded = json.loads(Page(made).script("hotloop-findings"))
    assert len(embedded["regions"]) + embedded["left_out"]["regions"] == 50_000


@settings(max_examples=30, deadline=None)
@given(name=st.text(min_size=1, max_size=200))
def test_any_name_leaves_the_page_in_one_piece(name: str) -> None:
    def tags(word: str) -> list[str]:
        # A region without a path has no place in the tree: no charts, no plotly, a quick test.
        row = dataclasses.replace(golden.rich().regions[2], name=word, path=(), site=word, category=word)
        found = dataclasses.replace(
            golden.bare(), headline=word, regions=(row,), warnings=(word,), command=(word,)
        )
        made = html(found)
        made.encode("utf-8")
        return [tag for tag, _, _ in Page(made).elements]

    assert tags(name) == tags("x")
