"""MADDPG: six rovers share out six beacons (cooperative, centralised critics)."""
import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

N_ROVERS, OBS, ACT = 6, 16, 2


class Beacons:
    def __init__(self, worlds, rng):
        self.rng, self.worlds = rng, worlds
        self.reset()

    def reset(self):
        self.pos = self.rng.uniform(-1, 1, (self.worlds, N_ROVERS, 2))
        self.goal = self.rng.uniform(-1, 1, (self.worlds, N_ROVERS, 2))
        self.vel = np.zeros_like(self.pos)
        self.clock = 0
        return self.observe()

    def observe(self):
        toward = self.goal[:, None] - self.pos[:, :, None]
        obs = np.concatenate([self.pos, self.vel, toward.reshape(self.worlds, N_ROVERS, -1)], axis=-1)
        return obs.astype(np.float32)

    def step(self, force):
        self.vel = 0.8 * self.vel + 0.15 * force
        self.pos = np.clip(self.pos + 0.2 * self.vel, -1.5, 1.5)
        distance = np.linalg.norm(self.goal[:, None] - self.pos[:, :, None], axis=-1)
        team = -distance.min(axis=1).mean(axis=1)
        own = -0.1 * np.abs(force).mean(axis=-1)
        self.clock += 1
        return self.observe(), (team[:, None] + own).astype(np.float32), self.clock >= 40


class Actor(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(OBS, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, ACT)

    def forward(self, obs):
        return torch.tanh(self.l3(F.relu(self.l2(F.relu(self.l1(obs))))))


class Critic(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(N_ROVERS * (OBS + ACT), hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1)

    def forward(self, obs, act):
        x = torch.cat([obs.flatten(1), act.flatten(1)], dim=1)
        return self.l3(F.relu(self.l2(F.relu(self.l1(x))))).squeeze(1)


class Team:
    def __init__(self, hidden, lr):
        self.actors = [Actor(hidden) for _ in range(N_ROVERS)]
        self.critics = [Critic(64) for _ in range(N_ROVERS)]
        self.target_actors = [Actor(hidden) for _ in range(N_ROVERS)]
        self.target_critics = [Critic(64) for _ in range(N_ROVERS)]
        for live, target in zip(self.actors + self.critics, self.target_actors + self.target_critics):
            target.load_state_dict(live.state_dict())
        self.actor_opts = [torch.optim.Adam(a.parameters(), lr=lr, fused=True) for a in self.actors]
        self.critic_opts = [torch.optim.Adam(c.parameters(), lr=2 * lr, fused=True) for c in self.critics]
        self.live_params = [p for m in self.actors + self.critics for p in m.parameters()]
        self.target_params = [p for m in self.target_actors + self.target_critics for p in m.parameters()]
        self.steps = 0

    @torch.no_grad()
    def act(self, obs, noise):
        obs = torch.from_numpy(obs)
        forces = torch.stack([actor(obs[:, i]) for i, actor in enumerate(self.actors)], dim=1)
        return (forces + noise * torch.randn_like(forces)).clamp(-1, 1).numpy()

    def learn(self, obs, act, rew, nxt, gamma=0.95, tau=0.01):
        with torch.no_grad():
            planned = torch.stack([net(nxt[:, k]) for k, net in enumerate(self.target_actors)], dim=1)
        for i in range(N_ROVERS):
            with torch.no_grad():
                wanted = rew[:, i] + gamma * self.target_critics[i](nxt, planned)
            critic_loss = F.mse_loss(self.critics[i](obs, act), wanted)
            self.critic_opts[i].zero_grad()
            critic_loss.backward()
            self.critic_opts[i].step()

            joint = act.clone()
            joint[:, i] = self.actors[i](obs[:, i])
            self.critics[i].requires_grad_(False)
            actor_loss = -self.critics[i](obs, joint).mean()
            self.actor_opts[i].zero_grad()
            actor_loss.backward()
            self.actor_opts[i].step()
            self.critics[i].requires_grad_(True)
            self.steps += 2
        with torch.no_grad():
            torch._foreach_lerp_(self.target_params, self.live_params, tau)


class Replay:
    def __init__(self, size):
        self.obs, self.nxt = np.zeros((2, size, N_ROVERS, OBS), np.float32)
        self.act = np.zeros((size, N_ROVERS, ACT), np.float32)
        self.rew = np.zeros((size, N_ROVERS), np.float32)
        self.size, self.count = size, 0

    def add(self, obs, act, rew, nxt):
        where = np.arange(self.count, self.count + len(obs)) % self.size
        self.obs[where], self.act[where], self.rew[where], self.nxt[where] = obs, act, rew, nxt
        self.count += len(obs)

    def draw(self, rng, n):
        pick = rng.integers(0, min(self.count, self.size), size=n)
        return [torch.from_numpy(x[pick]) for x in (self.obs, self.act, self.rew, self.nxt)]


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--rounds", type=int, default=3000)
    cli.add_argument("--worlds", type=int, default=16)
    cli.add_argument("--batch", type=int, default=256)
    cli.add_argument("--hidden", type=int, default=128)
    cli.add_argument("--seed", type=int, default=3)
    a = cli.parse_args()
    torch.manual_seed(a.seed)
    rng = np.random.default_rng(a.seed)
    world, team, replay = Beacons(a.worlds, rng), Team(a.hidden, 1e-3), Replay(40_000)
    obs, score, t0 = world.reset(), 0.0, None
    for r in range(a.rounds):
        if r == a.rounds // 5:
            t0 = time.perf_counter()
        force = team.act(obs, 0.3)
        nxt, rew, over = world.step(force)
        replay.add(obs, force, rew, nxt)
        score = 0.99 * score + 0.01 * float(rew.mean())
        obs = world.reset() if over else nxt
        if replay.count >= 4 * a.batch:
            team.learn(*replay.draw(rng, a.batch))
        if r % 200 == 0:
            print("round", r, "score", round(score, 3))
    speed = (a.rounds - a.rounds // 5) / (time.perf_counter() - t0)
    check = sum(float(p.detach().double().sum()) for p in team.live_params)
    print(json.dumps(dict(env_steps=None, updates=team.steps, units_per_s=speed, checksum=round(check, 5))))
