"""Advice about the user's own code: slow idioms in hot lines, or else its most expensive function."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from hotloop._util.units import duration, percent
from hotloop.analysis.advice.idioms import Match, match
from hotloop.analysis.advice.recommendation import Change, about, advise
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.findings import Claim, Recommendation
from hotloop.analysis.hot_lines import LOOP_OF_TRAINING, LineSamples, Spot, line_of, spots
from hotloop.analysis.source_names import dotted
from hotloop.capture.samples import SampledPath

LEAST_SHARE = 0.03  # of training, for one place; places of one idiom in one function are added up
LEAST_SAVED = 0.05  # of training, for advice
LEAST_WAITED = 0.02  # of training, spent waiting for a thread that the idiom keeps busy
MOST = 4  # pieces of advice about idioms
LEAST_EVALUATION = 0.10  # share of training
LEARNING = ("backward", "optimizer_step", "zero_grad")
LEAST_HOT = 0.10  # share of a function or statement without a known idiom that is worth naming
FRAMEWORKS = (
    *("torch", "gymnasium", "gym", "stable_baselines3", "sb3_contrib", "torchrl", "tensordict", "tianshou"),
    *("lightning", "pytorch_lightning", "jax", "jaxlib", "flax", "ray", "numba"),
)
TORCH_OPERATORS = ("torch._tensor.", "torch.functional.", "torch._ops.")  # Python around single operations


@dataclass(frozen=True)
class _Found:
    match: Match
    places: tuple[Spot, ...]
    lines: LineSamples

    @cached_property
    def paths(self) -> frozenset[int]:
        """Samples that go away with its places, without calls into frameworks that only share their lines."""
        found = {number for spot in self.places for number in spot.paths}
        for spot in self.places:
            found |= _goes_away(self.lines, spot, self.match)
        return frozenset(
            number for number in found if _belongs(self.lines.paths[number], self.match.library_calls)
        )

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
    """Places of the same idiom in the same function belong together; largest saving first."""
    groups: dict[tuple[str, str, str], list[tuple[Match, Spot]]] = {}
    for spot in spots(lines, LEAST_SHARE / 3):
        found = match(spot)
        if found is not None:
            groups.setdefault((found.name, spot.file, spot.function), []).append((found, spot))
    result = [_Found(places[0][0], tuple(spot for _, spot in places), lines) for places in groups.values()]
    return sorted(result, key=lambda f: -f.expected)


def _idiom_advice(
    run: RunView, lines: LineSamples, found: _Found, paths: Iterable[int], share: float
) -> Recommendation:
    first = found.places[0]
    evidence = [f"{_where(found.places)} took {percent(share)} of training{_per_unit(run, share)}."]
    if first.text:
        evidence.append(f"{short(first.site)}: {first.text}")
    evidence.append(found.match.why)
    held_up = lines.held_up_by(found.match.library_calls)
    waited = float(lines.weight_ns[held_up & ~lines.among(paths)].sum()) / lines.total_ns
    if waited >= LEAST_WAITED:
        evidence.append(
            f"Another {percent(waited)} of training went by while a thread of that library kept this one "
            "from running: Python runs one thread at a time."
        )
    low, likely, high = found.match.saved
    evidence.append(
        f"Assumption: the change saves {about(likely)} of the line's time, and between {about(low)} and "
        f"{about(high)}."
    )
    change = Change(_lower(found.match.title), found.match.effort, found.match.safety)
    made = advise(
        run,
        found.match.name,
        None,
        f"{found.match.title} ({short(first.site)})",
        evidence,
        found.match.remedy,
        lines.gain(paths, found.match.saved, held_up if waited >= LEAST_WAITED else None),
        change,
    )
    return replace(made, site=first.site, claim=Claim(sampled=tuple(sorted(paths))))


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
        if not LEAST_EVALUATION <= place.share <= 0.95 or not _plays_only(lines, place.paths):
            continue
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
            "Call it every few times it is called now, with fewer or shorter episodes, or evaluate "
            "checkpoints in another process. What is learnt stays the same, if it has its own env and "
            "random numbers.",
            lines.gain(place.paths, (0.75, 0.9, 1.0)),
            Change(f"call `{place.name}` less often", "minutes", "semantic"),
        )
        return [replace(made, site=caller, claim=Claim(sampled=tuple(sorted(place.paths))))]
    return []


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
        plays += share * any(name == "env_step" or name.endswith((".step", "step_wait")) for name in region)
        learns += share * any(name in LEARNING for name in region)
    return plays > 0.02 and learns < 0.01


def hottest_code(run: RunView) -> list[Recommendation]:
    """The user's function or statement without a known idiom that takes most of training outside frameworks.

    It points; it does not promise. So it ranks below advice that names a mechanism.
    """
    lines = run.lines
    if lines is None or lines.biased:
        return []
    known = {number for found in _by_expected_gain(lines) for number in found.paths}
    own = {number for number in lines.paths_where(_in_user_code) if number not in known}
    places = [*_functions(lines, own), *_statements(lines, own)]
    places = [place for place in places if place.share >= LEAST_HOT]
    if not places:
        return []
    # A statement is the better answer when it accounts for most of its function.
    best = max(places, key=lambda place: place.share * (1.3 if place.text else 1.0))
    what = f"`{best.name}`" if best.name != "<module>" else "your script"
    evidence = [
        f"{short(best.site)} ({what}) took {percent(best.share)} of training in your own code, without calls "
        f"into torch or an RL library{_per_unit(run, best.share)}.",
        *([f"{short(best.site)}: {best.text}"] if best.text else []),
        "The gain is for making it twice as fast.",
    ]
    made = advise(
        run,
        "hottest_code",
        None,
        f"Look at {what}: it takes {percent(best.share)} ({short(best.site)})",
        evidence,
        "No known slow idiom was found there. Do less, do it less often, use whole arrays instead of "
        "elements, or compile it with numba.",
        lines.gain(best.paths, (0.5, 0.5, 0.5)),
        Change(f"make {what} cheaper, or call it less often", "hours", "semantic"),
    )
    claim = Claim(sampled=tuple(sorted(best.paths)))
    return [replace(made, site=best.site, tier="low", claim=claim)]


@dataclass(frozen=True)
class _Place:
    name: str  # of the function
    site: str
    text: str  # "" for a whole function
    paths: frozenset[int]
    share: float


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
        if hasattr(spot.node, "body"):
            continue  # a loop is as large as its function, or as the script
        paths = frozenset(spot.paths) & own
        share = lines.share_of(paths)
        places.append(_Place(spot.function, spot.site, spot.text, paths, share))
    return places


def _belongs(path: SampledPath, library_calls: tuple[str, ...]) -> bool:
    return (
        _in_user_code(path)
        or (path.called.startswith(TORCH_OPERATORS) and not path.called.endswith(".backward"))
        or any(name in path.called for name in library_calls)
    )


def _in_user_code(path: SampledPath) -> bool:
    """Whether the time belongs to the user's code itself, and not to a framework that it called."""
    return path.line is not None and path.called.partition(".")[0] not in FRAMEWORKS
