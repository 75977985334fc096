# Conservative Q-learning (CQL(H)) on the log of an orchard sprayer: wide sensor vector, continuous nozzle commands.
import argparse
import json
import math
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def sprayer_log(n, obs_dim, act_dim, seed):
    """Transitions recorded under a mediocre controller in a linear-ish canopy model with saturating spray response."""
    rng = np.random.default_rng(seed)
    A = 0.97 * np.linalg.qr(rng.normal(size=(obs_dim, obs_dim)))[0]
    B = rng.normal(0, 0.3, (act_dim, obs_dim))
    K = rng.normal(0, 0.3, (obs_dim, act_dim))
    obs = rng.normal(size=(n, obs_dim))
    act = np.clip(np.tanh(obs @ K) + rng.normal(0, 0.4, (n, act_dim)), -1, 1)
    nxt = obs @ A + np.tanh(2 * act) @ B + rng.normal(0, 0.05, (n, obs_dim))
    rew = -np.abs(nxt[:, :8]).mean(1) - 0.05 * (act**2).sum(1)
    term = rng.random(n) < 0.01
    return [torch.as_tensor(x, dtype=torch.float32) for x in (obs, act, rew, nxt, term)]


class Critic(nn.Module):
    """Sensor encoder followed by a head on (features, command)."""

    def __init__(self, obs_dim, act_dim, width, features):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(obs_dim, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, features), nn.Tanh()
        )
        self.head = nn.Sequential(nn.Linear(features + act_dim, features), nn.ReLU(), nn.Linear(features, 1))

    def forward(self, obs, act):
        z = self.encoder(obs)
        return self.head(torch.cat([z, act], -1)).squeeze(-1)


class Policy(nn.Module):
    def __init__(self, obs_dim, act_dim, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs_dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2 * act_dim))

    def forward(self, obs, samples=None):
        mean, log_std = self.net(obs).chunk(2, -1)
        log_std = log_std.clamp(-5, 1)
        if samples is not None:
            mean, log_std = mean.unsqueeze(1), log_std.unsqueeze(1)
            noise = torch.randn(obs.shape[0], samples, mean.shape[-1])
        else:
            noise = torch.randn_like(mean)
        a = torch.tanh(mean + log_std.exp() * noise)
        logp = (-0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi) - torch.log(1 - a**2 + 1e-6)).sum(-1)
        return a, logp


class CQL:
    def __init__(self, obs_dim, act_dim, args):
        self.args, self.act_dim = args, act_dim
        self.policy = Policy(obs_dim, act_dim, args.width)
        self.critics = nn.ModuleList([Critic(obs_dim, act_dim, args.width, args.features) for _ in range(2)])
        self.targets = nn.ModuleList([Critic(obs_dim, act_dim, args.width, args.features) for _ in range(2)])
        self.targets.load_state_dict(self.critics.state_dict())
        self.targets.requires_grad_(False)
        self.policy_opt = torch.optim.Adam(self.policy.parameters(), lr=1e-4, fused=True)
        self.critic_opt = torch.optim.Adam(self.critics.parameters(), lr=3e-4, fused=True)
        self.p_online, self.p_target = list(self.critics.parameters()), list(self.targets.parameters())

    def q_of_samples(self, critic, obs, acts):
        """Q-values of several commands per state: acts is (batch, samples, act_dim)."""
        b, n, _ = acts.shape
        obs_rep = obs.unsqueeze(1).repeat(1, n, 1).view(b * n, -1)
        return critic(obs_rep, acts.reshape(b * n, -1)).view(b, n)

    def conservative_penalty(self, critic, obs, candidates, log_density, q_data):
        q_all = self.q_of_samples(critic, obs, candidates)
        return (torch.logsumexp(q_all - log_density, 1) - q_data).mean()

    def update(self, obs, act, rew, nxt, term):
        args = self.args
        n = args.samples
        with torch.no_grad():
            next_a, next_logp = self.policy(nxt)
            y = torch.min(self.targets[0](nxt, next_a), self.targets[1](nxt, next_a)) - args.alpha * next_logp
            y = rew + args.gamma * (1 - term) * y
            uniform = torch.rand(obs.shape[0], n, self.act_dim) * 2 - 1
            own, own_logp = self.policy(obs, n)
            candidates = torch.cat([uniform, own], 1)
            log_density = torch.cat([torch.full_like(own_logp, -self.act_dim * math.log(2.0)), own_logp], 1)
        td = penalty = 0.0
        for critic in self.critics:
            q_data = critic(obs, act)
            td = td + F.mse_loss(q_data, y)
            penalty = penalty + self.conservative_penalty(critic, obs, candidates, log_density, q_data)
        critic_loss = td + args.cql_weight * penalty
        self.critic_opt.zero_grad()
        critic_loss.backward()
        self.critic_opt.step()

        self.critics.requires_grad_(False)
        a, logp = self.policy(obs)
        policy_loss = (args.alpha * logp - torch.min(self.critics[0](obs, a), self.critics[1](obs, a))).mean()
        self.policy_opt.zero_grad()
        policy_loss.backward()
        self.policy_opt.step()
        self.critics.requires_grad_(True)
        with torch.no_grad():
            torch._foreach_lerp_(self.p_target, self.p_online, 0.005)
        return td.detach(), penalty.detach(), policy_loss.detach()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=5)
    p.add_argument("--transitions", type=int, default=50_000)
    p.add_argument("--obs-dim", type=int, default=48)
    p.add_argument("--act-dim", type=int, default=4)
    p.add_argument("--updates", type=int, default=50_000)
    p.add_argument("--batch-size", type=int, default=128)
    p.add_argument("--samples", type=int, default=5)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--features", type=int, default=64)
    p.add_argument("--gamma", type=float, default=0.97)
    p.add_argument("--alpha", type=float, default=0.05)
    p.add_argument("--cql-weight", type=float, default=1.0)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    log = sprayer_log(args.transitions, args.obs_dim, args.act_dim, args.seed)
    learner = CQL(args.obs_dim, args.act_dim, args)
    mark, mark_at = None, args.updates // 5
    for i in range(args.updates):
        if i == mark_at:
            mark = time.perf_counter()
        idx = torch.randint(args.transitions, (args.batch_size,))
        td, penalty, policy_loss = learner.update(*(x[idx] for x in log))
        if (i + 1) % 100 == 0:
            print(f"update {i + 1}: td {td.item():.4f} penalty {penalty.item():.3f} policy {policy_loss.item():.3f}")
    speed = (args.updates - mark_at) / (time.perf_counter() - mark)
    checksum = sum(w.detach().double().abs().sum().item() for w in [*learner.policy.parameters(), *learner.p_online])
    print(json.dumps({"env_steps": None, "updates": 2 * args.updates, "units_per_s": speed, "checksum": checksum}))


if __name__ == "__main__":
    main()
