"""Checkpoints: damage is noticed, a full disk does not end a training, nothing is left behind."""

from __future__ import annotations

import errno
import json
import os
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from hotloop._util.errors import HotloopError
from hotloop.rl.train import bc, dqn, ppo, runs, sac
from hotloop.rl.train.runs import CheckpointError, load_checkpoint, save_checkpoint
from tests.cli import hotloop
from tests.old_files import written_by_0_1

SMALL = ppo.PPOConfig(
    n_envs=4, n_steps=16, total_timesteps=320, batch_size=32, net_arch=(8,), learner="torch", quiet=True
)
STATE = {"env_steps": 5, "returns": [1.0], "rng": np.random.default_rng(0).bit_generator.state}
ARRAYS = {"learner.a": np.arange(40.0).reshape(8, 5), "done": np.zeros(3, bool), "empty": np.zeros((0, 2))}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "agent", ARRAYS, STATE, {"gamma": 0.9})
    return tmp_path / "agent"


def test_what_was_saved_comes_back(checkpoint: Path) -> None:
    found = load_checkpoint(checkpoint)
    assert found.state == STATE and found.config == {"gamma": 0.9}
    assert found.arrays.keys() == ARRAYS.keys()
    assert all((found.arrays[name] == array).all() for name, array in ARRAYS.items())


def test_every_flipped_bit_and_every_cut_is_noticed(checkpoint: Path) -> None:
    whole, random_ = checkpoint.read_bytes(), random.Random(0)
    for _ in range(300):
        data = bytearray(whole)
        data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
        checkpoint.write_bytes(data)
        with pytest.raises(CheckpointError) as raised:
            load_checkpoint(checkpoint)
        assert str(checkpoint) in str(raised.value) and "\n" not in str(raised.value)
    for length in range(0, len(whole), 97):
        checkpoint.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            load_checkpoint(checkpoint)


def written(file: Path, version: str, state: Any, config: Any = None) -> Path:
    """A checkpoint of a version without a checksum."""
    header = {"format_version": version, "state": json.dumps(state), "config": json.dumps(config or {})}
    file.write_bytes(save({"a": np.arange(3)}, metadata=header))
    return file


def test_versions_without_a_checksum_still_load(tmp_path: Path) -> None:
    assert load_checkpoint(written(tmp_path / "2", "2", {"env_steps": 7})).state == {"env_steps": 7}
    assert load_checkpoint(written_by_0_1("ppo.safetensors", tmp_path)).state["env_steps"] > 0
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        load_checkpoint(written(tmp_path / "3", "3", {}))  # this version always has one


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ([], "state is [], not an object"),
        ({"env_steps": "many"}, "state.env_steps is 'many', not a whole number"),
        ({"returns": [None]}, "state.returns[0] is None, not a number"),
        ({"rng": 3}, "state.rng is 3, not an object"),
    ],
)
def test_a_state_of_a_wrong_type_is_one_sentence(tmp_path: Path, state: Any, says: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        load_checkpoint(written(tmp_path / "agent", "2", state))
    assert says in str(raised.value)


@pytest.mark.parametrize("damage", ["state", "shape", "missing", "rng"])
def test_what_does_not_fit_the_run_is_one_sentence(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "agent"
    config = replace(SMALL, checkpoint=path, total_timesteps=64)
    ppo.train(config)
    saved = load_checkpoint(path)
    arrays, state = dict(saved.arrays), dict(saved.state)
    if damage == "state":
        del state["iterations"]
    elif damage == "rng":
        state["rng"] = {"bit_generator": "none"}
    else:
        name = next(name for name in arrays if name.startswith("learner.weights"))
        arrays[name] = arrays[name][:1] if damage == "shape" else arrays.pop(name)
        if damage == "missing":
            del arrays[name]
    save_checkpoint(path, arrays, state, saved.config)
    with pytest.raises(CheckpointError, match="does not fit this run"):
        ppo.train(replace(config, resume=True, total_timesteps=128))


def test_a_giant_header_and_what_is_no_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent"
    header = b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}'
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, len(header) + 8 + (4 << 40))
    with pytest.raises(CheckpointError, match=r"has 4\.00 TiB"):
        load_checkpoint(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match="is a FIFO"):
        load_checkpoint(path)


# -- a full disk -----------------------------------------------------------------------------------


class FullDisk:
    """Fails some of the attempts to write a checkpoint, as a full disk does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: Any, error: int = errno.ENOSPC):
        self.attempts, self._fails, self._error, self._fsync = 0, fails, error, os.fsync
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, descriptor: int) -> None:
        self.attempts += 1
        if self._fails(self.attempts):
            raise OSError(self._error, os.strerror(self._error))
        self._fsync(descriptor)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_training_goes_on_and_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: int
) -> None:
    disk = FullDisk(monkeypatch, lambda attempt: attempt in (2, 3), error)
    path = tmp_path / "agent"
    config = replace(SMALL, checkpoint=path, checkpoint_every_steps=64)
    kept: list[int] = []

    def look(steps: int, _: Any) -> None:
        kept.append(load_checkpoint(path).state["env_steps"] if path.exists() else 0)

    result = ppo.train(config, after_update=look)
    assert disk.attempts == 6 and result.env_steps == 320 and result.unsaved is None
    assert kept == [0, 64, 64, 64, 256], "the last good one was kept"
    assert load_checkpoint(path).state["env_steps"] == 320
    err = capfd.readouterr().err
    assert (
        err.count(f"could not be written ({os.strerror(error)}); the one before is kept; training goes on")
        == 2
    )
    assert [file.name for file in tmp_path.iterdir()] == ["agent"]


def test_a_disk_that_stays_full_is_named_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FullDisk(monkeypatch, lambda attempt: True)
    path = tmp_path / "agent"
    result = ppo.train(replace(SMALL, checkpoint=path))
    assert result.env_steps == 320
    assert result.unsaved == (
        f"the checkpoint {path} could not be written (No space left on device); there is none yet"
    )
    words = [
        "train",
        "petri",
        "--total-timesteps",
        "64",
        "--n-envs",
        "2",
        "--n-steps",
        "16",
        "--no-profiling",
    ]
    words += ["--batch-size", "16", "--n-epochs", "1", "--learner", "torch", "--checkpoint", str(path)]
    done = hotloop(*words)
    assert done.returncode == 1 and "the last weights are lost" in done.stderr
    assert "is saved in" not in done.stdout
    done = hotloop(*words, "--json")
    assert done.returncode == 1 and "could not be written" in json.loads(done.stdout)["outcome"]["unsaved"]


# -- where a checkpoint goes -----------------------------------------------------------------------


@pytest.mark.parametrize("module", [ppo.PPOConfig, dqn.DQNConfig, sac.SACConfig, bc.BCConfig])
def test_a_checkpoint_that_cannot_be_written_is_refused_before_training(module: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place, says in (
        (tmp_path / "file" / "agent", "file is not a folder"),
        (tmp_path / "file" / "deeper" / "agent", "file is not a folder"),
        (tmp_path, "is a folder; name a file in it"),
    ):
        with pytest.raises(HotloopError, match=says):
            runs.check_checkpoint(module(checkpoint=place))
    runs.check_checkpoint(module(checkpoint=tmp_path / "new" / "agent"))


@pytest.mark.parametrize("workload", ["petri", "snake", "mario", "ricochet"])
def test_the_command_line_refuses_it_in_one_sentence(workload: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = hotloop("train", workload, "--checkpoint", tmp_path / "file" / "y.pt", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("hotloop: checkpoint=") and "not a folder" in done.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "file"], "and nothing was recorded"
