"""TensorBoard's own SummaryWriter and a real wandb run, recorded; our scalars read back from their files."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.library_runs import needs, plain, record

pytestmark = needs("tensorboard", "torch")

WRITES = """
import time
import torch
from torch.utils.tensorboard import SummaryWriter

writer = SummaryWriter("logs")
for step in range(5):
    writer.add_scalar("loss", 1.0 / (1 + step), step)
writer.add_histogram("weights", torch.arange(10.0), 5)
writer.add_text("note", "hello", 5)
writer.flush()
writer.close()
print("done")
"""


def events(folder: Path) -> Any:
    """What TensorBoard itself reads in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def test_the_real_writer_is_recorded_and_writes_the_same(tmp_path: Path) -> None:
    run = record(tmp_path, WRITES)
    assert run.out == "done\n"
    # add_text calls nothing that is wrapped; flush and close are one call each
    assert run.calls("log") == {"log": 5 + 1 + 1 + 1 + 1}
    read = events(tmp_path / "logs")
    assert [(e.step, round(e.value, 6)) for e in read.Scalars("loss")] == [
        (step, round(1.0 / (1 + step), 6)) for step in range(5)
    ]
    assert read.Tags()["histograms"] == ["weights"]


METERED = """
import warnings
warnings.filterwarnings("ignore")
import gymnasium
from torch.utils.tensorboard import SummaryWriter
from hotloop.instrument.live_metrics import Meter, write_scalars

env = gymnasium.make("CartPole-v1")
meter = Meter()
env.reset(seed=0)
for i in range(200):
    if any(env.step(i % 2)[2:4]):
        env.reset()
reading = meter.read()
writer = SummaryWriter("logs")
write_scalars(writer, reading, 200)
writer.close()
meter.close()
print(repr(reading.sps), reading.bottleneck)
"""


@pytest.mark.parametrize("how", ["by itself", "recorded"])
def test_a_meters_scalars_are_in_the_event_file(tmp_path: Path, how: str) -> None:
    said = plain(tmp_path, METERED) if how == "by itself" else record(tmp_path, METERED).out
    sps, bottleneck = said.split()
    read = events(tmp_path / "logs")
    (written,) = read.Scalars("perf/sps")
    assert (written.step, written.value) == (200, pytest.approx(float(sps), rel=1e-6))
    shares = [tag for tag in read.Tags()["scalars"] if tag.startswith("perf/share_")]
    assert "perf/share_environment" in shares
    assert sum(read.Scalars(tag)[0].value for tag in shares) == pytest.approx(1.0, rel=1e-5)
    (text,) = read.Tensors("perf/bottleneck/text_summary")
    assert text.tensor_proto.string_val == [bottleneck.encode()]


CALLBACK = """
import warnings
warnings.filterwarnings("ignore")
import torch
from stable_baselines3 import PPO
from hotloop.instrument.live_metrics import HotloopCallback

torch.set_num_threads(1)
model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=64, n_epochs=1, seed=0, tensorboard_log="logs")
model.learn(512, callback=HotloopCallback(every_s=0.05, say=lambda line: None))
"""


@pytest.mark.long
@needs("stable_baselines3")
def test_the_callbacks_scalars_reach_tensorboard(tmp_path: Path) -> None:
    run = record(tmp_path, CALLBACK)
    assert run.capture.progress.env_steps == 512
    read = events(tmp_path / "logs" / "PPO_1")
    values = [event.value for event in read.Scalars("perf/sps")]
    assert values and all(value > 0 for value in values)
    assert "perf/share_environment" in read.Tags()["scalars"]
    assert os.listdir(tmp_path / "logs") == ["PPO_1"]


WANDB = """
import warnings
warnings.filterwarnings("ignore")
import gymnasium
import wandb
import hotloop

run = wandb.init(project="cartpole", mode="offline", settings=wandb.Settings(silent=True))
env = gymnasium.make("CartPole-v1")
meter = hotloop.Meter()
env.reset(seed=0)
for step in range(200):
    if any(env.step(step % 2)[2:4]):
        env.reset()
    if step % 50 == 0:
        wandb.log({"loss": 1 / (1 + step)}, step=step)
reading = meter.read()
hotloop.write_scalars(run, reading, 200)
run.finish()
meter.close()
print(repr(reading.sps), reading.bottleneck)
"""
BLOCK_BYTES = 32768


def wandb_history(folder: Path) -> list[dict[str, Any]]:
    """Rows of an offline run: its file is a log in LevelDB's format that holds protocol buffers."""
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    rows = []
    for data in leveldb_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append(
                {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}
            )
    return rows


def leveldb_records(data: bytes) -> Iterator[bytes]:
    at, record = 7, b""  # after wandb's own header
    while at + 7 <= len(data):
        if BLOCK_BYTES - at % BLOCK_BYTES < 7:  # no room for another header in this block
            at += BLOCK_BYTES - at % BLOCK_BYTES
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


@pytest.mark.long
@needs("wandb")
@pytest.mark.parametrize("how", ["by itself", "recorded"])
def test_a_real_offline_run_of_wandb_is_recorded_and_has_our_scalars(tmp_path: Path, how: str) -> None:
    if how == "by itself":
        said = plain(tmp_path, WANDB)
    else:
        run = record(tmp_path, WANDB)
        said = run.out
        assert run.calls("log") == {"log": 4 + 1 + 1}  # log, ours, finish
        assert run.capture.progress.env_steps == 200
    sps, bottleneck = said.split()
    rows = wandb_history(tmp_path)
    assert [(row["_step"], row["loss"]) for row in rows[:-1]] == [(n, 1 / (1 + n)) for n in (0, 50, 100, 150)]
    ours = rows[-1]
    assert ours["_step"] == 200
    assert ours["perf/sps"] == pytest.approx(float(sps))
    assert ours["perf/bottleneck"] == bottleneck
    shares = [value for name, value in ours.items() if name.startswith("perf/share_")]
    assert sum(shares) == pytest.approx(1.0)
