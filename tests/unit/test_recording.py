"""The picture of a terminal in the README: what is left on the screen, and what the SVG is made of."""

from __future__ import annotations

from xml.etree import ElementTree

from rich.text import Text

from tests.browser.recording import FILE, Typed, cut, svg, terminal_lines, without_script_output


def test_what_was_written_over_is_gone() -> None:
    printed = b"1 of 3\r2 of 3\r\x1b[Kdone\r\nred: \x1b[31mhot\x1b[0m\r\n"
    assert [line.plain for line in terminal_lines(printed)][:2] == ["done", "red: hot"]


def test_long_output_says_how_much_is_left_out() -> None:
    assert [line.plain for line in cut([Text(str(n)) for n in range(10)], 4)] == [*"012", "... 7 more lines"]
    assert len(cut([Text("a")], 4)) == 1


def test_the_output_of_the_script_becomes_one_line() -> None:
    lines = [Text(line) for line in ("| loss | 1 |", "", "The answer.", "", "Where", "─" * 80, "  env")]
    assert [line.plain for line in without_script_output(lines)[:3]] == [
        "(what train.py prints)",
        "",
        "The answer.",
    ]


def test_every_line_has_its_columns_and_foreign_text_is_escaped() -> None:
    drawn = ElementTree.fromstring(svg([Typed("hotloop run <a>", [Text("  a & <b>")])]))
    spans = [span for span in drawn.iter() if span.tag.endswith("tspan")]
    assert [span.text for span in spans] == ["$", "hotloop run <a>", "a & <b>"]
    assert float(spans[2].get("x", "")) == 2 * 7.8 and float(spans[2].get("textLength", "")) == 7 * 7.8


def test_the_picture_is_small_and_loads_nothing() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert len(text) < 60_000 and "$ " not in text.split("<title>")[0]
    drawn = ElementTree.fromstring(text)
    assert {element.tag.split("}")[1] for element in drawn.iter()} <= {
        *("svg", "title", "style", "rect", "circle", "g", "text", "tspan"),
    }
    assert "hotloop run train.py" in text and "hotloop try" in text
    assert "url(" not in text and "/work/" not in text and "@import" not in text
