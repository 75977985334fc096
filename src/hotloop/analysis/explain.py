"""From a capture to its findings: puts the parts of analysis together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hotloop._util import units
from hotloop.analysis import growth as growing
from hotloop.analysis.advice.commands import typed
from hotloop.analysis.annotated_source import annotated_source
from hotloop.analysis.bottleneck import bottlenecks
from hotloop.analysis.categories import CategoryPatterns, Resolver
from hotloop.analysis.find_system import find_system
from hotloop.analysis.findings import (
    ADVICE_TIERS,
    Bottleneck,
    Breakdown,
    Estimate,
    Findings,
    Growth,
    HotLine,
    LineShare,
    Phases,
    Recommendation,
    Waits,
    short_site,
)
from hotloop.analysis.gap_contents import with_contents_of_gaps
from hotloop.analysis.hot_lines import hot_lines
from hotloop.analysis.line_samples import LineSamples, line_samples
from hotloop.analysis.phases import cut_to_training, find_phases
from hotloop.analysis.recommend import AdviceFunction, gain_of_all, recommend
from hotloop.analysis.roofline import roofline
from hotloop.analysis.standstills import without_standstills
from hotloop.analysis.system import HELD_UP
from hotloop.analysis.tree import (
    FlatTree,
    breakdown,
    driving_thread,
    flatten,
    merged_tree,
    region_findings,
    thread_label,
    without_idle_helpers,
)
from hotloop.analysis.utilisation import (
    NOTABLE,
    core_time,
    others_may_hold_up,
    oversubscription,
    utilisation,
    waits,
)
from hotloop.analysis.what_ifs import Saving, WhatIfs
from hotloop.analysis.whatif import shares_by_name
from hotloop.analysis.windows import Spans, spans_by_name, time_series, work_done
from hotloop.capture.model import Capture, Node, Process, Progress, Thread

NO_TRAINING = "No training was seen: the run ended while it started up."
MOST_REPLAYED, LEAST_REPLAYED = 12, 0.002  # regions whose gain is replayed, and their share of all time
FAR_MORE = 2.0  # times the gain of the first advice: code without a known remedy gets into the headline
GAPS = ("between ", "before ", "after ")  # names of the time between two regions


@dataclass(frozen=True)
class DrivingThread:
    """The thread that drives training, prepared for analysis."""

    process: Process
    thread: Thread
    flat: FlatTree
    spans: Spans
    work: growing.WorkWindows


def explain(
    capture: Capture,
    *,
    category_patterns: CategoryPatterns = (),
    goal_env_steps: int | None = None,
    advice: Sequence[AdviceFunction] | None = None,
) -> Findings:
    """All findings about one capture; its figures are those of training unless their name says otherwise.

    `category_patterns` are (prefix or glob, category) pairs that take precedence over the built-in ones.
    `goal_env_steps` asks for a forecast of the time left until then. `advice` are the functions that make
    recommendations (None: the built-in ones).
    """
    capture, stood_still_ns = without_standstills(capture)
    phases = find_phases(capture)
    model = WhatIfs(capture) if capture.messages else None
    found = explain_without_advice(
        capture,
        category_patterns=category_patterns,
        goal_env_steps=goal_env_steps,
        phases=phases,
        model=model,
    )
    training = cut_to_training(capture, phases) if phases is not None else capture
    trained = phases is None or phases.training_ns > 0 or not phases.start_up_ns
    recommendations = recommend(training, found, advice, model) if trained else ()
    return replace(
        found,
        wall_ns=found.wall_ns + stood_still_ns,
        stood_still_ns=found.stood_still_ns + stood_still_ns,
        recommendations=recommendations,
        headline=first_advice(recommendations) or found.headline,
        gain_of_all=gain_of_all(training, found, recommendations, model),
    )


def explain_without_advice(
    recorded: Capture,
    *,
    category_patterns: CategoryPatterns = (),
    goal_env_steps: int | None = None,
    phases: Phases | None = None,
    model: WhatIfs | None = None,
) -> Findings:
    """`explain` without recommendations; `phases` and `model` if they are known already."""
    resolver = Resolver(tuple(category_patterns))
    recorded, stood_still_ns = without_standstills(recorded)
    phases = phases or find_phases(recorded)
    if phases is None:
        return _nothing(recorded)
    capture = cut_to_training(recorded, phases)
    driver = _driver(capture, resolver)
    if driver is None:
        return _nothing(recorded)
    working = without_idle_helpers(capture, driver.thread)
    everything = flatten(merged_tree([working], resolver), resolver, capture.region_cost_ns)
    done = capture.progress
    uses = utilisation(capture, resolver)
    place = [id(t) for t in working.threads].index(id(driver.thread))
    waiting = waits(utilisation(working, resolver), (driver.process, driver.thread), place)
    held_up = others_may_hold_up(waiting)
    ranked = bottlenecks(everything, driver.flat, driver.spans, others_may_hold_it_up=held_up)
    if model is None and recorded.messages:
        model = WhatIfs(recorded)
    if model is not None and model.replays and not model.is_alone:
        ranked = with_replayed_gains(ranked, model)
    grown, no_growth = growing.growth(driver.work)
    forecast, no_forecast = None, ""
    if goal_env_steps is not None:
        forecast, no_forecast = growing.forecast(driver.work, goal_env_steps, recorded.progress.env_steps)
    rows, no_limits = roofline(everything, capture.facts.get("limits"))
    own = breakdown(driver.flat, thread_label(driver.process, driver.thread))
    gaps_ns = sum(
        own_ns
        for node, own_ns, parent in zip(
            driver.flat.nodes, driver.flat.own_ns, driver.flat.parents, strict=True
        )
        if parent < 0 and node.name.startswith(GAPS)
    )
    lines = line_samples(driver.process, driver.thread, capture)
    own = with_contents_of_gaps(own, gaps_ns, lines, tuple(category_patterns))
    training_s = phases.training_ns / 1e9
    trained = phases.training_ns > 0 or not phases.start_up_ns
    replayed = model is not None and model.replays
    unknown = _unknown(recorded, driver, everything, waiting, held_up and not replayed)
    system = find_system(capture, resolver, model)
    seen = _lines(recorded)
    said = headline(own, driver.flat, ranked, waiting, grown, seen) if trained else NO_TRAINING
    if trained and system is not None and system.chain_sentence and system.chain[0].share >= HELD_UP:
        said = system.chain_sentence
    elif trained and system is not None and system.ranks_elsewhere:
        waits_for_them = next((role.states.waiting for role in system.roles if role.kind == "rank"), 0.0)
        said = system.ranks_elsewhere if waits_for_them >= HELD_UP else said
    reasons = [_no_gains(phases), no_growth, no_forecast, *no_limits, *unknown]
    return Findings(
        headline=said,
        command=tuple(typed(recorded.command)),
        wall_ns=recorded.wall_ns + stood_still_ns,
        env_steps=recorded.progress.env_steps,
        updates=recorded.progress.updates,
        episodes=recorded.progress.episodes,
        env_steps_per_s=done.env_steps / training_s if done.env_steps and training_s else None,
        updates_per_s=done.updates / training_s if done.updates and training_s else None,
        mean_return=recorded.progress.mean_return,
        basis=_basis(working, own, phases, len(capture.threads)),
        breakdown=own,
        all_threads=breakdown(everything, f"all {len(working.threads)} threads"),
        bottlenecks=ranked,
        recommendations=(),
        growth=grown,
        forecast=forecast,
        utilisation=uses,
        roofline=rows,
        regions=region_findings(everything, done.env_steps),
        time_series=time_series(recorded, *_same_thread(recorded, driver), resolver),
        machine=recorded.machine,
        versions=_versions(recorded),
        not_measured=tuple(reason for reason in reasons if reason),
        warnings=tuple(_warnings(recorded)),
        waits=waiting,
        oversubscription=oversubscription(capture, uses, (driver.process, driver.thread)),
        lines=seen,
        phases=phases,
        hot_lines=() if lines is None else _hot_lines(lines, done, driver, model),
        boosted=_boosted(recorded),
        stood_still_ns=stood_still_ns,
        gradient_steps=_gradient_steps(recorded),
        system=system,
        source=() if lines is None else annotated_source(lines, done.env_steps, done.updates),
        working_folder=str(recorded.facts.get("working_folder") or ""),
        hotloop_version=str(recorded.facts.get("hotloop_version") or ""),
        started_at_ns=recorded.facts.get("started_at_ns"),
    )


def _gradient_steps(capture: Capture) -> int:
    """Steps of all optimizers in all processes."""
    return sum(
        int(optimizer.get("steps", 0))
        for entry in capture.facts.get("libraries") or ()
        for optimizer in entry.get("optimizers", ())
    )


def _hot_lines(
    lines: LineSamples, done: Progress, driver: DrivingThread, model: WhatIfs | None
) -> tuple[HotLine, ...]:
    whole = None
    if model is not None and model.replays:
        key = driver.process.pid, driver.thread.native_id

        def whole(part: float) -> Estimate | None:
            saving = Saving({}, {key: part})
            return model.gain_of_saving(saving, saving, saving) if part > LEAST_REPLAYED else None

    return hot_lines(lines, done.env_steps, done.updates, whole_gain=whole)


def _lines(capture: Capture) -> tuple[LineShare, ...]:
    """Lines sampled outside all regions, most frequent first."""
    seen = capture.facts.get("lines") or {}
    samples, counts = seen.get("samples", 0), seen.get("lines", {})
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(LineShare(site, count / samples) for site, count in ranked if samples)


def _driver(capture: Capture, resolver: Resolver) -> DrivingThread | None:
    found = driving_thread(capture)
    if found is None:
        return None
    process, thread = found
    spans = spans_by_name(thread)
    env_steps, episodes, updates = (
        work_done(capture, process, thread, spans.end_ns, counter)
        for counter in ("env_steps", "episodes", "updates")
    )
    flat = flatten(thread.root, resolver, capture.region_cost_ns)
    work = growing.WorkWindows(spans, env_steps, episodes, updates)
    return DrivingThread(process, thread, flat, spans, work)


def _same_thread(recorded: Capture, driver: DrivingThread) -> tuple[Process, Thread]:
    """The driving thread in the capture of the whole run."""
    mine = driver.process.host, driver.process.pid, driver.thread.native_id
    for process in recorded.processes:
        for thread in process.threads:
            if (process.host, process.pid, thread.native_id) == mine:
                return process, thread
    return driver.process, driver.thread


def _basis(working: Capture, own: Breakdown, phases: Phases, recorded: int) -> str:
    """What shares are shares of; `working` leaves idle helpers out of the `recorded` threads."""
    count = len(working.threads)
    of = "training" if not phases.whole_run else "the wall time"
    if count == 1:
        return f"shares of {of} of {own.label}"
    which = (
        f"all {count} recorded threads"
        if count == recorded
        else f"the {count} threads that did more than wait"
    )
    return (
        f"the breakdown shows shares of {of} of {own.label}, which drives training; "
        f"regions and bottlenecks show shares of the time of {which} added up"
    )


def first_advice(recommendations: Sequence[Recommendation]) -> str:
    """The first piece of advice as a headline, else the most expensive code; "" if there is neither.

    Code without a known remedy that is worth far more than the advice is named after it.
    """
    costly = next((one for one in recommendations if one.tier == "no_known_remedy"), None)
    for advice in recommendations:
        if advice.tier not in ADVICE_TIERS:
            continue
        if advice.gain is None:
            return f"{advice.title}: the gain is unknown until tested."
        value, low, high = advice.gain.value, advice.gain.low, advice.gain.high
        found = f"{advice.title}: training would run {value:.2f}x as fast [{low:.2f}, {high:.2f}]."
        if costly is not None and costly.gain is not None and costly.gain.value - 1 > FAR_MORE * (value - 1):
            return f"{found} Far more expensive: {_lower(costly.title)}."
        return found
    if costly is not None:
        # What training consists of is left out where something else was found.
        where = "" if costly.effort == "days" else " of your own code"
        return f"Nothing known to be slow was found. Most expensive{where}: {_lower(costly.title)}."
    return ""


def _lower(title: str) -> str:
    return f"{title[:1].lower()}{title[1:]}"


def with_replayed_gains(ranked: tuple[Bottleneck, ...], model: WhatIfs) -> tuple[Bottleneck, ...]:
    """Gains from a replay of the recorded messages, for the regions with most time."""
    found = []
    for number, one in enumerate(sorted(ranked, key=lambda b: -b.own_ns)):
        asked = number < MOST_REPLAYED and one.category != "wait" and one.share > LEAST_REPLAYED
        gain = model.replayed_gain(one.name) if asked else None
        found.append(replace(one, gain_if_twice_as_fast=gain))
    found.sort(key=lambda b: (-(b.gain_if_twice_as_fast.value if b.gain_if_twice_as_fast else 0.0), -b.score))
    return tuple(found)


# -- the headline --------------------------------------------------------------------------------


def headline(
    own: Breakdown,
    driver: FlatTree,
    ranked: tuple[Bottleneck, ...],
    waiting: Waits | None,
    grown: Growth | None,
    sampled: tuple[LineShare, ...] = (),
) -> str:
    """What limits training, in one sentence."""
    if not own.wall_ns:
        return "Nothing was measured: the recorded threads took no time."
    sentence = _main_point(own, shares_by_name(driver), ranked, waiting, sampled)
    defects = [r for r in grown.regions if r.flagged] if grown else []
    if grown and defects and grown.excess > 1 + NOTABLE:
        first = defects[0]
        slower = f"{first.late_ns / first.early_ns:.1f}x so far"
        sentence += f", and calls of {first.name} get slower as the run goes on ({slower})"
    return sentence + "."


def _main_point(
    own: Breakdown,
    shares: dict[str, float],
    ranked: tuple[Bottleneck, ...],
    waiting: Waits | None,
    sampled: tuple[LineShare, ...],
) -> str:
    top = own.categories[0]
    if top.category == "unattributed" and sampled:
        return (
            f"{units.percent(top.share)} of your training thread's time is in no region, most of it at "
            f"{short_site(sampled[0].site)} ({units.percent(sampled[0].share)} of the samples)"
        )
    if top.category == "unattributed":
        return (
            f"{units.percent(top.share)} of your training thread's time is in no region: "
            "wrap more of the loop in hotloop.profile(...) to see where it goes"
        )
    if top.category == "hotloop":
        return (
            f"{units.percent(top.share)} of your training thread's time is the cost of hotloop itself: "
            "its regions are too short to measure, so wrap larger pieces"
        )
    if waiting is not None and top.category == "wait" and waiting.others_share is not None:
        return waiting.summary.removesuffix(".")
    here = [b for b in ranked if b.name in shares]
    if not here:
        return f"{units.percent(top.share)} of your training thread's time is {top.category}"
    best = here[0]
    takes = f"{best.name} ({best.category}) takes {units.percent(shares[best.name])}"
    if shares[best.name] < top.share / 2:  # many small regions of one category
        takes = f"{top.category} takes {units.percent(top.share)}"
    takes += " of your training thread's time"
    gain = best.gain_if_twice_as_fast
    if gain is None:
        return takes
    return (
        f"{takes}; making {best.name} twice as fast would speed up training "
        f"{gain.value:.2f}x [{gain.low:.2f}, {gain.high:.2f}]"
    )


# -- what is not known ---------------------------------------------------------------------------


def _unknown(
    capture: Capture, driver: DrivingThread, everything: FlatTree, waiting: Waits | None, held_up: bool
) -> list[str]:
    """Sentences for `not_measured`."""
    reasons = []
    if capture.region_cost_ns is None:
        reasons.append("cost of hotloop itself: the cost of a region was not calibrated for this capture")
    if not capture.progress.env_steps:
        reasons.append("env steps per second: no env steps were reported (hotloop.progress(env_steps=...))")
    if not capture.progress.updates:
        reasons.append("updates per second: no updates were reported (hotloop.progress(updates=...))")
    if held_up and waiting is not None:
        reasons.append(
            f"gains of regions that are not waits: {waiting.driver} waits for others "
            f"{units.percent(waiting.driver_share)} of its time, and time saved may only turn into more "
            "waiting, so their intervals reach down to no gain"
        )
    if all(n.rss_growth_bytes is None for n in everything.nodes):
        reasons.append("memory growth of regions: memory was not sampled")
    if all(n.device_ns is None for n in everything.nodes):
        reasons.append("device time: no region was timed on a device")
    if core_time(driver.process, driver.thread) is None:
        known = driver.thread.scheduling is not None and driver.thread.scheduling.run_queue_ns is not None
        why = (
            "the run was too short for the sampler to read time in the run queue twice"
            if known
            else "this system, or the version that recorded the run, does not report time in the run queue"
        )
        reasons.append(f"whether your training thread had a core: {why}")
    without_cpu = sum(t.cpu_ns is None for t in capture.threads)
    if without_cpu:
        reasons.append(
            f"CPU time of {without_cpu} of {len(capture.threads)} threads: they ended before it was read"
        )
    if everything.nodes and not driver.flat.nodes:
        reasons.append("regions of the driving thread: it entered none, so its time is unattributed")
    return reasons


def _no_gains(phases: Phases) -> str:
    return f"gains: {phases.why_no_gains}" if phases.why_no_gains else ""


def _boosted(capture: Capture) -> tuple[str, ...]:
    """What `hotloop boost` did in this run, a sentence for each model."""
    found = []
    for entry in capture.facts.get("libraries") or ():
        for model in entry.get("boost", ()):
            kind, calls = model.get("kind", "model"), model.get("calls", 0)
            if model["boosted"] is not None and kind in ("module", "function") and calls:
                passes = f" and {model['gradient_steps']:,} backward passes" if kind == "module" else ""
                found.append(
                    f"{model['model']} ({model['boosted']}) made {calls:,} calls{passes} in kernels. "
                    f"{model['audits_passed']} audits passed, {model['audits_failed']} failed."
                    + (f" It ended unboosted: {model['reason']}." if model["reason"] else "")
                )
                continue
            if model["boosted"] is None or not model["gradient_steps"]:
                found.append(f"{model['model']} ran unboosted: {model['reason'] or 'it made no update'}.")
                continue
            difference = model["largest_mean_difference"]
            apart = "infinitely" if difference is None else f"by {difference:.1g} learning rates on average"
            ended = f" It ended unboosted: {model['reason']}." if model["reason"] else ""
            switched = model.get("switched_at_env_step")
            since = "" if switched is None else f" from env step {switched:,} on"
            found.append(
                f"{model['model']} made {model['gradient_steps']:,} gradient steps in kernels{since} "
                f"({model['boosted']}). {model['audits_passed']} audits passed, {model['audits_failed']} "
                f"failed; weights differed {apart}.{ended}"
            )
    return tuple(found)


def _warnings(capture: Capture) -> list[str]:
    found = list(capture.warnings)
    for process in capture.processes:
        label = f"{process.label or 'process'} (pid {process.pid})"
        found += [f"{label}: {warning}" for warning in process.warnings]
        if process.died:
            found.append(f"{label} died before closing its recording; its figures end there")
        for thread in process.threads:
            if thread.uncertain:
                label = thread_label(process, thread)
                found.append(f"{label}: read in the middle of an update, so its latest event may be off")
    python = sum(p.core == "python" for p in capture.processes)
    if python:
        found.append(f"{python} of {len(capture.processes)} processes recorded with the slower Python core")
    names = sorted({n.name for n in _out_of_order(capture)})
    if names:
        found.append(f"regions closed out of order, so their times are doubtful: {', '.join(names[:5])}")
    return found


def _out_of_order(capture: Capture) -> list[Node]:
    todo, found = [capture.tree], []
    while todo:
        node = todo.pop()
        if node.out_of_order:
            found.append(node)
        todo += node.children
    return found


def _versions(capture: Capture) -> dict[str, str]:
    return {str(k): str(v) for k, v in dict(capture.facts.get("versions") or {}).items()}


def _nothing(capture: Capture) -> Findings:
    """Findings of a capture without any recorded thread."""
    empty = Breakdown("no thread", 0, (), 0, None)
    return Findings(
        headline="Nothing was recorded: no thread of this run entered a region.",
        command=tuple(typed(capture.command)),
        wall_ns=capture.wall_ns,
        env_steps=0,
        updates=0,
        episodes=0,
        env_steps_per_s=None,
        updates_per_s=None,
        mean_return=None,
        basis="nothing",
        breakdown=empty,
        all_threads=empty,
        bottlenecks=(),
        recommendations=(),
        growth=None,
        forecast=None,
        utilisation=(),
        roofline=(),
        regions=(),
        time_series={},
        machine=capture.machine,
        versions=_versions(capture),
        not_measured=("everything: no thread recorded a region",),
        warnings=tuple(_warnings(capture)),
    )
