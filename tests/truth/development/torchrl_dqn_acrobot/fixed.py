"""TorchRL DQN on Acrobot: collector, replay buffer, loss module and target updater of the library."""

import argparse
import json
import time
import warnings

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.modules import MLP, EGreedyModule, QValueModule
from torchrl.objectives import DQNLoss, SoftUpdate

warnings.filterwarnings("ignore")
FRAMES, UPDATES, BATCH = 64, 8, 128


def main(iterations):
    torch.manual_seed(6)
    torch.set_num_threads(1)
    env = TransformedEnv(GymEnv("Acrobot-v1", device="cpu"), StepCounter(300))
    env.set_seed(6)
    net = MLP(in_features=6, out_features=3, num_cells=[128, 128], activation_class=nn.ReLU)
    value = TensorDictModule(net, in_keys=["observation"], out_keys=["action_value"])
    policy = TensorDictSequential(value, QValueModule(spec=env.action_spec))
    explore = EGreedyModule(
        env.action_spec, eps_init=1.0, eps_end=0.05, annealing_num_steps=FRAMES * iterations // 2
    )
    behaviour = TensorDictSequential(policy, explore)
    collector = Collector(
        env,
        behaviour,
        frames_per_batch=FRAMES,
        total_frames=FRAMES * iterations,
        init_random_frames=0,
        device="cpu",
    )
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(max_size=10_000), batch_size=BATCH)
    loss_module = DQNLoss(policy, action_space=env.action_spec, delay_value=True, double_dqn=True)
    loss_module.make_value_estimator(gamma=0.99)
    updater = SoftUpdate(loss_module, eps=0.99)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=5e-4, fused=True)
    marks = []
    for data in collector:
        marks.append(time.perf_counter())
        explore.step(FRAMES)
        buffer.extend(data.reshape(-1))
        for _ in range(UPDATES):
            batch = buffer.sample()
            loss = loss_module(batch)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updater.step()
    marks.append(time.perf_counter())
    collector.shutdown()
    first = iterations // 5
    rate = (iterations - first) / (marks[-1] - marks[first])
    checksum = float(sum(p.detach().abs().sum() for p in loss_module.parameters()))
    result = {
        "env_steps": FRAMES * iterations,
        "updates": UPDATES * iterations,
        "units_per_s": rate,
        "checksum": checksum,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=80)
    main(parser.parse_args().iterations)
