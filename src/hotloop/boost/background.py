"""Compiles kernels in a separate process while the library trains: `hotloop boost --background`.

The new process makes a model of the same class with the same kinds of spaces, as small as can be, and
compiles what a boosted model needs. It shares the cache on disk with the script, which loads kernels from it.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import subprocess
import sys
from typing import Any

STARTING = ("HOTLOOP_BOOST", "HOTLOOP_RUN", "HOTLOOP_CAPTURE")  # would boost or record the new process


class Compilation:
    """A process that compiles the kernels of one of our modules."""

    def __init__(self, ours: str, model: Any):
        described = {
            "ours": ours,
            "algorithm": f"{type(model).__module__}.{type(model).__qualname__}",
            "observations": describe_space(model.observation_space),
            "actions": describe_space(model.action_space),
        }
        environment = {name: value for name, value in os.environ.items() if name not in STARTING}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hotloop.boost.background", json.dumps(described)],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        atexit.register(self.stop)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def failure(self) -> str | None:
        """The last line that the process wrote if it failed, else None; it must have ended."""
        errors = b"" if self._process.stderr is None else self._process.stderr.read()
        if self._process.returncode == 0:
            return None
        lines = errors.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}"

    def stop(self) -> None:
        """End the process if it is still running: what is not compiled by now comes too late for this run."""
        if self.is_running():
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
        if self._process.stderr is not None:
            self._process.stderr.close()


def describe_space(space: Any) -> dict[str, Any]:
    """What kernels depend on: the kind of a space and its dtype, not its size."""
    return {"kind": type(space).__name__, "dtype": str(space.dtype)}


def make_space(described: dict[str, Any]) -> Any:
    """The smallest space of that kind."""
    import numpy as np
    from gymnasium import spaces

    if described["kind"] == "Discrete":
        return spaces.Discrete(2)
    if described["kind"] == "MultiDiscrete":
        return spaces.MultiDiscrete([2, 2])
    return spaces.Box(-1, 1, (1,), np.dtype(described["dtype"]).type)


def make_model(described: dict[str, Any]) -> Any:
    """A model of that class with spaces of those kinds."""
    import gymnasium

    class Nothing(gymnasium.Env[Any, Any]):
        observation_space = make_space(described["observations"])
        action_space = make_space(described["actions"])

        def action_masks(self) -> Any:  # MaskablePPO looks for it
            raise NotImplementedError

    module, _, name = described["algorithm"].rpartition(".")
    algorithm = getattr(importlib.import_module(module), name)
    is_off_policy = any(base.__name__ == "OffPolicyAlgorithm" for base in algorithm.__mro__)
    sizes = {"buffer_size": 1} if is_off_policy else {"n_steps": 64}
    return algorithm("MlpPolicy", Nothing(), policy_kwargs={"net_arch": [1]}, device="cpu", **sizes)


def main(words: list[str]) -> None:
    described = json.loads(words[0])
    model = make_model(described)
    importlib.import_module(described["ours"]).Learner(model).compile(model)


if __name__ == "__main__":
    main(sys.argv[1:])
