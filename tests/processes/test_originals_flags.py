"""The flags of the original scripts and ours; the test of each workload runs its scripts."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from hotloop.cli.main import main

ROOT = Path(__file__).parents[2]
ORIGINALS = ROOT / "examples" / "originals"
TRANSLATE: dict[str, Any] = runpy.run_path(str(ORIGINALS / "_translate.py"))


@pytest.mark.parametrize("workload", sorted(TRANSLATE["FLAGS"]))
def test_every_flag_is_translated_to_one_that_exists(
    workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", workload, "--help"]) == 0
    known = set(re.findall(r"--[a-z0-9-]+", capsys.readouterr().out))
    assert set(TRANSLATE["FLAGS"][workload].values()) <= known


def test_values_and_unknown_flags_are_kept() -> None:
    words = ["--epochs", "3", "--epochs=4", "--seed", "--", "x=--epochs"]
    flags = TRANSLATE["FLAGS"]["mario"]
    expected = [flags["--epochs"], "3", f"{flags['--epochs']}=4", "--seed", "--", "x=--epochs"]
    assert TRANSLATE["translate"]("mario", words) == expected


def test_every_flag_in_the_table_of_the_docs_is_known() -> None:
    table = (ROOT / "docs" / "originals.md").read_text()
    known = {flag for flags in TRANSLATE["FLAGS"].values() for flag in flags}
    analyzer = {"--input", "--output", "--charts", "--detailed"}
    for line in table.splitlines():
        if line.startswith("| `") and "profile_turbo_mode" not in line:
            original = line.split("|")[1]
            assert set(re.findall(r"--[a-z-]+", original)) <= known | analyzer, line
