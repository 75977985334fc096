"""Dueling double DQN on CartPole with TorchRL's replay buffer and tensordicts, loop written by hand."""
import argparse
import json
import time

import gymnasium as gym
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

torch.set_num_threads(1)


class Dueling(nn.Module):
    def __init__(self, n_obs, n_act, width=128):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_obs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.value, self.advantage = nn.Linear(width, 1), nn.Linear(width, n_act)

    def forward(self, x):
        h = self.body(x)
        adv = self.advantage(h)
        return self.value(h) + adv - adv.mean(-1, keepdim=True)


class Schedule:
    def __init__(self, start, end, over):
        self.start, self.end, self.over = start, end, over

    def __call__(self, t):
        return self.end + (self.start - self.end) * max(0.0, 1.0 - t / self.over)


def train_step(q, target, opt, batch, gamma):
    with torch.no_grad():
        best = q(batch["next_obs"]).argmax(-1, keepdim=True)
        y = batch["reward"] + gamma * (1.0 - batch["done"]) * target(batch["next_obs"]).gather(-1, best).squeeze(-1)
    value = q(batch["obs"]).gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
    loss = nn.functional.smooth_l1_loss(value, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--frames", type=int, default=4000)
    ap.add_argument("--batch-size", type=int, default=128)
    ap.add_argument("--warm-up", type=int, default=300)
    ap.add_argument("--train-every", type=int, default=2)
    args = ap.parse_args()
    torch.manual_seed(0)
    env = gym.make("CartPole-v1")
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10000), batch_size=args.batch_size)
    q, target = Dueling(4, 2), Dueling(4, 2)
    target.load_state_dict(q.state_dict())
    opt = torch.optim.AdamW(q.parameters(), lr=5e-4)
    eps = Schedule(1.0, 0.05, args.frames // 2)

    obs, _ = env.reset(seed=0)
    env.action_space.seed(0)
    obs = torch.from_numpy(obs)
    lengths, length, updates, losses, t0 = [], 0, 0, 0.0, None
    for frame in range(args.frames):
        if frame == args.frames // 5:
            t0 = time.perf_counter()
        if torch.rand(()).item() < eps(frame):
            action = int(env.action_space.sample())
        else:
            with torch.no_grad():
                action = int(q(obs).argmax())
        nxt, reward, terminated, truncated, _ = env.step(action)
        nxt = torch.from_numpy(nxt)
        buffer.add(TensorDict({"obs": obs, "action": torch.tensor(action), "reward": torch.tensor(float(reward)),
                               "next_obs": nxt, "done": torch.tensor(float(terminated))}, batch_size=[]))
        obs, length = nxt, length + 1
        if terminated or truncated:
            lengths.append(length)
            length = 0
            obs = torch.from_numpy(env.reset()[0])
            if len(lengths) % 40 == 0:
                print(f"frame {frame + 1}: mean length of 40 episodes {sum(lengths[-40:]) / 40:.1f}")
        if frame >= args.warm_up and frame % args.train_every == 0:
            loss = train_step(q, target, opt, buffer.sample(), 0.99)
            updates += 1
            if updates % 50 == 0:
                losses += loss.item()
                target.load_state_dict(q.state_dict())
    rate = (args.frames - args.frames // 5) / (time.perf_counter() - t0)
    print(f"{len(lengths)} episodes, longest {max(lengths)}")
    print(json.dumps({"env_steps": args.frames, "updates": updates, "units_per_s": rate,
                      "checksum": losses + sum(lengths)}))


if __name__ == "__main__":
    main()
