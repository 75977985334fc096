"""The declaration of the file layout: aligned, compiled as declared, read as written."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop import Profiler
from hotloop.capture import layout
from hotloop.measure import core_choice
from hotloop.testing.fakes import FakeClock

COMPILED = Path(core_choice.__file__).parent / "compiled"


@pytest.mark.parametrize("struct", layout.STRUCTS)
def test_every_field_is_aligned_to_its_size(struct: str) -> None:
    at = 0
    for field in layout.STRUCTS[struct]:
        size = 8 if field[1] in layout.STRUCTS else layout.item_bytes(field[1])
        assert at % size == 0, field
        at += layout.field_bytes(field)
    assert layout.dtype(struct).itemsize == at == layout.item_bytes(struct)


def test_numpy_and_our_offsets_agree() -> None:
    for struct in layout.STRUCTS:
        dtype = layout.dtype(struct)
        for name, (_, at, *_) in (dtype.fields or {}).items():
            assert layout.offsets(struct)[name] == at


def test_the_header_compiles_with_the_declared_sizes(tmp_path: Path) -> None:
    header = tmp_path / "layout.h"
    header.write_text(layout.c_header())  # holds a static assertion for every struct
    subprocess.run(["gcc", "-std=c11", "-fsyntax-only", "-Werror", "-x", "c", header], check=True)


@pytest.mark.parametrize("header", sorted(COMPILED.glob("*.h")), ids=lambda path: path.name)
def test_every_header_of_the_core_compiles_by_itself(header: Path, tmp_path: Path) -> None:
    copy = tmp_path / "compiled"
    shutil.copytree(COMPILED, copy)
    (tmp_path / "layout.h").write_text(layout.c_header())
    include = sysconfig.get_path("include")
    flags = ["-fsyntax-only", "-Werror=implicit-function-declaration", f"-I{include}", "-x", "c"]
    subprocess.run(["gcc", *flags, copy / header.name], check=True)


@given(st.integers(0, 2**50))
def test_a_duration_falls_into_its_bucket(duration_ns: int) -> None:
    edges, bucket = layout.bucket_edges_ns(), layout.bucket_of(duration_ns)
    assert bucket == 0 or edges[bucket] <= duration_ns
    assert bucket == layout.BUCKETS - 1 or duration_ns < edges[bucket + 1]


def test_both_cores_fill_the_same_buckets() -> None:
    durations = [0, 1, 15, 16, 17, 31, 32, 100, 12_345, 10**6, 10**9, 2**43, 2**44, 2**45]
    found = []
    for core in ("compiled", "python"):
        clock = FakeClock()
        profiler = Profiler(clock=clock, core_name=core).start()
        for ns in durations:
            with profiler.profile("op"):
                clock.advance(ns)
        found.append(profiler.capture().tree.children[0].buckets)
        profiler.stop()
    assert (found[0] == found[1]).all()
    expected = np.bincount([layout.bucket_of(ns) for ns in durations], minlength=layout.BUCKETS)
    assert (found[0] == expected).all()
