"""MAPPO with a centralised critic: a team of drones visits the ripe trees of an orchard (shared reward)."""
import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical


class Orchards:
    """Many orchards at once, numpy. Each drone sees itself, its mates and the three trees."""

    MOVES = np.array([[0.0, 0.0], [0.1, 0.0], [-0.1, 0.0], [0.0, 0.1], [0.0, -0.1]])

    def __init__(self, n_envs, n_agents, n_trees, horizon, seed):
        self.rng = np.random.default_rng(seed)
        self.n_envs, self.n_agents, self.n_trees, self.horizon = n_envs, n_agents, n_trees, horizon
        self.obs_dim = 2 + 2 * n_agents + 2 * n_trees
        self.state_dim = n_agents * self.obs_dim
        self.n_actions = len(self.MOVES)

    def reset(self):
        self.drones = self.rng.uniform(-1, 1, (self.n_envs, self.n_agents, 2))
        self.trees = self.rng.uniform(-1, 1, (self.n_envs, self.n_trees, 2))
        self.t = 0
        return self.observe()

    def observe(self):
        mates = self.drones[:, None] - self.drones[:, :, None]
        trees = self.trees[:, None] - self.drones[:, :, None]
        flat = (self.n_envs, self.n_agents, -1)
        obs = np.concatenate([self.drones, mates.reshape(flat), trees.reshape(flat)], -1)
        return obs.astype(np.float32)

    def step(self, actions):
        self.drones = np.clip(self.drones + self.MOVES[actions], -1, 1)
        distance = np.linalg.norm(self.trees[:, None] - self.drones[:, :, None], axis=-1)
        reward = -distance.min(1).sum(-1)
        self.t += 1
        done = self.t >= self.horizon
        obs = self.reset() if done else self.observe()
        return obs, reward.astype(np.float32), done


def mlp(sizes, gain):
    layers = []
    for i, (a, b) in enumerate(zip(sizes[:-1], sizes[1:])):
        lin = nn.Linear(a, b)
        nn.init.orthogonal_(lin.weight, gain if i == len(sizes) - 2 else 2 ** 0.5)
        nn.init.zeros_(lin.bias)
        layers += [lin, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class MAPPO:
    def __init__(self, world, args):
        self.args, self.world = args, world
        self.actor = mlp([world.obs_dim, 64, 64, world.n_actions], 0.01)
        self.critic = mlp([world.state_dim, args.critic_width, args.critic_width, 1], 1.0)
        self.params = [*self.actor.parameters(), *self.critic.parameters()]
        self.optim = torch.optim.Adam(self.params, lr=args.lr, eps=1e-5)

    def share_obs(self, obs):
        """The critic's input of each agent: the observations of the whole team."""
        n = self.world.n_agents
        state = obs.flatten(-2)
        return state.unsqueeze(-2).expand(*state.shape[:-1], n, state.shape[-1])

    @torch.no_grad()
    def act(self, obs):
        dist = Categorical(logits=self.actor(obs))
        action = dist.sample()
        value = self.critic(self.share_obs(obs)).squeeze(-1)
        return action, dist.log_prob(action), value

    def advantages(self, rewards, values, dones, last_value):
        adv = torch.zeros_like(values)
        running = torch.zeros_like(last_value)
        for t in reversed(range(len(rewards))):
            alive = 1.0 - dones[t]
            following = last_value if t == len(rewards) - 1 else values[t + 1]
            delta = rewards[t].unsqueeze(-1) + self.args.gamma * alive * following - values[t]
            running = delta + self.args.gamma * self.args.lam * alive * running
            adv[t] = running
        return adv

    def learn(self, roll, last_value):
        a = self.args
        adv = self.advantages(roll["reward"], roll["value"], roll["done"], last_value)
        returns = (adv + roll["value"]).flatten(0, 1)
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        adv = adv.flatten(0, 1)
        obs, action, logp = (roll[k].flatten(0, 1) for k in ("obs", "action", "logp"))
        share = self.share_obs(obs)
        updates = 0
        for _ in range(a.epochs):
            for idx in torch.randperm(len(obs)).chunk(a.minibatches):
                dist = Categorical(logits=self.actor(obs[idx]))
                ratio = (dist.log_prob(action[idx]) - logp[idx]).exp()
                policy_loss = -torch.min(ratio * adv[idx], ratio.clamp(1 - a.clip, 1 + a.clip) * adv[idx]).mean()
                value = self.critic(share[idx]).squeeze(-1)
                value_loss = nn.functional.smooth_l1_loss(value, returns[idx])
                loss = policy_loss + 0.5 * value_loss - a.entropy * dist.entropy().mean()
                self.optim.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.params, 0.5)
                self.optim.step()
                updates += 1
        return updates


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iterations", type=int, default=200)
    p.add_argument("--n-envs", type=int, default=16)
    p.add_argument("--n-agents", type=int, default=5)
    p.add_argument("--n-trees", type=int, default=5)
    p.add_argument("--rollout", type=int, default=50)
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--minibatches", type=int, default=4)
    p.add_argument("--critic-width", type=int, default=128)
    p.add_argument("--gamma", type=float, default=0.97)
    p.add_argument("--lam", type=float, default=0.95)
    p.add_argument("--clip", type=float, default=0.2)
    p.add_argument("--entropy", type=float, default=0.01)
    p.add_argument("--lr", type=float, default=7e-4)
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    world = Orchards(args.n_envs, args.n_agents, args.n_trees, args.rollout, args.seed)
    team = MAPPO(world, args)
    obs = torch.from_numpy(world.reset())
    updates, started, marked = 0, None, 0
    for it in range(args.iterations):
        if it == args.iterations // 5:
            started, marked = time.perf_counter(), it
        steps = {k: [] for k in ("obs", "action", "logp", "value", "reward", "done")}
        for _ in range(args.rollout):
            action, logp, value = team.act(obs)
            following, reward, done = world.step(action.numpy())
            for k, v in zip(steps, (obs, action, logp, value, torch.from_numpy(reward), torch.tensor(float(done)))):
                steps[k].append(v)
            obs = torch.from_numpy(following)
        roll = {k: torch.stack(v) for k, v in steps.items()}
        updates += team.learn(roll, team.act(obs)[2])
        if it % 10 == 0:
            print(f"iteration {it:4d}  team return {roll['reward'].sum(0).mean():.2f}")
    speed = (args.iterations - marked) / (time.perf_counter() - started)
    checksum = float(sum(q.detach().double().abs().sum() for q in team.params))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": speed, "checksum": checksum}))


if __name__ == "__main__":
    main()
