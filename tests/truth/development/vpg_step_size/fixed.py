"""Policy gradient with an importance ratio and a decaying step size. Everything in one class."""

import json
import sys
import time

import gymnasium as gym
import numpy as np
import torch


class VPG:
    gamma = 0.99
    hidden = 32

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        self.env = gym.make("CartPole-v1")
        self.obs, _ = self.env.reset(seed=seed)
        self.pi = self.network(2)
        self.v = self.network(1)
        self.opt = torch.optim.SGD([*self.pi.parameters(), *self.v.parameters()], lr=0.02)
        self.steps = 0

    def network(self, outputs):
        h = self.hidden
        first, second = torch.nn.Linear(4, h), torch.nn.Linear(h, h)
        return torch.nn.Sequential(
            first, torch.nn.Tanh(), second, torch.nn.Tanh(), torch.nn.Linear(h, outputs)
        )

    def learning_rate(self, k, total):
        return 0.02 * (1 - k / total) + 1e-3

    def rollout(self, n):
        obs = np.zeros((n, 4), np.float32)
        act, rew, end = np.zeros(n, np.int64), np.zeros(n, np.float32), np.zeros(n, np.float32)
        for i in range(n):
            with torch.inference_mode():
                logit = self.pi(torch.from_numpy(self.obs))
            p = 1 / (1 + np.exp(float(logit[0] - logit[1])))
            obs[i], act[i] = self.obs, self.rng.random() < p
            self.obs, rew[i], terminated, truncated, _ = self.env.step(int(act[i]))
            if terminated or truncated:
                end[i] = 1
                self.obs, _ = self.env.reset()
        self.steps += n
        with torch.inference_mode():
            tail = float(self.v(torch.from_numpy(self.obs)))
        ret = np.zeros(n, np.float32)
        for i in range(n - 1, -1, -1):
            tail = rew[i] + self.gamma * tail * (1 - end[i])
            ret[i] = tail
        return (torch.from_numpy(x) for x in (obs, act, ret / 10))

    def improve(self, obs, act, ret, lr):
        with torch.no_grad():
            old_logp = torch.log_softmax(self.pi(obs), 1).gather(1, act[:, None]).squeeze(1)
        self.opt.param_groups[0]["lr"] = lr
        value = self.v(obs).squeeze(1)
        logp = torch.log_softmax(self.pi(obs), 1).gather(1, act[:, None]).squeeze(1)
        ratio = (logp - old_logp).exp()
        loss = -(ratio * (ret - value.detach())).mean() + (ret - value).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()


def main(iterations):
    torch.set_num_threads(1)
    agent = VPG(seed=6)
    for k in range(iterations):
        if k == iterations // 5:
            t = time.perf_counter()
        obs, act, ret = agent.rollout(4)
        agent.improve(obs, act, ret, agent.learning_rate(k, iterations))
    speed = (iterations - iterations // 5) / (time.perf_counter() - t)
    weights = sum(p.double().sum().item() for p in [*agent.pi.parameters(), *agent.v.parameters()])
    print(
        json.dumps(
            {"env_steps": agent.steps, "updates": iterations, "units_per_s": speed, "checksum": weights}
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) == 2 else 12000)
