"""Compiled kernels are cached on disk, and compiled again when their code changes."""

from __future__ import annotations

import hashlib
import importlib
import os
import pickle
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from numba import types
from numba.core.dispatcher import Dispatcher

import hotloop.rl
from hotloop.rl.envs import compiled
from hotloop.rl.envs.kernel_cache import KernelCache
from hotloop.rl.envs.kernel_cache_key import describe_kernel, describe_type, kernel_cache_key

HOME = Path(compiled.__file__).parents[3]

MODULE = """
import enum, math
from typing import NamedTuple
import numpy as np
from hotloop.rl.envs.compiled import kernel
import other

class Colour(enum.IntEnum):
    RED = 3

class Pair(NamedTuple):
    left: int
    right: int

SCALE = 2.5
TABLE = np.array([1, 2, 3])
SHIFTS = (1, 2.0)
UNUSED = 1

@kernel
def outer(x, step=4):
    # a comment
    total = SCALE * x + TABLE[1] + SHIFTS[0] + Colour.RED + step
    return Pair(inner(total), other.add(x))

@kernel
def inner(x):
    return math.sqrt(x) + (inner(x - 1) if x > 1e9 else 0)
"""
OTHER = """
from hotloop.rl.envs.compiled import kernel
BIAS = 1

@kernel
def add(x):
    return x + BIAS

@kernel
def unrelated(x):
    return x
"""


def key_of_outer(monkeypatch: pytest.MonkeyPatch, module: str = MODULE, other: str = OTHER) -> str:
    """The key of `outer` when it is defined in these two modules."""
    made = {}
    for name, source in (("other", other), ("mine", module)):
        made[name] = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, made[name])
        exec(compile(source, compiled.__file__, "exec"), made[name].__dict__)
    return kernel_cache_key(made["mine"].outer)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# a comment", "# another\n\n"),
        ("def inner(x):", 'def inner(x):\n    """Docstring."""'),
        ("def inner(x):", "def inner(x: float) -> float:"),
        ("UNUSED = 1", "UNUSED = 2"),
        ("class Pair(NamedTuple):", 'class Pair(NamedTuple):\n    """Docstring."""'),
        ("return x\n", "return x + 1\n"),
    ],
)
def test_a_change_that_the_compiler_does_not_see_keeps_the_key(
    monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    changed = MODULE.replace(before, after), OTHER.replace(before, after)
    assert changed != (MODULE, OTHER)
    assert key_of_outer(monkeypatch) == key_of_outer(monkeypatch, *changed)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("SCALE * x +", "SCALE * x -"),
        ("x > 1e9", "x > 1e8"),
        ("step=4", "step=5"),
        ("SCALE = 2.5", "SCALE = 2"),
        ("SCALE = 2.5", "SCALE = np.float32(2.5)"),
        ("[1, 2, 3]", "[1, 2, 4]"),
        ("[1, 2, 3]", "[1, 2, 3], dtype=np.int32"),
        ("(1, 2.0)", "(1, 2)"),
        ("RED = 3", "RED = 4"),
        ("left: int\n    right: int", "right: int\n    left: int"),
        ("math.sqrt(x)", "math.exp(x)"),
        ("def inner(x):", "def inner(x):\n    x += 1"),
        ("BIAS = 1", "BIAS = 2"),
        ("return x + BIAS", "return x * BIAS"),
        ("@kernel\ndef add", "import numba\n@numba.njit(fastmath=True)\ndef add"),
        ("@kernel\ndef add", "@kernel\ndef one(x):\n    return x\ndef add"),
    ],
)
def test_a_change_of_compiled_code_changes_the_key(
    monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    changed = MODULE.replace(before, after), OTHER.replace(before, after)
    assert changed != (MODULE, OTHER)
    assert key_of_outer(monkeypatch) != key_of_outer(monkeypatch, *changed)


def test_the_fields_of_a_named_tuple_belong_to_its_type() -> None:
    from collections import namedtuple

    both = [
        types.NamedTuple([types.int64, types.float64], namedtuple("Pair", fields))
        for fields in (("a", "b"), ("b", "a"))
    ]
    assert str(both[0]) == str(both[1])
    assert describe_type(both[0]) != describe_type(both[1])


def test_no_kernel_of_ours_has_an_address_in_its_key() -> None:
    """It would be compiled again by every process."""
    kernels: dict[str, Dispatcher] = {}
    for found in pkgutil.walk_packages(hotloop.rl.__path__, "hotloop.rl."):
        module = importlib.import_module(found.name)
        kernels |= {f"{found.name}.{n}": v for n, v in vars(module).items() if isinstance(v, Dispatcher)}
    assert len(kernels) > 100
    for name, dispatcher in kernels.items():
        assert not [word for word in describe_kernel(dispatcher) if " at 0x" in word], name


HEAD = "from hotloop.rl.envs.compiled import kernel\n"
PROGRAM = "import numpy as np; import kernels_a; print(kernels_a.outer(np.float32(1.0)))"


TOGETHER = """
import sys, time
from pathlib import Path
import numpy as np
import kernels_a
Path(sys.argv[1]).touch()
while len(list(Path(".").glob("ready*"))) < 3:
    time.sleep(0.001)
print(kernels_a.outer(np.float32(1.0)))
"""


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": f"{HOME}:{folder}", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_of_processes_that_start_together_one_compiles(tmp_path: Path) -> None:
    (tmp_path / "kernels_a.py").write_text(f"{HEAD}@kernel\ndef outer(x):\n    return x + 2\n")
    running = [started(tmp_path, TOGETHER, f"ready{number}") for number in range(3)]
    said = [one.communicate(timeout=120) for one in running]
    assert [out.strip() for out, _ in said] == ["3.0"] * 3, said
    assert sum(err.count("compiling") for _, err in said) == 1


def test_a_failed_or_killed_compilation_blocks_no_other_process(tmp_path: Path) -> None:
    (tmp_path / "kernels_a.py").write_text(
        f"{HEAD}@kernel\ndef wrong(x):\n    return x.nothing\n@kernel\ndef outer(x):\n    return x + 2\n"
    )
    killed = (
        "import os, kernels_a, numpy as np\n"
        "kernels_a.outer._compiler.compile = lambda *_: os.kill(os.getpid(), 9)\n"
        "kernels_a.outer(np.float32(1))"
    )
    assert started(tmp_path, killed).wait(60) == -9
    fails = (
        "import numpy as np, kernels_a\n"
        "try: kernels_a.wrong(np.float32(1))\n"
        "except Exception as error: print(type(error).__name__)\n"
        "print(kernels_a.outer(np.float32(1)))\n"
        "assert type(kernels_a.outer._cache)._held is None\n"
    )
    out, err = started(tmp_path, fails).communicate(timeout=120)
    assert out.split() == ["TypingError", "3.0"], err


def test_on_a_disk_without_locks_it_compiles_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "kernels_a.py").write_text(f"{HEAD}@kernel\ndef outer(x):\n    return x + 2\n")
    words = (
        "import kernels_a, numpy as np\nfrom hotloop.rl.envs import kernel_cache\n"
        "def refuse(*_): raise OSError('no locks')\nkernel_cache.fcntl.lockf = refuse\n"
        "print(kernels_a.outer(np.float32(1)))"
    )
    out, err = started(tmp_path, words).communicate(timeout=120)
    assert out.strip() == "3.0", err


@pytest.mark.long
def test_a_change_in_an_imported_file_compiles_again(tmp_path: Path) -> None:
    a, b, c = (tmp_path / f"kernels_{letter}.py" for letter in "abc")
    a.write_text(f"{HEAD}import kernels_b\n@kernel\ndef outer(x):\n    return kernels_b.inner(x) + x\n")
    b.write_text(f"{HEAD}from kernels_c import innermost\n@kernel\ndef inner(x):\n    return innermost(x)\n")

    def run(add: int, doc: str = "", **variables: str) -> tuple[str, int]:
        c.write_text(f"{HEAD}{doc}@kernel\ndef innermost(x):\n    {doc}    return x + {add}\n")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": f"{HOME}:{tmp_path}", "PYTHONDONTWRITEBYTECODE": "1"} | variables,
        )  # fmt: skip
        return done.stdout.strip(), done.stderr.count("compiling")

    assert run(1) == ("3.0", 1)  # the inner ones are compiled as a part of the outer
    assert run(1) == ("3.0", 0)
    assert run(1, doc="'About it.'\n") == ("3.0", 0)
    assert run(10) == ("12.0", 1)
    assert run(20, NUMBA_DISABLE_JIT="1") == ("22.0", 0)


def test_a_strict_kernel_stays_strict_when_a_fast_one_calls_it_first() -> None:
    """Numba hands the caller's fastmath down to kernels that do not say, and keeps what it made on disk."""
    from hotloop.rl.envs.compiled import kernel
    from hotloop.rl.train.fused.compiled import fast_kernel

    @kernel
    def plus_and_minus(a: float, b: float) -> float:
        return (a + b) - a

    @fast_kernel
    def caller(a: float, b: float) -> float:
        return plus_and_minus(a, b)

    assert caller(1e16, 1.0) == (1e16 + 1.0) - 1e16 == 0.0
    assert plus_and_minus(1e16, 1.0) == 0.0


def test_damaged_machine_code_is_compiled_again_and_never_run(tmp_path: Path) -> None:
    cache = object.__new__(KernelCache)
    cache._impl = SimpleNamespace(rebuild=lambda context, reduced: reduced)
    content, file = pickle.dumps(("code", 3)), tmp_path / "kernel.nbc"
    whole = content + hashlib.sha256(content).digest()
    file.write_bytes(whole)
    assert cache._load(file, None) == ("code", 3)
    for at in range(len(whole)):
        file.write_bytes(bytes([*whole[:at], whole[at] ^ 1, *whole[at + 1 :]]))
        assert cache._load(file, None) is None
    file.write_bytes(content)  # by hotloop 0.1
    assert cache._load(file, None) is None
    assert cache._load(tmp_path / "nothing", None) is None
