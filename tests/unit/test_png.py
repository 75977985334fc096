"""The picture is a PNG of the stated size, drawn without changing the user's matplotlib settings."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from hotloop._util.errors import HotloopError
from hotloop._util.units import duration, percent
from hotloop.analysis.findings import Findings
from hotloop.report.palette import colour_of
from hotloop.report.png import LABELS, drawn, png_bytes
from tests.golden import findings as golden

matplotlib = pytest.importorskip("matplotlib")


def pixels(picture: bytes) -> Any:
    """[rows, columns, 3], 0..255."""
    from matplotlib import image

    return (image.imread(io.BytesIO(picture))[..., :3] * 255).round().astype(np.uint8)


def count_of(picture: bytes, colour: str) -> int:
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((pixels(picture) == wanted).all(axis=-1).sum())


@pytest.mark.parametrize("name", ["rich", "bare", "hostile"])
def test_every_kind_of_findings_gives_a_whole_png(name: str, recwarn: pytest.WarningsRecorder) -> None:
    picture = png_bytes(getattr(golden, name)())
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", picture[16:24]) == (1430, 990)
    at, chunks = 8, []
    while at < len(picture):
        length, kind = struct.unpack(">I4s", picture[at : at + 8])
        content = picture[at + 4 : at + 8 + length]
        assert zlib.crc32(content) == struct.unpack(">I", picture[at + 8 + length : at + 12 + length])[0]
        chunks.append(kind)
        at += 12 + length
    assert chunks[-1] == b"IEND"
    assert [str(w.message) for w in recwarn if "Glyph" in str(w.message)] == []


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that is drawn."""
    from matplotlib.text import Text

    found: list[str] = []
    real = Text.draw

    def draw(self: Any, renderer: Any) -> None:
        if self.get_visible() and self.get_text():
            found.append(self.get_text())
        real(self, renderer)

    monkeypatch.setattr(Text, "draw", draw)
    return found


def test_the_four_charts_name_what_they_show(written: list[str]) -> None:
    findings = golden.rich()
    png_bytes(findings)
    shown = set(written)
    first = findings.regions[0]
    assert {"replay_push", "replay", "1k", "100 us"} <= shown
    assert f"{duration(first.own_ns)}   {percent(first.share)}" in shown
    assert [text for text in shown if text.endswith("iB")]
    assert {"Calls against time per call", "Memory"} <= shown
    assert not [text for text in shown if "mathdefault" in text or "$" in text]


def test_points_within_one_decade_still_get_an_axis(written: list[str]) -> None:
    rows = tuple(replace(row, calls=400 + n, mean_ns=5e5) for n, row in enumerate(golden.rich().regions))
    png_bytes(replace(golden.rich(), regions=rows))
    assert {"100", "1k", "100 us", "1.00 ms"} <= set(written)


def without_memory(findings: Findings) -> Findings:
    return replace(
        findings,
        time_series={k: v for k, v in findings.time_series.items() if k != "rss_bytes"},
        regions=tuple(replace(row, rss_growth_bytes=None) for row in findings.regions),
    )


def test_bars_carry_the_colours_of_their_categories() -> None:
    picture = png_bytes(golden.rich())
    for category in ("replay", "environment", "backward"):
        assert count_of(picture, colour_of(category)) > 1000, category


def test_memory_that_was_not_measured_is_not_drawn() -> None:
    findings = replace(golden.rich(), regions=())
    with_it, without = png_bytes(findings), png_bytes(without_memory(findings))
    corner = (slice(600, 900), slice(850, 1400))
    assert (pixels(with_it)[corner] < 250).any(axis=-1).sum() > 20_000
    assert (pixels(without)[corner] < 250).any(axis=-1).sum() < 5_000  # one sentence


def test_math_in_names_is_not_read_as_markup() -> None:
    rich = golden.rich()
    rows = tuple(replace(row, name="$\\frac{1$ ^_{ $") for row in rich.regions)
    assert png_bytes(replace(rich, regions=rows, headline="$\\bad{$")).startswith(b"\x89PNG")


def test_the_users_settings_stay_and_pyplot_is_not_loaded() -> None:
    before = dict(matplotlib.rcParams)
    loaded = "matplotlib.pyplot" in sys.modules
    png_bytes(golden.bare())
    assert dict(matplotlib.rcParams) == before
    assert ("matplotlib.pyplot" in sys.modules) == loaded


def test_without_matplotlib_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(HotloopError, match=r"pip install 'hotloop\[report\]'"):
        png_bytes(golden.bare())


def crowded(seed: int) -> Findings:
    """Findings whose points lie close together, some of them at the same place."""
    rng = np.random.default_rng(seed)
    rich = golden.rich()
    rows = []
    for number in range(30):
        row = rich.regions[number % len(rich.regions)]
        calls = int(rng.choice([2, 100, 120, 130, 5000]))
        mean = float(rng.choice([1e3, 1.2e3, 1e6, 1.1e6]))
        name = f"a_region_with_a_long_name_{number}"
        rows.append(
            replace(row, name=name, path=(name,), calls=calls, mean_ns=mean, own_ns=10**6 * (40 - number))
        )
    return replace(rich, regions=tuple(rows))


@pytest.mark.parametrize("make", [golden.rich, golden.hostile, *(partial(crowded, n) for n in range(5))])
def test_no_two_texts_overlap(make: Callable[[], Findings], monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.text import Text

    boxes: list[tuple[str, Any]] = []
    real = Text.draw

    def draw(self: Any, renderer: Any) -> None:
        if self.get_visible() and self.get_text():
            boxes.append((self.get_text(), self.get_window_extent(renderer).shrunk(0.98, 0.9)))
        real(self, renderer)

    monkeypatch.setattr(Text, "draw", draw)
    with drawn(make()) as figure:
        figure.canvas.draw()
    overlapping = [
        (one, other)
        for at, (one, box) in enumerate(boxes)
        for other, beside in boxes[at + 1 :]
        if box.overlaps(beside)
    ]
    assert overlapping == []
    if isinstance(make, partial):
        named = [text for text, _ in boxes if text.startswith("a_region") and len(text) == 24]
        assert len(named) > LABELS / 2  # the others have no free place
