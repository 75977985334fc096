"""Every driver of the campaign at a small size, and that the drivers notice what they are for."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotloop
from hotloop._util import files, read_files
from hotloop.capture import facts
from hotloop.capture.model import Node
from hotloop.rl.train import runs
from tests.campaign import clocks, collectors, disk_full, kill, mutate_files, signals, trainers
from tests.campaign.__main__ import DRIVERS, main
from tests.campaign.case import Case
from tests.campaign.corpus import Seen
from tests.campaign.failing_disk import FailingDisk

SECONDS = {"mutate_files": 4.0, "disk_full": 4.0, "trainers": 3.0}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name == "trainers" else ()) for name in DRIVERS]
)
def test_nothing_breaks(name: str) -> None:
    driver = importlib.import_module(f"tests.campaign.{name}")
    cases = list(driver.run(1, SECONDS.get(name, 2.0)))
    assert cases and [case for case in cases if case.failure is not None] == []
    assert [case.seed for case in cases[:3]] == list(range(1, len(cases[:3]) + 1))


def test_a_case_is_repeated_by_its_seed_and_the_table_names_failures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = [next(iter(disk_full.run(seed, 0))).kind for seed in range(20, 24)]
    assert first == [next(iter(disk_full.run(seed, 0))).kind for seed in range(20, 24)]
    assert main(["--minutes", "0", "--seed", "3", "--kinds", "disk_full"]) == 0
    assert re.search(r"^all +1 +0$", capsys.readouterr().out, re.MULTILINE)
    monkeypatch.setattr(disk_full, "run", lambda seed, seconds, count=None: iter([Case("x", seed, "broke")]))
    assert main(["--minutes", "0", "--seed", "7", "--kinds", "disk_full"]) == 1
    assert re.search(r"^x +1 +1  7 \(disk_full\): broke$", capsys.readouterr().out, re.MULTILINE)


def test_a_number_of_cases_instead_of_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--count", "disk_full=3", "clocks=2", "--seed", "3"]) == 0
    assert re.search(r"^all +5 +0$", capsys.readouterr().out, re.MULTILINE)
    with pytest.raises(SystemExit):
        main(["--count", "nothing=3"])


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

    monkeypatch.setattr(files, "write_atomically", write)
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


def test_a_lost_call_a_name_cut_short_and_a_warning_are_noticed(tmp_path: Path) -> None:
    profiler = hotloop.Profiler().start(tmp_path / "run")
    for _ in range(3):
        with profiler.profile("a"):
            pass
    profiler.stop()
    capture = hotloop.load(tmp_path / "run")
    assert kill.problem_of([capture], {"a": 3}, {"a": 3}) is None
    assert kill.problem_of([capture], {"a": 4}, {"a": 2}) is None  # one was open when it was killed
    assert "3 calls of 'a' are recorded; 4 have begun, 4" in (
        kill.problem_of([capture], {"a": 4}, {"a": 4}) or ""
    )
    assert kill.problem_of([capture], {"ab": 3}, {"ab": 3}) is not None
    (tmp_path / "run" / "parts" / "x.part").write_bytes(b"")
    assert "cut short" in (kill.problem_of([hotloop.load(tmp_path / "run")], {"a": 3}, {"a": 3}) or "")


def test_an_exception_that_is_lost_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Swallowing(signals.Program):
        def work(self, turn: int) -> None:
            with contextlib.suppress(BaseException):
                super().work(turn)

    monkeypatch.setattr(signals, "Program", Swallowing)
    found = failures(signals.one_case(seed, tmp_path / str(seed)) for seed in range(40))
    assert "None came out, the handler had raised" in found


def test_what_a_jumping_clock_breaks_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert clocks._negative(Node("", total_ns=5, own_ns=3, children=[Node("a", total_ns=2)])) is None
    assert clocks._negative(Node("", total_ns=5, children=[Node("a", own_ns=-1)])) == "a"
    monkeypatch.setattr(clocks, "by_name", lambda tree: {})
    assert "were made" in (clocks.one_case(1, tmp_path / "run").failure or "")


def test_a_row_that_is_lost_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    take = collectors.disturb_and_take
    monkeypatch.setattr(collectors, "disturb_and_take", lambda *args: np.delete(take(*args), 3))
    assert collectors.one_case(3).failure is not None


def test_a_checkpoint_that_differs_by_one_bit_is_noticed(tmp_path: Path) -> None:
    weights = {"learner.a": np.arange(4.0)}
    runs.save_checkpoint(tmp_path / "agent", weights, {"env_steps": 1}, {})
    whole = runs.load_checkpoint(tmp_path / "agent")
    assert trainers.differs(tmp_path, whole) is None
    other = {"learner.a": np.nextafter(np.arange(4.0), 9)}
    runs.save_checkpoint(tmp_path / "agent", other, {"env_steps": 1}, {})
    assert trainers.differs(tmp_path, whole) == "learner.a differs after the resume"
    runs.save_checkpoint(tmp_path / "agent", weights, {"env_steps": 2}, {})
    assert "env_steps" in (trainers.differs(tmp_path, whole) or "")
