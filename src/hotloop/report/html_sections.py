"""The first half of the page: headline, advice, where the time goes, charts; and the commands at its end."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable

from hotloop._util.units import count, duration, percent
from hotloop.analysis.findings import ADVICE_TIERS, Bottleneck, Breakdown, Findings, Recommendation
from hotloop.report import markup as m
from hotloop.report.palette import colour_of
from hotloop.report.safe_text import words
from hotloop.report.text import (
    NO_REMEDY,
    NO_REMEDY_HEADING,
    NOT_WORTH,
    OPTION,
    SAFETY,
    UNDECIDED,
    gain,
    no_advice,
    phases_text,
    rate_text,
    score_terms,
    seconds,
    sentence,
    split_command,
    standstill_text,
)

MOST_ROWS = 300
CONTENTS = {
    "advice": "What to do",
    "system": "The whole system",
    "time": "Where the time goes",
    "lines": "Lines of your code",
    "bottlenecks": "Bottlenecks",
    "tree": "Region tree",
    "over-time": "Over time",
    "growth": "Growth",
    "threads": "Threads",
    "roofline": "Roofline",
    "all-regions": "All regions",
    "machine": "Machine",
    "reproduce": "Reproduce",
}


def hero(findings: Findings, present: list[str]) -> str:
    """The headline, the run's key figures, and the table of contents."""
    said = [text for text in (phases_text(findings), standstill_text(findings)) if text]
    phases = "<br>".join(said)
    figures = [("Wall time", duration(findings.wall_ns), f"<small>{phases}</small>" if phases else "")]
    for label, number, rate in (
        ("Env steps", findings.env_steps, findings.env_steps_per_s),
        ("Updates", findings.updates, findings.updates_per_s),
    ):
        if rate is not None:
            value = rate_text(rate).removesuffix("/s")
            figures.append((f"{label} per second", value, f"<small>{count(number)} in total</small>"))
        elif number:
            figures.append((label, count(number), ""))
    if findings.episodes:
        figures.append(("Episodes", count(findings.episodes), ""))
    if findings.mean_return is not None:
        figures.append(("Mean return", f"{findings.mean_return:.4g}", ""))
    listed = "".join(f"<div><dt>{name}</dt><dd>{value}{more}</dd></div>" for name, value, more in figures)
    links = "".join(f'<li><a href="#{key}">{CONTENTS[key]}</a></li>' for key in present)
    return (
        f'<div class="hero"><h1>{m.text(findings.headline, 1000)}</h1><dl class="figures">{listed}</dl>'
        f'<nav class="contents" aria-label="Contents"><ul>{links}</ul></nav></div>'
    )


def advice(findings: Findings) -> str:
    """One card for each recommendation; below them, options, and what is not worth optimising."""
    worth = [(n, r) for n, r in enumerate(findings.recommendations, 1) if r.tier in ADVICE_TIERS]
    options = [r for r in findings.recommendations if r.tier == OPTION]
    idle = [r for r in findings.recommendations if r.tier == NOT_WORTH]
    most = max([r.gain.high for _, r in worth if r.gain] + [1.2])
    lead = "Best first. A gain is the speed-up of training, with its 95 % interval."
    body = "".join(f"<li>{card(n, r, most)}</li>" for n, r in worth)
    if body:
        body = f'<ol class="cards">{body}</ol>'
    else:
        lead = no_advice(findings)
    hot = [r for r in findings.recommendations if r.tier == NO_REMEDY]
    if hot:
        listed = "".join(
            f"<li>{m.prose(r.title)}. {m.prose(' '.join((*r.evidence, r.advice)), 1200)}</li>" for r in hot
        )
        body += f'<h3 class="more">{NO_REMEDY_HEADING}</h3><ul class="asides">{listed}</ul>'
    if options:
        listed = "".join(f"<li>{not_worth(r)}</li>" for r in options)
        body += f'<h3 class="more">Options that change training</h3><ul class="asides">{listed}</ul>'
    if idle:
        listed = "".join(f"<li>{not_worth(r)}</li>" for r in idle)
        body += f'<h3 class="more">Not worth optimising</h3><ul class="asides">{listed}</ul>'
    return m.section("advice", CONTENTS["advice"], lead, body)


def not_worth(r: Recommendation) -> str:
    """Regions to leave alone."""
    known = f" (predicted {gain(r.gain)})" if r.gain else ""
    return f"{m.prose(r.title)}{known}. {m.prose(r.advice)}"


def card(number: int, r: Recommendation, most: float) -> str:
    """One recommendation; `most` is the end of the scale for its interval."""
    if r.gain is None:
        predicted = '<strong class="unknown">Gain unknown until tested</strong>'
    else:
        value, interval = gain(r.gain).split(" ", 1)
        said = f'<span class="muted small">predicted {interval}</span>'
        predicted = f"<strong>{value}</strong>{said}{m.whisker(r.gain, most)}"
    chips = (
        f'<span class="chip {"high" if r.tier == "high" else ""}">{r.tier} impact</span>'
        f'<span class="chip">{r.effort} of work</span>'
        f'<span class="chip">{SAFETY[r.safety]}</span>'
    )
    evidence = "".join(f"<li>{m.prose(found, 600)}</li>" for found in r.evidence)
    where = f' <span class="muted">at <code>{m.text(r.site, 120)}</code></span>' if r.site else ""
    change = f"<dt>Change</dt><dd><code>{m.text(r.how_to_change, 600)}</code>{where}</dd>"
    test = f"<dt>Test it</dt><dd>{tested(r.prove_command)}</dd>" if r.prove_command else ""
    return (
        f'<article class="card" aria-labelledby="advice-{number}"><div><h3 id="advice-{number}">'
        f'<span class="rank">{number}</span><span>{m.prose(r.title)}</span></h3>'
        f'<p class="chips">{chips}</p></div><div class="gain">{predicted}</div>'
        f'<div class="body"><ul>{evidence}</ul><p>{m.prose(r.advice, 800)}</p></div>'
        f'<dl class="pairs test">{change}{test}</dl></article>'
    )


def tested(prove_command: str) -> str:
    """What to do by hand first, then the command to copy."""
    first, command = split_command(prove_command)
    return (f"{m.text(first)}:" if first else "") + m.copy(command)


def time(findings: Findings) -> str:
    """Own time by category, including unattributed time and our own cost, as a bar and a table."""
    loop, everything = findings.breakdown, findings.all_threads
    lead = f"Each moment counts once, for the innermost open region. {m.text(sentence(findings.basis))}"
    body = m.panel(stacked(loop), shares(loop, "Own time by category"), own_cost(loop))
    if len(findings.utilisation) > 1:
        inner = m.panel(stacked(everything), shares(everything, "Own time by category, all threads added up"))
        title = f"All threads together: {m.text(everything.label)}"
        body += f"<details><summary>{title}</summary>{inner}</details>"
    return m.section("time", CONTENTS["time"], lead, body)


def stacked(found: Breakdown) -> str:
    """All categories in one bar."""
    parts = [(c.category, c.share, colour_of(c.category)) for c in found.categories]
    said = ", ".join(f"{c.category} {percent(c.share)}" for c in found.categories)
    return m.stack(parts, f"Share of time: {said}")


def shares(found: Breakdown, caption: str) -> str:
    """The same as a table."""
    largest = max((c.share for c in found.categories), default=0.0) or 1.0
    rows = (
        m.row(
            m.category(c.category),
            m.cell(seconds(c.own_ns, found.wall_ns)),
            m.cell(percent(c.share)),
            f'<td class="wide">{m.track(c.share / largest, colour_of(c.category))}</td>',
            m.optional(count(c.calls) if c.calls else ""),
        )
        for c in found.categories
    )
    return m.table(caption, ("category", "#own time", "#share", "", "#calls*"), rows)


def own_cost(found: Breakdown) -> str:
    """What hotloop itself cost, if it is known."""
    said = "The cost of hotloop itself was not calibrated for this capture."
    if found.hotloop_ns is not None:
        cost = f"{duration(found.hotloop_ns)} of {duration(found.wall_ns)}"
        said = f"hotloop itself cost {cost}: its calls times the calibrated cost of a call."
    return f'<p class="muted small">{said} Unattributed time is in no region.</p>'


def lines(findings: Findings) -> str:
    """Sampled lines of the user's code during training, with the library calls they made."""
    found = findings.hot_lines
    per = f"per {words(found[0].per)}" if found[0].per else ""
    heads = ("line", "#share", f"#{per}" if per else "", "calls into*", "reached through*")
    rows = (
        m.row(
            m.name(line.site, f"<code>{m.text(line.text, 120)}</code>" if line.text else ""),
            m.cell(percent(line.share), line.share),
            m.cell(duration(line.ns_per_unit) if line.ns_per_unit is not None else "", line.ns_per_unit),
            f'<td class="optional">{m.text(line.called, 60) if line.called else ""}</td>',
            f'<td class="optional">{m.text(" > ".join(line.callers), 120) if line.callers else ""}</td>',
        )
        for line in found
    )
    lead = "Time of the driving thread during training while this was its innermost line of your code."
    body = m.panel(m.table("Lines by time", heads, rows))
    return m.section("lines", CONTENTS["lines"], lead, body)


def bottlenecks(findings: Findings) -> str:
    """The score with its terms, and the gain if the region were twice as fast."""
    found = findings.bottlenecks
    terms = list(dict.fromkeys(term for b in found for term in b.score_terms))
    most = max([b.gain_if_twice_as_fast.high for b in found if b.gain_if_twice_as_fast] + [1.1])
    heads = (
        "region",
        "category*",
        "#share",
        "#score*",
        *(f"#{t}*" for t in score_terms(findings)),
        "#gain if twice as fast",
    )
    rows = (bottleneck(b, terms, most) for b in found[:MOST_ROWS])
    lead = (
        f"The score combines {m.text(', '.join(score_terms(findings)))}, each scaled to 0..1."
        if terms
        else ""
    )
    table = m.table("Regions by the gain from making them twice as fast", heads, rows)
    return m.section("bottlenecks", CONTENTS["bottlenecks"], lead, m.panel(table))


def bottleneck(b: Bottleneck, terms: list[str], most: float) -> str:
    """One row of the bottlenecks' table."""
    known = b.gain_if_twice_as_fast
    drawn = f"{gain(known)}{m.whisker(known, most)}" if known else "no interval, so no gain"
    scaled = [f"{b.score_terms[t]:.2f}" if t in b.score_terms else "-" for t in terms]
    return m.row(
        m.name(b.name, m.text(b.site, 60) if b.site else ""),
        f'<td class="optional">{m.category(b.category)}</td>',
        m.cell(percent(b.share)),
        m.optional(f"{b.score:.2f}"),
        *(m.optional(term) for term in scaled),
        m.cell(drawn, None, "loose"),
    )


def tree(choices: list[tuple[str, str]], levels: int, left_out: int) -> str:
    """The container of the icicle chart, with a list for zooming by keyboard."""
    options = "".join(f'<option value="{key}">{m.text(label, 70)}</option>' for key, label in choices)
    tall = min(5 + 3.4 * levels, 34)
    note = f" The {count(left_out)} smallest regions are not drawn." if left_out else ""
    said = (
        "Icicle chart of the regions by time, callers on top; the table of all regions has the same figures"
    )
    body = m.panel(
        '<div class="tools"><label>Zoom to <select id="zoom"><option value="root">all threads</option>',
        f'{options}</select></label><button type="button" id="whole">Whole tree</button></div>',
        f'<div id="icicle" class="chart" role="img" style="height:{tall:.1f}rem" aria-label="{said}"></div>',
    )
    lead = (
        "Width is time, callers on top; callers with almost no own time are grey. "
        f"Click a region to zoom in, the bar on top to zoom out.{note}"
    )
    return m.section("tree", CONTENTS["tree"], lead, body)


def over_time(findings: Findings, categories: list[str]) -> str:
    """The container of the chart over time, and its figures as a table."""
    series, named = findings.time_series, categories[:6]
    columns: list[tuple[str, tuple[float, ...], Callable[[float | None], str]]] = []
    if series.get("env_steps_per_s"):
        columns.append(("env steps/s", series["env_steps_per_s"], count))
    columns += [(c, series[f"share:{c}"], percent) for c in named]
    rows = (
        m.row(duration(1e9 * at), *(m.cell(shown(known(values[i]))) for _, values, shown in columns))
        for i, at in enumerate(series["time_s"])
    )
    heads = ("time", *(f"#{name}" for name, _, _ in columns))
    said = "Throughput and shares of time over the run; the figures follow in a table"
    legend = "".join(f"<li>{m.category(c)}</li>" for c in categories)
    figures = m.table("Throughput and the largest shares over time", heads, rows)
    body = m.panel(
        f'<div id="time-series" class="chart" role="img" aria-label="{said}"></div>',
        f'<ul class="legend">{legend}</ul><details><summary>The figures</summary>{figures}</details>',
    )
    lead = "Throughput, and where the time went, window by window."
    return m.section("over-time", CONTENTS["over-time"], lead, body)


def known(value: float) -> float | None:
    """None for a value that was not measured in its window."""
    return value if math.isfinite(value) else None


def reproduce(findings: Findings, capture: str) -> str:
    """The commands that made this page, and the one to run next."""
    name = shlex.quote(capture) if capture else "CAPTURE"
    pairs = [("The run", shlex.join(findings.command))] if findings.command else []
    pairs.append(("This page", f"hotloop report {name} -o report.html"))
    pairs.append(("All figures", f"hotloop report {name} -o report.json"))
    tested_first = [r for r in findings.recommendations if r.tier in ADVICE_TIERS and r.prove_command][:1]
    undecided = [r for r in findings.recommendations if r.tier == UNDECIDED and r.prove_command]
    pairs += [("Next", r.prove_command) for r in (*tested_first, *undecided)]
    listed = "".join(f"<dt>{label}</dt><dd>{tested(command)}</dd>" for label, command in pairs)
    return m.section("reproduce", CONTENTS["reproduce"], "", m.panel(f'<dl class="pairs">{listed}</dl>'))
