"""`Categorical` and `Normal`: checks of arguments and samples in kernels, sampling in a kernel.

Checks find the same errors as torch's, which then raises them itself. They are torch's own when the user
asked for them (`validate_args=True`). Random numbers are drawn as torch draws them, so samples are the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Normal
from torch.nn import Parameter

from hotloop.boost import active
from hotloop.boost import tensor_kernels as kernels
from hotloop.boost.active import Record
from hotloop.boost.mlp import OUTPUTS, is_dense, relative_difference, special_mode
from hotloop.boost.torch_records import record_of, switch_off
from hotloop.instrument.patch import Patch

MOST_NUMBERS = 1_000_000

_record: Record | None = None
_entropy_record: Record | None = None

_float32, _int64, _strided = torch.float32, torch.int64, torch.strided
_one_sample = torch.Size()
_log_softmax, _softmax, _empty, _empty_like = torch.log_softmax, torch.softmax, torch.empty, torch.empty_like
_grad_mode, _is_compiling = torch.is_grad_enabled, torch.compiler.is_compiling


def forget_all() -> None:
    global _record, _entropy_record
    _record = _entropy_record = None


def patches() -> list[Patch]:
    return [
        Patch(Distribution, "__init__", checking_arguments),
        Patch(Distribution, "_validate_sample", checking_sample),
        Patch(Categorical, "__init__", normalising),
        Patch(Categorical, "sample", sampling),
        Patch(Categorical, "log_prob", log_prob),
        Patch(Categorical, "entropy", entropy),
    ]


def record() -> Record:
    """The record of all categorical distributions; compiles the kernels the first time."""
    global _record
    if _record is not None:
        return _record
    found = _record = record_of("function", "Categorical", "normalisation, samples, checks", None)
    if found.reason is None:
        kernels.are_chances(0, 0)
        kernels.choose(0, 0, 0, 1, 0)
        kernels.has_nan(0, 0)
        kernels.are_choices_int(0, 0, 1)
        kernels.are_choices_float(0, 0, 1)
        kernels.pick(0, 0, 0, 1, 0)
    return found


def entropy_record() -> Record:
    """The record of all entropies of categorical distributions; compiles the kernels the first time."""
    global _entropy_record
    if _entropy_record is not None:
        return _entropy_record
    found = _entropy_record = record_of("function", "Categorical.entropy", "entropy and its gradient", None)
    if found.reason is None:
        kernels.entropy(0, 0, 0, 1, 0)
        kernels.entropy_gradient(0, 0, 0, 0, 1, 0)
    return found


def is_plain(value: Any) -> bool:
    """Whether a kernel can read the value by its address."""
    kind = type(value)
    return (
        (kind is Tensor or kind is Parameter)
        and value.dtype is _float32
        and value.is_cpu
        and value.layout is _strided
        and value.is_contiguous()
        and value.numel() <= MOST_NUMBERS
    )


def is_off() -> bool:
    """Whether torch should do everything itself just now."""
    return active.is_paused or active.has_models or _is_compiling() or special_mode() is not None


def checking_arguments(original: Callable[..., None]) -> Callable[..., None]:
    """Around `Distribution.__init__`, which checks the arguments."""

    def __init__(
        self: Any,
        batch_shape: torch.Size = _one_sample,
        event_shape: torch.Size = _one_sample,
        validate_args: bool | None = None,
    ) -> None:
        kind = type(self)
        if validate_args is None and self._validate_args and (kind is Categorical or kind is Normal):
            own = self.__dict__
            if not is_off() and (
                _is_right_categorical(own) if kind is Categorical else _is_right_normal(own)
            ):
                own["_batch_shape"], own["_event_shape"] = batch_shape, event_shape
                return
        original(self, batch_shape, event_shape, validate_args)

    return __init__


def _is_sample(of: Any, value: Tensor) -> bool:
    """Whether a value of the right shape is one that can be drawn; False, too, if kernels cannot tell."""
    if not value.is_contiguous() or not value.is_cpu:
        return False
    size = value.numel()
    if type(of) is Normal:
        return is_plain(value) and not kernels.has_nan(value.data_ptr(), size)
    if value.dtype is _int64 and size <= MOST_NUMBERS:
        return kernels.are_choices_int(value.data_ptr(), size, of._num_events)
    return is_plain(value) and kernels.are_choices_float(value.data_ptr(), size, of._num_events)


def _is_right_categorical(own: dict[str, Any]) -> bool:
    logits: Any = own.get("logits")
    return "probs" not in own and is_plain(logits) and not kernels.has_nan(logits.data_ptr(), logits.numel())


def _is_right_normal(own: dict[str, Any]) -> bool:
    loc, scale = own["loc"], own["scale"]
    return (
        is_plain(loc)
        and is_plain(scale)
        and not kernels.has_nan(loc.data_ptr(), loc.numel())
        and kernels.are_positive(scale.data_ptr(), scale.numel())
    )


def checking_sample(original: Callable[..., None]) -> Callable[..., None]:
    """Around `Distribution._validate_sample`, which checks what `log_prob` is asked for."""

    def _validate_sample(self: Any, value: Any) -> None:
        kind = type(self)
        if not (
            (kind is Categorical or kind is Normal)
            and "_validate_args" not in self.__dict__
            and isinstance(value, Tensor)
            and value.shape == self._batch_shape
            and not is_off()
            and _is_sample(self, value)
        ):
            original(self, value)

    return _validate_sample


def normalising(original: Callable[..., None]) -> Callable[..., None]:
    """Around `Categorical.__init__`: `log_softmax` is one function where torch uses three."""
    check_arguments: Any = Distribution.__init__

    def __init__(self: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        if (
            probs is not None
            or type(logits) is not Tensor
            or type(self) is not Categorical
            or logits.dtype is not _float32
            or not logits.is_cpu
            or logits.dim() < 1
            or is_off()
        ):
            return original(self, probs, logits, validate_args)
        about = record()
        if about.reason is not None:
            return original(self, probs, logits, validate_args)
        about.calls += 1
        own = self.__dict__
        own["logits"] = own["_param"] = normal = _log_softmax(logits, -1)
        shape = normal.shape
        own["_num_events"] = shape[-1]
        if validate_args is None and (not self._validate_args or _is_right_categorical(own)):
            own["_batch_shape"], own["_event_shape"] = shape[:-1], _one_sample
        else:
            check_arguments(self, shape[:-1], validate_args=validate_args)
        if about.acting_audits.due(1) is not None:
            started_s = time.perf_counter()
            with torch.no_grad():
                theirs = logits - logits.logsumexp(dim=-1, keepdim=True)
                difference = relative_difference(normal.detach(), theirs)
            about.acting_audits.note(difference <= OUTPUTS, started_s)
            if difference > OUTPUTS:
                switch_off(about, f"an audit failed: log probabilities differ by {difference:.2g}.")
                return original(self, probs, logits, validate_args)
        return None

    return __init__


def sampling(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Around `Categorical.sample`."""

    def sample(self: Any, sample_shape: Any = _one_sample) -> Tensor:
        if type(self) is not Categorical or len(sample_shape) or is_off():
            return original(self, sample_shape)
        probs, about = _chances(self), record()
        size, choices = probs.numel(), self._num_events
        if (
            about.reason is not None
            or not is_plain(probs)
            or size == 0
            or not kernels.are_chances(probs.data_ptr(), size)
        ):
            return original(self, sample_shape)
        is_audited = about.audits.due(1) is not None
        state = torch.get_rng_state() if is_audited else None
        found = _drawn(probs, choices)
        if found is None or state is not None:
            found = _audited(self, about, found, state, original)
        about.calls += 1
        return found

    return sample


def _chances(of: Any) -> Tensor:
    """The probabilities, without a graph; where torch would make one, the distribution does not keep them."""
    own = of.__dict__
    if "probs" not in own:
        logits = own["logits"]
        if logits.requires_grad:
            return _softmax(logits.detach(), -1)
        own["probs"] = _softmax(logits, -1)
    found: Tensor = own["probs"]
    return found.detach() if found.requires_grad else found


def _drawn(probs: Tensor, choices: int) -> Tensor | None:
    """A sample for each row, drawn as `torch.multinomial` does."""
    draws = _empty_like(probs).exponential_()
    chosen = _empty(*probs.shape[:-1], dtype=_int64) if probs.dim() > 1 else _empty((), dtype=_int64)
    rows = probs.numel() // choices
    if kernels.choose(probs.data_ptr(), draws.data_ptr(), rows, choices, chosen.data_ptr()):
        return chosen
    return None


def _audited(
    of: Any, about: Record, ours: Tensor | None, state: Tensor | None, original: Callable[..., Tensor]
) -> Tensor:
    """Compare with torch's own sample from the same random numbers; keep that one if they differ."""
    started_s = time.perf_counter()
    if state is not None:
        torch.set_rng_state(state)
    theirs = original(of)
    if state is not None:
        is_right = ours is not None and torch.equal(ours, theirs)
        about.audits.note(is_right, started_s)
        if not is_right:
            switch_off(about, "an audit failed: a sample differs.")
    return theirs


def log_prob(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Around `Categorical.log_prob`: the same numbers, without functions that change nothing."""

    def log_prob(self: Any, value: Any) -> Tensor:
        if (
            type(self) is not Categorical
            or not isinstance(value, Tensor)
            or value.shape != self._batch_shape
            or is_off()
        ):
            return original(self, value)
        asks_for_checks = self._validate_args
        if asks_for_checks and "_validate_args" in self.__dict__:
            self._validate_sample(value)
            asks_for_checks = False
        logits = self.logits
        if value.dtype is _int64 and not (logits.requires_grad and _grad_mode()):
            picked = _picked(logits, value, self._num_events)
            if picked is not None:
                return picked
        if asks_for_checks and not _is_sample(self, value):
            self._validate_sample(value)
        found: Tensor = logits.gather(-1, value.long().unsqueeze(-1)).squeeze(-1)
        return found

    return log_prob


def _picked(logits: Any, value: Any, choices: int) -> Tensor | None:
    """The logits of these choices; None if a choice does not exist or kernels cannot tell."""
    rows, about = value.numel(), record()
    if (
        about.reason is not None
        or not is_plain(logits)
        or logits.numel() != rows * choices
        or type(value) is not Tensor
        or not value.is_cpu
        or value.layout is not _strided
        or not value.is_contiguous()
    ):
        return None
    picked = _empty_like(value, dtype=_float32)
    if not kernels.pick(logits.data_ptr(), value.data_ptr(), rows, choices, picked.data_ptr()):
        return None
    if about.acting_audits.due(1) is not None:
        started_s = time.perf_counter()
        is_right = torch.equal(picked, logits.gather(-1, value.unsqueeze(-1)).squeeze(-1))
        about.acting_audits.note(is_right, started_s)
        if not is_right:
            switch_off(about, "an audit failed: a log probability differs.")
            return None
    return picked


# ---- entropy


def entropy(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Around `Categorical.entropy`: one function where torch uses five, and nine in the backward pass."""

    def entropy(self: Any) -> Tensor:
        own = self.__dict__
        logits: Any = own.get("logits")
        if type(self) is not Categorical or logits is None or is_off() or not is_plain(logits):
            return original(self)
        about = entropy_record()
        needs_gradient = logits.requires_grad and _grad_mode()
        # Probabilities that were asked for have a graph of their own, which torch's entropy goes through.
        if about.reason is not None or logits.numel() == 0 or (needs_gradient and "probs" in own):
            return original(self)
        probs = _chances(self)
        if not is_plain(probs) or probs.shape != logits.shape:
            return original(self)
        found, are_possible = _entropy_of(logits, probs)
        if needs_gradient and not are_possible:
            return original(self)
        about.calls += 1
        is_audited = (about.audits if needs_gradient else about.acting_audits).due(1) is not None
        if needs_gradient:
            found = _apply(logits, probs, [found], about, is_audited)
        if is_audited:
            # With a gradient, torch's own would keep probabilities with a graph.
            theirs = _by_torch(logits.detach()) if needs_gradient else original(self)
            if not _is_right_entropy(about, found, theirs, needs_gradient):
                return original(self)
        return found

    return entropy


def _entropy_of(logits: Tensor, probs: Tensor) -> tuple[Tensor, bool]:
    """The entropy of each row, and whether kernels know its gradient."""
    shape = logits.shape
    found = _empty(*shape[:-1]) if len(shape) > 1 else _empty(())
    choices = shape[-1]
    rows = logits.numel() // choices
    return found, kernels.entropy(logits.data_ptr(), probs.data_ptr(), rows, choices, found.data_ptr())


def _by_torch(logits: Tensor) -> Tensor:
    """The entropy as torch computes it."""
    possible = torch.clamp(logits, min=torch.finfo(_float32).min)
    return -(possible * _softmax(logits, -1)).sum(-1)


def _is_right_entropy(about: Record, ours: Tensor, theirs: Tensor, has_gradient: bool) -> bool:
    """Whether an entropy is torch's; if not, torch computes all of them from now on."""
    started_s = time.perf_counter()
    difference = relative_difference(ours.detach(), theirs.detach())
    is_right = difference <= OUTPUTS
    if not is_right or not has_gradient:  # with a gradient, the audit ends in the backward pass
        (about.audits if has_gradient else about.acting_audits).note(is_right, started_s)
    if not is_right:
        switch_off(about, f"an audit failed: entropies differ by {difference:.2g}.")
    return is_right


class _Entropy(torch.autograd.Function):
    """Log probabilities, with their probabilities, to the entropy of each row, which is `found`."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, probs: Tensor, found: list[Tensor], about: Record, is_audited: bool
    ) -> Tensor:
        ctx.about, ctx.is_audited = about, is_audited
        ctx.save_for_backward(logits, probs)
        return found[0]

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> Any:
        logits, probs = ctx.saved_tensors
        about: Record = ctx.about
        if _grad_mode() or not is_dense(grads) or is_off():
            return _gradient_by_torch(logits, grads, _grad_mode()), None, None, None, None
        if not grads.is_contiguous():
            grads = grads.contiguous()
        found = _empty_like(logits)
        choices = logits.shape[-1]
        kernels.entropy_gradient(
            logits.data_ptr(), probs.data_ptr(), grads.data_ptr(), logits.numel() // choices, choices,
            found.data_ptr(),
        )  # fmt: skip
        about.gradient_steps += 1
        if ctx.is_audited:
            ctx.is_audited = False
            found = _audited_gradient(about, logits, grads, found)
        return found, None, None, None, None


_apply: Any = super(torch.autograd.Function, _Entropy).apply  # without the search for torch.func


def _gradient_by_torch(logits: Tensor, grads: Tensor, create_graph: bool) -> Tensor:
    """The gradient of the entropy by the logits, differentiable again if asked for."""
    with torch.enable_grad():
        given = logits if create_graph else logits.detach().requires_grad_()
        (found,) = torch.autograd.grad(_by_torch(given), given, grads, create_graph=create_graph)
    return found


def _audited_gradient(about: Record, logits: Tensor, grads: Tensor, ours: Tensor) -> Tensor:
    """Compare with torch's own gradient; keep that one, and leave entropies to torch, if they differ."""
    started_s = time.perf_counter()
    theirs = _gradient_by_torch(logits, grads, create_graph=False)
    scale = max(float(grads.abs().max()), 1e-30)
    difference = relative_difference(ours / scale, theirs / scale)
    about.audits.note(difference <= OUTPUTS, started_s)
    if difference <= OUTPUTS:
        return ours
    switch_off(about, f"an audit failed: gradients of entropies differ by {difference:.2g}.")
    return theirs
