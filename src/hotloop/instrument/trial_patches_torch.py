"""The patches of `hotloop try` for PyTorch and the libraries that build on it; torch is not imported here."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from typing import Any

from hotloop._util.interrupts import suppress_own
from hotloop.instrument.patch import Patch
from hotloop.instrument.trial_patch import Place, TrialPatch, WrappingPatch, live_objects

_TORCH = ("import torch",)


def _torch() -> Any:
    return sys.modules["torch"]


class OneThread(TrialPatch):
    """torch operators run on one thread."""

    name = "threads"
    in_workers = True
    line = "torch.set_num_threads(1)"
    needs = _TORCH
    why = "Operators on small tensors run on one core, without the cost of splitting them between threads."

    def __init__(self) -> None:
        self._was: int = _torch().get_num_threads()

    def skip_reason(self) -> str | None:
        return None if _torch().get_num_threads() > 1 else "torch already uses one thread"

    def apply(self) -> None:
        self._was = _torch().get_num_threads()
        _torch().set_num_threads(1)

    def undo(self) -> None:
        _torch().set_num_threads(self._was)


class FlushDenormals(TrialPatch):
    """Denormal numbers become 0."""

    name = "denormals"
    in_workers = True
    line = "torch.set_flush_denormal(True)"
    needs = _TORCH
    why = "Numbers below 1e-38, which are slow on most CPUs, become 0."

    def flushing(self) -> bool:
        """Whether this thread flushes denormals now."""
        torch = _torch()
        return not (torch.tensor([1e-310], dtype=torch.float64) * 0.5).item()

    def skip_reason(self) -> str | None:
        if self.flushing():
            return "denormals are already flushed"
        if not _torch().set_flush_denormal(True):
            return "this CPU cannot flush denormals"
        _torch().set_flush_denormal(False)
        return None

    def apply(self) -> None:
        _torch().set_flush_denormal(True)

    def undo(self) -> None:
        _torch().set_flush_denormal(False)


class NoValidation(TrialPatch):
    """torch.distributions does not validate arguments."""

    name = "validation"
    in_workers = True
    line = "torch.distributions.Distribution.set_default_validate_args(False)"
    needs = _TORCH
    why = "torch.distributions does not validate arguments and samples; a NaN is no longer an error there."

    def __init__(self) -> None:
        self._was = True

    def _base(self) -> Any:
        return _torch().distributions.Distribution

    def skip_reason(self) -> str | None:
        return None if self._base()._validate_args else "validation is already off"

    def apply(self) -> None:
        self._was = self._base()._validate_args
        self._base()._validate_args = False

    def undo(self) -> None:
        self._base()._validate_args = self._was


class FusedOptimizer(TrialPatch):
    """Adam in one kernel instead of a loop over parameters."""

    name = "fused_optimizer"
    why = "The optimizer updates all parameters in one call; the formula is the same, rounding may differ."
    place: Place = "model"
    conflicts = ("channels_last",)

    def __init__(self) -> None:
        self._groups: list[dict[str, Any]] = []
        self._was: list[tuple[dict[str, Any], Any, Any]] = []
        self._optimizers: list[Any] = []

    @property
    def line(self) -> str:  # type: ignore[override]
        if "stable_baselines3" in sys.modules:
            return "policy_kwargs=dict(optimizer_kwargs=dict(fused=True))"
        return "fused=True"

    def skip_reason(self) -> str | None:
        # Only Adam and AdamW on the CPU: on other devices `fused` cannot be changed during training.
        torch = _torch()
        self._optimizers = [
            optimizer
            for optimizer in live_objects(torch.optim.Optimizer)
            if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW)
        ]
        if not self._optimizers:
            return "no Adam or AdamW is in use"
        if not any(self._can(o, group) for o in self._optimizers for group in o.param_groups):
            return "the optimizers are already fused or cannot be fused"
        devices = getattr(torch.utils, "_foreach_utils", None)
        supported: list[str] = getattr(devices, "_get_fused_kernels_supported_devices", list)()
        return None if "cpu" in supported else "this version of torch has no fused Adam for the CPU"

    def _can(self, optimizer: Any, group: dict[str, Any]) -> bool:
        """The kernel needs all tensors of a parameter to have the same strides."""
        torch = _torch()
        if group.get("fused") or group.get("differentiable") or group.get("capturable"):
            return False
        if isinstance(group.get("lr"), torch.Tensor):
            return False
        for weight in group["params"]:
            if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.float64):
                return False
            state = optimizer.state.get(weight, {})
            beside = [t for t in state.values() if isinstance(t, torch.Tensor) and t.shape == weight.shape]
            beside += [weight.grad] if weight.grad is not None else []
            if any(t.stride() != weight.stride() and t.dim() for t in beside):
                return False
        return True

    def apply(self) -> None:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                if self._can(optimizer, group):
                    self._was.append((group, group.get("fused"), group.get("foreach")))
                    group["fused"], group["foreach"] = True, None

    def undo(self) -> None:
        while self._was:
            group, group["fused"], group["foreach"] = self._was.pop()


class InferenceMode(WrappingPatch):
    """Policies of Stable-Baselines3 act in inference mode."""

    name = "inference_mode"
    line = "ActorCriticPolicy.forward = torch.inference_mode()(ActorCriticPolicy.forward)"
    needs = (*_TORCH, "from stable_baselines3.common.policies import ActorCriticPolicy")
    why = (
        "Acting skips all bookkeeping of autograd. Only for policies of Stable-Baselines3, which use "
        "`forward` for acting only; in other scripts the tensors may reach a loss and raise an error there."
    )
    KNOWN = ("stable_baselines3", "sb3_contrib", "torch")

    def _base(self) -> Any:
        module = sys.modules.get("stable_baselines3.common.policies")
        return getattr(module, "ActorCriticPolicy", None)

    def skip_reason(self) -> str | None:
        # Modules of the user might keep tensors, so policies that contain any are left out.
        base = self._base()
        policies = live_objects(base) if base is not None else []
        if not policies:
            return "no actor-critic policy of Stable-Baselines3 is in use"
        foreign = {
            type(module).__name__
            for policy in policies
            for module in policy.modules()
            if type(module).__module__.split(".")[0] not in self.KNOWN
        }
        return f"{', '.join(sorted(foreign))} might keep tensors" if foreign else None

    def wrapped(self) -> Iterable[Patch]:
        """`forward` without gradients; it returns copies, which can be used anywhere."""
        torch = _torch()

        def make(forward: Any) -> Any:
            def acting(self: Any, *args: Any, **words: Any) -> Any:
                if torch.is_grad_enabled():
                    return forward(self, *args, **words)
                with torch.inference_mode():
                    results = forward(self, *args, **words)
                return tuple(result.clone() for result in results)

            return acting

        return [Patch(self._base(), "forward", make)]


class NoAnomalyDetection(TrialPatch):
    """autograd does not search for NaNs."""

    name = "anomaly"
    line = "torch.autograd.set_detect_anomaly(False)"
    place: Place = "training"  # after the line that turns detection on
    needs = _TORCH
    why = "Anomaly detection was left on: it records a stack trace at every operation."

    def __init__(self) -> None:
        self._nan = True

    def skip_reason(self) -> str | None:
        return None if _torch().is_anomaly_enabled() else "anomaly detection is off"

    def apply(self) -> None:
        self._nan = bool(_torch().is_anomaly_check_nan_enabled())
        _torch().autograd.set_detect_anomaly(False)

    def undo(self) -> None:
        _torch().autograd.set_detect_anomaly(True, check_nan=self._nan)


class ClipNorm(WrappingPatch):
    """Gradients are clipped for all parameters at once."""

    name = "clip"
    line = "torch.nn.utils.clip_grad_norm_ = functools.partial(torch.nn.utils.clip_grad_norm_, foreach=True)"
    needs = (*_TORCH, "import functools")
    why = "Gradients are clipped in a few calls instead of several per parameter; rounding may differ."

    def skip_reason(self) -> str | None:
        return None if live_objects(_torch().optim.Optimizer) else "no optimizer is in use"

    def wrapped(self) -> Iterable[Patch]:
        """`torch.nn.utils.clip_grad_norm_`, as scripts call it."""

        def make(clip: Any) -> Any:
            @functools.wraps(clip)
            def clip_all(*args: Any, **words: Any) -> Any:
                if len(args) < 5:
                    words.setdefault("foreach", True)
                return clip(*args, **words)

            return clip_all

        return [Patch(_torch().nn.utils, "clip_grad_norm_", make)]


class ChannelsLast(TrialPatch):
    """Convolution weights in channels-last order."""

    name = "channels_last"
    line = "model = model.to(memory_format=torch.channels_last)"
    place: Place = "model"
    needs = _TORCH
    why = "Convolutions use channels-last memory order; the numbers are the same."
    conflicts = ("fused_optimizer",)

    def __init__(self) -> None:
        self._weights: list[Any] = []
        self._was: list[tuple[Any, Any]] = []

    def skip_reason(self) -> str | None:
        torch = _torch()
        found = [layer.weight for layer in live_objects(torch.nn.Conv2d)]
        self._weights = [
            weight
            for weight in found
            if weight.requires_grad and not weight.is_contiguous(memory_format=torch.channels_last)
        ]
        return None if self._weights else "no network with 2-d convolutions is in use"

    def apply(self) -> None:
        # Only the strides change, so optimizers and views of layers stay valid.
        torch = _torch()
        with torch.no_grad():
            for weight in self._weights:
                self._was.append((weight, weight.stride()))
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)

    def undo(self) -> None:
        torch = _torch()
        with torch.no_grad():
            while self._was:
                weight, stride = self._was.pop()
                before = torch.empty_strided(weight.shape, stride, dtype=weight.dtype, device=weight.device)
                weight.data = before.copy_(weight.data)


class MatmulPrecision(TrialPatch):
    """TF32 matrix products on a GPU."""

    name = "matmul_precision"
    line = 'torch.set_float32_matmul_precision("high")'
    needs = _TORCH
    why = "Matrix products on a GPU use TF32: 10 bits of mantissa for inputs, 23 for sums."

    def __init__(self) -> None:
        self._was: str = _torch().get_float32_matmul_precision()

    def skip_reason(self) -> str | None:
        if not _torch().cuda.is_available():
            return "no GPU"
        exact = _torch().get_float32_matmul_precision() == "highest"
        return None if exact else "the precision is already lower"

    def apply(self) -> None:
        self._was = _torch().get_float32_matmul_precision()
        _torch().set_float32_matmul_precision("high")

    def undo(self) -> None:
        _torch().set_float32_matmul_precision(self._was)


def torch_patches() -> list[TrialPatch]:
    """All patches that this version of torch supports."""
    kinds: tuple[type[TrialPatch], ...] = (
        *(OneThread, FlushDenormals, NoValidation, FusedOptimizer, InferenceMode),
        *(NoAnomalyDetection, ClipNorm, ChannelsLast, MatmulPrecision),
    )
    found = []
    for kind in kinds:
        with suppress_own(AttributeError):
            found.append(kind())
    return found
