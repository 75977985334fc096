"""Adam, AdamW and the clipping of gradients: one kernel over all tensors instead of a loop of torch.

Stands in for the functions below `Adam.step` and `clip_grad_norm_`: which tensors take part, the state of a
new parameter, hooks, closures and schedules remain torch's own code.
"""

from __future__ import annotations

import inspect
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.graph import increment_version

from hotloop.boost import active, audit
from hotloop.boost import tensor_kernels as kernels
from hotloop.boost.active import Record
from hotloop.boost.eligible import LEAST_EPSILON
from hotloop.boost.layouts import Layouts, data_ptr
from hotloop.boost.mlp import relative_difference, special_mode
from hotloop.boost.torch_records import in_stable_baselines3, record_of, switch_off
from hotloop.instrument.patch import Patch

PATIENCE = 4  # steps of an optimizer before anything is compiled for it
MOST_PARAMETERS = 2_000_000  # beyond, memory is the limit, and torch has more than one thread
SAME_NORM = 1e-4  # relative difference of an audited norm; seen: 1e-6

Step = Callable[..., None]
ARGUMENTS = (
    "params", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_steps", "foreach", "capturable",
    "differentiable", "fused", "grad_scale", "found_inf", "has_complex", "decoupled_weight_decay", "amsgrad",
    "beta1", "beta2", "lr", "weight_decay", "eps", "maximize",
)  # fmt: skip
REFUSED = (
    "foreach", "capturable", "differentiable", "fused", "grad_scale", "found_inf", "has_complex", "amsgrad",
    "maximize",
)  # fmt: skip
NUMBERS = ("beta1", "beta2", "lr", "weight_decay", "eps")

_float32 = torch.float32
_number = torch.zeros((), dtype=torch.float32)
_no_room = np.empty(0, dtype=np.float32)
from_iterable = chain.from_iterable


class _Steps:
    """The tensors of one optimizer, known by the first of them."""

    def __init__(self, first: Tensor):
        self.first = weakref.ref(first)
        self.calls = 0
        self.record: Record | None = None  # None: not decided yet, or Stable-Baselines3's
        self.is_left = False
        # Of the last step that `table_of` accepted, and of the gradients that `_plain` accepted last.
        self.layouts = Layouts()
        self.sizes: list[int] = []
        self.clipped = Layouts()
        self.clipped_sizes = np.zeros(0, dtype=np.int64)

    def table(self, tensors: Sequence[list[Tensor]], words: dict[str, Any]) -> NDArray[np.int64] | None:
        """`table_of`, without looking again at types, shapes and strides that are as they were."""
        every = [*from_iterable(tensors)]
        sizes = self.sizes
        if not self.layouts.are_same(every) or len(sizes) != len(tensors[0]) or not _are_plain(words):
            found = table_of(tensors, words)
            if found is not None:
                self.layouts.learn(every)
                self.sizes = found[kernels.SIZES].tolist()
            return found
        if special_mode() is not None:
            return None
        return np.array([*map(data_ptr, every), *sizes], dtype=np.int64).reshape(kernels.ADAM_ROWS, -1)

    def gradients(self, grads: list[Tensor]) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """`_plain`, in the same way."""
        if not self.clipped.are_same(grads):
            found = _plain(grads)
            if found is not None:
                self.clipped.learn(grads)
                self.clipped_sizes = found[1]
            return found
        if special_mode() is not None:
            return None
        return np.array([*map(data_ptr, grads)], dtype=np.int64), self.clipped_sizes


_known: dict[int, _Steps] = {}
_deciding = threading.Lock()
_clip_record: Record | None = None


def forget_all() -> None:
    global _clip_record
    _known.clear()
    _clip_record = None


def unknown_adam(function: Any) -> str | None:
    """The reason why not, if torch's `adam` has other arguments than those we know."""
    found = tuple(inspect.signature(function).parameters)
    return None if found == ARGUMENTS else f"adam of torch {torch.__version__} has other arguments"


def stepping(original: Step) -> Step:
    """Around `torch.optim.adam.adam`, which makes the step of Adam and AdamW."""
    is_compiling = torch.compiler.is_compiling

    def adam(
        params: list[Tensor],
        grads: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_sqs: list[Tensor],
        max_exp_avg_sqs: list[Tensor],
        state_steps: list[Tensor],
        **words: Any,
    ) -> None:
        if is_compiling() or active.is_paused or not params:
            original(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, **words)
            return
        tensors = (params, grads, exp_avgs, exp_avg_sqs, state_steps)
        steps = _steps(tensors, words)
        record = steps.record
        table = None if record is None or record.reason is not None else steps.table(tensors, words)
        if record is None or table is None:
            original(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, **words)
            return
        if record.audits.due(1) is None:
            run(table, words)
            increment_version(params)
        else:
            _audited(record, table, tensors, words, original)
        record.gradient_steps += 1

    return adam


def _steps(tensors: Sequence[list[Tensor]], words: dict[str, Any]) -> _Steps:
    """What is known of the optimizer with these tensors; without a record torch should make this step."""
    first = tensors[0][0]
    steps = _known.get(id(first))
    if steps is None or steps.first() is not first:
        steps = _known[id(first)] = _Steps(first)
        weakref.finalize(first, _known.pop, id(first), None).atexit = False
    if steps.record is None and not steps.is_left:
        steps.calls += 1
        if steps.calls <= PATIENCE:
            return steps
        with _deciding:
            steps.is_left = in_stable_baselines3(tensors[0])
            if not steps.is_left:
                steps.record = decide(tensors, words)
    return steps


def decide(tensors: Sequence[list[Tensor]], words: dict[str, Any]) -> Record:
    """Whether kernels can make the steps of this optimizer; compiles them and says so when that is news."""
    reason = why_not(tensors, words)
    name = "AdamW" if words.get("decoupled_weight_decay") else "Adam"
    count = sum(one.numel() for one in tensors[0])
    found = record_of("optimizer", name, f"{len(tensors[0])} tensors, {count:,} parameters", reason)
    if found.reason is None:
        kernels.adam(
            np.zeros((kernels.ADAM_ROWS, 0), dtype=np.int64), np.zeros(0, dtype=np.float32),
            0.0, 0.0, 0.0, 0.0, 0.0, False,
        )  # fmt: skip
        found.audits.soon()
    return found


def why_not(tensors: Sequence[list[Tensor]], words: dict[str, Any]) -> str | None:
    """The reason why kernels cannot make the steps with these settings, or None."""
    for name in REFUSED:
        if words.get(name):
            return f"the optimizer has {name}={words[name]!r}"
    for name in NUMBERS:
        if type(words[name]) not in (float, int):
            return f"the optimizer's {name} is a {type(words[name]).__name__}, not a number"
    if words["eps"] < LEAST_EPSILON:
        return f"the optimizer's eps is {words['eps']:g}: less than {LEAST_EPSILON:g}"
    if sum(one.numel() for one in tensors[0]) > MOST_PARAMETERS:
        return f"it has more than {MOST_PARAMETERS:,} parameters"
    for one in tensors[0]:
        if one.dtype is not torch.float32 or not one.is_cpu:
            return f"a parameter is {one.dtype} on {one.device}, not torch.float32 on the CPU"
    return None


def table_of(tensors: Sequence[list[Tensor]], words: dict[str, Any]) -> NDArray[np.int64] | None:
    """The table for the kernel; None if a tensor or a setting is not plain just now."""
    params, grads, exp_avgs, exp_avg_sqs, state_steps = tensors
    for lists in (params, grads, exp_avgs, exp_avg_sqs):
        for one in lists:
            if one.dtype is not _float32 or not one.is_contiguous() or not one.is_cpu:
                return None
    sizes = [one.numel() for one in params]
    if (
        sizes != [one.numel() for one in grads]
        or sizes != [one.numel() for one in exp_avgs]
        or sizes != [one.numel() for one in exp_avg_sqs]
        or any(type(one) is not Tensor for one in grads)
        or any(one.dtype is not _float32 or not one.is_cpu for one in state_steps)
        or not _are_plain(words)
        or special_mode() is not None
    ):
        return None
    rows = [[one.data_ptr() for one in lists] for lists in tensors]
    return np.array([*rows, sizes], dtype=np.int64)


_refused, _numbers = itemgetter(*REFUSED), itemgetter(*NUMBERS)
_number_types = frozenset((float, int))


def _are_plain(words: dict[str, Any]) -> bool:
    """Whether kernels know the settings of a step."""
    if len(words) < len(REFUSED) + len(NUMBERS):  # called without those that have a default
        words = dict.fromkeys(REFUSED) | words
    return (
        not any(_refused(words))
        and _number_types.issuperset(map(type, _numbers(words)))
        and words["eps"] >= LEAST_EPSILON
    )


def run(table: NDArray[np.int64], words: dict[str, Any]) -> None:
    """Make the step in the kernel."""
    decay = float(words["weight_decay"])
    room = np.empty(int(table[kernels.SIZES].max()), dtype=np.float32) if decay else _no_room
    kernels.adam(
        table, room, float(words["lr"]), float(words["beta1"]),
        float(words["beta2"]), float(words["eps"]), decay, bool(words["decoupled_weight_decay"]),
    )  # fmt: skip


def _audited(
    record: Record,
    table: NDArray[np.int64],
    tensors: Sequence[list[Tensor]],
    words: dict[str, Any],
    original: Step,
) -> None:
    """Make the step both ways; keep torch's result, and leave the optimizer to torch, if they differ."""
    started_s = time.perf_counter()
    params, grads, exp_avgs, exp_avg_sqs, state_steps = tensors
    names = [
        f"{kind}.{index}" for kind in ("weight", "exp_avg", "exp_avg_sq") for index in range(len(params))
    ]
    changing = [*params, *exp_avgs, *exp_avg_sqs, *state_steps]
    before = _copies(changing)
    run(table, words)
    ours = _copies(changing)
    _write(changing, before)
    original(params, grads, exp_avgs, exp_avg_sqs, [], state_steps, **words)
    theirs = _copies(changing)
    rate = audit.comparable_rate(words["lr"])
    was, mine, other = (
        dict(zip(names, (one.numpy() for one in lists), strict=False)) for lists in (before, ours, theirs)
    )
    difference = audit.compare(was, mine, other, dict.fromkeys(names[: len(params)], rate), {})
    is_right = difference.passes and all(
        torch.equal(mine, other) for mine, other in zip(ours[len(names) :], theirs[len(names) :], strict=True)
    )
    record.audits.largest_mean_step = max(record.audits.largest_mean_step, difference.mean_step)
    record.audits.note(is_right, started_s)
    if is_right:
        _write(changing, ours)
    else:
        switch_off(record, f"an audit failed: {difference}.")


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [one.detach().clone() for one in tensors]


def _write(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for one, value in zip(tensors, values, strict=True):
            one.copy_(value)


# ---- clipping


def clip_record() -> Record:
    """The record of all calls of `clip_grad_norm_`; compiles the kernels the first time."""
    global _clip_record
    if _clip_record is not None:
        return _clip_record
    found = _clip_record = record_of("function", "clip_grad_norm_", "norm and scaling of all gradients", None)
    if found.reason is None:
        none, norm = np.zeros(0, dtype=np.int64), torch.empty(1)
        kernels.norm(none, none)
        kernels.scale(none, none, 1.0)
        kernels.clip(none, none, 1.0, norm.data_ptr())
    return found


def _plain(tensors: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Addresses and sizes of gradients of an optimizer that kernels serve; None if torch should clip them."""
    if not isinstance(tensors, list) or not tensors:
        return None
    for one in tensors:
        if type(one) is not Tensor or one.dtype is not _float32 or not one.is_cpu or not one.is_contiguous():
            return None
    sizes = [one.numel() for one in tensors]
    if sum(sizes) > MOST_PARAMETERS or special_mode() is not None:
        return None
    return np.array([one.data_ptr() for one in tensors], dtype=np.int64), np.array(sizes, dtype=np.int64)


def served(parameters: Sequence[Any]) -> _Steps | None:
    """The optimizer whose first parameter is the first of these, if kernels serve it."""
    steps = _known.get(id(parameters[0])) if parameters else None
    if (
        steps is not None
        and steps.first() is parameters[0]
        and steps.record is not None
        and steps.record.reason is None
    ):
        return steps
    return None


def _is_scaled(
    record: Record, grads: list[Tensor], before: list[Tensor], max_norm: float, total_norm: Tensor
) -> bool:
    """Whether gradients that kernels scaled are as torch scales them."""
    started_s = time.perf_counter()
    factor = torch.clamp(max_norm / (total_norm + 1e-6), max=1.0)
    worst = max(relative_difference(one, was * factor) for one, was in zip(grads, before, strict=True))
    record.acting_audits.note(worst <= SAME_NORM, started_s)
    if worst > SAME_NORM:
        switch_off(record, f"an audit failed: clipped gradients differ by {worst:.2g}.")
    return worst <= SAME_NORM


def clipping_patches() -> list[Patch]:
    """Of `clip_grad_norm_`; none if torch's function has no two halves that we know."""
    module, clipping = torch.nn.utils.clip_grad, Clipping()
    halves = ("_get_total_norm", "_clip_grads_with_norm_")
    if any(not hasattr(module, name) for name in halves):
        record_of("function", "clip_grad_norm_", "", f"that of torch {torch.__version__} is not known")
        return []
    return [
        Patch(module, halves[0], clipping.norming),
        Patch(module, halves[1], clipping.scaling),
        Patch(module, "clip_grad_norm_", clipping.clipping),
        Patch(torch.nn.utils, "clip_grad_norm_", clipping.clipping),
    ]


class Clipping:
    """Stands in for the two halves of `clip_grad_norm_`: `_get_total_norm` and `_clip_grads_with_norm_`.

    Both are asked only inside `clip_grad_norm_`, for parameters of an optimizer that kernels serve.
    """

    def __init__(self) -> None:
        self._here = threading.local()
        self._module: Any = torch.nn.utils.clip_grad
        self._norm: Any = None
        self._scale: Any = None

    def clipping(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Around `clip_grad_norm_`: notes whose gradients are clipped."""

        def clip_grad_norm_(parameters: Any, *args: Any, **words: Any) -> Tensor:
            if active.is_paused or torch.compiler.is_compiling() or isinstance(parameters, Tensor):
                return original(parameters, *args, **words)
            listed = parameters if isinstance(parameters, list) else list(parameters)
            steps = served(listed)
            if steps is None:
                return original(listed if listed else parameters, *args, **words)
            found = self._at_once(steps, listed, args, words)
            if found is not None:
                return found
            self._here.inside = True
            try:
                return original(listed, *args, **words)
            finally:
                self._here.inside = False

        return clip_grad_norm_

    def _at_once(
        self, steps: _Steps, parameters: list[Any], args: tuple[Any, ...], words: dict[str, Any]
    ) -> Tensor | None:
        """The norm of gradients that a kernel has clipped; None, with nothing changed, if it could not.

        Audits compare the two halves, and only a plain call `clip_grad_norm_(parameters, max_norm)` is known.
        """
        if len(args) + len(words) != 1:
            return None
        max_norm: Any = args[0] if args else words.get("max_norm")
        record = clip_record()
        if (
            type(max_norm) not in _number_types
            or record.reason is not None
            or record.audits.comes_within(1)
            or record.acting_audits.comes_within(1)
            or self._module._get_total_norm is not self._norm
            or self._module._clip_grads_with_norm_ is not self._scale
        ):
            return None
        grads = [grad for one in parameters if (grad := one.grad) is not None]
        found = steps.gradients(grads)
        if found is None:
            return None
        norm = torch.empty_like(_number)
        if not kernels.clip(*found, float(max_norm), norm.data_ptr()):
            return None  # torch has its own words for norms that are not finite
        increment_version(grads)
        record.audits.due(1)
        record.acting_audits.due(1)
        record.calls += 1
        return norm

    def norming(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Around `_get_total_norm`."""

        def _get_total_norm(
            tensors: Any,
            norm_type: float = 2.0,
            error_if_nonfinite: bool = False,
            foreach: bool | None = None,
        ) -> Tensor:
            if getattr(self._here, "inside", False) and norm_type == 2.0 and foreach is None:
                record = clip_record()
                found = _plain(tensors) if record.reason is None else None
                total = kernels.norm(*found) if found is not None else math.inf
                if math.isfinite(total):  # torch has its own words for the others
                    return self._checked(record, torch.tensor(total, dtype=_float32), tensors, original)
            return original(tensors, norm_type, error_if_nonfinite, foreach)

        self._norm = _get_total_norm
        return _get_total_norm

    def _checked(self, record: Record, ours: Tensor, tensors: Any, original: Callable[..., Tensor]) -> Tensor:
        """Our norm, compared with torch's if an audit is due."""
        record.calls += 1
        if record.audits.due(1) is None:
            return ours
        started_s = time.perf_counter()
        theirs = original(tensors)
        difference = abs(float(ours) - float(theirs)) / max(float(theirs), 1e-30)
        record.audits.note(difference <= SAME_NORM, started_s)
        if difference <= SAME_NORM:
            return ours
        switch_off(record, f"an audit failed: the norm differs by {difference:.2g} (allowed {SAME_NORM:g}).")
        return theirs

    def scaling(self, original: Callable[..., None]) -> Callable[..., None]:
        """Around `_clip_grads_with_norm_`."""

        def _clip_grads_with_norm_(
            parameters: Any, max_norm: float, total_norm: Tensor, foreach: bool | None = None
        ) -> None:
            if getattr(self._here, "inside", False) and foreach is None:
                record = clip_record()
                grads = [one.grad for one in parameters if one.grad is not None]
                found, total = _plain(grads), float(total_norm)
                if found is not None and math.isfinite(total) and record.reason is None:
                    is_audited = record.acting_audits.due(1) is not None
                    before = _copies(grads) if is_audited else []
                    kernels.scale(*found, min(float(max_norm) / (total + 1e-6), 1.0))
                    increment_version(grads)
                    if not is_audited or _is_scaled(record, grads, before, max_norm, total_norm):
                        return None
                    _write(grads, before)
            return original(parameters, max_norm, total_norm, foreach)

        self._scale = _clip_grads_with_norm_
        return _clip_grads_with_norm_
