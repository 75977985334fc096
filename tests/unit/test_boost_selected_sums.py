"""Products with a matrix of zeros and ones: equal to numpy's, zero where nothing is selected."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hotloop.boost.selected_sums import (
    BITS,
    TABLES_SIZE,
    codes_of_columns,
    codes_of_rows,
    multiply_selected,
)
from hotloop.rl.train.fused.flat import aligned_zeros
from hotloop.rl.train.fused.tiles import LANES


@pytest.mark.parametrize(
    ("units", "vectors", "columns"),
    [(4, 1, 1), (12, 2, 2), (16 * BITS, 1, 3), (17 * BITS, 5, 4)],  # of tables: one, some, all, one more
)
def test_selected_rows_are_added_up(units: int, vectors: int, columns: int) -> None:
    random = np.random.default_rng(units)
    samples, width = vectors * LANES, columns * LANES
    hidden = np.maximum(random.standard_normal((units, samples)), 0).astype(np.float32)
    hidden[1], hidden[:, 2] = 0.0, np.nan  # neither a unit that never fires nor a NaN selects anything
    by_unit, by_sample = (random.standard_normal(size).astype(np.float32) for size in (units, samples))
    of_samples, of_units = (
        random.standard_normal((size, width)).astype(np.float32) for size in (samples, units)
    )
    codes, tables = np.zeros(units * samples // BITS, dtype=np.uint8), aligned_zeros(TABLES_SIZE)
    selects = (hidden > 0) * np.float64(1.0)

    row = width + LANES  # results may be a part of wider rows
    found = np.full(units * row, 7.0, dtype=np.float32)
    codes_of_rows(hidden.reshape(-1), 0, units, samples, codes)
    multiply_selected(
        codes, samples // BITS, 1, of_samples.reshape(-1), 0, width, by_sample,
        found, LANES, row, by_unit, units, width, samples, tables,
    )  # fmt: skip
    expected = by_unit[:, None] * (selects @ (by_sample[:, None] * of_samples.astype(np.float64)))
    matrix = found.reshape(units, row)
    np.testing.assert_allclose(matrix[:, LANES:], expected, rtol=1e-4, atol=1e-5)
    assert (matrix[:, :LANES] == 7.0).all()
    assert (matrix[1, LANES:] == 0.0).all()

    found = np.full(samples * width, 7.0, dtype=np.float32)
    codes_of_columns(hidden.reshape(-1), 0, units, samples, codes)
    multiply_selected(
        codes, 1, samples, of_units.reshape(-1), 0, width, by_unit,
        found, 0, width, by_sample, samples, width, units, tables,
    )  # fmt: skip
    expected = by_sample[:, None] * (selects.T @ (by_unit[:, None] * of_units.astype(np.float64)))
    np.testing.assert_allclose(found.reshape(samples, width), expected, rtol=1e-4, atol=1e-5)
    assert (found.reshape(samples, width)[2] == 0.0).all()


NARROW = """
import sys
import llvmlite.binding as llvm
import pytest

features = llvm.get_host_cpu_features()
for name in {missing!r}:
    features[name] = False
llvm.get_host_cpu_features = lambda: features
from hotloop.rl.train.fused.tiles import LANES

assert LANES == {lanes}
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


SUMS = f"{__file__}::test_selected_rows_are_added_up"
UPDATES = (
    str(Path(__file__).parent.parent / "oracle/test_boost_off_policy.py") + "::test_any_update_from_any_state"
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("lanes", "missing", "tests"), [(8, ["avx512f"], [SUMS, UPDATES]), (4, ["avx512f", "avx"], [SUMS])]
)
def test_narrower_vectors(lanes: int, missing: list[str], tests: list[str]) -> None:
    """What CPUs with AVX2 or SSE run; kernels are made for the widest vectors of this CPU."""
    if lanes >= LANES:
        pytest.skip("this CPU has no wider vectors, so all other tests run these")
    code = NARROW.format(missing=missing, lanes=lanes)
    done = subprocess.run(
        [sys.executable, "-c", code, "-m", "not long", *tests],
        capture_output=True, text=True, cwd=Path(__file__).parent.parent.parent, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
