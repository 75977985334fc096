"""Who holds up training: the chain of waits from the learner to the one that works, and who would be next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from hotloop._util.units import duration, percent
from hotloop.analysis.system import NEXT_TASK, Barrier, ChainLink, Edge, Limit, Member, Role, leading
from hotloop.capture.region_names import SPINNING_REGIONS

MOST_SPINNING = 4  # that are named
NOTABLE = 0.05  # share of a member's time; shorter waits are not followed
CORES_BUSY = 0.9  # cores used / cores granted
NO_CORE = 0.1  # share of the time that working threads wanted a core and had none
OTHERS_BUSY = 0.4  # the same, when this run alone does not fill the cores
WORKS = 0.2  # share of its time that a thread without messages has to work to count
HARDLY_SEEN = 0.5  # share of its time of which nothing is known
GIL_BUSY = 0.8  # threads of one process that run, added up


def find_chain(members: Sequence[Member], edges: Sequence[Edge]) -> tuple[tuple[ChainLink, ...], str]:
    """The links from the member that drives training to the one that everyone waits for, and a sentence."""
    # An idle worker of Ray does not wait for another one like it, which may wait for its results.
    followed = [
        (n, e)
        for n, e in enumerate(edges)
        if e.name != NEXT_TASK or members[e.source].role != members[e.target].role
    ]
    drivers = leading(members)
    if not drivers:
        return (), ""
    at = max(drivers, key=lambda i: members[i].states.waiting)
    links: list[ChainLink] = []
    seen = {at}
    while True:
        member = members[at]
        into = [(n, e) for n, e in followed if e.target == at and e.source not in seen]
        out = [(n, e) for n, e in followed if e.source == at and e.target not in seen and _holds_up(e)]
        waits = [(e.target_waited_ns, n, e.source) for n, e in into]
        waits += [(e.source_waited_ns, n, e.target) for n, e in out]
        waited, number, other = max(waits, default=(0, -1, -1))
        busy = [(w, n, o) for w, n, o in waits if w >= 0.5 * waited]
        if len(busy) > 1:  # among equals, the one that waits least itself is the last to arrive
            waited, number, other = min(busy, key=lambda item: members[item[2]].states.waiting)
        share = _waiting(member, [e for _, e in followed], at, {o for _, _, o in waits})
        if other < 0 or share < NOTABLE or not member.wall_ns:
            break
        links.append(ChainLink(at, share, number, _for_what(edges[number], at)))
        seen.add(at := other)
    last = members[at]
    s = last.states
    works = last.blocked[0].share if is_blocked(last) else s.running + s.ready + s.gil
    links.append(ChainLink(at, works, None, doing(last)))
    return tuple(links), _sentence(members, links) if len(links) > 1 else ""


def _waiting(member: Member, edges: Sequence[Edge], at: int, others: set[int]) -> float:
    """Share of its time in which a member waits for these others."""
    waited = sum(
        e.target_waited_ns if e.target == at else e.source_waited_ns
        for e in edges
        if (e.target == at and e.source in others) or (e.source == at and e.target in others and _holds_up(e))
    )
    return min(waited / member.wall_ns, 1.0) if member.wall_ns else 0.0


def _holds_up(edge: Edge) -> bool:
    """Whether the source of an edge waits for the target; the last rank of a collective waits for nobody."""
    return edge.source_waited_ns > 0 and edge.kind != "collective"


def _for_what(edge: Edge, at: int) -> str:
    if edge.kind == "collective":
        return f"the {edge.name}" if edge.name == "gradients" else "a collective"
    if edge.source == at:
        return f"room in {edge.name}"
    if edge.kind == "loader":
        return "a batch"
    if edge.kind == "task":
        return edge.name if edge.name == NEXT_TASK else f"`{edge.name}`"
    return f"an answer ({edge.name})" if edge.kind == "pipe" else f"a message ({edge.name})"


def doing(member: Member) -> str:
    """What a member does most while it does not wait."""
    if is_blocked(member):
        blocked = member.blocked[0]
        return where_blocked(blocked.reason, blocked.function, blocked.site, blocked.region)
    return f"in {member.busiest}" if member.busiest else "at work"


def is_blocked(member: Member) -> bool:
    """Whether a member is blocked at one line for more time than it works."""
    return bool(member.blocked) and member.blocked[0].share > member.states.running + member.states.ready


def where_blocked(reason: str, function: str, site: str, region: str) -> str:
    """`asleep in time.sleep, ddp.py:14`."""
    what = {"sleep": "asleep", "lock": "blocked by a lock", "input": "blocked reading"}.get(reason, "blocked")
    inside = f" in {function}" if function else f" in `{region}`" if region else ""
    return f"{what}{inside}" + (f", {site.rpartition('/')[2]}" if site else "")


def _sentence(members: Sequence[Member], links: Sequence[ChainLink]) -> str:
    """`The learner waits 61 % for an answer; env worker 3 has to give it: it is in `step`, physics.py:88.`"""
    parts = []
    for link, following in pairwise(links):
        who, whom = members[link.member].name, members[following.member].name
        name = f"the {who}" if who in ("learner", "launcher") else who
        parts.append(f"{name} waits {percent(link.share)} of the time for {link.what} from {whom}")
    last = links[-1]
    parts.append(f"{members[last.member].name} is {last.what} ({percent(last.share)} of its time)")
    return _capital("; ".join(parts)) + "."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# -- the limit -------------------------------------------------------------------------------------


def find_limit(
    members: Sequence[Member],
    roles: Sequence[Role],
    edges: Sequence[Edge],
    barriers: Sequence[Barrier],
    core_load: float | None,
    without: Callable[[Sequence[Member]], float | None] = lambda members: None,
) -> Limit:
    """What training is limited by: cores, the GIL of one process, or the role that waits least.

    `without` returns how many times as fast training would run if members took no time, where that is known.
    """
    working = [m for m in members if roles[m.role].works and m.kind not in ("thread", "logger")]
    connected = {i for edge in edges for i in (edge.source, edge.target)}
    busy = {
        number: max(busy_share(members[i]) for i in role.members)
        for number, role in enumerate(roles)
        if role.works and any(_counts(members[i], i in connected) for i in role.members)
    }
    if not working or not busy:
        return Limit("unknown", None, None, None, "No working thread was recorded.")
    ranked = sorted(busy, key=lambda number: (-busy[number], number))
    first = ranked[0]
    following = ranked[1] if len(ranked) > 1 else None
    gain = None
    if following is not None:
        gain = without([members[i] for i in roles[first].members]) or _gain(busy[first], busy[following])
    wanted = sum(m.states.running + m.states.ready for m in working)
    ready = sum(m.states.ready for m in working) / wanted if wanted else 0.0
    gil = _held_by_the_gil(members, roles)
    held_up = max(members[i].states.ready for i in roles[first].members) >= NO_CORE
    if held_up and ready >= NO_CORE and core_load is not None and (gil is None or ready > gil[1]):
        said = (
            f"Working threads had no core {percent(ready)} of the time they wanted one, and this run used "
            f"{percent(core_load)} of the cores it was granted. "
        )
        if core_load >= CORES_BUSY:
            why = said + "There is more work than cores: further workers would only wait longer."
            return Limit("cores", first, following, None, why)
        if ready >= OTHERS_BUSY:
            why = said + "Other programs take the rest: on an idle machine the picture may be another."
            return Limit("cores", first, following, None, why)
    if gil is not None:
        process, held = gil
        mine = [m for m in members if m.process == process and roles[m.role].works]
        if held >= NO_CORE:
            why = (
                f"The threads of process {mine[0].pid} share one GIL and wait for it {percent(held)} of the "
                "time (added up): Python code of one process runs on one core at a time."
            )
            return Limit("gil", first, following, None, why)
    name, verb = f"The {roles[first].name}", "is" if len(roles[first].members) == 1 else "are"
    if verb == "is" and roles[first].kind == "rank":
        name = _capital(roles[first].name)
    for barrier in barriers:
        if barrier.role == first and barrier.pattern == "steady":
            slow = max(barrier.members, key=lambda one: one.mean_ns)
            name, verb = _capital(members[slow.member].name), "is"
    why = f"{name} {verb} the limit: busy {percent(busy[first])} of the time"
    if following is not None:
        after = f"the {roles[following].name} would be next"
        why += f"; {after} ({percent(busy[following])} busy)"
        why += f", at {gain:.2f}x" if gain is not None else ""
    return Limit("role", first, following, gain, why + ".")


def _counts(member: Member, connected: bool) -> bool:
    """Whether a member takes part in training: it drives it, exchanges messages, or works a lot."""
    if member.kind in ("learner", "rank", "collector"):
        return True
    if member.kind == "thread" and member.states.unknown > HARDLY_SEEN:
        return False
    if member.kind == "logger":
        return member.states.running + member.states.ready >= WORKS
    return connected or member.states.running + member.states.ready >= WORKS


def _held_by_the_gil(members: Sequence[Member], roles: Sequence[Role]) -> tuple[int, float] | None:
    """The process whose threads wait for the GIL most, and their waiting added up."""
    found: dict[int, list[Member]] = {}
    for member in members:
        if roles[member.role].works:
            found.setdefault(member.process, []).append(member)
    held = {
        process: sum(m.states.gil for m in mine)
        for process, mine in found.items()
        if len(mine) > 1 and sum(m.states.running + m.states.ready for m in mine) >= GIL_BUSY
    }
    return max(held.items(), key=lambda item: item[1]) if held else None


def busy_share(member: Member) -> float:
    """Share of its time in which a member did not wait for others."""
    return max(1.0 - member.states.waiting, 0.0)


def _gain(first: float, following: float) -> float | None:
    """Speed-up at which the next role becomes the limit.

    Roles that take turns (their shares add up to the whole) never overlap: then all of the first one's time
    could go. Roles that work in parallel overlap, and the next one is the limit once it is always busy.
    """
    if following <= 0 or first <= 0:
        return None
    if first + following <= 1.1:
        return 1.0 / max(1.0 - first, 0.01)
    return max(first / following, 1.0)


def _spinning(members: Sequence[Member], cores: float | None) -> list[str]:
    """Who takes a core while it waits."""
    spins = {
        number: sum(
            region.share * (region.states.running + region.states.ready)
            for region in member.regions
            if region.path and region.path[-1] in SPINNING_REGIONS
        )
        for number, member in enumerate(members)
    }
    spins = {number: share for number, share in spins.items() if share >= NOTABLE}
    if not spins:
        return []
    names = [members[number].name for number in sorted(spins, key=lambda number: -spins[number])]
    who = (
        f"{', '.join(names[:-1])} and {names[-1]}" if len(names) <= MOST_SPINNING else f"{len(names)} threads"
    )
    stays = "stay on a core while they wait"
    if len(names) == 1:
        who, stays = names[0], "stays on a core while it waits"
    text = f"{_capital(who)} {stays}, asking again and again whether there is something to do"
    text += f": {sum(spins.values()):.1f} cores in all"
    if cores is not None and len(names) > cores:
        text += f". You have {cores:g}, so waiting takes cores from those who work: use fewer workers"
    return [f"{text}."]


# -- further sentences -----------------------------------------------------------------------------


def sentences(
    members: Sequence[Member], roles: Sequence[Role], barriers: Sequence[Barrier], cores: float | None
) -> list[str]:
    """Stragglers, imbalance and spinning, in words."""
    found = _spinning(members, cores)
    for barrier in barriers:
        if barrier.pattern == "even":
            continue
        slow = max(barrier.members, key=lambda one: one.mean_ns)
        others = [one.mean_ns for one in barrier.members if one is not slow]
        usual = sum(others) / len(others)
        name = members[slow.member].name
        text = (
            f"Imbalance costs {percent(barrier.share)} of training: each {barrier.name} takes "
            f"{duration(barrier.slowest_ns)}, {duration(barrier.imbalance_ns)} more than the mean."
        )
        if barrier.pattern == "steady":
            took = f"{duration(slow.mean_ns)}, the others {duration(usual)}"
            text += f" {_capital(name)} is the straggler: {took}."
        else:
            text += " It is another one each time: less variation, or fewer rounds, would help."
        found.append(text)
    return found
