"""PPO with the diagnostics recommended in the blog post (37 details)."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
from torch.distributions.categorical import Categorical


def layer_init(layer, std=np.sqrt(2)):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, 0.0)
    return layer


class Agent(nn.Module):
    def __init__(self, obs_dim, n_act):
        super().__init__()
        self.critic = nn.Sequential(
            layer_init(nn.Linear(obs_dim, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 1), std=1.0),
        )
        self.actor = nn.Sequential(
            layer_init(nn.Linear(obs_dim, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, n_act), std=0.01),
        )


class Catchers:
    """Catch the falling ball with a paddle, many games at once."""

    def __init__(self, n, rng):
        self.n, self.rng = n, rng
        self.ball = np.zeros((n, 2), np.float32)
        self.paddle = np.zeros(n, np.float32)
        self.restart(np.ones(n, bool))

    def restart(self, mask):
        k = int(mask.sum())
        self.ball[mask, 0] = self.rng.uniform(-1, 1, k)
        self.ball[mask, 1] = 1.0
        self.paddle[mask] = 0.0

    def obs(self):
        return np.column_stack([self.ball, self.paddle, self.ball[:, 0] - self.paddle])

    def step(self, a):
        self.paddle = np.clip(self.paddle + 0.15 * (a - 1), -1, 1).astype(np.float32)
        self.ball[:, 1] -= 0.1
        done = self.ball[:, 1] <= -1
        reward = np.where(done, np.where(np.abs(self.ball[:, 0] - self.paddle) < 0.2, 1.0, -1.0), 0.0)
        if done.any():
            self.restart(done)
        return self.obs(), reward.astype(np.float32), done.astype(np.float32)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=80)
    ap.add_argument("--num-envs", type=int, default=16)
    ap.add_argument("--num-steps", type=int, default=64)
    ap.add_argument("--minibatch", type=int, default=64)
    ap.add_argument("--epochs", type=int, default=4)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    envs, agent = Catchers(args.num_envs, rng), Agent(4, 3)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    history = []
    n_updates = 0
    T, N = args.num_steps, args.num_envs
    obs = envs.obs()
    for it in range(args.updates):
        if it == args.updates // 5:
            clock = time.perf_counter()
        Obs, A, L = np.zeros((T, N, 4), np.float32), np.zeros((T, N), np.int64), np.zeros((T, N), np.float32)
        R, D = np.zeros((T, N), np.float32), np.zeros((T, N), np.float32)
        for t in range(T):
            with torch.inference_mode():
                logp_all = torch.log_softmax(agent.actor(torch.from_numpy(obs)), 1).numpy()
            act = (logp_all + rng.gumbel(size=logp_all.shape)).argmax(1)
            Obs[t], A[t], L[t] = obs, act, logp_all[np.arange(N), act]
            obs, R[t], D[t] = envs.step(act)
        with torch.inference_mode():
            V = agent.critic(torch.from_numpy(np.concatenate([Obs, obs[None]]))).squeeze(-1).numpy()
        adv, last = np.zeros((T, N), np.float32), np.zeros(N, np.float32)
        for t in range(T - 1, -1, -1):
            last = R[t] + 0.99 * V[t + 1] * (1 - D[t]) - V[t] + 0.99 * 0.95 * (1 - D[t]) * last
            adv[t] = last
        b_obs, b_act, b_logp = (
            torch.from_numpy(Obs.reshape(-1, 4)),
            torch.from_numpy(A.reshape(-1)),
            torch.from_numpy(L.reshape(-1)),
        )
        b_adv, b_ret = torch.from_numpy(adv.reshape(-1)), torch.from_numpy((adv + V[:-1]).reshape(-1))
        b_val = torch.from_numpy(V[:-1].reshape(-1).copy())
        for _ in range(args.epochs):
            perm = torch.randperm(T * N)
            for mb in perm.split(args.minibatch):
                dist = Categorical(logits=agent.actor(b_obs[mb]))
                logratio = dist.log_prob(b_act[mb]) - b_logp[mb]
                ratio = logratio.exp()
                mb_adv = b_adv[mb]
                mb_adv = (mb_adv - mb_adv.mean()) / (mb_adv.std() + 1e-8)
                pg_loss = torch.max(-mb_adv * ratio, -mb_adv * ratio.clamp(0.8, 1.2)).mean()
                value = agent.critic(b_obs[mb]).squeeze(1)
                v_loss = 0.5 * (value - b_ret[mb]).pow(2).mean()
                entropy = dist.entropy().mean()
                loss = pg_loss - 0.01 * entropy + 0.5 * v_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
                n_updates += 1
                stats = {
                    "loss": loss.item(),
                    "policy_loss": pg_loss.item(),
                    "value_loss": v_loss.item(),
                    "entropy": entropy.item(),
                    "old_kl": (-logratio).mean().item(),
                    "kl": ((ratio - 1) - logratio).mean().item(),
                    "clipfrac": ((ratio - 1).abs() > 0.2).float().mean().item(),
                    "explained_variance": (1 - (b_ret[mb] - b_val[mb]).var() / b_ret[mb].var()).item(),
                    "ratio_max": ratio.max().item(),
                    "adv_std": mb_adv.std().item(),
                }
                for name, p in agent.named_parameters():
                    stats[f"weight/{name}"] = p.norm().item()
                    stats[f"grad/{name}"] = p.grad.norm().item()
                    stats[f"grad_max/{name}"] = p.grad.abs().max().item()
                history.append(stats)
    rate = (args.updates - args.updates // 5) / (time.perf_counter() - clock)
    with open("stats.json", "w") as f:
        json.dump(history[-50:], f)
    print(
        json.dumps(
            {
                "env_steps": None,
                "updates": n_updates,
                "units_per_s": rate,
                "checksum": float(sum(p.double().sum() for p in agent.parameters())),
            }
        )
    )


if __name__ == "__main__":
    main()
