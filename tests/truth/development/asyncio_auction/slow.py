"""Bidders in repeated ad auctions, one coroutine each, share a policy network that answers in batches (asyncio).

The exchange is a small server with a line protocol on a Unix socket, as in production.
"""
import asyncio
import json
import math
import os
import sys
import tempfile
import time

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
BIDDERS = 16
HORIZON = 24


class Auction:
    """One advertiser's day: a budget, a stream of impressions, a market price that drifts."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.budget, self.t, self.market = 6.0, 0, 0.5
        return self.observe()

    def observe(self):
        self.value = self.rng.beta(2.0, 3.0)
        return (self.budget / 6.0, self.t / HORIZON, self.market, self.value)

    def step(self, bid):
        price = max(0.02, self.market + 0.15 * self.rng.standard_normal())
        reward = 0.0
        if bid > price and self.budget >= price:
            self.budget -= price
            reward = self.value
        self.market = min(0.9, max(0.1, self.market + 0.05 * self.rng.standard_normal()))
        self.t += 1
        return self.observe(), reward, self.t >= HORIZON


class Exchange:
    """Serves all auctions. Request: {"who": 3, "bid": 0.4}, bid null for a new day. Answer: [obs, reward, done]."""

    def __init__(self):
        self.days = [Auction(100 + i) for i in range(BIDDERS)]
        self.served = 0

    async def serve(self, reader, writer):
        while line := await reader.readline():
            ask = json.loads(line)
            day = self.days[ask["who"]]
            answer = (day.reset(), 0.0, False) if ask["bid"] is None else day.step(ask["bid"])
            self.served += 1
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()


class Client:
    """A bidder's line to the exchange."""

    def __init__(self, who, path):
        self.who, self.path = who, path

    async def request(self, bid):
        reader, writer = await asyncio.open_unix_connection(self.path)
        writer.write(json.dumps({"who": self.who, "bid": bid}).encode() + b"\n")
        await writer.drain()
        answer = json.loads(await reader.readline())
        writer.close()
        await writer.wait_closed()
        return answer


class PolicyServer:
    """Collects the observations of all bidders, then runs the network once."""

    def __init__(self, net, seed):
        self.net = net
        self.rng = np.random.default_rng(seed)
        self.requests = {}
        self.calls = 0

    def ask(self, who, obs):
        future = asyncio.get_running_loop().create_future()
        self.requests[who] = (obs, future)
        if len(self.requests) == BIDDERS:
            self.flush()
        return future

    def flush(self):
        names = sorted(self.requests)
        x = torch.tensor([self.requests[n][0] for n in names], dtype=torch.float32)
        with torch.no_grad():
            mean = self.net(x)[:, 0].tolist()
        for n, m, e in zip(names, mean, self.rng.standard_normal(len(names)).tolist()):
            self.requests[n][1].set_result(m + 0.2 * e)
        self.requests.clear()
        self.calls += 1


async def bidder(client, server, out):
    obs, _, done = await client.request(None)
    track = []
    while not done:
        raw = await server.ask(client.who, obs)
        bid = 1.0 / (1.0 + math.exp(-raw))
        nxt, reward, done = await client.request(bid)
        track.append((obs, raw, reward))
        obs = nxt
    ret, total = 0.0, []
    for _, _, r in reversed(track):
        ret = r + 0.98 * ret
        total.append(ret)
    out[client.who] = [(o, a, g) for (o, a, _), g in zip(track, reversed(total))]


async def main():
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    exchange = Exchange()
    path = os.path.join(tempfile.mkdtemp(), "exchange.sock")
    listener = await asyncio.start_unix_server(exchange.serve, path)
    clients = [Client(i, path) for i in range(BIDDERS)]
    server = PolicyServer(net, 7)
    updates, start, recent = 0, None, 0.0
    for rnd in range(ROUNDS):
        if rnd == ROUNDS // 5:
            start = time.perf_counter()
        out = {}
        await asyncio.gather(*(bidder(c, server, out) for c in clients))
        rows = [row for i in range(BIDDERS) for row in out[i]]
        obs = torch.tensor([r[0] for r in rows], dtype=torch.float32)
        act = torch.tensor([r[1] for r in rows], dtype=torch.float32)
        ret = torch.tensor([r[2] for r in rows], dtype=torch.float32)
        pred = net(obs)
        adv = (ret - pred[:, 1]).detach()
        logp = -((act - pred[:, 0]) / 0.2) ** 2 / 2
        loss = -(logp * adv).mean() + ((pred[:, 1] - ret) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        updates += 1
        recent = float(ret.view(BIDDERS, HORIZON)[:, 0].mean())
        if rnd % 20 == 0:
            print(f"round {rnd:4d}: value won per day {recent:.3f}, {server.calls} network calls")
    rate = (ROUNDS - ROUNDS // 5) * HORIZON * BIDDERS / (time.perf_counter() - start)
    listener.close()
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": recent + loss.item()}))


asyncio.run(main())
