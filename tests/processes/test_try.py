"""`hotloop try` on real scripts: a planted defect is found, the script's own results stay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli import hotloop as run_verb
from tests.processes.scripts import environment

HOTLOOP = Path(sys.executable).parent / "hotloop"

# It collects garbage "to be safe" every few steps, with many old objects to look through each time.
CAREFUL = """
import gc
import sys
import time
import gymnasium

ballast = [[i] for i in range(100_000)]
env = gymnasium.make("CartPole-v1")
env.reset(seed=0)
total, began, done = 0.0, time.time(), 0
while done < int(sys.argv[2]) and time.time() - began < float(sys.argv[1]):
    observation, reward, terminated, truncated, info = env.step(done % 2)
    total += float(observation[2])
    done += 1
    if done % 20 == 0:
        gc.collect()
    if terminated or truncated:
        env.reset()
print("total", done, total)
"""


# Two defects: autograd's search for NaNs was left on, and numbers have become too small to be quick.
TWO_DEFECTS = """
import gymnasium
import torch

torch.set_num_threads(1)
torch.autograd.set_detect_anomaly(True)
tiny = torch.full((500_000,), 1e-39)
net = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(8)])
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
env = gymnasium.make("CartPole-v1")
observation, _ = env.reset(seed=0)
done = 0
while True:
    observation, reward, terminated, truncated, info = env.step(done % 2)
    optimizer.zero_grad()
    net(torch.as_tensor(observation)).square().mean().backward()
    optimizer.step()
    done += 1
    tiny.mul(0.5)
    if terminated or truncated:
        observation, _ = env.reset()
"""

ENDLESS = """
import gymnasium
env = gymnasium.make("CartPole-v1")
env.reset(seed=0)
while True:
    if any(env.step(0)[2:4]):
        env.reset()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "careful.py").write_text(CAREFUL)
    return tmp_path


def attempt(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_verb("try", *words, cwd=folder, env=environment("auto"))


def test_a_planted_defect_is_found_with_the_line_that_cures_it(folder: Path) -> None:
    words = ("--capture", "cap", "--only", "gc,env_checks", "--budget", "8s", "--stop")
    done = attempt(folder, *words, "careful.py", "30", "100000000")
    assert done.returncode == 0, done.stderr
    assert "gc: faster by" in done.stdout, done.stdout
    assert "add this line before careful.py:11:" in done.stdout  # its loop
    assert "gc.collect(); gc.freeze(); gc.set_threshold" in done.stdout
    assert "total" not in done.stdout  # it was ended
    rows = [json.loads(line) for line in (folder / "cap" / "trial.jsonl").read_text().splitlines()]
    assert [patch["name"] for patch in rows[0]["candidates"]] == ["gc", "env_checks"]
    assert {tuple(row["patches"]) for row in rows if "seconds" in row} >= {(), ("gc",), ("env_checks",)}


@pytest.mark.long
def test_the_script_ends_as_it_would_have_and_json_has_it_all(folder: Path) -> None:
    (folder / "careless.py").write_text(CAREFUL.replace("gc.collect()", "pass"))  # quick, same numbers
    plain = subprocess.run(
        [sys.executable, "careless.py", "1000", "8000"], cwd=folder, capture_output=True, text=True
    )
    assert plain.stdout.startswith("total 8000 ")
    words = ("--only", "gc", "--budget", "1s", "--json", "--", sys.executable)
    done = attempt(folder, *words, "careful.py", "1000", "8000")
    assert done.returncode == 0, done.stderr
    assert plain.stdout.strip() in done.stderr  # same numbers to the last digit
    found = json.loads(done.stdout)
    assert found["kind"] == "hotloop-trial" and found["script"] == {"exit_code": 0, "ending": "finished"}
    assert [patch["name"] for patch in found["patches"]] == ["gc"]
    assert (Path(folder) / found["capture"] / "capture.json").exists()


def slow_when_tiny(torch: Any) -> bool:
    """Whether this processor takes much longer for numbers below 1e-38."""

    def cpu_s(value: float) -> float:
        numbers, times = torch.full((200_000,), value), []
        for _ in range(7):
            began = time.thread_time()
            numbers.mul(0.5)
            times.append(time.thread_time() - began)
        return min(times)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return cpu_s(1e-39) > 3 * cpu_s(1.0)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.long
def test_the_best_combination_of_two_planted_defects_is_measured(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    if not slow_when_tiny(torch):
        pytest.skip("this processor is as quick with numbers below 1e-38")
    (folder / "two.py").write_text(TWO_DEFECTS)
    words = ("--only", "denormals,anomaly", "--budget", "10s", "--stop")
    for attempts_left in (1, 0):  # once more on a machine that was busy with something else
        done = attempt(folder, *words, "--json", "two.py")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        words_said = {patch["name"]: patch["verdict"]["word"] for patch in found["patches"]}
        together = found["together"]
        if together is not None and together["verdict"]["word"] == "faster":
            break
        assert attempts_left, found
    assert words_said == {"denormals": "faster", "anomaly": "faster"}
    assert set(together["name"].split(" + ")) == {"denormals", "anomaly"}
    # Together they bring more than the first that was found: it was measured against the script as it is.
    first = next(p for p in found["patches"] if p["name"] in found["kept"] or not found["kept"])
    assert together["verdict"]["change"]["value"] < first["verdict"]["change"]["value"]
    assert found["machine_load"] is None or found["machine_load"]["load"]["max"] > 0


def test_ctrl_c_keeps_what_was_measured(folder: Path) -> None:
    (folder / "endless.py").write_text(ENDLESS)
    child = subprocess.Popen(
        [HOTLOOP, "try", "--capture", "cap", "--only", "gc", "endless.py"],
        cwd=folder,
        env=environment("auto"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    file = folder / "cap" / "trial.jsonl"
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text().count("seconds") >= 3) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "Patches" in out and "gc" in out
    assert time.monotonic() < deadline


def test_mistakes_get_a_sentence(folder: Path) -> None:
    wrong = attempt(folder, "--only", "magic", "careful.py", "1", "1")
    assert wrong.returncode == 2 and "'magic', which is not a patch; use gc," in wrong.stderr
    none = attempt(folder, "--budget", "soon", "careful.py", "1", "1")
    assert none.returncode == 2 and "--budget" in none.stderr
    (folder / "empty.py").write_text("print('nothing to train')")
    nothing = attempt(folder, "empty.py")
    assert nothing.returncode == 1 and "No training was seen" in nothing.stdout
    (folder / "fails.py").write_text("raise SystemExit(7)")
    assert attempt(folder, "fails.py").returncode == 5


@pytest.mark.long
def test_six_patches_or_more_are_tried_in_an_unmodified_sb3_script(folder: Path) -> None:
    pytest.importorskip("stable_baselines3")
    (folder / "ppo.py").write_text(
        "from stable_baselines3 import PPO\n"
        'model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=64, n_epochs=2, device="cpu")\n'
        "model.learn(1_000_000)\n"
    )
    done = attempt(folder, "--budget", "20s", "--stop", "--json", "--capture", "cap", "ppo.py")
    assert done.returncode == 0, done.stderr
    named = {patch["name"] for patch in json.loads(done.stdout)["patches"]}
    rows = [json.loads(line) for line in (folder / "cap" / "trial.jsonl").read_text().splitlines()]
    switched = {name for row in rows if "seconds" in row for name in row["patches"]}
    assert len(named) >= 6 and len(switched) >= 6, (named, switched)
    assert not any("broken" in row or "failed" in row for row in rows)
