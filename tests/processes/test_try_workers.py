"""`hotloop try` on scripts with worker processes: they apply the same patches, and nothing stays behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.scripts import environment
from tests.processes.test_try import attempt

# Each env writes down every new state it is stepped in; what it returns depends on its actions alone.
ENV = """
import gc, os, sys, time
import gymnasium, numpy as np, torch

class Watching(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.seen = []
        self.file = f"states-{os.getpid()}"

    def note(self):
        step = gymnasium.wrappers.common.OrderEnforcing.step
        bypassed = getattr(getattr(step, "__code__", None), "co_name", "") == "bypassed"
        state = (gc.get_threshold()[0], torch.get_num_threads(), bypassed)
        if self.seen[-1:] != [state]:
            self.seen.append(state)
            with open(self.file, "a") as file:
                print(*state, gc.get_freeze_count() > 0, file=file)  # slow: it counts them

    def reset(self, *, seed=None, options=None):
        self.at = np.zeros(2, np.float32)
        return self.at, {}

    def step(self, action):
        self.note()
        self.at = self.at + np.float32([0.1, 0.01 * action])
        return self.at, float(self.at.sum()), bool(self.at[0] > 5), False, {}

    def close(self):
        self.note()

gymnasium.register("Watching-v0", lambda: Watching())

def make():
    torch.set_num_threads(2)
    return gymnasium.make("Watching-v0")
"""

SB3 = """
import sys
from watching import *
from stable_baselines3.common.vec_env import SubprocVecEnv

if __name__ == "__main__":
    envs = SubprocVecEnv([make, make], start_method=sys.argv[2])
    envs.reset()
    total, at, until = 0.0, 0, time.time() + float(sys.argv[1])
    while at < 1000 or time.time() < until:
        observations, rewards, dones, infos = envs.step(np.array([at % 2, at % 3 % 2]))
        if at < 1000:
            total += float(observations.sum() + rewards.sum())
        at += 1
    envs.close()
    print("total", total)
"""

ASYNC = """
import sys
from watching import *

if __name__ == "__main__":
    envs = gymnasium.vector.AsyncVectorEnv([make, make], context=sys.argv[2])
    envs.reset()
    total, at, until = 0.0, 0, time.time() + float(sys.argv[1])
    while at < 1000 or time.time() < until:
        observations, rewards, *_ = envs.step(np.array([at % 2, at % 3 % 2]))
        if at < 1000:
            total += float(observations.sum() + rewards.sum())
        at += 1
    envs.close()
    print("total", total)
"""

LOADER = """
import gc, os, sys, time
import hotloop, torch

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000
    def __getitem__(self, at):
        return torch.tensor([at, gc.get_threshold()[0], os.getpid()])

seen, total, until = set(), 0, time.time() + float(sys.argv[1])
for at, batch in enumerate(torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2)):
    hotloop.progress(env_steps=1)
    total += int(batch[:, 0].sum()) if at < 1000 else 0
    seen |= {(int(who), int(threshold)) for _, threshold, who in batch}
    if at >= 1000 and time.time() > until:
        break
print("total", total, "states", sorted({t for _, t in seen}), "workers", len({w for w, _ in seen}))
"""


def states(folder: Path) -> list[list[list[str]]]:
    """By worker, in order: gc threshold, torch threads, checks passed by, objects frozen."""
    files = sorted(folder.glob("states-*"))
    return [[line.split() for line in file.read_text().splitlines()] for file in files]


def prepared(folder: Path, script: str) -> Path:
    (folder / "watching.py").write_text(ENV)
    (folder / "train.py").write_text(script)
    return folder


@pytest.mark.long
@pytest.mark.parametrize(("script", "start"), [(SB3, "forkserver"), (ASYNC, "fork")])
def test_envs_in_workers_step_under_the_patches_of_their_script(
    tmp_path: Path, script: str, start: str
) -> None:
    pytest.importorskip("stable_baselines3")
    prepared(tmp_path, script)
    plain = subprocess.run(
        [sys.executable, "train.py", "0", start],
        cwd=tmp_path,
        env=environment("auto"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(len(worker) == 1 for worker in states(tmp_path))  # nothing switches by itself
    for file in tmp_path.glob("states-*"):
        file.unlink()
    words = ("--capture", "cap", "--budget", "2s", "--only", "gc,threads,env_checks,inference_mode", "--json")
    done = attempt(tmp_path, *words, "train.py", "8", start)
    assert done.returncode == 0, done.stderr
    assert plain.stdout.strip() in done.stderr  # the same numbers to the last digit
    found = json.loads(done.stdout)
    tried = {patch["name"]: patch for patch in found["patches"]}
    # The envs live in the workers: only there would their checks be passed by.
    assert set(tried) == {"gc", "threads", "env_checks"}
    assert {name: patch["workers"] for name, patch in tried.items()} == dict.fromkeys(tried, 2)
    watched = [worker for worker in states(tmp_path) if len(worker) > 1]
    assert len(watched) == 2
    for worker in watched:
        assert worker[0] == worker[-1] == ["700", "2", "False", "False"]  # as before, when it was over
        thresholds, threads, bypassed, frozen = (set(column) for column in zip(*worker, strict=True))
        assert (thresholds, threads) == ({"700", "50000"}, {"1", "2"})
        assert bypassed == frozen == {"True", "False"}
        assert all((state[0] == "50000") == (state[3] == "True") for state in worker)  # a patch is on whole
    assert (tmp_path / "cap" / "trial-workers").is_dir()


@pytest.mark.long
def test_workers_of_a_loader_follow_too(tmp_path: Path) -> None:
    (tmp_path / "load.py").write_text(LOADER)
    done = attempt(tmp_path, "--only", "gc", "--budget", "2s", "--json", "load.py", "7")
    assert done.returncode == 0, done.stderr
    assert f"total {sum(range(4000))} states [700, 50000] workers 2" in done.stderr
