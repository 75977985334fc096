"""Needless work that was found in unread scripts: each rule fires twice and leaves alone what looks alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotloop.analysis.advice.evaluation_in_the_loop import evaluation_in_the_loop
from hotloop.analysis.advice.gradients import gradients_not_needed, target_with_gradients
from hotloop.analysis.advice.idioms import match
from hotloop.analysis.advice.recomputed import recomputed
from hotloop.analysis.advice.repeated_work import repeated_work
from hotloop.capture.samples import SampledPath
from tests.unit.test_hot_lines import capture_with, path, run_of, with_source
from tests.unit.test_idioms import spot

TRACKER = """
class Tracker:
    def start(self):
        self.history = []
    def observe(self, a, z):
        self.history.append((a, z))
    def belief(self):
        b = self.prior
        for a, z in self.history:  # hot
            b = (b @ self.moves[a]) * self.seen[z]
        return b
def run(tracker, env):
    for episode in range(100):
        tracker.start()
        done = False
        while not done:
            {loop}
"""
NODE = """
class Node:
    def score(self, child):
        total = {total}  # hot
        return child.value + math.sqrt(total) / child.visits
    def select(self):
        {select}
"""
TOTAL = "sum(c.visits for c in self.children.values())"
MEMORY = """
class Memory:
    def __init__(self, size, shape):
        self.obs = {made}
    def sample(self, rng):
        i = rng.integers(self.n, size=64)
        obs = torch.from_numpy(self.obs[i]).float(){scale}  # hot
        return obs
"""
TRACES = """
class Sarsa:
    def __init__(self, n):
        self.w = np.zeros(n)
        self.e = {made}
    def update(self, index, delta):
        {entry}
        self.w += 0.1 * delta * self.e  # hot
        self.e *= 0.9
"""
POOL = """
def evolve(pool, rng):
    table = load_table()
    jobs_made = 0
    for generation in range(50):
        scores = pool.{call}  # hot
        {after}
"""
PIPES = """
class Fleet:
    def step(self, actions):
        results = []
        for conn, action in zip(self.conns, actions):
            {ask}
            {answer}  # hot
            results.append(obs)
        return results
"""
LAYER = """\
class Layer(nn.Module):
    def __init__(self, adj):
        self.register_buffer("adj", adj + torch.eye(len(adj)))
    def forward(self, x):
        d = torch.diag(self.adj.sum(1).pow(-0.5))
        norm = d @ self.adj @ d  # hot
        return norm @ self.linear(x)
    def update(self, x):
        {update}
"""
GOALS = """
class Reach(gym.Env):
    def _distance(self, a, g):
        gap = a - g
        {distance}
    def compute_reward(self, achieved, desired, info):
        out = []
        {loop}  # hot
            {body}
        return np.array(out)
"""
MARKET = """
class Market(gym.Env):
    def step(self, action):
        self.day += 1
        return self.features(), 0.0, False, False, {{}}
    def features(self):
        past = {past}
        {before}
        return np.array([{value}])  # hot
"""
MINIBATCHES = """
def learn(critic, obs, rewards, rng, opt):
    for epoch in range(4):
        {outside}
        for rows in rng.permutation(len(obs)).reshape(8, -1):
            {inside}  # hot
            loss = ((critic(obs[rows]) - {used}) ** 2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
"""
TORCHRL = """
gae = GAE(gamma=0.99, lmbda=0.95, value_network=value)
for data in collector:
    for _ in range(10):
        {epoch}
        for _ in range(8):
            {minibatch}
            loss = objective({sampled})["loss_objective"]
            loss.backward()
            optim.step()
"""
BOARD = """
class Game:
    def play(self, row, column):
        {move}
        if self.won():
            self.over = True
    def won(self):
        for r in {rows}:  # hot
            for c in range(4):
                if self.cells[r][c] == self.cells[r][c + 1] == self.cells[r][c + 2] == self.me:
                    return True
        return False
"""
LOADER = """
class Pictures(Dataset):
    def __getitem__(self, i):
        return {item}
loader = DataLoader(data, batch_size=64{given})
for epoch in range(20):
    {loop}
        step(net, x, y)
"""
FIRES = {
    "all_lines_after_a_move": [
        BOARD.format(move="self.cells[row][column] = self.me", rows="range(6)"),
        "LINES = [(0, 1, 2), (3, 4, 5), (0, 4, 8)]\ndef put(cells, at, me):\n    cells[at] = me\n"
        "def wins(cells, me):\n    for line in LINES:  # hot\n        if all(cells[k] == me for k in line):\n"
        "            return True\n    return False\n"
        "def turn(cells, at, me):\n    put(cells, at, me)\n    return wins(cells, me)",
    ],
    "loader_workers_each_pass": [
        LOADER.format(
            item="crop(self.x[i]), self.y[i]",
            given=", num_workers=4",
            loop="for x, y in loader:  # hot loader",
        ),
        LOADER.format(
            item="augment(self.x[i], self.rng)",
            given=", num_workers=args.workers, persistent_workers=False",
            loop="for i, (x, y) in enumerate(loader):  # hot loader",
        ),
    ],
    "history_for_its_last_value": [
        MARKET.format(past="self.price[:self.day]", before="pass", value="ema(past, 12)[-1], past[-1]"),
        MARKET.format(
            past="self.df.iloc[:self.day + 1]",
            before="change = past.close.diff()",
            value="change.rolling(14).mean().iloc[-1], len(past)",
        ),
        "for t in range(9, len(close)):\n    seen = close[:t]\n    rsi = talib.RSI(seen, 14)[-1]  # hot",
    ],
    "batch_for_each_minibatch": [
        MINIBATCHES.format(outside="pass", inside="ret = returns_of(rewards, critic(obs))", used="ret[rows]"),
        TORCHRL.format(epoch="pass", minibatch="gae(data)  # hot torchrl", sampled="buffer.sample()"),
    ],
    "rows_one_by_one": [
        GOALS.format(
            distance="return np.linalg.norm(gap)",
            loop="for a, g in zip(achieved, desired):",
            body="out.append(-self._distance(a, g))",
        ),
        GOALS.format(
            distance="return float(np.sqrt((gap ** 2).sum()))",
            loop="for k in range(achieved.shape[0]):",
            body="out[k] = 0.0 if self._distance(achieved[k], desired[k]) < 0.05 else -1.0",
        ),
        "def success(a, g):\n    return np.all(np.abs(a - g) < 0.1)\n"
        "def rewards(achieved, goals):\n"
        "    return np.array([success(a, g) for a, g in zip(achieved, goals)])  # hot",
    ],
    "network_in_a_loop": [
        "def act(self, obs):\n    for k in range(self.n):  # hot networks\n        if noise[k] < eps:\n"
        "            acts[k] = random_moves[k]\n        else:\n            with torch.no_grad():\n"
        "                q = self.net(torch.from_numpy(obs[k]))\n            acts[k] = int(q.argmax())",
        "for name, o in observations.items():  # hot networks\n    logits = policy(o)\n"
        "    actions[name] = Categorical(logits=logits).sample()",
        # methods of what the network answered
        "for name, o in observations.items():  # hot networks\n    logp, _ = policy(torch.from_numpy(o))\n"
        "    actions[name] = int(torch.multinomial(logp.exp(), 1))",
    ],
    "answers_one_by_one": [
        PIPES.format(ask="conn.send(('step', action))", answer="obs = conn.recv()"),
        "for i in range(n):\n    self.inboxes[i].put(actions[i])\n"
        "    results[i] = self.outboxes[i].get()  # hot",
        "class Remote:\n    def step(self, a):\n        self.sock.send_pyobj(a)\n"
        "        return self.sock.recv_pyobj()  # hot\n"
        "def step_all(remotes, actions):\n    return [r.step(a) for r, a in zip(remotes, actions)]",
    ],
    "history_again": [
        TRACKER.format(loop="tracker.observe(1, env.step(1))\n            x = tracker.belief()"),
        "for t in range(n):\n    seen.append(env.step(a))\n    total = 0.0\n"
        "    for r in seen:  # hot\n        total = 0.9 * total + r\n    act(total)",
    ],
    "same_for_every_item": [
        NODE.format(
            total=TOTAL, select="return max(self.children.items(), key=lambda kv: self.score(kv[1]))"
        ),
        NODE.format(total=TOTAL, select="return max(self.children.values(), key=self.score)"),
        NODE.format(total="np.sum(self.counts)", select="return [self.score(c) for c in self.children]"),
    ],
    "same_every_time": [
        LAYER.format(update="pass"),
        "class Logs(Dataset):\n    def __init__(self, rew):\n        self.rew = rew\n"
        "    def __getitem__(self, i):\n        return self.rew[i] / self.rew.std()  # hot",
        "class CMAES:\n    def ask(self):\n        for _ in range(self.lam):\n"
        "            pop.append(self.rng.multivariate_normal(self.mean, self.sigma * self.C))  # hot\n"
        "    def tell(self, x):\n        self.C = x\n        self.mean = x\n        self.sigma = 1",
    ],
    "wide_storage": [
        MEMORY.format(made="np.zeros((size, *shape))", scale=""),
        MEMORY.format(made="np.empty((size, 4), dtype=np.float64)", scale=" / 255.0"),
    ],
    "draws_one_by_one": [
        "def noise(n):\n    return np.array([np.random.normal(0.0, 0.1) for _ in range(n)])  # hot",
        "rng = np.random.default_rng(0)\nfor k in x:\n    z = [rng.uniform() for _ in range(9)]  # hot",
    ],
    "list_to_draw_from": [
        "for k in x:\n    s, a = self.rng.choice(list(self.model.keys()))  # hot",
        "for k in x:\n    batch = random.sample(list(self.memory), 32)  # hot",
    ],
    "whole_tables": [
        TRACES.format(made="np.zeros(n)", entry="self.e[index] = 1.0"),
        TRACES.format(made="np.zeros_like(self.w)", entry="self.e[index] += 1.0"),
    ],
    "reduced_at_every_change": [
        "class P:\n    def __init__(self):\n        self.p = np.zeros(9000)\n    def add(self, x):\n"
        "        m = self.p.max() if self.n else 1.0  # hot\n        self.p[self.n] = m",
        "class P:\n    def add(self, x):\n        m = max(self.p) if self.p else 1.0  # hot\n"
        "        self.p.append(m)",
    ],
    "parameters_one_by_one": [
        "def learn(net):\n    loss.backward()\n    for p in net.parameters():  # hot\n"
        "        p.grad.data.clamp_(-1, 1)",
        "def soft(net, target):\n    s = net.state_dict()\n    t = target.state_dict()\n"
        "    for k in s:  # hot\n        t[k] = s[k] * 0.01 + t[k] * 0.99\n    target.load_state_dict(t)",
    ],
    "one_hot_products": [
        "def enc(s):\n    v = np.zeros(N)\n    v[s] = 1\n    return w @ v  # hot",
        "for s in x:\n    act(np.eye(n)[s] @ w)  # hot",
        "def act(s):\n    return net(torch.eye(N)[s])  # hot",
    ],
    "connection_each_time": [
        "async def ask(self, m):\n    r, w = await asyncio.open_connection(*self.at)  # hot\n    w.write(m)",
        "def ask(m):\n    answer = requests.post(url, data=m)  # hot\n    return answer",
        "def ask(m):\n    s = socket.create_connection(at)\n    s.sendall(m)\n    s.close()  # hot",
    ],
    "same_call_twice": [
        "class G:\n    def legal(self):\n        return [i for i in range(9) if self.b[i] == 0]\n"
        "    def play(self):\n        if not self.legal():\n            return None\n"
        "        m = self.legal()  # hot\n        return m",
        "def f(net, o):\n    a = net(o)[0].argmax()\n    v = net(o)[1]  # hot networks\n    return a, v",
        "class E:\n    def near(self):\n        return np.sort(self.d)\n    def step(self, a):\n"
        "        r = self.near()[0]\n        return self.near(), r  # hot",
        "def noise_of(seed):\n    return np.random.default_rng(seed).standard_normal(9)\n"
        "def evolve(x):\n    for i, seed in enumerate(seeds):\n        s[0, i] = play(x + noise_of(seed))\n"
        "        s[1, i] = play(x - noise_of(seed))  # hot",
    ],
    "same_in_the_loop": [
        "class Board:\n    def legal(self):\n        return [i for i in range(49) if self.cells[i] == 0]\n"
        "def best(board, logits):\n    for i in range(49):\n"
        "        if i in board.legal():  # hot\n            best = i",
        "def logp(net, o):\n    return net.head(o.x).log()\n"
        "def update(net, old, o):\n    opt = Adam(net.parameters())\n    for i in rows:\n"
        "        with torch.no_grad():\n            before = logp(old, o)  # hot\n"
        "        loss = before[i] - logp(net, o)\n        opt.step()",
    ],
    "sums_of_suffixes": [
        "def gae(d):\n    for t in range(n):\n        for k in range(t, n):  # hot\n"
        "            adv[t] += c ** (k - t) * d[k]",
        "for t in range(n):\n    out.append(sum(g ** k * r for k, r in enumerate(rewards[t:])))  # hot",
        "def f(r, d):\n    return [np.dot(d[: len(r) - t], r[t:]) for t in range(len(r))]  # hot",
    ],
    "covariance_matrix": [
        "def act(m):\n    d = MultivariateNormal(m, torch.diag(self.var))  # hot\n    return d.sample()",
        "def act(m):\n    c = torch.diag_embed(v)\n    return MultivariateNormal(m, c).sample()  # hot",
    ],
    "never_read": [
        "class Env:\n    def step(self, a):\n        power = np.abs(np.fft.rfft(self.trace))  # hot\n"
        "        info = {'energy': 1.0, 'spectrum': power}\n        return self.x, 0.0, info\n"
        "def main(env):\n    obs, r, info = env.step(1)\n    log(info['energy'])\nmain(Env())",
        "class Env:\n    def step(self, a):\n        self.map = np.linalg.norm(self.cells, axis=1)  # hot\n"
        "        self.cells = self.cells + a\n        return self.x\nfor t in range(9):\n    env.step(1)",
    ],
    "copied_to_read": [
        "class M:\n    def sample(self, rows):\n        data = self.memory.copy()  # hot\n"
        "        return data[rows]",
        "class M:\n    def all(self):\n        return self.memory.clone()  # hot\n"
        "    def sample(self, rows):\n        x = self.all()\n        return x[rows], len(x)",
    ],
    "jobs_too_small": [
        "pool = Pool(2)\nfor k in x:\n    fit = pool.map(score, population, chunksize=1)  # hot",
        "ex = ThreadPoolExecutor(8)\nfor k in x:\n    out = list(ex.map(step, envs, actions))  # hot",
    ],
    "constants_in_every_job": [
        POOL.format(call="map(play, [(g, table) for g in population])", after="population = tell(scores)"),
        POOL.format(call="starmap(play, zip(population, repeat(table)))", after="population = tell(scores)"),
        POOL.format(call="map(partial(play, table=table), population)", after="population = tell(scores)"),
    ],
}
SILENT = {
    "all_lines_after_a_move": [
        # a piece moves: two cells change
        BOARD.format(
            move="self.cells[row][column] = 0\n        self.cells[row + 1][column] = self.me", rows="range(6)"
        ),
        # everything may change
        BOARD.format(move="for k in range(9):\n            self.cells[k] = self.next[k]", rows="range(6)"),
        BOARD.format(move="self.cells[:] = self.next", rows="range(6)"),
        # nothing was changed before
        BOARD.format(move="pass", rows="range(6)"),
        # the lines through one cell
        "def wins(cells, me, lines):\n    for line in lines:  # hot\n"
        "        if all(cells[k] == me for k in line):\n            return True\n"
        "def turn(cells, at, me):\n    cells[at] = me\n    return wins(cells, me, THROUGH[at])",
    ],
    "loader_workers_each_pass": [
        LOADER.format(item="crop(self.x[i]), self.y[i]", given="", loop="for x, y in loader:  # hot loader"),
        LOADER.format(
            item="crop(self.x[i]), self.y[i]",
            given=", num_workers=0",
            loop="for x, y in loader:  # hot loader",
        ),
        LOADER.format(
            item="augment(self.x[i], self.rng)",
            given=", num_workers=2, persistent_workers=True",
            loop="for x, y in loader:  # hot loader",
        ),
        # nothing to do for an item: no loader is better
        LOADER.format(
            item="torch.as_tensor(self.x[i]), self.y[i]",
            given=", num_workers=2",
            loop="for x, y in loader:  # hot loader",
        ),
        # one pass
        "loader = DataLoader(data, num_workers=4)\nfor x in loader:  # hot loader\n    step(net, x)",
    ],
    "history_for_its_last_value": [
        # a window, whose length does not grow
        MARKET.format(past="self.price[self.day - 20:self.day]", before="pass", value="ema(past, 12)[-1]"),
        # all of it is used
        MARKET.format(past="self.price[:self.day]", before="pass", value="ema(past, 12)[-1], *past"),
        MARKET.format(past="self.price[:self.day]", before="x = past", value="ema(past, 12).max()"),
        # the largest, not the last
        MARKET.format(past="self.price[:self.day]", before="pass", value="np.sort(past)[-1]"),
        # the same part each time
        MARKET.format(past="self.price[:self.size]", before="pass", value="ema(past, 12)[-1]"),
    ],
    "batch_for_each_minibatch": [
        MINIBATCHES.format(outside="pass", inside="ret = returns_of(rewards[rows])", used="ret"),
        # the loss needs all of it
        MINIBATCHES.format(
            outside="pass", inside="ret = returns_of(rewards, critic(obs))", used="ret[rows] + ret.mean()"
        ),
        # drawn anew
        MINIBATCHES.format(outside="pass", inside="ret = torch.randperm(len(obs))", used="ret[rows]"),
        # once for each epoch, as in TorchRL's tutorial
        TORCHRL.format(epoch="gae(data)  # hot torchrl", minibatch="pass", sampled="buffer.sample()"),
        # no minibatches
        TORCHRL.format(epoch="pass", minibatch="gae(data)  # hot torchrl", sampled="data"),
    ],
    "rows_one_by_one": [
        # each pass needs the one before
        "def filtered(rows):\n    for r in rows:  # hot\n        state = 0.9 * state + np.sum(r)\n"
        "        out.append(state)",
        # the function keeps a count: all rows at once would be another thing
        GOALS.format(
            distance="self.calls += 1\n        return np.linalg.norm(gap)",
            loop="for a, g in zip(achieved, desired):",
            body="out.append(-self._distance(a, g))",
        ),
        # one number, no row
        "for k in range(len(episodes)):  # hot\n    out.append(np.mean(play(k)))",
        # it walks through a path of its own
        GOALS.format(
            distance="while gap.any():\n            gap = gap - 1\n        return np.sum(gap)",
            loop="for a, g in zip(achieved, desired):",
            body="out.append(-self._distance(a, g))",
        ),
    ],
    "network_in_a_loop": [
        # what to ask depends on the answer before
        "for k in range(horizon):  # hot networks\n    a = policy(state)\n    state = model(state, a)",
        # a network for each
        "for k in range(n):  # hot networks\n    if alive[k]:\n        a[k] = policies[k](obs[k])",
        "for agent in team:  # hot networks\n    acts.append(agent.act(torch.from_numpy(obs)))",
        "for name, o in obs.items():  # hot networks\n    p = policies.get(name)\n    a[name] = p.act(o)",
        "for name, o in obs.items():  # hot networks\n    p = policies.get(name)\n    a[name] = p(o)",
        # batches already
        "for i in range(0, n, 512):  # hot networks\n    out.append(net(x[i:i + 512]))",
        "loader = DataLoader(data, 64)\nfor x, y in loader:  # hot networks\n    out.append(net(x))",
        "for k in range(n):  # hot networks trains\n    opt.zero_grad()\n    net(x[k]).sum().backward()",
    ],
    "answers_one_by_one": [
        # all are asked first
        PIPES.format(ask="pass", answer="obs = conn.recv()"),
        # one server for all
        "for a in actions:\n    server.send(a)\n    obs.append(server.recv())  # hot",
        # a message needs the answer before
        "x = first\nfor conn in conns:\n    conn.send(x)\n    x = conn.recv()  # hot",
        # files
        "for f in files:\n    f.write(x)\n    y = f.read()  # hot",
        # entries of dicts
        "for d in dicts:\n    log.write(d)\n    y = d.get('reward')  # hot",
    ],
    "history_again": [
        # once for each episode, as in REINFORCE
        TRACKER.format(
            loop="tracker.observe(1, env.step(1))\n            done = env.done\n        tracker.belief()"
        ),
        # only when the episode is over
        TRACKER.format(
            loop="tracker.observe(1, env.step(1))\n            if env.done:\n                tracker.belief()"
        ),
        # what it reads changes with every step
        TRACKER.format(
            loop="tracker.observe(1, 2)\n            tracker.moves = fit()\n            tracker.belief()"
        ),
        # the list does not grow
        "for t in range(n):\n    for r in weights:  # hot\n        total = 0.9 * total + r",
    ],
    "same_for_every_item": [
        # each pass asks another node
        NODE.format(total=TOTAL, select="return [node.score(1) for node in self.children]"),
        # changed in place under another name
        NODE.format(
            total="np.sum(self.counts)",
            select="c = self.counts\n        c += 1\n        return [self.score(x) for x in self.children]",
        ),
        # it depends on the item
        NODE.format(
            total="sum(c.visits for c in child.children)",
            select="return max(self.children, key=lambda c: self.score(c))",
        ),
        # there is no loop
        NODE.format(total=TOTAL, select="return self.score(self.best)"),
    ],
    "same_every_time": [
        # the rewards change
        "class Logs:\n    def __init__(self):\n        self.rew = np.zeros(9)\n    def add(self, r):\n"
        "        self.rew[0] = r\n    def get(self, i):\n        return self.rew[i] - self.rew.mean()  # hot",
        # a weight that an optimizer changes
        "class Policy(nn.Module):\n    def __init__(self):\n        self.std = nn.Parameter(x)\n"
        "    def entropy(self):\n        return self.std.sum()  # hot",
        # what an optimizer changes
        "class Policy(nn.Module):\n    def __init__(self):\n        self.std = nn.Parameter(torch.zeros(3))\n"
        "    def forward(self, x):\n        return x, torch.exp(self.std)  # hot",
        "class Policy:\n    def __init__(self):\n        self.a = torch.zeros(9, requires_grad=True)\n"
        "    def act(self, x):\n        return x @ torch.exp(self.a)  # hot",
        "class Low:\n    def __init__(self):\n        self.a = torch.zeros(9, 2).requires_grad_()\n"
        "        self.b = torch.zeros(2, 9).requires_grad_()\n"
        "    def act(self, x):\n        return (self.a @ self.b) * x  # hot",
        "log_std = torch.zeros(3, requires_grad=True)\nfor step in range(n):\n"
        "    std = torch.exp(log_std)  # hot\n    act(mean(x) + std)",
        # a scale that is learnt, on the way to a product
        LAYER.format(update="pass")
        .replace("self.adj.sum(1)", "self.scale")
        .replace("    def forward", "        self.scale = nn.Parameter(adj[0])\n    def forward"),
        # matrices of a script that another function may change
        "def predict():\n    return W @ V  # hot",
        # buffers that move
        LAYER.format(update="self.adj.lerp_(x, 0.1)"),
        LAYER.format(update="self.adj = x"),
        # an array that the env goes on filling
        "def play(world, w):\n    obs = world.reset()\n    for t in range(9):\n"
        "        hidden = np.matmul(obs, w)  # hot\n        score += world.step(hidden)",
        # what a method of another object returns
        "class Model:\n    def __init__(self, store):\n        self.store = store\n"
        "    def scale(self):\n        x = self.store.all()\n        return x.mean(0)  # hot",
    ],
    "wide_storage": [
        MEMORY.format(made="np.zeros((size, 4), dtype=np.float32)", scale=""),
        MEMORY.format(made="np.zeros((size, 4), np.uint8)", scale=" / 255.0"),
        # no network that would want float32
        "memory = np.zeros((9, 4))\nfor i in x:\n    rows = memory[i] * 2  # hot",
    ],
    "draws_one_by_one": [
        "def noise(n):\n    return np.random.normal(0.0, 0.1, n)  # hot",
        "def noise(n):\n    return [random.random() for _ in range(n)]  # hot",
        "def noise(n):\n    return [play(np.random.normal(0.0, 0.1)) for _ in range(n)]  # hot",
    ],
    "list_to_draw_from": [
        "for k in x:\n    s, a = rng.choice(self.pairs)  # hot",
        "for k in x:\n    i = random.choice(list(range(n)))  # hot",
        "for k in x:\n    keys = list(self.model.keys())  # hot",
    ],
    "whole_tables": [
        # all entries are set
        TRACES.format(made="np.zeros(n)", entry="self.e[:] = index"),
        TRACES.format(made="np.random.rand(n)", entry="self.e[index] = 1.0"),
        "for i in x:\n    w += 0.1 * gradient  # hot",
    ],
    "reduced_at_every_change": [
        # another function changes it
        "class P:\n    def __init__(self):\n        self.p = np.zeros(9000)\n    def best(self):\n"
        "        return self.p.max()  # hot",
        "class P:\n    def add(self, x):\n        y = x.max()  # hot\n        self.p[self.n] = y",
        # all entries change
        "class P:\n    def __init__(self):\n        self.p = np.zeros(9000)\n    def decay(self):\n"
        "        self.p[:] = 0.9 * self.p\n        return self.p.sum()  # hot",
    ],
    "parameters_one_by_one": [
        "for p in net.parameters():  # hot\n    total += p.numel()",
        "t = net.state_dict()\nfor k in rows:  # hot\n    x[k] = s[k] * 0.01\nnet.load_state_dict(t)",
        "for p in net.parameters():  # hot\n    sizes.append(p.shape)",
    ],
    "one_hot_products": [
        "for s in x:\n    q = table[s] @ w  # hot",
        "for s in x:\n    a = np.eye(4)  # hot",
        "for s in x:\n    a = np.eye(4)[:2]  # hot",
    ],
    "connection_each_time": [
        "def send(self, m):\n    self.socket.sendall(m)  # hot",
        "async def ask(self, m):\n    self.writer.write(m)  # hot\n    return await self.reader.readline()",
        "def f(s):\n    env.close()  # hot",
    ],
    "same_call_twice": [
        # something else is asked
        "def f(net, o, p):\n    a = net(o)\n    v = net(p)  # hot networks\n    return a, v",
        # the state has moved on
        "class E:\n    def near(self):\n        return np.sort(self.d)\n    def step(self, a):\n"
        "        r = self.near()\n        self.d = a\n        return self.near() - r  # hot",
        # the network has learnt
        "def f(net, o):\n    a = net(o)\n    opt.step()\n    v = net(o)  # hot networks\n    return v - a",
        # other numbers each time
        "def noise():\n    return rng.standard_normal(9)\ndef evolve(x):\n    for i in range(9):\n"
        "        s[0, i] = play(x + noise())\n        s[1, i] = play(x - noise())  # hot",
        "def noise():\n    return np.random.default_rng().standard_normal(9)\ndef evolve(x):\n"
        "    for i in range(9):\n        s[i] = play(x + noise())\n        s[-i] = play(x - noise())  # hot",
        # either of the two
        "def f(net, o, c):\n    if c:\n        return net(o)[0]\n    return net(o)[1]  # hot networks",
    ],
    "same_in_the_loop": [
        # the board changes
        "class Board:\n    def legal(self):\n        return [i for i in range(49) if self.cells[i] == 0]\n"
        "    def play(self, i):\n        self.cells[i] = 1\ndef best(board):\n    for i in range(49):\n"
        "        moves = board.legal()  # hot\n        board.play(moves[0])",
        # who knows what a step of the env changes
        "def gather(batch):\n    return [row.obs for row in batch]\nfor i in range(9):\n"
        "    obs = env.step(policy(obs))\n    x = gather(memory)  # hot\n    y += work(x)",
        # another board at each pass
        "class Board:\n    def legal(self):\n        return [i for i in range(49) if self.cells[i] == 0]\n"
        "def count(boards):\n    for board in boards:\n        n = len(board.legal())  # hot\n"
        "        keep(n)",
        # the network that learns
        "def logp(net, o):\n    return net.head(o.x).log()\n"
        "def update(net, o):\n    opt = Adam(net.parameters())\n    for i in rows:\n"
        "        with torch.no_grad():\n            now = logp(net, o)  # hot networks\n        step(now)",
    ],
    "sums_of_suffixes": [
        "for t in range(n):\n    out.append(sum(rewards[t : t + 5]))  # hot",
        "for t in range(n):\n    out.append(sum(rewards[:10]))  # hot",
        "for t in range(n):\n    out.append(rewards[t] + sum(weights))  # hot",
    ],
    "covariance_matrix": [
        "def act(m):\n    d = MultivariateNormal(m, full)  # hot\n    return d.sample()",
        "def act(m):\n    d = Independent(Normal(m, s), 1)  # hot\n    return d.sample()",
        "def act(m):\n    d = torch.diag(v)  # hot\n    return d",
    ],
    "never_read": [
        # somebody asks for it
        "class Env:\n    def step(self, a):\n        power = np.fft.rfft(self.trace)  # hot\n"
        "        info = {'spectrum': power}\n        return self.x, info\n"
        "def main(env):\n    obs, info = env.step(1)\n    log(info['spectrum'])",
        # all of it is kept
        "class Env:\n    def step(self, a):\n        power = np.fft.rfft(self.trace)  # hot\n"
        "        info = {'spectrum': power}\n        return self.x, info\n"
        "def main(env):\n    obs, info = env.step(1)\n    infos.append(info)",
        # a module that others import
        "class Env:\n    def step(self, a):\n        self.map = np.linalg.norm(self.cells, axis=1)  # hot\n"
        "        return self.x",
        # another function reads the attribute
        "class Env:\n    def step(self, a):\n        self.map = np.sort(self.cells)  # hot\n"
        "        return self.x\n    def seen(self):\n        return self.map[0]",
    ],
    "copied_to_read": [
        # a frame that goes to somebody else
        "class E:\n    def step(self, a):\n        return self.frame.copy()  # hot\n"
        "def main(env):\n    o = env.step(1)\n    memory.append(o)",
        # the copy is changed
        "class E:\n    def f(self, i):\n        b = self.board.copy()  # hot\n        b[i] = 1\n"
        "        return b",
        "class E:\n    def f(self, i):\n        b = self.board.copy()  # hot\n        return b",
    ],
    "jobs_too_small": [
        # what the workers do meanwhile is not known
        "pool = Pool(2)\nfor k in x:\n    fit = pool.map(score, population)  # hot asleep",
        "for k in x:\n    fit = list(map(score, population))  # hot",
        "for k in x:\n    y = frame.map(score)  # hot",
        "job = pool.submit(train, x)  # hot",
    ],
    "constants_in_every_job": [
        # nothing but what each job needs
        POOL.format(call="map(play, population)", after="population = tell(scores)"),
        # it changes with every generation
        POOL.format(call="map(play, [(g, table) for g in population])", after="table = tell(scores)"),
        # a number
        POOL.format(
            call="map(play, [(g, jobs_made) for g in population])", after="population = tell(scores)"
        ),
        # no pool
        "table = load()\nfor k in x:\n    y = frame.map(f, [(g, table) for g in rows])  # hot",
    ],
}


def named(source: str) -> str:
    one = spot(source)
    found = repeated_work(one) or recomputed(one) or match(one)
    if found is None:
        return ""
    assert 0 < found.saved[0] <= found.saved[1] <= found.saved[2] <= 1
    assert found.why.endswith(".") and found.remedy.endswith(".") and not found.title.endswith(".")
    return found.name


@pytest.mark.parametrize(("name", "source"), [(name, one) for name, some in FIRES.items() for one in some])
def test_needless_work_is_named(name: str, source: str) -> None:
    assert named(source) == name


@pytest.mark.parametrize(("name", "source"), [(name, one) for name, some in SILENT.items() for one in some])
def test_similar_code_is_left_alone(name: str, source: str) -> None:
    assert named(source) != name


def test_each_rule_has_two_examples_and_three_counter_examples() -> None:
    assert FIRES.keys() == SILENT.keys()
    assert all(len(some) >= 2 for some in FIRES.values()) and all(len(some) >= 3 for some in SILENT.values())


def test_a_small_table_is_left_alone() -> None:
    one = replace(spot(FIRES["whole_tables"][0]), share=0.06)
    assert match(one) is None


ACT = """\
{decorator}def act(self, obs):
    {before}
    for _ in range(4):
        score = self.model(torch.from_numpy(obs))
    {after}
"""
MODEL = "torch.nn.modules.module.Module._wrapped_call_impl"
BACKWARD = "torch._tensor.Tensor.backward"


@pytest.mark.parametrize(
    ("decorator", "before", "after", "found"),
    [
        ("", "pass", "return score.argmax().item()", True),
        ("", "pass", "return self.mean[0].numpy().astype(np.float64)", True),
        ("", "pass", "p = np.exp(score.numpy())\n    p = zip(obs.moves, p)\n    return p, v.item()", True),
        ("", "pass", "return score.argmax().item(), score.detach()", True),
        ("", "pass", "p = zip(obs.moves, score)\n    return p, v.item()", False),
        ("", "pass", "a = {}\n    for k in ks:\n        a[k] = score[k].argmax().item()\n    return a", True),
        ("", "pass", "a = []\n    a.append(score.item())\n    return a", True),
        ("", "pass", "return {k: score[k].item() for k in ks}", True),
        ("", "pass", "a = {}\n    for k in ks:\n        a[k] = score[k]\n    return a", False),
        ("", "pass", "a = []\n    a.append(score.item())\n    a.extend(score)\n    return a", False),
        ("@torch.no_grad()\n", "pass", "return score.argmax().item()", False),
        ("", "torch.set_grad_enabled(False)", "return score.argmax().item()", False),
        ("", "pass", "return score", False),
        ("", "pass", "score.backward()\n    return score.item()", False),
    ],
)
def test_numbers_that_come_from_networks_need_no_gradients(
    decorator: str, before: str, after: str, found: bool
) -> None:
    act = ("train.py", "Planner.act", 2)
    paths = [path((("train.py", "<module>", 1), 30), (act, 6), called=MODEL), path(called=BACKWARD)]
    capture = with_source(
        capture_with(paths, [6, 4]),
        ("train.py", "Planner.act", 2, ACT.format(decorator=decorator, before=before, after=after)),
    )
    advice = gradients_not_needed(run_of(capture))
    assert bool(advice) is found
    if found:
        assert advice[0].safety == "safe" and advice[0].gain is not None and advice[0].gain.value > 1.1


@pytest.mark.parametrize(
    ("added", "above", "found"),
    [
        ("self.sigma * np.random.randn(2)", "", True),
        ("0.1", "", True),
        ("self.scale", "self.scale = nn.Parameter(torch.ones(2))", False),  # may be trained
        ("self.bias(obs)", "", False),
    ],
)
def test_noise_added_to_a_plain_action_leaves_it_plain(added: str, above: str, found: bool) -> None:
    source = f"""\
def act(self, obs):
    {above}
    action = self.actor(torch.tensor(obs)).detach().cpu().numpy()[0]
    action = action + {added}
    return action
"""
    act = ("train.py", "act", 1)
    paths = [path((("train.py", "<module>", 1), 30), (act, 3), called=MODEL), path(called=BACKWARD)]
    capture = with_source(capture_with(paths, [6, 4]), ("train.py", "act", 1, source))
    assert bool(gradients_not_needed(run_of(capture))) is found


@pytest.mark.parametrize(
    ("stores", "kept"),
    [
        # the policy gradient of PyTorch's examples, and its relatives
        ("model.saved_actions.append(SavedAction(m.log_prob(action), value))", True),
        ("self.saved = m.log_prob(action)", True),
        ("log_prob = m.log_prob(action)\n    memory[self.t] = log_prob", True),
        ("pair = (m.log_prob(action), value)\n    buffer.push(*pair)", True),
        ("probs, self.hidden = net(state, self.hidden)", True),
        ("saved = self.saved\n    saved.append(value)", True),
        # plain numbers, data, containers of its own, what is only shown
        ("self.saved.append(action.item())", False),
        ("self.values.append(float(value))", False),
        ("self.states.append(torch.from_numpy(obs).float().unsqueeze(0))", False),
        ("self.actions.append(m.sample())", False),
        ("scores = []\n    scores.append(value)\n    scores[0] = value", False),
        ("self.epsilon = max(0.1, self.epsilon * 0.99)\n    self.t += 1", False),
        ("print(value)", False),
    ],
)
def test_what_a_loss_learns_from_is_not_computed_without_gradients(stores: str, kept: bool) -> None:
    source = f"""\
def act(obs):
    state = torch.from_numpy(obs).float()
    probs, value = model(state)
    m = Categorical(probs)
    action = m.sample()
    {stores}
    return action.item()
"""
    act = ("train.py", "act", 1)
    paths = [path((("train.py", "<module>", 1), 30), (act, 3), called=MODEL), path(called=BACKWARD)]
    capture = with_source(capture_with(paths, [6, 4]), ("train.py", "act", 1, source))
    assert bool(gradients_not_needed(run_of(capture))) is not kept


LEARN = """\
def learn(self, o, r, o2):
    {before}
    target = r + 0.99 * self.target(o2).max(1).values{after}
    loss = F.mse_loss(self.q(o), target)
    loss.backward()
    self.opt.step()
"""
INIT = """\
def __init__(self):
    self.target.load_state_dict(self.q.state_dict())
    self.opt = torch.optim.Adam(self.{given}.parameters())
"""


@pytest.mark.parametrize(
    ("before", "after", "given", "found"),
    [
        ("pass", "", "q", True),
        ("pass", ".detach()", "q", False),
        ("self.target.requires_grad_(False)", "", "q", False),
        ("pass", "", "target", False),
    ],
)
def test_backward_passes_need_not_run_through_a_target_network(
    before: str, after: str, given: str, found: bool
) -> None:
    learn = ("train.py", "Agent.learn", 10)
    paths = [
        path((learn, 12), called=MODEL),
        path((learn, 13), called=MODEL),
        path((learn, 14), called=BACKWARD),
    ]
    capture = with_source(
        capture_with(paths, [2, 2, 6]),
        ("train.py", "Agent.learn", 10, LEARN.format(before=before, after=after)),
        ("train.py", "Agent.__init__", 2, INIT.format(given=given)),
    )
    advice = target_with_gradients(run_of(capture))
    assert bool(advice) is found
    # Forward passes that choose actions do not lead to a backward pass.
    acting = path((("train.py", "Agent.act", 30), 31), called=MODEL)
    capture = with_source(
        capture_with([*paths, acting], [1, 1, 3, 5]),
        ("train.py", "Agent.learn", 10, LEARN.format(before=before, after=after)),
        ("train.py", "Agent.__init__", 2, INIT.format(given=given)),
    )
    assert bool(target_with_gradients(run_of(capture))) is found
    if found:
        assert advice[0].site == "train.py:12" and advice[0].gain is not None
        assert 1 / (1 - 0.6 * 0.5 * 0.85) > advice[0].gain.value > 1 / (1 - 0.6 * 0.5 * 0.75)


TEST = """\
def test(agent):
    results = [fly(agent) for _ in range(10)]
    return np.mean(results)
"""
MAIN = """\
def main():
    for t in range(100):
        env.step(1)
        {call}
"""


@pytest.mark.parametrize(
    ("call", "found"), [("if t % 10 == 0:\n            s = test(a)", True), ("s = test(a)", False)]
)
def test_an_env_of_the_script_is_evaluated_now_and_then(call: str, found: bool) -> None:
    step, main, score = ("train.py", "Env.step", 40), ("train.py", "main", 10), ("train.py", "test", 2)
    row = 14 if found else 13
    paths: list[SampledPath] = [
        path((main, row), (score, 3), (step, 41)),
        path((main, 12), (step, 41)),
        path((main, 12), called=BACKWARD),
    ]
    capture = with_source(
        capture_with(paths, [4, 3, 3]),
        ("train.py", "test", 2, TEST),
        ("train.py", "main", 10, MAIN.format(call=call)),
    )
    process = capture.processes[0]
    rows = process.samples.copy()
    rows["node"] = np.zeros(len(rows), dtype=rows["node"].dtype)
    capture = replace(capture, processes=(replace(process, samples=rows),))
    advice = evaluation_in_the_loop(run_of(capture))
    assert bool(advice) is found
    if found:
        assert advice[0].site == "train.py:14"
