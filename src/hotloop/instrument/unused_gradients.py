"""Which gradients of a backward pass nobody uses, and what they cost.

The graph behind a loss is walked before the pass: its leaves are the parameters that will get a gradient. A
parameter that no optimizer has, that never changes, or whose gradient is never cleared, is not
trained. Gradients of trained ones are discarded if they are cleared before anybody steps or reads them
(`gradient_fates`). A node of the graph that leads to such leaves alone is computed for nothing; one that
leads to others as well computes the gradient of its weights for nothing. Where there are any, every node of
one pass is timed and the next pass as a whole, since the engine takes time between nodes, too. Both are CPU
times of the thread: waiting for a core would fall on any node.

Tensors that are no parameters of a module count as wanted: whoever made one with `requires_grad` reads it.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from hotloop.instrument.gradient_fates import GradientFates, owned_parameters
from hotloop.instrument.trial_patch import live_objects
from hotloop.measure.core_shared import PACKAGE, is_library

Frames = tuple[tuple[str, int, int], ...]
MOST_NODES = 20_000  # of one graph
MOST_PASSES = 100
MOST_NAMES = 8  # modules that are named
MOST_HELD = 32  # by a container or an object, in which modules are looked for
MOST_LOOKS_AT_MODULES = 4  # each takes some hundredths of a second
VALUES = 64  # of a parameter, that are compared
HOOK_NS = 3_000  # what timing one node costs


@dataclass(eq=False)
class _Leaf:
    """A parameter that no optimizer has."""

    parameter: weakref.ref[Any]
    values: Any  # some of them, when it was first seen
    name: str = ""  # of the outermost module (else its class) and of parts: "net.encoder.0.weight"
    windows: int = 0  # in which it was looked at
    window: int = -1  # the last of them
    changes: bool = False
    is_cleared: bool = False  # its gradient was, between two passes

    @property
    def by_hand(self) -> bool:
        """Whether the script trains it itself. Target networks change, too: nobody clears their gradients."""
        return self.changes and self.is_cleared


@dataclass(frozen=True)
class _Parts:
    """Modules of a pass whose gradients are discarded, and those whose gradients are stepped."""

    modules: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # of all parameters in these
    keys: frozenset[int] = frozenset()  # ids of these parameters
    wanted: tuple[str, ...] = ()
    is_complete: bool = False  # whether `wanted` are all parameters that get a gradient besides
    partly_frozen: bool = False  # whether some parameters of `modules` have no gradients anyway


@dataclass(eq=False)
class _Pass:
    frames: Frames
    leaves: tuple[_Leaf, ...] = ()  # that nobody trains
    discarded: _Parts = field(default_factory=_Parts)
    reached: frozenset[int] = frozenset()  # ids of trained parameters
    parameters: tuple[weakref.ref[Any], ...] = ()  # of those in `discarded`
    keeps_graph: bool = False  # for another pass
    folds: bool = False  # torch chose a product of matrices that may depend on what needs gradients
    elements: int = 0  # of unused parameters
    of_elements: int = 0  # of all leaves
    modules: tuple[str, ...] = ()
    whole_ns: int = 0  # of the pass without hooks; 0: not timed as a whole
    nodes_ns: int = 0  # of all nodes; 0: not timed by node, or a device does the work
    needless_ns: int = 0  # of nodes that lead to such leaves alone
    weights_ns: int = 0  # of nodes that lead to others as well


class UnusedGradients:
    """What is known about the leaves of the passes that were looked at."""

    def __init__(self) -> None:
        self._leaves: dict[int, _Leaf] = {}
        self._passes: list[_Pass] = []
        self._window = 0
        # Largest parts that have unused parameters alone, with the names of these
        self._modules: dict[str, tuple[str, ...]] = {}
        self._looks_at_modules = 0
        self.fates = GradientFates()
        self._discarded: dict[tuple[Frames, frozenset[int]], _Parts] = {}

    def open(self) -> None:
        """A new window begins."""
        self._window += 1

    def before(
        self, tensors: Any, frames: Frames, caller: FrameType | None, keeps_graph: bool = False
    ) -> _Look | _Whole | _Watch | None:
        """Look at the graph behind these losses; None if there is nothing to be learnt from the pass."""
        torch = sys.modules["torch"]
        given = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
        graph = _Graph([one.grad_fn for one in given if getattr(one, "grad_fn", None) is not None])
        if not graph.order:
            return None
        found = _Pass(frames, keeps_graph=keeps_graph)
        trained = owned_parameters()
        parameters = list({id(one): one for one in graph.leaves.values()}.values())
        if not any(id(one) in trained for one in parameters):
            return None  # trained without an optimizer of torch, if at all
        if len(self._passes) == MOST_PASSES:
            return None
        unused = [one for one in parameters if isinstance(one, torch.nn.Parameter) and id(one) not in trained]
        known = [self._known(one) for one in unused]
        self._name(known, caller)
        unwanted = {
            id(one) for one, leaf in zip(unused, known, strict=True) if leaf.name and not leaf.by_hand
        }
        found.leaves = tuple(self._leaves[key] for key in unwanted)
        watched = [one for one in parameters if id(one) in trained and isinstance(one, torch.nn.Parameter)]
        found.reached = frozenset(id(one) for one in watched)
        found.discarded = self._discarded_of(frames, parameters, watched, caller)
        unwanted |= found.discarded.keys
        found.parameters = tuple(weakref.ref(one) for one in watched if id(one) in found.discarded.keys)
        found.folds = any(type(node).__name__ == "UnsafeViewBackward0" for node in graph.order)
        found.elements = sum(one.numel() for one in parameters if id(one) in unwanted)
        found.of_elements = sum(one.numel() for one in parameters)
        found.modules = self._modules_of(found.leaves)
        by_node = sum(one.nodes_ns > 0 for one in self._passes if one.frames == frames)
        as_a_whole = sum(one.whole_ns > 0 for one in self._passes if one.frames == frames)
        self._passes.append(found)
        watch = _Watch(self.fates, frames, watched)
        if not unwanted or any(one.device.type != "cpu" for one in parameters):
            return watch
        return _Whole(found, watch) if as_a_whole < by_node else _Look(found, graph, unwanted, watch)

    def _discarded_of(
        self, frames: Frames, parameters: list[Any], watched: list[Any], caller: FrameType | None
    ) -> _Parts:
        """The modules of a pass whose gradients are cleared unread, as far as is known now."""
        keys = frozenset(id(one) for one in watched if self.fates.may_be_unread(frames, one))
        wanted = frozenset(id(one) for one in parameters) - keys
        if not keys or not self.fates.steps_some(frames, watched):
            return _Parts()
        known = self._discarded.get((frames, keys))
        if known is None:
            known = self._discarded[frames, keys] = _parts_in(_named_modules(caller), keys, wanted)
        return known

    def _known(self, parameter: Any) -> _Leaf:
        leaf = self._leaves.get(id(parameter))
        if leaf is None or leaf.parameter() is not parameter:
            leaf = self._leaves[id(parameter)] = _Leaf(weakref.ref(parameter), _values(parameter))
        elif leaf.window != self._window:
            leaf.changes |= not _equal(leaf.values, _values(parameter))
        if leaf.windows:
            leaf.is_cleared |= parameter.grad is None or not bool(parameter.grad.any())
        leaf.windows += leaf.window != self._window
        leaf.window = self._window
        return leaf

    def _name(self, leaves: Iterable[_Leaf], caller: FrameType | None) -> None:
        """Find the modules of parameters that have no name yet; those outside of modules keep none."""
        new = {id(leaf.parameter()): leaf for leaf in leaves if not leaf.name and leaf.windows == 1}
        if not new or self._looks_at_modules == MOST_LOOKS_AT_MODULES:
            return
        self._looks_at_modules += 1
        outermost = _named_modules(caller)
        _name_leaves(new, outermost)
        if not all(leaf.name for leaf in new.values()):
            modules = live_objects(sys.modules["torch"].nn.Module)
            inside = {id(part) for module in modules for part in module._modules.values()}
            outermost += [(type(one).__name__, one) for one in modules if id(one) not in inside]
            _name_leaves(new, outermost)
        unused = {key for key, leaf in self._leaves.items() if leaf.name and leaf.parameter() is not None}
        for name, module in outermost:
            for part, keys in _parts(module, name, unused):
                names = tuple(self._leaves[key].name for key in keys)
                self._modules[part] = (*self._modules.get(part, ()), *names)

    def _modules_of(self, leaves: tuple[_Leaf, ...]) -> tuple[str, ...]:
        names = {leaf.name for leaf in leaves}
        found = [part for part, inside in self._modules.items() if any(one in names for one in inside)]
        # A parameter has one name; parts of modules that have it under another are left out.
        return tuple(part for part in found if any(one.startswith(part) for one in names))[:MOST_NAMES]

    def facts(self) -> dict[str, Any]:
        """How many passes were looked at, and those that compute gradients which nobody uses."""
        trained = owned_parameters()
        by_line: dict[Frames, list[_Pass]] = {}
        for one in self._passes:
            by_line.setdefault(one.frames, []).append(one)
        found = []
        for frames, looked_at in by_line.items():
            mine = [
                one
                for one in looked_at
                if (one.leaves or one.parameters)
                and _are_unused(one.leaves, trained)
                and self._are_discarded(one)
            ]
            if not mine:
                continue
            last = mine[-1]
            unread = {key for one in mine for key in one.discarded.keys}
            by_node = [one for one in mine if one.nodes_ns]
            whole = [one.whole_ns for one in mine if one.whole_ns]
            nodes_ns = sum(one.nodes_ns for one in by_node)
            found.append(
                {
                    "frames": [list(frame) for frame in frames],
                    "passes": sum(one in mine or bool(one.reached & unread) for one in looked_at),
                    "of_passes": len(looked_at),
                    "elements": last.elements,
                    "of_elements": last.of_elements,
                    "modules": list(last.modules),
                    "total_ns": len(by_node) * sum(whole) // len(whole) if whole else nodes_ns,
                    "needless_ns": sum(one.needless_ns for one in by_node),
                    "weights_ns": sum(one.weights_ns for one in by_node),
                    "changes": any(leaf.changes for leaf in last.leaves),
                    # In eval mode, torch takes another way through these where no gradient is needed.
                    "attention": any(
                        ".in_proj_" in name
                        for name in (*last.discarded.names, *(leaf.name for leaf in last.leaves))
                    ),
                    "discarded": list(last.discarded.modules[:MOST_NAMES]),
                    "wanted": list(last.discarded.wanted) if last.discarded.is_complete else [],
                    "partly_frozen": last.discarded.partly_frozen,
                    "keeps_graph": any(one.keeps_graph for one in self._passes),
                    "folds": any(one.folds for one in mine),
                }
            )
        return {
            "gradients": {
                "passes": len(self._passes),
                "windows": self._window,
                "unused": found,
                "known": [[list(frame) for frame in frames] for frames in self.fates.known_frames()],
                "readers": sorted([file, line] for file, line in self.fates.readers),
            }
        }

    def _are_discarded(self, found: _Pass) -> bool:
        """Whether the gradients that were timed as discarded have turned out to be."""
        alive = [one for one in (reference() for reference in found.parameters) if one is not None]
        return len(alive) == len(found.parameters) and all(
            self.fates.is_unread(found.frames, one) for one in alive
        )


def _are_unused(leaves: Iterable[_Leaf], trained: set[int]) -> bool:
    """Whether they were seen over some time, and nothing has trained them."""
    return all(
        leaf.windows > 1 and not leaf.by_hand and id(leaf.parameter()) not in trained for leaf in leaves
    )


def _values(parameter: Any) -> Any:
    flat = parameter.detach().reshape(-1)
    return flat[:: max(1, len(flat) // VALUES)].clone()


def _equal(before: Any, now: Any) -> bool:
    return before.shape == now.shape and bool((before == now).all())


def _named_modules(frame: FrameType | None) -> list[tuple[str, Any]]:
    """Modules that the user's functions on this stack, or the objects that own them, have names for.

    Those in lists, dicts and objects of the user's own classes come last: `self.critics[0]`, `agent.critic`.
    """
    kind = sys.modules["torch"].nn.Module
    found: dict[int, tuple[str, Any]] = {}
    others: list[tuple[str, Any]] = []
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE) and not is_library(file):
            known = frame.f_locals
            owner = known.get("self")
            places = [("", known), ("self.", getattr(owner, "__dict__", {})), ("", frame.f_globals)]
            for prefix, names in places:
                for name, value in list(names.items()):
                    if isinstance(value, kind) and name != "self":
                        found.setdefault(id(value), (f"{prefix}{name}", value))
                    elif name != "self" and not name.startswith("__"):
                        others.append((f"{prefix}{name}", value))
        frame = frame.f_back
    for name, value in others:
        for inner, module in _held_by(value):
            if isinstance(module, kind):
                found.setdefault(id(module), (f"{name}{inner}", module))
    parts = {id(part) for _, module in found.values() for part in module.modules() if part is not module}
    return [one for key, one in found.items() if key not in parts]


def _held_by(value: Any) -> Iterator[tuple[str, Any]]:
    """What a container or an object of the user's own class has, with how it is written."""
    if isinstance(value, list | tuple):
        for number, one in enumerate(value[:MOST_HELD]):
            yield f"[{number}]", one
            if not isinstance(one, list | tuple | dict):
                yield from ((f"[{number}]{name}", inner) for name, inner in _attributes(one))
    elif isinstance(value, dict):
        yield from ((f"[{key!r}]", one) for key, one in list(value.items())[:MOST_HELD])
    else:
        yield from _attributes(value)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    module = sys.modules.get(type(value).__module__)
    file = getattr(module, "__file__", None) or ""
    if not isinstance(value, type) and not file.startswith(PACKAGE) and not is_library(file):
        inner = getattr(value, "__dict__", None)
        if isinstance(inner, dict):
            yield from ((f".{name}", one) for name, one in list(inner.items())[:MOST_HELD])


def _parts_in(modules: list[tuple[str, Any]], keys: frozenset[int], wanted: frozenset[int]) -> _Parts:
    """The largest parts of these modules that have such parameters, and none whose gradients are wanted."""
    found: dict[str, list[int]] = {}
    used: dict[str, list[int]] = {}
    names: list[str] = []
    frozen = False
    for name, module in modules:
        others = {id(one) for one in module.parameters()} - wanted
        for part, inside in _parts(module, name, others):
            mine = [key for key in inside if key in keys]
            if mine and not any(set(mine) <= set(known) for known in found.values()):
                found[part] = mine
        for part, inside in _parts(module, name, set(wanted)):
            if not any(set(inside) <= set(known) for known in used.values()):
                used[part] = inside
        for full, parameter in module.named_parameters(name):
            inside_part = any(full == part or full.startswith(f"{part}.") for part in found)
            frozen |= inside_part and not parameter.requires_grad
            if inside_part:
                names.append(full)
    reached = frozenset(key for inside in found.values() for key in inside)
    covered = {key for inside in used.values() for key in inside}
    return _Parts(tuple(found), tuple(names), reached, tuple(used), wanted <= covered, frozen)


def _name_leaves(new: dict[int, _Leaf], modules: Iterable[tuple[str, Any]]) -> None:
    for root, module in modules:
        for name, parameter in module.named_parameters():
            leaf = new.get(id(parameter))
            if leaf is not None and not leaf.name:
                leaf.name = f"{root}.{name}"


def _parts(module: Any, name: str, unused: set[int]) -> Iterator[tuple[str, list[int]]]:
    """The largest parts of a module that have unused parameters alone, with the ids of these."""
    own = [id(one) for one in module.parameters() if one.requires_grad]
    hit = [one for one in own if one in unused]
    if hit and len(hit) == len(own):
        yield name, hit
    elif hit:
        for part, inner in module.named_children():
            yield from _parts(inner, f"{name}.{part}", unused)
        for part, one in module._parameters.items():
            if id(one) in unused:
                yield f"{name}.{part}", [id(one)]


@dataclass
class _Graph:
    """Nodes behind some losses; `leaves` are the tensors that get a gradient, by their node."""

    roots: list[Any]
    order: list[Any] = field(default_factory=list)  # a node stands behind all those that it leads to
    leaves: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seen: set[Any] = set()
        todo = [(root, False) for root in self.roots]
        while todo:
            node, is_done = todo.pop()
            if is_done:
                self.order.append(node)
                continue
            if node in seen:
                continue
            seen.add(node)
            if len(seen) > MOST_NODES:
                self.order.clear()
                return
            variable = getattr(node, "variable", None)
            if variable is not None:
                self.leaves[node] = variable
                continue
            todo.append((node, True))
            todo += [(below, False) for below, _ in node.next_functions if below is not None]

    def sort_nodes(self, unwanted: set[int]) -> tuple[set[Any], set[Any]]:
        """Nodes that lead to unwanted leaves alone, and those of the others whose weights are unwanted."""
        needed = {node for node, leaf in self.leaves.items() if id(leaf) not in unwanted}
        needless, mixed = set(), set()
        for node in self.order:
            below = [one for one, _ in node.next_functions if one is not None]
            if any(one in needed for one in below):
                needed.add(node)
                if any(one not in needed for one in below):
                    mixed.add(node)
            else:
                needless.add(node)
        return needless, mixed


@dataclass
class _Watch:
    """Watches what becomes of the gradients of a pass."""

    fates: GradientFates
    frames: Frames
    parameters: list[Any]

    def finish(self) -> int:
        """The pass is over; returns what its timing cost."""
        self.fates.passed(self.frames, self.parameters)
        return 0


class _Whole:
    """Times a backward pass as a whole."""

    def __init__(self, found: _Pass, watch: _Watch) -> None:
        self._pass = found
        self._watch = watch
        self._began = time.thread_time_ns()

    def finish(self) -> int:
        """Returns what timing cost: next to nothing."""
        self._pass.whole_ns = time.thread_time_ns() - self._began
        return self._watch.finish()


class _Look:
    """Times every node of a backward pass. On the CPU, the thread that called it runs them all."""

    def __init__(self, found: _Pass, graph: _Graph, unwanted: set[int], watch: _Watch) -> None:
        self._pass = found
        self._watch = watch
        self._needless, self._mixed = graph.sort_nodes(unwanted)
        self._needless |= {node for node, leaf in graph.leaves.items() if id(leaf) in unwanted}
        self._nodes = [*graph.order, *graph.leaves]
        self._took = [0] * len(self._nodes)
        self._began = 0
        self._handles = []
        for number, node in enumerate(self._nodes):
            self._handles.append(node.register_prehook(self._begin))
            self._handles.append(node.register_hook(self._end(number)))

    def _begin(self, gradients: Any) -> None:
        self._began = time.thread_time_ns()

    def _end(self, number: int) -> Callable[[Any, Any], None]:
        def ended(inputs: Any, outputs: Any) -> None:
            self._took[number] += time.thread_time_ns() - self._began

        return ended

    def finish(self) -> int:
        """Take the hooks away and add up; returns about how long timing took, in ns."""
        for handle in self._handles:
            handle.remove()
        for node, took in zip(self._nodes, self._took, strict=True):
            self._pass.nodes_ns += took
            self._pass.needless_ns += took if node in self._needless else 0
            self._pass.weights_ns += took if node in self._mixed else 0
        cost = HOOK_NS * len(self._nodes)
        self._nodes, self._handles = [], []
        self._needless.clear()
        self._mixed.clear()
        return cost + self._watch.finish()
