"""DDPG on Pendulum with TorchRL parts: GymEnv, collector, replay buffer, TensorDict modules."""
import argparse
import copy
import json
import time

import torch
from tensordict.nn import TensorDictModule as Mod
from tensordict.nn import TensorDictSequential as Seq
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv
from torchrl.modules import AdditiveGaussianModule, TanhModule

parser = argparse.ArgumentParser()
parser.add_argument("--frames", type=int, default=9000)
parser.add_argument("--frames-per-batch", type=int, default=200)
parser.add_argument("--updates-per-batch", type=int, default=10)
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(31)

env = GymEnv("Pendulum-v1")
env.set_seed(31)
hidden = 96


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, o))


actor = Seq(Mod(mlp(3, 1), in_keys=["observation"], out_keys=["param"]),
            TanhModule(in_keys=["param"], out_keys=["action"], spec=env.action_spec))
noise = AdditiveGaussianModule(spec=env.action_spec, sigma_init=0.6, sigma_end=0.1, annealing_num_steps=args.frames)
explore = Seq(actor, noise)
critic = mlp(4, 1)
t_actor, t_critic = copy.deepcopy(actor), copy.deepcopy(critic)
a_opt = torch.optim.Adam(actor.parameters(), 1e-3)
c_opt = torch.optim.Adam(critic.parameters(), 1e-3)

collector = Collector(env, explore, frames_per_batch=args.frames_per_batch, total_frames=args.frames)
buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20_000), batch_size=64)
pairs = [(list(t_actor.parameters()), list(actor.parameters())), (list(t_critic.parameters()), list(critic.parameters()))]

updates = seen = 0
t0 = n0 = None
for batch in collector:
    if t0 is None and seen >= args.frames // 5:
        t0, n0 = time.perf_counter(), seen
    buffer.extend(batch.select("observation", "action", "next"))
    seen += batch.numel()
    noise.step(batch.numel())
    for _ in range(args.updates_per_batch):
        td = buffer.sample()
        obs, act, nxt = td["observation"], td["action"], td["next"]
        with torch.no_grad():
            a2 = 2.0 * torch.tanh(t_actor[0].module(nxt["observation"]))
            y = nxt["reward"] + 0.98 * (~nxt["terminated"]) * t_critic(torch.cat([nxt["observation"], a2], -1))
        loss = nn.functional.mse_loss(critic(torch.cat([obs, act], -1)), y)
        c_opt.zero_grad()
        loss.backward()
        c_opt.step()
        a_loss = -critic(torch.cat([obs, 2.0 * torch.tanh(actor[0].module(obs))], -1)).mean()
        a_opt.zero_grad()
        a_loss.backward()
        a_opt.step()
        updates += 2
        with torch.no_grad():
            for shadow, source in pairs:
                torch._foreach_lerp_(shadow, source, 0.01)
    print(seen, "mean reward", round(batch["next", "reward"].mean().item(), 3))
rate = (seen - n0) / (time.perf_counter() - t0)
collector.shutdown()
print(json.dumps({"env_steps": seen, "updates": updates, "units_per_s": rate,
                  "checksum": sum(p.detach().double().sum().item() for p in [*actor.parameters(), *critic.parameters()])}))
