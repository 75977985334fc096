"""Where the user's own code spends training: sampled lines, grouped into statements and loops.

A sample knows the call path through the user's code, the region that was open and how much time it stands
for. Shares are of the driving thread's time during training. What a line took includes the library calls it
made, but not other functions of the user, which have lines of their own.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.findings import Estimate, HotLine
from hotloop.analysis.source_names import Names, dotted, names_in
from hotloop.analysis.whatif import block_counts
from hotloop.capture.model import Process, Thread
from hotloop.capture.samples import (
    RUNNABLE,
    RUNNING,
    SLEEPING,
    FunctionSource,
    SampledFrame,
    SampledPath,
    Samples,
)

BLOCKS = 40  # of equal length, for intervals: samples of one moment are not independent
LEAST_SAMPLES = 20  # fewer say too little about anything
LOOP_OF_TRAINING = 0.97  # share of a loop that does nearly everything
MOST_SHARE = 0.99  # of training that a gain may count as removed
WAITING = (  # ends of functions
    *(".wait", ".get", ".acquire", ".select", ".poll", ".sleep", ".accept", ".recv", "._recv", "._poll"),
    *(".recv_bytes", "._recv_bytes", "._wait_for_tstate_lock", ".join", ".result", ".readinto"),
)

Floats = NDArray[np.float64]
LOOPS = (ast.For, ast.AsyncFor, ast.While)
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
    time_ns: NDArray[np.int64]  # [samples]
    state: NDArray[np.int64]  # [samples], RUNNING, RUNNABLE, SLEEPING or UNKNOWN
    others: Samples  # of the other threads of the process, taken at the same moments
    # [samples], whether a sample shows what a helper did while this thread waited; empty: none does
    helping: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    # [samples], path of this thread itself at that moment, also where a helper is shown; empty: none is
    origin: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    helpers: dict[int, int] = field(default_factory=dict)  # by process id, where its `paths` begin

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

    def gain(
        self,
        paths: Iterable[int],
        saved: tuple[float, float, float],
        also: Floats | None = None,
        rest_faster: Sequence[tuple[float, float]] = ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
    ) -> Estimate:
        """Speed-up of training if a fraction of the time of these paths were saved.

        `saved` is the least, the most likely and the largest fraction. `also` is the part of every sample,
        [samples], that goes away too if it has another path; half of it up to half as much again.
        `rest_faster` says which fraction of all other time is saved besides, and which share of training that
        is at most; again least, most likely, largest. It is most likely not more than a third of what the
        paths took, and never more than that.
        """
        chosen = self._by_block[:, sorted(set(paths))].sum(axis=1)
        lost: Floats = np.zeros(len(self.path)) if also is None else also * ~self.among(paths)
        more: Floats = np.zeros(BLOCKS)
        np.add.at(more, self.block, lost * self.weight_ns)
        counts = block_counts(BLOCKS)
        whole = np.maximum(counts @ self._by_block.sum(axis=1), 1.0)
        drawn, drawn_more = (counts @ chosen) / whole, (counts @ more) / whole
        share, share_more = chosen.sum() / self.total_ns, more.sum() / self.total_ns

        def factor(own: Floats, waited: Floats, which: int) -> Floats:
            fraction, at_most = rest_faster[which]
            limit = np.minimum(own if which == 2 else own / 3, at_most)
            rest = np.minimum(fraction * (1 - own - waited), limit)
            gone = own * saved[which] + waited * (0.5, 1.0, 1.5)[which] + rest
            result: Floats = 1.0 / (1.0 - np.clip(gone, 0.0, MOST_SHARE))
            return result

        value = float(factor(share, share_more, 1))
        least = float(np.quantile(factor(drawn, drawn_more, 0), 0.025))
        most = float(np.quantile(factor(drawn, drawn_more, 2), 0.975))
        return Estimate(value, min(least, value), max(most, value))

    def among(self, paths: Iterable[int]) -> NDArray[np.bool_]:
        """Which samples have one of these paths."""
        return np.isin(self.path, np.fromiter(set(paths), dtype=np.int64))

    def asleep(self, paths: Iterable[int]) -> float:
        """Part of the time of these paths in which the thread slept."""
        among = self.among(paths)
        whole = float(self.weight_ns[among].sum())
        return float(self.weight_ns[among & (self.state == SLEEPING)].sum()) / whole if whole else 0.0

    def busy_threads(self) -> dict[str, NDArray[np.bool_]]:
        """Lines of the user's code in other threads, with the samples in which they kept this thread asleep.

        Only samples in which this thread had something to run: it waited for the GIL, not for a message.
        """
        ready = (self.state == SLEEPING) & ~np.isin(self.path, self.paths_where(waits))
        if len(self.helping):
            ready &= ~self.helping
        found: dict[str, NDArray[np.bool_]] = {}
        running = self.others[np.isin(self.others["state"], (RUNNING, RUNNABLE))]
        for number in np.unique(running["path"]):
            frame = line_of(self.paths[number])
            if frame is None or waits(self.paths[number]):
                continue
            moments = running["time_ns"][running["path"] == number].astype(np.int64)
            mask = ready & np.isin(self.time_ns, moments)
            found[frame.site] = found.get(frame.site, np.zeros(len(mask), dtype=np.bool_)) | mask
        return found

    def held_up_by(self, libraries: Sequence[str]) -> Floats:
        """Part of every sample, [samples], that another thread took which worked inside these libraries.

        Python code of one thread keeps the others from running: they need the GIL. A thread that leaves it
        at every operation, as torch does, waits for it again each time.
        """
        busy = [
            number
            for number, path in enumerate(self.paths)
            if any(name in path.innermost or name in path.called for name in libraries) and not waits(path)
        ]
        active = np.isin(self.others["path"], busy) & np.isin(self.others["state"], (RUNNING, RUNNABLE))
        at_once = np.isin(self.time_ns, self.others["time_ns"][active].astype(np.int64))
        # A thread that was ready to run, but without a core, may not have got the GIL, either.
        lost = np.where(self.state == SLEEPING, 1.0, np.where(self.state == RUNNABLE, 0.5, 0.0))
        return np.where(at_once, lost, 0.0)

    def helped(self, paths: Iterable[int]) -> float:
        """Part of the time of these paths that helpers took while this thread waited for them."""
        among = self.among(paths)
        whole = float(self.weight_ns[among].sum())
        if not len(self.helping) or not whole:
            return 0.0
        return float(self.weight_ns[among & self.helping].sum()) / whole

    def helping_at(self, paths: Iterable[int]) -> set[int]:
        """Paths of helpers while this thread waited in one of these."""
        if not len(self.origin):
            return set()
        at = np.isin(self.origin, np.fromiter(set(paths), dtype=np.int64)) & self.helping
        return set(np.unique(self.path[at]).tolist())

    def paths_where(self, wanted: Callable[[SampledPath], bool]) -> list[int]:
        return [number for number, path in enumerate(self.paths) if wanted(path)]

    def region_paths_of(self, paths: Iterable[int]) -> dict[tuple[str, ...], float]:
        """Share of the time of these paths by open regions, outermost first; () for none."""
        among = self.among(paths)
        whole = float(self.weight_ns[among].sum())
        found: dict[tuple[str, ...], float] = {}
        for node in np.unique(self.node[among]):
            names = self.thread.paths[node] if node < len(self.thread.paths) else ()
            time_ns = float(self.weight_ns[among & (self.node == node)].sum())
            found[names] = found.get(names, 0.0) + time_ns / max(whole, 1.0)
        return found


def waits(path: SampledPath) -> bool:
    """Whether a stack ends in a function that waits."""
    return path.innermost.lower().endswith(WAITING)


def line_samples(process: Process, thread: Thread) -> LineSamples | None:
    """The samples of `thread` between its start and end (cut it to training first); None: too few."""
    if process.sampling is None or thread.folded_threads:
        return None
    samples = process.samples
    mine = samples["native_id"] == thread.native_id
    during = (samples["time_ns"] >= thread.start_ns) & (samples["time_ns"] <= thread.end_ns)
    others, mine = during & ~mine, during & mine
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
        time_ns=chosen["time_ns"].astype(np.int64),
        state=chosen["state"].astype(np.int64),
        others=samples[others],
    )


def with_helpers(lines: LineSamples, processes: Iterable[Process], driver: Process) -> LineSamples:
    """The same samples; where the thread waited for others, what they did at that moment.

    Time in which training waits for a queue or a pipe is not the fault of the line that waits. It goes to
    whatever the helpers (threads of the process, other processes) were doing then, in equal parts; a wait
    during which every helper waits too, or passes messages, stays what it is.
    """
    blocking = blocking_lines(lines.sources)
    blocked = lines.paths_where(lambda path: waits(path) or _blocks(path, blocking))
    waiting = np.isin(lines.path, blocked) & (lines.state == SLEEPING)
    if not waiting.any() or not len(lines.time_ns):
        return lines
    paths, sources = list(lines.paths), {(s.file, s.first_line): s for s in lines.sources}
    found: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
    helpers: dict[int, int] = {}
    for process in processes:
        rows, offset = lines.others, 0
        if process is not driver:
            if process.sampling is None or process.sampling.biased or process.host != driver.host:
                continue
            rows = process.samples[process.samples["native_id"] == process.pid]
            offset = helpers[process.pid] = len(paths)
            paths += _without_stack_of_parent(process.paths, rows["path"])
            sources = {(s.file, s.first_line): s for s in process.sources} | sources
        theirs = blocking_lines(process.sources)
        working = [
            n for n, p in enumerate(paths[offset:]) if p.frames and not waits(p) and not _blocks(p, theirs)
        ]
        at_work = np.isin(rows["path"], working)
        # A process that is awake in its machinery of messages reads, writes or unpickles one.
        passing = ~at_work & np.isin(rows["state"], (RUNNING, RUNNABLE)) & (process is not driver)
        kept_rows = rows[at_work | passing]
        found.append(
            (
                kept_rows["time_ns"].astype(np.int64),
                np.where(passing, -1, rows["path"].astype(np.int64) + offset)[at_work | passing],
                kept_rows["state"],
            )
        )
    time_ns, path, state = (np.concatenate(column) for column in zip(*found, strict=True))
    # The sample of this thread that is nearest in time; its weight says how far it reaches.
    nearest = np.clip(np.searchsorted(lines.time_ns, time_ns), 1, len(lines.time_ns) - 1)
    nearest -= time_ns - lines.time_ns[nearest - 1] < lines.time_ns[nearest] - time_ns
    near = np.abs(lines.time_ns[nearest] - time_ns) <= lines.weight_ns[nearest]
    kept = near & waiting[nearest]
    nearest, path, state = nearest[kept], path[kept], state[kept].astype(np.int64)
    if not len(nearest):
        return lines
    path = np.where(path < 0, lines.path[nearest], path)  # messages belong to the line that waits for them
    count = np.bincount(nearest, minlength=len(lines.path))
    own = count == 0
    helping = np.concatenate(
        [np.zeros(int(own.sum()), dtype=np.bool_), np.ones(len(nearest), dtype=np.bool_)]
    )
    return replace(
        lines,
        paths=tuple(paths),
        sources=tuple(sources.values()),
        path=np.concatenate([lines.path[own], path]),
        node=np.concatenate([lines.node[own], lines.node[nearest]]),
        weight_ns=np.concatenate([lines.weight_ns[own], lines.weight_ns[nearest] / count[nearest]]),
        block=np.concatenate([lines.block[own], lines.block[nearest]]),
        time_ns=np.concatenate([lines.time_ns[own], lines.time_ns[nearest]]),
        state=np.concatenate([lines.state[own], state]),
        helping=helping,
        origin=np.concatenate([lines.path[own], lines.path[nearest]]),
        helpers=helpers,
    )


BLOCKING = frozenset(
    {"read", "readline", "recv", "recv_bytes", "readinto", "recvfrom", "communicate", "waitpid"}
)


def blocking_lines(sources: Iterable[FunctionSource]) -> frozenset[tuple[str, int]]:
    """Lines that read from a pipe, a socket or a file: C functions, which no stack shows."""
    found = set()
    for source in sources:
        try:
            tree = ast.parse(textwrap.dedent(source.text))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in BLOCKING
            ):
                found.add((source.file, source.first_line + node.lineno - 1))
    return frozenset(found)


def _blocks(path: SampledPath, blocking: frozenset[tuple[str, int]]) -> bool:
    """Whether the innermost line is such a one, and no library function was called there."""
    frame = line_of(path)
    return frame is not None and not path.called and (frame.file, frame.line) in blocking


def _without_stack_of_parent(paths: Sequence[SampledPath], seen: NDArray[np.int64]) -> list[SampledPath]:
    """Paths without the frames that all of them share: a forked process begins inside its parent's stack."""
    stacks = [frames for number in np.unique(seen) if (frames := paths[number].frames)]
    shared = 0
    while longer := [stack for stack in stacks if len(stack) > shared]:
        if any(stack[shared] != longer[0][shared] for stack in longer):
            break
        shared += 1
    else:  # a worker that was only seen in one line keeps that
        shared = max(shared - 1, 0)
    return [replace(path, frames=path.frames[shared:]) for path in paths]


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
    below: tuple[int, ...] = ()  # samples of other functions of the user that it called
    names: Names = field(default_factory=Names)  # what names of the file stand for
    asleep: float = 0.0  # part of its time in which the thread slept: waited for time, a lock, input
    calls_networks: bool = False  # whether networks take much of its time, with functions that it calls
    trains: bool = False  # whether it learns or steps envs, with functions that it calls
    # Lines of the same file that called the function around it, with their parts of its time.
    callers: tuple[tuple[int, float], ...] = ()

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
    names: Names
    paths_by_line: dict[int, list[int]] = field(default_factory=dict)
    below_by_line: dict[int, list[int]] = field(default_factory=dict)


INNER_CODE = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")


def line_of(path: SampledPath) -> SampledFrame | None:
    """The innermost line of the user's code; of a comprehension, the line of the function around it."""
    frames = list(path.frames)
    while len(frames) > 1 and frames[-1].function.endswith(INNER_CODE) and frames[-1].file == frames[-2].file:
        frames.pop()
    return frames[-1] if frames else None


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
    trees: dict[tuple[str, int], tuple[FunctionSource, ast.Module]] = {}
    for source in lines.sources:
        try:
            tree = ast.parse(textwrap.dedent(source.text))
        except SyntaxError:  # a lambda, or a fragment that does not stand alone
            continue
        ast.increment_lineno(tree, source.first_line - 1)
        trees[source.file, source.first_line] = source, tree
    names = {
        file: names_in(tree for source, tree in trees.values() if source.file == file)
        for file in {source.file for source, _ in trees.values()}
    }
    known = {key: _Function(source, tree, names[source.file]) for key, (source, tree) in trees.items()}
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
            text=_text(function.source, node.lineno),
            paths=tuple(paths),
            share=share,
            called=_called(lines, paths),
            below=tuple(sorted(below)),
            names=function.names,
            asleep=lines.asleep(paths),
            calls_networks=networks > 0.4,
            trains=training > 0.01,
            callers=_callers(function, together, lines) if own is scope else (),
        )


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
                continue  # they have samples of their own
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


def hot_lines(
    lines: LineSamples,
    env_steps: int,
    updates: int,
    most: int = 20,
    whole_gain: Callable[[float], Estimate | None] | None = None,
) -> tuple[HotLine, ...]:
    """Lines of the user's code by the time they took, with the library calls they made.

    `whole_gain` returns the gain of the whole run if a share of the thread's time is saved.
    """
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
                gain_if_twice_as_fast=lines.gain(paths, (0.5, 0.5, 0.5)),
            )
        )
    ranked = sorted(found, key=lambda line: (-line.share, line.site))[:most]
    if whole_gain is None:
        return tuple(ranked)
    idle = np.isin(lines.path, lines.paths_where(waits)) & (lines.state == SLEEPING)
    made = []
    for line in ranked:
        mine = [n for n, path in enumerate(lines.paths) if _site_of(path) == line.site]
        part = float(lines.weight_ns[lines.among(mine) & ~idle].sum()) / max(lines.total_ns, 1.0)
        gain = whole_gain(part / 2) or line.gain_if_twice_as_fast
        made.append(replace(line, gain_if_twice_as_fast=gain))
    return tuple(made)


def _site_of(path: SampledPath) -> str:
    frame = line_of(path)
    return f"{frame.file}:{frame.line}" if frame is not None else ""
