"""A real Ray cluster in a process of its own: Ray changes the signal handlers of the process it runs in.

Prints a line of JSON for each word it reads: `add NAME FOLDER [PATH]` starts a node with a resource of that
name, whose processes record into that folder (and look for modules in PATH first), `kill NAME` kills it.
Ends with its input.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# `make test` puts Ray here and not among the other packages: TorchRL would import it in every process.
APART = Path(sys.prefix) / "ray"
IS_APART = importlib.util.find_spec("ray") is None and (APART / "ray").is_dir()
PACKAGES = (str(APART),) if IS_APART else ()
needs_ray = pytest.mark.skipif(
    not IS_APART and importlib.util.find_spec("ray") is None, reason="LOUD: not installed: ray"
)
START_S = 300.0  # for a node on a busy machine
# Ray's workers have a niceness of 15: on a busy machine they would hardly run. Its time limits are short.
PATIENT = {
    "PYTHONPATH": os.pathsep.join([*PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]),
    "PYTHONDONTWRITEBYTECODE": "",  # Ray was installed without bytecode
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # then Ray uses 127.0.0.1, as it does on those systems
    "RAY_AUTH_MODE": "disabled",
    "RAY_memory_monitor_refresh_ms": "0",  # it would kill workers while others fill the memory
    "RAY_worker_niceness": "0",
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_health_check_timeout_ms": "20000",
    "RAY_health_check_failure_threshold": "5",
    "HOTLOOP_WAIT_FOR_NODES": "280",
}
SMALL: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}

HEAD: dict[str, Any] = {**SMALL, "resources": {"near": 1}}
DASHBOARD = "TEST_WITH_DASHBOARD"  # variable: start Ray's dashboard, which takes jobs


class RayCluster:
    """Starts the program below and talks to it."""

    def __init__(self, **variables: str) -> None:
        """`variables` are those of the nodes and of all that runs there."""
        env = os.environ | PATIENT | variables
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            text=True,
            start_new_session=True,
        )
        answer = self._answer()
        self.address: str = answer["address"]
        self.dashboard: str = answer["dashboard"]  # "": none

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_S)
        line = self._process.stdout.readline() if ready else '{"problem": "no answer"}'
        found: dict[str, Any] = json.loads(line or '{"problem": "it ended"}')
        if "problem" in found:
            self.close()
            pytest.skip(f"LOUD: Ray cannot be started on this machine now: {found['problem']}")
        return found

    def ask(self, *words: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(*words, file=self._process.stdin, flush=True)
        return self._answer()

    def add(self, name: str, folder: Path, *python_path: Path) -> str:
        """Start a node; returns its id."""
        return str(self.ask("add", name, folder, *python_path)["node"])

    def close(self) -> None:
        """End the cluster."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            self._process.kill()  # Ray's daemons end with the process that started them
            self._process.wait()
        finally:
            self._process.stdout.close()


def serve() -> None:
    """The program."""
    from ray.cluster_utils import Cluster

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints, too

    def tell(**data: Any) -> None:
        print(json.dumps(data), file=answers, flush=True)

    for attempt in range(3):  # Ray gives a node 30 s to start
        try:
            wanted = {**HEAD, "include_dashboard": DASHBOARD in os.environ}
            cluster = Cluster(initialize_head=True, head_node_args=wanted)
            break
        except Exception as error:
            if attempt == 2:
                tell(problem=str(error))
                return
    nodes: dict[str, Any] = {}
    head: Any = cluster.head_node
    url = head.webui_url if DASHBOARD in os.environ else ""
    tell(address=cluster.address, dashboard=url and f"http://{url}")
    try:
        for line in sys.stdin:
            word, name, *rest = line.split()
            if word == "add":
                variables = {"HOTLOOP_NODE_FOLDER": rest[0]}
                if rest[1:]:
                    variables["PYTHONPATH"] = os.pathsep.join([*rest[1:], *PACKAGES])
                nodes[name] = cluster.add_node(wait=True, resources={name: 1}, env_vars=variables, **SMALL)
                tell(node=nodes[name].node_id)
            else:
                cluster.remove_node(nodes.pop(name), allow_graceful=False)
                tell()
    except Exception as error:
        tell(problem=str(error))
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    serve()
