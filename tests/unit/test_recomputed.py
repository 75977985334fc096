"""Results computed again, and loops over items: each fires twice and leaves alone what looks alike."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hotloop.analysis.advice import growing_history
from hotloop.analysis.advice import recomputed as recomputation
from hotloop.analysis.advice.idioms import match
from hotloop.analysis.advice.recomputed import recomputed
from hotloop.analysis.advice.repeated_work import repeated_work
from hotloop.analysis.source_names import dotted
from tests.unit.test_idioms import spot

SCHOOL = """
class School:
    def distances(self):
        return np.linalg.norm(self.pos[None] - self.pos[:, None], axis=-1)
    def observe(self, i):
        {first}
        near = self.distances()  # hot
        return near[i]
    def step(self, actions):
        self.pos = self.pos + actions
        {loop}
"""
FIRES = {
    "fixed_method": [
        """
        class Chain(gym.Env):
            def __init__(self, n):
                self.dt = 0.1
                self.A = np.eye(n)
                self.A[0, 0] = 2.0
            def _discretise(self):
                M = np.zeros((4, 4))
                M[:3, :3] = self.A * self.dt
                return scipy.linalg.expm(M)
            def step(self, action):
                Ad = self._discretise()  # hot
                self.x = Ad @ self.x
        """,
        """
        class Filter:
            def __init__(self, noise):
                self.noise = noise
                self.h = np.eye(4)
            def gain(self):
                return np.linalg.inv(self.h @ self.noise @ self.h.T)
            def correct(self, y):
                self.state = self.state + self.gain() @ y  # hot
        """,
    ],
    "same_for_every_item": [
        SCHOOL.format(first="pass", loop="return [self.observe(i) for i in range(self.n)]"),
        """
        class Model:
            def scale(self):
                return self.store.values().mean(0)
            def predict(self, x):
                mean = self.scale()  # hot
                return self.net(x - mean)
        def plan(model, x):
            for t in range(12):
                x = model.predict(x)
            return x
        """,
    ],
    "from_fixed_data": [
        """
        class Windows(Dataset):
            def __init__(self, episodes, index):
                self.episodes, self.index = episodes, index
            def returns(self, rewards):
                out = np.zeros(len(rewards))
                for t in range(len(rewards)):
                    out[t] = rewards[t:].sum()
                return out
            def __getitem__(self, k):
                i, t = self.index[k]
                episode = self.episodes[i]
                r = self.returns(episode["rewards"])  # hot
                return r[t]
        """,
        """
        def average(prices):
            return np.convolve(prices, np.ones(9))
        class Trader:
            def __init__(self, prices):
                self.prices = prices
            def observe(self):
                return average(self.prices[: self.day])[-24:]  # hot
        """,
    ],
    "old_items_again": [
        """
        def main(expert, policy):
            states = []
            for k in range(9):
                states += drive(policy)
                labels = [expert.plan(s) for s in states]  # hot
                fit(policy, states, labels)
        """,
        """
        class Memory:
            def __init__(self):
                self.episodes = deque(maxlen=100)
            def add(self, episode):
                self.episodes.append(episode)
            def sample(self):
                starts = [(e, t) for e in self.episodes for t in range(len(e) - 8)]  # hot
                return random.sample(starts, 32)
        """,
    ],
    "targets_in_the_loop": [
        """
        def learn(self, obs, act, rew, nxt):
            for i in range(N):
                with torch.no_grad():
                    planned = torch.stack([net(nxt) for net in self.target_actors])  # hot networks
                    wanted = rew[:, i] + self.target_critics[i](nxt, planned)
                loss = F.mse_loss(self.critics[i](obs, act), wanted)
                loss.backward()
                self.opts[i].step()
        """,
        """
        def epochs(batch, policy, reference):
            for epoch in range(4):
                with torch.no_grad():
                    old = reference(batch)  # hot networks
                loss = (policy(batch) - old).mean()
                loss.backward()
                optimizer.step()
        """,
    ],
    "read_under_a_condition": [
        """
        EVERY = 10
        for t in range(n):
            with torch.no_grad():
                proposal = manager(x)  # hot networks
                if t % EVERY == 0:
                    goal = proposal
                action = worker(x, goal)
            x = env.step(action)
        """,
        """
        def run(env, table):
            for t in range(1000):
                spread = np.linalg.svd(table)  # hot
                table[t] = env.step(t)
                if t % 100 == 0:
                    env.widen(spread)
        """,
    ],
    "overwritten_by_the_caller": [
        """
        class Game:
            def draw(self):
                return np.clip(self.canvas, 0, 1)
            def step(self, action):
                self.canvas = self.canvas + action
                return self.draw(), 1.0  # hot
        class Skip:
            def step(self, action):
                total = 0.0
                for _ in range(4):
                    obs, reward = self.env.step(action)
                    total += reward
                return obs, total
        """,
        """
        def picture(state):
            return np.outer(state, state)
        def advance(state):
            state.x += 1
            return picture(state)  # hot
        def play(state):
            for _ in range(8):
                frame = advance(state)
            return frame
        """,
    ],
    "total_of_a_tree": [
        """
        class Node:
            @property
            def visits(self):
                return self.ended + sum(child.visits for child in self.children.values())  # hot
        """,
        """
        def size(node):
            total = 1
            for child in node.children:
                total += size(child)  # hot
            return total
        """,
    ],
    "ensemble_one_by_one": [
        """
        class Dynamics(nn.Module):
            def __init__(self, n):
                self.members = nn.ModuleList(Net() for _ in range(n))
            def forward(self, x):
                return torch.stack([member(rows) for member, rows in zip(self.members, x)])  # hot networks
        """,
        """
        class Critics(nn.Module):
            def __init__(self, n):
                self.members = nn.ModuleList(Critic() for _ in range(n))
            def forward(self, x):
                return torch.stack([member(x) for member in self.members])  # hot networks
        """,
        """
        class Models(nn.Module):
            def __init__(self, n):
                self.nets = nn.ModuleList([Net() for _ in range(7)])
            def forward(self, x):
                for net in self.nets:  # hot networks
                    out.append(net(x))
        """,
    ],
    "added_one_by_one": [
        "for transition in batch.unbind(0):  # hot torchrl\n    buffer.add(transition)",
        """
        class Ring:
            def push(self, row):
                self.rows[self.position] = row
        def collect(ring, rows):
            for row in rows:  # hot
                ring.push(row)
        """,
    ],
    "rows_one_by_one": [
        """
        def rewards(achieved, desired):
            for a, d in zip(achieved, desired):  # hot
                wrong = np.mean(np.abs(a - d) > 0.5)
                out.append(-wrong)
        """,
        """
        def norms(rows):
            for k, row in enumerate(rows):  # hot
                lengths[k] = np.linalg.norm(row - centre)
        """,
    ],
    "sorting_for_a_few": [
        "def near(x):\n    d = np.abs(points - x)\n    return np.argsort(d)[:10]  # hot",
        "def near(x):\n    d = np.sqrt(x)\n    best = np.sort(d)[-3:]  # hot",
    ],
}
SILENT = {
    "fixed_method": [
        """
        class Chain(gym.Env):
            def __init__(self, n):
                self.A = np.eye(n)
            def reset(self):
                self.A = self.draw_masses()
            def _discretise(self):
                return scipy.linalg.expm(self.A)
            def step(self, action):
                Ad = self._discretise()  # hot
                self.x = Ad @ self.x
        """,
        """
        class Maze:
            def __init__(self, n):
                self.shape = (n, n)
            def _empty(self):
                return np.zeros(self.shape)
            def observe(self):
                grid = self._empty()  # hot
                grid[self.row] = 1.0
                return grid
        """,
        """
        class Maze:
            def __init__(self, rng, n):
                self.rng = rng
                self.n = n
            def _noise(self):
                return self.rng.normal(size=self.n)
            def observe(self):
                return self.x + self._noise()  # hot
        """,
        """
        class Learner:
            def __init__(self, n):
                self.table = np.zeros(n)
            def values(self):
                return np.exp(self.table)
            def act(self, s):
                v = self.values()  # hot
                self.table[s] += 0.1
                return v
        """,
    ],
    "same_for_every_item": [
        # the function itself moves what is read
        SCHOOL.format(
            first="self.pos = self.pos + 1", loop="return [self.observe(i) for i in range(self.n)]"
        ),
        # the loop does
        SCHOOL.format(
            first="pass", loop="for i in range(9):\n            self.pos = i\n            self.observe(i)"
        ),
        # there is no loop
        SCHOOL.format(first="pass", loop="return self.observe(0)"),
        # a message from somebody else
        "def ask(self, a):\n    return unpack(receive(self.pipe))  # hot\n"
        "def receive(pipe):\n    return pipe.recv()\ndef unpack(m):\n    return m['x']\n"
        "def main(sim):\n    while True:\n        sim.ask(1)",
    ],
    "from_fixed_data": [
        # the data change
        "def f(x):\n    return np.sort(x)\nclass E:\n    def __init__(self):\n        self.x = []\n"
        "    def step(self, a):\n        self.x = a\n        return f(self.x)  # hot",
        # something else goes in
        "def f(x, y):\n    return x + y\nclass E:\n    def __init__(self):\n        self.x = 1\n"
        "    def step(self, a):\n        return f(self.x, a)  # hot",
        # the result is random
        "def f(x):\n    return rng.permutation(x)\nclass E:\n    def __init__(self):\n        self.x = 1\n"
        "    def step(self, a):\n        return f(self.x)  # hot",
        # a network that learns
        "class E:\n    def __init__(self):\n        self.x = 1\n        self.net = make()\n"
        "    def f(self, x):\n        return self.net(x)\n"
        "    def step(self, a):\n        return self.f(self.x)  # hot",
    ],
    "old_items_again": [
        # a new list for each episode
        "for k in range(9):\n    seen = []\n    for t in x:\n        seen.append(t)\n"
        "    y = [expert.plan(s) for s in seen]  # hot",
        # a fixed list
        "states = load()\nfor k in range(9):\n    y = [expert.plan(s) for s in states]  # hot",
        # emptied by somebody else
        "class M:\n    def __init__(self):\n        self.e = []\n    def add(self, x):\n"
        "        self.e.append(x)\n    def reset(self):\n        self.e = []\n"
        "    def f(self):\n        y = [a + 1 for a in self.e]  # hot",
        # items of a batch
        "for k in range(9):\n    memory.append(k)\n    y = [memory[i] for i in rows]  # hot",
    ],
    "targets_in_the_loop": [
        # another batch at every pass
        "for b in x:\n    with torch.no_grad():\n        t = target(b)  # hot networks\n    f(t).backward()",
        # the targets move in the loop
        "for i in range(n):\n    with torch.no_grad():\n        t = target(x)  # hot networks\n"
        "    loss(net(x), t).backward()\n    soft_update(target, net)",
        # it is trained in the loop
        "for i in x:\n    with torch.no_grad():\n        v = critic(y)  # hot networks\n    opt.step()",
        # gradients flow through it
        "for i in range(n):\n    t = target(x)  # hot networks\n    loss(t).backward()",
        # what it is given changes in place
        "for i in range(n):\n    with torch.no_grad():\n        t = target(x)  # hot networks\n"
        "    loss(net(y), t).backward()\n    x.mul_(0.9)",
        "for i in range(n):\n    with torch.no_grad():\n        t = target(x)  # hot networks\n"
        "    loss(net(y), t).backward()\n    torch.add(x, 1, out=x)",
        "def augment(x):\n    x[:, 0] = 0\nfor i in range(n):\n    with torch.no_grad():\n"
        "        t = target(x)  # hot networks\n    loss(net(y), t).backward()\n    augment(x)",
        # a function of the script changes what it reads
        "class A:\n    def move(self):\n        self.batch = self.batch + 1\n    def learn(self):\n"
        "        for i in range(n):\n            with torch.no_grad():\n"
        "                t = self.target(self.batch)  # hot networks\n"
        "            loss(net(y), t).backward()\n            self.move()",
    ],
    "read_under_a_condition": [
        # read elsewhere, too
        "for t in range(n):\n    v = np.exp(q)  # hot\n    if t % 10 == 0:\n        print(v)\n    act(v)",
        # the condition needs it
        "for t in range(n):\n    v = np.exp(q)  # hot\n    if v.max() > 1:\n        print(v)",
        # it has an effect
        "for t in range(n):\n    v = env.step(a)  # hot\n    if t % 10 == 0:\n        print(v)",
        # nobody knows what it does
        "def run(cycle):\n    while True:\n        v = cycle()  # hot\n        if begun:\n            n += v",
        "for t in range(n):\n    v = runner.cycle(t)  # hot\n    if t % 10 == 0:\n        print(v)",
        # gradients may flow through it
        "for t in range(n):\n    v = net(x)  # hot networks\n    if t % 10 == 0:\n        v.backward()",
    ],
    "overwritten_by_the_caller": [
        # each picture is used
        "def draw(s):\n    return s + 1\ndef advance(s):\n    return draw(s)  # hot\n"
        "def play(s):\n    for _ in range(8):\n        f = advance(s)\n        frames.append(f)",
        # no loop
        "def draw(s):\n    return s + 1\ndef advance(s):\n    return draw(s)  # hot\n"
        "def play(s):\n    f = advance(s)\n    return f",
        # it changes something
        "def draw(s):\n    s.count += 1\n    return s\ndef advance(s):\n    return draw(s)  # hot\n"
        "def play(s):\n    for _ in range(8):\n        f = advance(s)\n    return f",
    ],
    "total_of_a_tree": [
        # a search over moves, which are not stored
        "def value(board):\n    return max(value(b) for b in moves(board))  # hot",
        # one level
        "class N:\n    def visits(self):\n        return sum(c.count for c in self.children)  # hot",
        # it changes the nodes
        "def size(node):\n    for child in node.children:\n        node.total += size(child)  # hot\n"
        "    return node.total",
    ],
    "ensemble_one_by_one": [
        # a chain of layers
        "class M:\n    def __init__(self, n):\n        self.b = nn.ModuleList(B() for _ in range(n))\n"
        "    def forward(self, h):\n        for b in self.b:  # hot networks\n            h = h + b(h)\n"
        "        return h",
        # two critics
        "class M:\n    def __init__(self):\n        self.q = nn.ModuleList([Q(), Q()])\n"
        "    def forward(self, x):\n        return [q(x) for q in self.q]  # hot networks",
        # one network for many inputs
        "for o in observations:  # hot networks\n    acts.append(net(o))",
        # branches of different widths
        "class M:\n    def __init__(self, w):\n        self.b = nn.ModuleList(nn.Linear(k, 8) for k in w)\n"
        "    def forward(self, x):\n        return [b(y) for b, y in zip(self.b, x)]  # hot networks",
    ],
    "added_one_by_one": [
        # a list costs nothing
        "memory = []\nfor row in rows:  # hot\n    memory.append(row)",
        # a queue takes its items one by one
        "class Q:\n    def push(self, item):\n        heapq.heappush(self.heap, item)\n"
        "def f(q, rows):\n    for r in rows:  # hot\n        q.push(r)",
        # more happens
        "for row in rows:  # hot\n    row = clean(row)\n    buffer.add(row)",
    ],
    "rows_one_by_one": [
        # matrix products
        "for k, x in enumerate(parts):  # hot\n    out[k] = np.sum(x.T @ x)",
        # each needs the one before
        "for k, x in enumerate(rows):  # hot\n    h = np.mean(h + x)\n    out[k] = h",
        # a function of the script does the work
        "def f(x):\n    return x\nfor k, x in enumerate(rows):  # hot\n    out[k] = np.mean(f(x))",
    ],
    "sorting_for_a_few": [
        # all of it is used
        "def rank(x):\n    d = np.abs(x)\n    order = np.argsort(d)  # hot\n    return order",
        # it was there before
        "for i in x:\n    best = sorted(population, key=score)[:10]  # hot",
        "for i in x:\n    best = max(population)  # hot",
    ],
}


@pytest.mark.parametrize(("name", "source"), [(name, one) for name, some in FIRES.items() for one in some])
def test_a_family_fires(name: str, source: str) -> None:
    one = spot(source)
    found = repeated_work(one) or recomputed(one) or match(one)
    assert found is not None and found.name == name
    assert 0 < found.saved[0] <= found.saved[1] <= found.saved[2] <= 1
    assert found.why.endswith(".") and found.remedy.endswith(".") and not found.title.endswith(".")


@pytest.mark.parametrize(("name", "source"), [(name, one) for name, some in SILENT.items() for one in some])
def test_a_family_leaves_similar_code_alone(name: str, source: str) -> None:
    one = spot(source)
    found = repeated_work(one) or recomputed(one) or match(one)
    assert found is None or found.name != name


def test_each_family_has_two_examples_and_three_counter_examples() -> None:
    assert FIRES.keys() == SILENT.keys()
    assert all(len(some) >= 2 for some in FIRES.values()) and all(len(some) >= 3 for some in SILENT.values())


def test_every_kind_of_recomputation_has_an_example() -> None:
    files = [Path(module.__file__ or "") for module in (recomputation, growing_history)]
    nodes = [n for file in files for n in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    calls = [n for n in nodes if isinstance(n, ast.Call) and dotted(n.func) == "Match"]
    others = {"history_again", "same_in_the_loop", "same_call_twice"}  # test_needless_work.py
    assert {ast.literal_eval(call.args[0]) for call in calls} <= set(FIRES) | others


def test_a_condition_with_a_constant_says_how_much_is_saved() -> None:
    found = recomputed(spot(FIRES["read_under_a_condition"][0]))
    assert found is not None and found.saved[1] == pytest.approx(0.9)


def test_a_name_that_looks_like_a_module_may_be_an_angle() -> None:
    angle = "def f(state):\n    x, th = state.T\n    s = np.sin(th)  # hot\n    return s"
    assert repeated_work(spot(angle)) is None


def test_a_method_of_a_computed_value_is_not_the_same_every_time() -> None:
    solved = "for k in x:\n    w = np.linalg.solve(lhs(k), b).astype(np.float32)  # hot"
    assert repeated_work(spot(solved)) is None


def test_a_call_of_compiled_code_is_no_slow_loop() -> None:
    closure = """
    def build(load):
        @njit
        def rollout(w):
            return w * load
        return rollout
    def evolve(noise):
        simulate = build(2.0)
        fitness = np.array([simulate(mean + e) for e in noise])  # hot
    """
    assert match(spot(closure)) is None


def test_flushing_a_pipe_is_not_printing() -> None:
    assert match(spot("for i in x:\n    stream.flush()  # hot")) is None
    found = match(spot("for i in x:\n    sys.stdout.flush()  # hot"))
    assert found is not None and found.name == "printing"


def test_an_action_that_is_read_from_a_tensor_is_needed() -> None:
    acting = "while not done:\n    a = torch.multinomial(p, 1).item()  # hot\n    obs = env.step(a)"
    assert match(spot(acting)) is None
    logged = "while not done:\n    a = loss.item()  # hot\n    losses.append(a)"
    found = match(spot(logged))
    assert found is not None and found.name == "reading_scalars"
