"""Compilation while the script runs: numba, torch.compile and JAX, all recorded as `compile`."""

from __future__ import annotations

from types import ModuleType

from hotloop.instrument.method_patches import defines, patch_outermost
from hotloop.instrument.patch import Patches
from hotloop.measure.profiler import default

compilation = default.profile("compile", "compilation")


def patch_numba(module: ModuleType, into: Patches) -> None:
    """`numba.core.dispatcher`: compiling a function for new types, or loading it from the cache on disk."""
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    into.apply(patch_outermost(cls, "compile", compilation) for cls in classes if defines(cls, "compile"))


def patch_dynamo(module: ModuleType, into: Patches) -> None:
    """`torch._dynamo.convert_frame`: tracing a function and compiling its graphs."""
    into.apply([patch_outermost(module, "_compile", compilation)])


def patch_inductor(module: ModuleType, into: Patches) -> None:
    """`torch._inductor.compile_fx`: the backward graph, which is compiled at the first backward pass."""
    into.apply([patch_outermost(module, "_compile_fx_inner", compilation)])


def patch_jax(module: ModuleType, into: Patches) -> None:
    """`jax._src.pjit`: tracing and lowering a function for new shapes."""
    into.apply(
        patch_outermost(module, name, compilation) for name in ("_trace_for_jit", "_resolve_and_lower")
    )


def patch_jax_compiler(module: ModuleType, into: Patches) -> None:
    """`jax._src.compiler`: XLA itself."""
    into.apply([patch_outermost(module, "compile_or_get_cached", compilation)])
