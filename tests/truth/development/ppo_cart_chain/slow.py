# PPO (continuous actions) for a chain of carts joined by springs: push the first cart so that the last one follows a reference.
import argparse
import json
import random
import time

import gymnasium as gym
import numpy as np
import scipy.linalg
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.normal import Normal


class CartChain(gym.Env):
    """n carts on a rail, neighbours joined by spring and damper, motor on the first cart, exact zero-order hold."""

    def __init__(self, n_carts=16, dt=0.1, horizon=200, stiffness=8.0, damping=0.6, friction=0.15):
        self.n, self.dt, self.horizon = n_carts, dt, horizon
        L = np.diag(np.full(n_carts, 2.0)) - np.eye(n_carts, k=1) - np.eye(n_carts, k=-1)
        L[0, 0] = L[-1, -1] = 1.0
        self.A = np.block(
            [[np.zeros((n_carts, n_carts)), np.eye(n_carts)], [-stiffness * L, -damping * L - friction * np.eye(n_carts)]]
        )
        self.B = np.zeros((2 * n_carts, 1))
        self.B[n_carts, 0] = 6.0
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2 * n_carts + 2,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def _discretise(self):
        k = self.A.shape[0]
        M = np.zeros((k + 1, k + 1))
        M[:k, :k] = self.A * self.dt
        M[:k, k:] = self.B * self.dt
        E = scipy.linalg.expm(M)
        return E[:k, :k], E[:k, k]

    def _obs(self):
        return np.concatenate([self.x, (self.goal, self.goal - self.x[self.n - 1])]).astype(np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.normal(0.0, 0.1, 2 * self.n)
        self.goal = self.np_random.uniform(-2.0, 2.0)
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        u = min(max(float(action[0]), -1.0), 1.0)
        Ad, Bd = self._discretise()
        self.x = Ad @ self.x + Bd * u
        self.t += 1
        error = self.goal - self.x[self.n - 1]
        reward = float(np.exp(-error * error)) - 0.01 * u * u
        lost = bool(abs(self.x[0]) > 10.0)
        return self._obs(), reward, lost, self.t >= self.horizon, {}


def layer_init(layer, std=np.sqrt(2), bias=0.0):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias)
    return layer


class Agent(nn.Module):
    def __init__(self, obs_dim, act_dim):
        super().__init__()
        self.critic = nn.Sequential(
            layer_init(nn.Linear(obs_dim, 128)), nn.Tanh(), layer_init(nn.Linear(128, 128)), nn.Tanh(),
            layer_init(nn.Linear(128, 1), std=1.0),
        )
        self.actor_mean = nn.Sequential(
            layer_init(nn.Linear(obs_dim, 128)), nn.Tanh(), layer_init(nn.Linear(128, 128)), nn.Tanh(),
            layer_init(nn.Linear(128, act_dim), std=0.01),
        )
        self.actor_logstd = nn.Parameter(torch.zeros(1, act_dim))

    def get_value(self, x):
        return self.critic(x).squeeze(-1)

    def get_action_and_value(self, x, action=None):
        probs = Normal(self.actor_mean(x), self.actor_logstd.exp(), validate_args=False)
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action).sum(1), probs.entropy().sum(1), self.get_value(x)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-timesteps", type=int, default=500_000)
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--num-steps", type=int, default=256)
    parser.add_argument("--num-minibatches", type=int, default=8)
    parser.add_argument("--update-epochs", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--gae-lambda", type=float, default=0.95)
    parser.add_argument("--clip-coef", type=float, default=0.2)
    parser.add_argument("--ent-coef", type=float, default=0.001)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    envs = gym.vector.SyncVectorEnv(
        [lambda: gym.wrappers.RecordEpisodeStatistics(CartChain()) for _ in range(args.num_envs)],
        autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
    )
    obs_dim = envs.single_observation_space.shape[0]
    agent = Agent(obs_dim, 1)
    optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    T, N = args.num_steps, args.num_envs
    batch_size = T * N
    minibatch_size = batch_size // args.num_minibatches
    obs = torch.zeros((T, N, obs_dim))
    actions = torch.zeros((T, N, 1))
    logprobs, rewards, dones, values = (torch.zeros((T, N)) for _ in range(4))

    next_obs = torch.from_numpy(envs.reset(seed=args.seed)[0])
    next_done = torch.zeros(N)
    num_iterations = args.total_timesteps // batch_size
    mark_at, updates = max(1, num_iterations // 5), 0
    for iteration in range(num_iterations):
        if iteration == mark_at:
            mark = time.perf_counter()
        returns = []
        for step in range(T):
            obs[step] = next_obs
            dones[step] = next_done
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
            actions[step], logprobs[step], values[step] = action, logprob, value
            o, reward, term, trunc, infos = envs.step(action.numpy())
            rewards[step] = torch.from_numpy(reward)
            next_obs = torch.from_numpy(o)
            next_done = torch.from_numpy((term | trunc).astype(np.float32))
            if "final_info" in infos:
                ended = infos["final_info"]["_episode"]
                returns.extend(infos["final_info"]["episode"]["r"][ended].tolist())

        with torch.no_grad():
            next_value = agent.get_value(next_obs)
            advantages = torch.zeros_like(rewards)
            lastgaelam = torch.zeros(N)
            for t in reversed(range(T)):
                alive = 1.0 - (next_done if t == T - 1 else dones[t + 1])
                nextvalues = next_value if t == T - 1 else values[t + 1]
                delta = rewards[t] + args.gamma * nextvalues * alive - values[t]
                advantages[t] = lastgaelam = delta + args.gamma * args.gae_lambda * alive * lastgaelam
            b_returns = (advantages + values).flatten()
        b_obs, b_actions = obs.flatten(0, 1), actions.flatten(0, 1)
        b_logprobs, b_advantages = logprobs.flatten(), advantages.flatten()

        for epoch in range(args.update_epochs):
            for mb in torch.randperm(batch_size).split(minibatch_size):
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb], b_actions[mb])
                ratio = (newlogprob - b_logprobs[mb]).exp()
                adv = b_advantages[mb]
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                pg_loss = torch.max(-adv * ratio, -adv * ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)).mean()
                v_loss = 0.5 * (newvalue - b_returns[mb]).pow(2).mean()
                loss = pg_loss - args.ent_coef * entropy.mean() + 0.5 * v_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
                updates += 1
        if returns:
            print(f"step {(iteration + 1) * batch_size}: return {np.mean(returns):.2f}, value loss {v_loss.item():.3f}")

    speed = (num_iterations - mark_at) * batch_size / (time.perf_counter() - mark)
    envs.close()
    checksum = sum(p.detach().double().abs().sum().item() for p in agent.parameters())
    print(json.dumps({"env_steps": num_iterations * batch_size, "updates": updates, "units_per_s": speed, "checksum": checksum}))
