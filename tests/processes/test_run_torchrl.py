"""TorchRL scripts, unmodified: exact counts, unchanged weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.library_runs import Run, needs, plain, record

pytestmark = needs("torchrl")

PPO = """
import sys, warnings
warnings.filterwarnings("ignore")
import torch
import torchrl.collectors
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from torchrl.envs import GymEnv, ParallelEnv, SerialEnv, StepCounter, TransformedEnv
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

# the name it had up to version 0.10
Collector = getattr(torchrl.collectors, "SyncDataCollector", None) or torchrl.collectors.Collector

def make():
    return TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), StepCounter())

def net(out):
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, out))

def main(kind):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    env = make() if kind == "one" else (SerialEnv if kind == "serial" else ParallelEnv)(2, make)
    env.set_seed(0)
    logits = TensorDictModule(net(2), in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(logits, in_keys=["logits"], out_keys=["action"], return_log_prob=True,
                               distribution_class=torch.distributions.Categorical, spec=env.action_spec)
    value = ValueOperator(net(1), in_keys=["observation"])
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=value)
    loss = ClipPPOLoss(actor, value)
    optimizer = torch.optim.Adam(loss.parameters(), 1e-3)
    buffer = ReplayBuffer(storage=LazyTensorStorage(64), sampler=SamplerWithoutReplacement(), batch_size=16)
    collector = Collector(env, actor, frames_per_batch=64, total_frames=256)
    done = 0
    for data in collector:
        done += int(data["next", "done"].sum())
        for _ in range(2):
            gae(data)
            buffer.extend(data.reshape(-1))
            for _ in range(4):
                losses = loss(buffer.sample())
                total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                optimizer.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
        collector.update_policy_weights_()
    collector.shutdown()
    print("weights", digest(loss.parameters()), done)

if __name__ == "__main__":
    main(sys.argv[1])
"""
# 256 frames in 4 batches; 2 epochs of 4 minibatches; two networks in the loss, one in GAE.
PRESCRIBED = {
    "collect_rollouts": 4,
    "advantage": 8,
    "replay_push": 8,
    "replay_sample": 32,
    "loss": 32,
    "learner_forward": 2 * 32 + 8,
    "zero_grad": 32,
    "backward": 32,
    "clip_grad_norm": 32,
    "optimizer_step": 32,
    "weights_sync": 4,
}


def check(run: Run, width: int) -> None:
    assert run.calls(*PRESCRIBED) == PRESCRIBED
    collected = run.under("collect_rollouts")
    assert collected["env_step"] == collected["policy_forward"] == 256 // width
    assert run.calls("policy_forward", "collector_setup") == {
        "policy_forward": 256 // width,
        "collector_setup": 1,
    }
    progress = run.capture.progress
    assert (progress.env_steps, progress.updates) == (256, 32)
    assert progress.episodes == int(run.out.split()[-1])
    assert progress.mean_return == progress.mean_length  # CartPole pays 1 a step
    assert run.attributed() >= 0.95


@pytest.mark.long
def test_ppo_with_its_collector(tmp_path: Path) -> None:
    run = record(tmp_path, PPO, "one")
    check(run, 1)
    assert run.out.splitlines()[-1] == plain(tmp_path, PPO, "one").splitlines()[-1]
    collected = run.under("collect_rollouts")
    assert collected["CartPoleEnv.step"] == collected["step_mdp"] == 256
    assert collected["env_reset"] == run.capture.progress.episodes
    assert run.under("loss")["learner_forward"] == 64
    assert run.under("advantage")["learner_forward"] == 8
    work = run.under("tensordict")
    assert {"TensorDict.clone", "TensorDict.update", "TensorDict.stack"} <= set(work)
    assert "tensordict" not in run.under("replay_sample")  # that is the buffer's own work


@pytest.mark.long
@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_several_envs_count_once(tmp_path: Path, kind: str) -> None:
    run = record(tmp_path, PPO, kind)
    check(run, 2)
    assert run.out.splitlines()[-1] == plain(tmp_path, PPO, kind).splitlines()[-1]
    if kind == "parallel":
        assert run.under("env_step")["ipc_wait"] == 128
        workers = [p for p in run.capture.processes if p is not run.main]
        assert len(workers) == 2
        for worker in workers:
            stepped = run.calls_in(worker, "CartPoleEnv.step")
            assert stepped == {"CartPoleEnv.step": 128}
            assert worker.threads[0].progress.env_steps == 0


LOOP = """
import warnings
warnings.filterwarnings("ignore")
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.envs import GymEnv, SerialEnv, step_mdp

torch.set_num_threads(1)
torch.manual_seed(0)
env = SerialEnv(2, lambda: GymEnv("CartPole-v1", categorical_action_encoding=True))
env.set_seed(0)
net = nn.Linear(4, 2)
policy = TensorDictModule(lambda x: net(x).argmax(-1), in_keys=["observation"], out_keys=["action"])
online = TensorDictModule(net, in_keys=["observation"], out_keys=["values"])
target = TensorDictModule(nn.Linear(4, 2), in_keys=["observation"], out_keys=["values"])
optimizer = torch.optim.Adam(net.parameters())
kept = []
data = env.reset()
for step in range(60):
    data = env.step(policy(data))
    kept.append(data)
    data = step_mdp(data)
    if step >= 10:
        batch = torch.cat([kept[i] for i in torch.randint(len(kept), (8,))])
        with torch.no_grad():
            goal = target(batch["next"].select("observation"))["values"].max(-1).values
        loss = (online(batch.select("observation"))["values"].max(-1).values - goal).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("weights", digest(net.parameters()))
"""


@pytest.mark.long
def test_a_loop_written_by_hand(tmp_path: Path) -> None:
    run = record(tmp_path, LOOP)
    assert run.out == plain(tmp_path, LOOP)
    expected = {"policy_forward": 60, "learner_forward": 2 * 50, "optimizer_step": 50, "policy_rest": 0}
    assert run.calls(*expected) == expected
    assert (run.capture.progress.env_steps, run.capture.progress.updates) == (120, 50)
    (facts,) = run.capture.facts["libraries"]
    assert facts["envs"] == [{"id": "", "class": "SerialEnv", "num_envs": 2}]
