"""DDPG with TorchRL on Pendulum."""
import argparse
import json
import time

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ListStorage, ReplayBuffer
from torchrl.data.replay_buffers.samplers import RandomSampler
from torchrl.envs import RewardSum, StepCounter, TransformedEnv
from torchrl.envs.libs.gym import GymEnv
from torchrl.modules import MLP, AdditiveGaussianModule, ValueOperator
from torchrl.objectives import DDPGLoss, SoftUpdate


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=50_000)
    parser.add_argument("--frames-per-batch", type=int, default=100)
    parser.add_argument("--utd", type=float, default=0.5, help="updates per collected frame")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--buffer-size", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args()


class ScaledTanh(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return self.scale * torch.tanh(x)


def make_env(seed):
    env = TransformedEnv(GymEnv("Pendulum-v1"), RewardSum())
    env.append_transform(StepCounter())
    env.set_seed(seed)
    return env


def make_models(env, width):
    n_obs, n_act = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    body = MLP(in_features=n_obs, out_features=n_act, num_cells=[width, width], activation_class=nn.ReLU)
    actor = TensorDictModule(nn.Sequential(body, ScaledTanh(2.0)), in_keys=["observation"], out_keys=["action"])
    critic = ValueOperator(
        MLP(in_features=n_obs + n_act, out_features=1, num_cells=[width, width], activation_class=nn.ReLU),
        in_keys=["observation", "action"],
    )
    return actor, critic


def make_buffer(args):
    return ReplayBuffer(
        storage=LazyTensorStorage(args.buffer_size),
        sampler=RandomSampler(),
        batch_size=args.batch_size,
    )


def main():
    args = parse()
    torch.manual_seed(args.seed)
    env = make_env(args.seed)
    actor, critic = make_models(env, args.width)
    noise = AdditiveGaussianModule(env.action_spec, sigma_init=0.5, sigma_end=0.1, annealing_num_steps=args.frames)
    explorer = TensorDictSequential(actor, noise)
    loss_module = DDPGLoss(actor_network=actor, value_network=critic, loss_function="l2", delay_actor=True, delay_value=True)
    loss_module.make_value_estimator(gamma=0.98)
    soft_update = SoftUpdate(loss_module, tau=0.005)
    actor_opt = torch.optim.Adam(loss_module.actor_network_params.flatten_keys().values(), lr=args.lr / 2, fused=True)
    critic_opt = torch.optim.Adam(loss_module.value_network_params.flatten_keys().values(), lr=args.lr, fused=True)
    collector = Collector(env, explorer, frames_per_batch=args.frames_per_batch, total_frames=args.frames)
    buffer = make_buffer(args)
    updates_per_batch = max(1, int(args.utd * args.frames_per_batch))
    n_batches = args.frames // args.frames_per_batch
    frames, updates, returns, t0 = 0, 0, [], None
    for i, data in enumerate(collector):
        if i == n_batches // 5:
            t0, frames_at_t0 = time.perf_counter(), frames
        noise.step(data.numel())
        frames += data.numel()
        finished = data["next", "done"].squeeze(-1)
        if finished.any():
            returns.extend(data["next", "episode_reward"][finished].flatten().tolist())
        buffer.extend(data.reshape(-1).select("observation", "action", ("next", "observation"), ("next", "reward"),
                                              ("next", "done"), ("next", "terminated")))
        for _ in range(updates_per_batch):
            batch = buffer.sample()
            losses = loss_module(batch)
            (losses["loss_actor"] + losses["loss_value"]).backward()
            actor_opt.step()
            critic_opt.step()
            actor_opt.zero_grad()
            critic_opt.zero_grad()
            soft_update.step()
            updates += 1
        if i % 5 == 0 and returns:
            print(f"{frames} frames, return {sum(returns[-10:]) / len(returns[-10:]):.0f}", flush=True)
    speed = (frames - frames_at_t0) / (time.perf_counter() - t0)
    collector.shutdown()
    checksum = sum(p.detach().double().abs().sum().item() for p in actor.parameters())
    print(json.dumps({"env_steps": frames, "updates": updates, "units_per_s": speed, "checksum": round(checksum, 4)}))


if __name__ == "__main__":
    main()
