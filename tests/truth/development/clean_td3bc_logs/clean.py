"""TD3+BC on a log of a crane's moves that fits in memory; batches are gathered by index."""

import json
import math
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

OBS, ACT, BATCH, GAMMA, TAU = 12, 3, 256, 0.98, 0.005


def crane_log(number, seed):
    """One tensor of rows (state, action, reward, next state) from a noisy proportional controller."""
    rng = np.random.default_rng(seed)
    dynamics = rng.normal(0, 0.2, (OBS, OBS)) + 0.8 * np.eye(OBS)
    dynamics /= max(1.0, np.abs(np.linalg.eigvals(dynamics)).max() / 0.98)
    push = rng.normal(0, 0.5, (ACT, OBS))
    states = rng.normal(0, 1, (number, OBS))
    actions = np.clip(-0.3 * states @ push.T + rng.normal(0, 0.4, (number, ACT)), -1, 1)
    nexts = states @ dynamics + actions @ push + rng.normal(0, 0.02, (number, OBS))
    rewards = -np.abs(nexts).mean(axis=1, keepdims=True)
    return torch.from_numpy(np.concatenate([states, actions, rewards, nexts], axis=1).astype(np.float32))


class Twin(nn.Module):
    """Two critics as one batched network: [batch, OBS + ACT] -> [2, batch]."""

    def __init__(self, hidden=256):
        super().__init__()
        pairs = [(OBS + ACT, hidden), (hidden, hidden), (hidden, 1)]
        self.weights = nn.ParameterList(torch.empty(2, a, b).uniform_(-1, 1) / math.sqrt(a) for a, b in pairs)
        self.biases = nn.ParameterList(torch.zeros(2, 1, b) for _, b in pairs)

    def forward(self, states, actions):
        x = torch.cat([states, actions], dim=1).expand(2, -1, -1)
        x = F.relu(torch.baddbmm(self.biases[0], x, self.weights[0]))
        x = F.relu(torch.baddbmm(self.biases[1], x, self.weights[1]))
        return torch.baddbmm(self.biases[2], x, self.weights[2]).squeeze(2)


def actor_network(hidden=256):
    return nn.Sequential(
        nn.Linear(OBS, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, ACT),
        nn.Tanh(),
    )


def main(steps):
    torch.manual_seed(4)
    torch.set_num_threads(1)
    log = crane_log(200_000, 4)
    actor, actor_target, critic, critic_target = actor_network(), actor_network(), Twin(), Twin()
    actor_target.load_state_dict(actor.state_dict())
    critic_target.load_state_dict(critic.state_dict())
    nets = [*actor.parameters(), *critic.parameters()]
    targets = [*actor_target.parameters(), *critic_target.parameters()]
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4, fused=True)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=3e-4, fused=True)
    updates, marks = 0, []
    for step in range(steps):
        marks.append(time.perf_counter())
        rows = log[torch.randint(0, len(log), (BATCH,))]
        states, actions, rewards, nexts = rows.split((OBS, ACT, 1, OBS), dim=1)
        with torch.no_grad():
            noise = (0.2 * torch.randn(BATCH, ACT)).clamp_(-0.5, 0.5)
            next_actions = (actor_target(nexts) + noise).clamp_(-1, 1)
            aim = rewards.squeeze(1) + GAMMA * critic_target(nexts, next_actions).amin(dim=0)
        critic_loss = (critic(states, actions) - aim).square().mean()
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        updates += 1
        if step % 2:
            critic.requires_grad_(False)
            chosen = actor(states)
            value = critic(states, chosen)[0]
            actor_loss = F.mse_loss(chosen, actions) - 2.5 * value.mean() / value.detach().abs().mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
            critic.requires_grad_(True)
            updates += 1
            with torch.no_grad():
                torch._foreach_lerp_(targets, nets, TAU)
    marks.append(time.perf_counter())
    first = steps // 5
    rate = (steps - first) / (marks[-1] - marks[first])
    checksum = float(sum(p.detach().abs().sum() for p in actor.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1800)
