"""`hotloop doctor`: with faked files, with real affinity, and its self-check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop import Profiler
from hotloop.cli.main import main
from hotloop.machine.facts import cores_granted
from hotloop.machine.health import Health, accelerators, health, memory_available_bytes, noise_fraction
from hotloop.tuning.machine_warnings import machine_warnings
from hotloop.tuning.starting_rules import GIB, PRESETS, starting_settings, tier, whole_cores
from hotloop.workflows import selfcheck as selfcheck_module
from hotloop.workflows.selfcheck import selfcheck

GOOD = Health(
    cpu="a processor",
    cores_granted=8.0,
    cores_present=8,
    memory_bytes=32 * GIB,
    memory_available_bytes=24 * GIB,
    shared_memory_bytes=8 * GIB,
    accelerators=(),
    thread_variables={"OMP_NUM_THREADS": "1"},
    governor="performance",
    load_1min=0.2,
    noise_fraction=0.01,
)


def values(cores: float) -> dict[str, int | str]:
    return {one.name: one.value for one in starting_settings(cores)}


@pytest.mark.parametrize(
    ("cores", "demonstrations", "loading", "envs"),
    [
        (0.5, 1, 0, 2),
        (1, 1, 0, 2),
        (2, 1, 1, 2),
        (2.5, 1, 1, 2),
        (4, 3, 2, 3),
        (16, 12, 8, 8),
        (64, 12, 8, 8),
    ],
)
def test_starting_rules_and_their_caps(cores: float, demonstrations: int, loading: int, envs: int) -> None:
    got = values(cores)
    assert (got["demonstration workers"], got["loading workers"], got["envs"]) == (
        demonstrations,
        loading,
        envs,
    )


def test_cores_are_those_of_the_affinity() -> None:
    one = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{one}}})\nfrom hotloop.machine.facts import cores_granted\n"
    ran = subprocess.run(
        [sys.executable, "-c", code + "print(cores_granted())"], capture_output=True, text=True
    )
    assert ran.stdout.strip() == "1.0"


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "25000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.25),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_cores_are_cut_by_the_quota_of_either_kind_of_cgroup(
    tmp_path: Path, files: dict[str, str], cores: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cores_granted(tmp_path) == (len(os.sched_getaffinity(0)) if cores is None else cores)


def test_free_memory_is_cut_by_what_the_cgroup_has_left(tmp_path: Path) -> None:
    free = memory_available_bytes(tmp_path)
    assert free > 0
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert memory_available_bytes(tmp_path) == 2_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_available_bytes(tmp_path) > 2_000_000


def test_accelerators_are_seen_by_their_device_files(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "null"):
        (tmp_path / name).touch()
    assert accelerators(tmp_path) == ("nvidia0", "nvidia1")


def test_noise_is_the_slow_tail_over_the_middle() -> None:
    def ticks() -> Iterator[int]:
        now, call = 0, 0
        while True:
            yield now
            call += 1
            if call % 2:  # inside a piece of work: 3 ms, every tenth one 6 ms
                now += 6_000_000 if call % 20 == 1 else 3_000_000

    clock = ticks()
    assert noise_fraction(lambda: next(clock)) == pytest.approx(1.0)


def test_a_good_machine_has_no_complaints() -> None:
    assert machine_warnings(GOOD) == ()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"shared_memory_bytes": 64 << 20}, "--shm-size"),
        ({"shared_memory_bytes": None}, "no /dev/shm"),
        ({"memory_available_bytes": 1 << 30}, "small-ram"),
        ({"cores_granted": 2.0}, "OMP_NUM_THREADS=2"),
        ({"thread_variables": {}}, "OMP_NUM_THREADS=1"),
        ({"governor": "powersave"}, "cpupower"),
        ({"load_1min": 7.0}, "hotloop compare"),
        ({"noise_fraction": 0.4}, "40.0 %"),
    ],
)
def test_each_fault_is_named_with_its_remedy(change: dict[str, Any], word: str) -> None:
    found = machine_warnings(replace(GOOD, **change))
    assert len(found) == 1 and word in f"{found[0].problem} {found[0].remedy}"


def test_tiers_and_presets() -> None:
    assert tier(2, 8 * GIB, 0)[0] == "minimum"
    assert tier(4, 16 * GIB, 0)[0] == "recommended"
    assert tier(16, 64 * GIB, 0)[0] == "recommended"
    assert tier(16, 64 * GIB, 1)[0] == "optimal"
    assert whole_cores(0.3) == 1
    quick = PRESETS["quick"]
    assert (quick.n_episodes, quick.demonstration_workers, quick.n_epochs, quick.total_timesteps) == (
        50,
        4,
        20,
        100_000,
    )


def test_the_machine_here_is_looked_at() -> None:
    seen = health()
    assert seen.cores_granted >= 1 and seen.noise_fraction >= 0
    assert seen.memory_bytes is None or (seen.memory_available_bytes or 0) <= seen.memory_bytes


def test_doctor_prints_within_80_columns_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "cores" in text and "next: " in text and max(map(len, text.splitlines())) <= 80
    assert main(["doctor", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["kind"] == "hotloop-doctor" and data["schema_version"] == 2
    assert data["health"]["cores_granted"] >= 1


def test_the_selfcheck_passes_here() -> None:
    assert [check.what for check in selfcheck() if not check.passed] == []


def test_the_selfcheck_notices_lost_calls(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = selfcheck_module._work

    def lossy(profiler: Profiler) -> None:
        real(profiler)
        with profiler.profile("env_step"):
            pass

    monkeypatch.setattr(selfcheck_module, "_work", lossy)
    assert main(["doctor", "--selfcheck"]) == 1
    out = capsys.readouterr().out
    assert "FAILED  calls and steps" in out and "gives wrong figures" in out
