"""PyTorch: forward passes (acting or learning), backward, optimizer, transfers, data loading."""

from __future__ import annotations

import functools
import json
import os
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from hotloop._util.interrupts import suppress_own
from hotloop.instrument import backward_passes
from hotloop.instrument.acting_or_learning import (
    evaluate_forward,
    learner_forward,
    pick,
    policy_forward,
    policy_rest,
    policy_value,
    settled,
)
from hotloop.instrument.compilers import compilation
from hotloop.instrument.method_patches import begin_compiling
from hotloop.instrument.patch import Patch, Patches
from hotloop.instrument.sampled_passes import WhileRecording, passes
from hotloop.instrument.trial_patch import live_objects
from hotloop.instrument.update_counting import count_step, note_optimizer
from hotloop.measure.device import TorchDevice
from hotloop.measure.profiler import default

_profile = default.profile
backward = _profile("backward")
optimizer_step = _profile("optimizer_step")
zero_grad = _profile("zero_grad", "optimizer")
clip_grad_norm = _profile("clip_grad_norm", "optimizer")
transfer = _profile("transfer")
checkpoint = _profile("checkpoint")
data_load = _profile("data_load")
READS = ("item", "tolist")  # not `numpy`, which is only a view
MOVES = ("cpu", "to", "cuda")  # move nothing as long as there is only main memory
_at_first_use: list[Callable[[], None]] = []  # called when the script first uses CUDA


def patch_torch(torch: ModuleType, into: Patches) -> None:
    """`torch` itself, once it is completely imported."""
    if json.loads(os.environ.get("HOTLOOP_RUN") or "{}").get("modules"):
        into.apply([Patch(torch.nn.Module, "__call__", _each_module)])
    forward = (policy_forward, learner_forward, policy_rest, policy_value)
    inside = (transfer, clip_grad_norm, optimizer_step, *forward)
    _wrap_moves(torch, into, inside)
    into.apply(
        [
            Patch(
                torch.nn.Module,
                "__call__",
                lambda f: learner_forward.wrap(
                    f,
                    skip_inside=(*forward, evaluate_forward, compilation),
                    pick=pick,
                    settled=settled,
                ),
            ),
            Patch(
                torch.Tensor,
                "backward",
                lambda f: backward.wrap(
                    f, skip_inside=(backward, compilation), after=backward_passes.counter
                ),
            ),
            Patch(
                torch.autograd,
                "backward",
                lambda f: backward.wrap(
                    f, skip_inside=(backward, compilation), after=backward_passes.counter
                ),
            ),
            Patch(torch.autograd, "grad", lambda f: backward.wrap(f, skip_inside=(backward, compilation))),
            Patch(torch.optim.Optimizer, "zero_grad", lambda f: zero_grad.wrap(f, skip_inside=(zero_grad,))),
            Patch(torch.nn.utils, "clip_grad_norm_", lambda f: clip_grad_norm.wrap(f)),
            Patch(torch.nn.utils, "clip_grad_value_", lambda f: clip_grad_norm.wrap(f)),
            Patch(torch, "save", lambda f: checkpoint.wrap(f, skip_inside=(checkpoint,))),
            *(Patch(torch.Tensor, name, lambda f: transfer.wrap(f, skip_inside=inside)) for name in READS),
            _OptimizerSteps(torch.optim.Optimizer),
            Patch(torch.optim.Optimizer, "add_param_group", _noted_optimizer),
            WhileRecording(torch),
        ]
    )


def _wrap_moves(torch: ModuleType, into: Patches, inside: tuple[Any, ...]) -> None:
    """Record moves of tensors once there is an accelerator to move them to."""

    def wrap() -> None:
        into.apply(
            Patch(torch.Tensor, name, lambda f: transfer.wrap(f, skip_inside=inside)) for name in MOVES
        )

    _at_first_use.clear()
    accelerator = getattr(torch, "accelerator", None)  # in torch from 2.6 on
    device = accelerator.current_accelerator() if accelerator is not None else "cuda"
    if device is not None and getattr(device, "type", device) == "cuda" and not torch.cuda.is_initialized():
        _at_first_use.append(wrap)
    elif device is not None:
        wrap()


def patch_data(module: ModuleType, into: Patches) -> None:
    """`torch.utils.data.dataloader`: waiting for the next batch."""
    into.apply(
        [Patch(module._BaseDataLoaderIter, "__next__", lambda f: data_load.wrap(f, skip_inside=(data_load,)))]
    )


def patch_cuda(cuda: ModuleType, into: Patches) -> None:
    """`torch.cuda`: device work is timed once the script itself has used it.

    Asking for a device earlier would create a context, which breaks a later fork.
    """
    if cuda.is_initialized():
        default.attach_device(new_device())
        return

    def watched(f: Any) -> Any:
        def _lazy_init() -> None:
            f()
            while _at_first_use:
                _at_first_use.pop()()
            if default.recorder.device is None:
                default.attach_device(new_device())

        return _lazy_init

    into.apply([Patch(cuda, "_lazy_init", watched)])


new_device = TorchDevice


def patch_compiler(module: ModuleType, into: Patches) -> None:
    """`torch._dynamo.eval_frame`: everything that compiles first creates an OptimizeContext."""
    contexts: Any = module.OptimizeContext

    def watched(f: Any) -> Any:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            begin_compiling()
            passes.close()  # a tracer would see what windows replace
            f(self, *args, **kwargs)

        return __init__

    into.apply([Patch(contexts, "__init__", watched)])


def _noted_optimizer(add_param_group: Any) -> Any:
    def add(self: Any, *args: Any, **kwargs: Any) -> Any:
        note_optimizer(self)
        return add_param_group(self, *args, **kwargs)

    return add


def _each_module(call: Any) -> Any:
    """Record each module's call under the name of its class, below the outermost one."""

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _profile(type(self).__name__):
            return call(self, *args, **kwargs)

    return __call__


class _OptimizerSteps(Patch):
    """The `step` of every optimizer, which torch itself wraps when the first instance of a class is created.

    When applied late, also wraps the classes that torch has already wrapped, and the `step` that a
    learning-rate scheduler has set on an optimizer instance, since that calls the earlier function.
    """

    def __init__(self, base: type):
        super().__init__(base, "profile_hook_step", self._hooked)
        self._optimizers: list[Patch] = []

    def _hooked(self, original: Any) -> Any:
        def profile_hook_step(step: Any) -> Any:
            return _recorded_step(original(step))

        return profile_hook_step

    def _classes(self) -> Iterator[type]:
        todo = [self.owner]
        while todo:
            cls = todo.pop()
            todo += cls.__subclasses__()
            yield cls

    def apply(self) -> None:
        """Also wrap what torch and its schedulers have already wrapped."""
        super().apply()
        late = False
        for cls in self._classes():
            step = vars(cls).get("step")
            if getattr(step, _HOOKED, False) and not getattr(step, _OURS, False):
                cls.step = _recorded_step(step)  # type: ignore[attr-defined]
                late = True
        if late:
            self._optimizers = [
                Patch(weakref.proxy(one), "step", _recorded_step)
                for one in live_objects(self.owner)
                if "step" in vars(one)
            ]
            for patch in self._optimizers:
                patch.apply()

    def undo(self) -> bool:
        """Restore the factory and the steps wrapped since; torch's own wrapping stays."""
        for patch in self._optimizers:
            with suppress_own(ReferenceError):  # that optimizer no longer exists
                patch.undo()
        self._optimizers.clear()
        for cls in self._classes():
            step: Any = vars(cls).get("step")
            if getattr(step, _OURS, False):
                plain = step.__wrapped__
                setattr(plain, _HOOKED, True)  # torch has set its mark on ours instead
                cls.step = plain  # type: ignore[attr-defined]
        return super().undo()


_OURS = "_hotloop_step"
_HOOKED = "hooked"  # torch's mark on a step it has wrapped


def _recorded_step(hooked: Any) -> Any:
    wrapper = optimizer_step.wrap(hooked, skip_inside=(optimizer_step,), after=count_step)
    functools.update_wrapper(wrapper, hooked)
    setattr(wrapper, _OURS, True)
    return wrapper
