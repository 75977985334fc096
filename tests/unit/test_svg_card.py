"""The card is valid XML whatever the names are, and its bars are as wide as the shares."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.analysis.findings import CategoryShare, Findings
from hotloop.report.palette import colour_of
from hotloop.report.svg_card import MARGIN, WIDTH, svg_card
from tests.golden import findings as golden

SVG = "{http://www.w3.org/2000/svg}"


def with_categories(shares: dict[str, float]) -> Findings:
    rows = tuple(CategoryShare(name, round(share * 1e9), share, 1) for name, share in shares.items())
    base = golden.rich()
    return replace(base, breakdown=replace(base.breakdown, categories=rows))


def texts(card: str) -> list[str]:
    return ["".join(node.itertext()) for node in ET.fromstring(card).iter(f"{SVG}text")]


def test_it_shows_headline_bar_and_steps_per_second() -> None:
    findings = golden.rich()
    found = texts(svg_card(findings))
    assert findings.headline in " ".join(found)
    assert f"{findings.env_steps_per_s:,.0f} env steps/s" in found
    assert any(f"{findings.env_steps:,} env steps" in text for text in found)


def test_bars_are_as_wide_as_the_shares_in_the_colours_of_the_categories() -> None:
    card = ET.fromstring(svg_card(with_categories({"replay": 0.6, "policy": 0.3, "unattributed": 0.1})))
    bars = card.findall(f"{SVG}g/{SVG}rect")
    widths = [float(bar.get("width", "nan")) + 1 for bar in bars]
    assert widths == pytest.approx([(WIDTH - 2 * MARGIN) * share for share in (0.6, 0.3, 0.1)], abs=0.01)
    assert [bar.get("fill") for bar in bars] == [colour_of(c) for c in ("replay", "policy", "unattributed")]
    assert bars[0].findtext(f"{SVG}title") == "replay: 600 ms, 60.0 %"


def test_no_rate_is_shown_when_none_was_measured() -> None:
    found = texts(svg_card(replace(golden.rich(), env_steps_per_s=None, env_steps=0)))
    assert not any("env steps" in text for text in found)


def test_nothing_recorded_still_gives_a_card() -> None:
    found = texts(svg_card(with_categories({})))
    assert "no time was recorded in any region" in found


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=120), st.text(min_size=1, max_size=60))
def test_any_text_gives_valid_xml(headline: str, category: str) -> None:
    findings = replace(with_categories({category: 1.0}), headline=headline, machine={"cpu": headline})
    ET.fromstring(svg_card(findings).encode("utf-8"))


def test_markup_in_names_is_shown_not_run() -> None:
    card = ET.fromstring(svg_card(golden.hostile()))
    assert not [node for node in card.iter() if node.tag.lower().endswith(("script", "img", "foreignobject"))]
    assert not re.search(r"<script|<img", svg_card(golden.hostile()))


def test_everything_is_inside_the_picture() -> None:
    shares = {f"a category with a long name {n}": 0.05 for n in range(20)}
    card = ET.fromstring(svg_card(replace(with_categories(shares), headline="word " * 200)))
    height = float(card.get("height", "nan"))
    for node in card.iter(f"{SVG}text"):
        assert MARGIN <= float(node.get("x", "nan")) <= WIDTH - MARGIN
        assert 0 < float(node.get("y", "nan")) < height - 5
    assert any(re.fullmatch(r"and \d+ more", text) for text in texts(svg_card(with_categories(shares))))
