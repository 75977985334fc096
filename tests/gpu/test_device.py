"""A real GPU: device time, memory, transfers, the learner. Skipped where there is none; not run anywhere yet.

The same with a fake device is in tests/unit/test_memory_and_device.py and tests/unit/test_instrument.py.
docs/devices.md says what has been tested how.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hotloop import Profiler
from hotloop.machine.health import accelerators
from tests.processes.library_runs import plain, record

pytestmark = pytest.mark.skipif(
    not accelerators(Path("/dev")), reason="there is no GPU here (no device file); docs/devices.md"
)

TRAINS = """
import sys
import torch

device = sys.argv[1]
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(device)
optimizer = torch.optim.Adam(network.parameters())
inputs = torch.randn(512, 64)
for step in range(40):
    loss = network(inputs.to(device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(digest(p.cpu() for p in network.parameters()))
"""


@pytest.fixture
def torch() -> Any:
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("torch finds no GPU, though there is a device file")
    return module


def test_events_measure_time_and_memory_of_a_region(torch: Any) -> None:
    profiler = Profiler()
    from hotloop.measure.device import TorchDevice

    profiler.start(device=TorchDevice("cuda"))
    a = torch.randn(2048, 2048, device="cuda")
    with profiler.profile("backward"):
        b = a @ a  # 16 MiB that stay
        for _ in range(10):
            b = b @ a
    torch.cuda.synchronize()
    profiler.recorder.device.collect()
    stats = profiler.stats("backward")
    profiler.stop()
    assert stats.device_ns is not None and stats.device_ns > 0
    assert stats.device_growth_bytes >= 2048 * 2048 * 4
    assert stats.device_peak_bytes >= stats.device_growth_bytes


def test_recording_never_synchronises(torch: Any) -> None:
    from hotloop.measure.device import TorchDevice

    profiler = Profiler().start(device=TorchDevice("cuda"))
    a = torch.randn(256, 256, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(200):
            with profiler.profile("learner_forward"):
                a = (a @ a).tanh()
    finally:
        torch.cuda.set_sync_debug_mode("default")
        profiler.stop()
    assert profiler.stats("learner_forward").calls == 200


def test_a_script_is_timed_on_the_device_and_computes_the_same(torch: Any, tmp_path: Path) -> None:
    expected = plain(tmp_path, TRAINS, "cuda")
    run = record(tmp_path, TRAINS, "cuda")
    assert run.out == expected
    assert run.calls("optimizer_step", "backward") == {"optimizer_step": 40, "backward": 40}
    assert run.calls("transfer")["transfer"] >= 40 + 4  # inputs, and the weights at the end
    assert run.capture.facts["device"].startswith("cuda")
    nodes = {node.name: node for node in run.main.threads[0].root.children}
    assert nodes["backward"].device_ns > 0
    assert nodes["optimizer_step"].device_ns > 0
    assert nodes["backward"].device_peak_bytes > 0


def test_a_script_may_fork_before_it_uses_the_device(torch: Any, tmp_path: Path) -> None:
    script = """
    import os
    import sys
    import torch

    child = os.fork()
    print(float(torch.ones(3, device="cuda").sum()))
    sys.stdout.flush()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    """
    assert record(tmp_path, script).out == "3.0\n3.0\n"


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_the_learner_of_mario_makes_the_update_of_the_cpu(torch: Any, precision: Any) -> None:
    from hotloop.rl.train.async_dqn import FrameLearner
    from tests.oracle.test_async_dqn import fields, network, settings

    there = FrameLearner(network(), settings(device="cuda", precision=precision))
    here = FrameLearner(network(), settings(device="cpu", precision="float32"))
    there.add_gradient({name: tensor.cuda() for name, tensor in fields(16).items()})
    here.add_gradient(fields(16))
    there.update()
    here.update()
    tolerance = 1e-3 if precision == "float32" else 5e-2
    assert there.statistics()["loss"] == pytest.approx(here.statistics()["loss"], rel=tolerance)
