"""Where the user's own code spends training: sampled lines, grouped into statements and loops.

A sample knows the call path through the user's code, the region that was open and how much time it stands
for. Shares are of the driving thread's time during training. What a line took includes the library calls it
made, but not other functions of the user, which have lines of their own.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.findings import Estimate, HotLine
from hotloop.analysis.whatif import amdahl, block_counts
from hotloop.capture.model import Process, Thread
from hotloop.capture.samples import FunctionSource, SampledFrame, SampledPath

BLOCKS = 40  # of equal length, for intervals: samples of one moment are not independent
LEAST_SAMPLES = 20  # fewer say too little about anything

Floats = NDArray[np.float64]
Loop = ast.For | ast.AsyncFor | ast.While | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(frozen=True)
class LineSamples:
    """Samples of one thread during training."""

    thread: Thread
    paths: tuple[SampledPath, ...]
    sources: tuple[FunctionSource, ...]
    path: NDArray[np.int64]  # [samples], index into `paths`
    node: NDArray[np.int64]  # [samples], index into `thread.paths`
    weight_ns: Floats  # [samples]
    block: NDArray[np.int64]  # [samples], which of BLOCKS equal stretches of training
    biased: bool  # taken by a Python thread, which sees the moments when the GIL is free

    @cached_property
    def total_ns(self) -> float:
        return float(self.weight_ns.sum())

    @cached_property
    def _by_block(self) -> Floats:
        """Weight of every path in every block, [blocks, paths]."""
        table = np.zeros((BLOCKS, len(self.paths)))
        np.add.at(table, (self.block, self.path), self.weight_ns)
        return table

    def weight_of(self, paths: Iterable[int]) -> float:
        """Time of the samples with these paths, in ns."""
        return float(self._by_block[:, sorted(set(paths))].sum())

    def share_of(self, paths: Iterable[int]) -> float:
        return self.weight_of(paths) / self.total_ns if self.total_ns else 0.0

    def gain(self, paths: Iterable[int], saved: tuple[float, float]) -> Estimate:
        """Speed-up of training if a fraction in `saved` (low, high) of the time of these paths were saved."""
        chosen = self._by_block[:, sorted(set(paths))].sum(axis=1)
        counts = block_counts(BLOCKS)
        drawn = (counts @ chosen) / np.maximum(counts @ self._by_block.sum(axis=1), 1.0)
        share = float(chosen.sum()) / self.total_ns
        value = amdahl(min(share, 0.99), (saved[0] + saved[1]) / 2)
        low = amdahl(float(np.quantile(np.clip(drawn, 0.0, 0.99), 0.025)), saved[0])
        high = amdahl(float(np.quantile(np.clip(drawn, 0.0, 0.99), 0.975)), saved[1])
        return Estimate(value, min(low, value), max(high, value))

    def paths_where(self, wanted: Callable[[SampledPath], bool]) -> list[int]:
        return [number for number, path in enumerate(self.paths) if wanted(path)]

    def region_paths_of(self, paths: Iterable[int]) -> dict[tuple[str, ...], float]:
        """Share of the time of these paths by open regions, outermost first; () for none."""
        among = np.isin(self.path, np.fromiter(set(paths), dtype=np.int64))
        whole = float(self.weight_ns[among].sum())
        found: dict[tuple[str, ...], float] = {}
        for node in np.unique(self.node[among]):
            names = self.thread.paths[node] if node < len(self.thread.paths) else ()
            time_ns = float(self.weight_ns[among & (self.node == node)].sum())
            found[names] = found.get(names, 0.0) + time_ns / max(whole, 1.0)
        return found


def line_samples(process: Process, thread: Thread) -> LineSamples | None:
    """The samples of `thread` between its start and end (cut it to training first); None: too few."""
    if process.sampling is None or thread.folded_threads:
        return None
    samples = process.samples
    mine = samples["native_id"] == thread.native_id
    mine &= (samples["time_ns"] >= thread.start_ns) & (samples["time_ns"] <= thread.end_ns)
    if int(mine.sum()) < LEAST_SAMPLES or thread.wall_ns <= 0:
        return None
    chosen = samples[mine]
    offset = chosen["time_ns"].astype(np.float64) - thread.start_ns
    block = np.minimum((offset / thread.wall_ns * BLOCKS).astype(np.int64), BLOCKS - 1)
    return LineSamples(
        thread=thread,
        paths=process.paths,
        sources=process.sources,
        path=chosen["path"].astype(np.int64),
        node=np.maximum(chosen["node"].astype(np.int64), 0),
        weight_ns=chosen["weight_ns"].astype(np.float64),
        block=block,
        biased=process.sampling.biased,
    )


# -- statements and loops ---------------------------------------------------------------------------


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

    @property
    def site(self) -> str:
        return f"{self.file}:{self.line}"

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """Calls inside, with their names as written: `np.append`, `self.buffer.pop`."""
        for inner in ast.walk(self.node):
            if isinstance(inner, ast.Call):
                yield dotted(inner.func), inner


@dataclass
class _Function:
    source: FunctionSource
    tree: ast.Module
    paths_by_line: dict[int, list[int]] = field(default_factory=dict)


INNER_CODE = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")


def line_of(path: SampledPath) -> SampledFrame | None:
    """The innermost line of the user's code; of a comprehension, the line of the function around it."""
    frames = list(path.frames)
    while len(frames) > 1 and frames[-1].function.endswith(INNER_CODE) and frames[-1].file == frames[-2].file:
        frames.pop()
    return frames[-1] if frames else None


def dotted(node: ast.AST) -> str:
    """`self.buffer.pop` for that expression; "?" stands for what is no plain name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    if isinstance(node, ast.Call):
        return f"{dotted(node.func)}()"
    return "?"


def spots(lines: LineSamples, least_share: float) -> list[Spot]:
    """Statements and loops that took at least this share, most time first.

    A loop stands for the lines of its body that lie in the same function, without nested user functions.
    Loops around nearly everything (the training loop itself) are left out.
    """
    found: list[Spot] = []
    for function in _functions(lines):
        found += _spots_of(function, lines, least_share)
    return sorted(found, key=lambda spot: -spot.share)


def _functions(lines: LineSamples) -> list[_Function]:
    known: dict[tuple[str, int], _Function] = {}
    for source in lines.sources:
        text = textwrap.dedent(source.text)
        try:
            tree = ast.parse(text)
        except SyntaxError:  # a lambda, or a fragment that does not stand alone
            continue
        ast.increment_lineno(tree, source.first_line - 1)
        known[source.file, source.first_line] = _Function(source, tree)
    for number, path in enumerate(lines.paths):
        frame = line_of(path)
        if frame is not None and (function := known.get((frame.file, frame.first_line))):
            function.paths_by_line.setdefault(frame.line, []).append(number)
    return list(known.values())


def _spots_of(function: _Function, lines: LineSamples, least_share: float) -> Iterator[Spot]:
    scope = next(
        (n for n in function.tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)), None
    )
    own = function.tree if function.source.function == "<module>" or scope is None else scope
    for node, loops in _statements(own):
        first, last = node.lineno, _last_line(node)
        paths = [n for line in range(first, last + 1) for n in function.paths_by_line.get(line, ())]
        share = lines.share_of(paths) if paths else 0.0
        if share < least_share:
            continue
        if isinstance(node, ast.For | ast.AsyncFor | ast.While) and share > 0.9:
            continue
        yield Spot(
            file=function.source.file,
            function=function.source.function,
            line=_hottest(range(first, last + 1), function, lines) if _is_simple(node) else first,
            node=node,
            loops=loops,
            scope=own,
            text=_text(function.source, first),
            paths=tuple(paths),
            share=share,
            called=_called(lines, paths),
        )


def _statements(scope: ast.AST) -> Iterator[tuple[ast.stmt, tuple[Loop, ...]]]:
    """Simple statements, and compound ones that are loops, with the loops around each."""
    todo: list[tuple[ast.AST, tuple[Loop, ...]]] = [(scope, ())]
    while todo:
        node, loops = todo.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
                continue  # they have samples of their own
            inner = loops
            if isinstance(child, ast.For | ast.AsyncFor | ast.While):
                yield child, loops
                inner = (child, *loops)
            elif isinstance(child, ast.stmt) and _is_simple(child):
                yield child, loops
            elif isinstance(child, ast.If | ast.With | ast.Try):
                yield child, loops  # only its header counts, see _last_line
            if not (isinstance(child, ast.stmt) and _is_simple(child)):
                todo.append((child, inner))


def _is_simple(node: ast.AST) -> bool:
    return isinstance(node, ast.stmt) and not hasattr(node, "body")


def _last_line(node: ast.stmt) -> int:
    """The end of a simple statement or a loop; of other compound statements, the end of their header."""
    if isinstance(node, ast.If | ast.With | ast.Try):
        return max(node.lineno, node.body[0].lineno - 1)
    return node.end_lineno or node.lineno


def _hottest(span: range, function: _Function, lines: LineSamples) -> int:
    return max(span, key=lambda line: lines.weight_of(function.paths_by_line.get(line, ())))


def _text(source: FunctionSource, line: int) -> str:
    rows = source.text.splitlines()
    at = line - source.first_line
    return rows[at].strip() if 0 <= at < len(rows) else ""


def _called(lines: LineSamples, paths: Iterable[int]) -> tuple[str, ...]:
    weights: dict[str, float] = {}
    for number in paths:
        name = lines.paths[number].called
        if name:
            weights[name] = weights.get(name, 0.0) + lines.weight_of([number])
    return tuple(sorted(weights, key=lambda name: -weights[name]))


# -- the table of lines in a report -----------------------------------------------------------------


def hot_lines(lines: LineSamples, env_steps: int, updates: int, most: int = 20) -> tuple[HotLine, ...]:
    """Lines of the user's code by the time they took, with the library calls they made."""
    by_line: dict[SampledFrame, list[int]] = {}
    for number, path in enumerate(lines.paths):
        frame = line_of(path)
        if frame is not None:
            by_line.setdefault(frame, []).append(number)
    texts = {(source.file, source.first_line): source for source in lines.sources}
    per, unit = (env_steps, "env_step") if env_steps else (updates, "update")
    found = []
    for frame, paths in by_line.items():
        share = lines.share_of(paths)
        if share <= 0:
            continue
        source = texts.get((frame.file, frame.first_line))
        called = _called(lines, paths)
        through = max(paths, key=lambda number: lines.weight_of([number]))
        found.append(
            HotLine(
                site=f"{frame.file}:{frame.line}",
                function=frame.function,
                text=_text(source, frame.line) if source else "",
                called=called[0] if called else "",
                callers=tuple(f"{f.file}:{f.line}" for f in lines.paths[through].frames[:-1]),
                share=share,
                per=unit if per else "",
                ns_per_unit=share * lines.thread.wall_ns / per if per else None,
                gain_if_twice_as_fast=lines.gain(paths, (0.5, 0.5)),
            )
        )
    return tuple(sorted(found, key=lambda line: (-line.share, line.site))[:most])
