"""Compiled kernels on disk, one file for each kernel and signature, shared by processes.

Collectors, workers and tests start at the same time and need the same kernels. One process compiles; the
others wait for it, because several compilers would only slow each other down. A process that finds no file
takes a lock, looks again, compiles, writes the file and releases the lock. The lock ends with its process,
however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pickle
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numba
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, UserProvidedCacheLocator, _Cache
from numba.core.serialize import dumps

from hotloop._util.errors import FileError
from hotloop._util.files import write_atomically
from hotloop._util.read_files import Reader
from hotloop.rl.envs.kernel_cache_key import describe_type, kernel_cache_key
from hotloop.rl.envs.kernel_compiler import KernelCompiler, is_linked

LOCK_TIMEOUT_S = 600.0  # then compile without the lock: its holder may be suspended
LOCK_POLL_S = 0.05
_FILE = Reader(1 << 30)  # the code and its checksum


class KernelCache(_Cache):
    """Replaces numba's own cache in a dispatcher."""

    _held: tuple[int, KernelCache] | None = None  # lock held by this process: file descriptor and owner

    def __init__(self, dispatcher: Any, is_compiling: Callable[[], bool]):
        """`is_compiling` tells whether this process already compiles a kernel: callees then take no lock."""
        self._dispatcher, self._is_compiling = dispatcher, is_compiling
        self._impl: Any = CompileResultCacheImpl(dispatcher.py_func)  # type: ignore[no-untyped-call]
        self._is_enabled = True

    @property
    def cache_path(self) -> str:
        """`NUMBA_CACHE_DIR`, which checkouts may share, or numba's default folder."""
        locator = self._impl.locator
        is_shared = isinstance(locator, UserProvidedCacheLocator)
        return str(config.CACHE_DIR if is_shared else locator.get_cache_path())  # type: ignore[attr-defined]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the cached code, or None: then the caller compiles it and calls `save_overload`."""
        if not self._is_enabled:
            return None
        target_context.refresh()
        file = self._file(sig, target_context.codegen())
        found = self._load(file, target_context)
        if found is not None or self._is_compiling():
            return found
        self._release_lock()  # left over from a compilation that failed
        self._take_lock(file)
        found = self._load(file, target_context)
        if found is not None:
            self._release_lock()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the code to disk and release the processes that wait for it."""
        try:
            if self._is_enabled and not is_linked(data) and self._impl.check_cachable(data):
                self._impl.locator.ensure_cache_path()
                file = self._file(sig, data.codegen)
                content = dumps(self._impl.reduce(data))  # type: ignore[no-untyped-call]
                with contextlib.suppress(OSError):  # a full disk: the kernel is compiled again next time
                    write_atomically(file, content + hashlib.sha256(content).digest())
        finally:
            if KernelCache._held is not None and KernelCache._held[1] is self:
                self._release_lock()

    def enable(self) -> None:
        """Part of numba's interface, like the next two."""
        self._is_enabled = True

    def disable(self) -> None:
        self._is_enabled = False

    def flush(self) -> None:
        """Delete the files of this kernel."""
        for file in Path(self.cache_path).glob(f"{self._name}-{self._key[:16]}-*.nbc"):
            file.unlink()

    @cached_property
    def _key(self) -> str:
        return kernel_cache_key(self._dispatcher)

    @property
    def _name(self) -> str:
        function = self._dispatcher.py_func
        name = f"{Path(function.__code__.co_filename).stem}.{function.__qualname__}"
        return name.replace("<", "").replace(">", "")

    def _file(self, sig: Any, codegen: Any) -> Path:
        """Return the file of one signature; its name covers everything the code depends on."""
        arguments = sig if isinstance(sig, tuple) else (*sig.args, sig.return_type)
        target = (
            numba.__version__,
            sys.implementation.cache_tag,
            codegen.magic_tuple(),
            KernelCompiler.VERSION,
        )
        words = repr((self._key, [describe_type(argument) for argument in arguments], target))
        digest = hashlib.sha256(words.encode()).hexdigest()
        return Path(self.cache_path) / f"{self._name}-{self._key[:16]}-{digest[:16]}.nbc"

    def _load(self, file: Path, target_context: Any) -> Any:
        try:
            content = _FILE.read_bytes(file)
        except FileError:
            return None
        content, checksum = content[:-32], content[-32:]
        if hashlib.sha256(content).digest() != checksum:
            return None  # damaged, or by hotloop 0.1: compiled again, since machine code must be as it was
        return self._impl.rebuild(target_context, pickle.loads(content))

    def _take_lock(self, file: Path) -> None:
        """Wait for the lock; continue without one if the folder is read-only or does not support locks."""
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:
            return
        end_s = time.monotonic() + LOCK_TIMEOUT_S
        while time.monotonic() < end_s:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(LOCK_POLL_S)
            except OSError:
                break
            else:
                KernelCache._held = descriptor, self
                return
        os.close(descriptor)

    @staticmethod
    def _release_lock() -> None:
        if KernelCache._held is not None:
            with contextlib.suppress(OSError):
                os.close(KernelCache._held[0])
            KernelCache._held = None
