"""Advice about a function of the user's that evaluates the policy inside the training loop."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from hotloop._util.units import percent
from hotloop.analysis.advice.kept_experience import keeps_experience
from hotloop.analysis.advice.recommendation import Change, advise, per_unit
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.findings import Claim, Recommendation, short_site
from hotloop.analysis.line_samples import LineSamples
from hotloop.analysis.parsed_source import parse_text, walk_source
from hotloop.analysis.source_names import dotted
from hotloop.capture.samples import SampledPath

LEAST_EVALUATION = 0.10  # share of training
MAKE_A_NUMBER = ("mean", "sum", "float", "median", "std", "fmean", "item")
LEARNING = ("backward", "optimizer_step", "zero_grad")
# Methods of envs and wrappers: what they call evaluates no policy.
ENV_METHODS = (".step", ".reset", ".observation", ".reward", ".action")


def evaluation_in_the_loop(run: RunView) -> list[Recommendation]:
    """A function of the user's that plays without learning and returns a number: an evaluation."""
    lines = run.unbiased_lines
    if lines is None:
        return []
    for place in _outermost_functions(lines):
        if not LEAST_EVALUATION <= place.share <= 0.95 or _collects(lines, place):
            continue
        rest = set(range(len(lines.paths))) - place.paths
        if _plays_only(lines, set(place.paths)):
            steps = any(_steps_envs(region) for region in lines.region_paths_of(rest))
        elif _plays_own_env(lines, place, rest):
            steps = True
        else:
            continue
        if not steps and not any(lines.paths[n].called.endswith(".backward") for n in rest):
            return []  # evolution strategies train by what others call evaluating
        caller = place.caller
        evidence = [
            f"`{place.name}` took {percent(place.share)} of training{per_unit(run, place.share)}. It steps "
            "an env, learns nothing and returns a number.",
            *([f"Called at {short_site(caller)}."] if caller else []),
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


@dataclass(frozen=True)
class _Called:
    """A user's function with everything it calls."""

    name: str
    caller: str  # file:line that calls it most, "" if unknown
    functions: frozenset[tuple[str, int]]  # files and first lines: itself and what it calls, without envs
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
    called: dict[tuple[str, int], set[tuple[str, int]]] = {}
    callers: dict[tuple[str, int], dict[str, float]] = {}
    for number, path in enumerate(lines.paths):
        for place, frame in enumerate(path.frames):
            key = frame.file, frame.first_line
            if frame.function.endswith(ENV_METHODS):
                break  # below, the env computes what it returns
            for above in path.frames[:place]:
                called.setdefault((above.file, above.first_line), set()).add(key)
            if key in wanted and frame.function != "<module>":
                paths.setdefault(key, set()).add(number)
                site = path.frames[place - 1].site if place else ""
                seen = callers.setdefault(key, {})
                seen[site] = seen.get(site, 0.0) + lines.weight_of([number])
    found = [
        _Called(
            wanted[key],
            max(callers[key], key=lambda site: callers[key][site]),
            frozenset({key, *called.get(key, ())}),
            frozenset(p),
            lines.share_of(p),
        )
        for key, p in paths.items()
    ]
    return sorted(found, key=lambda place: -place.share)


def _collects(lines: LineSamples, place: _Called) -> bool:
    """Whether it, or a function that it calls, keeps what the env showed: training needs that."""
    return any(
        (source.file, source.first_line) in place.functions and keeps_experience(source.text)
        for source in lines.sources
    )


def returns_a_number(source: str) -> bool:
    """Whether a function returns one number: a mean, a sum, a quotient, a total that it added up."""
    tree = parse_text(source)
    body = tree.body if tree is not None else []
    functions = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
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
        return dotted(value.func).rpartition(".")[2] in MAKE_A_NUMBER
    return isinstance(value, ast.Name | ast.Attribute) and dotted(value) in added


def _plays_only(lines: LineSamples, paths: set[int]) -> bool:
    """Whether envs are stepped there and nothing is learnt."""
    plays = _part_inside(lines, paths, _steps_envs)
    learns = _part_inside(lines, paths, lambda region: any(name in LEARNING for name in region))
    return plays > 0.02 and learns < 0.01


def _part_inside(lines: LineSamples, paths: set[int], wanted: Callable[[tuple[str, ...]], bool]) -> float:
    """Part of the time of these paths that belongs to stacks seen mostly inside such regions.

    The open region and the stack are read one after the other. Where a thread goes on in between, its sample
    shows the region of the step before: a few per cent of what runs next to it.
    """
    if not paths:
        return 0.0
    nodes = np.array([wanted(names) for names in lines.thread.paths] or [False])
    mine = lines.among(paths)
    stack, weight_ns = lines.stacks[lines.path[mine]], lines.weight_ns[mine]
    inside = nodes[np.clip(lines.node[mine], 0, len(nodes) - 1)] * weight_ns
    found, whole = (np.bincount(stack, weights, len(lines.paths)) for weights in (inside, weight_ns))
    return float(found[found > whole / 2].sum() / max(weight_ns.sum(), 1.0))


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
        for node in walk_source(source):
            if (
                isinstance(node, ast.If)
                and node.body[0].lineno <= int(row) <= (node.body[-1].end_lineno or node.body[-1].lineno)
                and any(isinstance(n, ast.Mod | ast.GtE | ast.Gt) for n in ast.walk(node.test))
            ):
                return True
    return False


def _steps_envs(region: tuple[str, ...]) -> bool:
    return any(name == "env_step" or name.endswith((".step", "step_wait")) for name in region)
