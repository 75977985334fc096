"""PPO for Acrobot, everything in one file. Set PPO_LOG=debug to see what the policy is thinking."""
import json
import logging
import os
import sys
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical

logging.basicConfig(stream=sys.stderr, level=getattr(logging, os.environ.get("PPO_LOG", "warning").upper()),
                    format="%(asctime)s %(name)s %(message)s")
log = logging.getLogger("ppo")

UPDATES = int(sys.argv[1]) if len(sys.argv) > 1 else 24
N_ENVS, HORIZON, EPOCHS, MINIBATCH = 2, 256, 4, 128
GAMMA, LAM, CLIP, ENT = 0.99, 0.95, 0.2, 0.01

torch.set_num_threads(1)
torch.manual_seed(9)
np.random.seed(9)


def mlp(n_out, gain):
    def layer(i, o, g):
        lin = nn.Linear(i, o)
        nn.init.orthogonal_(lin.weight, g)
        nn.init.zeros_(lin.bias)
        return lin
    return nn.Sequential(layer(6, 64, 2 ** 0.5), nn.Tanh(), layer(64, 64, 2 ** 0.5), nn.Tanh(), layer(64, n_out, gain))


policy, critic = mlp(3, 0.01), mlp(1, 1.0)
params = list(policy.parameters()) + list(critic.parameters())
optim = torch.optim.Adam(params, lr=6e-4, eps=1e-5)
envs = gym.vector.SyncVectorEnv([lambda: gym.make("Acrobot-v1") for _ in range(N_ENVS)])

obs_buf = torch.zeros(HORIZON, N_ENVS, 6)
act_buf = torch.zeros(HORIZON, N_ENVS, dtype=torch.long)
logp_buf, val_buf = torch.zeros(HORIZON, N_ENVS), torch.zeros(HORIZON, N_ENVS)
rew_buf, done_buf = np.zeros((HORIZON, N_ENVS), np.float32), np.zeros((HORIZON, N_ENVS), np.float32)


def collect(obs):
    for t in range(HORIZON):
        with torch.no_grad():
            x = torch.as_tensor(obs, dtype=torch.float32)
            logits, value = policy(x), critic(x).squeeze(-1)
        pi = Categorical(logits=logits)
        a = pi.sample()
        log.debug(f"step {t}: observation {x}, logits {logits}, value {value}, action {a}")
        obs_buf[t], act_buf[t], logp_buf[t], val_buf[t] = x, a, pi.log_prob(a), value
        obs, r, term, trunc, _ = envs.step(a.numpy())
        rew_buf[t], done_buf[t] = r, term | trunc
    return obs


def advantages(last_obs):
    with torch.no_grad():
        nxt = critic(torch.as_tensor(last_obs, dtype=torch.float32)).squeeze(-1).numpy()
    values, adv, run = val_buf.numpy(), np.zeros_like(rew_buf), np.zeros(N_ENVS, np.float32)
    for t in reversed(range(HORIZON)):
        live = 1.0 - done_buf[t]
        delta = rew_buf[t] + GAMMA * live * nxt - values[t]
        run = delta + GAMMA * LAM * live * run
        adv[t], nxt = run, values[t]
    return torch.from_numpy(adv)


def improve(adv):
    ret = (adv + val_buf).flatten()
    o, a, old, adv = obs_buf.flatten(0, 1), act_buf.flatten(), logp_buf.flatten(), adv.flatten()
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    for _ in range(EPOCHS):
        for idx in torch.randperm(len(o)).split(MINIBATCH):
            logp_all = torch.log_softmax(policy(o[idx]), -1)
            logp = logp_all.gather(1, a[idx, None]).squeeze(1)
            ratio = (logp - old[idx]).exp()
            gain = torch.min(ratio * adv[idx], ratio.clamp(1 - CLIP, 1 + CLIP) * adv[idx]).mean()
            entropy = -(logp_all.exp() * logp_all).sum(-1).mean()
            v_loss = (critic(o[idx]).squeeze(-1) - ret[idx]).pow(2).mean()
            loss = -gain - ENT * entropy + 0.5 * v_loss
            optim.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(params, 0.5)
            optim.step()


obs, _ = envs.reset(seed=9)
t0 = None
for update in range(UPDATES):
    if update == UPDATES // 5:
        t0 = time.perf_counter()
    obs = collect(obs)
    improve(advantages(obs))
    log.info("update %d, %d episodes ended", update, int(done_buf.sum()))
rate = (UPDATES - UPDATES // 5) / (time.perf_counter() - t0)
print(json.dumps({"env_steps": UPDATES * HORIZON * N_ENVS,
                  "updates": UPDATES * EPOCHS * -(-HORIZON * N_ENVS // MINIBATCH),
                  "units_per_s": rate, "checksum": sum(p.detach().double().sum().item() for p in params)}))
