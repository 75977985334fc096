"""Advice about code in hot lines that is known to be slow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hotloop._util.units import percent
from hotloop.analysis.advice.idiom_places import IdiomPlaces, find_idioms
from hotloop.analysis.advice.recommendation import (
    HELPER,
    LEAST_SAVED,
    Change,
    about,
    advise,
    lower_first,
    per_unit,
)
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.findings import Claim, Recommendation, short_site
from hotloop.analysis.hot_statements import Spot
from hotloop.analysis.line_samples import LineSamples

# What runs after a burst of other code finds cold caches. A forward pass or an update took 1.2x to 3x as long
# after 0.3 ms of other code as right after another one, up to 0.3 ms more, and longer still after code that
# walks through memory. So a fix saves more than the line's time: (part of the other time, at most so many ns
# for each pass), least, most likely, largest.
COLD_CODE = ((0.0, 0.0), (0.1, 0.08e6), (0.5, 0.5e6))
COLD_MEMORY = ((0.0, 0.0), (0.2, 0.2e6), (0.6, 1e6))
NO_COLD = ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0))
LEAST_WAITED = 0.02  # of training, spent waiting for a thread that the idiom keeps busy
LEAST_BURSTS = 3  # of what is slow only if it comes again, such as a figure
MOST = 4  # pieces of advice about idioms


def slow_idioms(run: RunView) -> list[Recommendation]:
    """Code in hot lines that is known to be slow."""
    lines = run.unbiased_lines
    if lines is None:
        return []
    taken: set[int] = set()
    advice: list[Recommendation] = []
    for found in find_idioms(lines):
        paths = found.paths - taken
        share = lines.share_of(paths)
        if share * found.saved[1] < LEAST_SAVED or len(advice) == MOST:
            continue
        if share < found.match.least:
            continue
        if found.match.again and lines.bursts(paths) < LEAST_BURSTS:
            continue
        taken |= paths
        advice.append(_idiom_advice(run, lines, found, paths, share))
    return advice


def _idiom_advice(
    run: RunView, lines: LineSamples, found: IdiomPlaces, paths: Iterable[int], share: float
) -> Recommendation:
    first = found.places[0]
    evidence = [f"{_where(found.places)} took {percent(share)} of training{per_unit(run, share)}."]
    if first.text:
        evidence.append(f"{short_site(first.site)}: {first.text}")
    evidence.append(found.match.why)
    if lines.helped(paths) > 0.5:
        evidence.append(HELPER)
    held_up = lines.held_up_by(found.match.library_calls)
    waited = float((held_up * lines.weight_ns)[~lines.among(paths)].sum()) / lines.total_ns
    if waited >= LEAST_WAITED:
        evidence.append(
            f"Another {percent(waited)} of training went by while a thread of that library kept this one "
            "from running: Python runs one thread at a time."
        )
    low, likely, high = found.saved
    warm = ", and code that runs after it gets faster too, since the caches stay warm"
    evidence.append(
        f"Assumption: the change saves {about(likely)} of that time (between {about(low)} and "
        f"{about(high)}){warm if found.match.chills else ''}."
    )
    change = Change(
        lower_first(found.match.title),
        found.match.effort,
        found.match.safety,
        provable_by="patch" if found.match.patch else "hand",
        patch=found.match.patch,
    )
    made = advise(
        run,
        found.match.name,
        None,
        f"{found.match.title} ({short_site(first.site)})",
        evidence,
        found.match.remedy,
        lines.gain(
            paths,
            found.saved,
            held_up if waited >= LEAST_WAITED else None,
            rest_faster(run, COLD_MEMORY if found.match.walks_memory else COLD_CODE)
            if found.match.chills
            else NO_COLD,
        ),
        change,
    )
    claim = Claim(sampled=tuple(sorted(paths)), waits=found.match.waits_for_own)
    return replace(made, site=first.site, claim=claim)


def rest_faster(
    run: RunView, cold: tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
) -> list[tuple[float, float]]:
    """How much faster other code gets without the burst: fractions of its time, and limits as shares."""
    passes = max(run.iterations, run.updates, 1)  # at most one burst for each is assumed
    busy_ns = (run.driver.cpu_ns or run.wall_ns) / passes
    known = run.iterations or run.updates
    return [(fraction, ns / busy_ns if known else fraction / 3) for fraction, ns in cold]


def _where(places: tuple[Spot, ...]) -> str:
    rows = sorted({spot.line for spot in places})
    file = short_site(places[0].file)
    if len(rows) == 1:
        return f"{file}:{rows[0]}"
    return f"{file} lines {', '.join(map(str, rows[:6]))}{' ...' if len(rows) > 6 else ''}"
