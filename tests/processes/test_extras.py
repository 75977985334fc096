"""Every extra alone, in a fresh virtual environment, installed from the wheel: what a user gets.

The test suite runs where everything is installed, so it cannot notice that an extra lacks a package.
`dev` and `bench` are left out: they serve a checkout, not a user.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOR_A_CHECKOUT = {"dev", "bench"}
TIMEOUT_S = 1200
PETRI = ["--n-envs", "4", "--n-steps", "16", "--n-epochs", "2", "--batch-size", "32", "--batches", "1"]
MARIO = [
    *("--env", "mario", "--stop-at-epochs", "1", "--epoch-steps", "64", "--max-episode-steps", "50"),
    *("--n-collectors", "1", "--envs-per-collector", "1", "--channels", "4", "4", "4", "--features-dim", "8"),
    *("--batch-size", "16", "--accumulate-grad-batches", "1", "--learning-starts", "16"),
]
# extra -> the command that uses its packages
TRAIN = {
    "rl": ["snake", "--n-envs", "16", "--total-timesteps", "2048", "--learner", "torch"],
    "sb3": ["petri", *PETRI, "--trainer", "sb3"],
    "torchrl": ["petri", *PETRI, "--trainer", "torchrl"],
    "mario": ["mario", *MARIO],
}
SCRIPT = """
import time
import hotloop

for _ in range(50):
    with hotloop.profile("env_step"):
        time.sleep(0.001)
    hotloop.progress(env_steps=1)
"""
RAY_SCRIPT = """
import ray
import hotloop

ray.init(num_cpus=1, include_dashboard=False)
with hotloop.profile("env_step"):
    assert ray.get(ray.remote(lambda: 6 * 7).remote()) == 42
hotloop.progress(env_steps=1)
"""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources: building writes beside them."""
    place = tmp_path_factory.mktemp("wheel")
    copy = place / "sources"
    built = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__", "layout.h")
    shutil.copytree(ROOT / "src", copy / "src", ignore=built)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    _call([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", place, copy], place)
    (found,) = place.glob("hotloop-*.whl")
    return found


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """A folder to work in, removed at once: each environment is a gigabyte."""
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


def _call(words: list[Any], folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    # The variables of the test run must not lead the new environment to the checkout.
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "HOTLOOP_CAPTURE")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == code, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done


def _installed(wheel: Path, extra: str, folder: Path) -> Path:
    """A fresh environment with the wheel and one extra; returns its `hotloop`."""
    home = folder / "venv"
    _call([sys.executable, "-m", "venv", home], folder)
    what = f"hotloop[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
    pip = [home / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _call([*pip, "-c", ROOT / "constraints.txt", what], folder)
    return home / "bin" / "hotloop"


def test_every_extra_for_users_is_tested_here() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {*TRAIN, "attach", "report", "ray", "serve"} == set(
        project["optional-dependencies"]
    ) - FOR_A_CHECKOUT


def test_without_extras_it_records_and_names_the_extra_that_is_missing(wheel: Path, work: Path) -> None:
    hotloop = _installed(wheel, "", work)
    checks = json.loads(_call([hotloop, "doctor", "--selfcheck", "--json"], work).stdout)
    assert checks["passed"], checks
    (work / "script.py").write_text(SCRIPT)
    _call([hotloop, "run", "--capture", "seen", "script.py"], work)
    assert "env_step" in _call([hotloop, "report", "seen"], work).stdout
    assert "hotloop[report]" in _call([hotloop, "report", "seen", "-o", "page.png"], work, code=2).stderr
    assert "hotloop[rl]" in _call([hotloop, "train", "snake"], work, code=2).stderr


@pytest.mark.parametrize("extra", TRAIN)
def test_training_needs_no_other_extra(wheel: Path, work: Path, extra: str) -> None:
    hotloop = _installed(wheel, extra, work)
    words = [hotloop, "train", *TRAIN[extra], "--capture", "seen", "--json"]
    outcome = json.loads(_call(words, work).stdout)["outcome"]
    assert outcome["env_steps"] > 0 and outcome["updates"] > 0
    assert "env_step" in _call([hotloop, "report", "seen"], work).stdout


def test_pages_and_pictures_need_no_other_extra(wheel: Path, work: Path) -> None:
    hotloop = _installed(wheel, "report", work)
    (work / "script.py").write_text(SCRIPT)
    _call([hotloop, "run", "--capture", "seen", "script.py"], work)
    _call([hotloop, "report", "seen", "-o", "page.html"], work)
    _call([hotloop, "report", "seen", "-o", "picture.png"], work)
    assert "· hotloop</title>" in (work / "page.html").read_text(encoding="utf-8")
    assert (work / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_runs_are_served_with_the_extra_alone(wheel: Path, work: Path) -> None:
    hotloop = _installed(wheel, "serve", work)
    (work / "script.py").write_text(SCRIPT)
    _call([hotloop, "run", "--capture", "runs/seen", "script.py"], work)
    with subprocess.Popen([hotloop, "serve", "runs"], cwd=work, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        with urllib.request.urlopen(serving.stdout.readline().strip(), timeout=120) as page:
            assert "seen" in page.read().decode()
        serving.send_signal(signal.SIGINT)
        assert serving.wait(120) == 0


def test_the_sdist_has_all_it_takes_to_build_a_wheel_with_the_compiled_core(wheel: Path, work: Path) -> None:
    made = [sys.executable, "-c", "from setuptools.build_meta import build_sdist; build_sdist('..')"]
    shutil.copytree(wheel.parent / "sources", work / "sources")
    _call(made, work / "sources")
    (sdist,) = work.glob("hotloop-*.tar.gz")
    _call([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", work, sdist], work)
    (again,) = work.glob("hotloop-*.whl")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        written = {"hotloop/measure/layout.h"}  # by the build, beside the sources
        assert set(one.namelist()) - written == set(other.namelist()) - written
        assert any("measure/_core" in name and name.endswith(".so") for name in other.namelist())
        assert "hotloop/report/assets/serve.js" in other.namelist()
        about = other.read(next(n for n in other.namelist() if n.endswith("METADATA"))).decode()
    assert "Description-Content-Type: text/markdown" in about
    assert "Requires-Python: >=3.11" in about
    hotloop = _installed(again, "", work)
    (work / "script.py").write_text(SCRIPT)
    assert "env_step" in _call([hotloop, "run", "--capture", "seen", "script.py"], work).stdout


def test_a_running_job_is_watched_with_its_extra_alone(wheel: Path, work: Path) -> None:
    hotloop = _installed(wheel, "attach", work)
    with subprocess.Popen([sys.executable, "-c", "while True: sum(range(1000))"]) as job:
        try:
            told = json.loads(
                _call([hotloop, "attach", str(job.pid), "--seconds", "2", "--json"], work).stdout
            )
        finally:
            job.kill()
    assert told["kind"]


def test_a_script_that_uses_ray_is_recorded(wheel: Path, work: Path) -> None:
    hotloop = _installed(wheel, "ray", work)
    (work / "script.py").write_text(RAY_SCRIPT)
    _call([hotloop, "run", "--capture", "seen", "script.py"], work)
    assert "env_step" in _call([hotloop, "report", "seen"], work).stdout
