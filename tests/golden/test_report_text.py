"""The text report, whole, against stored files; HOTLOOP_UPDATE_GOLDEN=1 rewrites them for review."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.report.palette import colour_of
from hotloop.report.safe_text import columns
from hotloop.report.text import terminal
from tests.golden import findings as golden

HERE = Path(__file__).parent
CAPTURE = "hotloop-runs/20260301-101500-train"
MADE = {"rich": golden.rich, "bare": golden.bare, "hostile": golden.hostile}
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("unicode", [True, False], ids=["utf8", "ascii"])
@pytest.mark.parametrize("name", MADE)
def test_report_at_80_columns_is_the_stored_one(name: str, unicode: bool) -> None:
    text = terminal(MADE[name](), 80, False, unicode, CAPTURE)
    file = HERE / f"report-{name}{'' if unicode else '-ascii'}.txt"
    if os.environ.get("HOTLOOP_UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", MADE)
def test_no_line_is_wider_than_asked(name: str, width: int) -> None:
    lines = terminal(MADE[name](), width, False, True, CAPTURE).split("\n")
    assert [line for line in lines if columns(line) > width] == []
    assert [line for line in lines if line != line.rstrip()] == []


def test_colour_changes_nothing_but_colour() -> None:
    plain, painted = (terminal(golden.rich(), 80, colour, True, CAPTURE) for colour in (False, True))
    assert "\x1b[" in painted
    assert ANSI.sub("", painted) == plain


def test_every_category_is_painted_in_its_own_colour() -> None:
    painted = terminal(golden.rich(), 80, True, True)
    line = next(line for line in painted.split("\n") if line.startswith("  replay "))
    other = next(line for line in painted.split("\n") if line.startswith("  backward "))
    assert ANSI.findall(line)[0] != ANSI.findall(other)[0]
    assert colour_of("replay") != colour_of("backward")


def test_ascii_report_is_ascii() -> None:
    assert terminal(golden.hostile(), 80, False, False).isascii()


def test_a_gain_is_never_shown_without_its_interval() -> None:
    found = golden.rich()
    without = dataclasses.replace(
        found,
        bottlenecks=tuple(dataclasses.replace(b, gain_if_twice_as_fast=None) for b in found.bottlenecks),
        recommendations=tuple(dataclasses.replace(r, gain=None) for r in found.recommendations),
    )
    text = terminal(without, 80, False, True)
    assert "predicted" not in text
    assert "gain unknown until tested" in text
    assert "no interval" in text
    for value in re.findall(r"predicted ([^;)]*)", terminal(found, 80, False, True)):
        assert re.fullmatch(r"[\d.]+x \[[\d.]+, [\d.]+\]", value)


def test_threads_are_shown_only_when_there_is_more_than_one() -> None:
    found = golden.rich()
    single = dataclasses.replace(found, utilisation=found.utilisation[:1])
    assert "\nThreads\n" in terminal(found, 80, False, True)
    assert "\nThreads\n" not in terminal(single, 80, False, True)


def test_long_lists_say_what_was_left_out() -> None:
    found = golden.rich()
    many = dataclasses.replace(found, utilisation=found.utilisation * 70, bottlenecks=found.bottlenecks * 3)
    text = terminal(many, 80, False, True)
    assert "198 more in the HTML report." in text
    assert "9 more in the HTML report." in text


def test_a_command_too_long_for_a_line_can_still_be_copied() -> None:
    command = ("python", "train.py", *(f"--flag-{i}=value" for i in range(12)))
    text = terminal(dataclasses.replace(golden.rich(), command=command), 60, False, True)
    shown = text[text.index("  python train.py") : text.index(" wall time,")]
    shown = shown[: shown.rindex("\n")]
    assert shown.replace("\\\n", " ").split() == list(command)


@settings(max_examples=60, deadline=None)
@given(name=st.text(max_size=300))
def test_any_name_leaves_the_report_in_one_piece(name: str) -> None:
    found = golden.rich()
    hostile = dataclasses.replace(
        found,
        headline=name,
        bottlenecks=tuple(dataclasses.replace(b, name=name) for b in found.bottlenecks),
        utilisation=tuple(dataclasses.replace(u, process=name, thread=name) for u in found.utilisation),
        growth=dataclasses.replace(
            golden.GROWTH,
            summary=name,
            regions=tuple(dataclasses.replace(r, name=name) for r in golden.GROWTH.regions),
        ),
    )
    text = terminal(hostile, 80, False, True)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", text)
    assert max(columns(line) for line in text.split("\n")) <= 80
    assert text.count("\nTop bottlenecks\n") == 1
