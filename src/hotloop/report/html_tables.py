"""The second half of the page: growth, threads, roofline, all regions, the machine."""

from __future__ import annotations

from hotloop._util.units import count, duration, percent, size
from hotloop.analysis.findings import Findings, Growth, RegionFinding, RegionGrowth, ThreadUse
from hotloop.report import markup as m
from hotloop.report.html_sections import CONTENTS, MOST_ROWS
from hotloop.report.palette import colour_of
from hotloop.report.safe_text import words
from hotloop.report.system_html import state_legend
from hotloop.report.system_html import threads as system_threads
from hotloop.report.text import (
    forecast_text,
    machine_parts,
    nature,
    parts_of,
    ratio_text,
    sentence,
    slope,
    thread_sentences,
    without_a_core,
)

USES = {"busy": colour_of("policy"), "waiting": colour_of("wait"), "idle": colour_of("unattributed")}


def growth(findings: Findings) -> str:
    """Why the run got slower: learning first, then defects; and the forecast."""
    body = grown(findings.growth) if findings.growth is not None else ""
    if findings.forecast is not None:
        body += m.panel(f"<p>{forecast_text(findings.forecast)}</p>")
    lead = "An early stretch of the run compared with a late one."
    return m.section("growth", CONTENTS["growth"], lead, body)


def grown(found: Growth) -> str:
    """The summary, the factors of the excess, and the regions."""
    factors = (
        m.row(
            words(f.factor),
            m.cell(f"{f.ratio:.2f}x"),
            f"<td>{nature(f)}</td>",
        )
        for f in found.factors
    )
    caption = (
        f"Time per {words(found.per)}: {duration(found.early_ns)} early, {duration(found.late_ns)} late, "
        f"{found.excess:.2f}x, the product of"
    )
    tables = [m.table(caption, ("factor", "#ratio", "what it is"), factors)]
    if found.regions:
        heads = ("region", "#early*", "#late", "#exponent", "trend")
        made = (region_growth(r) for r in found.regions[:MOST_ROWS])
        rows = m.folded(made, max(sum(r.flagged for r in found.regions), m.TOP_ROWS))
        caption = "Cost of one call, early and late; cost ~ work ^ exponent"
        tables += ['<h3 class="more">Region by region</h3>', m.table(caption, heads, rows)]
    figures = f"<details><summary>The figures</summary>{''.join(tables)}</details>"
    return m.panel(f"<p>{m.prose(found.summary, 1000)}</p>", figures)


def region_growth(r: RegionGrowth) -> str:
    """One row of the growth table."""
    return m.row(
        m.name(r.name),
        m.optional(duration(r.early_ns)),
        m.cell(duration(r.late_ns)),
        m.cell(slope(r.exponent), None, "loose"),
        f"<td>{'<strong>growing</strong>' if r.flagged else 'steady'}</td>",
    )


def threads(findings: Findings) -> str:
    """What each thread did, by role: running, ready, waiting, blocked; by region if that is all there is."""
    said = "".join(f"<p>{m.text(sentence, 600)}</p>" for sentence in thread_sentences(findings))
    if findings.system is not None:
        lead = (
            "Running: on a core. Ready: it had none. Waiting: for a partner that is known. Blocked: for "
            "another reason, such as sleep, a lock or input."
        )
        body = m.panel(said, system_threads(findings.system), state_legend())
        return m.section("threads", CONTENTS["threads"], lead, body)
    rows, before = [], None
    for use in findings.utilisation[:MOST_ROWS]:
        if use.process != before:
            process = m.text(use.process, 90)
            rows.append(f'<tr class="group"><th scope="rowgroup" colspan="6">{process}</th></tr>')
        before = use.process
        rows.append(thread(use))
    left = len(findings.utilisation) - MOST_ROWS
    note = f" Shows the first {MOST_ROWS}; {count(left)} more are in the JSON report." if left > 0 else ""
    legend = "".join(
        f'<li><span class="swatch" style="background:{colour}"></span>{use}</li>'
        for use, colour in USES.items()
    )
    heads = ("thread", "", "#busy", "#waiting", "#idle*", "#wall*")
    table = m.table("Busy, waiting and idle by process", heads, m.folded(rows))
    lead = f"Waiting: for queues, locks or the device. Idle: off the CPU and outside every region.{note}"
    body = m.panel(said, table, f'<ul class="legend">{legend}</ul>')
    return m.section("threads", CONTENTS["threads"], lead, body)


def thread(use: ThreadUse) -> str:
    """One row of the threads' table."""
    known = dict(zip(USES, parts_of(use), strict=True))
    parts = [(name, share or 0.0, USES[name]) for name, share in known.items()]
    parts.append(("", max(1 - sum(share for _, share, _ in parts), 0.0), "#ffffff00"))
    said = ", ".join(f"{name} {percent(share)}" for name, share in known.items())
    stuck = ""
    if use.stuck_in is not None:
        stuck = f"in {m.text(use.stuck_in, 60)} for {duration(use.stuck_for_ns)}"
    return m.row(
        m.name(use.thread, stuck, 40),
        f'<td class="wide">{m.stack(parts, said, slim=True)}</td>',
        m.cell(percent(known["busy"])),
        m.cell(percent(known["waiting"])),
        m.optional(percent(known["idle"])),
        m.optional(duration(use.wall_ns)),
    )


def roofline(findings: Findings) -> str:
    """How far each region is from the best this machine could do."""
    rows = (
        m.row(
            m.name(r.name),
            f"<td>{m.text(words(r.limit), 60)}</td>",
            m.optional(duration(r.measured_ns)),
            m.optional(duration(r.limit_ns)),
            m.cell(f"<strong>{ratio_text(r.ratio)}</strong>"),
        )
        for r in findings.roofline[:MOST_ROWS]
    )
    heads = ("region", "limited by", "#per call*", "#limit*", "#ratio")
    table = m.table("Time per call against this machine's limit", heads, m.folded(rows))
    lead = "Time per call against the best this machine can do (measured). Close to 1x: little left to gain."
    closed = f"{len(findings.roofline)} regions against the best this machine can do"
    return m.section("roofline", CONTENTS["roofline"], lead, m.panel(table), closed)


def all_regions(findings: Findings) -> str:
    """The table of all regions, with sorting and a filter."""
    shown = findings.regions[:MOST_ROWS]
    left = len(findings.regions) - len(shown)
    names = sorted({r.category for r in shown})
    options = "".join(f'<option value="{m.text(c, 60)}">{m.text(c, 40)}</option>' for c in names)
    figures = ("#calls*", "#total*", "#own", "#share", "#mean*", "#p50*", "#p99*", "#memory*")
    rows = m.folded(region(r) for r in shown)
    body = m.panel(
        '<div class="tools" role="search"><label>Filter <input id="filter" type="search" ',
        'placeholder="name, path or file" autocomplete="off"></label>',
        f'<label>Category <select id="only"><option value="">all</option>{options}</select></label>',
        '<span id="shown" class="muted small" role="status"></span></div>',
        m.table("All regions, most own time first", ("region", "category*", *figures), rows, "regions"),
    )
    note = f" The {count(left)} smallest regions are only in the JSON report." if left > 0 else ""
    lead = f"Own time: while innermost. Total: with everything it calls. Click a heading to sort.{note}"
    closed = f"{count(len(findings.regions))} regions, to sort and filter"
    return m.section("all-regions", CONTENTS["all-regions"], lead, body, closed)


def region(r: RegionFinding) -> str:
    """One row of the table of all regions."""
    above = " › ".join(part or '""' for part in r.path[:-1])
    notes = [m.text(above, 100)] if above else []
    notes += [m.place(r.site, 80)] if r.site else []
    notes += ["closed out of order"] if r.out_of_order else []
    made = m.row(
        m.name(r.name, " · ".join(notes), 120),
        f'<td class="optional">{m.category(r.category)}</td>',
        m.optional(count(r.calls), r.calls),
        m.optional(duration(r.total_ns), r.total_ns),
        m.cell(duration(r.own_ns), r.own_ns),
        m.cell(percent(r.share), r.share),
        *(m.optional(duration(ns), ns) for ns in (r.mean_ns, r.p50_ns, r.p99_ns)),
        m.optional(size(r.rss_growth_bytes), r.rss_growth_bytes),
    )
    return made.replace("<tr>", f'<tr data-category="{m.text(r.category, 60)}">', 1)


def machine(findings: Findings) -> str:
    """The machine, what could not be measured, and warnings."""
    chips = "".join(f'<span class="chip">{m.text(part, 120)}</span>' for part in machine_parts(findings))
    parts = [f'<p class="chips">{chips}</p>'] if chips else []
    said = without_a_core(findings)
    parts += [f"<p>{m.text(said, 200)}</p>"] if said else []
    unknown = [sentence(reason) for reason in findings.not_measured]
    lists = (
        ("Boosted", findings.boosted),
        ("What could not be measured", unknown),
        ("Warnings", findings.warnings),
    )
    for title, sentences in lists:
        if sentences:
            listed = "".join(f"<li>{m.text(s, 600)}</li>" for s in sentences)
            parts.append(f'<h3 class="more">{title}</h3><ul class="notes">{listed}</ul>')
    return m.section("machine", CONTENTS["machine"], "", m.panel(*parts) if parts else "")
