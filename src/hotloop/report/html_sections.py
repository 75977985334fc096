"""The first half of the page: headline, advice, where the time goes, charts; and the commands at its end."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable

from hotloop._util.units import count, duration, percent
from hotloop.analysis.findings import (
    ADVICE_TIERS,
    AnnotatedFile,
    Bottleneck,
    Breakdown,
    Findings,
    Recommendation,
)
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
MOST_LEGEND = 7
LEAST_GAIN = 1.01  # regions that gain less, even twice as fast, are folded away
ALL_IN_ONE_LINE = 0.95  # share of a line, such as `model.learn()`, that says nothing
CONTENTS = {
    "advice": "What to do",
    "system": "The whole system",
    "time": "Where the time goes",
    "over-time": "Over time",
    "lines": "Lines of your code",
    "bottlenecks": "Bottlenecks",
    "tree": "Region tree",
    "growth": "Growth",
    "threads": "Threads",
    "roofline": "Roofline",
    "all-regions": "All regions",
    "machine": "Machine",
    "reproduce": "Reproduce",
}
SIDE_BY_SIDE = (("time", "over-time"), ("machine", "reproduce"))  # on a wide screen
SHORT = {  # in the navigation
    "advice": "Advice",
    "system": "System",
    "time": "Time",
    "lines": "Lines",
    "tree": "Tree",
    "all-regions": "Regions",
}
PHASES = {
    "start-up": colour_of("framework"),
    "warm-up": colour_of("compilation"),
    "training": colour_of("policy"),
    "last round": colour_of("backward"),
    "shutdown": colour_of("unattributed"),
}


def navigation(present: list[str]) -> str:
    """Links to the sections, for the bar that stays on top."""
    links = "".join(f'<li><a href="#{key}">{SHORT.get(key, CONTENTS[key])}</a></li>' for key in present)
    return f"<ul>{links}</ul>"


def arranged(parts: dict[str, str]) -> str:
    """The sections in order, pairs of short ones side by side."""
    left = dict(parts)
    for first, second in SIDE_BY_SIDE:
        if left.get(first) and left.get(second):
            left[first] = f'<div class="pair">{left[first]}{left.pop(second)}</div>'
    return "\n".join(part for part in left.values() if part)


def hero(findings: Findings) -> str:
    """The answer, the bar of where the time goes, and the run's key figures."""
    figures = [("Wall time", duration(findings.wall_ns), phases_bar(findings))]
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
    still = standstill_text(findings)
    return (
        f'<div class="hero"><h1>{m.prose(findings.headline, 1000)}</h1>{stacked(findings.breakdown)}'
        f'{legend(findings.breakdown)}<dl class="figures">{listed}</dl>'
        + (f'<p class="muted small">{still}</p>' if still else "")
        + "</div>"
    )


def phases_bar(findings: Findings) -> str:
    """How long start-up, warm-up, training and shutdown took, as a bar and in words."""
    said, found = phases_text(findings), findings.phases
    if not said or found is None:
        return ""
    lengths = (found.start_up_ns, found.warm_up_ns, found.training_ns, found.last_round_ns, found.shutdown_ns)
    whole = sum(lengths) or 1
    parts = [(name, ns / whole, PHASES[name]) for name, ns in zip(PHASES, lengths, strict=True)]
    times = {name: duration(ns) for name, ns in zip(PHASES, lengths, strict=True)}
    return f"{m.stack(parts, said, slim=True, more=times)}<small>{said}</small>"


def legend(found: Breakdown) -> str:
    """The largest categories with their shares; the rest in one entry."""
    largest = [c for c in found.categories if c.share >= 0.005][:MOST_LEGEND]
    items = [f"<li>{m.category(c.category)} {percent(c.share)}</li>" for c in largest]
    left = sum(c.share for c in found.categories) - sum(c.share for c in largest)
    if left > 0.0005:
        items.append(f"<li>the rest {percent(left)}</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def advice(findings: Findings) -> str:
    """One card for each recommendation; below them, options, and what is not worth optimising."""
    worth = [(n, r) for n, r in enumerate(findings.recommendations, 1) if r.tier in ADVICE_TIERS]
    most = max([r.gain.high for _, r in worth if r.gain] + [1.2])
    lead = "Best first. A gain is the speed-up of training, with its 95 % interval."
    body = "".join(f"<li>{card(n, r, most)}</li>" for n, r in worth)
    if body:
        body = f'<ol class="cards">{body}</ol>'
    else:
        lead = no_advice(findings)
    if findings.gain_of_all is not None:
        body += (
            f"<p>All advice that keeps results, together: <strong>{gain(findings.gain_of_all)}</strong> "
            "predicted.</p>"
        )
    for tier, heading in (
        (NO_REMEDY, NO_REMEDY_HEADING),
        (OPTION, "Options that change training"),
        (NOT_WORTH, "Not worth optimising"),
    ):
        found = [r for r in findings.recommendations if r.tier == tier]
        if found:
            listed = "".join(f"<li>{aside(r)}</li>" for r in found)
            many = f" ({len(found)})" if len(found) > 1 else ""
            body += f'<details><summary>{heading}{many}</summary><ul class="asides">{listed}</ul></details>'
    return m.section("advice", CONTENTS["advice"], lead, body)


def aside(r: Recommendation) -> str:
    """Advice in a paragraph: what needs no card."""
    if r.tier == NO_REMEDY:
        return f"{m.prose(r.title)}. {m.prose(' '.join((*r.evidence, r.advice)), 1200)}"
    return not_worth(r)


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
    place = "the time goes to" if r.changed_elsewhere else "at"
    where = f' <span class="muted">{place} <code>{m.place(r.site)}</code></span>' if r.site else ""
    change = f"<dt>Change</dt><dd><code>{m.text(r.how_to_change, 600)}</code>{where}</dd>"
    test = f"<dt>Prove it</dt><dd>{tested(r.prove_command)}</dd>" if r.prove_command else ""
    return (
        f'<article class="card" aria-labelledby="advice-{number}"><div><h3 id="advice-{number}">'
        f'<span class="rank">{number}</span><span>{m.prose(r.title)}</span></h3>'
        f'<p class="chips">{chips}</p></div><div class="gain">{predicted}</div>'
        f'<dl class="pairs test">{change}{test}</dl>'
        f'<details class="body"{" open" if number == 1 else ""}><summary>Why</summary><ul>{evidence}</ul>'
        f"<p>{m.prose(r.advice, 800)}</p></details></article>"
    )


def tested(prove_command: str) -> str:
    """What to do by hand first, then the command to copy."""
    first, command = split_command(prove_command)
    return (f"{m.text(first)}:" if first else "") + m.copy(command)


def time(findings: Findings) -> str:
    """Own time by category, including unattributed time and our own cost, as a bar and a table."""
    loop, everything = findings.breakdown, findings.all_threads
    lead = f"Each moment counts once, for the innermost open region. {m.text(sentence(findings.basis))}"
    body = m.panel(shares(loop, "Own time by category"), own_cost(loop))
    if len(findings.utilisation) > 1:
        inner = m.panel(stacked(everything), shares(everything, "Own time by category, all threads added up"))
        title = f"All threads together: {m.text(everything.label)}"
        body += f"<details><summary>{title}</summary>{inner}</details>"
    return m.section("time", CONTENTS["time"], lead, body)


def stacked(found: Breakdown) -> str:
    """All categories in one bar."""
    parts = [(c.category, c.share, colour_of(c.category)) for c in found.categories]
    said = ", ".join(f"{c.category} {percent(c.share)}" for c in found.categories)
    times = {c.category: duration(c.own_ns) for c in found.categories}
    return m.stack(parts, f"Share of time: {said}", more=times)


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
    return m.table(caption, ("category", "#own time", "#share", "", "#calls*"), m.folded(rows))


def own_cost(found: Breakdown) -> str:
    """What hotloop itself cost, if it is known."""
    said = "The cost of hotloop itself was not calibrated for this capture."
    if found.hotloop_ns is not None:
        cost = f"{duration(found.hotloop_ns)} of {duration(found.wall_ns)}"
        said = f"hotloop itself cost {cost}: its calls times the calibrated cost of a call."
    return f'<p class="muted small">{said} Unattributed time is in no region.</p>'


def lines(findings: Findings) -> str:
    """The user's files with the time of each line; a table of lines if no source was kept."""
    lead = (
        "Time of the driving thread during training while this was its innermost line of your code, with the "
        "library calls it made."
    )
    called = {line.site: line.called for line in findings.hot_lines}
    body = "".join(annotated(one, called) for one in findings.source)
    return m.section("lines", CONTENTS["lines"], lead, m.panel(body or line_table(findings)))


def tells_lines(findings: Findings) -> bool:
    """Whether the lines say more than that everything happens in one call."""
    return bool(findings.hot_lines) and findings.hot_lines[0].share <= ALL_IN_ONE_LINE


def annotated(one: AnnotatedFile, called: dict[str, str]) -> str:
    """One file: the lines that took most and their neighbours; the others after "Show all"."""
    ranked = sorted(one.lines, key=lambda line: -line.share)[: m.TOP_ROWS]
    near = {line.number + step for line in ranked if line.share > 0 for step in (-1, 0, 1)}
    largest = ranked[0].share if ranked and ranked[0].share else 1.0
    indent = min(
        (len(t) - len(t.lstrip()) for t in (line.text for line in one.lines) if t.strip()), default=0
    )
    rows, before, before_shown = [], None, None
    for line in one.lines:
        jumps: list[str] = ["jump-all"] if before is not None and line.number != before + 1 else []
        if line.number in near:
            jumps += ["jump"] if before_shown is not None and line.number != before_shown + 1 else []
            before_shown = line.number
        before = line.number
        inside = called.get(f"{one.file}:{line.number}", "")
        told = f"{one.file}:{line.number}\n{percent(line.share)} of training" if line.share > 0 else ""
        if told and line.ns_per_unit is not None:
            told += f", {duration(line.ns_per_unit)} per {words(one.per)}"
        if told and inside:
            told += f"\nmostly in {inside}"
        tip = f' data-tip="{m.tip(told)}"' if told else ""
        known = line.share >= 0.0005
        bar = m.track(line.share / largest, "var(--accent)") if known else ""
        each = duration(line.ns_per_unit) if known and line.ns_per_unit is not None else ""
        made = (
            f'<tr><td class="number {" ".join(jumps)}">{line.number}</td>'
            f'<td class="num">{percent(line.share) if known else ""}</td><td class="heat optional">{bar}</td>'
            f'<th scope="row"{tip}><code>{code(line.text[indent:])}</code></th>'
            f'<td class="num optional">{each}</td></tr>'
        )
        rows.append(made if line.number in near else m.rest(made))
    per = f"#per {words(one.per)}*" if one.per else "#time*"
    note = " The file was changed during the run, so lines may not fit." if one.changed else ""
    caption = f"{one.file}: {percent(one.share)} of training.{note}"
    return f'<div class="source">{m.table(caption, ("#line", "#share", "*", "source", per), rows)}</div>'


def code(line: str) -> str:
    """A line of source, its indentation kept."""
    rest = line.lstrip(" ")
    return "&nbsp;" * min(len(line) - len(rest), 40) + (m.text(rest, 110) if rest.strip() else "")


def line_table(findings: Findings) -> str:
    """Sampled lines, most time first, with the library calls they made."""
    found = findings.hot_lines
    per = f"per {words(found[0].per)}" if found[0].per else ""
    heads = ("line", "#share", f"#{per}" if per else "", "calls into*")
    rows = (
        m.row(
            m.name(line.site, f"<code>{m.text(line.text, 120)}</code>" if line.text else ""),
            m.cell(percent(line.share), line.share),
            m.cell(duration(line.ns_per_unit) if line.ns_per_unit is not None else "", line.ns_per_unit),
            f'<td class="optional">{m.text(line.called, 60) if line.called else ""}</td>',
        )
        for line in found
    )
    return m.table("Lines by time", heads, m.folded(rows))


def bottlenecks(findings: Findings) -> str:
    """The gain if a region were twice as fast, and its score; those that gain nothing are folded away."""
    found = findings.bottlenecks
    gains = [b.gain_if_twice_as_fast for b in found]
    most = max([g.high for g in gains if g] + [1.1])
    heads = ("region", "category*", "#share", "#score*", "*", "#gain if twice as fast")
    worth = sum(g is not None and g.value >= LEAST_GAIN for g in gains)
    made = (bottleneck(b, most) for b in found[:MOST_ROWS])
    rows = m.folded(made, min(max(worth, 1), m.TOP_ROWS))
    terms = score_terms(findings)
    lead = f"The score combines {m.text(', '.join(terms))}, each scaled to 0..1." if terms else ""
    table = m.table("Regions by the gain from making them twice as fast", heads, rows)
    return m.section("bottlenecks", CONTENTS["bottlenecks"], lead, m.panel(table))


def bottleneck(b: Bottleneck, most: float) -> str:
    """One row of the bottlenecks' table; the pointer shows the terms of the score."""
    known = b.gain_if_twice_as_fast
    scaled = "\n".join(f"{words(term)} {value:.2f}" for term, value in b.score_terms.items())
    score = f'<span data-tip="{m.tip(scaled)}">{b.score:.2f}</span>' if scaled else f"{b.score:.2f}"
    return m.row(
        m.name(b.name, m.place(b.site, 70) if b.site else ""),
        f'<td class="optional">{m.category(b.category)}</td>',
        m.cell(percent(b.share)),
        m.optional(score),
        f'<td class="optional drawn">{m.whisker(known, most) if known else ""}</td>',
        m.cell(gain(known) if known else "no interval, so no gain", None, "loose"),
    )


def tree(drawn: str, choices: list[tuple[str, str]], left_out: int) -> str:
    """The icicle chart, with a list for zooming by keyboard."""
    options = "".join(f'<option value="{key}">{m.text(label, 70)}</option>' for key, label in choices)
    note = f" The {count(left_out)} smallest regions are not drawn." if left_out else ""
    body = m.panel(
        '<div class="tools"><label>Zoom to <select id="zoom"><option value="root">all threads</option>',
        f'{options}</select></label><button type="button" id="whole">Whole tree</button></div>',
        drawn,
    )
    lead = (
        "Width is time, callers on top; callers with almost no own time are grey. "
        f"Click a region to zoom in, one above it to zoom out.{note}"
    )
    return m.section("tree", CONTENTS["tree"], lead, body)


def over_time(findings: Findings, drawn: str, categories: list[str]) -> str:
    """The chart over time, and its figures as a table."""
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
    legend = "".join(f"<li>{m.category(c)}</li>" for c in categories)
    if findings.phases is not None and not findings.phases.whole_run:
        legend += '<li><span class="swatch pale"></span>pale: before and after training</li>'
    figures = m.table("Throughput and the largest shares over time", heads, rows)
    body = m.panel(
        f'{drawn}<ul class="legend">{legend}</ul>',
        f"<details><summary>The figures</summary>{figures}</details>",
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
