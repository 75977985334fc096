"""Which region to look at first: a weighted score, and the gain if the region were twice as fast."""

from __future__ import annotations

from dataclasses import dataclass

from hotloop.analysis import whatif
from hotloop.analysis.findings import Bottleneck
from hotloop.analysis.tree import FlatTree
from hotloop.analysis.windows import Spans

WEIGHTS = {"own_time": 0.40, "time_per_call": 0.30, "cpu_memory_growth": 0.15, "device_memory": 0.15}
MOST = 50  # score only the names with most own time
TWICE_AS_FAST = 0.5  # fraction of the time that this saves


@dataclass(slots=True)
class Operation:
    """All regions of one name added up; own time is net of our own cost."""

    name: str
    own_ns: int = 0
    calls: int = 0
    rss_growth_bytes: int | None = None
    device_peak_bytes: int | None = None
    site: str = ""
    category: str = ""
    most_ns: int = -1  # own time of the region that site and category come from

    @property
    def per_call_ns(self) -> float:
        """Own time per call; without a completed call, that of the open one."""
        return self.own_ns / max(self.calls, 1)


def operations(flat: FlatTree) -> dict[str, Operation]:
    """Figures by name; category and site are those of the region with most own time."""
    found: dict[str, Operation] = {}
    for node, kind, own_ns in zip(flat.nodes, flat.categories, flat.own_ns, strict=True):
        if kind == "hotloop":
            continue
        one = found.get(node.name)
        if one is None:
            one = found[node.name] = Operation(node.name)
        one.own_ns += own_ns
        one.calls += node.calls
        if own_ns > one.most_ns:
            one.most_ns, one.category, one.site = own_ns, kind, node.site or one.site
        if node.rss_growth_bytes is not None:
            one.rss_growth_bytes = (one.rss_growth_bytes or 0) + node.rss_growth_bytes
        if node.device_peak_bytes is not None:
            one.device_peak_bytes = max(one.device_peak_bytes or 0, node.device_peak_bytes)
    return found


def bottlenecks(
    flat: FlatTree, driver: FlatTree, spans: Spans, *, others_may_hold_it_up: bool = False
) -> tuple[Bottleneck, ...]:
    """The names with most own time in all threads (`flat`), sorted by gain, then by score.

    `driver` and `spans` belong to the thread that drives training; names it does not have get no gain. With
    `others_may_hold_it_up`, intervals of all gains but those of waits reach down to no gain.
    """
    by_name = operations(flat)
    scored = sorted(by_name.values(), key=lambda o: (-o.own_ns, o.name))[:MOST]
    largest = _largest(by_name)
    shares = whatif.shares_by_name(driver)
    gains = whatif.gains(spans, shares, [[o.name] for o in scored], TWICE_AS_FAST)
    rows = []
    for one, gain in zip(scored, gains, strict=True):
        terms = score_terms(one, largest)
        if gain is not None and others_may_hold_it_up and one.category != "wait":
            gain = whatif.widened(gain)
        rows.append(
            Bottleneck(
                name=one.name,
                category=one.category,
                site=one.site,
                score=score(terms),
                score_terms=terms,
                own_ns=one.own_ns,
                share=one.own_ns / flat.wall_ns if flat.wall_ns else 0.0,
                calls=one.calls,
                gain_if_twice_as_fast=gain,
            )
        )
    rows.sort(key=lambda b: (-(b.gain_if_twice_as_fast.value if b.gain_if_twice_as_fast else 0.0), -b.score))
    return tuple(rows)


def _values(one: Operation) -> dict[str, float | None]:
    growth = one.rss_growth_bytes
    return {
        "own_time": float(one.own_ns),
        "time_per_call": one.per_call_ns,
        "cpu_memory_growth": None if growth is None else float(max(growth, 0)),
        "device_memory": None if one.device_peak_bytes is None else float(one.device_peak_bytes),
    }


def _largest(by_name: dict[str, Operation]) -> dict[str, float]:
    largest: dict[str, float] = {}
    for one in by_name.values():
        for term, value in _values(one).items():
            if value is not None:
                largest[term] = max(largest.get(term, 0.0), value)
    return largest


def score_terms(one: Operation, largest: dict[str, float]) -> dict[str, float]:
    """Each measured term scaled to 0..1 by the largest in the capture."""
    return {
        term: value / largest[term] if largest[term] > 0 else 0.0
        for term, value in _values(one).items()
        if value is not None
    }


def score(terms: dict[str, float]) -> float:
    """Weighted mean of the measured terms; the weights of missing ones are spread over the rest."""
    weight = sum(WEIGHTS[term] for term in terms)
    return min(sum(WEIGHTS[term] * value for term, value in terms.items()) / weight, 1.0) if weight else 0.0
