"""A Ray cluster of two hosts: the second has its own network, clock, host name and temporary files.

Linux namespaces make it: one computer, but nothing that Ray or hotloop can see is shared. The clock of the
second host is exactly `AHEAD_S` ahead, so every measured offset can be checked against the truth.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotloop.analysis.cluster import describe_cluster
from hotloop.analysis.ray_waits import task_waits
from hotloop.capture.open_capture import open_capture
from hotloop.workflows.run import recording_environment
from tests.processes.ray_cluster import PATIENT, needs_ray
from tests.processes.scripts import environment

AHEAD_S = 5000
SUBNET = "10.213.77"
ROUNDS, BYTES = 40, 1_000_000
SCRIPT = f"""
import json, os, time
from pathlib import Path
import numpy as np
import ray
ray.init(logging_level="error")

@ray.remote(num_cpus=0, resources={{"far": 1}})
class Runner:
    def sample(self, weights):
        time.sleep(0.02)
        return len(weights)

runner = Runner.remote()
nodes = Path(os.environ["HOTLOOP_CAPTURE"], "nodes")
while True:  # until hotloop's actor there counts bytes
    known = [json.loads(file.read_text()) for file in nodes.glob("*.json")]
    if any(node["network"] and "driver" not in node for node in known):
        break
    time.sleep(0.1)
for i in range({ROUNDS}):
    weights = ray.put(np.random.default_rng(i).bytes({BYTES}))
    assert ray.get(runner.sample.remote(weights)) == {BYTES}
print("trained")
"""


def _allowed() -> bool:
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare"))):
        return False
    tried = ["unshare", "--time", "--monotonic", "1", "--net", "--uts", "--mount", "--pid", "--fork", "true"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


pytestmark = [
    needs_ray,
    pytest.mark.long,
    pytest.mark.skipif(not _allowed(), reason="LOUD: namespaces are not allowed here"),
]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two hosts, joined by a cable; the address of the cluster."""
    name, here, there = f"hotloop{os.getpid()}", f"hl{os.getpid()}a", f"hl{os.getpid()}b"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | PATIENT
    del env["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"]  # then Ray uses the addresses it is given
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1"]
    start += ["--object-store-memory", str(80 << 20), "--disable-usage-stats"]
    own = tmp_path_factory.mktemp("far")
    hidden = Path(tmp_path_factory.getbasetemp())  # with the capture: no folder is shared
    script = (
        f"hostname otherhost; ip link set lo up; mkdir -p /tmp/ray {own}/ray {own}/empty; "
        f'mount --bind {own}/ray /tmp/ray; mount --bind {own}/empty {hidden}; cd /; exec "$@"'
    )
    apart = f"unshare --time --monotonic {AHEAD_S} --uts --mount --pid --fork --mount-proc --kill-child"
    second = [*f"ip netns exec {name} {apart} sh -c".split(), script, "sh"]
    hosts: list[subprocess.Popen[bytes]] = []
    _ip("netns", "add", name)
    try:
        _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        _ip("addr", "add", f"{SUBNET}.1/24", "dev", here)
        _ip("link", "set", here, "up")
        _ip("-n", name, "addr", "add", f"{SUBNET}.2/24", "dev", there)
        _ip("-n", name, "link", "set", there, "up")
        head = f"--head --node-ip-address {SUBNET}.1 --port {port} --include-dashboard false".split()
        joins = ["--address", f"{SUBNET}.1:{port}", "--node-ip-address", f"{SUBNET}.2"]
        joins += ["--resources", '{"far": 1}']
        for command in ([*start, *head], [*second, *start, *joins]):
            with open(own / f"host{len(hosts)}.txt", "wb") as said:
                hosts.append(
                    subprocess.Popen(command, env=env, stdout=said, stderr=said, start_new_session=True)
                )
            wait_for(own / f"host{len(hosts) - 1}.txt", b"Ray runtime started", hosts[-1])
        yield f"{SUBNET}.1:{port}"
    finally:
        for host in reversed(hosts):
            host.terminate()
        for host in hosts:
            host.wait(timeout=60)
        _ip("netns", "del", name)


def wait_for(file: Path, said: bytes, host: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while said not in file.read_bytes():
        assert host.poll() is None and time.monotonic() < deadline, file.read_text()
        time.sleep(0.2)


def test_a_host_with_its_own_clock_network_and_files_is_recorded(address: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    patient = {name: value for name, value in PATIENT.items() if name != "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"}
    env = recording_environment(tmp_path / "run", environment("auto", RAY_ADDRESS=address, **patient))
    done = subprocess.run(
        [sys.executable, "train.py"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0 and "trained" in done.stdout, done.stdout + done.stderr
    capture = open_capture(str(tmp_path / "run"))
    driver, far = capture.nodes
    assert far.host == "otherhost" and not far.shared and far.complete
    assert far.clock
    for _, offset_ns, uncertainty_ns in far.clock:
        assert abs(offset_ns - AHEAD_S * 10**9) <= uncertainty_ns
    main = next(p for p in capture.processes if p.origin is not None and p.origin.ray == "driver")
    (runner,) = [p for p in capture.processes if p.label == "Runner"]
    assert main.start_ns < runner.start_ns < runner.end_ns < main.end_ns + (far.clock_uncertainty_ns or 0)
    (waits,) = [one for one in task_waits(capture) if one.name == "Runner.sample"]
    assert waits.uncertainty_ns == far.clock_uncertainty_ns
    assert driver.network is not None and far.network is not None
    assert ROUNDS * BYTES < far.network[1] < 2 * ROUNDS * BYTES
    sentences = " ".join(describe_cluster(capture, (), (), 10**10))
    assert "Their clocks are aligned to " in sentences
    assert "Over the network, by all programs of each computer: " in sentences
