"""Advice about asyncio programs whose event loop idles although there is work."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from hotloop._util.units import duration, percent
from hotloop.analysis.advice.recommendation import LEAST_SAVED, Change, advise, per_unit
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.findings import Claim, Recommendation, short_site
from hotloop.analysis.line_samples import LineSamples
from hotloop.analysis.parsed_source import line_text, walk_source
from hotloop.analysis.source_names import dotted
from hotloop.capture.samples import FunctionSource, SampledPath

LEAST_ROUNDS = 20  # of gather, to know how long each result takes


def sleeping_event_loop(run: RunView) -> list[Recommendation]:
    """An asyncio program that sleeps in a loop until something has happened."""
    lines = run.unbiased_lines
    if lines is None:
        return []
    idle = lines.paths_where(_is_idle)
    share = lines.share_of(idle)
    polls = [place for source in lines.sources for place in _sleeps_in_loops(source)]
    if share < LEAST_SAVED or not polls:
        return []
    site, text = _busiest(lines, polls)
    evidence = [
        f"The event loop had nothing to run {percent(share)} of training{per_unit(run, share)}.",
        f"{short_site(site)}: {text}",
        "A task that sleeps in a loop looks again only when its time is up, though there may be work.",
        "Assumption: waiting for the event itself saves 90 % of that time (between 40 % and 100 %).",
    ]
    made = advise(
        run,
        "sleeping_event_loop",
        None,
        f"Wait for the event instead of sleeping ({short_site(site)})",
        evidence,
        "Use asyncio.Queue, asyncio.Event or asyncio.Condition, which wake the task up at once.",
        lines.gain(idle, (0.4, 0.9, 1.0)),
        Change("await the event, not asyncio.sleep", "minutes", "safe"),
    )
    return [replace(made, site=site, claim=_waiting(idle))]


def awaits_one_by_one(run: RunView) -> list[Recommendation]:
    """An asyncio program that waits for the answers of several others one after the other."""
    lines = run.unbiased_lines
    if lines is None:
        return []
    idle = lines.paths_where(_is_idle)
    share = lines.share_of(idle)
    if any(one.name == "jobs_too_small" for one in run.given):
        return []  # all of them at once would be as slow
    places = [place for source in lines.sources for place in _awaits_in_loops(source)]
    if share < LEAST_SAVED or not places or any(_sleeps_in_loops(source) for source in lines.sources):
        return []
    site, text = _busiest(lines, places)
    made = advise(
        run,
        "awaits_one_by_one",
        None,
        f"Await all requests together, not one after the other ({short_site(site)})",
        [
            f"The event loop had nothing to run {percent(share)} of training{per_unit(run, share)}.",
            f"{short_site(site)}: {text}",
            "The loop awaits each request before it starts the next one, so their delays add up.",
            "Assumption: waiting for all at once saves 85 % of that time (between 40 % and 97 %).",
        ],
        "Start all requests and await them together: `await asyncio.gather(*(client.step(a) for ...))`, or a "
        "TaskGroup. The results come in the same order.",
        lines.gain(idle, (0.4, 0.85, 0.97)),
        Change("asyncio.gather over the requests", "minutes", "safe"),
    )
    return [replace(made, site=site, claim=_waiting(idle))]


def waits_for_the_slowest(run: RunView) -> list[Recommendation]:
    """An asyncio program whose every round gathers all answers, some of which take longer than others."""
    lines = run.unbiased_lines
    if lines is None:
        return []
    idle = lines.paths_where(_is_idle)
    share = lines.share_of(idle)
    found = max(_gathered(run), key=lambda one: one.all_ns, default=None)
    if found is None or share < LEAST_SAVED or found.rounds < LEAST_ROUNDS:
        return []
    together, alone = found.all_ns / found.rounds, found.own_pace_ns
    saved = 1 - alone / together
    if share * saved < LEAST_SAVED:
        return []
    evidence = [
        f"The event loop had nothing to run {percent(share)} of training{per_unit(run, share)}.",
        f"{short_site(found.site)}: {found.text}",
        f"A round waits {duration(together)} for all {len(found.each_ns)} results. They take "
        f"{duration(min(found.each_ns))} to {duration(max(found.each_ns))} on average, so that each at "
        f"its own pace would need {duration(alone)} for as many.",
        "Assumption: 90 % of the difference is saved (between 50 % and all of it).",
    ]
    made = advise(
        run,
        "waits_for_the_slowest",
        None,
        f"Let each task go on by itself instead of gathering all ({short_site(found.site)})",
        evidence,
        "Give each env (or client) a task of its own that acts, awaits and stores; or act for those that "
        "have answered: asyncio.wait(..., return_when=FIRST_COMPLETED). Which of them the experience comes "
        "from then depends on their speed.",
        lines.gain(idle, (0.5 * saved, 0.9 * saved, saved)),
        Change("a task for each env instead of one gather for all", "hours", "semantic"),
    )
    return [replace(made, site=found.site, claim=_waiting(idle))]


@dataclass(frozen=True)
class _Gathered:
    """Rounds of one `asyncio.gather`."""

    site: str
    text: str
    rounds: int
    all_ns: float  # until the last result, added up
    each_ns: tuple[float, ...]  # mean time of each result

    @property
    def own_pace_ns(self) -> float:
        """Time in which as many results come if nobody waits for the others: the harmonic mean."""
        return len(self.each_ns) / sum(1 / max(each, 1.0) for each in self.each_ns)


def _gathered(run: RunView) -> list[_Gathered]:
    """Of the driving process, in functions whose source is known."""
    rows = [
        row
        for entry in run.capture.facts.get("libraries") or ()
        if entry.get("pid") == run.process.pid
        for row in entry.get("gathered", ())
    ]
    found = []
    for row in rows:
        file, _, line = row["site"].rpartition(":")
        sources = run.unbiased_lines.sources if run.unbiased_lines is not None else ()
        texts = [line_text(source, int(line)) for source in sources if source.file == file]
        text = next(filter(None, texts), "")
        if text and row["timed"]:
            each = tuple(total / row["timed"] for total in row["each_ns"])
            found.append(_Gathered(row["site"], text, row["timed"], row["all_ns"], each))
    return found


def _is_idle(path: SampledPath) -> bool:
    return "asyncio" in path.called and path.innermost.endswith(".select")


def _waiting(idle: list[int]) -> Claim:
    """Tasks that wait at the same time: the replay of messages only knows how to shorten work."""
    return Claim(sampled=tuple(idle), waits=True)


def _busiest(lines: LineSamples, places: list[tuple[str, str]]) -> tuple[str, str]:
    """The place whose line ran most; while the loop is idle, no sample says which task waits."""
    ran: dict[str, float] = {}
    for number, path in enumerate(lines.paths):
        for site in {f"{frame.file}:{frame.line}" for frame in path.frames}:
            ran[site] = ran.get(site, 0.0) + lines.weight_of([number])
    return max(places, key=lambda place: ran.get(place[0], 0.0))


def _awaits_in_loops(source: FunctionSource) -> list[tuple[str, str]]:
    """Sites and texts of `await request(item)` in a loop over items that does not need the answer before."""
    found = set()
    for node in walk_source(source):
        if isinstance(node, ast.For) and not _is_count(node):
            targets = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
            body: list[ast.AST] = list(node.body)
        elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp):
            targets = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
            body = [node.value if isinstance(node, ast.DictComp) else node.elt]
        else:
            continue
        for inner in (n for part in body for n in ast.walk(part) if isinstance(n, ast.Await)):
            used = {n.id for n in ast.walk(inner.value) if isinstance(n, ast.Name)}
            if (
                isinstance(inner.value, ast.Call)
                and used & targets
                and "sleep" not in dotted(inner.value.func)
            ):
                found.add(inner.lineno)
    return [(f"{source.file}:{line}", line_text(source, line)) for line in sorted(found)]


def _is_count(loop: ast.For) -> bool:
    """`for step in range(n)`: a loop over time."""
    return isinstance(loop.iter, ast.Call) and dotted(loop.iter.func) == "range"


def _sleeps_in_loops(source: FunctionSource) -> list[tuple[str, str]]:
    """Sites and texts of `await asyncio.sleep(...)` in `while` loops."""
    found = {
        node.lineno
        for loop in walk_source(source)
        if isinstance(loop, ast.While)
        for node in ast.walk(loop)
        if isinstance(node, ast.Call) and dotted(node.func).endswith("asyncio.sleep")
    }
    return [(f"{source.file}:{line}", line_text(source, line)) for line in sorted(found)]
