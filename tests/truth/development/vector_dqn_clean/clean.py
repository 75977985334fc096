import json
import sys
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

# double DQN, 16 environments stepped together, one update per joint step
NUM_ENVS = 16
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 1500
WARMUP = 60
BATCH = 512
CAPACITY = 50_000
GAMMA = 0.99
TAU = 0.01
LR = 5e-4
SEED = 4


class Replay:
    def __init__(self, capacity, obs_dim):
        self.obs = torch.empty(capacity, obs_dim)
        self.next_obs = torch.empty(capacity, obs_dim)
        self.action = torch.empty(capacity, 1, dtype=torch.int64)
        self.reward = torch.empty(capacity, 1)
        self.alive = torch.empty(capacity, 1)
        self.capacity, self.at, self.size = capacity, 0, 0

    def extend(self, obs, action, reward, next_obs, terminated):
        n = len(obs)
        rows = torch.arange(self.at, self.at + n) % self.capacity
        self.obs[rows] = torch.from_numpy(obs)
        self.next_obs[rows] = torch.from_numpy(next_obs)
        self.action[rows, 0] = torch.from_numpy(action)
        self.reward[rows, 0] = torch.from_numpy(reward).float()
        self.alive[rows, 0] = 1.0 - torch.from_numpy(terminated).float()
        self.at = (self.at + n) % self.capacity
        self.size = min(self.size + n, self.capacity)

    def sample(self, n):
        rows = torch.randint(self.size, (n,))
        return self.obs[rows], self.action[rows], self.reward[rows], self.next_obs[rows], self.alive[rows]


def make_net(obs_dim, n_actions):
    return nn.Sequential(
        nn.Linear(obs_dim, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, n_actions)
    )


def train():
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    envs = gym.make_vec("CartPole-v1", num_envs=NUM_ENVS, vectorization_mode="vector_entry_point")
    obs_dim = envs.single_observation_space.shape[0]
    n_actions = int(envs.single_action_space.n)
    net, target = make_net(obs_dim, n_actions), make_net(obs_dim, n_actions)
    target.load_state_dict(net.state_dict())
    weights, target_weights = list(net.parameters()), list(target.parameters())
    optimizer = torch.optim.Adam(weights, lr=LR, fused=True)
    replay = Replay(CAPACITY, obs_dim)

    obs, _ = envs.reset(seed=SEED)
    was_done = np.zeros(NUM_ENVS, dtype=bool)
    episodes = updates = 0
    mark = STEPS // 5
    for step in range(STEPS):
        if step == mark:
            start = time.perf_counter()
        epsilon = max(0.05, 1.0 - step / (0.5 * STEPS))
        with torch.no_grad():
            action = net(torch.from_numpy(obs)).argmax(dim=1).numpy()
        explore = rng.random(NUM_ENVS) < epsilon
        action = np.where(explore, rng.integers(n_actions, size=NUM_ENVS), action)
        next_obs, reward, terminated, truncated, _ = envs.step(action)
        # the step after the end of an episode only resets that environment
        keep = ~was_done
        replay.extend(obs[keep], action[keep], reward[keep], next_obs[keep], terminated[keep])
        was_done = terminated | truncated
        episodes += int(was_done.sum())
        obs = next_obs

        if step >= WARMUP:
            b_obs, b_action, b_reward, b_next, b_alive = replay.sample(BATCH)
            with torch.no_grad():
                best = net(b_next).argmax(dim=1, keepdim=True)
                goal = b_reward + GAMMA * b_alive * target(b_next).gather(1, best)
            loss = F.smooth_l1_loss(net(b_obs).gather(1, b_action), goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
            with torch.no_grad():
                torch._foreach_lerp_(target_weights, weights, TAU)
        if (step + 1) % 500 == 0:
            print(f"step {step + 1}: {episodes} episodes in the last 500 steps")
            episodes = 0
    rate = (STEPS - mark) / (time.perf_counter() - start)
    envs.close()
    return updates, rate, sum(w.double().abs().sum().item() for w in weights)


updates, rate, checksum = train()
print(
    json.dumps({"env_steps": STEPS * NUM_ENVS, "updates": updates, "units_per_s": rate, "checksum": checksum})
)
