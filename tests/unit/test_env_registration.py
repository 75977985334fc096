"""The environments are known to Gymnasium by name, in whatever order things are imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

MADE = (
    "print(type(gymnasium.make({name!r}).unwrapped).__name__, type(gymnasium.make_vec({name!r}, 2)).__name__)"
)


@pytest.mark.parametrize(
    ("imports", "name"),
    [
        ("import gymnasium", "hotloop.rl.envs:hotloop/CartPole-v0"),  # nothing of ours imported before
        ("import gymnasium, hotloop.rl.envs", "hotloop/CartPole-v0"),
        ("import hotloop.rl.envs, gymnasium", "hotloop/CartPole-v0"),
    ],
)
def test_made_by_name(imports: str, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{imports}\n{MADE.format(name=name)}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["CartPoleEnv", "CartPoleVectorEnv"], done.stderr


def test_registering_loads_nothing_heavy() -> None:
    program = "import sys, hotloop.rl.envs; print({'numba', 'torch', 'PIL'} & set(sys.modules) or '{}')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{}"
