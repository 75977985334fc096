"""DQN with one acting process that plays the next chunk while the learner learns from the last one.

Chunks and weights travel as a few large arrays through a pipe, once per chunk.
"""
import argparse
import json
import multiprocessing as mp
import time

import numpy as np

PLAYERS, CHUNK, N_OBS, N_ACT = 64, 32, 6, 4


def act_forever(pipe, learner_end, seed):
    learner_end.close()
    rng = np.random.default_rng(seed)
    ball, paddle = rng.uniform(-1, 1, (PLAYERS, 4)).astype(np.float32), np.zeros((PLAYERS, 2), np.float32)
    while (message := pipe.recv()) is not None:
        (w1, b1, w2, b2, w3, b3), epsilon = message
        obs = np.empty((CHUNK + 1, PLAYERS, N_OBS), np.float32)
        act, rew = np.empty((CHUNK, PLAYERS), np.int64), np.empty((CHUNK, PLAYERS), np.float32)
        for t in range(CHUNK + 1):
            obs[t, :, :4], obs[t, :, 4:] = ball, paddle
            if t == CHUNK:
                break
            hidden = np.maximum(np.maximum(obs[t] @ w1.T + b1, 0.0) @ w2.T + b2, 0.0)
            greedy = (hidden @ w3.T + b3).argmax(axis=1)
            act[t] = np.where(rng.random(PLAYERS) < epsilon, rng.integers(0, N_ACT, PLAYERS), greedy)
            paddle = np.clip(paddle + 0.1 * np.stack([(act[t] == 1) * 1.0 - (act[t] == 0), (act[t] == 3) * 1.0 - (act[t] == 2)], axis=1), -1, 1)
            paddle = paddle.astype(np.float32)
            ball[:, :2] += 0.05 * ball[:, 2:]
            ball[:, 2:] *= np.where(np.abs(ball[:, :2]) > 1, -1, 1)
            rew[t] = -np.abs(ball[:, :2] - paddle).sum(axis=1)
        pipe.send((obs, act, rew))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--chunks", type=int, default=1000)
    ap.add_argument("--updates-per-chunk", type=int, default=8)
    ap.add_argument("--batch", type=int, default=512)
    ap.add_argument("--width", type=int, default=384)
    ap.add_argument("--seed", type=int, default=5)
    args = ap.parse_args()
    pipe, far = mp.get_context("fork").Pipe()
    player = mp.get_context("fork").Process(target=act_forever, args=(far, pipe, args.seed), daemon=True)
    player.start()
    far.close()

    import torch
    from torch import nn

    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed + 1)
    make = lambda: nn.Sequential(nn.Linear(N_OBS, args.width), nn.ReLU(), nn.Linear(args.width, args.width), nn.ReLU(), nn.Linear(args.width, N_ACT))
    net, target = make(), make()
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-4, fused=True)
    weights = lambda: [p.detach().numpy().copy() for p in net.parameters()]
    size = 60 * CHUNK * PLAYERS
    now, nxt = np.zeros((size, N_OBS), np.float32), np.zeros((size, N_OBS), np.float32)
    acts, rews, count = np.zeros(size, np.int64), np.zeros(size, np.float32), 0
    pipe.send((weights(), 1.0))
    first, updates = args.chunks // 5, 0
    for chunk in range(args.chunks):
        if chunk == first:
            tic = time.perf_counter()
        obs, act, rew = pipe.recv()
        pipe.send((weights(), max(0.05, 1.0 - chunk / 50)) if chunk + 1 < args.chunks else None)
        at, step = count % size, CHUNK * PLAYERS
        now[at:at + step], nxt[at:at + step] = obs[:-1].reshape(-1, N_OBS), obs[1:].reshape(-1, N_OBS)
        acts[at:at + step], rews[at:at + step] = act.reshape(-1), rew.reshape(-1)
        count += step
        for _ in range(args.updates_per_chunk):
            rows = rng.integers(0, min(count, size), size=args.batch)
            with torch.no_grad():
                goal = torch.from_numpy(rews[rows]) + 0.9 * target(torch.from_numpy(nxt[rows])).amax(dim=1)
            q = net(torch.from_numpy(now[rows])).gather(1, torch.from_numpy(acts[rows])[:, None]).squeeze(1)
            loss = nn.functional.smooth_l1_loss(q, goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
        if chunk % 10 == 0:
            target.load_state_dict(net.state_dict())
            print(f"chunk {chunk}: reward {rew.mean():.3f}", flush=True)
    speed = (args.chunks - first) / (time.perf_counter() - tic)
    player.join()
    checksum = sum(float(p.detach().double().abs().sum()) for p in net.parameters())
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": speed, "checksum": round(checksum, 3)}))


if __name__ == "__main__":
    main()
