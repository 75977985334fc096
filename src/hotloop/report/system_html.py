"""The whole system in the HTML page: boxes for roles, arrows for links, one round on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotloop._util.units import count, duration, percent, size
from hotloop.analysis.findings import short_site
from hotloop.analysis.system import Cycle, Member, Role, States, System, leading
from hotloop.report import markup as m
from hotloop.report.palette import STATE_COLOURS, colour_of
from hotloop.report.system_text import (
    FOLDED,
    LONG_NAMES,
    cores,
    ends,
    figures,
    folded_sentences,
    own_code,
    who_waits,
)

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 270, 118, 190, 40, 12
MOST_BOXES = 8
MOST_RANKS = 4  # with their own box
MOST_MEMBERS = 64
STATES = ("running", "ready", "waiting", "gil", "blocked", "unknown")


def whole_system(system: System, title: str) -> str:
    """The section: sentences, the picture, one round, and a table of all threads by role."""
    said = [
        text
        for text in (system.ranks_elsewhere, system.chain_sentence, system.limit.why, *system.sentences)
        if text
    ]
    body = m.panel(
        "".join(f"<p>{m.prose(text, 700)}</p>" for text in said),
        picture(system),
        state_legend(),
        link_list(system),
    )
    if system.folded:
        body += m.panel(folded_roles(system))
    if system.cycle is not None:
        body += m.panel(round_of(system, system.cycle))
    lead = "Who works, who waits, and for whom, during training. " + m.text(cores(system))
    return m.section("system", title, lead, body)


def state_legend() -> str:
    """The colours of states."""
    items = "".join(
        f'<li><span class="swatch" style="background:{STATE_COLOURS[state]}"></span>{m.text(name)}</li>'
        for state, name in LONG_NAMES.items()
    )
    return f'<ul class="legend">{items}</ul>'


# -- boxes and arrows ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Box:
    """A role, or one rank."""

    title: str
    states: States
    limiting: bool
    work: str
    role: int
    member: int | None = None  # None: the whole role


def _boxes(system: System) -> list[_Box]:
    """Those that drive training first; a few ranks get a box each."""
    found = []
    shown = system.shown_roles[:MOST_BOXES]
    first = {system.members[i].role for i in leading(system.members)}
    for i in sorted(shown, key=lambda i: i not in first):
        role = system.roles[i]
        if role.kind == "rank" and 1 < len(role.members) <= MOST_RANKS:
            least = min(role.members, key=lambda k: system.members[k].states.waiting)
            for k in role.members:
                one = system.members[k]
                found.append(_Box(one.name, one.states, role.limiting and k == least, work_of(one), i, k))
            continue
        many = f" x{len(role.members)}" if len(role.members) > 1 else ""
        found.append(_Box(f"{role.name}{many}", role.states, role.limiting, member_work(system, role), i))
    return found


def picture(system: System) -> str:
    """Roles as boxes, those that drive training at the left, and arrows between them; an SVG."""
    boxes = _boxes(system)
    rows = max(len(boxes) - 1, 1)
    height = 2 * MARGIN + rows * BOX_HEIGHT + (rows - 1) * GAP_Y
    width = 2 * MARGIN + BOX_WIDTH + ((GAP_X + BOX_WIDTH) if len(boxes) > 1 else 0)
    places = {0: (float(MARGIN), (height - BOX_HEIGHT) / 2)}
    for row in range(len(boxes) - 1):
        places[row + 1] = (float(MARGIN + BOX_WIDTH + GAP_X), float(MARGIN + row * (BOX_HEIGHT + GAP_Y)))
    drawn = [arrow(places[one], places[other], label) for one, other, label in _arrows(system, boxes)]
    drawn += [box(one, *places[number]) for number, one in enumerate(boxes)]
    label = "Roles and links: " + "; ".join(
        f"{ends(system, link)}, {figures(link)}" for link in system.shown_links[:MOST_BOXES]
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Picture of the system">'
        f'<svg class="system" viewBox="0 0 {width} {height}" '
        f'style="max-width:{width}px;min-width:{0.7 * width:.0f}px" '
        f'role="img" aria-label="{m.text(label, 600)}">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>'
        f"{''.join(drawn)}</svg></div>"
    )


def _arrows(system: System, boxes: Sequence[_Box]) -> list[tuple[int, int, str]]:
    """From which box to which one, and the rate."""
    of_role = {one.role: number for number, one in enumerate(boxes) if one.member is None}
    of_member = {one.member: number for number, one in enumerate(boxes) if one.member is not None}
    found = []
    for link in system.shown_links:
        if link.source in of_role and link.target in of_role and link.source != link.target:
            rate = f"{count(link.messages_per_s)}/s" if link.messages_per_s is not None else ""
            moved = f"{size(link.bytes_per_s)}/s" if link.bytes_per_s is not None else ""
            label = " · ".join(part for part in (rate, moved) if part)
            found.append((of_role[link.source], of_role[link.target], label))
    for edge in system.edges:
        if edge.source in of_member and edge.target in of_member:
            found.append((of_member[edge.source], of_member[edge.target], edge.name))
    return found


def box(one: _Box, x: float, y: float) -> str:
    """One role: its name and number, its states as a bar, and what it mostly does."""
    kind = "box limit" if one.limiting else "box"
    mark = f'<text class="mark" x="{BOX_WIDTH - 12}" y="24" text-anchor="end">limit</text>'
    s = one.states
    first = f"running {percent(s.running)}, ready without core {percent(s.ready)}"
    second = f"waiting {percent(s.waiting)}, blocked {percent(s.blocked)}"
    second += f", GIL {percent(s.gil)}" if s.gil >= 0.01 else ""
    return (
        f'<g transform="translate({x:.0f} {y:.0f})"><rect class="{kind}" width="{BOX_WIDTH}" '
        f'height="{BOX_HEIGHT}" rx="10"/>'
        f'<text class="role" x="12" y="24">{m.text(one.title, 30)}</text>'
        f"{mark if one.limiting else ''}{bar(s, 12, 36, BOX_WIDTH - 24, 14)}"
        f'<text class="small" x="12" y="70">{m.text(first, 60)}</text>'
        f'<text class="small" x="12" y="87">{m.text(second, 60)}</text>'
        f'<text class="small" x="12" y="104">{m.text(one.work, 44)}</text></g>'
    )


def member_work(system: System, role: Role) -> str:
    """Where the busiest member of a role works."""
    return work_of(min((system.members[i] for i in role.members), key=lambda one: one.states.waiting))


def work_of(member: Member) -> str:
    """Where a member works, or is blocked if that takes longer."""
    blocked = member.blocked[0] if member.blocked else None
    if blocked is not None and blocked.share > member.states.running + member.states.ready:
        return f"{blocked.reason or 'blocked'}: {blocked.function or blocked.site.rpartition('/')[2]}"
    return member.busiest.replace("`", "")


def bar(states: States, x: float, y: float, width: float, height: float) -> str:
    """States side by side."""
    made, at = [], x
    for state in STATES:
        share = getattr(states, state)
        if share > 0:
            said = f"<title>{LONG_NAMES.get(state, state)} {percent(share)}</title>"
            made.append(
                f'<rect x="{at:.1f}" y="{y}" width="{share * width:.1f}" height="{height}" '
                f'fill="{STATE_COLOURS[state]}">{said}</rect>'
            )
        at += share * width
    return "".join(made)


def arrow(source: tuple[float, float], target: tuple[float, float], label: str) -> str:
    """An arrow between two boxes, with its label above the line."""
    (x1, y1), (x2, y2) = source, target
    if x1 == x2:  # one above the other
        down = y2 > y1
        x = x1 + BOX_WIDTH * (0.35 if down else 0.65)
        start, end = (y1 + BOX_HEIGHT, y2) if down else (y1, y2 + BOX_HEIGHT)
        return f'<path class="link" marker-end="url(#tip)" d="M{x:.0f} {start:.0f}V{end:.0f}"/>'
    forward = x2 > x1
    low = 0.34 if forward else 0.66
    start_x, end_x = (x1 + BOX_WIDTH, x2) if forward else (x1, x2 + BOX_WIDTH)
    outer = y2 if forward else y1  # of the box at the right, which has its own row
    start_y = (outer if not forward else y1 + (outer - y1) * 0.25) + BOX_HEIGHT * low
    end_y = (outer if forward else y2 + (outer - y2) * 0.25) + BOX_HEIGHT * low
    middle, label_y = (start_x + end_x) / 2, (start_y + end_y) / 2 - 6
    return (
        f'<path class="link" marker-end="url(#tip)" '
        f'd="M{start_x:.0f} {start_y:.0f}L{end_x:.0f} {end_y:.0f}"/>'
        f'<text class="small" x="{middle:.0f}" y="{label_y:.0f}" text-anchor="middle">'
        f"{m.text(label, 40)}</text>"
    )


def link_list(system: System) -> str:
    """The links in words."""
    items = []
    for link in system.shown_links:
        waits = who_waits(system, link)
        said = f"{ends(system, link)}: {figures(link)}" + (f"; {waits}" if waits else "")
        items.append(f"<li>{m.text(said)}</li>")
    return f'<ul class="asides">{"".join(items)}</ul>' if items else ""


# -- one round -------------------------------------------------------------------------------------


def round_of(system: System, found: Cycle) -> str:
    """A lane for each member, on one clock."""
    lanes = []
    for lane in found.lanes:
        member = system.members[lane.member]
        pieces = []
        for span in lane.spans:
            share = (span.end_ns - span.begin_ns) / found.length_ns
            name = span.region or own_code(member, span.state)
            colour = {"waits": "transparent", "blocked": STATE_COLOURS["blocked"]}.get(
                span.state, colour_of(span.category)
            )
            said = {"waits": "waits", "blocked": f"blocked: {name}"}.get(span.state, name)
            inside = m.text(said, 24) if share * 100 > 1.2 * len(said) else ""
            took = duration(span.end_ns - span.begin_ns)
            ink = "inherit" if span.state == "waits" else m.ink_on(colour)
            pieces.append(
                f'<span class="{span.state}" style="left:{100 * span.begin_ns / found.length_ns:.3f}%;'
                f'width:{100 * share:.3f}%;background-color:{colour};color:{ink}" '
                f'data-tip="{m.text(f"{name}: {span.state}, {took}", 90)}">{inside}</span>'
            )
        lanes.append(
            f'<div class="lane"><span class="who">{m.text(member.name, 24)}</span>'
            f'<div class="line">{"".join(pieces)}</div></div>'
        )
    head = f"One round of <code>{m.text(found.region, 60)}</code>, {duration(found.length_ns)}"
    return f'<h3>{head}</h3><div class="lanes">{"".join(lanes)}</div>'


def folded_roles(system: System) -> str:
    """A row for each role of the nodes that sent one summary for all their processes."""
    rows = []
    for role in system.folded:
        rest = max(1 - role.running - role.waiting, 0.0)
        shares = (("running", role.running), ("waiting", role.waiting), ("unknown", rest))
        parts = [(state, share, STATE_COLOURS[state]) for state, share in shares]
        said = ", ".join(f"{state} {percent(share)}" for state, share in shares[:2])
        rows.append(
            m.row(
                m.name(role.name),
                f'<td class="wide">{m.stack(parts, said, slim=True)}</td>',
                m.cell(count(role.members), role.members),
                m.optional(count(role.nodes), role.nodes),
                m.cell(percent(role.running), role.running),
                m.optional(percent(role.least_running), role.least_running),
                m.optional(percent(role.most_running), role.most_running),
                m.cell(percent(role.waiting), role.waiting),
            )
        )
    heads = ("role", "", "#processes", "#nodes*", "#running", "#least*", "#most*", "#waiting")
    told = "".join(f"<p>{m.prose(text, 700)}</p>" for text in (FOLDED, *folded_sentences(system)))
    return f"<h3>Processes in summaries</h3>{told}{m.table('Processes in summaries', heads, m.folded(rows))}"


# -- threads ---------------------------------------------------------------------------------------


def threads(system: System) -> str:
    """A row for each thread with its states, by role."""
    rows, before = [], None
    for member in sorted(system.members, key=lambda one: one.role)[:MOST_MEMBERS]:
        if member.role != before:
            name = m.text(system.roles[member.role].name, 60)
            rows.append(f'<tr class="group"><th scope="rowgroup" colspan="7">{name}</th></tr>')
        before = member.role
        rows.append(thread_row(member))
    heads = ("thread", "", "#running", "#ready", "#waiting", "#GIL*", "#blocked")
    return m.table("States of every thread", heads, m.folded(rows, 2 * m.TOP_ROWS))


def thread_row(member: Member) -> str:
    """One thread."""
    s = member.states
    parts = [(state, getattr(s, state), STATE_COLOURS[state]) for state in STATES]
    said = ", ".join(f"{state} {percent(share)}" for state, share, _ in parts)
    shares = (s.running, s.ready, s.waiting)
    return m.row(
        m.name(member.name, m.text(where(member), 90)),
        f'<td class="wide">{m.stack(parts, said, slim=True)}</td>',
        *(m.cell(percent(share), share) for share in shares),
        m.optional(percent(s.gil), s.gil),
        m.cell(percent(s.blocked), s.blocked),
    )


def where(member: Member) -> str:
    """The thread's label, and where it works or is blocked."""
    parts = [member.label]
    if member.busiest:
        parts.append(f"works in {member.busiest.replace('`', '')}")
    if member.blocked:
        one = member.blocked[0]
        place = one.function or short_site(one.site) or one.region
        parts.append(f"blocked {percent(one.share)}{f' ({one.reason})' if one.reason else ''} in {place}")
    return "; ".join(parts)
