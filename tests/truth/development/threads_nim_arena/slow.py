"""Self-play at Nim with several heaps: every game runs in a thread, one thread answers for all of them with the network."""
import argparse
import json
import queue
import threading
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
HEAPS, MOST, TAKE = 4, 7, 3
MAX_BATCH, MAX_WAIT = 16, 0.002


def encode(heaps):
    x = np.zeros((HEAPS, MOST + 1), np.float32)
    x[np.arange(HEAPS), heaps] = 1.0
    return x.reshape(-1)


def legal(heaps):
    return [h * TAKE + k - 1 for h in range(HEAPS) for k in range(1, TAKE + 1) if heaps[h] >= k]


class PolicyValue(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(HEAPS * (MOST + 1), 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.pi, self.v = nn.Linear(128, HEAPS * TAKE), nn.Linear(128, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), torch.tanh(self.v(h)).squeeze(-1)


class Evaluator(threading.Thread):
    """Collects requests of the players and answers them in batches."""

    def __init__(self, net):
        super().__init__(daemon=True)
        self.net = net
        self.requests = queue.Queue()

    def ask(self, position, reply):
        self.requests.put((position, reply))
        return reply.get()

    def run(self):
        while True:
            pending = [self.requests.get()]
            deadline = time.monotonic() + MAX_WAIT
            while len(pending) < MAX_BATCH:
                left = deadline - time.monotonic()
                try:
                    pending.append(self.requests.get(timeout=left) if left > 0 else self.requests.get_nowait())
                except queue.Empty:
                    break
            with torch.no_grad():
                logits, _ = self.net(torch.from_numpy(np.stack([p for p, _ in pending])))
            for row, (_, reply) in zip(logits.numpy(), pending):
                reply.put(row)


def player(number, evaluator, moves, out, seed):
    """Plays against itself for a number of moves; leaves (position, move, outcome) in out."""
    rng = np.random.default_rng(seed)
    reply = queue.SimpleQueue()
    heaps, game, record = rng.integers(1, MOST + 1, HEAPS), [], []
    for _ in range(moves):
        x = encode(heaps)
        options = legal(heaps)
        scores = evaluator.ask(x, reply)[options] + rng.gumbel(size=len(options))
        move = options[int(scores.argmax())]
        heaps[move // TAKE] -= move % TAKE + 1
        game.append((x, move))
        if not heaps.any():
            for back, (x, move) in enumerate(reversed(game)):
                record.append((x, move, 1.0 if back % 2 == 0 else -1.0))
            heaps, game = rng.integers(1, MOST + 1, HEAPS), []
    out[number] = record


def learn(net, opt, records, rng, epochs=2, batch=64):
    x = torch.from_numpy(np.stack([r[0] for r in records]))
    a = torch.tensor([r[1] for r in records])
    z = torch.tensor([r[2] for r in records])
    count = 0
    for _ in range(epochs):
        for rows in torch.from_numpy(rng.permutation(len(records))).split(batch):
            logits, v = net(x[rows])
            logp = F.log_softmax(logits, 1)
            picked = logp.gather(1, a[rows, None]).squeeze(1)
            loss = -(picked * (z[rows] - v.detach())).mean() + F.mse_loss(v, z[rows]) + 0.02 * (logp.exp() * logp).sum(1).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            count += 1
    return count


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=80)
    ap.add_argument("--players", type=int, default=6)
    ap.add_argument("--moves", type=int, default=60)
    args = ap.parse_args()
    torch.manual_seed(4)
    rng = np.random.default_rng(4)
    net = PolicyValue()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    evaluator = Evaluator(net)
    evaluator.start()
    updates, start = 0, None
    for k in range(args.rounds):
        if k == args.rounds // 5:
            start = time.perf_counter()
        out = [None] * args.players
        threads = [threading.Thread(target=player, args=(i, evaluator, args.moves, out, 1000 * k + i)) for i in range(args.players)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        records = [r for part in out for r in part]
        updates += learn(net, opt, records, rng)
        if k % 10 == 0:
            wins = np.mean([r[2] > 0 for r in records])
            print(f"round {k:3d}: {len(records)} moves, {wins:.2f} of them by the winner", flush=True)
    rate = (args.rounds - args.rounds // 5) * args.moves * args.players / (time.perf_counter() - start)
    checksum = float(sum(p.detach().double().abs().sum() for p in net.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
