"""The report as plain text: what `hotloop report CAPTURE` prints and `-o report.txt` writes."""

from __future__ import annotations

import re
import shlex

from hotloop._util.units import count, duration, percent, size
from hotloop.analysis.findings import (
    ADVICE_TIERS,
    Breakdown,
    Estimate,
    Findings,
    Forecast,
    Growth,
    GrowthFactor,
    Recommendation,
    ThreadUse,
    short_site,
)
from hotloop.analysis.system import System
from hotloop.report.palette import colour_of
from hotloop.report.paths import relative, with_relative_paths
from hotloop.report.pen import Pen, table
from hotloop.report.safe_text import columns, words
from hotloop.report.system_text import whole_system

LEAST_WORTH = 0.05  # share of the time below which nothing is worth optimising
MOST_BOTTLENECKS = 6
MOST_RECOMMENDATIONS = 6
NO_CORE = 0.2  # share of training without a core that is worth saying
MOST_THREADS = 12
MOST_GROWTH = 6
MOST_LINES = 6
NOT_WORTH = "not_worth_optimising"
OPTION = "option"
NO_REMEDY = "no_known_remedy"
NO_REMEDY_HEADING = "Most expensive code, with no known remedy"
UNDECIDED = "undecided"
SAFETY = {
    "safe": "same results",
    "rounding": "same results up to rounding",
    "semantic": "may change learning",
}


def terminal(
    findings: Findings, width: int = 80, colour: bool = False, unicode: bool = True, capture: str = ""
) -> str:
    """The whole report for a terminal, a pipe or a text file, ending with the next command to run.

    `unicode=False` restricts it to ASCII. `capture` is how commands refer to the capture. Lines are at most
    `width` columns wide (at least 60), except for single words of a command that are longer.
    """
    pen = Pen(max(width, 60), colour, unicode)
    sections = [
        headline(findings, pen),
        whole_system(findings.system, pen),
        breakdown(findings.breakdown, findings.basis, pen),
        hot_lines(findings, pen) or source_lines(findings, pen),
        bottlenecks(findings, pen),
        recommendations(findings, pen),
        growth(findings, pen),
        utilisation(findings, pen),
        roofline(findings, pen),
        machine(findings, pen),
        unmeasured(findings, pen),
        next_command(findings, pen, capture),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def headline(findings: Findings, pen: Pen) -> str:
    """The headline sentence, and the run's key figures below it."""
    lines = [pen.paint(line, "bold") for line in pen.wrap(findings.headline).split("\n")]
    lines.append("")
    if findings.command:
        lines.append(pen.command(shlex.join(findings.command), "  "))
    figures = [f"{duration(findings.wall_ns)} wall time"]
    for number, rate, word in (
        (findings.env_steps, findings.env_steps_per_s, "env steps"),
        (findings.updates, findings.updates_per_s, "updates"),
        (findings.episodes, None, "episodes"),
    ):
        if number:
            figures.append(f"{count(number)} {word}" + (f" ({rate_text(rate)})" if rate is not None else ""))
    if findings.mean_return is not None:
        figures.append(f"mean return {findings.mean_return:.4g}")
    lines.append(pen.wrap(", ".join(figures), "  "))
    for said in (phases_text(findings), standstill_text(findings)):
        if said:
            lines.append(pen.wrap(said, "  "))
    return "\n".join(lines)


def phases_text(findings: Findings) -> str:
    """`3.2 s start-up, 48.9 s training (shown below), 0.2 s shutdown`; "" if all of it was training."""
    found = findings.phases
    if found is None or found.whole_run:
        return ""
    parts = [
        (found.start_up_ns, "start-up"),
        (found.warm_up_ns, "warm-up"),
        (found.training_ns, "training (shown below)"),
        (found.last_round_ns, "last round"),
        (found.shutdown_ns, "shutdown"),
    ]
    return ", ".join(f"{duration(ns)} {name}" for ns, name in parts if ns)


def standstill_text(findings: Findings) -> str:
    """`The machine stood still for 27.1 s ...`; "" if it did not."""
    if not findings.stood_still_ns:
        return ""
    return (
        f"The machine stood still for {duration(findings.stood_still_ns)} (paused, suspended or stopped: not "
        "even the sampler of hotloop ran). That time is left out below."
    )


def breakdown(found: Breakdown, basis: str, pen: Pen) -> str:
    """Seconds, percent and a bar for each category."""
    lines = [pen.heading("Where the time goes", found.label)]
    rows = [(c.category, seconds(c.own_ns, found.wall_ns), percent(c.share)) for c in found.categories]
    if rows:
        drawn = table(pen, rows, spare=12)
        room = pen.width - max(columns(line) for line in drawn) - 2
        largest = max(c.share for c in found.categories) or 1.0
        for line, part in zip(drawn, found.categories, strict=True):
            lines.append(f"{line}  {pen.bar(part.share / largest, room, colour_of(part.category))}".rstrip())
    if found.hotloop_ns is None:
        lines.append(pen.wrap("The cost of hotloop itself was not calibrated for this capture.", "  "))
    lines.append(pen.dim(pen.wrap(sentence(basis), "  ")))
    return "\n".join(lines)


def sentence(words: str) -> str:
    """Capitalise and end with a full stop."""
    return f"{words[:1].upper()}{words[1:].removesuffix('.')}."


def hot_lines(findings: Findings, pen: Pen) -> str:
    """Lines of the user's code by the time they took during training, library calls included.

    Left out if a single line, such as `model.learn()`, stands for everything.
    """
    if not findings.hot_lines or findings.hot_lines[0].share > 0.95:
        return ""
    shown_lines = findings.hot_lines[:MOST_LINES]
    per = shown_lines[0].per
    rows = [("line", f"per {words(per)}" if per else "", "share")]
    for line in shown_lines:
        each = duration(line.ns_per_unit) if line.ns_per_unit is not None else ""
        rows.append((f"{short_site(line.site)}  {line.text}", each, percent(line.share)))
    drawn = table(pen, rows)
    drawn[0] = pen.paint(drawn[0], "dim")
    return "\n".join([pen.heading("Lines of your code", "with the library calls they make"), *drawn])


def source_lines(findings: Findings, pen: Pen) -> str:
    """Lines of the script that were sampled while no library call was running."""
    if not findings.lines:
        return ""
    folder = findings.working_folder
    rows = [(relative(line.site, folder), percent(line.share)) for line in findings.lines[:MOST_LINES]]
    drawn = table(pen, rows)
    return "\n".join([pen.heading("Lines of your script", "sampled outside library calls"), *drawn])


def bottlenecks(findings: Findings, pen: Pen) -> str:
    """Score, share, and the gain if the region were twice as fast."""
    if not findings.bottlenecks:
        return ""
    rows = [("region", "score", "share", "calls", "gain if twice as fast")]
    for b in findings.bottlenecks[:MOST_BOTTLENECKS]:
        known = gain(b.gain_if_twice_as_fast) or "no interval"
        rows.append((b.name, f"{b.score:.2f}", percent(b.share), count(b.calls), known))
    lines = [pen.heading("Top bottlenecks"), *table(pen, rows)]
    lines[1] = pen.paint(lines[1], "dim")
    terms = score_terms(findings)
    more = len(findings.bottlenecks) - MOST_BOTTLENECKS
    if terms:
        said = f"The score combines {', '.join(terms)}; gains are for training."
        lines.append(pen.dim(pen.wrap(said, "  ")))
    if more > 0:
        lines.append(f"  {more} more in the HTML report.")
    return "\n".join(lines)


def score_terms(findings: Findings) -> list[str]:
    """The terms that made up the score in this capture."""
    terms = dict.fromkeys(term for b in findings.bottlenecks for term in b.score_terms)
    return [words(term).replace("cpu", "CPU") for term in terms]


def recommendations(findings: Findings, pen: Pen) -> str:
    """Ranked advice, each with its evidence, the change to make and the command that tests it."""
    findings = with_relative_paths(findings)
    found = findings.recommendations
    worth = [(n, r) for n, r in enumerate(found, 1) if r.tier in ADVICE_TIERS]
    lines = [pen.heading("What to do", "best first" if worth else "")]
    if not worth:
        lines.append(pen.wrap(no_advice(findings), "  "))
    blocks = [recommendation(n, r, pen) for n, r in worth[:MOST_RECOMMENDATIONS]]
    if blocks:
        lines.append("\n\n".join(blocks))
    if findings.gain_of_all is not None:
        said = f"All advice that keeps results, together: {gain(findings.gain_of_all)} predicted."
        lines.append("\n" + pen.wrap(said, "  "))
    if len(worth) > MOST_RECOMMENDATIONS:
        lines.append(f"\n  {len(worth) - MOST_RECOMMENDATIONS} more in the HTML report.")
    hot = [(n, r) for n, r in enumerate(found, 1) if r.tier == NO_REMEDY]
    if hot:
        lines.append(f"\n  {NO_REMEDY_HEADING}:")
        lines.append("\n".join(expensive_code(n, r, pen) for n, r in hot))
    for tier, heading in ((OPTION, "Options that change training"), (NOT_WORTH, "Not worth optimising")):
        rest = [r for r in found if r.tier == tier]
        if rest:
            lines.append(f"\n  {heading}:")
        for r in rest:
            known = f" (predicted {gain(r.gain)})" if r.gain else ""
            lines.append(pen.wrap(f"{r.title}{known}. {r.advice}", "    ", "      "))
    return "\n".join(lines)


def expensive_code(number: int, found: Recommendation, pen: Pen) -> str:
    """Code that takes long without a reason to call it slow: what it costs, and what to ask about it."""
    lines = [pen.wrap(found.title, f"  {number}. ", "     ")]
    lines += [pen.wrap(evidence, "     - ", "       ") for evidence in found.evidence]
    lines.append(pen.wrap(found.advice, "     "))
    return "\n".join(lines)


def no_advice(findings: Findings) -> str:
    """What to say when there is nothing to recommend."""
    large = [c for c in findings.breakdown.categories if c.share >= LEAST_WORTH]
    if large and large[0].category == "unattributed":
        return "There is no advice for this capture."
    if not large:
        return "Nothing here would speed up training by 5 %, even if it were free."
    spent = ", ".join(f"{c.category} ({percent(c.share)})" for c in large[:3])
    return f"Nothing known to be slow was found. Most of the time goes into {spent}."


def recommendation(number: int, advice: Recommendation, pen: Pen) -> str:
    """One piece of advice."""
    safety = SAFETY[advice.safety]
    predicted = f"predicted {gain(advice.gain)}" if advice.gain else "gain unknown until tested"
    title = pen.wrap(advice.title, f"  {number}. ", "     ").split("\n")
    lines = [pen.paint(line, "bold") for line in title]
    facts = f"{predicted}; {advice.tier} impact, {advice.effort} of work, {safety}"
    lines.append(pen.wrap(facts, "     "))
    for evidence in advice.evidence:
        lines.append(pen.wrap(evidence, "     - ", "       "))
    if advice.advice:
        lines.append(pen.wrap(advice.advice, "     "))
    place = "the time goes to" if advice.changed_elsewhere else "at"
    where = f" ({place} {advice.site})" if advice.site else ""
    lines.append(pen.wrap(f"{advice.how_to_change}{where}", "     change: "))
    if advice.prove_command:
        first, command = split_command(advice.prove_command)
        if first:
            lines += [pen.wrap(f"{first}:", "     test:   "), pen.command(command, " " * 13)]
        else:
            lines.append(pen.command(command, "     test:   "))
    return "\n".join(lines)


def split_command(text: str) -> tuple[str, str]:
    """Split `make the change, then run: python ...` into what to do first ("" for none) and the command."""
    found = re.fullmatch(r"([A-Za-z ,]+): (.+)", text, re.DOTALL)
    return (found[1], found[2]) if found else ("", text)


def growth(findings: Findings, pen: Pen) -> str:
    """Why the run got slower: learning first, then defects; and the forecast of a run under way."""
    lines: list[str] = []
    if findings.growth is not None:
        lines += growth_lines(findings.growth, pen)
    if findings.forecast is not None:
        plan = findings.forecast
        lines += ["", pen.wrap(forecast_text(plan), "  ")] if lines else [pen.wrap(forecast_text(plan), "  ")]
    return "\n".join([pen.heading("Growth"), *lines]) if lines else ""


def forecast_text(plan: Forecast) -> str:
    """When the run will be done, in one sentence."""
    left = plan.remaining_s
    value, low, high = (duration(1e9 * s) for s in (left.value, left.low, left.high))
    return (
        f"{count(plan.done_env_steps)} of {count(plan.goal_env_steps)} env steps done; "
        f"at this rate, {value} to go [{low}, {high}]."
    )


def growth_lines(found: Growth, pen: Pen) -> list[str]:
    """The excess, its factors, and the regions whose calls got slower."""
    lines = [
        pen.wrap(
            f"Time per {words(found.per)}: {duration(found.early_ns)} early, {duration(found.late_ns)} late.",
            "  ",
        ),
        pen.wrap(found.summary, "  "),
    ]
    for f in found.factors:
        lines.append(f"  {words(f.factor):<20}{f.ratio:>7.2f}x  {nature(f)}")
    if found.regions:
        rows = [("cost per call", "early", "late", "exponent", "")]
        for r in found.regions[:MOST_GROWTH]:
            grows = "growing" if r.flagged else ""
            rows.append((r.name, duration(r.early_ns), duration(r.late_ns), slope(r.exponent), grows))
        drawn = table(pen, rows)
        lines += ["", pen.paint(drawn[0], "dim"), *drawn[1:]]
    return lines


def nature(factor: GrowthFactor) -> str:
    """What kind of cause a factor of the growth is."""
    if factor.factor != "cost_per_call":
        return "learning or a setting"
    if factor.is_defect and factor.ratio > 1:
        return "defect"
    return "not steady: machine or other work" if factor.ratio > 1 else "no defect"


def slope(found: Estimate) -> str:
    """`0.62 [0.55, 0.70]`, without negative zeros."""
    value, low, high = (f"{x:.2f}".replace("-0.00", "0.00") for x in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"


def utilisation(findings: Findings, pen: Pen) -> str:
    """Busy, waiting and idle time of each thread, if there are several; who waits for whom."""
    found = findings.utilisation
    if len(found) < 2:
        return ""
    rows: list[tuple[str, ...]] = [("thread", "wall", "busy", "waiting", "idle")]
    if findings.system is not None:
        rows = states_of_threads(findings.system)
    stuck = []
    for use in found[:MOST_THREADS]:
        busy, waiting, idle = (percent(share) for share in parts_of(use))
        if findings.system is None:
            rows.append((f"{use.process} {use.thread}", duration(use.wall_ns), busy, waiting, idle))
        if use.stuck_in is not None:
            inside = (
                f"{use.process}, {use.thread} had been in {use.stuck_in} for {duration(use.stuck_for_ns)}"
            )
            stuck.append(pen.wrap(f"{inside} when the capture was read.", "  "))
    drawn = table(pen, rows)
    lines = [pen.heading("Threads"), pen.paint(drawn[0], "dim"), *drawn[1:], *stuck]
    many = len(found) if findings.system is None else len(findings.system.members)
    if many > MOST_THREADS:
        lines.append(f"  {many - MOST_THREADS} more in the HTML report.")
    lines += [pen.wrap(said, "  ") for said in thread_sentences(findings)]
    return "\n".join(lines)


def states_of_threads(system: System) -> list[tuple[str, ...]]:
    """Rows of the table of threads: what each of them did."""
    rows: list[tuple[str, ...]] = [("thread", "wall", "running", "ready", "waiting", "GIL", "blocked")]
    for member in system.members[:MOST_THREADS]:
        s = member.states
        shares = [percent(share) for share in (s.running, s.ready, s.waiting, s.gil, s.blocked)]
        rows.append((f"{member.name}: {member.label}", duration(member.wall_ns), *shares))
    return rows


def thread_sentences(findings: Findings) -> list[str]:
    """Who waits for whom, and whether there are more compute threads than cores."""
    told = findings.system is not None and bool(findings.system.chain_sentence)
    found = (None if told else findings.waits, findings.oversubscription)
    return [one.summary for one in found if one is not None]


def parts_of(use: ThreadUse) -> tuple[float | None, float | None, float | None]:
    """Busy, waiting and idle as shares of the thread's wall time."""
    wall = use.wall_ns
    if not wall:
        return None, None, None
    return use.busy_ns / wall, use.waiting_ns / wall, None if use.idle_ns is None else use.idle_ns / wall


def roofline(findings: Findings, pen: Pen) -> str:
    """How far each region is from the best this machine could do."""
    if not findings.roofline:
        return ""
    rows = [("region", "per call", "limit", "ratio", "limited by")]
    for r in findings.roofline:
        limit = pen.clean(words(r.limit), 20)
        rows.append((r.name, duration(r.measured_ns), duration(r.limit_ns), ratio_text(r.ratio), limit))
    drawn = table(pen, rows)
    return "\n".join(
        [
            pen.heading("Roofline", "time per call against this machine's limit"),
            pen.paint(drawn[0], "dim"),
            *drawn[1:],
        ]
    )


def machine(findings: Findings, pen: Pen) -> str:
    """The computer and the library versions."""
    parts = machine_parts(findings)
    if not parts:
        return ""
    said = without_a_core(findings)
    lines = [pen.heading("Machine"), pen.wrap(", ".join(parts), "  ")]
    return "\n".join([*lines, *([pen.wrap(said, "  ")] if said else [])])


def without_a_core(findings: Findings) -> str:
    """How long a run of one thread had no core, if that is a fifth of the time or more; else "".

    With several threads, the table of threads says so.
    """
    if len(findings.utilisation) > 1 or findings.system is None or not findings.system.members:
        return ""
    ready = findings.system.members[0].states.ready
    if ready < NO_CORE:
        return ""
    return (
        f"Your training thread was ready to run, but without a core, {percent(ready)} of the time; all times "
        "include that."
    )


def machine_parts(findings: Findings) -> list[str]:
    """Facts about the computer and versions of libraries."""
    facts, parts = findings.machine, []
    if facts.get("cpu"):
        parts.append(str(facts["cpu"]))
    if facts.get("cores_granted") is not None:
        present = facts.get("cores_present")
        of = f" of {present}" if present is not None else ""
        parts.append(f"{facts['cores_granted']:g}{of} cores granted")
    if facts.get("memory_bytes") is not None:
        parts.append(f"{size(facts['memory_bytes'])} memory")
    if facts.get("load_1min") is not None:
        parts.append(f"load {facts['load_1min']:.2f} at the start")
    return parts + [f"{name} {version}" for name, version in findings.versions.items()]


def unmeasured(findings: Findings, pen: Pen) -> str:
    """What ran under `hotloop boost`, what could not be measured, and warnings about this capture."""
    blocks = []
    unknown = [sentence(reason) for reason in findings.not_measured]
    for title, sentences in (
        ("Boosted", findings.boosted),
        ("Not measured", unknown),
        ("Warnings", findings.warnings),
    ):
        if sentences:
            blocks.append("\n".join([pen.heading(title), *(pen.wrap(s, "  - ", "    ") for s in sentences)]))
    return "\n\n".join(blocks)


def next_command(findings: Findings, pen: Pen, capture: str) -> str:
    """What to run next: test the best advice, or open the HTML report."""
    page = f"hotloop report {shlex.quote(capture) + ' ' if capture else ''}-o report.html"
    lines = [pen.heading("Next")]
    worth = [r for r in findings.recommendations if r.tier in ADVICE_TIERS]
    best = next((r for r in worth if r.prove_command), None)
    if best is not None:
        first, command = split_command(best.prove_command)
        said = f"# test the first advice{': ' + first if first else ''}"
        lines += [pen.dim(pen.wrap(said, "  ", "  # ")), pen.command(command, "  ")]
    for undecided in (r for r in findings.recommendations if r.tier == UNDECIDED and r.prove_command):
        lines.append(pen.dim(pen.wrap(f"# {undecided.title}", "  ", "  # ")))
        lines.append(pen.command(undecided.prove_command, "  "))
    if len(lines) > 1:
        lines.append(pen.dim("  # see the details"))
    lines.append(pen.command(page, "  "))
    return "\n".join(lines)


def seconds(own_ns: int, wall_ns: int) -> str:
    """Seconds, with digits that suit the total."""
    digits = 1 if wall_ns >= 100e9 else 2 if wall_ns >= 10e9 else 3 if wall_ns >= 1e8 else 6
    return f"{own_ns / 1e9:,.{digits}f} s"


def gain(estimate: Estimate | None) -> str:
    """`1.38x [1.34, 1.42]`; "" for none."""
    if estimate is None:
        return ""
    digits = 3 if estimate.high - estimate.low < 0.02 else 2
    value, low, high = (f"{x:.{digits}f}" for x in (estimate.value, estimate.low, estimate.high))
    return f"{value}x [{low}, {high}]"


def ratio_text(ratio: float) -> str:
    """`1.3x`, `10,828x`."""
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.1f}x"


def rate_text(per_s: float) -> str:
    """`6,003/s`; small rates with digits."""
    return f"{per_s:,.0f}/s" if per_s >= 100 else f"{per_s:.3g}/s"
