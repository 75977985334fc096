"""Statements and loops of the user's code, with the time that was sampled in each."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hotloop.analysis.line_samples import LineSamples, library_calls, line_of
from hotloop.analysis.parsed_source import indentation, line_text, parse_source
from hotloop.analysis.source_names import Names, dotted, names_in
from hotloop.capture.samples import Expression, FunctionSource

LOOP_OF_TRAINING = 0.97  # share of a loop that does nearly everything
LOOPS = (ast.For, ast.AsyncFor, ast.While)
Loop = ast.For | ast.AsyncFor | ast.While | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(frozen=True)
class Spot:
    """A statement or a loop of a user's function, and the time it took."""

    file: str
    function: str
    line: int  # where it begins, in the file
    node: ast.AST
    loops: tuple[Loop, ...]  # enclosing loops of the same function, innermost first
    scope: ast.AST  # the function or module
    text: str  # its source, first line
    paths: tuple[int, ...]  # samples whose innermost user line lies in it
    share: float
    called: tuple[str, ...]  # library functions it called while sampled, most time first
    below: tuple[int, ...] = ()  # samples of other functions of the user that it called
    share_below: float = 0.0  # of training, in those
    names: Names = field(default_factory=Names)  # what names of the file stand for
    asleep: float = 0.0  # part of its time in which the thread slept: waited for time, a lock, input
    calls_networks: bool = False  # whether networks take much of its time, with functions that it calls
    trains: bool = False  # whether it learns or steps envs, with functions that it calls
    # Lines of the same file that called the function around it, with their parts of its time.
    callers: tuple[tuple[int, float], ...] = ()
    # Samples that know which expression ran, as columns of `node`, and the time of each.
    expressions: tuple[tuple[int, Expression, float], ...] = ()

    @property
    def site(self) -> str:
        return f"{self.file}:{self.line}"

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """Calls inside, with their names as written: `np.append`, `self.buffer.pop`."""
        for inner in ast.walk(self.node):
            if isinstance(inner, ast.Call):
                yield dotted(inner.func), inner

    def outside(self, part: ast.AST) -> set[int]:
        """Samples of the spot that ran another part of it."""
        return {number for number, place, _ in self.expressions if not _covers(part, place)}

    def fraction_in(self, part: ast.AST) -> float | None:
        """The part of the time of these samples that an expression took; None: not known.

        Functions of the user that the spot calls have samples of their own, so where they took much of the
        time it is not known either.
        """
        whole = sum(time_ns for _, _, time_ns in self.expressions)
        if not whole or self.share_below > self.share / 10:
            return None
        return sum(time_ns for _, place, time_ns in self.expressions if _covers(part, place)) / whole


def _covers(part: ast.AST, place: Expression) -> bool:
    begin = getattr(part, "lineno", 0), getattr(part, "col_offset", 0)
    end = getattr(part, "end_lineno", 0), getattr(part, "end_col_offset", 0)
    return begin <= (place.line, place.column) and (place.end_line, place.end_column) <= end


def spots(lines: LineSamples, least_share: float) -> list[Spot]:
    """Statements and loops that took at least this share, most time first.

    A loop stands for the lines of its body that lie in the same function, without nested user functions.
    Loops around nearly everything (the training loop itself) are left out.
    """
    found: list[Spot] = []
    for function in _functions(lines):
        found += _spots_of(function, lines, least_share)
    return sorted(found, key=lambda spot: -spot.share)


@dataclass
class _Function:
    source: FunctionSource
    tree: ast.Module
    names: Names
    indentation: int  # that parsing has taken away
    paths_by_line: dict[int, list[int]] = field(default_factory=dict)
    below_by_line: dict[int, list[int]] = field(default_factory=dict)


def _functions(lines: LineSamples) -> list[_Function]:
    trees: dict[tuple[str, int], tuple[FunctionSource, ast.Module]] = {}
    for source in lines.sources:
        tree = parse_source(source)
        if tree is not None:
            trees[source.file, source.first_line] = source, tree
    names = {
        file: names_in(tree for source, tree in trees.values() if source.file == file)
        for file in {source.file for source, _ in trees.values()}
    }
    known = {
        key: _Function(source, tree, names[source.file], indentation(source))
        for key, (source, tree) in trees.items()
    }
    for number, path in enumerate(lines.paths):
        frame = line_of(path)
        if frame is None:
            continue
        if function := known.get((frame.file, frame.first_line)):
            function.paths_by_line.setdefault(frame.line, []).append(number)
        for caller in path.frames[:-1]:
            function = known.get((caller.file, caller.first_line))
            if function and (caller.file, caller.first_line) != (frame.file, frame.first_line):
                function.below_by_line.setdefault(caller.line, []).append(number)
    return list(known.values())


def _spots_of(function: _Function, lines: LineSamples, least_share: float) -> Iterator[Spot]:
    scope = next(
        (n for n in function.tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)), None
    )
    own = function.tree if function.source.function == "<module>" or scope is None else scope
    for node, loops in _statements(own):
        span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        paths = [n for line in span for n in function.paths_by_line.get(line, ())]
        below = {n for line in span for n in function.below_by_line.get(line, ())}
        share = lines.share_of(paths) if paths else 0.0
        together = {*paths, *below}
        with_below = lines.share_of(together) if below else share
        if with_below < least_share and (
            isinstance(node, LOOPS) or lines.share_of({*together, *lines.helping_at(paths)}) < least_share
        ):
            continue
        if isinstance(node, LOOPS) and with_below > LOOP_OF_TRAINING and _does_much(lines, node, below):
            continue
        networks, training = _purpose(lines, together)
        yield Spot(
            file=function.source.file,
            function=function.source.function,
            line=node.lineno if isinstance(node, LOOPS) else _hottest(span, function, lines),
            node=node,
            loops=loops,
            scope=own,
            text=_text(function.source, node),
            paths=tuple(paths),
            share=share,
            called=library_calls(lines, paths),
            below=tuple(sorted(below)),
            names=function.names,
            asleep=lines.asleep(paths),
            calls_networks=networks > 0.4,
            trains=training > 0.01,
            callers=_callers(function, together, lines) if own is scope else (),
            share_below=lines.share_of(below) if below else 0.0,
            expressions=_expressions(function, paths, lines),
        )


def _expressions(
    function: _Function, paths: Iterable[int], lines: LineSamples
) -> tuple[tuple[int, Expression, float], ...]:
    """Paths that know which expression ran, in columns of the parsed source, with their time."""
    found = []
    for number in paths:
        place = lines.paths[number].expression
        if place is not None:
            moved = place._replace(
                column=place.column - function.indentation, end_column=place.end_column - function.indentation
            )
            found.append((number, moved, lines.weight_of([number])))
    return tuple(found)


def _text(source: FunctionSource, node: ast.stmt) -> str:
    """The first line of a statement; all of it where that is only a bracket."""
    first = line_text(source, node.lineno)
    return first if any(c.isalnum() for c in first) else ast.unparse(node).partition("\n")[0]


def _callers(function: _Function, paths: Iterable[int], lines: LineSamples) -> tuple[tuple[int, float], ...]:
    """Lines of the same file that called a function, with their parts of the time of these samples."""
    source = function.source
    found: dict[int, float] = {}
    for number in paths:
        frames = lines.paths[number].frames
        places = [
            n for n, f in enumerate(frames) if (f.file, f.first_line) == (source.file, source.first_line)
        ]
        above = frames[: places[0]] if places else ()
        if above and above[-1].file == source.file:
            found[above[-1].line] = found.get(above[-1].line, 0.0) + lines.weight_of([number])
    whole = max(lines.weight_of(paths), 1.0)
    return tuple(sorted(((line, time / whole) for line, time in found.items()), key=lambda one: -one[1]))


def _does_much(lines: LineSamples, node: ast.AST, below: set[int]) -> bool:
    """Whether a loop calls functions of the user that take long, or has loops inside: the training loop."""
    inner = any(isinstance(other, LOOPS) and other is not node for other in ast.walk(node))
    return inner or (bool(below) and lines.share_of(below) > LOOP_OF_TRAINING / 2)


def _purpose(lines: LineSamples, paths: Iterable[int]) -> tuple[float, float]:
    """Parts of this time in networks, and in learning or stepping envs."""
    whole = networks = training = 0.0
    for number in paths:
        called, time_ns = lines.paths[number].called, lines.weight_of([number])
        whole += time_ns
        networks += time_ns * called.startswith("torch.nn.modules.")
        learns = called.endswith(".backward") or called.startswith("torch.optim")
        training += time_ns * (learns or called.startswith(("gymnasium.", "gym.", "stable_baselines3.")))
    return networks / max(whole, 1.0), training / max(whole, 1.0)


def _statements(scope: ast.AST) -> Iterator[tuple[ast.stmt, tuple[Loop, ...]]]:
    """Simple statements, loops, and heads of compound statements, with the loops around each."""
    todo: list[tuple[ast.AST, tuple[Loop, ...]]] = [(scope, ())]
    while todo:
        node, loops = todo.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
                continue  # they have their own samples
            inner = loops
            if isinstance(child, LOOPS):
                yield child, loops
                inner = (child, *loops)
            if isinstance(child, ast.stmt) and not hasattr(child, "body"):
                yield child, loops
                continue
            for head in _heads(child):
                yield head, loops
            todo.append((child, inner))


def _heads(node: ast.AST) -> Iterator[ast.stmt]:
    """Expressions in the head of a compound statement, as statements: they run without its body."""
    found: list[ast.expr] = []
    if isinstance(node, ast.If | ast.While):
        found = [node.test]
    elif isinstance(node, ast.For | ast.AsyncFor):
        found = [node.iter]
    elif isinstance(node, ast.With | ast.AsyncWith):
        found = [item.context_expr for item in node.items]
    for expression in found:
        head = ast.copy_location(ast.Expr(expression), expression)
        head.lineno = getattr(node, "lineno", expression.lineno)
        yield head


def _hottest(span: range, function: _Function, lines: LineSamples) -> int:
    return max(span, key=lambda line: lines.weight_of(function.paths_by_line.get(line, ())))
