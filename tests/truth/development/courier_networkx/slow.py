"""Bike couriers on a street network: REINFORCE with a graph-feature policy; shaping by remaining distance (networkx)."""
import json
import random
import sys
import time

import networkx as nx
import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)
EPISODES = int(sys.argv[1]) if len(sys.argv) > 1 else 900


def street_map(seed, rows=14, cols=14):
    """A grid with some streets closed and lengths that differ."""
    rng = random.Random(seed)
    g = nx.grid_2d_graph(rows, cols)
    edges = list(g.edges)
    rng.shuffle(edges)
    for e in edges[: len(edges) // 6]:
        g.remove_edge(*e)
        if not nx.is_connected(g):
            g.add_edge(*e)
    for u, v in g.edges:
        g.edges[u, v]["length"] = rng.uniform(0.6, 1.8)
    return nx.convert_node_labels_to_integers(g, ordering="sorted", label_attribute="xy")


class CourierEnv:
    """Ride from a random corner to a random address. At each crossing choose one of the streets."""

    def __init__(self, graph, seed):
        self.g = graph
        self.rng = random.Random(seed)
        self.nodes = list(graph.nodes)
        self.xy = {n: graph.nodes[n]["xy"] for n in graph}
        self.streets = {n: sorted(graph.adj[n]) for n in graph}

    def reset(self):
        self.at, self.goal = self.rng.sample(self.nodes, 2)
        self.before = -1
        self.t = 0
        self.left = self.distance()
        return self.options()

    def distance(self):
        return nx.shortest_path_length(self.g, self.at, self.goal, weight="length")

    def options(self):
        """One feature row per street."""
        x, y = self.xy[self.at]
        gx, gy = self.xy[self.goal]
        rows = []
        for n in self.streets[self.at]:
            nx_, ny = self.xy[n]
            rows.append([(gx - x) / 14, (gy - y) / 14, nx_ - x, ny - y, self.g.edges[self.at, n]["length"],
                         float(n == self.before), len(self.streets[n]) / 4, float(n == self.goal)])
        return rows

    def step(self, choice):
        to = self.streets[self.at][choice]
        cost = self.g.edges[self.at, to]["length"]
        self.before, self.at = self.at, to
        self.t += 1
        left = self.distance()
        reward = (self.left - left) - 0.3 * cost
        self.left = left
        done = self.at == self.goal
        return self.options(), reward + (2.0 if done else 0.0), done or self.t >= 60


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, rows):
        return self.net(rows).squeeze(-1)


torch.manual_seed(8)
choice_rng = random.Random(80)
env = CourierEnv(street_map(8), 8)
print(f"{env.g.number_of_nodes()} crossings, {env.g.number_of_edges()} streets")
policy = Scorer()
opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
baseline, delivered, steps, mark, returns = 0.0, 0, 0, None, []
for ep in range(EPISODES):
    if ep == EPISODES // 5:
        mark = (steps, time.perf_counter())
    rows, done, seen, picks, rewards = env.reset(), False, [], [], []
    while not done:
        x = torch.tensor(rows)
        with torch.no_grad():
            p = policy(x).softmax(0).tolist()
        c = choice_rng.choices(range(len(p)), p)[0]
        seen.append(x)
        picks.append(c)
        rows, r, done = env.step(c)
        rewards.append(r)
        steps += 1
    delivered += env.at == env.goal
    ret, targets = 0.0, []
    for r in reversed(rewards):
        ret = r + 0.95 * ret
        targets.append(ret)
    adv = torch.tensor(targets[::-1]) - baseline
    baseline += 0.05 * (ret - baseline)
    scores = torch.full((len(seen), 4), -1e9)
    sizes = [len(x) for x in seen]
    where = torch.tensor([i * 4 + j for i, k in enumerate(sizes) for j in range(k)])
    scores = scores.flatten().index_copy(0, where, policy(torch.cat(seen))).view(-1, 4)
    logp = scores.log_softmax(1).gather(1, torch.tensor(picks)[:, None]).squeeze(1)
    loss = -(logp * adv).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    returns.append(sum(rewards))
    if (ep + 1) % 100 == 0:
        print(f"{ep + 1:4d} rides, {delivered} delivered, return {np.mean(returns[-100:]):.2f}")
rate = (steps - mark[0]) / (time.perf_counter() - mark[1])
print(json.dumps({"env_steps": None, "updates": EPISODES, "units_per_s": rate, "checksum": float(np.sum(returns))}))
