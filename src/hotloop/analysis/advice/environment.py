"""Observations drawn in Python, frames resized at every step, and expensive resets."""

from __future__ import annotations

from hotloop._util.units import duration, percent
from hotloop.analysis.advice.recommendation import Change, advise, rate, times, took
from hotloop.analysis.advice.run_view import RESIZING, RegionRow, RunView, near
from hotloop.analysis.findings import Recommendation

EVERY_STEP = 0.5  # calls per env step that count as every step
MAYBE_RESETTING = ("environment", "other")


def rendering_in_python(run: RunView) -> Recommendation | None:
    """Observations are drawn slowly at (nearly) every env step."""

    def wanted(row: RegionRow) -> bool:
        draws = row.category == "rendering" and not row.is_gap and not row.name_has(RESIZING)
        return draws and run.per_env_step(row) >= EVERY_STEP

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
        f"A frame is drawn {times(run.per_env_step(row))} per env step; drawing alone takes "
        f"{duration(mean_ns)}.",
    ]
    if pieces >= 2:
        evidence.append(f"{rate(pieces)} regions run inside per frame: it is drawn piece by piece.")
    evidence.append("Assumption: compiled or cached drawing saves between 50 % and 95 % of it.")
    left = drawing_ns / row.total_ns
    return advise(
        run,
        "rendering_in_python",
        row,
        f"Draw observations in compiled code, or not at all (`{row.name}`)",
        evidence,
        "If the agent does not use the image, do not render it while training. If it does: cache the "
        "background, redraw only what moved, index a table of tiles, or compile the drawing with numba.",
        run.gain([row], (0.5 * left, 0.95 * left)),
        Change("cache the background, draw by indexing arrays", effort="hours", safety="semantic"),
    )


def resizing(run: RunView) -> Recommendation | None:
    """Frames are made larger than the network's input and shrunk at every step."""

    def wanted(row: RegionRow) -> bool:
        resizes = row.category == "rendering" and row.name_has(RESIZING) and not row.is_gap
        return resizes and run.per_env_step(row) >= EVERY_STEP

    rows = [row for row in run.outermost(wanted) if row.share >= 0.05]
    if not rows:
        return None
    row = rows[0]
    return advise(
        run,
        "resizing",
        row,
        f"Render frames at the size the network takes (`{row.name}`)",
        [
            took(row),
            f"It runs {times(run.per_env_step(row))} per env step.",
            "Assumption: rendering at the final size, or cv2.resize (INTER_AREA), saves 60 % to 100 % of it.",
        ],
        "Render at the size the network takes. If the source is fixed, use OpenCV's resize on uint8 (a few "
        "times faster than PIL or skimage), and resize before stacking frames.",
        run.gain([row], (0.6, 1.0)),
        Change("render at the final size, or cv2.resize on uint8", effort="hours", safety="semantic"),
    )


def costly_resets(run: RunView) -> Recommendation | None:
    """Resets, one per episode, take a noticeable share and far longer than a step."""
    episodes = run.capture.progress.episodes
    steps = run.outermost(lambda row: row.category == "environment" and not run.is_reset(row))
    if not steps or not run.env_steps:
        return None
    step_share = sum(row.share for row in steps)
    step_ns = sum(row.total_ns for row in steps) / run.env_steps

    def wanted(row: RegionRow) -> bool:
        # A region that runs at every step does not reset at each of its calls.
        rare = near(row.calls, episodes, 0.25) if episodes else row.calls < 0.5 * run.env_steps
        return run.is_reset(row) and row.category in MAYBE_RESETTING and rare and row.mean_ns >= 3 * step_ns

    rows = [row for row in run.rows if wanted(row) and not any(wanted(other) for other in run.above(row))]
    rows.sort(key=lambda row: -row.total_ns)
    share = sum(row.share for row in rows)
    if share < 0.1:
        return None
    row = rows[0]
    return advise(
        run,
        "costly_resets",
        row,
        f"Make resets cheaper (`{row.name}` takes {percent(share)})",
        [
            took(row),
            f"A step takes {duration(step_ns)}, all steps together {percent(step_share)}.",
            "Assumption: reusing objects and preparing start states ahead saves between 33 % and 90 % of it.",
        ],
        "Build what does not change once, in the constructor; restore a saved start state; prepare the next "
        "start state while the other envs step.",
        run.gain(rows, (1 / 3, 0.9)),
        Change("move construction out of reset()", effort="hours", safety="semantic"),
        claimed=rows,
    )
