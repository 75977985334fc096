"""Memory of a run with worker processes: counted once, predicted, refused if it does not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from hotloop._util.errors import HotloopError
from hotloop._util.memory_estimate import MemoryEstimate
from hotloop.machine.facts import cores_granted
from hotloop.machine.process_memory import peak_resident_bytes
from hotloop.rl.workloads.imitate import Imitate
from hotloop.rl.workloads.mario import Mario, async_dqn_config
from hotloop.rl.workloads.memory_estimates import estimate_memory
from hotloop.rl.workloads.outcome import Outcome
from hotloop.tuning.memory_plan import MemoryPlan
from hotloop.workflows.train import Trained
from hotloop.workflows.train_predictions import (
    ChildrenMemory,
    Predictions,
    predict,
    prediction_table,
)

HOLDS = "import sys; held = bytearray(b'x' * (40 << 20)); print('ready', flush=True); sys.stdin.read()"


def test_private_memory_of_children_is_measured() -> None:
    watch = ChildrenMemory()
    watch.sample()
    before = watch.peak_bytes or 0
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        watch.sample()
        child.communicate("")
    held = (watch.peak_bytes or 0) - before
    assert 40 << 20 <= held < 60 << 20
    watch.sample()
    assert (watch.peak_bytes or 0) - before == held  # the most, not the last


def test_the_table_shows_predicted_and_measured_memory_of_children() -> None:
    parts = (MemoryEstimate("2 workers", 100, "workers", 2, in_children=True), MemoryEstimate("replay", 10))
    expected = Predictions(MemoryPlan(parts, 1 << 40))
    assert [line.measured for line in prediction_table(expected)] == [None, None, None]
    trained = Trained(Outcome(1, 1, 0, None, 1.0), None)
    watch = ChildrenMemory()
    watch.peak_bytes, watch.total_peak_bytes = 120, 1 << 50
    found = prediction_table(expected, trained, watch)
    assert [(line.predicted, line.measured) for line in found] == [(100, 120), (10, None), (110, 1 << 50)]
    assert prediction_table(expected, trained)[0].measured is None
    alone = prediction_table(expected, trained, ChildrenMemory())[2].measured or 0  # no child was seen
    assert abs(alone - peak_resident_bytes()) < 4 << 20


def test_children_that_ended_before_the_peak_are_not_added_to_it() -> None:
    held, peak = [300], [1000]
    watch = ChildrenMemory(children_bytes=lambda: held[0], own_peak_bytes=lambda: peak[0])
    watch.sample()
    assert (watch.peak_bytes, watch.total_peak_bytes) == (300, 1300)
    held[0], peak[0] = 10, 5000
    watch.sample()
    assert (watch.peak_bytes, watch.total_peak_bytes) == (300, 5010)


def test_children_that_were_there_to_the_end_are_added_to_the_peak() -> None:
    peak = [1000]
    with ChildrenMemory(60.0, lambda: 300, lambda: peak[0]) as watch:
        watch.sample()
        peak[0] = 8000  # between two looks
    assert watch.total_peak_bytes == 8300


def test_the_memory_parts_of_mario_equal_what_it_allocates() -> None:
    import numpy as np
    from gymnasium.spaces import Box, Discrete

    from hotloop.rl.collect.protocol import Spaces, experience_dtype
    from hotloop.rl.train.async_dqn_parts import make_replay
    from hotloop.rl.train.frame_actor import make_network
    from hotloop.rl.train.networks.frame_q import flat_size
    from hotloop.rl.workloads.memory_estimates import _frame_network

    config = Mario(
        buffer_size=3000, n_collectors=3, envs_per_collector=5, size=44, stack=3, channels=(8, 16, 16),
        features_dim=64,
    )  # fmt: skip
    spaces = Spaces(Box(0, 255, (3, 44, 44), np.uint8), Discrete(7), 5, 3)
    parts = {part.setting or part.what: part for part in estimate_memory("mario", config) or ()}
    assert (
        0
        <= make_replay(async_dqn_config(config), spaces, 3000).bytes_stored - parts["buffer_size"].bytes
        <= 64
    )
    assert parts["queue_size"].bytes == 3 * 1024 * experience_dtype(spaces, ("x_pos",)).itemsize
    network = make_network(spaces, config.channels, config.features_dim, config.batch_norm)
    weights, _ = _frame_network(config, 7)
    assert weights == pytest.approx(4 * flat_size(network), rel=0.05)  # without biases
    assert parts["n_collectors"].in_children and parts["n_collectors"].value == 3
    alone = estimate_memory("mario", replace(config, transport="serial")) or ()
    assert not any(part.in_children for part in alone)


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"buffer_size": 2_000_000}, "buffer-size"),
        ({"n_collectors": 60}, "n-collectors"),
        ({"batch_size": 40_000}, "batch-size"),
    ],
)
def test_a_mario_that_cannot_fit_is_refused_with_the_setting_that_would(
    changes: dict[str, Any], setting: str
) -> None:
    config = Mario(**changes)
    with pytest.raises(HotloopError, match=rf"--{setting} \d+ would fit") as refused:
        predict("mario", config, available_bytes=6 << 30)
    value = int(str(refused.value).rpartition(f"--{setting} ")[2].split()[0])
    fitting: dict[str, Any] = {setting.replace("-", "_"): value}
    assert predict("mario", replace(config, **fitting), 6 << 30)


MEASURE = """
import json, sys
from hotloop.rl.workloads.mario import Mario, run
from hotloop.workflows.train_predictions import ChildrenMemory, memory_plan, run_peak_bytes
from hotloop.rl.workloads.imitate import Imitate, run as imitate
name, given = sys.argv[1], json.loads(sys.argv[2])
config = Mario(**given) if name == "mario" else Imitate(**given)
plan = memory_plan(name, config)
with ChildrenMemory(0.1) as children:
    (run if name == "mario" else imitate)(config, None, True)
print(json.dumps([plan.total_bytes, run_peak_bytes(None, children), children.peak_bytes,
    {part.what: part.bytes for part in plan.parts}]))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "given",
    [
        {
            "n_collectors": 2,
            "envs_per_collector": 8,
            "buffer_size": 1600,
            "batch_size": 256,
            "learning_starts": 256,
        },
        {"variant": "original", "buffer_size": 3000, "learning_starts": 500},
        {"buffer_size": 8000, "n_collectors": 4},
        {"transport": "serial", "buffer_size": 3000, "n_collectors": 1},
    ],
)
def test_the_memory_plan_of_mario_is_within_15_percent_of_its_processes(given: dict[str, Any]) -> None:
    steps = max(int(given["buffer_size"]), 2400)  # the replay and the rings are full
    given = {"replay_ratio": 0.25, "exploration_steps": 1000, "learning_starts": 500} | given
    config = given | {"stop_at_epochs": 2, "epoch_steps": steps * 5 // 8, "weights_every_epochs": 1}
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-c", MEASURE, "mario", json.dumps(config)], capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
        predicted, measured, children, parts = json.loads(ran.stdout.splitlines()[-1])
        if predicted == pytest.approx(measured, rel=0.15):  # the first run may have compiled kernels
            break
    assert predicted == pytest.approx(measured, rel=0.15), (children, parts)


def test_workers_of_imitate_are_shown_as_processes() -> None:
    parts = estimate_memory("imitate", Imitate(stage="demos", workers=3)) or ()
    assert [(part.what, part.value) for part in parts if part.in_children] == [("3 x worker", 3)]
    few, more = (
        estimate_memory("imitate", Imitate(workers=1, speedup=speedup)) or () for speedup in (False, True)
    )
    cores = max(int(cores_granted()), 1)  # the speed-up is measured with as many workers
    assert [part.value for part in more if part.in_children] == [cores]
    assert sum(part.bytes for part in more) > sum(part.bytes for part in few)
