"""Learning behaviours by back-propagation through imagined rollouts (Dreamer / SVG manner, low-dimensional observations).

A recurrent world model is fitted to windows of experience on Pendulum; the actor maximises lambda-returns along
trajectories imagined from the model's posterior states, the critic regresses on them.
"""
import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class WorldModel(nn.Module):
    def __init__(self, obs_dim, act_dim, deter, hidden):
        super().__init__()
        self.deter = deter
        self.encoder = nn.Sequential(nn.Linear(obs_dim, hidden), nn.ELU(), nn.Linear(hidden, hidden))
        self.cell = nn.GRUCell(hidden, deter)
        self.prior = nn.Sequential(nn.Linear(deter + act_dim, hidden), nn.ELU(), nn.Linear(hidden, hidden))
        self.decoder = nn.Sequential(nn.Linear(deter, hidden), nn.ELU(), nn.Linear(hidden, obs_dim))
        self.reward = nn.Sequential(nn.Linear(deter, hidden), nn.ELU(), nn.Linear(hidden, 1))

    def observe(self, obs, act):
        """obs (B, T, O), act (B, T, A): states after each observation and the embeddings predicted one step ahead."""
        embed = self.encoder(obs)
        h = obs.new_zeros(obs.shape[0], self.deter)
        states, predicted = [], []
        for t in range(obs.shape[1]):
            h = self.cell(embed[:, t], h)
            states.append(h)
            predicted.append(self.prior(torch.cat([h, act[:, t]], -1)))
        return torch.stack(states, 1), embed, torch.stack(predicted, 1)

    def imagine_step(self, h, a):
        return self.cell(self.prior(torch.cat([h, a], -1)), h)


class Actor(nn.Module):
    def __init__(self, deter, act_dim, hidden, limit):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(deter, hidden), nn.ELU(), nn.Linear(hidden, 2 * act_dim))
        self.limit = limit

    def forward(self, h, noise=True):
        mean, log_std = self.net(h).chunk(2, -1)
        if noise:
            mean = mean + (log_std.clamp(-4, 0)).exp() * torch.randn_like(mean)
        return torch.tanh(mean) * self.limit


class Experience:
    def __init__(self, capacity, obs_dim, act_dim):
        self.obs = torch.zeros(capacity, obs_dim)
        self.act = torch.zeros(capacity, act_dim)
        self.rew = torch.zeros(capacity)
        self.n = 0

    def add(self, obs, act, rew):
        self.obs[self.n] = torch.from_numpy(obs)
        self.act[self.n] = act
        self.rew[self.n] = rew
        self.n += 1

    def windows(self, batch, length):
        idx = torch.randint(self.n - length, (batch, 1)) + torch.arange(length)
        return self.obs[idx], self.act[idx], self.rew[idx]


class Dreamer:
    def __init__(self, obs_dim, act_dim, limit, args):
        self.args = args
        self.model = WorldModel(obs_dim, act_dim, args.deter, args.hidden)
        self.actor = Actor(args.deter, act_dim, args.hidden, limit)
        self.critic = nn.Sequential(nn.Linear(args.deter, args.hidden), nn.ELU(), nn.Linear(args.hidden, 1))
        self.model_opt = torch.optim.Adam(self.model.parameters(), lr=6e-4)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=1e-4)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=3e-4)

    def fit_model(self, obs, act, rew):
        states, embed, predicted = self.model.observe(obs, act)
        recon = F.mse_loss(self.model.decoder(states), obs)
        reward = F.mse_loss(self.model.reward(states).squeeze(-1), rew)
        ahead = F.mse_loss(predicted[:, :-1], embed[:, 1:].detach()) + F.mse_loss(
            self.model.decoder(self.model.cell(predicted[:, :-1].flatten(0, 1), states[:, :-1].flatten(0, 1))), obs[:, 1:].flatten(0, 1)
        )
        loss = recon + reward + ahead
        self.model_opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 100.0)
        self.model_opt.step()
        return states.detach(), loss.detach()

    def behave(self, start):
        args = self.args
        h, states = start, []
        for _ in range(args.horizon):
            h = self.model.imagine_step(h, self.actor(h))
            states.append(h)
        states = torch.stack(states)
        rewards = self.model.reward(states).squeeze(-1)
        values = self.critic(states).squeeze(-1)
        ret, returns = values[-1], []
        for t in reversed(range(args.horizon - 1)):
            ret = rewards[t] + args.gamma * ((1 - args.lam) * values[t + 1] + args.lam * ret)
            returns.append(ret)
        returns = torch.stack(returns[::-1])
        actor_loss = -returns.mean()
        self.actor_opt.zero_grad()
        actor_loss.backward()
        nn.utils.clip_grad_norm_(self.actor.parameters(), 100.0)
        self.actor_opt.step()

        critic_loss = F.mse_loss(self.critic(states[:-1].detach()).squeeze(-1), returns.detach())
        self.critic_opt.zero_grad()
        critic_loss.backward()
        self.critic_opt.step()
        return actor_loss.detach(), critic_loss.detach()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--steps", type=int, default=20000)
    p.add_argument("--prefill", type=int, default=400)
    p.add_argument("--train-every", type=int, default=10)
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--length", type=int, default=12)
    p.add_argument("--horizon", type=int, default=15)
    p.add_argument("--deter", type=int, default=128)
    p.add_argument("--hidden", type=int, default=128)
    p.add_argument("--gamma", type=float, default=0.99)
    p.add_argument("--lam", type=float, default=0.95)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    env = gym.make("Pendulum-v1")
    env.action_space.seed(args.seed)
    obs_dim, act_dim = env.observation_space.shape[0], env.action_space.shape[0]
    agent = Dreamer(obs_dim, act_dim, float(env.action_space.high[0]), args)
    data = Experience(args.prefill + args.steps, obs_dim, act_dim)

    obs, _ = env.reset(seed=args.seed)
    h = torch.zeros(1, args.deter)
    total, updates, episode, mark = 0.0, 0, 0, None
    mark_at = args.prefill + args.steps // 5
    for step in range(args.prefill + args.steps):
        if step == mark_at:
            mark = time.perf_counter()
        with torch.no_grad():
            h = agent.model.cell(agent.model.encoder(torch.from_numpy(obs).unsqueeze(0)), h)
            action = agent.actor(h)[0] if step >= args.prefill else torch.from_numpy(env.action_space.sample())
        next_obs, reward, terminated, truncated, _ = env.step(action.numpy())
        data.add(obs, action, float(reward) / 8.0)
        total += float(reward)
        obs = next_obs
        if terminated or truncated:
            episode += 1
            if updates:
                print(f"episode {episode}: return {total:.1f}, model loss {model_loss.item():.3f}, imagined return {-actor_loss.item():.3f}")
            total = 0.0
            obs, _ = env.reset()
            h = torch.zeros(1, args.deter)
        if step >= args.prefill and step % args.train_every == 0:
            states, model_loss = agent.fit_model(*data.windows(args.batch, args.length))
            actor_loss, critic_loss = agent.behave(states.flatten(0, 1))
            updates += 3
    speed = (args.prefill + args.steps - mark_at) / (time.perf_counter() - mark)
    env.close()
    params = [p for net in (agent.model, agent.actor, agent.critic) for p in net.parameters()]
    checksum = sum(p.detach().double().abs().sum().item() for p in params)
    print(json.dumps({"env_steps": args.prefill + args.steps, "updates": updates, "units_per_s": speed, "checksum": checksum}))


if __name__ == "__main__":
    main()
