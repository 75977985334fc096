"""Demonstrations: files, workers that die, full disks, memory per worker."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotloop._util.errors import HotloopError
from hotloop.machine.process_memory import process_memory
from hotloop.rl.buffers.demonstrations import DemonstrationError, Demonstrations, DemonstrationStore, Episode
from hotloop.rl.collect.experts import (
    CollectionResult,
    DiskFull,
    DrivenEpisode,
    Driver,
    collect,
    track_schema,
)
from hotloop.rl.envs.track.expert import expert_actions
from hotloop.rl.workloads.stage_report import StageBar, StageReport, report_lines, split, table
from tests.edited import edit_json

SHORT = {"max_episode_steps": 40}  # laps take 1,900 steps


def store_in(folder: Path, resume: bool = False, **settings: Any) -> DemonstrationStore:
    store = DemonstrationStore(folder)
    store.begin(track_schema(3, settings or SHORT), resume=resume)
    return store


def collected(
    store: DemonstrationStore, episodes: list[int], workers: int = 1, **more: Any
) -> CollectionResult:
    return collect(store, episodes, workers=workers, seed=3, settings=SHORT, **more)


def contents(store: DemonstrationStore) -> dict[int, Episode]:
    return {number: store.read(number) for number in store.numbers()}


def same(a: Episode, b: Episode) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in Episode.__slots__)


def driven_here(folder: Path, episodes: range) -> dict[int, Episode]:
    """The same episodes without any worker: what the pool is held to."""
    driver = Driver(store_in(folder), 3, SHORT)
    for number in episodes:
        driver.drive(number)
    return contents(driver.store)


def test_an_episode_is_what_the_expert_drove(tmp_path: Path) -> None:
    driver = Driver(store_in(tmp_path), 3, {})
    told = driver.drive(5)
    episode = driver.store.read(5)
    assert len(episode) == told.steps and told.lap_fraction >= 1.0
    assert episode.observations.shape == (told.steps + 1, 8) and episode.actions.shape == (told.steps, 2)
    assert np.array_equal(expert_actions(episode.observations[:-1]), episode.actions)
    assert episode.truncations[-1] and not episode.truncations[:-1].any() and not episode.terminations.any()
    assert episode.rewards.sum() == pytest.approx(told.total_reward)
    driver.env.reset(seed=[3 + 5])
    for action, reward, after in zip(episode.actions, episode.rewards, episode.observations[1:], strict=True):
        seen, rewards, *_ = driver.env.step(action[None])
        assert rewards[0] == reward and (seen[0] == after).all()


def test_files_are_open_and_nothing_is_pickled(tmp_path: Path) -> None:
    store = DemonstrationStore(tmp_path)
    store.begin(track_schema(3, SHORT), resume=False)
    Driver(store, 3, SHORT).drive(0)
    told = json.loads((tmp_path / "schema.json").read_text())
    assert told["env"] == "hotloop/Track-v0" and told["seed"] == 3 and told["env_settings"] == SHORT
    with zipfile.ZipFile(store.file(0)) as file:
        assert {name.removesuffix(".npy") for name in file.namelist()} == set(told["arrays"])
        for name in file.namelist():
            read = np.lib.format.read_array(io.BytesIO(file.read(name)), allow_pickle=False)
            assert str(read.dtype) == told["arrays"][name.removesuffix(".npy")]["dtype"]


def test_the_pool_drives_the_same_episodes_whatever_the_number_of_workers(tmp_path: Path) -> None:
    expected = driven_here(tmp_path / "here", range(5))
    store = store_in(tmp_path / "pool")
    told: list[DrivenEpisode] = []
    done = collected(store, list(range(5)), workers=2, on_episode=told.append)
    assert sorted(one.episode for one in told) == list(range(5)) == store.numbers()
    assert done.deaths == 0 and not done.stopped and done.seconds > 0 and done.start_up_s > 0
    assert all(one.simulation_s > 0 and one.aggregation_s > 0 and one.disk_s > 0 for one in told)
    for number, episode in contents(store).items():
        assert same(episode, expected[number]), number
    memory = told[0].memory
    assert memory is not None and memory.resident_bytes >= memory.private_bytes > 1 << 20


def test_a_worker_that_dies_loses_only_its_episode_which_is_driven_again(tmp_path: Path) -> None:
    expected = driven_here(tmp_path / "here", range(6))
    killed: list[Any] = []
    store = store_in(tmp_path / "pool")

    def kill_one(_: DrivenEpisode) -> None:
        if not killed:
            victim = multiprocessing.active_children()[0]
            os.kill(victim.pid or 0, 9)
            killed.append(victim.pid)

    done = collected(store, list(range(6)), workers=1, on_episode=kill_one)
    assert done.deaths == 1 and len(done.episodes) == 6
    for number, episode in contents(store).items():
        assert same(episode, expected[number]), number
    assert not [file for file in store.folder.iterdir() if file.name.startswith(".")]


def test_an_episode_that_kills_every_worker_ends_the_collection(tmp_path: Path) -> None:
    store = store_in(tmp_path)

    def stop() -> bool:
        for victim in multiprocessing.active_children():
            os.kill(victim.pid or 0, 9)
        return False

    with pytest.raises(HotloopError, match=r"killed its worker 3 times \(last exit code -9\)"):
        collected(store, [0], stop=stop)


@pytest.mark.long  # campaign/disk_full.py has the writes
def test_a_full_disk_keeps_written_episodes_and_the_rest_can_be_resumed(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    collected(store, [0, 1])
    before = contents(store)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # as a full disk does, this stops every write
    try:
        with pytest.raises(DiskFull, match=r"The disk is full: episode 2.*2 episodes are kept"):
            collected(store, [2, 3])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.numbers() == [0, 1] and all(same(contents(store)[n], before[n]) for n in before)
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]
    kept = store.begin(track_schema(3, SHORT), resume=True)
    collected(store, [n for n in range(4) if n not in kept])
    assert store.numbers() == [0, 1, 2, 3]


def test_resuming_keeps_whole_episodes_only_and_only_of_the_same_task(tmp_path: Path) -> None:
    driver = Driver(store_in(tmp_path), 3, SHORT)
    for number in range(3):
        driver.drive(number)
    file = driver.store.file(1)
    file.write_bytes(file.read_bytes()[:-200])
    assert driver.store.begin(track_schema(3, SHORT), resume=True) == [0, 2]
    with pytest.raises(DemonstrationError, match="other settings \\(env_settings, seed differ\\)"):
        driver.store.begin(track_schema(4, {}), resume=True)
    with pytest.raises(DemonstrationError, match=r"episode-000001\.npz is truncated or damaged"):
        driver.store.load()
    assert driver.store.begin(track_schema(4, {}), resume=False) == [] and driver.store.numbers() == []


def test_files_that_do_not_match_the_schema_are_refused(tmp_path: Path) -> None:
    store = DemonstrationStore(tmp_path)
    with pytest.raises(DemonstrationError, match="There are no demonstrations in"):
        store.load()
    store = store_in(tmp_path)
    with pytest.raises(DemonstrationError, match="There is no episode in"):
        store.load()
    step = np.zeros(4, dtype=np.bool_)
    seen, actions = np.zeros((5, 7), dtype=np.float32), np.zeros((4, 2), dtype=np.float32)
    store.write(0, Episode(seen, actions, np.zeros(4), step, step))
    with pytest.raises(DemonstrationError, match=r"observations is float32 \[5, 7\], not float32 \[5, 8\]"):
        store.load()
    hostile = track_schema(3, SHORT)
    hostile["arrays"]["observations"]["dtype"] = "\x1b[2J\nowned"
    (tmp_path / "schema.json").write_text(json.dumps(hostile))
    with pytest.raises(DemonstrationError) as refused:
        store.load()
    assert str(refused.value).isprintable()
    (tmp_path / "schema.json").write_text('{"format": "other"}')
    with pytest.raises(DemonstrationError, match="has format 'other', version None"):
        store.load()


def made_up(count: int) -> Demonstrations:
    step = np.zeros(2, dtype=np.bool_)

    def episode(n: int) -> Episode:
        actions = np.full((2, 2), n, dtype=np.float32)
        return Episode(np.full((3, 8), n, dtype=np.float32), actions, np.zeros(2), step, step)

    return Demonstrations(tuple(episode(n) for n in range(count)), tuple(range(count)))


def test_the_split_is_by_episode() -> None:
    learn, held_out = made_up(20).split(0.1, seed=0)
    assert len(held_out.numbers) == 2 and sorted(learn.numbers + held_out.numbers) == list(range(20))
    assert set(np.unique(learn.samples().actions)) == set(learn.numbers)
    assert made_up(20).split(0.1, seed=0)[1].numbers == held_out.numbers
    assert len(made_up(2).split(0.01, seed=0)[1].numbers) == 1
    with pytest.raises(DemonstrationError, match="1 episode cannot be split"):
        made_up(1).split(0.1, seed=0)


def test_memory_of_a_process_that_ended_is_none() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert process_memory(ended.pid) is None
    own = process_memory()
    assert own is not None and own.resident_bytes >= own.private_bytes > 0


def test_the_bar_of_a_stage() -> None:
    now, stream = [0.0], io.StringIO()
    bar = StageBar("demos", 10, "episodes", done=2, stream=stream, clock=lambda: now[0])
    bar.update(3)
    assert stream.getvalue() == ""  # not yet time
    now[0] = 10.0
    bar.update(6, "loss 1")
    now[0] = 20.0
    bar.update(10)
    bar.close()
    assert stream.getvalue().splitlines() == [
        "demos [##############..........] 6 / 10 episodes  0.4/s  13.3 s left  loss 1",
        "demos [########################] 10 / 10 episodes  0.4/s",
        "demos [########################] 10 / 10 episodes  0.4/s  in 20.0 s",
    ]


def test_warm_up_does_not_count_as_time_left() -> None:
    now, stream = [0.0], io.StringIO()
    bar = StageBar("rl", 1_000, "steps", stream=stream, clock=lambda: now[0])
    for now[0], done in ((100.0, 2), (111.0, 112)):
        bar.update(done)
    assert stream.getvalue().splitlines() == [
        "rl    [........................] 2 / 1,000 steps  0.0/s",
        "rl    [##......................] 112 / 1,000 steps  1.0/s  88.8 s left",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_the_bar_fits_on_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    now, stream = [0.0], Terminal()
    bar = StageBar("bc", 20, "epochs", stream=stream, clock=lambda: now[0], note=lambda: "learning 45 %")
    for now[0], done in ((1.0, 2), (2.0, 10)):
        bar.update(done, "loss 1.23e-04, held out 1.24e-04")
    bar.close()
    drawn = [line.strip("\r\n") for line in stream.getvalue().split("\033[K") if line.strip()]
    assert len(drawn) == 3 and all(len(line) < columns for line in drawn)
    if columns > 40:
        assert all("held out 1.24e-04" in line for line in drawn)
        assert ("[############............]" in drawn[1]) == (columns == 120)


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_closed_pipe_does_not_end_a_stage() -> None:
    bar = StageBar("rl", 10, "steps", stream=Broken())
    bar.close()


def test_the_split_adds_up_and_is_listed_largest_first() -> None:
    parts = split({"disk": 1.0, "simulation": 6.0}, 8.0)
    assert parts == {"disk": 1.0, "simulation": 6.0, "other": 1.0}
    report = StageReport("demos", "2 episodes", 4.0, parts, 8.0, "time of 2 workers", ("said",), 90.0)
    assert report_lines(report) == [
        "demos: 2 episodes",
        "  time of 2 workers: simulation 75.0 %, disk 12.5 %, other 12.5 %",
        "  said",
    ]
    assert table(("way", "rate"), [("a", 5), ("long", 1234)]) == ["way   rate", "a        5", "long  1234"]


# ---- files of another kind, and what they say of themselves


def written(folder: Path) -> DemonstrationStore:
    """One episode of five steps."""
    store, no = store_in(folder), np.zeros(5, dtype=np.bool_)
    seen, done = np.ones((6, 8), dtype=np.float32), np.ones((5, 2), dtype=np.float32)
    store.write(0, Episode(seen, done, np.ones(5), no, no))
    return store


def rewritten(file: Path, name: str, header: str) -> None:
    """The same file with another header of one array; the CRC of the archive fits."""
    with zipfile.ZipFile(file) as archive:
        members = {one: archive.read(one) for one in archive.namelist()}
    data = members[f"{name}.npy"]
    begin, end = data.index(b"{"), data.index(b"\n")
    members[f"{name}.npy"] = data[:begin] + header.encode().ljust(end - begin) + data[end:]
    with zipfile.ZipFile(file, "w") as archive:
        for one, content in members.items():
            archive.writestr(one, content)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (), }",
        "{'descr': 'nonsense', 'fortran_order': False, 'shape': (1,), }",
        "__import__('os')",
    ],
)
def test_a_header_that_lies_is_one_sentence(tmp_path: Path, header: str) -> None:
    store = written(tmp_path)
    rewritten(store.file(0), "actions", header)
    with pytest.raises(DemonstrationError, match="is truncated or damaged"):
        store.load()


def test_every_flipped_bit_of_an_array_is_noticed(tmp_path: Path) -> None:
    store = written(tmp_path)
    whole = store.file(0).read_bytes()
    at = whole.index(b"\x93NUMPY")
    for bit in range(0, 8 * 320, 37):
        data = bytearray(whole)
        data[at + bit // 8] ^= 1 << bit % 8
        store.file(0).write_bytes(data)
        with pytest.raises(DemonstrationError):
            store.read(0)


def test_resuming_without_the_schema_deletes_nothing(tmp_path: Path) -> None:
    store = written(tmp_path)
    (tmp_path / "schema.json").unlink()
    with pytest.raises(DemonstrationError, match=r"schema\.json cannot be read"):
        store.begin(track_schema(3, SHORT), resume=True)
    assert store.numbers() == [0]


def test_a_schema_of_a_wrong_type_and_files_that_are_none(tmp_path: Path) -> None:
    store = written(tmp_path)
    edit_json(tmp_path / "schema.json", {"arrays": {"actions": {"dtype": 3, "shape": ["steps"]}}})
    with pytest.raises(DemonstrationError, match=r"schema\.json\.arrays\.actions\.dtype is 3, not text"):
        store.load()
    store = written(tmp_path)
    store.file(0).unlink()
    os.mkfifo(store.file(0))
    with pytest.raises(DemonstrationError, match="is a FIFO"):
        store.load()
    (tmp_path / "file").write_text("x")
    with pytest.raises(DemonstrationError, match="cannot be written"):
        DemonstrationStore(tmp_path / "file").begin({}, resume=False)
