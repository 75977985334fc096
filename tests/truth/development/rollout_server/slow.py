# Policy gradient; a simulator process plays whole rollouts and sends them back over a pipe.
import json
import multiprocessing as mp
import sys
import time

import numpy as np
import torch
import torch.nn as nn

OBS, ACT, ENVS, T = 32, 4, 32, 64


def simulate(conn):
    """Serves rollouts of a batch of linear systems under a linear-softmax policy."""
    rng = np.random.default_rng(0)
    drift = np.linalg.qr(rng.normal(size=(OBS, OBS)))[0].astype(np.float32) * 0.95
    push = rng.normal(size=(ACT, OBS)).astype(np.float32) * 0.2
    while True:
        message = conn.recv()
        if message is None:
            return
        w = np.array(message["weights"], dtype=np.float32)
        x = rng.normal(size=(ENVS, OBS)).astype(np.float32)
        obs, acts, rews = (
            np.zeros((T, ENVS, OBS), np.float32),
            np.zeros((T, ENVS), np.int64),
            np.zeros((T, ENVS), np.float32),
        )
        for t in range(T):
            logits = x @ w
            a = (logits + rng.gumbel(size=logits.shape)).argmax(1)
            obs[t], acts[t] = x, a
            x = x @ drift + push[a]
            rews[t] = -np.square(x).mean(1)
        conn.send(json.dumps({"obs": obs.tolist(), "acts": acts.tolist(), "rews": rews.tolist()}))


def main(rounds=200):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    ours, theirs = mp.Pipe()
    worker = mp.Process(target=simulate, args=(theirs,), daemon=True)
    worker.start()
    actor = nn.Linear(OBS, ACT, bias=False)
    critic = nn.Sequential(nn.Linear(OBS, 64), nn.ReLU(), nn.Linear(64, 1))
    optim = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)
    for k in range(rounds):
        if k == rounds // 5:
            t0 = time.perf_counter()
        ours.send({"weights": actor.weight.detach().numpy().T})
        batch = json.loads(ours.recv())
        obs = torch.tensor(batch["obs"]).flatten(0, 1)
        acts = torch.tensor(batch["acts"]).flatten()
        rews = np.array(batch["rews"], dtype=np.float32)
        ret = np.zeros_like(rews)
        acc = np.zeros(ENVS, np.float32)
        for t in range(T - 1, -1, -1):
            acc = rews[t] + 0.97 * acc
            ret[t] = acc
        ret = torch.from_numpy(ret).flatten()
        for _ in range(8):
            v = critic(obs).squeeze(1)
            adv = (ret - v).detach()
            logp = torch.log_softmax(actor(obs), 1).gather(1, acts[:, None]).squeeze(1)
            loss = -(logp * adv).mean() + (ret - v).square().mean()
            optim.zero_grad()
            loss.backward()
            optim.step()
    elapsed = time.perf_counter() - t0
    ours.send(None)
    worker.join()
    total = float(sum(p.double().sum() for p in [*actor.parameters(), *critic.parameters()]))
    print(
        json.dumps(
            {
                "env_steps": None,
                "updates": rounds * 8,
                "units_per_s": (rounds - rounds // 5) / elapsed,
                "checksum": total,
            }
        )
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
