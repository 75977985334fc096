"""The run as a whole: regions that get slower, time in no region, our own cost, what to leave alone."""

from __future__ import annotations

from dataclasses import replace

from hotloop._util.units import duration, percent
from hotloop.analysis.advice.recommendation import LOW, Change, advise, took
from hotloop.analysis.advice.run_view import STORING, RegionRow, RunView
from hotloop.analysis.findings import Estimate, Recommendation, RegionGrowth
from hotloop.analysis.tree import cost_of_calls
from hotloop.capture.region_names import RAY_WAIT_FOR

MOST_SMALL_REGIONS = 20  # check the largest of the regions that are too small to matter


def growing_cost(run: RunView) -> Recommendation | None:
    """Calls of a region get slower as the run goes on."""
    growth = run.findings.growth
    flagged = [found for found in growth.regions if found.flagged] if growth is not None else []
    # What Ray's tasks take longer for is in those who run them, or there are more of them.
    flagged = [found for found in flagged if not found.name.startswith(RAY_WAIT_FOR)]
    worst = max(flagged, key=lambda found: _extra_ns(run, found), default=None)
    if worst is None or worst.late_ns < 1.3 * worst.early_ns or _extra_ns(run, worst) < 0.05 * run.wall_ns:
        return None
    rows = _called(run, worst.name)
    row = max(rows, key=lambda r: r.own_ns)
    exponent = worst.exponent
    # Extrapolate to the first window: a list costs nothing while it is empty.
    first_ns = min(worst.late_ns * len(run.driver.windows) ** -max(exponent.low, 0.0), worst.early_ns)
    own_ns = sum(r.own_ns for r in rows)
    most = min(1 - first_ns / _mean_ns(worst), 0.98)
    return advise(
        run,
        "growing_cost",
        row,
        f"`{row.name}` gets slower as the run goes on ({worst.late_ns / worst.early_ns:.1f}x)",
        [
            took(row),
            f"A call took {duration(worst.early_ns)} early in the run and {duration(worst.late_ns)} late: "
            f"cost ~ work^{exponent.value:.2f} [{exponent.low:.2f}, {exponent.high:.2f}].",
            f"The gain is for calls that stay at {duration(worst.early_ns)}, or at the {duration(first_ns)} "
            "of the very first ones; it is larger in a longer run.",
        ],
        _why_it_grows(row),
        run.gain(rows, (min(_extra_ns(run, worst) / own_ns, most), most), own=True),
        Change(
            "a data structure whose cost does not depend on its length", effort="hours", safety="semantic"
        ),
        tier="medium",
        claimed=rows,
        own=True,
    )


def _called(run: RunView, name: str) -> list[RegionRow]:
    return [row for row in run.rows if row.name == name]


def _extra_ns(run: RunView, found: RegionGrowth) -> float:
    """Time beyond what the calls would have taken at their early cost.

    Both costs are at the usual pace of the other regions, so only their ratio can be applied to the time.
    """
    own_ns = sum(row.own_ns for row in _called(run, found.name))
    return own_ns * (1 - found.early_ns / _mean_ns(found))


def _mean_ns(found: RegionGrowth) -> float:
    return (found.early_ns + found.late_ns) / 2


def _why_it_grows(row: RegionRow) -> str:
    if row.category == "replay" or row.name_has(STORING):
        return (
            "Likely a list or deque instead of a ring buffer of arrays: indexing the middle of a deque, or "
            "slicing or converting a list, costs more the longer it is. Preallocate arrays and overwrite."
        )
    if row.category == "logging":
        return "Likely the whole log is rewritten or averaged each time: append, and keep running sums."
    return "Something it uses grows with the run: look for a list that is searched, copied or sorted again."


def mostly_unnamed(run: RunView) -> Recommendation | None:
    """Much of the time is in no region."""
    share = run.driver.unattributed_ns / run.wall_ns
    if share < 0.4 or run.process.sampling is not None:  # sampled lines say where that time goes
        return None
    return advise(
        run,
        "mostly_unnamed",
        None,
        f"Add regions: {percent(share)} of the time is in none",
        [f"{percent(share)} of the wall time is in no region; {len(run.rows)} regions hold the rest."],
        'Put `with profile("name"):` around the parts of the loop. Start-up counts if it was recorded.',
        None,
        Change('with profile("name"): around each part', effort="minutes", safety="safe"),
        tier="low",
    )


def costly_regions(run: RunView) -> Recommendation | None:
    """Regions so short that measuring them takes a noticeable share."""
    cost = run.capture.region_cost_ns
    if not cost or not run.rows or run.process.sampling is not None:
        return None
    own = [(cost_of_calls(row.calls, run.wall_ns, cost) / run.wall_ns, row) for row in run.rows]
    total = sum(share for share, _ in own)
    if total < 0.05:
        return None
    share, row = max(own, key=lambda pair: pair[0])
    evidence = [
        f"Measuring took about {percent(min(total, 1.0))} of the wall time ({cost:,.0f} ns per region); "
        f"`{row.name}` alone took {percent(min(share, 1.0))}.",
        took(row),
    ]
    if run.capture.facts.get("core") == "python":
        evidence.append("The Python core recorded; the compiled one costs a fraction of it.")
    return advise(
        run,
        "costly_regions",
        row,
        f"Measure less finely (`{row.name}` runs {row.calls:,} times)",
        evidence,
        "Put the region around the loop instead of inside it. Without recording, your run is faster.",
        None,
        Change("move the region out of the loop", effort="minutes", safety="safe"),
        tier="low",
        claimed=(),
    )


def _sampled_regions(run: RunView) -> set[str]:
    """Names of regions in which lines that other advice is about were sampled."""
    if run.lines is None:
        return set()
    paths = {number for one in run.given if one.claim is not None for number in one.claim.sampled}
    return {name for region in run.lines.region_paths_of(paths) for name in region} if paths else set()


def leave_alone(run: RunView) -> Recommendation | None:
    """Regions not worth optimising: even if they took no time, the run would hardly be faster."""
    by_name: dict[str, list[RegionRow]] = {}
    claimed = {path for one in run.given if one.claim is not None for path in one.claim.regions}
    named = {one.region for one in run.given} | _sampled_regions(run)
    named |= {row.name for row in run.rows if any(row.path[: len(path)] == path for path in claimed)}
    for row in run.rows:
        if row.category not in ("wait", "hotloop") and row.name not in named and not row.is_gap:
            by_name.setdefault(row.name, []).append(row)
    # A region that holds others is only left alone if all of it is small.
    shares = {name: sum(row.share for row in rows) for name, rows in by_name.items()}
    low = sorted((name for name in shares if 1e-4 < shares[name] < 1 - 1 / LOW), key=lambda n: -shares[n])
    small: list[tuple[float, str, Estimate]] = []
    for name in low[:MOST_SMALL_REGIONS]:
        gain = run.gain(by_name[name], 1.0)
        if gain is not None and gain.high < LOW:
            small.append((shares[name], name, gain))
    if not small:
        return None
    shown = small[:5]
    more = len(low) - len(shown)
    rest = f" and {more} more" if more else ""
    said = advise(
        run,
        "leave_alone",
        None,
        "Leave these alone: " + ", ".join(f"`{name}`" for _, name, _ in shown) + rest,
        [
            f"`{name}` takes {percent(share)}: without it, the run would be {gain.high:.3f}x as fast at most."
            for share, name, gain in shown
        ],
        "Optimising these won't make a noticeable difference.",
        shown[0][2],
        Change("nothing", effort="hours", safety="safe"),
    )
    return replace(said, prove_command="")  # there is nothing to test
