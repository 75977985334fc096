"""PPO for the pendulum with TorchRL's collector, loss and advantage modules."""
import argparse
import json
import time
import warnings

warnings.filterwarnings("ignore")

import torch
from tensordict.nn import TensorDictModule
from tensordict.nn.distributions import NormalParamExtractor
from torch import nn
from torchrl.collectors import Collector
from torchrl.data.replay_buffers import ReplayBuffer, SamplerWithoutReplacement
from torchrl.data.replay_buffers.storages import LazyTensorStorage
from torchrl.envs import GymEnv, RewardSum, StepCounter, TransformedEnv
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=20480)
    parser.add_argument("--frames-per-batch", type=int, default=1024)
    parser.add_argument("--minibatch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    torch.manual_seed(8)
    torch.set_num_threads(1)

    env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter())
    env.append_transform(RewardSum())
    env.set_seed(8)
    low, high = env.action_spec.space.low, env.action_spec.space.high
    policy = ProbabilisticActor(
        TensorDictModule(nn.Sequential(mlp(3, 2), NormalParamExtractor()), in_keys=["observation"], out_keys=["loc", "scale"]),
        spec=env.action_spec, in_keys=["loc", "scale"], distribution_class=TanhNormal,
        distribution_kwargs={"low": low, "high": high}, return_log_prob=True)
    value = ValueOperator(mlp(3, 1), in_keys=["observation"])
    advantage = GAE(gamma=0.95, lmbda=0.9, value_network=value, average_gae=True)
    objective = ClipPPOLoss(policy, value, clip_epsilon=0.2, entropy_coeff=1e-3, critic_coeff=1.0)
    optimizer = torch.optim.Adam(objective.parameters(), lr=1e-3)
    buffer = ReplayBuffer(storage=LazyTensorStorage(args.frames_per_batch), sampler=SamplerWithoutReplacement(),
                          batch_size=args.minibatch)
    collector = Collector(env, policy, frames_per_batch=args.frames_per_batch, total_frames=args.frames)

    updates, seen, start, marked = 0, 0, None, 0
    for batch in collector:
        for _ in range(args.epochs):
            advantage(batch)
            buffer.empty()
            buffer.extend(batch.reshape(-1))
            for _ in range(args.frames_per_batch // args.minibatch):
                losses = objective(buffer.sample())
                loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(objective.parameters(), 0.5)
                optimizer.step()
                updates += 1
        seen += batch.numel()
        final = batch["next", "episode_reward"][batch["next", "done"]]
        print(f"{seen:6d} frames: return {final.mean().item():8.1f}", flush=True)
        if start is None and seen >= args.frames // 5:
            start, marked = time.perf_counter(), seen
    rate = (seen - marked) / (time.perf_counter() - start)
    collector.shutdown()
    checksum = float(sum(p.detach().double().abs().sum() for p in objective.parameters()))
    print(json.dumps({"env_steps": seen, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
