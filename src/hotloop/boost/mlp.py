"""MLPs in `nn.Sequential`: forward and backward passes in kernels, through one autograd function.

Stands in for `nn.Sequential.forward` and nothing else, so hooks on the module itself, its training mode,
`state_dict`, copies and pickles are torch's. Nothing is stored on the module. Before each call everything
that the kernels rely on is looked at again; when it has changed, torch's own code runs.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import chain as chained
from operator import is_, itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import forward_ad

from hotloop.boost import active, eligible
from hotloop.boost import dense_kernels as dense
from hotloop.boost import mlp_kernels as kernels
from hotloop.boost.active import Record
from hotloop.boost.audit import Audits, compare
from hotloop.boost.layouts import Layouts, data_ptr
from hotloop.boost.torch_records import in_stable_baselines3, record_of, switch_off
from hotloop.rl.train.fused.tiles import padded

Forward = Callable[[Any, Tensor], Tensor]

PATIENCE = 8  # calls of a module before anything is compiled for it
KINDS: dict[Any, int] = {nn.Tanh: dense.TANH, nn.ReLU: dense.RELU, nn.ELU: dense.ELU, nn.SiLU: dense.SILU}
NAMES = {dense.NONE: "none", dense.TANH: "tanh", dense.RELU: "relu", dense.ELU: "elu", dense.SILU: "silu"}
# Torch's own functions that kernels stand in for; replaced ones are left alone.
FUNCTIONS: dict[Any, Any] = {kind: kind.forward for kind in (nn.Linear, *KINDS)}

OUTPUTS = 1e-4  # difference of an audited output, relative to the largest; seen: 2e-6
# Multiplications of a forward pass on the whole batch, and the most when torch may use several threads: they
# gain little below (PPO with 64-64 is as fast on two threads as on one). Measured up to 40 million: 1.5x.
MOST_MULTIPLICATIONS, MOST_ON_THREADS = 40_000_000, 2_000_000
# Kernels pad batches to LANES samples. With fewer than 8, wide networks lose: 256-256 with one sample 0.8x,
# with eight 1.6x; 128-128 with one sample 1.3x.
FEW_SAMPLES, MOST_FOR_FEW = 8, 20_000

_watched = itemgetter(*eligible.RUNNING_HOOKS, "_parameters", "_modules")
from_iterable = chained.from_iterable
_everywhere = nn.modules.module
_hooks_everywhere = (
    _everywhere._global_forward_hooks, _everywhere._global_forward_pre_hooks,
    _everywhere._global_backward_hooks, _everywhere._global_backward_pre_hooks,
)  # fmt: skip
_float32, _strided = torch.float32, torch.strided
_grad_mode = torch.is_grad_enabled
_empty = torch.empty

MOST_PLANS = 64  # shapes of inputs that a chain remembers


class Plan(NamedTuple):
    """Sizes for inputs of one shape."""

    batch: int
    outputs: tuple[int, ...]
    """The shape of the outputs."""
    room: int
    """Floats of activations when they need not be kept."""
    kept_room: int
    scratch: int
    """Floats that the backward pass needs."""


class Chain:
    """An `nn.Sequential` that kernels can stand in for."""

    def __init__(self, module: nn.Sequential, record: Record):
        self.module = weakref.ref(module)
        self.record = record
        self._set_up(module)

    def _set_up(self, module: nn.Sequential) -> None:
        parts = flattened(module)
        self.parts = parts
        groups = [one for one in module.modules() if isinstance(one, nn.Sequential)]
        self._linears = [part for part in parts if type(part) is nn.Linear]
        # What `changed` looks at. Hooks of the module itself are none of our business.
        watched = [part for part in (*parts, *groups) if part is not module]
        self._own = [part.__dict__ for part in watched]
        self._sizes = [len(own) for own in self._own]
        self._seen = [_watched(own) for own in self._own]
        self._hooks = [hooks for seen in self._seen for hooks in seen[: len(eligible.RUNNING_HOOKS)]]
        self._hooks += _hooks_everywhere
        parameter_dicts = [part._parameters for part in self._linears]
        dicts: list[dict[str, Any]] = [*parameter_dicts, *(group._modules for group in groups)]
        self._views = [own.values() for own in dicts]
        self._things = [*from_iterable(self._views)]
        self._functions = [(kind, kind.forward) for kind in {type(part) for part in parts}]
        self.parameters: list[Any] = [one for linear in self._linears for one in (linear.weight, linear.bias)]
        self.shapes = [tuple(parameter.shape) for parameter in self.parameters]
        self.features, self.results = self._linears[0].in_features, self._linears[-1].out_features
        self.table = table_of(parts)
        self.rows = self.features + sum(linear.out_features for linear in self._linears)
        self.widest = max(padded(linear.in_features) for linear in self._linears)
        self.packed_size = int(self.table[-1, kernels.GRADS_AT]) + packed_size(self._linears[-1])
        self.multiplications = sum(one.in_features * one.out_features for one in self._linears)
        self.has_slopes = dense.SILU in self.table[:, kernels.ACTIVATION]
        self.saves_output = self.table[-1, kernels.ACTIVATION] != dense.NONE
        self.addresses: tuple[list[int], NDArray[np.int64]] = ([], np.zeros(0, dtype=np.int64))
        self._layouts = Layouts()
        self.plans: dict[tuple[int, ...], Plan] = {}

    def changed(self) -> bool:
        """Whether modules, parameters, hooks or methods are others than when the module was looked at.

        Called before every forward pass, so the loops are in C: 1 us for three layers.
        """
        found = [*from_iterable(self._views)]
        return (
            any(self._hooks)
            or [*map(_watched, self._own)] != self._seen
            or [*map(len, self._own)] != self._sizes
            or len(found) != len(self._things)
            or not all(map(is_, found, self._things))
            or False in [kind.forward is function for kind, function in self._functions]
        )

    def plain_parameters(self) -> NDArray[np.int64] | None:
        """The addresses of the parameters now; None if one is no longer what kernels expect."""
        parameters = self.parameters
        found = [*map(data_ptr, parameters)]
        if not self._layouts.are_same(parameters):
            if not self.are_plain(parameters):
                return None
            self._layouts.learn(parameters)
        known, table = self.addresses
        if found != known:
            if False in [parameter.is_cpu for parameter in parameters]:
                return None
            table = np.array(found, dtype=np.int64)
            self.addresses = (found, table)  # replaced as a whole: another thread may be reading
        return table

    def are_plain(self, parameters: Sequence[Tensor]) -> bool:
        """Whether tensors have the types and shapes that kernels expect."""
        return all(
            one.dtype is _float32 and one.shape == shape and one.is_contiguous()
            for one, shape in zip(parameters, self.shapes, strict=True)
        )

    def plan_of(self, shape: tuple[int, ...]) -> Plan:
        """The sizes for inputs of a shape that `why_not` accepts; remembered if it always will."""
        batch = math.prod(shape) // self.features
        chunk = padded(min(batch, kernels.CHUNK))
        plan = Plan(
            batch,
            (*shape[:-1], self.results),
            self.rows * chunk,
            self.rows * padded(batch),
            (self.rows + self.widest) * chunk + self.packed_size,
        )
        if batch * self.multiplications <= MOST_ON_THREADS:
            if len(self.plans) >= MOST_PLANS:
                self.plans = {}
            self.plans[shape] = plan
        return plan

    def why_not(self, x: Tensor) -> str | None:
        """Why torch should run this call itself, or None."""
        if x.dtype is not _float32 or not x.is_cpu or x.layout is not torch.strided:
            return f"the input is {x.dtype} on {x.device}, not torch.float32 on the CPU"
        if x.dim() == 0 or x.shape[-1] != self.features or x.numel() == 0:
            return f"the input has the shape {tuple(x.shape)}"
        batch = x.numel() // self.features
        if batch < FEW_SAMPLES and self.multiplications > MOST_FOR_FEW:
            return "the batch is too small to pay for a network of this width"
        size = batch * self.multiplications
        if size > MOST_ON_THREADS and (size > MOST_MULTIPLICATIONS or torch.get_num_threads() > 1):
            return "the batch is so large that torch's own products are as fast"
        return special_mode()

    def forward(
        self, x: Tensor, keeps: bool, weights: NDArray[np.int64], plan: Plan
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs, and the activations and slopes for `backward` if they are to be kept."""
        batch, outputs, room, kept_room, _ = plan
        out = _empty(*outputs)  # twice as fast as with a torch.Size
        work = _empty(kept_room if keeps else room)
        slopes = _empty(kept_room if keeps else room) if self.has_slopes else work
        kernels.forward(
            self.table, weights, self.rows, x.data_ptr(), out.data_ptr(), work.data_ptr(),
            slopes.data_ptr(), batch, keeps,
        )  # fmt: skip
        return out, work, slopes

    def backward(
        self,
        weights: NDArray[np.int64],
        output_grads: Tensor,
        x: Tensor,
        work: Tensor,
        slopes: Tensor,
        wants: Sequence[bool],
        plan: Plan,
    ) -> list[Tensor | None]:
        """Gradients of the input and of each parameter, None where `wants` is False."""
        scratch = _empty(plan.scratch)
        of_x = _empty(*x.shape) if wants[0] else None
        wants_weights = True in wants[1:]
        grads = [_empty(*shape) for shape in self.shapes] if wants_weights else []
        kernels.backward(
            self.table, weights, np.array([*map(data_ptr, grads)], dtype=np.int64), self.rows,
            output_grads.data_ptr(), 0 if of_x is None else of_x.data_ptr(), work.data_ptr(),
            slopes.data_ptr(), scratch.data_ptr(), self.widest, self.packed_size, plan.batch,
            wants_weights, of_x is not None,
        )  # fmt: skip
        if False not in wants[1:]:
            return [of_x, *grads]
        kept = [
            one if want else None for one, want in zip(grads, wants[1:], strict=True)
        ] if wants_weights else [None] * len(self.shapes)  # fmt: skip
        return [of_x, *kept]

    def replay(self, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """The same with torch's functions, differentiable, for other tensors in place of the parameters."""
        at = 0
        for part in self.parts:
            if type(part) is nn.Linear:
                x = nn.functional.linear(x, parameters[at], parameters[at + 1])
                at += 2
            else:
                x = FUNCTIONS[type(part)](part, x)
        return x

    def compile(self) -> None:
        """Load or compile the kernels, without changing anything."""
        none = np.zeros(0, dtype=np.int64)
        table = self.table
        kernels.forward(table, none, self.rows, 0, 0, 0, 0, 0, False)
        kernels.backward(table, none, none, self.rows, 0, 0, 0, 0, 0, 0, 0, 0, False, False)


def any_hooks(own: dict[str, Any]) -> bool:
    return any(own[name] for name in eligible.RUNNING_HOOKS) or "forward" in own


def flattened(module: nn.Sequential) -> list[nn.Module]:
    """The parts of a chain in the order in which they run, those of chains inside it as well."""
    found: list[nn.Module] = []
    for part in module._modules.values():
        if type(part) is nn.Sequential:
            found += flattened(part)
        elif part is not None:
            found.append(part)
    return found


def packed_size(linear: nn.Linear) -> int:
    """Floats for the gradients of a layer: padded weights, bias, sums of a chunk."""
    return linear.out_features * (padded(linear.in_features) + 2)


def table_of(parts: Sequence[nn.Module]) -> NDArray[np.int64]:
    """The table of `mlp_kernels` for a chain of parts that `why_never` has accepted."""
    rows: list[list[int]] = []
    row = grads = 0
    for part in parts:
        if isinstance(part, nn.Linear):
            below = row + part.in_features if not rows else row + rows[-1][kernels.OUTPUTS]
            rows.append([part.in_features, part.out_features, row, below, dense.NONE, grads])
            row, grads = below, grads + packed_size(part)
        else:
            rows[-1][kernels.ACTIVATION] = KINDS[type(part)]
    return np.array(rows, dtype=np.int64).reshape(-1, kernels.TABLE_WIDTH)


def special_mode() -> str | None:
    """What torch does besides running functions just now, that kernels would miss; or None."""
    if (
        _has_transforms()
        or _has_autocast("cpu")
        or _dispatch_modes()
        or _function_modes()
        or _tracing_state() is not None
        or _has_anomaly_mode()
        or _default_dtype() is not _float32
        or forward_ad._current_level >= 0
        or _saved_tensor_hooks(True) is not None
    ):
        return _name_of_mode()
    return None


_has_transforms = torch._C._are_functorch_transforms_active
_has_autocast = torch.is_autocast_enabled
_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_tracing_state = torch._C._get_tracing_state
# Not in old versions of torch, where hooks on what kernels save see other tensors.
_saved_tensor_hooks: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)
_has_storage: Any = torch._C._has_storage
_has_anomaly_mode, _default_dtype = torch.is_anomaly_enabled, torch.get_default_dtype


def _name_of_mode() -> str:
    if _has_transforms():
        return "it is called inside torch.func (vmap, grad, ...)"
    if _has_autocast("cpu"):
        return "autocast is on"
    if _dispatch_modes() or _function_modes():
        return "a mode of torch (a default device, a counter, ...) watches every function"
    if _tracing_state() is not None:
        return "it is being traced"
    if _has_anomaly_mode():
        return "anomaly detection is on"
    if _default_dtype() is not _float32:
        return f"torch's default type is {_default_dtype()}"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation is on"
    return "hooks see every tensor that is saved (torch.utils.checkpoint, save_on_cpu, ...)"


def is_dense(grads: Any) -> bool:
    """Whether a gradient has numbers that a kernel can read; with `is_grads_batched` it has none."""
    return type(grads) is Tensor and grads.dtype is _float32 and grads.is_cpu and _has_storage(grads)


# ---- which modules


def why_never(module: nn.Sequential) -> str | None:
    """None if kernels can stand in for the module's `forward`; else the reason."""
    if type(module).__iter__ is not nn.Sequential.__iter__:
        return f"{type(module).__name__} iterates in its own way"
    if any(getattr(_everywhere, f"_global{name}", None) for name in eligible.RUNNING_HOOKS):
        return "torch has hooks for all modules"
    for kind, function in FUNCTIONS.items():
        if kind.forward is not function or not function.__module__.startswith("torch.nn.modules."):
            return f"{kind.__name__}.forward was replaced"
    if nn.functional.linear is not torch._C._nn.linear:
        return "torch.nn.functional.linear was replaced"
    parts = flattened(module)
    linears = 0
    for index, part in enumerate(parts):
        kind = type(part)
        if kind is nn.Linear:
            linears += 1
            reason = unusual_linear(part, parts[index - 1] if index else None, parts[:index])
            if reason is not None:
                return reason
        elif kind not in KINDS:
            return f"it has a {kind.__name__}: not Linear, {', '.join(one.__name__ for one in KINDS)}"
        elif index == 0 or type(parts[index - 1]) is not nn.Linear:
            return f"it has a {kind.__name__} that does not follow a Linear layer"
        elif getattr(part, "alpha", 1.0) != 1.0:
            return f"it has an ELU with alpha={part.alpha}"
        own = eligible.overridden(part)
        if own is not None:
            return f"{own} of a {kind.__name__} is replaced on the instance"
        if eligible.has_hooks(part):
            return f"a {kind.__name__} has hooks"
        if getattr(part, "_compiled_call_impl", None) is not None:
            return f"a {kind.__name__} is compiled by torch"
    if any(any_hooks(one.__dict__) for one in module.modules() if one is not module):
        return "a part has hooks, or its forward is replaced"
    if linears < 2:
        return "it has fewer than two Linear layers"
    return None


def unusual_linear(part: Any, before: Any, earlier: Sequence[Any]) -> str | None:
    """Why kernels do not know this Linear layer, or None."""
    parameters = part._parameters
    if set(parameters) != {"weight", "bias"} or any(value is None for value in parameters.values()):
        return "it has a Linear layer without bias"
    for name, value in parameters.items():
        if type(value) is not nn.Parameter:
            return f"the {name} of a Linear layer is a {type(value).__name__}"
        if value.dtype is not torch.float32 or not value.is_cpu:
            return f"the {name} of a Linear layer is {value.dtype} on {value.device}"
        if not value.is_contiguous():
            return f"the {name} of a Linear layer is not contiguous"
    if part.weight.shape != (part.out_features, part.in_features):
        return "a Linear layer has weights of another shape"
    last = next((one for one in reversed(earlier) if type(one) is nn.Linear), None)
    if before is not None and last is not None and last.out_features != part.in_features:
        return "its layers do not fit together"
    return None


def describe(parts: Sequence[nn.Module]) -> str:
    """For messages: 4-64-64-2, tanh."""
    linears = [part for part in parts if isinstance(part, nn.Linear)]
    sizes = "-".join(map(str, (linears[0].in_features, *(linear.out_features for linear in linears))))
    kinds = dict.fromkeys(NAMES[KINDS[type(part)]] for part in parts if type(part) in KINDS)
    return ", ".join((sizes, *kinds))


class _Waiting:
    """A module that was called only a few times so far."""

    __slots__ = ("calls", "module")

    def __init__(self, module: Any):
        self.module = weakref.ref(module)
        self.calls = 0


class _Never:
    """A module that is left to torch."""

    __slots__ = ("module",)

    def __init__(self, module: Any):
        self.module = weakref.ref(module)


_known: dict[int, Chain | _Waiting | _Never] = {}
_deciding = threading.Lock()


def forget_all() -> None:
    _known.clear()


def decide(module: Any) -> Chain | _Never:
    """Look at a module, compile the kernels if they can stand in for it, and say so when that is news."""
    with _deciding:
        if in_stable_baselines3(module.parameters()):
            chain: Chain | _Never = _Never(module)
        else:
            reason = why_never(module)
            name = type(module).__name__
            record = record_of("module", name, describe(flattened(module)) if reason is None else "", reason)
            if reason is None and record.reason is None:
                chain = Chain(module, record)
                chain.compile()
                record.audits.soon()
                record.acting_audits.soon()
            else:
                chain = _Never(module)
        _remember(module, chain)
        return chain


def _remember(module: Any, found: Chain | _Waiting | _Never) -> None:
    key = id(module)
    _known[key] = found
    weakref.finalize(module, _known.pop, key, None).atexit = False


def _seen(module: Any) -> Chain | _Never | None:
    """What is known of a module; None while it was called too rarely to compile anything for it."""
    found = _known.get(id(module))
    if found is None or found.module() is not module:
        found = _Waiting(module)
        _remember(module, found)
    if isinstance(found, _Waiting):
        found.calls += 1
        return decide(module) if found.calls > PATIENCE else None
    return found


def running(original: Forward) -> Forward:
    """Around `nn.Sequential.forward`."""
    is_compiling = torch.compiler.is_compiling

    def forward(self: Any, input: Any) -> Any:
        if is_compiling() or active.is_paused:
            return original(self, input)
        chain = _known.get(id(self))
        if type(chain) is not Chain or chain.module() is not self:
            if type(chain) is _Never and chain.module() is self:
                return original(self, input)
            chain = _seen(self)
            if not isinstance(chain, Chain):
                return original(self, input)
        if type(input) is not Tensor:
            return original(self, input)
        return _run(chain, self, input, original)

    return forward


def _run(chain: Chain, module: Any, x: Tensor, original: Forward) -> Tensor:
    """One call of a module that kernels stand in for."""
    record = chain.record
    if record.reason is not None:
        return original(module, x)
    if chain.changed():
        reason = special_mode()
        if reason is not None:  # such as another module's parameters put in for this call alone
            record.leave(reason)
            return original(module, x)
        del _known[id(module)]
        found = decide(module)
        if not isinstance(found, Chain):
            return original(module, x)
        chain, record = found, found.record
    shape = x.shape
    plan = chain.plans.get(shape)
    if (
        plan is None
        or x.dtype is not _float32
        or not x.is_cpu
        or x.layout is not _strided
        or special_mode() is not None
    ):
        reason = chain.why_not(x)
        if reason is not None:
            record.leave(reason)
            return original(module, x)
        plan = chain.plan_of(shape)
    weights = chain.plain_parameters()
    if weights is None:
        del _known[id(module)]
        return original(module, x)  # looked at again at the next calls
    if not x.is_contiguous():
        x = x.contiguous()
    parameters = chain.parameters
    record.calls += 1
    if _grad_mode() and (x.requires_grad or True in [one.requires_grad for one in parameters]):
        is_audited = record.audits.due(1) is not None
        out: Tensor = _apply(x, chain, weights, plan, is_audited, *parameters)
        audits = record.audits
    else:
        out = chain.forward(x, False, weights, plan)[0]
        is_audited = record.acting_audits.due(1) is not None
        audits = record.acting_audits
    if is_audited:
        return _audited(chain, module, x, out, original, audits)
    return out


def _audited(chain: Chain, module: Any, x: Tensor, out: Tensor, original: Forward, audits: Audits) -> Tensor:
    """Compare outputs with torch's own; return those, and leave the module to torch, if they differ."""
    started_s = time.perf_counter()
    with torch.no_grad():
        theirs = original(module, x)
        difference = relative_difference(out.detach(), theirs)
    if difference <= OUTPUTS:
        if audits is chain.record.acting_audits:
            audits.note(True, started_s)
        return out
    audits.note(False, started_s)
    switch_off(chain.record, f"an audit failed: outputs differ by {difference:.2g} (allowed {OUTPUTS:g}).")
    return original(module, x)


def relative_difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest |difference|, relative to the largest number or 1; infinite if one side is not finite."""
    if ours.shape != theirs.shape:
        return float("inf")
    finite = torch.isfinite(theirs)
    if not torch.equal(finite, torch.isfinite(ours)):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = max(float(theirs[finite].abs().max()), 1.0)
    return float((ours[finite] - theirs[finite]).abs().max()) / scale


class _Dense(torch.autograd.Function):
    """A chain of layers as one function: inputs and parameters to outputs."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        chain: Chain,
        weights: NDArray[np.int64],
        plan: Plan,
        is_audited: bool,
        *parameters: Tensor,
    ) -> Tensor:
        out, work, slopes = chain.forward(x, True, weights, plan)
        ctx.chain, ctx.plan, ctx.is_audited, ctx.parameters = chain, plan, is_audited, parameters
        # The tensors that torch's own layers would need again, so that writing to them is noticed as always.
        needed = parameters[0::2] if ctx.needs_input_grad[0] else parameters[2::2]
        ctx.save_for_backward(x, work, slopes, out if chain.saves_output else x, *needed)
        return out

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> Any:
        chain: Chain = ctx.chain
        x, work, slopes = ctx.saved_tensors[:3]
        needs = ctx.needs_input_grad
        wants = (needs[0], *needs[5:])
        weights = chain.plain_parameters()
        if (
            _grad_mode()
            or weights is None
            or not is_dense(grads)
            or not all(map(is_, ctx.parameters, chain.parameters))
            or special_mode() is not None
        ):
            of_x, *others = _by_torch(chain, x, ctx.parameters, grads, wants, _grad_mode())
            return of_x, None, None, None, None, *others
        found = chain.backward(weights, grads.contiguous(), x, work, slopes, wants, ctx.plan)
        record = chain.record
        record.gradient_steps += 1
        if ctx.is_audited:
            ctx.is_audited = False
            found = _audited_backward(chain, x, ctx.parameters, grads, wants, found)
        return found[0], None, None, None, None, *found[1:]


_apply: Any = super(torch.autograd.Function, _Dense).apply  # without the search for torch.func


def _by_torch(
    chain: Chain,
    x: Tensor,
    parameters: Sequence[Tensor],
    grads: Tensor,
    wants: Sequence[bool],
    create_graph: bool,
) -> list[Tensor | None]:
    """The gradients as torch's own functions compute them, differentiable again if asked for."""
    with torch.enable_grad():
        inputs: list[Tensor] = [x, *parameters]
        if not create_graph:
            inputs = [one.detach().requires_grad_() for one in inputs]
        elif not x.requires_grad:
            inputs[0] = x.detach()
        out = chain.replay(inputs[0], inputs[1:])
        asked = [one for one, want in zip(inputs, wants, strict=True) if want]
        found = iter(torch.autograd.grad(out, asked, grads, create_graph=create_graph))
    return [next(found) if want else None for want in wants]


def _audited_backward(
    chain: Chain,
    x: Tensor,
    parameters: Sequence[Tensor],
    grads: Tensor,
    wants: Sequence[bool],
    ours: list[Tensor | None],
) -> list[Tensor | None]:
    """Compare gradients with torch's own; return those, and leave the module to torch, if they differ."""
    started_s = time.perf_counter()
    theirs = _by_torch(chain, x, parameters, grads, wants, create_graph=False)
    names = ("inputs", *(f"grad.{index // 2}.{'bias' if index % 2 else 'weight'}" for index in range(99)))
    both: list[dict[str, NDArray[Any]]] = [
        {name: one.numpy() for name, one in zip(names, found, strict=False) if one is not None}
        for found in (ours, theirs)
    ]
    nothing = {name: np.zeros_like(value) for name, value in both[1].items()}
    difference = compare(nothing, both[0], both[1], {}, {})
    record = chain.record
    record.audits.note(difference.passes, started_s)
    if difference.passes:
        return ours
    switch_off(
        record,
        f"an audit failed: gradients differ by {difference.moments:.2g} (allowed 0.01), "
        f"{difference.tensor:.2g} in {difference.worst} (allowed 0.1).",
    )
    return theirs
