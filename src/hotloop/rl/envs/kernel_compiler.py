"""Compiles a kernel with all kernels it calls as one piece.

Numba optimises every function by itself and makes machine code of it, then copies it into its callers and
optimises it there again, once for each level of calls. Here only the outermost kernel is optimised and
becomes machine code; those it calls are just linked in. Their numbers stay the same: without `fastmath`, an
optimiser may not change them. All environments together compile in 41 s of CPU time instead of 62.

A kernel that was compiled for a caller has no entry point for Python; if Python calls it, it is compiled
again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.core import codegen, compiler, sigutils
from numba.core.environment import lookup_environment
from numba.core.registry import CPUDispatcher
from numba.extending import overload
from numba.np import arrayobj


class LinkedLibrary(codegen.JITCodeLibrary):
    """Code to be linked into callers: neither optimised nor executable by itself."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()  # type: ignore[no-untyped-call]
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0: numba then makes a function that cannot be called."""
        del name
        self._ensure_finalized()  # type: ignore[no-untyped-call]
        return 0

    @property
    def codegen(self) -> Any:
        return _WithoutEnvironments(self._codegen)


class _WithoutEnvironments:
    """A code generator for code that has no address yet; see `_set_environments`."""

    def __init__(self, wrapped: Any):
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def set_env(self, env_name: str, env: Any) -> None:
        """Leave it to the kernel that this code is linked into."""


class KernelCompiler(compiler.Compiler):
    """The compiler of kernels, for `numba.njit(pipeline_class=...)`."""

    VERSION = 2  # 1: numba's own, which optimised each kernel by itself

    is_inside_kernel: Callable[[], bool]
    """Whether another kernel is being compiled, which calls this one."""

    def __init__(
        self,
        typingctx: Any,
        targetctx: Any,
        library: Any,
        args: Any,
        return_type: Any,
        flags: Any,
        names: Any,
    ):
        if library is None and type(self).is_inside_kernel():
            library = LinkedLibrary(targetctx.codegen(), "linked kernel")  # type: ignore[no-untyped-call]
            library.enable_object_caching()
            flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        super().__init__(typingctx, targetctx, library, args, return_type, flags, names)  # type: ignore[no-untyped-call]

    def compile_extra(self, func: Any) -> Any:
        made = super().compile_extra(func)  # type: ignore[no-untyped-call]
        if not isinstance(made.library, LinkedLibrary):
            _set_environments(made.library)
        return made


def _set_environments(library: Any) -> None:
    """Set the environments of all linked functions: Python objects that they need, for errors for example."""
    engine = library.codegen._engine
    for variable in library._final_module.global_variables:
        if variable.name.startswith("_ZN08NumbaEnv") and engine.is_symbol_defined(variable.name):
            environment = lookup_environment(variable.name)  # type: ignore[no-untyped-call]
            if environment is not None:
                library.codegen.set_env(variable.name, environment)


def raise_other_shape(source_shape: Any, slice_shape: Any) -> None:
    """Raise the error of an array assigned to a slice of another shape."""
    raise ValueError("cannot assign slice from input of different size")


@overload(raise_other_shape)
def _raise_other_shape(source_shape: Any, slice_shape: Any) -> Any:
    del source_shape, slice_shape

    def implementation(source_shape: Any, slice_shape: Any) -> None:
        raise ValueError("cannot assign slice from input of different size")

    return implementation


class ShortShapeErrors:
    """While kernels are compiled, the error of a slice assignment does not name the two shapes.

    To write shapes into its message, numba compiles its string functions into every kernel that assigns an
    array to a slice. Without them, Track's kernels compile in 2.7 instead of 4.6 s of CPU time.
    """

    def __init__(self) -> None:
        self._numbas: Any = None

    def begin(self) -> None:
        """Replace the function that raises the error; numba looks it up for each slice it compiles."""
        self._numbas = arrayobj.raise_with_shape_context
        arrayobj.raise_with_shape_context = raise_other_shape

    def end(self) -> None:
        arrayobj.raise_with_shape_context = self._numbas


class KernelDispatcher(CPUDispatcher):
    """Numba's dispatcher, for kernels of which some signatures were compiled for their callers only."""

    def compile(self, sig: Any) -> Any:
        """As numba's; what was compiled for callers only is compiled again when Python calls it."""
        arguments = tuple(sigutils.normalize_signature(sig)[0])  # type: ignore[no-untyped-call]
        made = self.overloads.get(arguments)
        if made is not None and is_linked(made) and not KernelCompiler.is_inside_kernel():
            del self.overloads[arguments]
        return super().compile(sig)

    def add_overload(self, cres: Any) -> None:
        """As numba's, but Python never calls what was compiled for callers only."""
        if is_linked(cres):
            self.overloads[tuple(cres.signature.args)] = cres
        else:
            super().add_overload(cres)


def is_linked(made: Any) -> bool:
    """Whether a result of the compiler can only be linked into callers; it has no machine code to save."""
    return isinstance(made.library, LinkedLibrary)
