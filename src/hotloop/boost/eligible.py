"""What kernels can stand in for: exact classes with the library's own methods, plain dense networks, Adam.

Each check returns None, or the reason why not, which ends "... runs unboosted: ".
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from hotloop.boost.known_sources import is_from

# torch's class -> the kernels' name
ACTIVATIONS = {"Tanh": "tanh", "ReLU": "relu", "ELU": "elu", "SiLU": "silu"}
LEAST_EPSILON = 1e-12  # of Adam: moments that kernels take for 0 must be far below it
RUNNING_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def plain_module(module: Any, name: str) -> str | None:
    """No hooks in the module or below it, nothing overridden on its instances, float32 on the CPU."""
    import torch

    everywhere = torch.nn.modules.module
    if any(getattr(everywhere, f"_global{name}", None) for name in RUNNING_HOOKS):
        return "torch has hooks for all modules"
    for path, part in module.named_modules():
        where = f"{name}.{path}" if path else name
        if has_hooks(part):
            return f"{where} has hooks"
        own = overridden(part)
        if own is not None:
            return f"{where}.{own} is replaced on the instance"
        for key, parameter in part.named_parameters(recurse=False):
            if parameter.dtype is not torch.float32:
                return f"{where}.{key} is {parameter.dtype}, not torch.float32"
            if parameter.device.type != "cpu":
                return f"{where}.{key} is on {parameter.device}, not on the CPU"
            if not parameter.requires_grad:
                return f"{where}.{key} is frozen (requires_grad is False)"
            if not parameter.is_contiguous():
                return f"{where}.{key} is not contiguous"
            if parameter._backward_hooks:
                return f"{where}.{key} has hooks"
            if type(parameter) is not torch.nn.Parameter:
                return f"{where}.{key} is a {type(parameter).__name__}"
    return None


def other_class(found: Any, expected: str, what: str) -> str | None:
    """The reason why not, if `found` is not of that class of the library itself."""
    name = type(found).__name__
    is_librarys = type(found).__module__.startswith(("stable_baselines3.", "sb3_contrib."))
    return None if name == expected and is_librarys else f"{what} is {name}: not {expected}"


def other_distribution(found: Any, expected: str) -> str | None:
    """The reason why not, if actions are not drawn from the library's own distribution of that name."""
    reason, own = other_class(found, expected, "action_dist"), overridden(found)
    return f"action_dist.{own} is replaced on the instance" if reason is None and own else reason


def own_extractor(found: Any, what: str = "features_extractor") -> str | None:
    """The reason why not, if observations are not only flattened before the first layer."""
    return other_class(found, "FlattenExtractor", what) and f"{what} is {type(found).__name__}: not an MLP"


def other_sequence(found: Any, what: str) -> str | None:
    """The reason why not, if layers do not just run one after the other."""
    from torch import nn

    return None if type(found) is nn.Sequential else f"{what} is {type(found).__name__}: not nn.Sequential"


def has_hooks(module: Any) -> bool:
    """Whether anything runs when the module runs, forward or backward."""
    return any(getattr(module, name, None) for name in RUNNING_HOOKS)


class Methods:
    """The names of an instance's methods, to see quickly whether attributes hide one of them."""

    def __init__(self, instance: Any):
        cls, own = type(instance), instance.__dict__
        names = {name for name in dir(cls) if callable(getattr(cls, name, None))}
        self._names = frozenset(names - own.keys())

    def are_hidden(self, instance: Any) -> bool:
        """Whether an attribute hides a method that it did not hide before."""
        return not self._names.isdisjoint(instance.__dict__)


def overridden(instance: Any) -> str | None:
    """The name of a method of the class that an attribute of the instance hides, or None."""
    cls = type(instance)
    found = (
        str(name)
        for name, value in vars(instance).items()
        if callable(value) and callable(getattr(cls, name, None))
    )
    return next(found, None)


def mlp(parts: Iterable[Any], name: str) -> tuple[tuple[int, ...], str] | str:
    """Widths and activation of a chain of modules: Linear, activation, Linear, ..., Linear; or the reason."""
    from torch import nn

    sizes: list[int] = []
    activation = ""
    expects_linear = True
    for part in parts:
        kind = type(part).__name__
        if expects_linear:
            if type(part) is not nn.Linear:
                return f"{name} has a {kind} where hotloop expects a Linear layer"
            if "bias" not in dict(part.named_parameters()):
                return f"{name} has a Linear layer without bias"
            if sizes and sizes[-1] != part.in_features:
                return f"{name} has layers that do not fit together"
            sizes += [part.out_features] if sizes else [part.in_features, part.out_features]
        else:
            if type(part).__module__ != "torch.nn.modules.activation" or kind not in ACTIVATIONS:
                return f"{name} has the activation {kind}: not one of {', '.join(ACTIVATIONS)}"
            if getattr(part, "alpha", 1.0) != 1.0:
                return f"{name} has the activation {kind} with alpha={part.alpha:g}"
            if activation and activation != ACTIVATIONS[kind]:
                return f"{name} has two kinds of activations"
            activation = ACTIVATIONS[kind]
        expects_linear = not expects_linear
    if not sizes or expects_linear:
        return f"{name} does not end with a Linear layer"
    return tuple(sizes), activation or "tanh"


def optimizer(found: Any, parameters: Sequence[Any], allowed: tuple[str, ...] = ("Adam",)) -> str | None:
    """One of torch's own optimizers in `allowed`, with one group of exactly these parameters, plainly set."""
    kind = type(found).__name__
    if kind not in allowed or not type(found).__module__.startswith("torch.optim."):
        return f"the optimizer is {type(found).__module__}.{kind}: not torch.optim.{' or '.join(allowed)}"
    if len(found.param_groups) != 1:
        return f"the optimizer has {len(found.param_groups)} parameter groups"
    group = found.param_groups[0]
    if len(group["params"]) != len(parameters) or any(
        a is not b for a, b in zip(group["params"], parameters, strict=True)
    ):
        return "the optimizer's parameters are not those of the policy"
    for name in ("amsgrad", "maximize", "capturable", "differentiable", "centered", "decoupled_weight_decay"):
        if group.get(name):
            return f"the optimizer has {name}=True"
    if group.get("momentum"):
        return "the optimizer has momentum"
    if any(not isinstance(group[name], (int, float)) for name in ("lr", "eps", "weight_decay")):
        return "the optimizer's settings are tensors"
    if kind == "Adam" and group["eps"] < LEAST_EPSILON:
        return f"the optimizer's eps is {group['eps']:g}: less than {LEAST_EPSILON:g}"
    if is_hooked(found):
        return "the optimizer has hooks"
    if overridden(found) is not None:
        return f"the optimizer's {overridden(found)} is replaced on the instance"
    if not is_from(type(found).step, "torch"):
        return f"torch.optim.{kind}.step was replaced"
    return optimizer_state(found, parameters)


def is_hooked(found: Any) -> bool:
    """Whether anything runs when the optimizer makes a step."""
    everywhere = sys.modules["torch.optim.optimizer"]
    return bool(
        found._optimizer_step_pre_hooks
        or found._optimizer_step_post_hooks
        or everywhere._global_optimizer_pre_hooks
        or everywhere._global_optimizer_post_hooks
        or "step" in found.__dict__
    )


def optimizer_state(found: Any, parameters: Sequence[Any]) -> str | None:
    """Nothing yet, or plain float32 tensors with one number of steps for all parameters."""
    import torch

    steps = set()
    for parameter in parameters:
        state = found.state.get(parameter)
        if not state:
            steps.add(0.0)
            continue
        for name, value in state.items():
            if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32:
                return f"the optimizer's {name} is not a float32 tensor"
            if value.device.type != "cpu" or not value.is_contiguous():
                return f"the optimizer's {name} is not contiguous on the CPU"
        steps.add(float(state["step"]))
    return (
        "the optimizer made different numbers of steps for different parameters" if len(steps) > 1 else None
    )
