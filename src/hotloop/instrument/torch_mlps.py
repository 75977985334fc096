"""Which parameters of an optimizer belong to MLPs built of standard layers; advice depends on it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from hotloop.instrument.trial_patch import live_objects

ACTIVATIONS = ("Tanh", "ReLU", "ELU", "SiLU")
OPTIMIZERS = ("Adam", "AdamW")
MOST_OPTIMIZERS = 4  # that are looked at: a script may make thousands


def parameters_in_mlps(tensors: Iterable[Any]) -> int:
    """How many of the parameters are float32 on the CPU and in an `nn.Sequential` of two or more Linear
    layers and activations. Looks through all live objects, which takes some hundredths of a second.
    """
    torch = sys.modules.get("torch")
    sizes = {
        id(one): one.numel()
        for one in tensors
        if str(one.dtype) == "torch.float32" and one.device.type == "cpu"
    }
    if torch is None or not sizes:
        return 0
    known = {getattr(torch.nn, name) for name in (*ACTIVATIONS, "Linear")}
    found = set()
    for chain in live_objects(torch.nn.Sequential):
        parts = [part for part in chain.modules() if not isinstance(part, torch.nn.Sequential)]
        linears = sum(type(part) is torch.nn.Linear for part in parts)
        if linears >= 2 and all(type(part) in known for part in parts):
            found |= {id(one) for one in chain.parameters()}
    return sum(sizes[key] for key in found & sizes.keys())
