"""Observations that wrappers process inside an action repeat, which returns the last one only.

With `RepeatAction(WarpFrame(env))` all frames of a step are shrunk and all but one are thrown away. With
`WarpFrame(RepeatAction(env))` the agent gets the same observations.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hotloop._util.units import percent
from hotloop.analysis.advice.recommendation import LEAST_SAVED, Change, about, advise
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.advice.statements import FUNCTIONS
from hotloop.analysis.findings import Claim, Recommendation, short_site
from hotloop.analysis.hot_statements import LOOPS
from hotloop.analysis.line_samples import LineSamples
from hotloop.analysis.parsed_source import parse_source
from hotloop.analysis.source_names import dotted
from hotloop.capture.samples import SampledPath

USUAL_REPEATS = 4  # where the source does not show how many
OF_LIBRARIES = (  # wrappers that keep nothing from one observation to the next
    *("gymnasium.wrappers.transform_observation.", "gymnasium.wrappers.vector.vectorize_observation."),
    *("gymnasium.wrappers.resize_observation.", "gymnasium.wrappers.gray_scale_observation."),
    "stable_baselines3.common.atari_wrappers.WarpFrame.",
)
CHANGES = frozenset({"append", "appendleft", "extend", "update", "add", "pop", "popleft", "push", "insert"})


@dataclass(frozen=True)
class _Repeat:
    """A wrapper whose step steps the env inside several times."""

    name: str
    file: str
    first_line: int  # of its step
    rows: range  # of the loop
    times: int | None


@dataclass(frozen=True)
class _Method:
    owner: ast.ClassDef
    function: ast.FunctionDef | ast.AsyncFunctionDef


def frames_thrown_away(run: RunView) -> list[Recommendation]:
    """Wrappers that process every observation inside an action repeat."""
    lines = run.unbiased_lines
    if lines is None:
        return []
    trees = dict(_modules(lines))
    methods = {key: method for file, tree in trees.items() for key, method in _methods(file, tree)}
    repeats = [one for file, tree in trees.items() for one in find_repeats(file, tree)]
    for repeat in repeats:
        by_wrapper: dict[str, set[int]] = {}
        for number, path in enumerate(lines.paths):
            name = _processed_by(path, repeat, methods)
            if name:
                by_wrapper.setdefault(name, set()).add(number)
        paths = frozenset(number for found in by_wrapper.values() for number in found)
        times = repeat.times or USUAL_REPEATS
        # What runs behind them gets faster, too: the frames that are left out no longer fill the caches.
        saved = (1 - 1 / min(times, 2), 1 - 1 / times, min(1.15 * (1 - 1 / times), 1.0))
        if by_wrapper:
            by_wrapper[next(iter(by_wrapper))] |= _calls_between(lines, repeat)
            paths |= _calls_between(lines, repeat)
        if times < 2 or lines.share_of(paths) * saved[1] < LEAST_SAVED:
            continue
        wrappers = sorted(by_wrapper, key=lambda name: -lines.share_of(by_wrapper[name]))
        return [_recommendation(run, lines, repeat, wrappers, paths, saved, trees)]
    return []


def _recommendation(
    run: RunView,
    lines: LineSamples,
    repeat: _Repeat,
    wrappers: list[str],
    paths: frozenset[int],
    saved: tuple[float, float, float],
    trees: dict[str, ast.Module],
) -> Recommendation:
    named = " and ".join(f"`{name}`" for name in wrappers[:3])
    site = _made_at(trees, wrappers[0]) or f"{repeat.file}:{repeat.rows.start}"
    made = advise(
        run,
        "frames_thrown_away",
        None,
        f"Put {named} outside of `{repeat.name}`, which throws most frames away ({short_site(site)})",
        [
            f"{named} took {percent(lines.share_of(paths))} of training inside of `{repeat.name}`.",
            f"`{repeat.name}` steps the env {repeat.times or 'several'} times and returns the last "
            "observation; the others are processed, too, and thrown away.",
            f"Assumption: {about(saved[1])} of that time is saved (at least {about(saved[0])}).",
        ],
        f"Wrap the env in `{repeat.name}` first and in {named} then. The agent gets the same observations.",
        lines.gain(paths, saved),
        Change(f"{wrappers[0]}({repeat.name}(env)) instead of the other order", "minutes", "safe"),
    )
    return replace(made, site=site, claim=Claim(sampled=tuple(sorted(paths))))


def _modules(lines: LineSamples) -> Iterator[tuple[str, ast.Module]]:
    for source in lines.sources:
        tree = parse_source(source) if source.function == "<module>" else None
        if tree is not None:
            yield source.file, tree


def _methods(file: str, tree: ast.Module) -> Iterator[tuple[tuple[str, int], _Method]]:
    for owner in ast.walk(tree):
        if isinstance(owner, ast.ClassDef):
            for function in owner.body:
                if isinstance(function, FUNCTIONS):
                    first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
                    yield (file, first), _Method(owner, function)


def find_repeats(file: str, tree: ast.Module) -> Iterator[_Repeat]:
    """Classes whose `step` steps the env inside in a loop and keeps the last observation alone."""
    for (_, first), method in _methods(file, tree):
        if method.function.name != "step":
            continue
        for loop in ast.walk(method.function):
            if not isinstance(loop, LOOPS):
                continue
            steps = [s for s in ast.walk(loop) if isinstance(s, ast.Assign) and _steps_inside(s.value)]
            kept = {name for s in steps for target in s.targets for name in _observation(target)}
            read = {n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
            if len(steps) == 1 and kept and not kept & read:
                rows = range(loop.lineno, (loop.end_lineno or loop.lineno) + 1)
                yield _Repeat(method.owner.name, file, first, rows, _repetitions(tree, method.owner, loop))


def _steps_inside(value: ast.AST) -> bool:
    return isinstance(value, ast.Call) and dotted(value.func) in ("self.env.step", "super().step")


def _observation(target: ast.AST) -> list[str]:
    """The name of the first of `obs, reward, terminated, truncated, info`."""
    first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else None
    return [first.id] if isinstance(first, ast.Name) else []


def _repetitions(tree: ast.Module, owner: ast.ClassDef, loop: ast.AST) -> int | None:
    """How often the loop runs, where a number is written in it, in the constructor, or where it is made."""
    if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call) or len(loop.iter.args) != 1:
        return None
    count = loop.iter.args[0]
    if isinstance(count, ast.Constant) and isinstance(count.value, int):
        return count.value
    made = next((f for f in owner.body if isinstance(f, FUNCTIONS) and f.name == "__init__"), None)
    if made is None:
        return None
    word = next(
        (
            s.value.id
            for s in ast.walk(made)
            if isinstance(s, ast.Assign)
            and isinstance(s.value, ast.Name)
            and dotted(s.targets[0]) == dotted(count)
        ),
        "",
    )
    words = [a.arg for a in made.args.args]
    if word not in words:
        return None
    at = words.index(word)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and dotted(call.func) == owner.name:
            given = [k.value for k in call.keywords if k.arg == word] + call.args[at - 1 : at]
            if given:
                return given[0].value if isinstance(given[0], ast.Constant) else None  # type: ignore[return-value]
    defaults = made.args.defaults
    default = defaults[at - len(words)] if len(words) - at <= len(defaults) else None
    return default.value if isinstance(default, ast.Constant) and isinstance(default.value, int) else None


def _processed_by(path: SampledPath, repeat: _Repeat, methods: dict[tuple[str, int], _Method]) -> str:
    """The wrapper that processes an observation inside of the repeat at this moment; "" for none."""
    key = repeat.file, repeat.first_line
    at = next((n for n, f in enumerate(path.frames) if (f.file, f.first_line) == key), None)
    if at is None or path.frames[at].line not in repeat.rows:
        return ""
    for frame in path.frames[at + 1 :]:
        method = methods.get((frame.file, frame.first_line))
        if method is None or not _wraps(method.owner):
            return ""
        passes = method.function.name == "step" and any(
            s.lineno <= frame.line <= (s.end_lineno or s.lineno)
            for s in ast.walk(method.function)
            if isinstance(s, ast.Assign | ast.Return | ast.Expr)
            and any(_steps_inside(n) for n in ast.walk(s))
        )
        if not passes:
            return method.owner.name if _keeps_nothing(method.owner) else ""
    if path.frames[-1] is path.frames[at] and path.innermost.startswith(OF_LIBRARIES):
        return path.innermost.removeprefix(
            next(start for start in OF_LIBRARIES if path.innermost.startswith(start))
        ).partition(".")[0]
    return ""


def _calls_between(lines: LineSamples, repeat: _Repeat) -> frozenset[int]:
    """Gymnasium's own code between the repeat and a wrapper: `ObservationWrapper.step`."""
    key = repeat.file, repeat.first_line
    return frozenset(
        n
        for n in lines.paths_where(lambda p: p.innermost.startswith("gymnasium.core.ObservationWrapper."))
        if lines.paths[n].frames
        and (lines.paths[n].frames[-1].file, lines.paths[n].frames[-1].first_line) == key
    )


def _wraps(owner: ast.ClassDef) -> bool:
    """Whether a class is a wrapper: it steps an env inside, or has `observation` and a base called so."""
    bases = {dotted(base).rpartition(".")[2] for base in owner.bases}
    steps = any(_steps_inside(n) for n in ast.walk(owner))
    return steps or any(base.endswith("Wrapper") for base in bases)


def _keeps_nothing(owner: ast.ClassDef) -> bool:
    """Whether a wrapper treats each observation alike, whatever came before it."""
    for function in owner.body:
        if not isinstance(function, FUNCTIONS) or function.name in ("__init__", "reset"):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                return False
            changed: ast.AST | None = None
            if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                changed = node.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                changed = node.func.value if node.func.attr in CHANGES else None
            if changed is not None and dotted(changed).startswith("self."):
                return False
    return True


def _made_at(trees: dict[str, ast.Module], wrapper: str) -> str:
    """Where the wrapper is put around an env, if that is one place."""
    found = [
        f"{file}:{node.lineno}"
        for file, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] == wrapper
    ]
    return found[0] if len(found) == 1 else ""
