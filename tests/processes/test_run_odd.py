"""Scripts that `hotloop run` does not expect: they run unharmed, and a sentence says what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import hotloop
from hotloop.capture.stats import by_name
from hotloop.workflows.run import recording_environment
from tests.cli import hotloop as run_verb
from tests.processes.library_runs import needs
from tests.processes.scripts import environment

HOTLOOP = Path(sys.executable).parent / "hotloop"

# Put before a script: as if a package were not installed.
WITHOUT = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] == {name!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


def launch(folder: Path, script: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`hotloop run` of a script that is written first; its capture is `cap`."""
    (folder / "odd.py").write_text(textwrap.dedent(script))
    words = ("run", "--capture", "cap", *options, "odd.py")
    return run_verb(*words, cwd=folder, env=environment("auto", **env))


def test_a_script_of_which_hotloop_knows_nothing_gets_its_lines(tmp_path: Path) -> None:
    script = """
        class World:
            def advance(self):
                left = 600_000
                while left:
                    left -= 1

        world = World()
        for _ in range(60):
            world.advance()
        """
    done = launch(tmp_path, script)  # work by count: on a busy machine a clock would leave it too few samples
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "World.advance" in done.stdout and ("odd.py:5" in done.stdout or "odd.py:6" in done.stdout)
    lines = hotloop.load(tmp_path / "cap").facts["lines"]
    assert max(lines["lines"], key=lines["lines"].get).endswith(("odd.py:5", "odd.py:6"))
    assert lines["samples"] >= 5


def test_a_library_that_has_changed_is_named_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "tensorboardX").mkdir()
    (tmp_path / "tensorboardX" / "__init__.py").touch()  # goes before one that is installed, as with RLlib
    (tmp_path / "tensorboardX" / "writer.py").write_text("class Renamed:\n    pass\n")
    done = launch(tmp_path, "import tensorboardX.writer\nprint(tensorboardX.writer.Renamed.__name__)")
    assert done.returncode == 0 and "Renamed" in done.stdout, done.stderr
    (problem,) = hotloop.load(tmp_path / "cap").warnings
    assert problem.startswith("tensorboardX.writer is not recorded: hotloop does not know this version (")
    assert "tensorboardX.writer is not recorded" in " ".join(done.stdout.split())


def test_an_interpreter_without_hotloop_runs_the_script_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    blocked = textwrap.indent(WITHOUT.format(name="hotloop"), "    ")
    (tmp_path / "mine" / "sitecustomize.py").write_text(
        f"import os\nif 'HOTLOOP_RUN' in os.environ:  # not in the launcher\n{blocked}"
    )
    done = launch(tmp_path, "print('ran to its end')", PYTHONPATH=str(tmp_path / "mine"))
    assert "ran to its end" in done.stdout
    assert done.returncode == 1
    first, last = done.stderr.splitlines()
    assert first.startswith("hotloop: ") and first.endswith(" is not recorded: No module named 'hotloop'")
    assert last.startswith("hotloop: nothing was recorded into cap")


@pytest.mark.parametrize(
    ("package", "name", "extra"),
    [("stable_baselines3", "HotloopCallback", "sb3"), ("gymnasium", "ProfiledEnv", "rl")],
)
def test_a_helper_without_its_library_names_the_extra(
    tmp_path: Path, package: str, name: str, extra: str
) -> None:
    script = WITHOUT.format(name=package) + f"from hotloop.instrument.live_metrics import {name}\n"
    done = launch(tmp_path, script)
    assert done.returncode == 5
    said = [line for line in done.stderr.splitlines() if "HotloopError: " in line]
    assert len(said) == 1 and f"pip install 'hotloop[{extra}]'" in said[0] and package in said[0]


REPLACES = """
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

env = gymnasium.make("CartPole-v1")
plain = CartPoleEnv.step
seen = []

def step(self, action):
    seen.append(action)
    return plain(self, action)

CartPoleEnv.step = step            # on the class: our wrapper is inside theirs
env.reset(seed=0)
for _ in range(3):
    env.step(0)
inner = env.step
env.step = lambda action: inner(action)   # on the object
for _ in range(4):
    env.step(1)
gymnasium.Env.step = lambda self, action: None  # on the base
print(len(seen), CartPoleEnv.step is step, type(env).__name__, env.step(0)[1])
"""


@needs("gymnasium")
def test_a_script_that_replaces_steps_keeps_its_own(tmp_path: Path) -> None:
    done = launch(tmp_path, REPLACES)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "7 True TimeLimit 1.0" in done.stdout
    capture = hotloop.load(tmp_path / "cap")
    assert capture.progress.env_steps == 8
    assert by_name(capture.tree)["CartPoleEnv.step"].calls == 8


SKIPS = """
import gymnasium

class Skip(gymnasium.Wrapper):
    def step(self, action):
        gained = 0.0
        for _ in range(4):
            *first, reward, terminated, truncated, info = self.env.step(action)
            gained += reward
            if terminated or truncated:
                break
        return first[0], gained, terminated, truncated, info

env = Skip(gymnasium.make("CartPole-v1"))
env.reset(seed=0)
frames = episodes = 0
for i in range(50):
    _, gained, terminated, truncated, _ = env.step(i % 2)
    frames += int(gained)  # CartPole pays 1 a frame
    if terminated or truncated:
        episodes += 1
        env.reset()
print("frames", frames, episodes)
"""


@needs("gymnasium")
def test_skipped_frames_do_not_count_as_steps(tmp_path: Path) -> None:
    done = launch(tmp_path, SKIPS)
    assert done.returncode == 0, done.stderr
    frames, episodes = map(int, done.stdout.split("frames ")[1].split()[:2])
    capture = hotloop.load(tmp_path / "cap")
    assert (capture.progress.env_steps, capture.progress.episodes) == (50, episodes)
    calls = {name: stats.calls for name, stats in by_name(capture.tree).items()}
    assert (calls["env_step"], calls["Skip.step"], calls["CartPoleEnv.step"]) == (50, 50, frames)
    assert frames > 100


def test_detailed_says_when_the_script_has_a_profiler_of_its_own(tmp_path: Path) -> None:
    script = """
        import sys
        sys.setprofile(lambda *event: None)
        print(sum(range(1000)))
        """
    done = launch(tmp_path, script, "--detailed", "--torch-profile")
    assert done.returncode == 0 and "499500" in done.stdout, done.stderr
    found, missing = sorted(done.stderr.splitlines())
    assert found == f"functions by time, with callers and callees: {Path('cap/detailed.txt')}"
    assert missing.startswith("hotloop: --torch-profile wrote no torch-trace.json: ")
    text = (tmp_path / "cap/detailed.txt").read_text()
    assert text.startswith("The script set a profiler of its own") == (sys.version_info < (3, 12))


def test_json_names_the_files_that_were_asked_for(tmp_path: Path) -> None:
    done = launch(tmp_path, "print(1)", "--detailed", "--torch-profile", "--json")
    assert json.loads(done.stdout)["files"] == {
        "torch_profile": None,
        "detailed": str(Path("cap/detailed.txt")),
    }


def test_an_env_of_the_script_can_be_sent_to_workers_by_cloudpickle(tmp_path: Path) -> None:
    """As SubprocVecEnv and AsyncVectorEnv send it: by value, although its methods are recorded."""
    script = """
        import subprocess, sys
        import cloudpickle, gymnasium

        class Tiny(gymnasium.Env):
            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                return 7, {}

        Tiny().reset(seed=1)
        data = cloudpickle.dumps(Tiny)
        assert b"hotloop" not in data
        load = "import sys, cloudpickle; print(cloudpickle.loads(sys.stdin.buffer.read())().reset(seed=1))"
        done = subprocess.run([sys.executable, "-c", load], input=data, capture_output=True)
        print(done.stdout.decode(), done.stderr.decode())
        """
    done = launch(tmp_path, script)
    assert done.returncode == 0 and "(7, {})" in done.stdout, done.stdout + done.stderr


def test_programs_of_ray_are_not_recorded_wherever_ray_is_installed(tmp_path: Path) -> None:
    """Its daemons would be in the report, and its workers would have joined before they have a job."""
    tell = "import os, sys\nprint(os.environ.get('HOTLOOP_CAPTURE'), 'hotloop.measure' in sys.modules)\n"
    installed, mine = tmp_path / "anywhere" / "ray", tmp_path / "mine" / "ray"
    names = "_private/workers/default_worker.py", "dashboard/agent.py", "rllib/examples/cartpole.py"
    for file in (installed / name for name in ("_private/worker.py", *names)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(tell)
    (mine / "dashboard").mkdir(parents=True)
    (mine / "dashboard" / "train.py").write_text(tell)
    (tmp_path / "start.py").write_text(
        "import subprocess, sys\n"
        "for file in sys.argv[1:]:\n"
        "    subprocess.run([sys.executable, '-u', file], check=True)\n"
    )
    files = [str(installed / name) for name in names] + [str(mine / "dashboard" / "train.py")]
    env = recording_environment(tmp_path / "run", environment("auto"))
    done = subprocess.run(
        [sys.executable, "start.py", *files],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    recorded = f"{tmp_path / 'run'} True"
    assert done.stdout.splitlines() == ["None False", "None False", recorded, recorded]


@pytest.mark.parametrize("core", ["compiled", "python"])
def test_wrapped_functions_can_be_pickled_under_any_of_their_names(core: str, tmp_path: Path) -> None:
    """Managers of spawned processes pickle `threading.Lock`, partials whatever a script gives them."""
    script = """
        import asyncio, functools, multiprocessing, pickle, threading
        import cloudpickle, gymnasium, torch
        from torch.nn.utils import clip_grad_norm_

        def train():
            return torch.save, clip_grad_norm_

        found = [threading.Lock, torch.save, clip_grad_norm_, torch.Tensor.item, torch.nn.Module.__call__,
                 asyncio.gather, torch.autograd.backward, torch.optim.Adam.step, gymnasium.Wrapper.step]
        plain = b""
        if __name__ == "__main__":
            for one in found:
                for dumps in (pickle.dumps, cloudpickle.dumps):
                    data = dumps(functools.partial(one, 1))
                    plain += data
                    assert pickle.loads(data).func is one, one
            assert cloudpickle.loads(cloudpickle.dumps(train))()[1] is clip_grad_norm_
            print("hotloop in the data:", b"hotloop" in plain)
            with multiprocessing.get_context("spawn").Manager() as manager:
                shared = manager.dict(steps=3)
                with manager.Lock():
                    print("shared", dict(shared))
        """
    done = launch(tmp_path, script, HOTLOOP_CORE=core)
    assert done.returncode == 0, done.stderr
    assert "hotloop in the data: False" in done.stdout and "shared {'steps': 3}" in done.stdout
