"""Advice about the user's own code: slow idioms in hot lines, or else its most expensive function."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from hotloop._util.units import duration, percent
from hotloop.analysis.advice import (  # noqa: F401  (they register idioms)
    data_layout,
    jobs_and_connections,
    unread_results,
    whole_for_a_part,
)
from hotloop.analysis.advice.claims import time_table
from hotloop.analysis.advice.idioms import Match, match
from hotloop.analysis.advice.recommendation import Change, about, advise
from hotloop.analysis.advice.recomputed import recomputed
from hotloop.analysis.advice.repeated_work import repeated_work
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.advice.system_gains import gain_in_system
from hotloop.analysis.findings import Claim, Recommendation, Safety
from hotloop.analysis.hot_lines import (
    BLOCKS,
    LOOP_OF_TRAINING,
    LOOPS,
    LineSamples,
    Spot,
    line_of,
    spots,
    waits,
)
from hotloop.analysis.source_names import dotted
from hotloop.capture.samples import FunctionSource, SampledPath

LEAST_SHARE = 0.03  # of training, for one place; places of one idiom in one function are added up
LEAST_SAVED = 0.05  # of training, for advice
# What runs after a burst of other code finds cold caches. A forward pass or an update took 1.2x to 3x as long
# after 0.3 ms of other code as right after another one, up to 0.3 ms more, and longer still after code that
# walks through memory. So a fix saves more than the line's time: (part of the other time, at most so many ns
# for each pass), least, most likely, largest.
COLD_CODE = ((0.0, 0.0), (0.1, 0.08e6), (0.5, 0.5e6))
COLD_MEMORY = ((0.0, 0.0), (0.2, 0.2e6), (0.6, 1e6))
NO_COLD = ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0))
# Idioms about a choice that a script makes once, such as the format of its messages: one change for all
ACROSS_FUNCTIONS = frozenset(
    {"json_text", "pickling", "tiny_arrays", "dataframes", "state_as_text", "distributions", "tree_in_python"}
)
LEAST_WAITED = 0.02  # of training, spent waiting for a thread that the idiom keeps busy
MOST = 4  # pieces of advice about idioms
LEAST_EVALUATION = 0.10  # share of training
LEARNING = ("backward", "optimizer_step", "zero_grad")
NEARLY_ALL = 0.85  # share of training of a statement that runs it
MOST_POINTERS = 3  # places named without knowing what is wrong with them
# Part of their time that a fix saves, where there is something to fix: 74 % and more in eight scripts
IF_NEEDLESS = (0.25, 0.75, 1.0)
LEAST_HOT = 0.10  # share of a function or statement without a known idiom that is worth naming
FRAMEWORKS = (
    *("torch", "gymnasium", "gym", "stable_baselines3", "sb3_contrib", "torchrl", "tensordict", "tianshou"),
    *("lightning", "pytorch_lightning", "jax", "jaxlib", "flax", "ray", "numba"),
)
NETWORKS = ("torch.nn", "torch.optim", "torch.autograd", "torch.distributions", "torch._", "jax", "flax")
# Last words of framework functions that step envs, act, learn, or run the whole of training.
TRAINING = (
    *("step", "reset", "learn", "fit", "train", "run", "backward", "forward", "predict", "collect", "update"),
    *("collect_rollouts", "rollout", "act", "__iter__", "__next__", "__call__", "wrapper", "inner", "get"),
    *("step_wait", "step_async", "get_action", "remote"),
)
HELPER = "It ran in another thread or process, while the training thread waited for it."
TORCH_OPERATORS = ("torch._tensor.", "torch.functional.", "torch._ops.")  # Python around single operations


@dataclass(frozen=True)
class _Found:
    match: Match
    places: tuple[Spot, ...]
    lines: LineSamples
    without: frozenset[int] = frozenset()  # samples that a more specific idiom explains

    @cached_property
    def paths(self) -> frozenset[int]:
        """Samples that go away with its places, without calls into frameworks that only share their lines."""
        found = {number for spot in self.places for number in spot.paths}
        for spot in self.places:
            found |= _goes_away(self.lines, spot, self.match)
            if self.match.helpers:
                found |= self.lines.helping_at(spot.paths)
        passes = frozenset(
            self.lines.paths_where(
                lambda path: (
                    (self.match.backward and path.called.endswith(".backward"))
                    or (self.match.optimizer and path.called.startswith("torch.optim."))
                    or (path.called.startswith(self.match.also_called or "?") and not waits(path))
                )
            )
        )
        return passes | frozenset(
            number
            for number in found - self.without
            if _belongs(self.lines.paths[number], self.match.library_calls)
            and (self.match.waits or not waits(self.lines.paths[number]))
        )

    @property
    def is_loop(self) -> bool:
        return isinstance(self.places[0].node, LOOPS)

    @property
    def expected(self) -> float:
        """Share of training that is likely to be saved."""
        return self.lines.share_of(self.paths) * self.match.saved[1]


def _goes_away(lines: LineSamples, spot: Spot, match: Match) -> set[int]:
    """Samples of other functions of the user that run only because of the idiom."""
    if match.takes == "own" or not spot.below or lines.share_of(spot.below) > LOOP_OF_TRAINING:
        return set()
    if match.takes == "all":
        return set(spot.below)
    named = {name.rpartition(".")[2] for name, _ in spot.calls()}
    return {number for number in spot.below if _next_function(lines.paths[number], spot) not in named}


def _next_function(path: SampledPath, spot: Spot) -> str:
    """The user's function that the spot called, in the end."""
    for frame, below in pairwise(path.frames):
        if frame.file == spot.file and frame.function == spot.function:
            return below.function.rpartition(".")[2]
    return ""


def slow_idioms(run: RunView) -> list[Recommendation]:
    """Code in hot lines that is known to be slow."""
    lines = run.lines
    if lines is None or lines.biased:
        return []
    taken: set[int] = set()
    advice: list[Recommendation] = []
    for found in _by_expected_gain(lines):
        paths = found.paths - taken
        share = lines.share_of(paths)
        if share * found.match.saved[1] < LEAST_SAVED or len(advice) == MOST:
            continue
        taken |= paths
        advice.append(_idiom_advice(run, lines, found, paths, share))
    return advice


def _by_expected_gain(lines: LineSamples) -> list[_Found]:
    """Places of the same idiom in the same function (or file) belong together; largest saving first."""
    groups: _Groups = {}
    for spot in spots(lines, LEAST_SHARE / 3):
        found = repeated_work(spot) or recomputed(spot) or match(spot)
        if found is not None:
            function = "" if found.name in ACROSS_FUNCTIONS else spot.function
            groups.setdefault((found.name, spot.file, function), []).append((found, spot))
    groups = _with_waits_for_locks(groups)
    result = [_Found(places[0][0], tuple(spot for _, spot in places), lines) for places in groups.values()]
    result = [_without_more_specific(one, result) if one.is_loop else one for one in result]
    result = [_without_slow_hooks(one, result) for one in result]
    return sorted(result, key=lambda f: -f.expected)


_Groups = dict[tuple[str, str, str], list[tuple[Match, Spot]]]


def _with_waits_for_locks(groups: _Groups) -> _Groups:
    """Waiting for a lock belongs to the slow code that is run while it is held, where that is known."""
    result: _Groups = {}
    for key, places in groups.items():
        name, file, function = key
        for found, spot in places:
            inside = (
                [
                    other
                    for other, theirs in groups.items()
                    if other[1:] == (file, function)
                    and other[0] != name
                    and any(one.line in _body_of(spot) for _, one in theirs)
                ]
                if name == "waiting_for_a_lock"
                else []
            )
            if inside:
                result.setdefault(inside[0], []).append((replace(groups[inside[0]][0][0], waits=True), spot))
            else:
                result.setdefault(key, []).append((found, spot))
    # The slow code comes first: it names the idiom and the line.
    return {key: sorted(places, key=lambda place: place[1].asleep >= 0.6) for key, places in result.items()}


def _body_of(spot: Spot) -> range:
    """Lines of the `with` statement that begins where the spot is."""
    for node in ast.walk(spot.scope):
        if isinstance(node, ast.With) and node.lineno == spot.line:
            return range(node.lineno + 1, (node.end_lineno or node.lineno) + 1)
    return range(0)


def _without_more_specific(loop: _Found, others: list[_Found]) -> _Found:
    """A loop whose time is mostly that of one statement in it is not the point: the statement is."""
    whole = loop.lines.share_of(loop.paths)
    for other in others:
        inside = other.paths & loop.paths
        if not other.is_loop and inside and loop.lines.share_of(inside) > whole / 2:
            loop = replace(loop, without=loop.without | inside)
    return loop


def _without_slow_hooks(found: _Found, others: list[_Found]) -> _Found:
    """A user's function that a library calls is its own matter where it is known to be slow itself."""
    if found.match.takes != "hooks":
        return found
    hooks = frozenset(n for spot in found.places for n in _goes_away(found.lines, spot, found.match))
    if not hooks:
        return found
    inside = {spot.function for spot in found.places}
    for other in others:
        slow = other.paths & hooks
        deeper = not {spot.function for spot in other.places} & inside
        if deeper and slow and found.lines.share_of(slow) > found.lines.share_of(hooks) / 2:
            found = replace(found, without=found.without | slow)
    return found


def _idiom_advice(
    run: RunView, lines: LineSamples, found: _Found, paths: Iterable[int], share: float
) -> Recommendation:
    first = found.places[0]
    evidence = [f"{_where(found.places)} took {percent(share)} of training{_per_unit(run, share)}."]
    if first.text:
        evidence.append(f"{short(first.site)}: {first.text}")
    evidence.append(found.match.why)
    if lines.helped(paths) > 0.5:
        evidence.append(HELPER)
    held_up = lines.held_up_by(found.match.library_calls)
    waited = float((held_up * lines.weight_ns)[~lines.among(paths)].sum()) / lines.total_ns
    if waited >= LEAST_WAITED:
        evidence.append(
            f"Another {percent(waited)} of training went by while a thread of that library kept this one "
            "from running: Python runs one thread at a time."
        )
    low, likely, high = found.match.saved
    warm = ", and code that runs after it gets faster too, since the caches stay warm"
    evidence.append(
        f"Assumption: the change saves {about(likely)} of that time (between {about(low)} and "
        f"{about(high)}){warm if found.match.chills else ''}."
    )
    change = Change(
        _lower(found.match.title),
        found.match.effort,
        found.match.safety,
        provable_by="patch" if found.match.patch else "hand",
        patch=found.match.patch,
    )
    made = advise(
        run,
        found.match.name,
        None,
        f"{found.match.title} ({short(first.site)})",
        evidence,
        found.match.remedy,
        lines.gain(
            paths,
            found.match.saved,
            held_up if waited >= LEAST_WAITED else None,
            _rest_faster(run, COLD_MEMORY if found.match.walks_memory else COLD_CODE)
            if found.match.chills
            else NO_COLD,
        ),
        change,
    )
    return replace(made, site=first.site, claim=Claim(sampled=tuple(sorted(paths))))


def _rest_faster(
    run: RunView, cold: tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
) -> list[tuple[float, float]]:
    """How much faster other code gets without the burst: fractions of its time, and limits as shares."""
    passes = max(run.iterations, run.updates, 1)  # at most one burst for each is assumed
    busy_ns = (run.driver.cpu_ns or run.wall_ns) / passes
    known = run.iterations or run.updates
    return [(fraction, ns / busy_ns if known else fraction / 3) for fraction, ns in cold]


def short(site: str) -> str:
    """`train.py:12`: the folder is in `Recommendation.site`."""
    return site.rpartition("/")[2]


def _lower(title: str) -> str:
    return title[:1].lower() + title[1:]


def _where(places: tuple[Spot, ...]) -> str:
    rows = sorted({spot.line for spot in places})
    file = short(places[0].file)
    if len(rows) == 1:
        return f"{file}:{rows[0]}"
    return f"{file} lines {', '.join(map(str, rows[:6]))}{' ...' if len(rows) > 6 else ''}"


def _per_unit(run: RunView, share: float) -> str:
    if run.env_steps:
        return f", {duration(share * run.wall_ns / run.env_steps)} per env step"
    if run.updates:
        return f", {duration(share * run.wall_ns / run.updates)} per update"
    return ""


def evaluation_in_the_loop(run: RunView) -> list[Recommendation]:
    """A function of the user's that plays without learning and returns a number: an evaluation."""
    lines = run.lines
    if lines is None or lines.biased:
        return []
    for place in _outermost_functions(lines):
        if not LEAST_EVALUATION <= place.share <= 0.95:
            continue
        rest = set(range(len(lines.paths))) - place.paths
        if _plays_only(lines, place.paths):
            steps = any(_steps_envs(region) for region in lines.region_paths_of(rest))
        elif _plays_own_env(lines, place, rest):
            steps = True
        else:
            continue
        if not steps and not any(lines.paths[n].called.endswith(".backward") for n in rest):
            return []  # evolution strategies train by what others call evaluating
        caller = place.caller
        evidence = [
            f"`{place.name}` took {percent(place.share)} of training{_per_unit(run, place.share)}. It steps "
            "an env, learns nothing and returns a number.",
            *([f"Called at {short(caller)}."] if caller else []),
            "The gain is for a quarter of the evaluations, up to none.",
        ]
        made = advise(
            run,
            "evaluation_in_the_loop",
            None,
            f"Evaluate less often (`{place.name}` takes {percent(place.share)})",
            evidence,
            "Call it every few times it is called now, with fewer or shorter episodes (one is enough where "
            "policy and env are deterministic), or evaluate checkpoints in another process. What is learnt "
            "stays the same, if it has its own env and random numbers.",
            lines.gain(place.paths, (0.75, 0.9, 1.0)),
            Change(f"call `{place.name}` less often", "minutes", "semantic"),
        )
        return [replace(made, site=caller, claim=Claim(sampled=tuple(sorted(place.paths))))]
    return []


# Methods of envs and wrappers: what they call evaluates no policy.
ENV_METHODS = (".step", ".reset", ".observation", ".reward", ".action")


@dataclass(frozen=True)
class _Called:
    """A user's function with everything it calls."""

    name: str
    caller: str  # file:line that calls it most, "" if unknown
    paths: frozenset[int]
    share: float


def _outermost_functions(lines: LineSamples) -> list[_Called]:
    """Functions whose source looks like an evaluation, with all they call, most time first."""
    wanted = {
        (source.file, source.first_line): source.function
        for source in lines.sources
        if returns_a_number(source.text)
    }
    paths: dict[tuple[str, int], set[int]] = {}
    callers: dict[tuple[str, int], dict[str, float]] = {}
    for number, path in enumerate(lines.paths):
        for place, frame in enumerate(path.frames):
            key = frame.file, frame.first_line
            if frame.function.endswith(ENV_METHODS):
                break  # below, the env computes what it returns
            if key in wanted and frame.function != "<module>":
                paths.setdefault(key, set()).add(number)
                above = path.frames[place - 1].site if place else ""
                seen = callers.setdefault(key, {})
                seen[above] = seen.get(above, 0.0) + lines.weight_of([number])
    found = [
        _Called(
            wanted[key],
            max(callers[key], key=lambda site: callers[key][site]),
            frozenset(p),
            lines.share_of(p),
        )
        for key, p in paths.items()
    ]
    return sorted(found, key=lambda place: -place.share)


def returns_a_number(source: str) -> bool:
    """Whether a function returns one number: a mean, a sum, a quotient, a total that it added up."""
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return False
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    if not functions:
        return False
    added = {
        dotted(node.target)
        for node in ast.walk(functions[0])
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add)
    }
    returned = [node.value for node in ast.walk(functions[0]) if isinstance(node, ast.Return) and node.value]
    return bool(returned) and all(_is_number(value, added) for value in returned)


def _is_number(value: ast.expr, added: set[str]) -> bool:
    if isinstance(value, ast.Tuple):  # mean and standard deviation
        return bool(value.elts) and all(_is_number(element, added) for element in value.elts)
    if isinstance(value, ast.BinOp):
        return isinstance(value.op, ast.Div) or _is_number(value.left, added)
    if isinstance(value, ast.Call):
        return dotted(value.func).rpartition(".")[2] in (
            "mean",
            "sum",
            "float",
            "median",
            "std",
            "fmean",
            "item",
        )
    return isinstance(value, ast.Name | ast.Attribute) and dotted(value) in added


def _plays_only(lines: LineSamples, paths: Iterable[int]) -> bool:
    """Whether envs are stepped there and nothing is learnt."""
    plays = learns = 0.0
    for region, share in lines.region_paths_of(paths).items():
        plays += share * _steps_envs(region)
        learns += share * any(name in LEARNING for name in region)
    return plays > 0.02 and learns < 0.01


def _plays_own_env(lines: LineSamples, place: _Called, rest: set[int]) -> bool:
    """Whether it steps the script's own env, as training does, but only now and then."""

    def stepping(paths: Iterable[int]) -> dict[tuple[str, int], float]:
        found: dict[tuple[str, int], float] = {}
        for number in paths:
            for frame in lines.paths[number].frames:
                if frame.function.rpartition(".")[2] == "step":
                    key = frame.file, frame.first_line
                    found[key] = found.get(key, 0.0) + lines.weight_of([number])
        return found

    here, there = stepping(place.paths), stepping(rest)
    both = here.keys() & there.keys()
    if not both or sum(here[key] for key in both) < 0.02 * lines.weight_of(place.paths):
        return False
    learns = [n for n in place.paths if _learns(lines.paths[n])]
    if lines.share_of(learns) > 0.01 * place.share or not any(_learns(lines.paths[n]) for n in rest):
        return False
    return _called_now_and_then(lines, place)


def _learns(path: SampledPath) -> bool:
    return path.called.endswith(".backward") or path.called.startswith("torch.optim.")


def _called_now_and_then(lines: LineSamples, place: _Called) -> bool:
    """Whether the line that calls a function stands under a condition such as `step % 1000 == 0`."""
    file, _, row = place.caller.rpartition(":")
    for source in lines.sources:
        if source.file != file or not row.isdecimal():
            continue
        try:
            tree = ast.parse(textwrap.dedent(source.text))
        except SyntaxError:
            continue
        line = int(row) - source.first_line + 1
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.If)
                and node.body[0].lineno <= line <= (node.body[-1].end_lineno or node.body[-1].lineno)
                and any(isinstance(n, ast.Mod | ast.GtE | ast.Gt) for n in ast.walk(node.test))
            ):
                return True
    return False


def _steps_envs(region: tuple[str, ...]) -> bool:
    return any(name == "env_step" or name.endswith((".step", "step_wait")) for name in region)


def sleeping_event_loop(run: RunView) -> list[Recommendation]:
    """An asyncio program that sleeps in a loop until something has happened."""
    lines = run.lines
    if lines is None or lines.biased:
        return []
    idle = lines.paths_where(lambda path: "asyncio" in path.called and path.innermost.endswith(".select"))
    share = lines.share_of(idle)
    polls = [place for source in lines.sources for place in _sleeps_in_loops(source)]
    if share < LEAST_SAVED or not polls:
        return []
    site, text = polls[0]
    evidence = [
        f"The event loop had nothing to run {percent(share)} of training{_per_unit(run, share)}.",
        f"{short(site)}: {text}",
        "A task that sleeps in a loop looks again only when its time is up, though there may be work.",
        "Assumption: waiting for the event itself saves 90 % of that time (between 40 % and 100 %).",
    ]
    made = advise(
        run,
        "sleeping_event_loop",
        None,
        f"Wait for the event instead of sleeping ({short(site)})",
        evidence,
        "Use asyncio.Queue, asyncio.Event or asyncio.Condition, which wake the task up at once.",
        lines.gain(idle, (0.4, 0.9, 1.0)),
        Change("await the event, not asyncio.sleep", "minutes", "safe"),
    )
    return [replace(made, site=site, claim=Claim(sampled=tuple(idle)))]


def awaits_one_by_one(run: RunView) -> list[Recommendation]:
    """An asyncio program that waits for the answers of several others one after the other."""
    lines = run.lines
    if lines is None or lines.biased:
        return []
    idle = lines.paths_where(lambda path: "asyncio" in path.called and path.innermost.endswith(".select"))
    share = lines.share_of(idle)
    places = [place for source in lines.sources for place in _awaits_in_loops(source)]
    if share < LEAST_SAVED or not places or any(_sleeps_in_loops(source) for source in lines.sources):
        return []
    site, text = places[0]
    made = advise(
        run,
        "awaits_one_by_one",
        None,
        f"Await all requests together, not one after the other ({short(site)})",
        [
            f"The event loop had nothing to run {percent(share)} of training{_per_unit(run, share)}.",
            f"{short(site)}: {text}",
            "The loop awaits each request before it starts the next one, so their delays add up.",
            "Assumption: waiting for all at once saves 85 % of that time (between 40 % and 97 %).",
        ],
        "Start all requests and await them together: `await asyncio.gather(*(client.step(a) for ...))`, or a "
        "TaskGroup. The results come in the same order.",
        lines.gain(idle, (0.4, 0.85, 0.97)),
        Change("asyncio.gather over the requests", "minutes", "safe"),
    )
    return [replace(made, site=site, claim=Claim(sampled=tuple(idle)))]


def _awaits_in_loops(source: FunctionSource) -> list[tuple[str, str]]:
    """Sites and texts of `await request(item)` in a loop over items that does not need the answer before."""
    try:
        tree = ast.parse(textwrap.dedent(source.text))
    except SyntaxError:
        return []
    rows = source.text.splitlines()
    found = set()
    for node in ast.walk(tree):
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
    return [(f"{source.file}:{source.first_line + row - 1}", rows[row - 1].strip()) for row in sorted(found)]


def _is_count(loop: ast.For) -> bool:
    """`for step in range(n)`: a loop over time."""
    return isinstance(loop.iter, ast.Call) and dotted(loop.iter.func) == "range"


def _sleeps_in_loops(source: FunctionSource) -> list[tuple[str, str]]:
    """Sites and texts of `await asyncio.sleep(...)` in `while` loops."""
    try:
        tree = ast.parse(textwrap.dedent(source.text))
    except SyntaxError:
        return []
    rows = source.text.splitlines()
    found = {
        node.lineno
        for loop in ast.walk(tree)
        if isinstance(loop, ast.While)
        for node in ast.walk(loop)
        if isinstance(node, ast.Call) and dotted(node.func).endswith("asyncio.sleep")
    }
    return [(f"{source.file}:{source.first_line + row - 1}", rows[row - 1].strip()) for row in sorted(found)]


def busy_threads(run: RunView) -> list[Recommendation]:
    """Another thread of the user computes in Python while the training thread wants to."""
    lines = run.lines
    if lines is None or lines.biased:
        return []
    found = lines.busy_threads()
    if not found:
        return []
    share = {site: float(lines.weight_ns[mask].sum()) / lines.total_ns for site, mask in found.items()}
    together = np.logical_or.reduce(list(found.values()))
    held_up = float(lines.weight_ns[together].sum()) / lines.total_ns
    if held_up < LEAST_HOT:
        return []
    site = max(share, key=lambda one: share[one])
    made = advise(
        run,
        "busy_threads",
        None,
        f"Take the work of another thread out of this process ({short(site)})",
        [
            f"The training thread was ready to run, but asleep, {percent(held_up)} of training, while "
            f"another thread ran your code, most often {short(site)}.",
            "Python runs one thread at a time: the one that computes keeps the other from running.",
            "Assumption: all of that time is saved, and at least half of it.",
        ],
        "If that thread only waits for something, let it block (Event.wait, Queue.get) instead of looking "
        "again and again. If it computes, move it to a process, or into calls that release the GIL.",
        lines.gain((), (0.0, 0.0, 0.0), together.astype(np.float64)),
        Change("let the thread block, or move it to a process", "hours", "safe"),
    )
    return [replace(made, site=site)]


@dataclass(frozen=True)
class _Part:
    """A part of a library that ought to take little time."""

    modules: tuple[str, ...]  # beginnings of its functions' names
    name: str
    title: str
    why: str
    remedy: str
    saved: tuple[float, float, float]
    safety: Safety = "safe"
    takes: tuple[str, ...] = ()  # ends of the user's functions that the part calls and that go away with it
    takes_users: bool = False  # also counts where the user's code calls it directly
    with_waits: bool = False  # also takes time in which the same library call waits
    only_if: Callable[[LineSamples], bool] = lambda _: True  # further evidence
    again: bool = False  # only where it happens all through training, not at its beginning or end alone


def _returns_much_info(source: FunctionSource) -> bool:
    """Whether a class with a `step` makes dicts with three entries or more, as large infos are."""
    try:
        tree = ast.parse(textwrap.dedent(source.text))
    except SyntaxError:
        return False
    classes = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    envs = [c for c in classes if any(isinstance(n, ast.FunctionDef) and n.name == "step" for n in c.body)]
    return any(isinstance(n, ast.Dict) and len(n.keys) >= 3 for env in envs for n in ast.walk(env))


COMPILERS = ("numba.core.", "llvmlite.", "torch._dynamo.", "torch._inductor.", "jax._src.")
LATE = 0.15  # part of all compilation that falls into the last quarter of training, if it goes on
LEAST_BURSTS = 5  # of compilation with other work in between; at its start a script compiles a few functions


def _still_compiles(lines: LineSamples) -> bool:
    """Whether compilation comes back again and again, to the end of training."""
    among = lines.among(lines.paths_where(lambda path: path.innermost.startswith(COMPILERS)))
    whole = float(lines.weight_ns[among].sum())
    late = float(lines.weight_ns[among & (lines.block >= BLOCKS * 3 // 4)].sum())
    compiles = among[np.argsort(lines.time_ns, kind="stable")].astype(np.int64)
    starts = np.flatnonzero(np.diff(compiles) == 1) + 1
    bursts = sum(not compiles[max(start - 3, 0) : start].any() for start in starts)
    return whole > 0 and late / whole >= LATE and bursts >= LEAST_BURSTS


PARTS = (
    _Part(
        ("torch.utils.data._utils.collate", "torch.utils.data._utils.fetch", "torch.utils.data.dataset."),
        "collating",
        "Yield whole batches, do not collate single samples",
        "The DataLoader fetches samples one at a time and collates them into a batch in Python.",
        "Let the dataset index its arrays once for a whole batch and yield ready batches: "
        "DataLoader(dataset, batch_size=None), or no loader at all for data that fits into memory.",
        (0.6, 0.9, 0.98),
        takes=("__getitem__", "__iter__"),
    ),
    _Part(
        (
            *(
                "numba.core.",
                "numba.np.",
                "llvmlite.",
                "torch._dynamo.",
                "torch._inductor.",
                "jax._src.compiler",
            ),
            *("jax._src.interpreters", "jax._src.pjit", "torch.jit._script"),
        ),
        "compiling_again",
        "Compile functions once, not again and again during training",
        "Functions are compiled all through training, not only at its start: a compiled function is defined "
        "anew (a closure with numba.njit, jax.jit of a lambda), or its arguments have new types or shapes.",
        "Define the compiled function once at module level and pass what changes as arguments of the same "
        "types and shapes.",
        (0.85, 0.97, 1.0),
        takes_users=True,
        only_if=lambda lines: _still_compiles(lines),
    ),
    _Part(
        ("torch._tensor_str", "numpy.core.arrayprint", "numpy._core.arrayprint"),
        "formatting_tensors",
        "Do not format tensors as text in the loop",
        "Formatting a tensor or array takes hundreds of microseconds, whether or not the text is shown.",
        "Format plain numbers, and only when the line is printed.",
        (0.85, 0.98, 1.0),
    ),
    _Part(
        ("traceback.", "linecache.", "torch.autograd.anomaly_mode"),
        "anomaly_detection",
        "Turn off anomaly detection",
        "Stack traces are recorded during training, as torch.autograd.set_detect_anomaly(True) does for "
        "every operation (detect_anomaly=True in Lightning); it also checks each gradient for NaN.",
        "Remove torch.autograd.set_detect_anomaly(True) or detect_anomaly; switch it on only to find a NaN.",
        (0.85, 0.98, 1.0),
    ),
    _Part(
        ("multiprocessing.managers.",),
        "manager_proxies",
        "Take data out of multiprocessing.Manager",
        "Each access to a Manager's dict, list or value is a message to another process and back.",
        "Use plain shared memory (multiprocessing.Array, tensors with share_memory_), a Pipe, or "
        "fetch the whole object once and work on the copy.",
        (0.6, 0.9, 0.99),
        takes_users=True,
    ),
    _Part(
        (
            *(
                "multiprocessing.popen_fork",
                "multiprocessing.popen_spawn",
                "multiprocessing.popen_forkserver",
            ),
            *(
                "multiprocessing.process",
                "multiprocessing.context",
                "multiprocessing.forkserver",
                "subprocess.",
            ),
        ),
        "starting_processes",
        "Start worker processes once, not again and again",
        "Processes are started (and waited for at their end) during training, as a DataLoader with workers "
        "does for every pass over its data.",
        "DataLoader: num_workers=0 for data that fits into memory, or persistent_workers=True. Pools and env "
        "workers: create them before the loop.",
        (0.5, 0.9, 1.0),
        takes_users=True,
        with_waits=True,
        again=True,
    ),
    _Part(
        ("tqdm.", "rich.", "lightning.pytorch.callbacks.progress", "pytorch_lightning.callbacks.progress"),
        "progress_bar",
        "Update the progress bar less often",
        "A progress bar is drawn during training.",
        "Raise its interval (mininterval, refresh_rate), or turn it off.",
        (0.85, 0.98, 1.0),
        takes_users=True,
    ),
    _Part(
        ("h5py.", "gzip.", "zipfile.", "bz2.", "lzma.", "PIL.", "imageio."),
        "library_files",
        "Write or read files less often",
        "A library writes, reads or compresses files during training.",
        "Save rarely, without compression, or in another process; keep what was read.",
        (0.75, 0.95, 1.0),
        takes_users=True,
    ),
    _Part(
        ("pydantic.", "jsonschema.", "beartype.", "typeguard.", "jaxtyping.", "dacite."),
        "validation",
        "Validate data at the border, not at every step",
        "A library checks types or schemas of data during training.",
        "Use plain dataclasses, tuples or arrays inside the loop, or turn the checks off.",
        (0.7, 0.93, 1.0),
        takes_users=True,
    ),
    _Part(
        ("tianshou.data.",),
        "large_infos",
        "Return small, flat infos",
        "tianshou turns each info dict into a Batch, stores it in the replay buffer and copies it into every "
        "batch, entry by entry.",
        "Let the env return only the entries of `info` that are used; drop nested dicts and arrays.",
        (0.3, 0.8, 0.97),
        only_if=lambda lines: any(_returns_much_info(source) for source in lines.sources),
    ),
    _Part(
        ("gymnasium.utils.passive_env_checker", "gymnasium.wrappers.common.PassiveEnvChecker"),
        "env_checker",
        "Turn off the env checker",
        "Gymnasium checks every observation and action against the spaces.",
        "Pass disable_env_checker=True to gym.make.",
        (0.8, 0.97, 1.0),
    ),
    _Part(
        ("copy.",),
        "copies_in_a_library",
        "Give the library less to copy",
        "A library copies what it is given object by object.",
        "Hand over plain arrays and numbers, not objects, nested dicts or lists; some wrappers take "
        "copy=False.",
        (0.2, 0.8, 1.0),
    ),
    _Part(
        ("warnings.",),
        "repeated_warnings",
        "Fix what is warned about",
        "The same warning is raised again and again; even a hidden one is put together and looked up.",
        "Read the warning once and remove its cause.",
        (0.8, 0.98, 1.0),
    ),
    _Part(
        (
            *("tensorboard.", "torch.utils.tensorboard", "wandb.", "mlflow.", "logging.", "torchmetrics."),
            *("lightning.pytorch.loggers", "lightning.fabric.loggers", "pytorch_lightning.loggers"),
            "lightning.pytorch.trainer.connectors.logger_connector",
        ),
        "library_logging",
        "Log metrics less often",
        "A logger of the library writes during training.",
        "Raise its interval (log_interval, log_every_n_steps), or leave out histograms and images.",
        (0.8, 0.98, 1.0),
    ),
    _Part(
        ("json.", "pickle.", "yaml."),
        "library_serialisation",
        "Turn objects into text or bytes less often",
        "A library serialises objects during training.",
        "Save or send less often, and arrays instead of objects.",
        (0.5, 0.9, 1.0),
    ),
)


def library_parts(run: RunView) -> list[Recommendation]:
    """Parts of libraries that take time because of what they are given, or how they are set up."""
    lines = run.lines
    if lines is None or lines.biased:
        return []
    known = {number for found in _by_expected_gain(lines) for number in found.paths}
    advice = []
    for part in PARTS:
        paths = {
            number
            for number, path in enumerate(lines.paths)
            if (
                path.innermost.startswith(part.modules)
                or (part.takes_users and path.called.startswith(part.modules))
            )
            and number not in known
            and (part.takes_users or not _in_user_code(path))
        }
        if part.takes and lines.share_of(paths) * part.saved[1] >= LEAST_SAVED / 3:
            paths |= {
                number
                for number, path in enumerate(lines.paths)
                if number not in known and path.line and path.line.function.endswith(part.takes)
            }
        if part.with_waits and lines.share_of(paths) >= LEAST_SAVED:
            callers = {lines.paths[number].called for number in paths}
            paths |= {n for n in lines.paths_where(waits) if lines.paths[n].called in callers}
        share = lines.share_of(paths)
        if share * part.saved[1] < LEAST_SAVED or not part.only_if(lines):
            continue
        if part.again and not _in_both_halves(lines, paths):
            continue
        inner = [
            n for n in paths if any(name.startswith(part.modules) for name in _libraries(lines.paths[n]))
        ]
        hottest = lines.paths[max(inner, key=lambda number: lines.weight_of([number]))]
        site = hottest.line.site if hottest.line else ""
        inside = next(m for name in _libraries(hottest) for m in part.modules if name.startswith(m)).rstrip(
            "."
        )
        made = advise(
            run,
            part.name,
            None,
            f"{part.title} (`{inside}` takes {percent(share)})",
            [
                f"`{inside}` took {percent(share)} of training{_per_unit(run, share)}, inside "
                f"`{hottest.called}`{f', called at {short(site)}' if site else ''}.",
                part.why,
                f"Assumption: the change saves {about(part.saved[1])} of that time (between "
                f"{about(part.saved[0])} and {about(part.saved[2])}).",
            ],
            part.remedy,
            lines.gain(paths, part.saved),
            Change(_lower(part.title), "minutes", part.safety),
        )
        advice.append(replace(made, site=site, claim=Claim(sampled=tuple(sorted(paths)))))
    return advice


def _in_both_halves(lines: LineSamples, paths: Iterable[int]) -> bool:
    """Whether these samples lie in both halves of training; workers are joined once, at the end."""
    blocks = np.unique(lines.block[lines.among(paths)])
    return bool((blocks < BLOCKS // 2).any() and (blocks >= BLOCKS // 2).any())


def _libraries(path: SampledPath) -> tuple[str, str]:
    """The innermost library function, and the one that the user's line called."""
    return path.innermost, path.called


def hottest_code(run: RunView) -> list[Recommendation]:
    """The user's functions and statements without a known idiom that take most of training.

    First come those that are not what training is about (networks, optimizers, envs of a library); the
    statement that calls those is named only if there is nothing else.
    """
    lines = run.lines
    if lines is None or lines.biased:
        return []
    known = {number for found in _by_expected_gain(lines) for number in found.paths}
    known |= {number for one in run.given if one.claim is not None for number in one.claim.sampled}
    own = {number for number in lines.paths_where(_in_user_code) if number not in known}
    places = [*_functions(lines, own), *_statements(lines, own), *_library_statements(lines, known)]
    chosen: list[_Place] = []
    # A statement is the better answer when it accounts for most of its function.
    for place in sorted(places, key=lambda place: -place.share * (1.3 if place.text else 1.0)):
        new = place.paths - {number for other in chosen for number in other.paths}
        if place.share >= LEAST_HOT and lines.share_of(new) > place.share / 2:
            chosen.append(place)
    if not chosen:
        rest = [place for place in _training_statements(lines, known) if place.share >= LEAST_HOT]
        chosen = sorted(rest, key=lambda place: -place.share)[:1]
    else:
        chosen[1:1] = _repeating_callers(lines, chosen[0])
    return [_pointer(run, lines, place) for place in chosen[:MOST_POINTERS]]


def _repeating_callers(lines: LineSamples, hot: _Place) -> list[_Place]:
    """The nearest and the outermost statement in a loop through which a hot function is called.

    What a function costs is often decided there: how often it is called, and for what.
    """
    found: list[tuple[float, _Place]] = []
    for spot in spots(lines, LEAST_HOT):
        if isinstance(spot.node, (*LOOPS, ast.Import, ast.ImportFrom)) or _is_everything(lines, spot):
            continue
        through = frozenset(spot.below) & hot.paths
        repeats = bool(spot.loops) or any(isinstance(n, ast.comprehension) for n in ast.walk(spot.node))
        if not repeats or lines.share_of(through) < 0.7 * hot.share:
            continue
        whole = lines.share_of({*spot.paths, *spot.below})
        share = lines.share_of(through)
        found.append((whole, _Place(spot.function, spot.site, spot.text, through, share, calls=hot.name)))
    found.sort(key=lambda one: one[0])
    return [place for _, place in (*found[:1], *found[1:][-1:])]


def _pointer(run: RunView, lines: LineSamples, best: _Place) -> Recommendation:
    what = f"`{best.name}`" if best.name != "<module>" else "your script"
    inside = (
        f"inside `{best.called}`"
        if best.called
        else "in your own code, without calls into torch or an RL library"
    )
    if best.calls:
        inside = f"in calls that lead to `{best.calls}`"
    claim, table = Claim(sampled=tuple(sorted(best.paths))), time_table(run)
    alone = [lines.gain(best.paths, (part, part, part)) for part in (1.0, 0.5)]
    gone, twice = (gain_in_system(run, gain, claim, table) or gain for gain in alone)
    evidence = [
        f"{short(best.site)} ({what}) took {percent(best.share)} of training {inside}"
        f"{_per_unit(run, best.share)}.",
        *([f"{short(best.site)}: {best.text}"] if best.text else []),
        *([HELPER] if lines.helped(best.paths) > 0.5 else []),
        f"Twice as fast, training would run {twice.value:.2f}x as fast; without it, {gone.value:.2f}x.",
    ]
    advice = (
        "Nothing there is known to be slow; it may just be the work. Is all of it needed, and as often? "
        "If it handles single elements, whole arrays or numba are faster."
    )
    if best.calls:
        advice = (
            f"`{best.calls}` is called from here again and again. Is every call needed, does each get new "
            "arguments, and could one call do it for all items?"
        )
    elif best.essential:
        advice = (
            "Nothing there is known to be slow: this is what training consists of. Is all of it needed, as "
            "often, in this size and precision?"
        )
    elif best.called:
        advice = (
            f"Nothing there is known to be slow. Look at what `{best.called}` is given and how it is set up: "
            "could it get less, or be called less often?"
        )
    made = advise(
        run,
        "hottest_code",
        None,
        f"Calls of `{best.calls}` take {percent(best.share)} ({short(best.site)})"
        if best.calls
        else f"{what[:1].upper()}{what[1:]} takes {percent(best.share)} ({short(best.site)})",
        evidence,
        advice,
        lines.gain(best.paths, IF_NEEDLESS),
        Change(
            f"make {what} cheaper, or call it less often", "days" if best.essential else "hours", "semantic"
        ),
        tier="no_known_remedy",
    )
    # A caller stands beside the function that it calls: both are about the same time.
    return replace(made, site=best.site, claim=None if best.calls else claim)


@dataclass(frozen=True)
class _Place:
    name: str  # of the function
    site: str
    text: str  # "" for a whole function
    paths: frozenset[int]
    share: float
    called: str = ""  # the library function that takes the time; "": the code itself
    essential: bool = False  # acting, stepping or learning
    calls: str = ""  # the hot function of the user that it calls


def _functions(lines: LineSamples, own: set[int]) -> list[_Place]:
    """Own code of each function; not of a script's main code, which is no unit to work on."""
    found: dict[tuple[str, str, int], dict[int, list[int]]] = {}
    for number in own:
        frame = line_of(lines.paths[number])
        if frame is not None and frame.function != "<module>":
            rows = found.setdefault((frame.file, frame.function, frame.first_line), {})
            rows.setdefault(frame.line, []).append(number)
    places = []
    for (file, function, _), rows in found.items():
        hottest = max(rows, key=lambda row: lines.weight_of(rows[row]))
        paths = frozenset(number for numbers in rows.values() for number in numbers)
        places.append(_Place(function, f"{file}:{hottest}", "", paths, lines.share_of(paths)))
    return places


def _statements(lines: LineSamples, own: set[int]) -> list[_Place]:
    places = []
    for spot in spots(lines, LEAST_HOT):
        if isinstance(spot.node, (*LOOPS, ast.Import, ast.ImportFrom)) or _is_everything(lines, spot):
            continue  # a loop is as large as its function, or as the script
        paths = frozenset(spot.paths) & own
        share = lines.share_of(paths)
        places.append(_Place(spot.function, spot.site, spot.text, paths, share))
    return places


def _is_everything(lines: LineSamples, spot: Spot) -> bool:
    """`trainer.fit(model)`, `asyncio.run(main())`: a statement that stands for all of training."""
    return lines.share_of({*spot.paths, *spot.below}) > NEARLY_ALL


def _library_statements(lines: LineSamples, known: set[int]) -> list[_Place]:
    """Statements that spend their time in a framework, on other things than acting, stepping and learning."""
    places = []
    for spot in spots(lines, LEAST_HOT):
        if isinstance(spot.node, LOOPS) or _is_everything(lines, spot):
            continue
        paths = frozenset(n for n in spot.paths if n not in known and not _is_training(lines.paths[n]))
        share = lines.share_of(paths)
        called = lines.paths[max(paths, key=lambda n: lines.weight_of([n]))].called if paths else ""
        if called.partition(".")[0] in FRAMEWORKS:
            places.append(_Place(spot.function, spot.site, spot.text, paths, share, called))
    return places


def _training_statements(lines: LineSamples, known: set[int]) -> list[_Place]:
    """Statements with all that they call, but not those that stand for nearly everything."""
    places = []
    for spot in spots(lines, LEAST_HOT):
        if isinstance(spot.node, (*LOOPS, ast.Import, ast.ImportFrom)) or _is_everything(lines, spot):
            continue
        paths = frozenset({*spot.paths, *spot.below} - known)
        share = lines.share_of(paths)
        called = lines.paths[max(paths, key=lambda n: lines.weight_of([n]))].called if paths else ""
        if LEAST_HOT <= share < LOOP_OF_TRAINING / 2:
            places.append(_Place(spot.function, spot.site, spot.text, paths, share, called, essential=True))
    return places


def _is_training(path: SampledPath) -> bool:
    """Whether a framework does there what training is about, or runs the whole of it."""
    called = path.called
    return called.startswith(NETWORKS) or called.rpartition(".")[2] in TRAINING


def _belongs(path: SampledPath, library_calls: tuple[str, ...]) -> bool:
    return (
        _in_user_code(path)
        or (path.called.startswith(TORCH_OPERATORS) and not path.called.endswith(".backward"))
        or any(name in path.called for name in library_calls)
    )


def _in_user_code(path: SampledPath) -> bool:
    """Whether the time belongs to the user's code itself, and not to a framework that it called."""
    return path.line is not None and path.called.partition(".")[0] not in FRAMEWORKS
