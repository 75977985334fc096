"""TorchRL PPO: hot-air balloons hold their altitude in changing winds. The env is batched, as TorchRL wants it."""
import argparse
import json
import time

import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import Bounded, Composite, LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement, Unbounded
from torchrl.envs import Compose, EnvBase, RewardSum, StepCounter, TransformedEnv
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

torch.set_num_threads(1)


class Balloons(EnvBase):
    """State: height, climb rate, envelope heat, updraft."""

    def __init__(self, n, seed):
        super().__init__(device="cpu", batch_size=[n])
        self.set_seed(seed)
        shape = torch.Size([n, 4])
        self.observation_spec = Composite(observation=Unbounded(shape), shape=[n])
        self.action_spec = Bounded(-1.0, 1.0, torch.Size([n, 1]))
        self.reward_spec = Unbounded(torch.Size([n, 1]))
        self.done_spec = Composite(
            done=Unbounded(torch.Size([n, 1]), dtype=torch.bool),
            terminated=Unbounded(torch.Size([n, 1]), dtype=torch.bool),
            shape=[n],
        )

    def _set_seed(self, seed):
        self.rng = torch.Generator().manual_seed(seed)

    def _draw(self):
        return torch.randn(*self.batch_size, 4, generator=self.rng) * torch.tensor([1.0, 0.1, 0.1, 0.3])

    def _reset(self, tensordict):
        obs = self._draw()
        if tensordict is not None and "_reset" in tensordict.keys():
            obs = torch.where(tensordict["_reset"].view(-1, 1), obs, self.now)
        self.now = obs
        done = torch.zeros(*self.batch_size, 1, dtype=torch.bool)
        return TensorDict({"observation": obs, "done": done, "terminated": done.clone()}, self.batch_size)

    def _step(self, tensordict):
        height, climb, heat, wind = tensordict["observation"].unbind(-1)
        burner = tensordict["action"].squeeze(-1).clamp(-1, 1)
        heat = 0.95 * heat + 0.1 * burner
        wind = 0.98 * wind + 0.05 * torch.randn(wind.shape, generator=self.rng)
        climb = 0.9 * climb + 0.1 * (heat + wind)
        height = height + 0.2 * climb
        obs = self.now = torch.stack([height, climb, heat, wind], -1)
        lost = (height.abs() > 4).unsqueeze(-1)
        reward = (1 - height.abs() - 0.05 * burner**2).unsqueeze(-1)
        return TensorDict({"observation": obs, "reward": reward, "done": lost, "terminated": lost.clone()}, self.batch_size)


def mlp(n_out, *tail):
    return nn.Sequential(nn.Linear(4, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, n_out), *tail)


def episode_stats(data):
    """Returns and lengths of the episodes that ended in this batch."""
    returns, lengths = [], []
    for frame in data.reshape(-1):
        if frame["next", "done"]:
            returns.append(frame["next", "episode_reward"].item())
            lengths.append(frame["next", "step_count"].item())
    return returns, lengths


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--balloons", type=int, default=64)
    parser.add_argument("--frames-per-batch", type=int, default=2048)
    parser.add_argument("--minibatch", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    torch.manual_seed(15)
    env = TransformedEnv(Balloons(args.balloons, 15), Compose(StepCounter(max_steps=100), RewardSum()))
    actor = ProbabilisticActor(
        TensorDictModule(mlp(2, NormalParamExtractor()), in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=TanhNormal,
        return_log_prob=True,
    )
    critic = ValueOperator(mlp(1), in_keys=["observation"])
    collector = Collector(
        env, actor, frames_per_batch=args.frames_per_batch, total_frames=args.batches * args.frames_per_batch
    )
    advantage = GAE(gamma=0.98, lmbda=0.95, value_network=critic, average_gae=True)
    objective = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_coeff=1e-3)
    optimizer = torch.optim.Adam(objective.parameters(), 3e-4, fused=True)
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(args.frames_per_batch), sampler=SamplerWithoutReplacement(), batch_size=args.minibatch
    )
    updates, history = 0, []
    for i, data in enumerate(collector):
        if i == args.batches // 5:
            began = time.perf_counter()
        returns, lengths = episode_stats(data)
        if returns:
            history.append(sum(returns) / len(returns))
            if i % 10 == 0:
                print(f"batch {i}: return {history[-1]:.2f}, length {sum(lengths) / len(lengths):.1f}")
        with torch.no_grad():
            advantage(data)
        buffer.extend(data.reshape(-1))
        for _ in range(args.epochs * args.frames_per_batch // args.minibatch):
            losses = objective(buffer.sample())
            loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
    rate = (args.batches - args.batches // 5) / (time.perf_counter() - began)
    collector.shutdown()
    check = sum(p.detach().double().abs().sum().item() for p in objective.parameters()) + sum(history)
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main()
