"""Puts kernels underneath plain torch, for training loops in a single file.

Two thin patches wait until the script has called an `nn.Sequential` or made steps of Adam a few times. Only
then the kernels, and with them numba, are imported and the real patches are applied.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from hotloop.boost import active
from hotloop.boost.torch_records import forget_all as forget_records
from hotloop.boost.torch_records import record_of
from hotloop.instrument.patch import Patch
from hotloop.instrument.trial_patch import live_objects

FORWARD_CALLS, STEPS = 8, 4  # before anything is imported

Apply = Callable[[Iterable[Patch]], None]


class TorchPatches:
    """The patches of torch in this process."""

    def __init__(self, torch: ModuleType, apply: Apply, when_training_begins: Callable[[], None]):
        """`apply` applies patches so that they are undone with everything else."""
        self._torch, self._apply = torch, apply
        self._when_training_begins = when_training_begins
        self._module_of_adam = importlib.import_module("torch.optim.adam")
        self._calls = {"forward": 0, "step": 0}
        self._is_loaded = False
        self._forward = Patch(torch.nn.Sequential, "forward", self._waiting_forward)
        self._adam = Patch(self._module_of_adam, "adam", self._waiting_adam)
        apply([self._forward, self._adam])

    def _waiting_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        is_compiling = self._torch.compiler.is_compiling

        def forward(module: Any, input: Any) -> Any:
            if not is_compiling() and not active.is_paused:
                self._count("forward", FORWARD_CALLS)
            return original(module, input)

        return forward

    def _waiting_adam(self, original: Callable[..., Any]) -> Callable[..., Any]:
        is_compiling = self._torch.compiler.is_compiling

        def adam(*args: Any, **words: Any) -> Any:
            if not is_compiling() and not active.is_paused:
                self._count("step", STEPS)
            return original(*args, **words)

        return adam

    def _count(self, what: str, patience: int) -> None:
        self._calls[what] += 1
        if self._calls[what] >= patience and not self._is_loaded:
            self.load()
            self._when_training_begins()

    def load(self) -> None:
        """Import the kernels and apply the real patches; says why not if that is impossible."""
        self._is_loaded = True
        try:
            from hotloop.boost import adam, distributions, mlp
        except ImportError as missing:
            reason = f"{missing.name or missing} is missing: pip install 'hotloop[rl]'"
            record_of("function", "torch", "", reason)
            return
        self._forward.then(lambda _, original: mlp.running(original))
        unknown = adam.unknown_adam(self._module_of_adam.adam.__wrapped__)
        if unknown is None:
            self._adam.then(lambda _, original: adam.stepping(original))
            self._apply(adam.clipping_patches())
        else:
            record_of("optimizer", "Adam", "", unknown)
        self._apply(distributions.patches())

    def prepare(self) -> str | None:
        """Decide on all modules that live now; the reason if kernels can stand in for none of them."""
        modules = live_objects(self._torch.nn.Sequential)
        if not modules:
            return "no model of Stable-Baselines3 and no nn.Sequential is in use"
        if not self._is_loaded:
            self.load()
        try:
            from hotloop.boost import mlp
        except ImportError as missing:
            return f"{missing.name or missing} is missing: pip install 'hotloop[rl]'"
        found = [mlp.decide(module) for module in modules]
        if any(isinstance(one, mlp.Chain) for one in found):
            return None
        return mlp.why_never(modules[0]) or "the modules belong to Stable-Baselines3"


def forget_all() -> None:
    """Forget all modules and optimizers, when boost is removed."""
    for name in ("hotloop.boost.mlp", "hotloop.boost.adam", "hotloop.boost.distributions"):
        module = sys.modules.get(name)
        if module is not None:
            module.forget_all()
    forget_records()
