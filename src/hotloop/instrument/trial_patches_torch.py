"""Toggles for PyTorch and for what builds on it."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterable
from typing import Any

from hotloop.instrument.patch import Patch
from hotloop.instrument.trial_patches import PatchToggle, Place, Toggle, alive

_TORCH = ("import torch",)


def _torch() -> Any:
    return sys.modules["torch"]


class Threads(Toggle):
    """One thread for torch's operators."""

    name = "threads"
    workers = True
    line = "torch.set_num_threads(1)"
    needs = _TORCH
    why = "Operators on small tensors run on one core instead of handing pieces to others and waiting."

    def __init__(self) -> None:
        self._was: int = _torch().get_num_threads()

    def why_not(self) -> str | None:
        """Unless there is one already."""
        return None if _torch().get_num_threads() > 1 else "torch uses one thread already"

    def on(self) -> None:
        """One thread."""
        self._was = _torch().get_num_threads()
        _torch().set_num_threads(1)

    def off(self) -> None:
        """As many as before."""
        _torch().set_num_threads(self._was)


class Denormals(Toggle):
    """Numbers too small to matter become 0."""

    name = "denormals"
    workers = True
    line = "torch.set_flush_denormal(True)"
    needs = _TORCH
    why = "Numbers below 1e-38, which processors compute slowly, are taken as 0."

    def flushing(self) -> bool:
        """Whether this thread flushes them now."""
        torch = _torch()
        return not (torch.tensor([1e-310], dtype=torch.float64) * 0.5).item()

    def why_not(self) -> str | None:
        """Unless it is so already, or this processor cannot."""
        if self.flushing():
            return "they are flushed already"
        if not _torch().set_flush_denormal(True):
            return "this processor cannot"
        _torch().set_flush_denormal(False)
        return None

    def on(self) -> None:
        """Flush."""
        _torch().set_flush_denormal(True)

    def off(self) -> None:
        """Do not."""
        _torch().set_flush_denormal(False)


class Validation(Toggle):
    """Distributions do not check their arguments."""

    name = "validation"
    workers = True
    line = "torch.distributions.Distribution.set_default_validate_args(False)"
    needs = _TORCH
    why = (
        "torch.distributions does not check arguments and samples at each call; a NaN in them is then "
        "no longer an error."
    )

    def __init__(self) -> None:
        self._was = True

    def _base(self) -> Any:
        return _torch().distributions.Distribution

    def why_not(self) -> str | None:
        """Unless it is so already."""
        return None if self._base()._validate_args else "arguments are not checked already"

    def on(self) -> None:
        """Do not check."""
        self._was = self._base()._validate_args
        self._base()._validate_args = False

    def off(self) -> None:
        """As before."""
        self._base()._validate_args = self._was


class FusedOptimizer(Toggle):
    """Adam in one kernel instead of a loop over parameters."""

    name = "fused_optimizer"
    why = "The optimizer updates all parameters in one call; same formula, rounding may differ."
    place: Place = "model"
    conflicts = ("channels_last",)

    def __init__(self) -> None:
        self._groups: list[dict[str, Any]] = []
        self._was: list[tuple[dict[str, Any], Any, Any]] = []
        self._optimizers: list[Any] = []

    @property
    def line(self) -> str:  # type: ignore[override]
        """Stable-Baselines3 hands it on; elsewhere it is an argument of the optimizer."""
        if "stable_baselines3" in sys.modules:
            return "policy_kwargs=dict(optimizer_kwargs=dict(fused=True))"
        return "fused=True"

    def why_not(self) -> str | None:
        """Only for Adam and AdamW on the CPU; on other devices it cannot be switched half-way."""
        torch = _torch()
        self._optimizers = [
            optimizer
            for optimizer in alive(torch.optim.Optimizer)
            if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW)
        ]
        if not self._optimizers:
            return "no Adam or AdamW is in use"
        if not any(self._can(o, group) for o in self._optimizers for group in o.param_groups):
            return "its optimizers are fused already or cannot be"
        devices = getattr(torch.utils, "_foreach_utils", None)
        supported: list[str] = getattr(devices, "_get_fused_kernels_supported_devices", list)()
        return None if "cpu" in supported else "this version of torch has no fused Adam for the CPU"

    def _can(self, optimizer: Any, group: dict[str, Any]) -> bool:
        """The kernel takes memory as it lies: all of a parameter's tensors must lie alike."""
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

    def on(self) -> None:
        """The groups that can be."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                if self._can(optimizer, group):
                    self._was.append((group, group.get("fused"), group.get("foreach")))
                    group["fused"], group["foreach"] = True, None

    def off(self) -> None:
        """As before."""
        while self._was:
            group, group["fused"], group["foreach"] = self._was.pop()


class InferenceMode(PatchToggle):
    """Stable-Baselines3's policies act in inference mode."""

    name = "inference_mode"
    line = "ActorCriticPolicy.forward = torch.inference_mode()(ActorCriticPolicy.forward)"
    needs = (*_TORCH, "from stable_baselines3.common.policies import ActorCriticPolicy")
    why = (
        "Acting keeps no record for gradients at all. Only for policies of Stable-Baselines3, which use "
        "`forward` for acting alone; in other scripts its tensors may reach a loss and raise there."
    )
    OURS = ("stable_baselines3", "sb3_contrib", "torch")

    def _base(self) -> Any:
        module = sys.modules.get("stable_baselines3.common.policies")
        return getattr(module, "ActorCriticPolicy", None)

    def why_not(self) -> str | None:
        """Only for policies without modules of the user's, which might keep tensors."""
        base = self._base()
        policies = alive(base) if base is not None else []
        if not policies:
            return "no actor-critic policy of Stable-Baselines3 is in use"
        foreign = {
            type(module).__name__
            for policy in policies
            for module in policy.modules()
            if type(module).__module__.split(".")[0] not in self.OURS
        }
        return f"{', '.join(sorted(foreign))} might keep tensors" if foreign else None

    def patches(self) -> Iterable[Patch]:
        """`forward`, where no gradients are wanted; what it returns can be used anywhere."""
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


class Anomaly(Toggle):
    """Autograd's search for NaNs."""

    name = "anomaly"
    line = "torch.autograd.set_detect_anomaly(False)"
    place: Place = "training"  # after the line that switches it on
    needs = _TORCH
    why = "A tool for finding NaNs that was left on: it records a stack trace at every operation."

    def __init__(self) -> None:
        self._nan = True

    def why_not(self) -> str | None:
        """Only where it is on."""
        return None if _torch().is_anomaly_enabled() else "it is off"

    def on(self) -> None:
        """Leave it out."""
        self._nan = bool(_torch().is_anomaly_check_nan_enabled())
        _torch().autograd.set_detect_anomaly(False)

    def off(self) -> None:
        """As before."""
        _torch().autograd.set_detect_anomaly(True, check_nan=self._nan)


class ClipNorm(PatchToggle):
    """Gradient norms taken over all parameters at once."""

    name = "clip"
    line = "torch.nn.utils.clip_grad_norm_ = functools.partial(torch.nn.utils.clip_grad_norm_, foreach=True)"
    needs = (*_TORCH, "import functools")
    why = "Gradients are clipped in a few calls instead of several for each parameter; rounding may differ."

    def why_not(self) -> str | None:
        """Only where something trains."""
        return None if alive(_torch().optim.Optimizer) else "no optimizer is in use"

    def patches(self) -> Iterable[Patch]:
        """The function as scripts call it through torch.nn.utils."""

        def make(clip: Any) -> Any:
            @functools.wraps(clip)
            def all_at_once(*args: Any, **words: Any) -> Any:
                if len(args) < 5:
                    words.setdefault("foreach", True)
                return clip(*args, **words)

            return all_at_once

        return [Patch(_torch().nn.utils, "clip_grad_norm_", make)]


class ChannelsLast(Toggle):
    """Convolution weights with the channels innermost."""

    name = "channels_last"
    line = "model = model.to(memory_format=torch.channels_last)"
    place: Place = "model"
    needs = _TORCH
    why = "Convolutions read images with the channels side by side; same numbers, another order in memory."
    conflicts = ("fused_optimizer",)

    def __init__(self) -> None:
        self._weights: list[Any] = []
        self._was: list[tuple[Any, Any]] = []

    def why_not(self) -> str | None:
        """Only for 2-d convolutions of more than one input channel."""
        torch = _torch()
        found = [layer.weight for layer in alive(torch.nn.Conv2d)]
        self._weights = [
            weight
            for weight in found
            if weight.requires_grad and not weight.is_contiguous(memory_format=torch.channels_last)
        ]
        return None if self._weights else "no network with 2-d convolutions is in use"

    def on(self) -> None:
        """Only the order in memory changes, so that optimizers and views of layers stay valid."""
        torch = _torch()
        with torch.no_grad():
            for weight in self._weights:
                self._was.append((weight, weight.stride()))
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)

    def off(self) -> None:
        """The order from before."""
        torch = _torch()
        with torch.no_grad():
            while self._was:
                weight, stride = self._was.pop()
                before = torch.empty_strided(weight.shape, stride, dtype=weight.dtype, device=weight.device)
                weight.data = before.copy_(weight.data)


class MatmulPrecision(Toggle):
    """TF32 matrix products on a GPU."""

    name = "matmul_precision"
    line = 'torch.set_float32_matmul_precision("high")'
    needs = _TORCH
    why = "Matrix products on a GPU keep 10 bits of the mantissa of their inputs; sums stay exact to 23."

    def __init__(self) -> None:
        self._was: str = _torch().get_float32_matmul_precision()

    def why_not(self) -> str | None:
        """Only with a GPU."""
        if not _torch().cuda.is_available():
            return "no GPU"
        exact = _torch().get_float32_matmul_precision() == "highest"
        return None if exact else "it is lower already"

    def on(self) -> None:
        """High."""
        self._was = _torch().get_float32_matmul_precision()
        _torch().set_float32_matmul_precision("high")

    def off(self) -> None:
        """As before."""
        _torch().set_float32_matmul_precision(self._was)


def torch_toggles() -> list[Toggle]:
    """Those that this version of torch offers."""
    kinds: tuple[type[Toggle], ...] = (
        *(Threads, Denormals, Validation, FusedOptimizer, InferenceMode),
        *(Anomaly, ClipNorm, ChannelsLast, MatmulPrecision),
    )
    found = []
    for kind in kinds:
        with contextlib.suppress(AttributeError):
            found.append(kind())
    return found
