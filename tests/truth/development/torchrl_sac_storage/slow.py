"""SAC with TorchRL components on Pendulum."""

import argparse
import json
import time

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import ListStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, RewardSum, TransformedEnv
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, SoftUpdate

torch.set_num_threads(1)


def make_env():
    env = TransformedEnv(GymEnv("Pendulum-v1"))
    env.append_transform(RewardSum())
    return env


def make_models(env, width):
    obs_dim = env.observation_spec["observation"].shape[-1]
    act_dim = env.action_spec.shape[-1]
    actor_net = nn.Sequential(
        MLP(
            in_features=obs_dim, out_features=2 * act_dim, num_cells=[width, width], activation_class=nn.ReLU
        ),
        NormalParamExtractor(),
    )
    actor = ProbabilisticActor(
        TensorDictModule(actor_net, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": env.action_spec.space.low, "high": env.action_spec.space.high},
    )
    q_net = MLP(
        in_features=obs_dim + act_dim, out_features=1, num_cells=[width, width], activation_class=nn.ReLU
    )
    qvalue = ValueOperator(q_net, in_keys=["observation", "action"])
    return actor, qvalue


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=2500)
    parser.add_argument("--frames-per-batch", type=int, default=50)
    parser.add_argument("--init-frames", type=int, default=200)
    parser.add_argument("--updates-per-batch", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    env = make_env()
    env.set_seed(args.seed)
    actor, qvalue = make_models(env, args.width)

    loss_module = SACLoss(actor, qvalue, num_qvalue_nets=2, fixed_alpha=True, alpha_init=0.1)
    loss_module.make_value_estimator(gamma=0.99)
    target_updater = SoftUpdate(loss_module, tau=0.005)
    params = [p for p in loss_module.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(params, lr=args.lr, fused=True)

    replay_buffer = TensorDictReplayBuffer(storage=ListStorage(10_000), batch_size=args.batch_size)
    collector = Collector(
        env,
        actor,
        frames_per_batch=args.frames_per_batch,
        total_frames=args.frames,
        init_random_frames=args.init_frames,
    )

    batches = args.frames // args.frames_per_batch
    mark = batches // 5
    updates = 0
    for i, data in enumerate(collector):
        if i == mark:
            start = time.perf_counter()
        replay_buffer.extend(data.reshape(-1))
        finished = data["next", "done"].squeeze(-1)
        if finished.any():
            print(f"batch {i}: return {data['next', 'episode_reward'][finished].mean().item():.1f}")
        if (i + 1) * args.frames_per_batch < args.init_frames:
            continue
        for _ in range(args.updates_per_batch):
            losses = loss_module(replay_buffer.sample())
            loss = losses["loss_actor"] + losses["loss_qvalue"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            target_updater.step()
            updates += 1
    seconds = time.perf_counter() - start
    collector.shutdown()

    print(
        json.dumps(
            {
                "env_steps": args.frames,
                "updates": updates,
                "units_per_s": (batches - mark) / seconds,
                "checksum": sum(p.double().abs().sum().item() for p in params),
            }
        )
    )


if __name__ == "__main__":
    main()
