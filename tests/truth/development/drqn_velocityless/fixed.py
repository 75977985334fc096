"""Recurrent Q-learning on CartPole without the velocities; whole episodes are kept, windows of them are replayed."""
import argparse
import json
import random
import time
from collections import deque

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class GRUQ(nn.Module):
    def __init__(self, n_in, n_hidden, n_out):
        super().__init__()
        self.inp = nn.Linear(n_in, n_hidden)
        self.gru = nn.GRU(n_hidden, n_hidden, batch_first=True)
        self.out = nn.Linear(n_hidden, n_out)

    def forward(self, x, h=None):
        y, h = self.gru(torch.relu(self.inp(x)), h)
        return self.out(y), h


class EpisodeMemory:
    def __init__(self, max_episodes, window):
        self.episodes = deque(maxlen=max_episodes)
        self.window = window
        self.starts = []

    def add(self, obs, actions, rewards, dones):
        if len(actions) >= self.window:
            if len(self.episodes) == self.episodes.maxlen:
                del self.starts[:len(self.episodes[0][1]) - self.window + 1]
            ep = (np.array(obs, np.float32), np.array(actions), np.array(rewards, np.float32),
                  np.array(dones, np.float32))
            self.episodes.append(ep)
            self.starts.extend((ep, t) for t in range(len(actions) - self.window + 1))

    def sample(self, n, rng):
        starts = self.starts
        picked = [starts[rng.randrange(len(starts))] for _ in range(n)]
        w = self.window
        obs = np.stack([ep[0][t:t + w + 1] for ep, t in picked])
        acts = np.stack([ep[1][t:t + w] for ep, t in picked])
        rews = np.stack([ep[2][t:t + w] for ep, t in picked])
        dones = np.stack([ep[3][t:t + w] for ep, t in picked])
        return map(torch.from_numpy, (obs, acts, rews, dones))


def train(args):
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    env = gym.make("CartPole-v1", max_episode_steps=200)
    q, target = GRUQ(2, 32, 2), GRUQ(2, 32, 2)
    target.load_state_dict(q.state_dict())
    opt = torch.optim.Adam(q.parameters(), lr=1e-3)
    memory = EpisodeMemory(2000, args.window)
    mask = [0, 2]
    steps = updates = episode = 0
    t0 = n0 = None
    while steps < args.prefill + args.steps:
        o, _ = env.reset(seed=args.seed + episode)
        obs, acts, rews, dones, h, over = [o[mask]], [], [], [], None, False
        eps = max(0.05, 1.0 - (steps - args.prefill) / (0.5 * args.steps))
        learning = steps >= args.prefill
        while not over:
            if t0 is None and steps >= args.prefill + args.steps // 5:
                t0, n0 = time.perf_counter(), steps
            if learning:
                with torch.inference_mode():
                    values, h = q(torch.from_numpy(obs[-1]).view(1, 1, 2), h)
            a = rng.randrange(2) if rng.random() < eps else int(values.argmax())
            o, r, term, trunc, _ = env.step(a)
            over = term or trunc
            obs.append(o[mask]); acts.append(a); rews.append(r); dones.append(term)
            steps += 1
            if learning and steps % args.every == 0:
                b_obs, b_act, b_rew, b_done = memory.sample(args.batch, rng)
                with torch.no_grad():
                    nxt = target(b_obs)[0][:, 1:].amax(-1)
                    y = b_rew + 0.98 * (1 - b_done) * nxt
                pred = q(b_obs[:, :-1])[0].gather(-1, b_act.unsqueeze(-1)).squeeze(-1)
                loss = F.smooth_l1_loss(pred, y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                updates += 1
                if updates % 100 == 0:
                    target.load_state_dict(q.state_dict())
        memory.add(obs, acts, rews, dones)
        episode += 1
        if episode % 100 == 0:
            print(f"{steps} steps, episode {episode}, length {len(acts)}")
    rate = (steps - n0) / (time.perf_counter() - t0)
    return {"env_steps": steps, "updates": updates, "units_per_s": rate,
            "checksum": sum(float(p.detach().double().sum()) for p in q.parameters())}


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--steps", type=int, default=4000)
    cli.add_argument("--prefill", type=int, default=24000, help="random steps before learning")
    cli.add_argument("--window", type=int, default=8)
    cli.add_argument("--batch", type=int, default=16)
    cli.add_argument("--every", type=int, default=2)
    cli.add_argument("--seed", type=int, default=0)
    print(json.dumps(train(cli.parse_args())))
