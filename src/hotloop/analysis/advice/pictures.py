"""Observations made of pixels: drawing in Python, resizing."""

from __future__ import annotations

from hotloop._util.units import duration
from hotloop.analysis.advice.recommendation import Change, advise, rate, times, took
from hotloop.analysis.advice.run_view import DRAWING, RESIZING, RegionRow, RunView
from hotloop.analysis.findings import Recommendation

AT_EACH_STEP = 0.5
PLAIN = ("rendering", "environment", "other", "data", "framework")


def rendering_in_python(run: RunView) -> Recommendation | None:
    """A picture is drawn at (nearly) every env step, slowly."""

    def wanted(row: RegionRow) -> bool:
        draws = row.category == "rendering" or (row.category in PLAIN and row.name_has(DRAWING))
        return draws and not row.name_has(RESIZING) and run.per_env_step(row) >= AT_EACH_STEP

    rows = run.outermost(wanted)
    if not rows:
        return None
    row = rows[0]
    inside = list(run.below(row))
    resizing_ns = sum(r.total_ns for r in inside if r.name_has(RESIZING))
    drawing_ns = row.total_ns - resizing_ns
    mean_ns = drawing_ns / max(row.calls, 1)
    if drawing_ns < 0.1 * run.wall_ns or mean_ns < 20_000:
        return None
    pieces = sum(r.calls for r in inside) / max(row.calls, 1)
    evidence = [
        took(row),
        f"A picture is drawn {times(run.per_env_step(row))} for each env step; drawing alone takes "
        f"{duration(mean_ns)}.",
    ]
    if pieces >= 2:
        evidence.append(f"{rate(pieces)} regions run inside for each picture: it is drawn piece by piece.")
    evidence.append("Assumed: a compiled or cached drawing saves between a half and 95 % of the drawing.")
    left = drawing_ns / row.total_ns
    return advise(
        run,
        "rendering_in_python",
        row,
        f"Draw observations with compiled code, or not at all (`{row.name}`)",
        evidence,
        "If the agent does not look at the picture, do not draw it while training. If it does: keep the "
        "background, redraw only what moved, index a table of tiles, or compile the drawing with numba.",
        run.gain([row], (0.5 * left, 0.95 * left)),
        Change("cache the background, draw by array indexing", effort="hours", safety="safe"),
    )


def resizing(run: RunView) -> Recommendation | None:
    """Pictures are made larger than the network takes, and shrunk at every step."""

    def wanted(row: RegionRow) -> bool:
        return row.category in PLAIN and row.name_has(RESIZING) and run.per_env_step(row) >= AT_EACH_STEP

    rows = [row for row in run.outermost(wanted) if row.share >= 0.05]
    if not rows:
        return None
    row = rows[0]
    return advise(
        run,
        "resizing",
        row,
        f"Make the picture in the size that is needed (`{row.name}`)",
        [
            took(row),
            f"It runs {times(run.per_env_step(row))} for each env step.",
            "Assumed: drawing at the final size, or cv2.resize with INTER_AREA, saves 60 % to all of it.",
        ],
        "Draw at the size the network takes. If the source is fixed, use OpenCV's resize (a few times faster "
        "than PIL or skimage) on uint8, and shrink before stacking frames.",
        run.gain([row], (0.6, 1.0)),
        Change("draw at the final size, or cv2.resize on uint8", effort="hours", safety="semantic"),
    )
