"""The whole system for a terminal: roles with their states, links between them, one round on one clock."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop._util.units import count, duration, percent, size
from hotloop.analysis.findings import short_site
from hotloop.analysis.system import Cycle, Member, Role, RoleLink, Span, States, System
from hotloop.report.palette import STATE_COLOURS, colour_of
from hotloop.report.pen import Pen, table
from hotloop.report.safe_text import columns

MOST_ROLES = 8
MOST_LINKS = 6
MOST_LANES = 8
MOST_APART = 8
STRAGGLES = 1.25  # times the work of the average member
FOLDED = (
    "Processes of nodes that sent one summary each, over the whole run. Running: on a core; waiting: in "
    "regions that are waits. They have no part in the links, the limit and the advice."
)
LANE_STATES = {"works": "running", "waits": "waiting", "blocked": "blocked"}
# state -> what fills its part of a bar, with and without characters beyond ASCII
FILLS = {
    "running": ("█", "#"),
    "ready": ("▓", "+"),
    "waiting": ("░", "."),
    "gil": ("▒", "g"),
    "blocked": ("╳", "x"),
    "unknown": (" ", " "),
}
LONG_NAMES = {
    "running": "running",
    "ready": "ready, no core",
    "waiting": "waiting for others",
    "gil": "waiting for the GIL",
    "blocked": "blocked: sleep, lock, input",
}


def is_shown(system: System | None) -> bool:
    """Whether there is more than one thread that works, here or elsewhere."""
    if system is None:
        return False
    if system.folded or system.ranks_elsewhere:
        return True
    return sum(len(system.roles[i].members) for i in system.shown_roles) > 1


def whole_system(system: System | None, pen: Pen) -> str:
    """The section; "" for a program of one thread."""
    if system is None or not is_shown(system):
        return ""
    lines = [pen.heading("The whole system", cores(system)), *roles(system, pen)]
    lines += [pen.dim(line) for line in legend(pen)]
    if system.folded:
        lines += ["", *folded(system, pen)]
    linked = links(system, pen)
    if linked:
        lines += ["", *linked]
    said = [
        text
        for text in (system.ranks_elsewhere, system.chain_sentence, system.limit.why, *system.sentences)
        if text
    ]
    lines += ["", *(_wrapped(pen, text) for text in said)]
    if system.cycle is not None:
        lines += ["", *cycle(system, system.cycle, pen)]
    return "\n".join(lines)


def cores(system: System) -> str:
    """`2 cores, 87 % used by this run`."""
    if system.cores_granted is None:
        return ""
    used = f", {percent(system.core_load)} used by this run" if system.core_load is not None else ""
    return f"{system.cores_granted:g} cores{used}"


def roles(system: System, pen: Pen) -> list[str]:
    """A row for each role: how many, shares of states, a bar; the limit is marked."""
    mark = "▶ " if pen.unicode else "> "
    rows: list[tuple[str, ...]] = [("role", "running", "ready", "waiting", "GIL", "blocked")]
    shown: list[States] = []
    for role in [system.roles[i] for i in system.shown_roles][:MOST_ROLES]:
        many = f" x{len(role.members)}" if len(role.members) > 1 else ""
        named = [(f"{mark if role.limiting else '  '}{role.name}{many}", role.states)]
        named += [(f"    {system.members[i].name}", system.members[i].states) for i in apart(system, role)]
        for name, s in named:
            shares = [percent(share) for share in (s.running, s.ready, s.waiting, s.gil, s.blocked)]
            rows.append((name, *shares))
            shown.append(s)
    drawn = table(pen, rows, indent="", spare=14)
    room = pen.width - max(columns(line) for line in drawn) - 2
    lines = [pen.paint(drawn[0], "dim")]
    for line, states in zip(drawn[1:], shown, strict=True):
        padded = line + " " * (max(columns(one) for one in drawn) - columns(line))
        lines.append(f"{padded}  {state_bar(states, room, pen)}".rstrip())
    return lines


def folded(system: System, pen: Pen) -> list[str]:
    """A row for each role of the nodes that sent one summary for all their processes."""
    rows: list[tuple[str, ...]] = [("role", "processes", "nodes", "running", "least", "most", "waiting")]
    for role in system.folded[:MOST_ROLES]:
        shares = (role.running, role.least_running, role.most_running, role.waiting)
        rows.append(
            (role.name, count(role.members), count(role.nodes), *(percent(share) for share in shares))
        )
    lines = [_wrapped(pen, FOLDED)]
    head, *drawn = table(pen, rows, indent="  ")
    lines += [pen.paint(head, "dim"), *drawn]
    if len(system.folded) > MOST_ROLES:
        lines.append(f"  {len(system.folded) - MOST_ROLES} more roles in the HTML report.")
    return [*lines, *(_wrapped(pen, text) for text in folded_sentences(system))]


def folded_sentences(system: System) -> list[str]:
    """What these processes did, and who is far busier than the others."""
    steps = sum(role.env_steps for role in system.folded)
    updates = sum(role.updates for role in system.folded)
    done = [f"{count(n)} {what}" for n, what in ((steps, "env steps"), (updates, "updates")) if n]
    found = [f"They made {' and '.join(done)} during training."] if done else []
    for role in system.folded:
        if role.members > 2 and role.most_running > STRAGGLES * role.running > 0:
            found.append(
                f"The busiest {role.name} is {role.busiest}: running {percent(role.most_running)}, and "
                f"{percent(role.running)} on average."
            )
    return found


def apart(system: System, role: Role) -> tuple[int, ...]:
    """Members of a role that deserve their own row: ranks, and those whose work is unequal."""
    number = system.roles.index(role)
    uneven = any(b.role == number and b.pattern != "even" for b in system.barriers)
    return role.members[:MOST_APART] if len(role.members) > 1 and (role.kind == "rank" or uneven) else ()


def legend(pen: Pen) -> list[str]:
    """What the fills of bars mean."""
    parts = [f"{FILLS[state][not pen.unicode]} {name}" for state, name in LONG_NAMES.items()]
    marked = f"{'▶' if pen.unicode else '>'} the limit"
    return pen.wrap("   ".join((marked, *parts)), "  ").split("\n")


def state_bar(states: States, width: int, pen: Pen) -> str:
    """The states of a role or thread in one bar of exactly `width` columns."""
    shares = {state: getattr(states, state) for state in FILLS}
    cells = {state: int(share * width) for state, share in shares.items()}
    by_rest = sorted(shares, key=lambda state: -(shares[state] * width - cells[state]))
    for state in by_rest[: width - sum(cells.values())]:
        cells[state] += 1
    drawn = []
    for state, fill in FILLS.items():
        piece = fill[not pen.unicode] * cells[state]
        drawn.append(pen.paint(piece, STATE_COLOURS[state]) if piece else "")
    return "".join(drawn)


def links(system: System, pen: Pen) -> list[str]:
    """A line for each link between roles: rates, and who waits."""
    lines = []
    for link in system.shown_links[:MOST_LINKS]:
        waits = who_waits(system, link)
        said = f"{ends(system, link, pen.unicode)}: {figures(link)}" + (f"; {waits}" if waits else "")
        lines.append(_wrapped(pen, said, "      "))
    return lines


def _wrapped(pen: Pen, text: str, following: str = "  ") -> str:
    """The text in lines that do not begin with a per cent sign."""
    return pen.wrap(text.replace(" %", "\u00a0%"), "  ", following).replace("\u00a0%", " %")


def ends(system: System, link: RoleLink, unicode: bool = True) -> str:
    """`env workers → learner`."""
    if link.source == link.target:
        return f"between {system.roles[link.source].name}"
    arrow = "→" if unicode else "->"
    return f"{system.roles[link.source].name} {arrow} {system.roles[link.target].name}"


def figures(link: RoleLink) -> str:
    """`pipe, 49/s, 10.5 KiB/s, 1.0 of 4 queued`."""
    parts = [link.kind.replace("_", " ")]
    if link.messages_per_s is not None:
        parts.append(f"{count(link.messages_per_s)}/s")
    if link.bytes_per_s is not None:
        parts.append(f"{size(link.bytes_per_s)}/s")
    if link.depth_mean is not None:
        of = f" of {link.capacity}" if link.capacity else ""
        parts.append(f"{link.depth_mean:.1f}{of} queued")
    return ", ".join(parts)


def who_waits(system: System, link: RoleLink) -> str:
    """`learner waits 61 %`; "" if nobody does."""
    parts: list[str] = []
    for role, share in ((link.target, link.target_wait), (link.source, link.source_wait)):
        if share >= 0.01 and not (role == link.source == link.target and parts):
            many = len(system.roles[role].members) > 1
            parts.append(f"{system.roles[role].name} {'wait' if many else 'waits'} {percent(share)}")
    return ", ".join(parts)


def cycle(system: System, found: Cycle, pen: Pen) -> list[str]:
    """One round: a lane for each member, on one clock."""
    shown = found.lanes[:MOST_LANES]
    names = [pen.clean(system.members[lane.member].name, 16) for lane in shown]
    first = max(map(columns, names))
    longest = [longest_work(lane.spans, system.members[lane.member]) for lane in shown]
    room = pen.width - first - 5 - max(min(columns(text), 30) for text in longest) - 2
    lines = [pen.dim(pen.wrap(f"One round of {found.region}, {duration(found.length_ns)}:", "  "))]
    for lane, name, text in zip(shown, names, longest, strict=True):
        cells = []
        for at in range(room):
            moment = (at + 0.5) / room * found.length_ns
            span = next((s for s in lane.spans if s.begin_ns <= moment < s.end_ns), None)
            fill = " " if span is None else FILLS[LANE_STATES[span.state]][not pen.unicode]
            cells.append(pen.paint(fill, colour_of(span.category)) if span is not None else fill)
        edge = "│" if pen.unicode else "|"
        bar = f"{edge}{''.join(cells)}{edge}"
        lines.append(f"  {name}{' ' * (first - columns(name))} {bar} {pen.clean(text, 30)}".rstrip())
    return lines


def longest_work(spans: Sequence[Span], member: Member) -> str:
    """`policy_forward 39.6 ms`: what a lane works on longest."""
    total: dict[str, int] = {}
    for span in spans:
        if span.state != "waits":
            name = span.region or own_code(member, span.state)
            total[name] = total.get(name, 0) + span.end_ns - span.begin_ns
    if not total:
        return "waits"
    name = max(total, key=lambda one: total[one])
    return f"{name} {duration(total[name])}"


def own_code(member: Member, state: str) -> str:
    """A name for time in no region: the line where it is blocked, or the function seen there most."""
    if state == "blocked" and member.blocked:
        return short_site(member.blocked[0].site) or member.blocked[0].function or "own code"
    name = member.busiest.split("`")[1] if member.busiest.count("`") >= 2 else ""
    return name or "own code"
