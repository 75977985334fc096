import argparse
import asyncio
import json
import time
from dataclasses import dataclass, field

import gymnasium as gym
import numpy as np
import torch
from torch import nn


@dataclass
class Trajectory:
    obs: list = field(default_factory=list)
    actions: list = field(default_factory=list)
    rewards: list = field(default_factory=list)
    last_obs: np.ndarray | None = None
    ended: bool = False


class Inbox:
    """Hands trajectories from actors to the learner, in order of arrival."""

    def __init__(self):
        self.items = asyncio.Queue()

    def put(self, item):
        self.items.put_nowait(item)

    async def get(self):
        return await self.items.get()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 64), nn.Tanh())
        self.logits = nn.Linear(64, 2)
        self.value = nn.Linear(64, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.logits(h), self.value(h).squeeze(-1)


class Actor:
    def __init__(self, model, inbox, seed, horizon):
        self.model, self.inbox, self.horizon = model, inbox, horizon
        self.env = gym.make("CartPole-v1")
        self.rng = np.random.default_rng(seed)
        self.obs, _ = self.env.reset(seed=seed)
        self.go = asyncio.Event()
        self.go.set()

    async def run(self):
        while True:
            await self.go.wait()
            self.go.clear()
            self.inbox.put((self, self.collect()))

    @torch.no_grad()
    def collect(self):
        traj = Trajectory()
        for _ in range(self.horizon):
            logits, _ = self.model(torch.from_numpy(self.obs))
            p = 1.0 / (1.0 + float(torch.exp(logits[0] - logits[1])))
            action = int(self.rng.random() < p)
            traj.obs.append(self.obs)
            traj.actions.append(action)
            self.obs, reward, term, trunc, _ = self.env.step(action)
            traj.rewards.append(float(reward))
            if term or trunc:
                traj.ended = term
                traj.last_obs = self.obs
                self.obs, _ = self.env.reset()
                break
        else:
            traj.last_obs = self.obs
        return traj


def learn(model, opt, traj, gamma=0.99):
    obs = torch.from_numpy(np.stack([*traj.obs, traj.last_obs]))
    logits, values = model(obs)
    ret = 0.0 if traj.ended else float(values[-1].detach())
    returns = []
    for r in reversed(traj.rewards):
        ret = r + gamma * ret
        returns.append(ret)
    returns = torch.tensor(returns[::-1])
    adv = returns - values[:-1]
    logp = torch.log_softmax(logits[:-1], -1)
    chosen = logp.gather(1, torch.tensor(traj.actions)[:, None]).squeeze(1)
    entropy = -(logp.exp() * logp).sum(1).mean()
    loss = -(chosen * adv.detach()).mean() + 0.5 * adv.pow(2).mean() - 0.01 * entropy
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    opt.step()


async def main(args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = Model()
    opt = torch.optim.RMSprop(model.parameters(), lr=7e-4)
    inbox = Inbox()
    actors = [Actor(model, inbox, args.seed + i, args.horizon) for i in range(args.actors)]
    tasks = [asyncio.create_task(actor.run()) for actor in actors]
    env_steps = 0
    t0, u0 = time.perf_counter(), 0
    for update in range(args.updates):
        if update == args.updates // 5:
            t0, u0 = time.perf_counter(), update
        actor, traj = await inbox.get()
        learn(model, opt, traj)
        env_steps += len(traj.rewards)
        actor.go.set()
        if update % 200 == 0:
            print(f"update {update} env steps {env_steps}")
    rate = (args.updates - u0) / (time.perf_counter() - t0)
    for task in tasks:
        task.cancel()
    checksum = sum(p.detach().double().sum().item() for p in model.parameters())
    print(
        json.dumps(
            {"env_steps": env_steps, "updates": args.updates, "units_per_s": rate, "checksum": checksum}
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=1600)
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--horizon", type=int, default=20)
    parser.add_argument("--seed", type=int, default=31)
    asyncio.run(main(parser.parse_args()))
