"""DQN with TorchRL: collector, tensordict replay buffer, DQNLoss."""

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
from torchrl.modules import EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

warnings.filterwarnings("ignore")


def make_env():
    return TransformedEnv(GymEnv("CartPole-v1", device="cpu"), StepCounter(500))


def draw(buffer, n):
    """n transitions, drawn uniformly with replacement."""
    index = torch.randint(0, len(buffer), (n,))
    return torch.stack([buffer[i] for i in index.tolist()])


def main(total_frames, frames_per_batch, updates_per_batch):
    torch.manual_seed(6)
    env = make_env()
    env.set_seed(6)
    value_net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    qvalue = QValueActor(TensorDictModule(value_net, ["observation"], ["action_value"]), spec=env.action_spec)
    exploration = EGreedyModule(spec=env.action_spec, annealing_num_steps=total_frames // 2, eps_end=0.05)
    policy = TensorDictSequential(qvalue, exploration)
    collector = Collector(env, policy, frames_per_batch=frames_per_batch, total_frames=total_frames)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20_000))
    loss_module = DQNLoss(qvalue, action_space=env.action_spec, delay_value=True)
    loss_module.make_value_estimator(gamma=0.99)
    target_updater = SoftUpdate(loss_module, eps=0.99)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-3)

    frames = updates = 0
    start = None
    for data in collector:
        if start is None and frames >= total_frames // 5:
            start, before = time.perf_counter(), frames
        frames += data.numel()
        exploration.step(data.numel())
        buffer.extend(data.reshape(-1))
        for _ in range(updates_per_batch):
            batch = draw(buffer, 64)
            loss = loss_module(batch)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            target_updater.step()
            updates += 1
    rate = (frames - before) / (time.perf_counter() - start)
    collector.shutdown()
    checksum = float(sum(p.double().sum() for p in value_net.parameters()))
    print(json.dumps({"env_steps": frames, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--total-frames", type=int, default=5_120)
    parser.add_argument("--frames-per-batch", type=int, default=128)
    parser.add_argument("--updates-per-batch", type=int, default=32)
    main(**vars(parser.parse_args()))
