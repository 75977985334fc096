# Quantile-regression DQN on Acrobot. Metrics of every update go to a file that a web page shows during training.
import argparse
import json
import os
import tempfile
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Metrics:
    """Metrics of every update; the file is brought up to date regularly so that the web page can follow the training."""

    COLUMNS = ("step", "episode", "epsilon", "loss", "q_mean", "spread")

    def __init__(self, path):
        self.path, self.rows = path, []

    def add(self, *row):
        self.rows.append(dict(zip(self.COLUMNS, row)))

    def recent(self, name, n):
        return sum(r[name] for r in self.rows[-n:]) / len(self.rows[-n:])

    def publish(self):
        with open(self.path, "w") as f:
            json.dump(self.rows, f)


class Replay:
    def __init__(self, capacity, obs_dim):
        self.obs = torch.zeros(capacity, obs_dim)
        self.next_obs = torch.zeros(capacity, obs_dim)
        self.action = torch.zeros(capacity, dtype=torch.long)
        self.reward = torch.zeros(capacity)
        self.terminal = torch.zeros(capacity)
        self.capacity, self.count = capacity, 0

    def push(self, obs, action, reward, next_obs, terminal):
        i = self.count % self.capacity
        self.obs[i] = torch.from_numpy(obs)
        self.next_obs[i] = torch.from_numpy(next_obs)
        self.action[i], self.reward[i], self.terminal[i] = action, reward, float(terminal)
        self.count += 1

    def draw(self, n):
        idx = torch.randint(min(self.count, self.capacity), (n,))
        return self.obs[idx], self.action[idx], self.reward[idx], self.next_obs[idx], self.terminal[idx]


class QuantileNet(nn.Module):
    def __init__(self, obs_dim, n_actions, quantiles, width):
        super().__init__()
        self.n_actions, self.quantiles = n_actions, quantiles
        self.net = nn.Sequential(
            nn.Linear(obs_dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, n_actions * quantiles)
        )

    def forward(self, obs):
        return self.net(obs).view(-1, self.n_actions, self.quantiles)


def quantile_loss(theta, target, tau):
    """theta (B, n), target (B, m): asymmetric Huber loss over all pairs."""
    delta = target.unsqueeze(1) - theta.unsqueeze(2)
    huber = F.huber_loss(theta.unsqueeze(2).expand_as(delta), target.unsqueeze(1).expand_as(delta), reduction="none")
    return ((tau.view(1, -1, 1) - (delta.detach() < 0).float()).abs() * huber).mean(2).sum(1).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-id", default="Acrobot-v1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--total-steps", type=int, default=100_000)
    parser.add_argument("--learning-starts", type=int, default=500)
    parser.add_argument("--train-every", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--quantiles", type=int, default=16)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--target-every", type=int, default=500)
    parser.add_argument("--publish-every", type=int, default=50)
    parser.add_argument("--metrics", default=os.path.join(tempfile.gettempdir(), "qrdqn_metrics.json"))
    args = parser.parse_args()

    rng = np.random.default_rng(args.seed)
    torch.manual_seed(args.seed)
    env = gym.make(args.env_id)
    obs_dim, n_actions = env.observation_space.shape[0], int(env.action_space.n)
    q_net = QuantileNet(obs_dim, n_actions, args.quantiles, args.width)
    target_net = QuantileNet(obs_dim, n_actions, args.quantiles, args.width)
    target_net.load_state_dict(q_net.state_dict())
    optimizer = torch.optim.Adam(q_net.parameters(), lr=args.lr, fused=True)
    replay = Replay(50_000, obs_dim)
    metrics = Metrics(args.metrics)
    tau = (torch.arange(args.quantiles) + 0.5) / args.quantiles
    rows = torch.arange(args.batch_size)

    obs, _ = env.reset(seed=args.seed)
    episode, ret, returns, updates = 0, 0.0, [], 0
    mark, mark_at = None, args.learning_starts + (args.total_steps - args.learning_starts) // 5
    for step in range(args.total_steps):
        if step == mark_at:
            mark = time.perf_counter()
        epsilon = max(0.05, 1.0 - step / (0.5 * args.total_steps))
        if rng.random() < epsilon:
            action = int(rng.integers(n_actions))
        else:
            with torch.no_grad():
                action = int(q_net(torch.from_numpy(obs)).mean(2).argmax())
        next_obs, reward, terminated, truncated, _ = env.step(action)
        replay.push(obs, action, reward, next_obs, terminated)
        obs = next_obs
        ret += reward
        if terminated or truncated:
            episode += 1
            returns.append(ret)
            ret = 0.0
            obs, _ = env.reset()
        if step >= args.learning_starts and step % args.train_every == 0:
            b_obs, b_act, b_rew, b_next, b_term = replay.draw(args.batch_size)
            with torch.no_grad():
                z = target_net(b_next)
                z = z[rows, z.mean(2).argmax(1)]
                target = b_rew.unsqueeze(1) + args.gamma * (1 - b_term).unsqueeze(1) * z
            theta = q_net(b_obs)[rows, b_act]
            loss = quantile_loss(theta, target, tau)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
            stats = torch.stack([loss.detach(), target.mean(), target.std(1).mean()]).tolist()
            metrics.add(step, episode, epsilon, *stats)
            if updates % args.publish_every == 0:
                metrics.publish()
        if step > args.learning_starts and step % args.target_every == 0:
            target_net.load_state_dict(q_net.state_dict())
        if step > args.learning_starts and step % 1000 == 0:
            print(f"step {step} episodes {episode} return {np.mean(returns[-10:]) if returns else -500.0:.1f} loss {metrics.recent('loss', 500):.4f} q {metrics.recent('q_mean', 500):.2f}")
    speed = (args.total_steps - mark_at) / (time.perf_counter() - mark)
    metrics.publish()
    env.close()
    checksum = sum(w.detach().double().abs().sum().item() for w in q_net.parameters())
    print(json.dumps({"env_steps": args.total_steps, "updates": updates, "units_per_s": speed, "checksum": checksum}))


if __name__ == "__main__":
    main()
