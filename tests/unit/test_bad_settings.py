"""`hotloop train` refuses a bad setting in one sentence, before it predicts, compiles or writes anything."""

from __future__ import annotations

import dataclasses
import importlib
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotloop._util.errors import HotloopError
from hotloop.cli.main import main
from hotloop.rl.train import runs
from hotloop.workflows.train import WORKLOADS, check_config, config_class


def kinds(annotation: Any) -> tuple[Any, ...]:
    """The types of a setting, those of `X | None` apart."""
    return typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)


def settings_of(kind: type) -> Iterator[tuple[str, str, Any]]:
    """(workload, setting, its default) of every setting that takes this kind of number."""
    for workload in WORKLOADS:
        module = importlib.import_module(f"hotloop.rl.workloads.{workload}")
        config = getattr(module, WORKLOADS[workload])
        hints = typing.get_type_hints(config)
        for field in dataclasses.fields(config):
            if kind in kinds(hints[field.name]):
                yield workload, field.name, field.default


NUMBERS = [(*found[:2], value) for found in settings_of(float) for value in (float("nan"), float("inf"))]
NUMBERS += [(*found[:2], -7) for kind in (int, float) for found in settings_of(kind)]


@pytest.mark.parametrize(("workload", "name", "value"), NUMBERS)
def test_no_workload_takes_numbers_that_mean_nothing(workload: str, name: str, value: float) -> None:
    config = dataclasses.replace(config_class(workload)(), **{name: value})
    with pytest.raises(HotloopError):
        check_config(workload, config)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("snake --batch-size 0", "batch_size=0 must be at least 1."),
        ("snake --logging on --log {here}", "log={here} is a folder; name a file in it."),
        ("petri --compare --capture x", "--capture is for a training run alone and does nothing here; leave "
         "it out, or name the folder of all runs with --series."),
        ("petri --breakdown --enable-profiling", "--enable-profiling is for a training run alone and does "
         "nothing here; leave it out."),
        ("petri --detailed --profiling-summary-freq 5", "--profiling-summary-freq is for a training run "
         "alone and does nothing here; leave it out."),
        ("mario --benchmark --profiling-report x", "--profiling-report is for a training run alone and does "
         "nothing here; leave it out."),
        ("snake --size 3", "size=3 is not a valid board size; use a whole number from 4 to 64."),
        ("snake --seed -1", f"seed=-1 must be a whole number from 0 to {runs.LARGEST_SEED:,}."),
        ("petri --gamma 7", "gamma=7.0 must be between 0 and 1."),
        ("petri --trainer torchrl --gamma 7", "gamma=7.0 must be between 0 and 1."),
        ("petri --ent-coef inf", "ent_coef=inf must be at least 0 and finite."),
        ("petri --wafers 5000", "wafers=5000 is out of range; use a whole number from 1 to 1000."),
        ("ricochet --batch-size 0", "batch_size=0 must be at least 1."),
        ("ricochet --gae-lambda 2", "gae_lambda=2.0 must be between 0 and 1."),
        (
            "ricochet --robots 6",
            "robots=6 is out of range; use a whole number from 1 to 5 (there are five colours).",
        ),
        (
            "ricochet --trainer sb3 --checkpoint a",
            "checkpoint=a needs trainer='hotloop'; leave it out with sb3.",
        ),
        ("mario --skip 0", "skip=0 is out of range; use a whole number from 1 to 1000."),
        ("imitate --seed -1", f"seed=-1 must be a whole number from 0 to {runs.LARGEST_SEED:,}."),
        (
            "imitate --stage rl",
            "There is no clone imitate/clone to start from; run --stage bc first, or use --start scratch.",
        ),
        ("imitate --folder file", "folder=file cannot be written: {here}/file is not a folder; "
         "name another folder."),
        ("snake --tensorboard-log file", "tensorboard_log=file cannot be written: {here}/file is not a "
         "folder; name another folder."),
        (
            "petri --checkpoint file",
            "checkpoint=file exists and is no checkpoint of an agent; name another file, or move it.",
        ),
        ("mario --pairs 3", "--pairs is for --benchmark; leave it out, or add --benchmark."),
        ("petri --compare --resume", "--compare --resume continues a series; name its folder with --series "
         "DIR."),
        ("mario --benchmark --resume", "--benchmark --resume continues a series; name its folder with "
         "--series DIR."),
        ("petri --breakdown --budget 5m", "--budget is for --compare; leave it out, or add --compare."),
    ],
)  # fmt: skip
def test_a_bad_setting_is_one_sentence_and_nothing_else(
    words: str,
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("notes")
    assert main(["train", *words.replace("{here}", str(tmp_path)).split()]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"hotloop: {sentence.replace('{here}', str(tmp_path))}\n"
    assert (tmp_path / "file").read_text() == "notes"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("workload", ["snake", "petri", "ricochet", "mario"])
def test_a_checkpoint_of_another_run_is_refused_before_anything_is_predicted(
    workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "agent"
    runs.save_checkpoint(path, {"learner.x": np.zeros(1)}, {"env_steps": 1}, {"env": "Other-v0"})
    before = path.read_bytes()
    assert main(["train", workload, "--checkpoint", str(path), "--resume"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"hotloop: {path} belongs to a run with other settings (")
    assert printed.err.count("\n") == 1
    assert path.read_bytes() == before


def test_a_batch_size_for_a_huge_rollout_is_suggested_at_once() -> None:
    with pytest.raises(HotloopError, match="use 250, 256 or 320, or change"):
        runs.check_batch_size(255, 10**12)
