"""Vector envs, data loaders, loggers; helpers for scripts; and that everything can be removed again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotloop._util.errors import HotloopError
from hotloop.instrument import live_metrics
from hotloop.instrument.live_metrics import Reading, diagnose
from hotloop.instrument.stable_baselines3 import _count_rows
from hotloop.measure.profiler import default
from tests.processes.library_runs import needs, plain, record

WORKERS = """
import csv, json, sys
import gymnasium, numpy as np, torch
from torch.utils.data import DataLoader, TensorDataset

def make():
    return gymnasium.make("CartPole-v1")

def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    envs = gymnasium.vector.AsyncVectorEnv([make, make])
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    observations, _ = envs.reset(seed=0)
    kept = []
    for _ in range(60):
        with torch.no_grad():
            actions = net(torch.as_tensor(observations)).argmax(1).numpy()
        observations, *_ = envs.step(actions)
        kept.append(torch.as_tensor(observations))
    envs.close()
    data = TensorDataset(torch.cat(kept))
    with open("log.csv", "w") as file:
        writer = csv.DictWriter(file, ["loss"])
        writer.writeheader()
        for (batch,) in DataLoader(data, batch_size=20, num_workers=2):
            loss = net(batch).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            writer.writerow({"loss": float(loss)})
    with open("log.json", "w") as file:
        json.dump({"loss": float(loss)}, file)
    print("weights", digest(net.parameters()))

if __name__ == "__main__":
    main()
"""


@pytest.mark.long
def test_async_envs_a_data_loader_with_workers_and_files(tmp_path: Path) -> None:
    run = record(tmp_path, WORKERS)
    assert run.out == plain(tmp_path, WORKERS)
    expected = {
        "env_step": 60,
        "AsyncVectorEnv.step": 60,
        "policy_forward": 60,
        "data_load": 7,  # six batches, and the question whether there is another
        "learner_forward": 6,
        "backward": 6,
        "optimizer_step": 6,
        "log": 1 + 6 + 1,  # header, rows, the json file
    }
    assert run.calls(*expected) == expected
    assert 110 < run.capture.progress.env_steps <= 120  # rows that were only reset are not steps
    stepping = [p for p in run.capture.processes if run.calls_in(p, "CartPoleEnv.step")["CartPoleEnv.step"]]
    assert len(stepping) == 2
    assert run.attributed() >= 0.95
    facts = {entry["pid"]: entry for entry in run.capture.facts["libraries"]}[run.main.pid]
    assert facts["envs"] == [{"id": "", "class": "AsyncVectorEnv", "num_envs": 2}]
    assert facts["optimizers"] == [
        {"class": "SGD", "parameters": 10, "dtypes": ["float32"], "largest": [2, 4], "steps": 6}
    ]
    assert run.main.thread_settings[-1].values["torch"] == 1  # the script sets it


TENSORBOARD = """
class SummaryWriter:
    def add_scalar(self, name, value, step):
        print(name, value, step)
    def add_scalars(self, names, values, step):
        self.add_scalar(names, values, step)
    def flush(self):
        pass
"""
WANDB = """
class Run:
    def log(self, data, step=None):
        print(data)
    def finish(self):
        pass
"""
LOGGING = """
import tensorboardX.writer, wandb.sdk.wandb_run
writer = tensorboardX.writer.SummaryWriter()
for i in range(5):
    writer.add_scalar("a", i, i)
writer.add_scalars("b", 1, 1)
writer.flush()
run = wandb.sdk.wandb_run.Run()
run.log({"a": 1})
run.finish()
"""


def test_loggers_by_stand_ins_with_their_names(tmp_path: Path) -> None:
    for module, text in (("tensorboardX/writer", TENSORBOARD), ("wandb/sdk/wandb_run", WANDB)):
        file = tmp_path / f"{module}.py"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    run = record(tmp_path, LOGGING)
    assert run.out == plain(tmp_path, LOGGING)
    assert run.calls("log") == {"log": 5 + 1 + 1 + 2}


REMOVED = """
import warnings
warnings.filterwarnings("ignore")
import csv, json, sys
import gymnasium, stable_baselines3, sb3_contrib, torch, torchrl.collectors, torchrl.objectives
from hotloop.instrument import libraries

ours = ("gymnasium", "stable_baselines3", "sb3_contrib", "torchrl", "tensordict", "torch.nn.modules.module",
        "torch.optim.optimizer", "torch.utils.data", "csv", "json", "multiprocessing", "queue")

def everything():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith(ours):
            for key, value in list(vars(module).items()):
                found[name, key] = id(value)
                if isinstance(value, type) and not key.startswith("__"):
                    for attribute, inner in list(vars(value).items()):
                        if attribute not in ("__abstractmethods__", "_abc_impl", "__weakref__"):
                            found[name, key, attribute] = id(inner)
    return found

assert libraries.current is None
before = everything()
instrument = libraries.Instrumentation()
instrument.install()
during = everything()
stuck = instrument.remove()
after = everything()
print(len([k for k in during if during[k] != before.get(k)]) > 200, stuck, instrument.failures)
print([k for k in {**before, **after} if before.get(k) != after.get(k)])
"""


@pytest.mark.long
@needs("torchrl", "sb3_contrib")
def test_everything_can_be_taken_out_again(tmp_path: Path) -> None:
    assert plain(tmp_path, REMOVED) == "True [] []\n[]\n"


HELPERS = """
import warnings
warnings.filterwarnings("ignore")
import sys, time
import gymnasium, torch
from stable_baselines3 import PPO
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecEnv
from hotloop.instrument import libraries
from hotloop.instrument.live_metrics import HotloopCallback, Meter, ProfiledEnv, TorchRLHook, write_scalars
from hotloop.measure.profiler import default

class Slow(gymnasium.Wrapper):
    def step(self, action):
        time.sleep(0.002)
        return self.env.step(action)

torch.set_num_threads(1)
step = VecEnv.step
lines = []
model = PPO("MlpPolicy", Slow(gymnasium.make("CartPole-v1")), n_steps=64, batch_size=64, seed=0)
model.set_logger(configure("logs", ["csv"]))
model.learn(256, callback=HotloopCallback(every_s=0.2, say=lines.append))
print(len(lines) >= 2, lines[0])
with open("logs/progress.csv") as file:
    header = file.readline()
print(all(name in header for name in ("perf/sps", "perf/share_environment", "perf/bottleneck")))
print(libraries.current, VecEnv.step is step, default.is_recording)

env = ProfiledEnv(gymnasium.make("CartPole-v1"))
meter = Meter()
env.reset(seed=0)
for i in range(100):
    if any(env.step(i % 2)[2:4]):
        env.reset()
reading = meter.read()
print(reading.env_steps, default.stats()["env_step"].calls, abs(sum(reading.shares.values()) - 1) < 1e-9)
hook = TorchRLHook(every_s=0.0, say=lambda line: None)
env.step(0)
print(sorted(set(hook()) & {"perf/sps", "perf/share_environment"}))
class Writer:
    def add_scalar(self, name, value, step): print(name.split("/")[0], type(value).__name__, step)
    def add_text(self, name, value, step): print(name, value)
write_scalars(Writer(), type(reading)(1.0, 10, {"environment": 1.0}, "environment", ""), 7)
class Run:
    def log(self, data, step): print(data, step)
write_scalars(Run(), type(reading)(1.0, 10, {"environment": 1.0}, "environment", ""), 7)
hook.close()
meter.close()
print(libraries.current, default.is_recording)
"""


@pytest.mark.long
@needs("stable_baselines3")
def test_helpers_in_a_separate_script(tmp_path: Path) -> None:
    said = plain(tmp_path, HELPERS).splitlines()
    assert said[0].startswith("True hotloop: ") and said[0].endswith(" % for env")
    assert said[1:] == [
        "True",
        "None True False",
        "100 100 True",
        "['perf/share_environment', 'perf/sps']",
        "perf float 7",
        "perf float 7",
        "perf/bottleneck environment",
        "{'perf/sps': 10.0, 'perf/share_environment': 1.0, 'perf/bottleneck': 'environment'} 7",
        "None False",
    ]


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        ({"environment": 0.3, "wait": 0.11, "policy": 0.2}, "learner waits 41 % for env"),
        ({"policy": 0.5, "environment": 0.4}, "env waits 50 % for the policy"),
        ({"backward": 0.3, "optimizer": 0.2, "environment": 0.4}, "env waits 50 % for the learner"),
        ({"evaluation": 0.4, "logging": 0.2, "policy": 0.3}, "training waits 60 % for evaluation"),
        ({"compilation": 0.6, "environment": 0.3}, "60 % goes to compilation"),
        ({"framework": 0.7}, "70 % goes to the framework around it all"),
        ({"other": 1.0}, "nothing was recorded"),
    ],
)
def test_the_diagnosis_names_the_side_that_waits(shares: dict[str, float], says: str) -> None:
    assert diagnose(shares) == says


def test_no_steps_is_not_zero_steps_a_second() -> None:
    reading = Reading(1.0, 0, {"policy": 1.0}, "policy", "")
    assert reading.sps is None and "perf/sps" not in reading.scalars


def test_unknown_names_and_writers_are_refused() -> None:
    with pytest.raises(AttributeError, match="it offers HotloopCallback"):
        live_metrics.Nothing  # noqa: B018
    with pytest.raises(HotloopError, match="neither a SummaryWriter"):
        live_metrics.write_scalars(object(), Reading(1.0, 0, {}, None, ""), 0)


COMPILED = """
import warnings
warnings.filterwarnings("ignore")
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

torch.manual_seed(0)
module = TensorDictModule(torch.nn.Linear(4, 2), in_keys=["a"], out_keys=["b"])

def work(data):
    copy = data.clone()
    copy.update({"c": copy["a"] + 1})
    return module(copy)["b"].sum() + torch.stack([copy, copy])["c"].sum()

data = TensorDict({"a": torch.ones(2, 4)}, [2])
print(torch.equal(torch.compile(work, backend="eager", fullgraph=True)(data), work(data)))
"""


@pytest.mark.long
@needs("tensordict")
def test_code_that_torch_compiles_is_left_alone(tmp_path: Path) -> None:
    run = record(tmp_path, COMPILED)
    assert run.out == "True\n"
    assert run.calls("TensorDict.clone", "learner_forward") == {"TensorDict.clone": 1, "learner_forward": 1}


JIT = """
import numba, torch

@numba.njit
def add(x):
    return x + 1

add(1), add(2), add(1.5)

torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
compiled = torch.compile(net, backend="aot_eager")
for rows in (3, 3, 3):
    compiled(torch.ones(rows, 4)).sum().backward()
print("same gradient" if (net.weight.grad == 9).all() else net.weight.grad)
"""


@pytest.mark.long
def test_compilation_has_its_own_region(tmp_path: Path) -> None:
    run = record(tmp_path, JIT)
    assert run.out == "same gradient\n"
    assert run.calls("compile", "learner_forward", "backward") == {
        "compile": 2 + 1,  # for int and float; one graph
        "learner_forward": 3,
        "backward": 3,
    }
    (node,) = [n for n in run.main.threads[0].root.children if n.name == "compile"]
    assert node.category == "compilation"


EVALUATION_LOOP = """
class _EvaluationLoop:
    def __init__(self, step):
        self.step = step
    def run(self):
        for _ in range(3):
            self.step()
"""
COMPILER = """
def compile_or_get_cached(what):
    return what
"""
STAND_INS = """
import torch
import jax._src.compiler
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop

torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

def training_step():
    optimizer.zero_grad()
    loss = net(torch.ones(3, 4)).sum()
    loss.backward()
    return loss

def validation_step():
    with torch.no_grad():
        net(torch.ones(3, 4))

for _ in range(2):
    optimizer.step(training_step)  # as Lightning does
    _EvaluationLoop(validation_step).run()
print(jax._src.compiler.compile_or_get_cached("code"))
"""


def test_lightning_and_jax_by_stand_ins_with_their_names(tmp_path: Path) -> None:
    for module, text in (
        ("lightning/pytorch/loops/evaluation_loop", EVALUATION_LOOP),
        ("jax/_src/compiler", COMPILER),
    ):
        file = tmp_path / f"{module}.py"
        file.parent.mkdir(parents=True)
        file.write_text(text)
        for folder in file.relative_to(tmp_path).parents[:-1]:
            (tmp_path / folder / "__init__.py").touch()  # comes before the real one where that is installed
    run = record(tmp_path, STAND_INS)
    assert run.out == "code\n"
    expected = {"evaluate": 2, "evaluate_forward": 6, "policy_forward": 0, "compile": 1}
    expected |= {"optimizer_step": 2, "learner_forward": 2, "backward": 2}
    assert run.calls(*expected) == expected
    assert run.under("optimizer_step")["learner_forward"] == 2
    assert run.capture.progress.updates == 2


def test_returns_without_a_monitor_are_added_up_from_rewards() -> None:
    class Env:
        pass

    env, length = Env(), 515
    default.start()
    try:
        for step in range(1, length + 1):
            rewards = np.array([1.0, 0.5])
            dones = np.array([step == length, step % 10 == 0])
            _count_rows(env, (None, rewards, dones, [{}, {}]))
            rewards += 100  # PPO does so when it adds the value of a truncated episode's last state
        progress = default.capture().progress
    finally:
        default.stop()
    short = length // 10
    assert (progress.env_steps, progress.episodes) == (2 * length, 1 + short)
    assert progress.length_sum == length + 10 * short
    assert progress.return_sum == length + 5.0 * short
