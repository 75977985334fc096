"""Points at the user's most expensive functions and statements where nothing is known to be slow."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from hotloop._util.units import percent
from hotloop.analysis.advice.claims import time_table
from hotloop.analysis.advice.idiom_places import explained_by_idioms
from hotloop.analysis.advice.idioms.loops import is_compiled
from hotloop.analysis.advice.recommendation import HELPER, Change, advise, per_unit
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.advice.system_gains import gain_in_system
from hotloop.analysis.advice.user_code import FRAMEWORKS, in_user_code, is_training
from hotloop.analysis.findings import Claim, Recommendation, short_site
from hotloop.analysis.hot_statements import LOOP_OF_TRAINING, LOOPS, Spot, spots
from hotloop.analysis.line_samples import LineSamples, line_of
from hotloop.capture.samples import SampledPath

LEAST_HOT = 0.10  # share of a function or statement without a known idiom that is worth naming
IMPORTS = (ast.Import, ast.ImportFrom)
NEARLY_ALL = 0.85  # share of training of a statement that runs it
LOOP_TO_PART = 1.2  # a loop is named when it takes this much more than the hottest code in it
LONGEST_TITLE = 40  # characters of a statement in a title
MOST_POINTERS = 3  # places named without knowing what is wrong with them
# Part of their time that a fix saves, where there is something to fix: 74 % and more in eight scripts
IF_NEEDLESS = (0.25, 0.75, 1.0)


def hottest_code(run: RunView) -> list[Recommendation]:
    """The user's functions and statements without a known idiom that take most of training.

    First come those that are not what training is about (networks, optimizers, envs of a library); the
    statement that calls those is named only if there is nothing else.
    """
    lines = run.unbiased_lines
    if lines is None:
        return []
    known = explained_by_idioms(lines)
    known |= {number for one in run.given if one.claim is not None for number in one.claim.sampled}
    hot = _hot_statements(lines)
    # A function compiled by JAX or numba has no frames of its own: its time lies in the line that calls it.
    compiled = {
        n for spot in hot if any(is_compiled(spot, name) for name, _ in spot.calls()) for n in spot.paths
    }
    own = {n for n in lines.paths_where(_is_own) if n not in known and n not in compiled}
    places = [*_functions(lines, own), *_statements(lines, hot, own), *_library_statements(lines, hot, known)]
    chosen: list[_Place] = []
    # A statement is the better answer when it accounts for most of its function.
    for place in sorted(places, key=lambda place: -place.share * (1.3 if place.text else 1.0)):
        new = place.paths - {number for other in chosen for number in other.paths}
        if place.share >= LEAST_HOT and lines.share_of(new) > place.share / 2:
            chosen.append(place)
    if chosen:
        chosen[1:1] = _repeating_callers(lines, hot, chosen[0])
        chosen[:0] = _loops_around(lines, chosen[0], own)
    else:
        chosen = sorted(_training_statements(lines, hot, known), key=lambda place: -place.share)[:1]
    return [_pointer(run, lines, place) for place in chosen[:MOST_POINTERS]]


def _is_own(path: SampledPath) -> bool:
    """Code of the user, or of a library that does not lead to torch or an RL library."""
    return in_user_code(path) and path.innermost.partition(".")[0] not in FRAMEWORKS


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
    loop: bool = False  # a loop with all that it calls


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


def _hot_statements(lines: LineSamples) -> list[Spot]:
    """Single statements; a loop is as large as its function, or as the script."""
    return [
        spot
        for spot in spots(lines, LEAST_HOT)
        if not isinstance(spot.node, LOOPS) and not _is_everything(lines, spot)
    ]


def _is_everything(lines: LineSamples, spot: Spot) -> bool:
    """`trainer.fit(model)`, `asyncio.run(main())`: a statement that stands for all of training."""
    return lines.share_of({*spot.paths, *spot.below}) > NEARLY_ALL


def _statements(lines: LineSamples, hot: list[Spot], own: set[int]) -> list[_Place]:
    places = []
    for spot in hot:
        if not isinstance(spot.node, IMPORTS):
            paths = frozenset(spot.paths) & own
            places.append(_Place(spot.function, spot.site, spot.text, paths, lines.share_of(paths)))
    return places


def _library_statements(lines: LineSamples, hot: list[Spot], known: set[int]) -> list[_Place]:
    """Statements that spend their time in a framework, on other things than acting, stepping and learning."""
    places = []
    for spot in hot:
        paths = frozenset(n for n in spot.paths if n not in known and not is_training(lines.paths[n]))
        share = lines.share_of(paths)
        called = _most_called(lines, paths)
        if called.partition(".")[0] in FRAMEWORKS:
            places.append(_Place(spot.function, spot.site, spot.text, paths, share, called))
    return places


def _training_statements(lines: LineSamples, hot: list[Spot], known: set[int]) -> list[_Place]:
    """Statements with all that they call, but not those that stand for nearly everything."""
    places = []
    for spot in hot:
        paths = frozenset({*spot.paths, *spot.below} - known)
        share = lines.share_of(paths)
        if not isinstance(spot.node, IMPORTS) and LEAST_HOT <= share < LOOP_OF_TRAINING / 2:
            called = _most_called(lines, paths)
            places.append(_Place(spot.function, spot.site, spot.text, paths, share, called, essential=True))
    return places


def _most_called(lines: LineSamples, paths: frozenset[int]) -> str:
    """The library function in which most of this time was spent; "" for none."""
    return lines.paths[max(paths, key=lambda n: lines.weight_of([n]))].called if paths else ""


def _repeating_callers(lines: LineSamples, hot: list[Spot], hottest: _Place) -> list[_Place]:
    """The nearest and the outermost statement in a loop through which a hot function is called.

    What a function costs is often decided there: how often it is called, and for what.
    """
    found: list[tuple[float, _Place]] = []
    for spot in hot:
        through = frozenset(spot.below) & hottest.paths
        share = lines.share_of(through)
        repeats = bool(spot.loops) or any(isinstance(n, ast.comprehension) for n in ast.walk(spot.node))
        if repeats and not isinstance(spot.node, IMPORTS) and share >= 0.7 * hottest.share:
            whole = lines.share_of({*spot.paths, *spot.below})
            place = _Place(spot.function, spot.site, spot.text, through, share, calls=hottest.name)
            found.append((whole, place))
    found.sort(key=lambda one: one[0])
    nearest, outermost = found[:1], found[1:][-1:]
    if nearest and outermost and nearest[0][1].site == outermost[0][1].site:  # two statements in one line
        outermost = []
    return [place for _, place in (*nearest, *outermost)]


def _loops_around(lines: LineSamples, hottest: _Place, own: set[int]) -> list[_Place]:
    """The innermost loop that takes clearly more than the hottest place in it, and does nothing else.

    A loop over moves, say, that copies the board and tries one: its parts are cheap, and it is not.
    """
    found: list[_Place] = []
    for spot in spots(lines, LEAST_HOT):
        paths = frozenset({*spot.paths, *spot.below})
        share = lines.share_of(paths)
        if (
            isinstance(spot.node, LOOPS)
            and lines.share_of(paths & hottest.paths) >= 0.7 * hottest.share
            and LOOP_TO_PART * hottest.share <= share <= NEARLY_ALL
            and lines.share_of(paths & own) >= NEARLY_ALL * share
        ):
            place = _Place(
                spot.function, f"{spot.file}:{spot.node.lineno}", spot.text, paths & own, share, loop=True
            )
            found.append(place)
    return sorted(found, key=lambda place: place.share)[:1]


def _cut(text: str) -> str:
    """A statement for a title, without the comment behind it."""
    text = text.partition("  #")[0].rstrip()
    if text.endswith(("(", "[", "{")):  # it goes on in the next line
        text += "…" + {"(": ")", "[": "]", "{": "}"}[text[-1]]
    return text if len(text) <= LONGEST_TITLE else f"{text[: LONGEST_TITLE - 1].rstrip()}…"


def _pointer(run: RunView, lines: LineSamples, best: _Place) -> Recommendation:
    what = f"`{best.name}`" if best.name != "<module>" else "your script"
    # A statement with all that it calls is not all of its function.
    who = f"`{_cut(best.text)}`" if (best.essential or best.loop) and best.text else what
    in_ray = best.called.partition(".")[0] == "ray"
    inside = (
        "inside Ray"
        if in_ray
        else f"inside `{best.called}`"
        if best.called
        else "in your own code, without calls into torch or an RL library"
    )
    if best.calls:
        inside = f"in calls that lead to `{best.calls}`"
    elif best.loop:
        inside = "with all that this loop calls, which is your own code"
    elif best.essential:
        inside = (
            f"with all that it calls, most of all `{best.called}`" if best.called else "with all it calls"
        )
    claim, table = Claim(sampled=tuple(sorted(best.paths))), time_table(run)
    alone = [lines.gain(best.paths, (part, part, part)) for part in (1.0, 0.5)]
    gone, twice = (gain_in_system(run, gain, claim, table) or gain for gain in alone)
    evidence = [
        f"{short_site(best.site)} ({what}) took {percent(best.share)} of training {inside}"
        f"{per_unit(run, best.share)}.",
        *([f"{short_site(best.site)}: {best.text}"] if best.text else []),
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
    elif best.loop:
        advice = (
            "Nothing in it is known to be slow, but it adds up. Is every pass needed? Could whole arrays, or "
            "one call, do it for all items?"
        )
    elif best.essential:
        advice = (
            "Nothing there is known to be slow: this is what training consists of. Is all of it needed, as "
            "often, in this size and precision?"
        )
    elif in_ray:
        advice = (
            "There Ray waits for results, or submits tasks and sends objects. The picture of the whole "
            "system says for whom, and what that one does meanwhile; below it is what tasks waited before "
            "they began."
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
        f"Calls of `{best.calls}` take {percent(best.share)} ({short_site(best.site)})"
        if best.calls
        else f"{who[:1].upper()}{who[1:]} takes {percent(best.share)} ({short_site(best.site)})",
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
