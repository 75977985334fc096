"""Places in code as reports show them."""

from __future__ import annotations

import pytest

from hotloop.report.paths import relative, script_name, short_command


@pytest.mark.parametrize(
    ("site", "folder", "shown"),
    [
        ("/home/ana/snake/agents/dqn.py:38", "/home/ana/snake", "agents/dqn.py:38"),
        ("/home/ana/snake/dqn.py:38", "/home/ana/snake/", "dqn.py:38"),
        ("/home/ana/snakes/dqn.py:38", "/home/ana/snake", "/home/ana/snakes/dqn.py:38"),
        (
            "/home/ana/.venv/lib/python3.11/site-packages/torch/optim/adam.py:5",
            "/home/ana/x",
            "torch/optim/adam.py:5",
        ),
        ("/usr/lib/python3/dist-packages/gym/core.py:1", "", "gym/core.py:1"),
        ("/x/dqn.py:38", "", "/x/dqn.py:38"),
        ("/x/dqn.py:38", "/", "x/dqn.py:38"),
        ("", "/home", ""),
    ],
)
def test_paths_start_at_the_project_or_the_package(site: str, folder: str, shown: str) -> None:
    assert relative(site, folder) == shown


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("/usr/bin/python3", "rl/train.py", "--seed", "1"), "train.py"),
        (("python", "-m", "agents.train"), "agents.train"),
        (("torchrun", "--nproc", "2", "train.py"), "train.py"),
        (("/opt/bin/simulate",), "simulate"),
        ((), ""),
        (("/v/bin/python", "/v/bin/hotloop", "train", "petri", "--wafers", "4"), "hotloop train petri"),
        (("/v/bin/python3", "/v/bin/torchrun-like", "x"), "torchrun-like"),
        (("hotloop", "train", "snake"), "hotloop train snake"),
    ],
)
def test_a_run_is_called_after_its_script(command: tuple[str, ...], name: str) -> None:
    assert script_name(command) == name


def test_the_interpreter_loses_its_path() -> None:
    assert short_command(("/home/ana/.venv/bin/python3.11", "a b.py")) == "python3.11 'a b.py'"
    assert short_command(("/opt/run", "x")) == "/opt/run x"
