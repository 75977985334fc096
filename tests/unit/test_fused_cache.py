"""Compiled code kept on disk is used again, and thrown away when anything it was made from changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hotloop.rl.train.fused import compiled


def test_the_fingerprint_covers_what_is_imported_directly_or_not() -> None:
    folder = Path(compiled.__file__).parent
    assert compiled._imported(b"from hotloop.rl.train.fused import layers\nimport numpy") == [
        folder / "layers.py"
    ]
    assert compiled._imported(b"from hotloop.rl.train.fused.layers import pack") == [folder / "layers.py"]
    assert compiled.fingerprint(folder / "tiles.py") != compiled.fingerprint(folder / "layers.py")


PROGRAM = """
import numpy as np
from hotloop.rl.train.fused.compiled import fast_kernel
import hotloop.rl.train.fused.compiled as compiled
from pathlib import Path
import kernels_b
compiled._imported = lambda source: [Path({b!r})] if b"kernels_b" in source else []
import kernels_a
print(kernels_a.outer(np.float32(1.0)))
"""


def test_a_change_in_an_imported_file_compiles_again(tmp_path: Path) -> None:
    a, b = tmp_path / "kernels_a.py", tmp_path / "kernels_b.py"
    head = "from hotloop.rl.train.fused.compiled import fast_kernel\n"
    a.write_text(head + "import kernels_b\n@fast_kernel\ndef outer(x):\n    return kernels_b.inner(x) + x\n")

    def run(add: int) -> tuple[str, int]:
        b.write_text(head + f"@fast_kernel\ndef inner(x):\n    return x + {add}\n")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(b=str(b))], capture_output=True, text=True, check=True,
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        return done.stdout.strip(), done.stderr.count("compiling")

    assert run(1) == ("3.0", 1)  # the inner one is compiled as a part of the outer
    assert run(1) == ("3.0", 0)
    assert run(10) == ("12.0", 1)
