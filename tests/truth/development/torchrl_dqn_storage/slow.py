"""DQN with TorchRL: collector, replay buffer, loss module, soft target updates."""

import argparse
import json
import time
import warnings

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import ListStorage, OneHot, TensorDictReplayBuffer
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.modules import MLP, EGreedyModule, QValueModule
from torchrl.objectives import DQNLoss, SoftUpdate

warnings.filterwarnings("ignore")


def make_env(seed):
    env = TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=False), StepCounter())
    env.set_seed(seed)
    return env


def make_model(env):
    n_act = env.action_spec.shape[-1]
    mlp = MLP(in_features=4, out_features=n_act, num_cells=[120, 84])
    net = TensorDictModule(mlp, in_keys=["observation"], out_keys=["action_value"])
    return TensorDictSequential(net, QValueModule(spec=OneHot(n_act)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=3200)
    parser.add_argument("--frames-per-batch", type=int, default=32)
    parser.add_argument("--utd", type=int, default=8, help="gradient steps per batch of frames")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--buffer-size", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)

    env = make_env(args.seed)
    model = make_model(env)
    explore = EGreedyModule(env.action_spec, annealing_num_steps=args.frames, eps_init=1.0, eps_end=0.05)
    collector = Collector(
        env,
        TensorDictSequential(model, explore),
        frames_per_batch=args.frames_per_batch,
        total_frames=args.frames,
        init_random_frames=0,
    )
    buffer = TensorDictReplayBuffer(storage=ListStorage(args.buffer_size), batch_size=args.batch_size)
    loss_module = DQNLoss(value_network=model, loss_function="l2", delay_value=True, action_space="one-hot")
    loss_module.make_value_estimator(gamma=0.99)
    target_updater = SoftUpdate(loss_module, eps=0.995)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=2.5e-4)

    n_batches = args.frames // args.frames_per_batch
    updates = 0
    tick, tick_batch = time.perf_counter(), 0
    for i, data in enumerate(collector):
        if i == n_batches // 5:
            tick, tick_batch = time.perf_counter(), i
        explore.step(data.numel())
        buffer.extend(data.reshape(-1))
        for _ in range(args.utd):
            batch = buffer.sample()
            loss = loss_module(batch)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            target_updater.step()
            updates += 1
        if i % 25 == 0:
            print(f"batch {i}: loss {loss.item():.4f}, longest episode {int(data['step_count'].max())}")
    took = time.perf_counter() - tick
    collector.shutdown()

    checksum = sum(p.detach().double().sum().item() for p in model.parameters())
    print(
        json.dumps(
            {
                "env_steps": args.frames,
                "updates": updates,
                "units_per_s": (n_batches - tick_batch) / took,
                "checksum": checksum,
            }
        )
    )


if __name__ == "__main__":
    main()
