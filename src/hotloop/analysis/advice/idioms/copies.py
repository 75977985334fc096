"""Copies, pickles and text made of objects that training only passes on."""

from __future__ import annotations

import ast

from hotloop.analysis.advice.idioms.questions import (
    call_of,
    called_names,
    is_loop,
    is_same,
    is_text,
    saw_call,
)
from hotloop.analysis.advice.idioms.registry import Match, idiom
from hotloop.analysis.hot_statements import Spot
from hotloop.analysis.source_names import dotted


@idiom
def deep_copy(spot: Spot) -> Match | None:
    names = ("deepcopy", "copy.deepcopy", "dataclasses.asdict", "asdict", "dataclasses.astuple")
    call = call_of(spot, *names)
    if is_loop(spot) or not (call or saw_call(spot, "copy.deepcopy", "dataclasses.asdict")):
        return None
    return Match(
        "deep_copy",
        "Copy arrays, not whole objects",
        "copy.deepcopy walks every object in Python.",
        "Copy only what changes: array.copy() for arrays, clone() for tensors, or keep what is needed to "
        "restore the state. Values that nobody changes need no copy.",
        (0.7, 0.97, 1.0),
        part=call,
        walks_memory=True,
    )


@idiom
def pickling(spot: Spot) -> Match | None:
    names = (
        "pickle.dumps",
        "pickle.loads",
        "cloudpickle.dumps",
        "cloudpickle.loads",
        "dill.dumps",
        "dill.loads",
    )
    call = call_of(spot, *names, "cPickle.dumps", "cPickle.loads")
    if is_loop(spot) or call is None:
        return None
    return Match(
        "pickling",
        "Take pickling out of the loop",
        "Every pass turns objects into bytes and back.",
        "Keep arrays as arrays: write them into preallocated (shared) memory, or send buffers instead of "
        "objects.",
        (0.7, 0.95, 1.0),
        part=call,
        effort="hours",
    )


@idiom
def json_text(spot: Spot) -> Match | None:
    if is_loop(spot) or not (
        call_of(spot, "json.dumps", "json.loads", "json.dump", "json.load", "yaml.dump", "yaml.safe_load")
        or saw_call(spot, "json.dumps", "json.loads", "json.dump", "json.load")
        or _converts_for_json(spot)
    ):
        return None
    return Match(
        "json_text",
        "Keep JSON out of the loop",
        "Numbers are turned into text (or back) at every pass.",
        "Pass arrays or tuples; write JSON once at the end, or every few thousand steps.",
        (0.75, 0.95, 1.0),
    )


def _converts_for_json(spot: Spot) -> bool:
    """`{"image": image.tolist()}`, `np.array(message["image"])`: arrays as lists, for JSON."""
    if not {"json"} & spot.names.mentioned or not {"dumps", "loads"} & spot.names.mentioned:
        return False
    for node in ast.walk(spot.node):
        if isinstance(node, ast.Dict) and any(n.endswith(".tolist") for n in called_names(node)):
            return True
        if (
            isinstance(node, ast.Call)
            and any(is_same(dotted(node.func), n) for n in ("numpy.array", "numpy.asarray"))
            and node.args
            and isinstance(node.args[0], ast.Subscript)
            and is_text(node.args[0].slice)
        ):
            return True
    return False


@idiom
def weights_copied(spot: Spot) -> Match | None:
    call = call_of(
        spot, ".state_dict", ".load_state_dict", ".parameters_to_vector", ".set_parameters", ".get_parameters"
    )
    if is_loop(spot) or call is None or call_of(spot, "torch.load"):
        return None  # reading the file is the larger part
    return Match(
        "weights_copied",
        "Copy weights less often, or in place",
        "state_dict and load_state_dict build dictionaries and copy every tensor through Python.",
        "Load weights only when they have changed (keep a version number, or once for each rollout), and "
        "copy them in place with torch._foreach_copy_ (lerp for soft updates).",
        (0.5, 0.85, 0.97),
        part=call,
        library_calls=("state_dict", "_parameters"),
    )
