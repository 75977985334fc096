"""Installs PufferLib's trainer and its CartPole and Snake, in C, into a virtual environment that has torch.

PufferLib's own build compiles some thirty environments and downloads libraries for rendering and physics.
Here pip only unpacks its source, and the two environments are compiled with the flags of its setup.py.

Run: python build_puffer.py VENV
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "3.0.0"
FLAGS = ["-shared", "-fPIC", "-O2", "-flto", "-fwrapv", "-w", "-DPLATFORM_DESKTOP"]


def unpacked(folder: Path) -> Path:
    """The source as pip unpacks it; its build is expected to fail without torch or a download."""
    words = ["download", "--quiet", "--no-clean", "--no-deps", "--no-build-isolation", "--no-binary", ":all:"]
    subprocess.run(
        [sys.executable, "-m", "pip", *words, "--dest", str(folder / "dest"), f"pufferlib=={VERSION}"],
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    found = [
        file.parent for file in folder.glob("*/*/setup.py") if (file.parent / "pufferlib/ocean").is_dir()
    ]
    if not found:
        sys.exit(f"pip did not unpack the source of pufferlib {VERSION}; is it reachable from here?")
    return found[0]


def asked(python: Path, question: str) -> str:
    return subprocess.run([python, "-c", question], capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    python = Path(sys.argv[1]).absolute() / "bin/python"
    numpy_headers = asked(python, "import numpy; print(numpy.get_include())")
    python_headers = asked(python, "import sysconfig; print(sysconfig.get_path('include'))")
    packages = Path(asked(python, "import sysconfig; print(sysconfig.get_path('purelib'))"))
    with tempfile.TemporaryDirectory() as folder:
        source = unpacked(Path(folder))
        raylib = next(source.glob("raylib-*_linux_amd64"))
        shutil.rmtree(packages / "pufferlib", ignore_errors=True)
        shutil.copytree(source / "pufferlib", packages / "pufferlib")
        for name in ("cartpole", "snake"):
            here = packages / "pufferlib/ocean" / name
            headers = [f"-I{folder}" for folder in (numpy_headers, python_headers, raylib / "include")]
            command = ["gcc", *FLAGS, *headers, str(here / "binding.c"), str(raylib / "lib/libraylib.a")]
            subprocess.run([*command, "-lm", "-lpthread", "-ldl", "-o", str(here / "binding.so")], check=True)
    build_trainer(python, packages / "pufferlib", python_headers)
    print(f"PufferLib {VERSION}: CartPole, Snake and the trainer compiled into {packages / 'pufferlib'}")


def build_trainer(python: Path, package: Path, python_headers: str) -> None:
    """Its advantages are computed in C++ that is linked to torch."""
    words = "from torch.utils.cpp_extension import include_paths, library_paths; print(*{}())"
    headers = [f"-I{path}" for path in asked(python, words.format("include_paths")).split()]
    (libraries, *_) = asked(python, words.format("library_paths")).split()
    linked = [f"-L{libraries}", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{libraries}"]
    command = ["g++", "-O2", "-std=c++20", "-shared", "-fPIC", *headers, f"-I{python_headers}"]
    source = package / "extensions/pufferlib.cpp"
    subprocess.run([*command, str(source), "-o", str(package / "_C.so"), *linked], check=True)


if __name__ == "__main__":
    main()
