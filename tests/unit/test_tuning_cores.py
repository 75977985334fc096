"""Cores and memory as they are really granted: affinity, quotas, the files that containers show."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.machine.cores import available_cores, core_usage, physical_core
from hotloop.machine.facts import cgroup_cores, cores_granted, memory_bytes
from hotloop.tuning.starting_rules import PRESETS, starting_settings

SAYS_CORES = "from hotloop.machine.facts import cores_granted; print(cores_granted())"
SAYS_RULES = (
    "from hotloop.workflows.doctor import diagnose; "
    "print({one.name: one.value for one in diagnose().settings}['demonstration workers'])"
)


def files(folder: Path, contents: dict[str, str]) -> Path:
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.skipif(shutil.which("taskset") is None, reason="LOUD: taskset is not installed")
@pytest.mark.parametrize("cores", [1, 2])
def test_cores_under_taskset(cores: int) -> None:
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < cores:
        pytest.skip("LOUD: this process may use one core only")
    chosen = ",".join(map(str, mine[:cores]))
    ran = subprocess.run(
        ["taskset", "-c", chosen, sys.executable, "-c", SAYS_CORES], capture_output=True, text=True
    )
    assert ran.stdout.strip() == f"{cores}.0", ran.stderr


def test_the_starting_rules_see_the_affinity() -> None:
    one = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{one}}}); {SAYS_RULES}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout.strip() == "1", ran.stderr


@pytest.mark.parametrize(
    ("contents", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),  # docker run --cpus 1.5, cgroup 2
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "max\n"}, None),
        ({"cpu.max": "100000 50000\n"}, 2.0),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),  # cgroup 1
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n"}, None),  # half of the pair is no limit
        ({"cpu.max": ""}, None),
        ({}, None),
    ],
)
def test_quotas_as_containers_show_them(
    tmp_path: Path, contents: dict[str, str], cores: float | None
) -> None:
    folder = files(tmp_path, contents)
    assert cgroup_cores(folder) == cores
    mine = float(len(os.sched_getaffinity(0)))
    assert cores_granted(folder) == (mine if cores is None else min(mine, cores))


@pytest.mark.parametrize(
    ("contents", "limit"),
    [
        ({"memory.max": "1048576\n"}, 1 << 20),
        ({"memory.max": "max\n"}, None),
        ({"memory/memory.limit_in_bytes": "2097152\n"}, 2 << 20),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),  # what cgroup 1 shows for none
        ({}, None),
    ],
)
def test_memory_as_containers_show_it(tmp_path: Path, contents: dict[str, str], limit: int | None) -> None:
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_bytes(files(tmp_path, contents)) == (installed if limit is None else limit)


def test_threads_of_one_physical_core_are_known_by_the_lowest(tmp_path: Path) -> None:
    files(
        tmp_path,
        {
            "cpu0/topology/thread_siblings_list": "0,4\n",
            "cpu4/topology/thread_siblings_list": "0,4\n",
            "cpu1/topology/thread_siblings_list": "1-2\n",
            "cpu3/topology/thread_siblings_list": "\n",
        },
    )
    assert [physical_core(core, tmp_path) for core in (0, 4, 1, 2, 3, 9)] == [0, 0, 1, 2, 3, 9]


def test_how_busy_cores_are_comes_from_two_looks_at_the_ticks(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu 0 0 0 0 0 0 0 0\ncpu0 10 0 10 80 0 0 0 0\ncpu1 0 0 0 100 0 0 0 0\nintr 1\n")

    def later(seconds: float) -> None:
        assert seconds == 0.25
        stat.write_text("cpu 0 0 0 0 0 0 0 0\ncpu0 40 0 20 120 20 0 0 0\ncpu1 100 0 0 100 0 0 0 0\n")

    assert core_usage((0, 1, 7), 0.25, tmp_path, later) == pytest.approx({0: 0.4, 1: 1.0})
    assert core_usage((0,), 0.0, tmp_path / "none", lambda seconds: None) == {}


def test_the_room_here_is_the_affinity_and_the_quota(tmp_path: Path) -> None:
    files(tmp_path, {"cpu.max": "50000 100000\n"})
    found = available_cores(0.0, proc=tmp_path, cgroup=tmp_path, sleep=lambda seconds: None)
    assert set(found.cores) == os.sched_getaffinity(0) and found.quota == 0.5 and found.busy == {}


# ---- the caps of the rules and the presets beyond them


@pytest.mark.parametrize("cores", [0.25, 1, 1.5, 2, 3, 4, 7, 8, 9, 12, 13, 14, 16, 32, 128])
def test_the_rules_keep_to_their_caps(cores: float) -> None:
    got = {one.name: one.value for one in starting_settings(cores)}
    whole = max(int(cores), 1)
    assert got["demonstration workers"] == max(1, min(whole - 1, 12))
    assert got["loading workers"] == min(whole // 2, 8)
    assert got["envs"] == max(2, min(whole - 1, 8))
    assert got["torch threads"] == 1


def test_presets_have_their_published_values() -> None:
    table = {
        name: (
            p.demonstration_workers,
            p.loading_workers,
            p.n_envs,
            p.batch_size,
            p.n_episodes,
            p.n_epochs,
            p.total_timesteps,
        )
        for name, p in PRESETS.items()
    }
    assert table == {
        "small-ram": (2, 2, 2, None, None, None, None),
        "many-cores": (12, 8, 12, None, None, None, None),
        "gpu": (None, 8, 12, 512, None, None, None),
        "quick": (4, 2, 4, None, 50, 20, 100_000),
    }
    cap = {one.name: int(one.value) for one in starting_settings(128) if isinstance(one.value, int)}["envs"]
    assert (PRESETS["many-cores"].n_envs or 0) > cap  # a preset may go beyond
