"""The before/after card: right bars, valid whatever the names are, refused before anything runs."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop._util.errors import HotloopError
from hotloop.analysis.findings import Estimate
from hotloop.analysis.verdict import VariantVerdict, Verdict, judge
from hotloop.capture.series import read
from hotloop.report.before_after import (
    BeforeAfter,
    Rect,
    card_of_series,
    card_of_trial,
    headline_of,
    html,
    layout,
    png,
    svg,
)
from hotloop.report.trial import Patch, TrialReport
from hotloop.workflows.before_after import check_card
from hotloop.workflows.prove import Proof
from hotloop.workflows.series_report import series_report, write_series_report
from tests.unit.test_series_report import made

SVG = "{http://www.w3.org/2000/svg}"


def verdict(ratio: float, pairs: int = 12) -> Verdict:
    """Of B taking `ratio` times the time of A."""
    return judge([(1.0 + 0.001 * n, ratio * (1.0 + 0.001 * (pairs - n))) for n in range(pairs)])


def card(ratio: float = 0.5, **more: str) -> BeforeAfter:
    made_card = BeforeAfter(
        verdict(ratio), "as recorded", "one thread", 0.0013, "env step", "torch.set_num_threads(1)",
        "train.py:12", "python train.py", "AMD EPYC, 2 cores", "2026-11-18",
    )  # fmt: skip
    return replace(made_card, **more)  # type: ignore[arg-type]


def texts(source: str) -> list[str]:
    return ["".join(node.itertext()) for node in ET.fromstring(source).iter(f"{SVG}text")]


def test_it_shows_bars_verdict_interval_change_machine_and_date() -> None:
    found = texts(svg(card()))
    assert any(
        re.fullmatch(r"2\.00x as fast \[[\d.]+, [\d.]+\]|1\.99\d*x as fast .*", text) for text in found
    )
    assert "1.30 ms / env step" in found
    assert any(re.match(r"65\d us / env step", text) for text in found)
    assert "torch.set_num_threads(1)" in found
    assert "at train.py:12" in found
    assert "12 pairs in turn, 95 % interval  ·  AMD EPYC, 2 cores" in found
    assert "2026-11-18" in found
    assert "python train.py" in found


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0, 1.9])
def test_bars_are_as_long_as_the_times(ratio: float) -> None:
    bars = [s for s in layout(card(ratio))[1] if isinstance(s, Rect) and s.height == 30]
    assert bars[1].width / bars[0].width == pytest.approx(ratio, rel=0.02)


def test_no_difference_is_no_gain() -> None:
    assert headline_of(card(1.0)).startswith("No difference: time ")
    assert headline_of(card(1.4)).startswith("0.71")


def test_a_series_gives_a_card(tmp_path: Path) -> None:
    folder = made(tmp_path / "s", ("A", "B"), 8, slow=0.5)
    report = series_report(str(folder))
    found = card_of_series(report.series, report.found)
    assert found is not None
    assert (found.before, found.after, found.unit) == ("A", "B", "env step")
    assert found.change == "run B"
    assert found.before_s == pytest.approx(0.103, abs=0.01)
    for name in ("card.svg", "card.png"):
        write_series_report(report, tmp_path / name)
    assert ET.parse(tmp_path / "card.svg").getroot().tag == f"{SVG}svg"
    assert (tmp_path / "card.png").read_bytes().startswith(b"\x89PNG")


def test_without_an_interval_there_is_no_card(tmp_path: Path) -> None:
    report = series_report(str(made(tmp_path / "s", ("A", "B"), 2)))
    assert card_of_series(read(tmp_path / "s"), report.found) is None
    with pytest.raises(HotloopError, match="too few pairs"):
        write_series_report(report, tmp_path / "card.svg")


def trial(*ratios: float, together: float | None = None) -> TrialReport:
    patches = tuple(
        Patch(f"p{n}", "why", f"line_{n}()", f"train.py:{n}", "add", verdict(ratio))
        for n, ratio in enumerate(ratios)
    )
    joined = VariantVerdict("p0 + p1", verdict(together)) if together else None
    return TrialReport(patches, joined, (), 12, "env_step", "cycles", None, 30.0, True)


def test_a_trial_shows_its_best_patch_or_the_combination() -> None:
    one = card_of_trial(trial(0.9, 0.5), ("python", "train.py"), {}, None)
    assert one is not None
    assert (one.before, one.after, one.change, one.where) == ("unpatched", "p1", "line_1()", "train.py:1")
    assert "100 % of the time" in texts(svg(one))
    both = card_of_trial(trial(0.9, 0.5, together=0.4), ("python", "train.py"), {}, 1.0)
    assert both is not None
    assert (both.after, both.change, both.where) == (
        "p0 + p1",
        "line_0(); line_1()",
        "train.py:0, train.py:1",
    )
    assert both.date == "1970-01-01"
    assert card_of_trial(trial(), ("python", "train.py"), {}, None) is None


@settings(max_examples=25, deadline=None)
@given(name=st.text(max_size=120))
def test_any_name_makes_a_valid_card(name: str) -> None:
    hostile = card(before=name, after=name, change=name, where=name, command=name, machine=name)
    ET.fromstring(svg(hostile))
    page = html(hostile)
    assert page.count("<text") == len(texts(svg(hostile)))
    assert "<script" not in page


def test_a_hostile_name_becomes_a_picture_too() -> None:
    hostile = card(change="$\\frac{1}{$ <script>\x00\ud800 " * 9, after="\u202e" * 50)
    assert png(hostile).startswith(b"\x89PNG")


def test_the_page_runs_nothing() -> None:
    page = html(card())
    assert "default-src 'none'" in page
    assert "<title>" in page and "as fast" in page.partition("</title>")[0]


def test_a_file_that_cannot_be_a_card_is_refused_first(tmp_path: Path) -> None:
    check_card(None)
    check_card(tmp_path / "card.PNG")
    with pytest.raises(HotloopError, match=r"end the name in \.html, \.png, \.svg"):
        check_card(tmp_path / "card.pdf")
    with pytest.raises(HotloopError, match="does not exist"):
        check_card(tmp_path / "nowhere" / "card.png")


def test_an_interval_that_is_wide_stays_on_the_card() -> None:
    wide = replace(verdict(0.5), speed_up=Estimate(2.0, 0.4, 9.0))
    shapes = layout(replace(card(), verdict=wide))[1]
    assert all(s.x >= 0 and s.x + s.width <= 720 for s in shapes if isinstance(s, Rect))


def test_a_proof_names_the_side_with_the_change_in_words() -> None:
    result = SimpleNamespace(card=lambda change: card(after="some_rule", change=change))
    found = SimpleNamespace(how_to_change="set N")
    proof = Proof(1, found, result, None, None, None, "", None)  # type: ignore[arg-type]
    made = proof.card()
    assert made is not None and (made.after, made.change) == ("with the change", "set N")
