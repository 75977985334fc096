"""TD3 keeps three coupled cisterns at their levels. All eight plants are simulated at once."""
import copy
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = 77
PLANTS = 8
BATCH = 256
GAMMA = 0.97
TAU = 0.005
POLICY_NOISE, NOISE_CLIP, POLICY_FREQ = 0.2, 0.5, 2
EXPLORE = 0.1


class Cisterns:
    """Water flows from one cistern to the next; two pumps and one valve."""

    def __init__(self, n, rng):
        self.n, self.rng = n, rng
        self.level = rng.uniform(0.1, 0.9, (n, 3))
        self.wanted = rng.uniform(0.2, 0.8, (n, 3))
        self.t = rng.integers(0, 120, n)

    def observe(self):
        return np.concatenate([self.level, self.wanted, self.wanted - self.level], 1, dtype=np.float32)

    def step(self, action):
        pump = 0.05 * (action + 1) / 2
        flow = 0.04 * np.sqrt(self.level)
        self.level[:, 0] += pump[:, 0] - flow[:, 0]
        self.level[:, 1] += flow[:, 0] + pump[:, 1] - flow[:, 1]
        self.level[:, 2] += flow[:, 1] - flow[:, 2] * (1 + pump[:, 2] * 10)
        np.clip(self.level, 0.0, 1.0, out=self.level)
        reward = -np.abs(self.level - self.wanted).sum(1)
        after = self.observe()
        self.t += 1
        over = self.t >= 120
        if over.any():
            self.level[over] = self.rng.uniform(0.1, 0.9, (int(over.sum()), 3))
            self.wanted[over] = self.rng.uniform(0.2, 0.8, (int(over.sum()), 3))
            self.t[over] = 0
            return after, reward, self.observe()
        return after, reward, after


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(9, 128), nn.Linear(128, 128), nn.Linear(128, 3)

    def forward(self, s):
        return torch.tanh(self.l3(F.relu(self.l2(F.relu(self.l1(s))))))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(12, 128), nn.Linear(128, 128), nn.Linear(128, 1)
        self.l4, self.l5, self.l6 = nn.Linear(12, 128), nn.Linear(128, 128), nn.Linear(128, 1)

    def q1(self, s, a):
        sa = torch.cat([s, a], 1)
        return self.l3(F.relu(self.l2(F.relu(self.l1(sa)))))

    def forward(self, s, a):
        sa = torch.cat([s, a], 1)
        return self.l3(F.relu(self.l2(F.relu(self.l1(sa))))), self.l6(F.relu(self.l5(F.relu(self.l4(sa)))))


class TD3:
    def __init__(self):
        self.actor, self.critic = Actor(), Critic()
        self.actor_target, self.critic_target = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=3e-4, fused=True)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=3e-4, fused=True)
        self.weights = [*self.actor.parameters(), *self.critic.parameters()]
        self.target_weights = [*self.actor_target.parameters(), *self.critic_target.parameters()]
        self.total_it = self.updates = 0

    def select_action(self, state):
        with torch.no_grad():
            return self.actor(torch.from_numpy(state)).numpy()

    def target(self, reward, next_state):
        next_action = self.actor_target(next_state)
        noise = (torch.randn_like(next_action) * POLICY_NOISE).clamp(-NOISE_CLIP, NOISE_CLIP)
        q1, q2 = self.critic_target(next_state, (next_action + noise).clamp(-1, 1))
        return reward + GAMMA * torch.min(q1, q2)

    def train(self, state, action, reward, next_state):
        self.total_it += 1
        target_q = self.target(reward, next_state)
        q1, q2 = self.critic(state, action)
        critic_loss = F.mse_loss(q1, target_q) + F.mse_loss(q2, target_q)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        self.updates += 1
        if self.total_it % POLICY_FREQ == 0:
            self.critic.requires_grad_(False)
            actor_loss = -self.critic.q1(state, self.actor(state)).mean()
            self.actor_optimizer.zero_grad()
            actor_loss.backward()
            self.actor_optimizer.step()
            self.critic.requires_grad_(True)
            self.updates += 1
            with torch.no_grad():
                torch._foreach_lerp_(self.target_weights, self.weights, TAU)


def main(steps):
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    plants, td3 = Cisterns(PLANTS, rng), TD3()
    size = steps * PLANTS
    S, A, R, S2 = torch.zeros(size, 9), torch.zeros(size, 3), torch.zeros(size, 1), torch.zeros(size, 9)
    state, n, began = plants.observe(), 0, 0.0
    for step in range(steps):
        if step == steps // 5:
            began = time.perf_counter()
        action = td3.select_action(state) + EXPLORE * rng.standard_normal((PLANTS, 3), dtype=np.float32)
        action = np.clip(action, -1, 1)
        after, reward, following = plants.step(action)
        rows = slice(n, n + PLANTS)
        S[rows], A[rows], S2[rows] = torch.from_numpy(state), torch.from_numpy(action), torch.from_numpy(after)
        R[rows, 0] = torch.from_numpy(reward).float()
        state, n = following, n + PLANTS
        if n >= 4 * BATCH:
            idx = torch.from_numpy(rng.integers(0, n, BATCH))
            td3.train(S[idx], A[idx], R[idx], S2[idx])
        if step % 1000 == 999:
            print(f"step {step + 1}: mean reward {reward.mean():.3f}")
    rate = (steps - steps // 5) / (time.perf_counter() - began)
    check = sum(p.detach().double().abs().sum().item() for p in td3.weights)
    print(json.dumps({"env_steps": None, "updates": td3.updates, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    import sys

    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
