"""Every command that a report prints works as printed, apart from a limit on its time.

Small scripts are recorded with `hotloop run`, each with advice of another kind. The commands come from the
JSON of the report (`prove_command`) and from the section `Next` of its text.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.test_compare import environment, hotloop

NETWORK = """
import torch
torch.set_num_threads(2)
policy = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.Adam(policy.parameters())
data = torch.randn(64, 64)
for update in range(800):
    loss = policy(data).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

LOGS = """
import argparse
import hotloop
parser = argparse.ArgumentParser()
parser.add_argument("--log-interval", type=int, default=1)
args = parser.parse_args()
for step in range(80):
    with hotloop.profile("env_step"):
        pow(7, 90_000)
    if step % args.log_interval == 0:
        with hotloop.profile("log"):
            pow(7, 180_000)
    hotloop.progress(env_steps=1)
"""

OBJECTS = """
import hotloop
kept = []
for turn in range(12_000):
    with hotloop.profile("env_step"):
        kept.append([{"seen": [turn, i], "move": [i]} for i in range(30)])
    hotloop.progress(env_steps=1)
"""

STORES = """
import hotloop
for step in range(150):
    with hotloop.profile("policy_forward"):
        pow(7, 60_000)
    with hotloop.profile("env_step"):
        pow(7, 60_000)
    for env in range(8):
        with hotloop.profile("replay_push"):
            pow(7, 40_000)
    hotloop.progress(env_steps=8)
"""

# script -> its text, its arguments, the advice that it is for, a piece of the command that tests it
SCRIPTS = {
    "network": (NETWORK, (), "try_one_thread", "hotloop try --only threads "),
    "logs": (LOGS, ("--log-interval", "1"), "logging_too_often", "hotloop prove runs/a N"),
    "objects": (OBJECTS, (), "garbage_collection_pauses", "hotloop prove runs/a N"),
    "stores": (STORES, (), "replay_item_by_item", "make the change, then run: hotloop prove runs/a N --rev"),
}
LIMITS = {"hotloop prove": "--budget 6s", "hotloop try": "--budget 6s --stop"}


def printed(report: str) -> list[str]:
    """The commands under `Next`, joined where they go on after a backslash."""
    lines = report.split("Next\n", 1)[1].replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if line.strip().startswith(("hotloop ", "OMP_"))]


def run_as_printed(command: str) -> None:
    for words, limit in LIMITS.items():
        command = command.replace(words, f"{words} {limit}", 1)
    done = subprocess.run(command, shell=True, env=environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


# Two compute threads on a busy machine wait for each other at every update: minutes for seconds of work.
# One of the others is enough for every change; the rest are for `make test-long`.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "objects" else pytest.mark.long) for name in SCRIPTS]
)
def test_every_command_of_a_report_works(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, arguments, expected, command = SCRIPTS[name]
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(text)
    if name == "stores":  # a project: the change is compared with the last commit
        for words in (["init"], ["add", "train.py"], ["commit", "-m", "before"]):
            who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
            subprocess.run(["git", *who, *words], check=True, capture_output=True)
    hotloop("run", "--capture", "runs/a", "--", sys.executable, "train.py", *arguments)
    findings = json.loads(hotloop("report", "runs/a", "--json").stdout)
    tests = {r["name"]: r["prove_command"] for r in findings["recommendations"] if r["prove_command"]}
    assert command in re.sub(r"prove runs/a \d+", "prove runs/a N", tests[expected])
    following = printed(hotloop("report", "runs/a").stdout)
    assert any(line.startswith("hotloop report runs/a -o") for line in following)
    by_hand = [test for test in tests.values() if test.startswith("make the change")]
    if by_hand:
        script.write_text(text + "\n# changed\n")
    for test in dict.fromkeys([*tests.values(), *following]):
        run_as_printed(re.sub(r"^make the change, then [a-z ]+: ", "", test))
