"""Every driver of the campaign at a small size, and that the drivers notice what they are for."""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from hotloop._util import read_files
from hotloop.capture import facts
from hotloop.rl.train import runs
from hotloop.workflows import report
from tests.campaign import disk_full, mutate_files
from tests.campaign.__main__ import DRIVERS, main
from tests.campaign.case import Case
from tests.campaign.corpus import Seen
from tests.campaign.failing_disk import FailingDisk

SECONDS = 4.0


@pytest.mark.parametrize("name", DRIVERS)
def test_nothing_breaks(name: str) -> None:
    driver = importlib.import_module(f"tests.campaign.{name}")
    cases = list(driver.run(1, SECONDS))
    assert cases and [case for case in cases if case.failure is not None] == []
    assert [case.seed for case in cases[:3]] == list(range(1, len(cases[:3]) + 1))


def test_a_case_is_repeated_by_its_seed_and_the_table_names_failures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = [next(iter(disk_full.run(seed, 0))).kind for seed in range(20, 24)]
    assert first == [next(iter(disk_full.run(seed, 0))).kind for seed in range(20, 24)]
    assert main(["--minutes", "0", "--seed", "3", "--kinds", "disk_full"]) == 0
    assert re.search(r"^all +1 +0$", capsys.readouterr().out, re.MULTILINE)
    monkeypatch.setattr(disk_full, "run", lambda seed, seconds: iter([Case("x", seed, "broke")]))
    assert main(["--minutes", "0", "--seed", "7", "--kinds", "disk_full"]) == 1
    assert re.search(r"^x +1 +1  7 \(disk_full\): broke$", capsys.readouterr().out, re.MULTILINE)


def failures(cases: Any) -> str:
    return "\n".join(case.failure for case in cases if case.failure is not None)


def disk_cases(name: str) -> list[Case]:
    """A scenario with every operation failing once."""
    disk_full.operations.cache_clear()
    scenario, made = disk_full.SCENARIOS[name], []
    for at in range(1, disk_full.operations(name) + 1):
        made.append(Case(name, at, disk_full.attempt(scenario, FailingDisk(Path(), at))))
    return made


def test_a_file_that_is_cut_by_a_full_disk_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failures(disk_cases("report.svg")) == ""

    def write(path: Path, content: bytes) -> None:
        with open(path, "wb") as file:
            file.write(content[:100])
            file.write(content[100:])

    monkeypatch.setattr(report, "write_atomically", write)
    assert "is cut short" in failures(disk_cases("report.svg"))


def test_a_training_that_ends_and_litter_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def save(*args: Any, **more: Any) -> None:
        runs.save_checkpoint(args[0], {}, {"env_steps": 2}, {})

    with monkeypatch.context() as patch:
        patch.setattr(runs, "save_run", save)
        assert "OSError" in failures(disk_cases("checkpoint"))
    unlink = os.unlink
    monkeypatch.setattr(os, "unlink", lambda path, **how: unlink(path, **how) if how else None)
    assert "left behind" in failures(disk_cases("limits"))


def mutated(kind: str, count: int) -> str:
    targets, folder = mutate_files.corpus()
    chosen = [target for target in targets if target.name == kind]
    assert chosen
    return failures(mutate_files.one_case(seed, chosen, folder) for seed in range(count))


def test_unnoticed_damage_wrong_types_and_bad_output_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(read_files.Reader, "parse_json", _without_checksum)
        assert "damage was not noticed" in mutated("tuning cache", 60)
    with monkeypatch.context() as patch:
        patch.setattr(facts, "conform", lambda value, kind, where: value)
        found = mutated("capture by 0.1", 150)
    assert "Error: " in found
    for seen, says in (
        (Seen(0, "\x1b[2J", ""), "reaches the terminal"),
        (Seen(0, "[NaN]", "", is_json=True), "no strict JSON"),
        (Seen(2, "", "Traceback"), "without a sentence"),
        (Seen(1, "", ""), "exit code 1"),
    ):
        assert says in (mutate_files.problem_of(seen, None) or "")
    assert mutate_files.changed_by_reading() == []


def _without_checksum(self: Any, file: Path, content: bytes, first: Any = None) -> Any:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise self.fail(file, f"is not valid JSON ({error})") from None
    if isinstance(found, dict):
        found.pop("checksum", None)
    return found
