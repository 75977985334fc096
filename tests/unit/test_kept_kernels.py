"""Compiled code kept on disk is used again, and thrown away when anything it was made from changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotloop.rl.envs import compiled, sources, streams
from hotloop.rl.train.fused import ppo

HOME = Path(compiled.__file__).parents[3]


def names_imported_by(file: Path, module: str) -> list[str]:
    return [name for _, name in sources.imported(file, module)]


def test_of_hotloop_the_files_of_rl_are_looked_at() -> None:
    assert "hotloop.rl.envs.compiled" in names_imported_by(
        HOME / "hotloop/rl/envs/streams.py", "hotloop.rl.envs.streams"
    )
    loop = names_imported_by(HOME / "hotloop/rl/train/fused/dqn_loop.py", "hotloop.rl.train.fused.dqn_loop")
    assert {"hotloop.rl.train.fused.dqn", "hotloop.rl.envs.snake.kernels"} <= set(loop)
    assert all(name.startswith("hotloop.rl.") for name in loop)


def test_imports_of_ones_own_are_found_however_they_are_written(tmp_path: Path) -> None:
    inner = tmp_path / "pack" / "inner"
    inner.mkdir(parents=True)
    for name in ("pack/__init__.py", "pack/inner/__init__.py", "pack/near.py", "pack/inner/b.py", "alone.py"):
        (tmp_path / name).write_text("")
    file = inner / "a.py"
    file.write_text(
        "import alone, numpy\nfrom . import b\nfrom ..near import x\nfrom pack.inner.b import y\n"
    )
    found = {place.relative_to(tmp_path).as_posix() for place, _ in sources.imported(file, "pack.inner.a")}
    assert found == {"alone.py", "pack/inner/__init__.py", "pack/inner/b.py", "pack/near.py"}
    # The package file itself reads its relative imports from its own place.
    (tmp_path / "pack" / "__init__.py").write_text("from .near import x\n")
    place = tmp_path / "pack" / "__init__.py"
    assert names_imported_by(place, "pack") == ["pack.near"]


def test_of_installed_packages_only_the_own_one_is_looked_at(tmp_path: Path) -> None:
    place = tmp_path / "site-packages"
    for name in ("mine/__init__.py", "mine/b.py", "other/__init__.py"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("")
    (place / "mine" / "a.py").write_text("import other\nimport mine.b\n")
    assert names_imported_by(place / "mine" / "a.py", "mine.a") == ["mine.b"]


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


def test_a_compilation_that_fails_or_is_killed_keeps_nobody_waiting(tmp_path: Path) -> None:
    (tmp_path / "kernels_a.py").write_text(
        f"{HEAD}@kernel\ndef wrong(x):\n    return x.nothing\n@kernel\ndef outer(x):\n    return x + 2\n"
    )
    killed = "import kernels_a\nkernels_a.outer._cache._take()\nimport os\nos.kill(os.getpid(), 9)"
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
        "import kernels_a, numpy as np\nfrom hotloop.rl.envs import one_compiler\n"
        "def refuse(*_): raise OSError('no locks')\none_compiler.fcntl.lockf = refuse\n"
        "print(kernels_a.outer(np.float32(1)))"
    )
    out, err = started(tmp_path, words).communicate(timeout=120)
    assert out.strip() == "3.0", err


def test_a_change_in_an_imported_file_compiles_again(tmp_path: Path) -> None:
    a, b, c = (tmp_path / f"kernels_{letter}.py" for letter in "abc")
    a.write_text(f"{HEAD}import kernels_b\n@kernel\ndef outer(x):\n    return kernels_b.inner(x) + x\n")
    b.write_text(f"{HEAD}from kernels_c import innermost\n@kernel\ndef inner(x):\n    return innermost(x)\n")

    def run(add: int, **variables: str) -> tuple[str, int]:
        c.write_text(f"{HEAD}@kernel\ndef innermost(x):\n    return x + {add}\n")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": f"{HOME}:{tmp_path}", "PYTHONDONTWRITEBYTECODE": "1"} | variables,
        )  # fmt: skip
        return done.stdout.strip(), done.stderr.count("compiling")

    assert run(1) == ("3.0", 1)  # the inner ones are compiled as a part of the outer
    assert run(1) == ("3.0", 0)
    assert run(10) == ("12.0", 1)
    assert run(20, NUMBA_DISABLE_JIT="1") == ("22.0", 0)


@pytest.mark.parametrize("function", [streams.next_double, ppo.update], ids=["kernel", "fast_kernel"])
def test_every_kind_of_kernel_is_watched(function: Any) -> None:
    file, module = Path(function.py_func.__code__.co_filename), function.py_func.__module__
    assert function._cache._cache_file._source_stamp[1] == sources.fingerprint(file, module)


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
