"""QMIX: lifeboats share the swimmers out among themselves. Many seas at once in numpy, shared agent network, torch."""
import argparse
import copy
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Seas:
    """Batch of seas with boats and drifting swimmers; a swimmer next to a boat is saved (team reward)."""

    MOVES = np.array([[0, 0], [0.08, 0], [-0.08, 0], [0, 0.08], [0, -0.08]], np.float32)

    def __init__(self, n_seas, n_boats, n_swimmers, horizon, seed):
        self.rng = np.random.default_rng(seed)
        self.shape = (n_seas, n_boats, n_swimmers)
        self.horizon = horizon
        self.obs_dim = 2 + n_boats + 2 * n_boats + 3 * n_swimmers
        self.state_dim = 2 * n_boats + 3 * n_swimmers
        self.names = np.broadcast_to(np.eye(n_boats, dtype=np.float32), (n_seas, n_boats, n_boats))

    def reset(self):
        n, boats, swimmers = self.shape
        self.boats = self.rng.uniform(-0.3, 0.3, (n, boats, 2)).astype(np.float32)
        self.people = self.rng.uniform(-1, 1, (n, swimmers, 2)).astype(np.float32)
        self.waiting = np.ones((n, swimmers), np.float32)
        self.t = 0
        return self.observe()

    def observe(self):
        n, boats, _ = self.shape
        mates = (self.boats[:, None] - self.boats[:, :, None]).reshape(n, boats, -1)
        people = (self.people[:, None] - self.boats[:, :, None]) * self.waiting[:, None, :, None]
        left = np.broadcast_to(self.waiting[:, None], (n, boats, self.shape[2]))
        obs = np.concatenate([self.boats, self.names, mates, people.reshape(n, boats, -1), left], -1)
        state = np.concatenate([self.boats.reshape(n, -1), self.people.reshape(n, -1), self.waiting], -1)
        return obs, state

    def step(self, actions):
        self.boats = np.clip(self.boats + self.MOVES[actions], -1, 1)
        drift = self.rng.normal(0, 0.01, self.people.shape).astype(np.float32)
        self.people = np.clip(self.people + drift, -1, 1)
        near = np.square(self.people[:, None] - self.boats[:, :, None]).sum(-1).min(1) < 0.02
        saved = near * self.waiting
        self.waiting = self.waiting - saved
        self.t += 1
        reward = saved.sum(1) - 0.02 * self.waiting.sum(1)
        return *self.observe(), reward.astype(np.float32), self.t >= self.horizon


class Mixer(nn.Module):
    """Monotonic mixing network whose weights come from the state."""

    def __init__(self, state_dim, n_agents, embed):
        super().__init__()
        self.n_agents, self.embed = n_agents, embed
        self.w1, self.b1 = nn.Linear(state_dim, n_agents * embed), nn.Linear(state_dim, embed)
        self.w2 = nn.Linear(state_dim, embed)
        self.v = nn.Sequential(nn.Linear(state_dim, embed), nn.ReLU(), nn.Linear(embed, 1))

    def forward(self, qs, state):
        w1 = self.w1(state).abs().view(-1, self.n_agents, self.embed)
        hidden = F.elu(torch.bmm(qs.unsqueeze(1), w1).squeeze(1) + self.b1(state))
        return (hidden * self.w2(state).abs()).sum(-1) + self.v(state).squeeze(-1)


class Replay:
    """Ring buffer in torch tensors; whole batches of parallel seas come in at once."""

    def __init__(self, capacity, n_agents, obs_dim, state_dim):
        z = torch.zeros
        self.data = {"obs": z(capacity, n_agents, obs_dim), "state": z(capacity, state_dim),
                     "action": z(capacity, n_agents, dtype=torch.int64), "reward": z(capacity),
                     "obs2": z(capacity, n_agents, obs_dim), "state2": z(capacity, state_dim), "done": z(capacity)}
        self.capacity, self.pos, self.size = capacity, 0, 0

    def extend(self, n, **items):
        for name, value in items.items():
            self.data[name][self.pos:self.pos + n] = value
        self.pos = (self.pos + n) % self.capacity
        self.size = min(self.size + n, self.capacity)

    def sample(self, n):
        idx = torch.randint(self.size, (n,))
        return {k: v[idx] for k, v in self.data.items()}


class QMix:
    def __init__(self, seas, args):
        n_actions = len(seas.MOVES)
        self.agent = nn.Sequential(nn.Linear(seas.obs_dim, args.hidden), nn.ReLU(),
                                   nn.Linear(args.hidden, args.hidden), nn.ReLU(), nn.Linear(args.hidden, n_actions))
        self.mixer = Mixer(seas.state_dim, seas.shape[1], args.embed)
        self.old_agent, self.old_mixer = copy.deepcopy(self.agent), copy.deepcopy(self.mixer)
        self.params = [*self.agent.parameters(), *self.mixer.parameters()]
        self.old_params = [*self.old_agent.parameters(), *self.old_mixer.parameters()]
        self.optim = torch.optim.Adam(self.params, lr=args.lr)
        self.gamma, self.n_actions = args.gamma, n_actions

    @torch.no_grad()
    def act(self, obs, epsilon):
        greedy = self.agent(obs).argmax(-1)
        random = torch.randint(self.n_actions, greedy.shape)
        return torch.where(torch.rand(greedy.shape) < epsilon, random, greedy)

    def update(self, b):
        with torch.no_grad():
            best = self.agent(b["obs2"]).argmax(-1, keepdim=True)
            following = self.old_mixer(self.old_agent(b["obs2"]).gather(-1, best).squeeze(-1), b["state2"])
            goal = b["reward"] + self.gamma * (1 - b["done"]) * following
        qs = self.agent(b["obs"]).gather(-1, b["action"].unsqueeze(-1)).squeeze(-1)
        loss = F.mse_loss(self.mixer(qs, b["state"]), goal)
        self.optim.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.params, 10.0)
        self.optim.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.old_params, self.params, 0.01)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=6000)
    p.add_argument("--seas", type=int, default=32)
    p.add_argument("--boats", type=int, default=4)
    p.add_argument("--swimmers", type=int, default=6)
    p.add_argument("--horizon", type=int, default=40)
    p.add_argument("--hidden", type=int, default=128)
    p.add_argument("--embed", type=int, default=32)
    p.add_argument("--batch-size", type=int, default=256)
    p.add_argument("--gamma", type=float, default=0.97)
    p.add_argument("--lr", type=float, default=5e-4)
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    seas = Seas(args.seas, args.boats, args.swimmers, args.horizon, args.seed)
    team = QMix(seas, args)
    replay = Replay(1500 * args.seas, args.boats, seas.obs_dim, seas.state_dim)
    obs, state = map(torch.from_numpy, seas.reset())
    score, scores, updates, started, marked = np.zeros(args.seas), [], 0, None, 0
    for step in range(args.steps):
        if step == args.steps // 5:
            started, marked = time.perf_counter(), step
        action = team.act(obs, max(0.05, 1.0 - 2.0 * step / args.steps))
        obs2, state2, reward, done = seas.step(action.numpy())
        obs2, state2 = torch.from_numpy(obs2), torch.from_numpy(state2)
        replay.extend(args.seas, obs=obs, state=state, action=action, reward=torch.from_numpy(reward),
                      obs2=obs2, state2=state2, done=float(done))
        score += reward
        obs, state = obs2, state2
        if done:
            scores.append(score.mean())
            score[:] = 0.0
            obs, state = map(torch.from_numpy, seas.reset())
            if len(scores) % 10 == 0:
                print(f"step {step + 1} mean team return {np.mean(scores[-10:]):.2f}")
        if replay.size >= 4 * args.batch_size:
            team.update(replay.sample(args.batch_size))
            updates += 1
    speed = (args.steps - marked) / (time.perf_counter() - started)
    checksum = float(sum(q.detach().double().abs().sum() for q in team.params))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": speed, "checksum": checksum}))


if __name__ == "__main__":
    main()
