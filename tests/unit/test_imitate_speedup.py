"""The speed-up tables of `hotloop train imitate --speedup`: equal work, and lines that fit a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotloop._util.errors import HotloopError
from hotloop.machine.process_memory import ProcessMemory
from hotloop.rl.buffers.demonstrations import Samples
from hotloop.rl.train import bc, sac
from hotloop.rl.workloads.imitate import Imitate, check
from hotloop.rl.workloads.imitate_speedup import (
    FIRST_STEPS,
    SAMPLES,
    STEPS,
    Measured,
    against_sequential,
    demonstration_variants,
    env_variants,
    loading_variants,
    speedup_lines,
)
from hotloop.rl.workloads.stage_report import StageReport

INDENT = 2  # of a remark, where the outcome is printed


def test_any_number_of_envs_makes_the_same_steps_and_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    real = sac.train

    def noted(*given: Any, **more: Any) -> Any:
        done = real(*given, **more)
        seen.append((done.env_steps, done.updates))
        return done

    monkeypatch.setattr(sac, "train", noted)
    config = Imitate(net_arch=(8, 8), batch_size=16)
    for once in env_variants(config, (1, 2, 8), first_steps=FIRST_STEPS).values():
        assert once()[0] > 0
    assert seen == [(STEPS, STEPS - FIRST_STEPS)] * 3


def test_any_way_of_loading_sees_the_same_samples_and_makes_the_same_updates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[int, int, float]] = []
    real = bc.train

    def noted(*given: Any, **more: Any) -> Any:
        done = real(*given, **more)
        seen.append((done.samples, done.updates, done.held_out_loss))
        return done

    monkeypatch.setattr(bc, "train", noted)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (3000, 2)).astype(np.float32)
    data = Samples(rng.normal(size=(3000, 8)).astype(np.float32), actions)
    variants = loading_variants(Imitate(net_arch=(8, 8)), data, workers=(0,))
    assert list(variants) == ["DataLoader, 0 workers", "index batches, torch", "index batches, fused"]
    for once in variants.values():
        assert once()[0] > 0
    assert {one[:2] for one in seen} == {(2 * 3000, 2 * -(-3000 // 256))} and len(data) < SAMPLES
    assert [one[2] for one in seen[1:]] == pytest.approx([seen[0][2]] * 2, rel=1e-3)  # the same learning


def test_demonstrations_are_tried_with_as_many_workers_as_there_are_cores_or_wishes(tmp_path: Path) -> None:
    assert "3 workers" in demonstration_variants(Imitate(workers=3), tmp_path)


def test_tables_fit_into_80_columns() -> None:
    memory = ProcessMemory(300 << 20, 75 << 20)
    found = [
        Measured("bc", "DataLoader, 0 workers", 74_000.0, 1.0, None),
        Measured("bc", "DataLoader, 2 workers", 90_000.0, 1.2, memory),
    ]
    lines = speedup_lines(found, "the same samples in the same order", "samples/s")
    assert lines[0].split() == ["speed-up", "of", "bc", "samples/s", "speed-up", "memory", "per", "worker"]
    assert "1.20x" in lines[2] and "75.0 MiB" in lines[2]
    said = " ".join(line.strip() for line in lines[3:])
    assert said.startswith("(against DataLoader, 0 workers; the same samples") and said.endswith("excluded)")
    reports = [_report("demos", 1000.0, 5.0), _report("rl", 1000.0, 50.0, evaluation=20.0)]
    lines += against_sequential(reports, {"demos": 100.0, "rl": 25.0})
    assert max(map(len, lines)) <= 80 - INDENT


def _report(stage: str, work: float, seconds: float, **parts_s: float) -> StageReport:
    return StageReport(stage, "", seconds, dict(parts_s), seconds, "time", (), work)


def test_time_that_no_variant_changes_is_in_both_times() -> None:
    lines = against_sequential([_report("rl", 1000.0, 50.0, evaluation=20.0)], {"rl": 25.0})
    assert lines[1].split() == ["rl", "60.0", "s", "50.0", "s", "1.20x", "-"]  # 1000 / 25 and 20
    assert "saved 10.0 s" in " ".join(lines)
    slower = against_sequential([_report("rl", 1000.0, 80.0)], {"rl": 25.0})
    assert "0.50x" in slower[1] and "lost 40.0 s" in " ".join(slower)
    assert against_sequential([_report("rl", 0.0, 0.0)], {"rl": 25.0}) == []


def test_the_speed_up_of_another_trainer_is_not_ours_to_tell() -> None:
    with pytest.raises(HotloopError, match="--speedup measures our own trainers"):
        check(Imitate(speedup=True, trainer="sb3"))
    check(Imitate(speedup=True, trainer="sb3", stage="demos"))
