# Discrete soft actor-critic on many cart-poles stepped together (gymnasium's own numpy vector environment).
import argparse
import json
import math
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Ring:
    """Replay of vector transitions, one slice per vector step."""

    def __init__(self, slots, n, obs_dim):
        self.obs = torch.zeros(slots, n, obs_dim)
        self.next_obs = torch.zeros(slots, n, obs_dim)
        self.act = torch.zeros(slots, n, dtype=torch.long)
        self.rew = torch.zeros(slots, n)
        self.term = torch.zeros(slots, n)
        self.slots, self.n, self.count = slots, n, 0

    def put(self, obs, act, rew, next_obs, term):
        i = self.count % self.slots
        self.obs[i], self.next_obs[i], self.act[i] = torch.from_numpy(obs), torch.from_numpy(next_obs), act
        self.rew[i], self.term[i] = torch.from_numpy(rew), torch.from_numpy(term)
        self.count += 1

    def sample(self, size):
        flat = torch.randint(min(self.count, self.slots) * self.n, (size,))
        return tuple(x.flatten(0, 1)[flat] for x in (self.obs, self.act, self.rew, self.next_obs, self.term))


class Net(nn.Module):
    def __init__(self, obs_dim, out, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(obs_dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))

    def forward(self, x):
        return self.layers(x)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=8)
    p.add_argument("--num-envs", type=int, default=32)
    p.add_argument("--total-steps", type=int, default=640_000)
    p.add_argument("--warmup", type=int, default=1600)
    p.add_argument("--batch-size", type=int, default=512)
    p.add_argument("--width", type=int, default=256)
    p.add_argument("--gamma", type=float, default=0.99)
    p.add_argument("--tau", type=float, default=0.01)
    p.add_argument("--lr", type=float, default=5e-4)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    N = args.num_envs
    envs = gym.make_vec(
        "CartPole-v1", num_envs=N, vectorization_mode="vector_entry_point",
    )
    obs_dim, n_act = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    actor = Net(obs_dim, n_act, args.width)
    critics = nn.ModuleList([Net(obs_dim, n_act, args.width) for _ in range(2)])
    targets = nn.ModuleList([Net(obs_dim, n_act, args.width) for _ in range(2)]).requires_grad_(False)
    targets.load_state_dict(critics.state_dict())
    online, lagged = list(critics.parameters()), list(targets.parameters())
    actor_opt = torch.optim.Adam(actor.parameters(), lr=args.lr, fused=True)
    critic_opt = torch.optim.Adam(online, lr=args.lr, fused=True)
    log_alpha = torch.tensor(math.log(0.1), requires_grad=True)
    alpha_opt = torch.optim.Adam([log_alpha], lr=args.lr, fused=True)
    target_entropy = 0.3 * math.log(n_act)
    ring = Ring(4000, N, obs_dim)

    obs, _ = envs.reset(seed=args.seed)
    resetting = np.zeros(N, bool)
    lengths, finished = np.zeros(N, int), []
    iterations, updates, mark = args.total_steps // N, 0, None
    warmup = args.warmup // N
    mark_at = max(warmup, iterations // 5)
    for it in range(iterations):
        if it == mark_at:
            mark = time.perf_counter()
        with torch.no_grad():
            act = torch.multinomial(actor(torch.from_numpy(obs)).softmax(-1), 1).squeeze(-1)
        next_obs, rew, term, trunc, _ = envs.step(act.numpy())
        # after an episode's end the environment spends one step on its reset; such transitions count as terminal with no reward
        ring.put(obs, act, np.where(resetting, 0.0, rew).astype(np.float32), next_obs, term | resetting)
        lengths += ~resetting
        resetting = term | trunc
        if resetting.any():
            finished.extend(lengths[resetting].tolist())
            lengths[resetting] = 0
        obs = next_obs
        if it < warmup:
            continue
        b_obs, b_act, b_rew, b_next, b_term = ring.sample(args.batch_size)
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            logp = F.log_softmax(actor(b_next), -1)
            q = torch.min(targets[0](b_next), targets[1](b_next))
            y = b_rew + args.gamma * (1 - b_term) * (logp.exp() * (q - alpha * logp)).sum(-1)
        index = b_act.unsqueeze(-1)
        q1, q2 = critics[0](b_obs), critics[1](b_obs)
        critic_loss = F.mse_loss(q1.gather(1, index).squeeze(-1), y) + F.mse_loss(q2.gather(1, index).squeeze(-1), y)
        critic_opt.zero_grad()
        critic_loss.backward()
        critic_opt.step()

        logp = F.log_softmax(actor(b_obs), -1)
        pi = logp.exp()
        actor_loss = (pi * (alpha * logp - torch.min(q1, q2).detach())).sum(-1).mean()
        actor_opt.zero_grad()
        actor_loss.backward()
        actor_opt.step()

        entropy = -(pi * logp).sum(-1).mean().detach()
        alpha_loss = log_alpha.exp() * (entropy - target_entropy)
        alpha_opt.zero_grad()
        alpha_loss.backward()
        alpha_opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(lagged, online, args.tau)
        updates += 3
        if (it + 1) % 100 == 0:
            recent = np.mean(finished[-50:]) if finished else float("nan")
            print(f"steps {(it + 1) * N}: episode length {recent:.1f}, critic {critic_loss.item():.3f}, entropy {entropy.item():.2f}")
    speed = (iterations - mark_at) * N / (time.perf_counter() - mark)
    envs.close()
    checksum = sum(w.detach().double().abs().sum().item() for w in [*actor.parameters(), *online])
    print(json.dumps({"env_steps": iterations * N, "updates": updates, "units_per_s": speed, "checksum": checksum}))


if __name__ == "__main__":
    main()
