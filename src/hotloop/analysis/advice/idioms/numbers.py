"""Numbers: wide types, conversions, slow ways to compute a value."""

from __future__ import annotations

import ast

from hotloop.analysis.advice.idioms.questions import TENSORS, call_of, has, is_loop, is_same
from hotloop.analysis.advice.idioms.registry import Match, idiom
from hotloop.analysis.hot_statements import Spot
from hotloop.analysis.source_names import dotted


@idiom
def double_precision(spot: Spot) -> Match | None:
    if is_loop(spot) or not (
        call_of(spot, ".double")
        or any(dotted(n) in ("torch.float64", "torch.double", "th.float64") for n in ast.walk(spot.node))
    ):
        return None
    return Match(
        "double_precision",
        "Compute in float32",
        "float64 takes twice the memory and time.",
        "Convert observations to float32 once and keep networks in float32.",
        (0.3, 0.45, 0.6),
        safety="semantic",
    )


@idiom
def back_and_forth(spot: Spot) -> Match | None:
    if is_loop(spot):
        return None
    names = [name for name, _ in spot.calls()]
    to_numpy = sum(name.endswith(".numpy") for name in names)
    to_torch = sum(any(is_same(name, t) for t in ("torch.from_numpy", *TENSORS)) for name in names)
    if to_numpy + to_torch < 3:  # one on the way in and one on the way out are needed
        return None
    return Match(
        "back_and_forth",
        "Stay in torch, or stay in numpy",
        "Values are converted between numpy and torch several times.",
        "Convert once at the border (observation in, action out).",
        (0.3, 0.6, 0.8),
    )


@idiom
def state_as_text(spot: Spot) -> Match | None:
    if is_loop(spot) or not (
        has(spot.node, ast.JoinedStr)
        or any(
            name in ("str", "repr", "hash")
            or name.endswith((".tobytes", ".tostring", ".hexdigest", "?.join", "?.format"))
            for name, _ in spot.calls()
        )
    ):
        return None
    return Match(
        "state_as_text",
        "Use integers as keys, not text",
        "Values are turned into text or bytes at every pass.",
        "Number the states (ravel_multi_index) and index an array, or use tuples of ints; format text only "
        "when it is printed.",
        (0.5, 0.8, 0.95),
        effort="hours",
    )


@idiom
def introspection(spot: Spot) -> Match | None:
    """Asking the system or the interpreter about itself at every pass."""
    names = (
        *("gc.get_objects", "tracemalloc.take_snapshot", "tracemalloc.get_traced_memory", "inspect.stack"),
        *(
            "inspect.getsource",
            "psutil.virtual_memory",
            "psutil.cpu_percent",
            ".memory_info",
            ".memory_full_info",
        ),
        *("traceback.format_stack", "traceback.extract_stack", "torch.cuda.memory_summary"),
    )
    if is_loop(spot) or not (
        call_of(spot, *names) or any(name.startswith("psutil.") for name in spot.called[:1])
    ):
        return None
    return Match(
        "introspection",
        "Look at memory, stacks or the system less often",
        "The program asks the system or the interpreter about itself at every pass.",
        "Do it every few seconds, or only while debugging.",
        (0.9, 0.98, 1.0),
    )


@idiom
def garbage(spot: Spot) -> Match | None:
    if is_loop(spot) or not call_of(spot, "gc.collect", "torch.cuda.empty_cache", "torch.cuda.synchronize"):
        return None
    return Match(
        "garbage",
        "Leave garbage collection to Python",
        "A full collection walks all objects at every pass.",
        "Remove the call.",
        (0.95, 0.99, 1.0),
        walks_memory=True,
    )
