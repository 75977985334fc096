"""Families of slow code: each fires on two pieces of source and leaves three alone that look alike."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hotloop.analysis.advice import idioms
from hotloop.analysis.advice import repeated_work as repetition
from hotloop.analysis.advice.idioms import match
from hotloop.analysis.advice.repeated_work import repeated_work
from hotloop.analysis.source_names import dotted
from tests.unit.test_idioms import MATCHES, spot
from tests.unit.test_library_idioms import FIRES as OF_LIBRARIES
from tests.unit.test_needless_work import FIRES as NEEDLESS
from tests.unit.test_recomputed import FIRES as MORE

FIRES = {
    "held_to_a_clock": [
        """
        class Rate(gym.Wrapper):
            def step(self, action):
                now = time.perf_counter()
                if self.due is not None and now < self.due:
                    time.sleep(self.due - now)  # hot
                return self.env.step(action)
        """,
        """
        def step(self, action):
            elapsed = time.time() - self.last
            rest = self.period - elapsed
            time.sleep(max(rest, 0))  # hot
            return self.observe()
        """,
        """
        class Cart:
            def step(self, force):
                self.x = self.x + self.v * self.dt
                time.sleep(self.dt)  # hot
        """,
    ],
    "matrix_for_each_draw": [
        """
        class Thompson:
            def choose(self, features):
                theta = self.rng.multivariate_normal(self.mean, self.cov)  # hot
                return (features @ theta).argmax()
        """,
        """
        def play(rounds):
            for t in range(rounds):
                cov = np.linalg.inv(precision(t))
                w = np.random.multivariate_normal(mean(t), cov)  # hot
                observe(w)
        """,
    ],
    "list_for_compiled_code": [
        """
        from numba.typed import List
        class Forest:
            def sense(self):
                trees = List(self.trees)  # hot
                return cast(self.x, trees)
        """,
        """
        import numba
        def step(x, obstacles):
            return hits(x, numba.typed.List(obstacles))  # hot
        """,
        """
        @njit
        def cast(x, points):
            return points[0] + x
        def step(x):
            points = [p * 2 for p in x]
            return cast(x, points)  # hot
        """,
    ],
    "tensor_rows_one_by_one": [
        """
        def augment(frames, contrast):
            out = torch.empty_like(frames)
            for i in range(len(frames)):  # hot
                img = frames[i, :, 2:30]
                img = (img * contrast[i] + 0.1).clamp(0.0, 1.0)
                img = (img - img.mean()) / (img.std() + 1e-3)
                out[i] = img
            return out
        """,
        """
        def whiten(windows):
            rows = []
            for w in windows:  # hot
                w = w - w.mean(0)
                w = w / (w.std(0) + 1e-6)
                rows.append(torch.tanh(w * 0.5))
            return torch.stack(rows)
        """,
    ],
    "same_in_a_comprehension": [
        """
        def act(q, state):
            values = q[state]
            return np.random.choice([a for a, v in enumerate(values) if v == np.max(values)])  # hot
        """,
        """
        def weights(scores):
            return [math.exp(s - max(scores)) for s in scores]  # hot
        """,
    ],
    "frame_rate_limit": [
        """
        class Snake:
            def __init__(self):
                self.clock = pygame.time.Clock()
            def play_step(self, action):
                self.clock.tick(SPEED)  # hot
        """,
        """
        def frame_step(action):
            pygame.display.update()
            FPSCLOCK.tick(30)  # hot asleep
        """,
        """
        def render(self):
            cv2.imshow('game', self.frame)
            cv2.waitKey(1)  # hot
        """,
    ],
    "read_after_the_loop": [
        """
        def update(agent, batch):
            for start in range(0, size, 64):
                loss = loss_of(agent, batch[start])
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    kl = (old - agent.log_prob(batch)).mean().item()  # hot
            return kl
        """,
        """
        def fit(data):
            for epoch in range(9):
                for rows in data:
                    optimizer.step()
                    q = net(data.all_observations)  # hot networks
                    spread = q.std().item()
                if spread > limit:
                    break
        """,
    ],
    "same_every_time": [
        """
        class Room(gym.Env):
            def __init__(self):
                self.walls = np.eye(40)
                self.dt = 0.1
            def step(self, action):
                inverse = np.linalg.inv(np.eye(40) + self.dt * self.walls)  # hot
                self.heat = inverse @ self.heat
        """,
        """
        def population(mean, cov):
            for _ in range(50):
                theta = rng.multivariate_normal(mean, cov)  # hot
                scores.append(play(theta))
        """,
        """
        def plan(model, weights):
            for t in range(horizon):
                basis = np.linalg.svd(weights)  # hot
                x = model(basis, t)
        """,
        """
        class Flock:
            def observe(self):
                for i in range(self.n):
                    d = np.linalg.norm(self.pos[:, None] - self.pos[None], axis=-1)  # hot
                    seen.append(d[i])
        """,
        """
        def gae(rewards, values):
            advantages = np.zeros_like(rewards)
            for t in range(len(rewards)):
                advantages[t] = rewards[t] - values[t]
            return advantages
        def update(agent, rewards, values):
            for epoch in range(10):
                a = gae(rewards, values)  # hot
                loss = agent.loss(a)
                loss.backward()
        """,
    ],
    "only_logged": [
        """
        def learn(batch):
            for i in range(n):
                loss = criterion(net(batch))
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    entropy = net.spectrum(everything).mean().item()  # hot
                writer.add_scalar("entropy", entropy, i)
        """,
        """
        def learn(batch):
            norms = []
            for i in range(n):
                batch = next(data)
                loss.backward()
                rank = torch.linalg.matrix_rank(batch)  # hot
                norms.append(rank)
                optimizer.step()
            print(norms)
        """,
    ],
    "linear_scan": [
        """
        def improve(episode):
            for t in range(len(episode)):
                if (s, a) not in [(x, y) for x, y, _ in episode[:t]]:  # hot
                    visits += 1
        """,
        """
        for i in x:
            if key in list(table.keys()):  # hot
                n += 1
        """,
        """
        for i in x:
            new = state not in episode[:t]  # hot
        """,
    ],
    "python_builtin_over_an_array": [
        """
        class Replay:
            def __init__(self):
                self.priorities = np.zeros(10000)
            def add(self, item):
                self.priorities[i] = max(self.priorities)  # hot
        """,
        """
        weights = torch.ones(9000)
        for i in x:
            if sum(weights) > 9:  # hot
                break
        """,
    ],
    "recurrent_step_by_step": [
        """
        net = nn.LSTM(8, 64)
        for t in range(T):  # hot networks
            out, state = net(obs[t : t + 1], state)
            outs.append(out)
        """,
        """
        cell = nn.GRUCell(8, 64)
        for o in observations:  # hot networks
            h = cell(o, h)
            hidden.append(h)
        """,
    ],
    "compressing": [
        "for i in x:\n    frames.append(zlib.compress(obs.tobytes()))  # hot",
        "for i in x:\n    buffer.save_hdf5(path, compression='gzip')  # hot",
    ],
    "reading_files": [
        "def reset(self):\n    prices = pd.read_csv('prices.csv')  # hot",
        "for i in x:\n    opponent.load(torch.load('best.pt'))  # hot",
        "def opponent(self):\n    net.load_state_dict(torch.load(path))  # hot",
        "def reset(self):\n    with open('map.txt') as file:  # hot\n        return file.read()",
    ],
    "writing_files": [
        "for i in x:\n    buffer.save_hdf5(path)  # hot",
        "for i in x:\n    with open('log.csv', 'a') as file:  # hot\n        file.write(row)",
    ],
    "independent_draws": [
        "for s in x:\n    y = rng.multivariate_normal(m, np.diag(s ** 2 + e), size=n)  # hot",
        "cov = sigma ** 2 * np.eye(d)\nfor m in x:\n    y = np.random.multivariate_normal(m, cov)  # hot",
        "def ask(self):\n    return self.rng.multivariate_normal(self.m, cov=self.s * np.identity(4))  # hot",
    ],
    "decomposing_for_each_draw": [
        "xs = np.array([rng.multivariate_normal(self.mean, self.cov) for _ in range(n)])  # hot",
        "def ask(self):\n    return [rng.multivariate_normal(self.m, self.c) for _ in range(n)]  # hot",
        "for i in range(n):\n    x = MultivariateNormal(mu, cov).sample()  # hot",
    ],
    "permuting_to_draw_a_few": [
        "for i in x:\n    j = rng.permutation(size)[:64]  # hot",
        "for i in x:\n    random.shuffle(memory)  # hot\n    batch = memory[:64]",
        "for i in x:\n    batch = data[torch.randperm(len(data))[:256]]  # hot",
    ],
    "introspection": [
        "for i in x:\n    used.append(psutil.Process().memory_info().rss)  # hot",
        "for i in x:\n    n = len(gc.get_objects())  # hot",
    ],
    "statistics_of_a_window": [
        "recent = deque(maxlen=20000)\nfor i in x:\n    recent.append(r)\n    f(np.std(recent))  # hot",
        "recent = deque()\nfor i in x:\n    recent.append(i)\n    f(np.mean(recent))  # hot",
    ],
    "growing_array": [
        "for i in x:\n    window = np.roll(window, -1)  # hot",
        "for i in x:\n    queue = np.delete(queue, 0, axis=0)  # hot",
        "def add(self, s):\n    self.obs = np.vstack([self.obs, s])[-self.size :]  # hot",
        "for i in x:\n    history = history + [reward]  # hot",
    ],
    "checks_in_the_loop": [
        "for i in x:\n    assert np.isfinite(obs).all()  # hot",
        "for i in x:\n    if torch.isnan(flat).any():  # hot\n        raise ValueError",
    ],
    "formatting_tensors": [
        "for i in x:\n    history.append(describe(weights))  # hot printed",
        "for i in x:\n    note(weights)  # hot printed",
    ],
    "jobs_one_by_one": [
        "for i in x:\n    scores.append(pool.submit(play, i).result())  # hot",
        "pool = Pool(4)\nfor i in x:\n    y = pool.apply(play, (i,))  # hot",
        "for w in workers:\n    out.append(ray.get(w.rollout.remote(weights)))  # hot",
    ],
    "elementwise_loop": [
        # numbers: compared, used as indices, given to math, in two dimensions, added up backwards
        "for i in range(n):  # hot\n    y[i] = r[i]\n    if not done[i]:\n        y[i] += q[i]",
        "for a in cars:  # hot\n    for b in cars:\n        d = math.hypot(a.x - b.x, a.y - b.y)",
        "for j in range(51):  # hot\n    b = (np.clip(r + g * z[j], lo, hi) - lo) / d\n    m[:, j] += p * b",
        "for t in range(n - 1, -1, -1):  # hot\n    ret = rewards[t] + gamma * ret\n    out[t] = ret",
        "for i in range(n):  # hot\n    for j in range(k):\n        total += x[i, j] * w[j]",
    ],
    "statistics_of_everything": [
        """
        def end_of_episode(self, agent):
            self.rewards[agent] += [self.current]
            self.times[agent] += [self.elapsed]
            self.write(agent, sum(self.times[agent]))  # hot
        """,
        "for episode in x:\n    returns['train'].append(r)\n    print(np.mean(returns['train']))  # hot",
    ],
    "rows_changed_one_by_one": [
        """
        target = torch.zeros_like(pmfs)
        for i in range(target.size(0)):  # hot
            target[i].index_add_(0, low[i].long(), mass[i])
            target[i].index_add_(0, up[i].long(), rest[i])
        """,
        "m = torch.zeros(64, 51)\nfor row in range(64):  # hot\n    m[row].scatter_add_(0, at[row], p[row])",
    ],
    "searching_rows": [
        "for i in x:\n    row = np.where((states == i).all(axis=1))[0]  # hot\n    q[row] += 1",
        "for i in x:\n    if np.any((seen == i).all(1)):  # hot\n        n += 1",
    ],
    "tree_in_python": [
        """
        class SumTree:
            def _retrieve(self, idx, s):
                left = 2 * idx + 1
                if left >= len(self.tree):
                    return idx
                if s <= self.tree[left]:  # hot
                    return self._retrieve(left, s)
                return self._retrieve(left + 1, s - self.tree[left])
        """,
        """
        class SumTree:
            def _propagate(self, idx, change):
                parent = (idx - 1) // 2
                self.tree[parent] += change  # hot
                if parent != 0:
                    self._propagate(parent, change)
        """,
    ],
    "parameter_statistics": [
        "def f(self, m):\n    for n, p in m.named_parameters():  # hot\n        self.log(n, p.grad.norm())",
        "for i in x:\n    sizes.append(sum(p.grad.norm().item() for p in net.parameters()))  # hot",
    ],
    "matrix_inverse": [
        "for i in x:\n    theta = np.linalg.inv(A) @ b  # hot\n    A += np.outer(i, i)\n    act(theta)",
        "def arm(self):\n    return torch.inverse(self.A[self.k]) @ self.b  # hot",
    ],
    "scipy_statistics": [
        "for i in x:\n    p = stats.norm.pdf(i, mean, std)  # hot",
        "for i in x:\n    z = scipy.stats.truncnorm(-2, 2).rvs(size=5)  # hot",
    ],
    "tiny_arrays": [
        """
        class Car:
            def reset(self):
                self.pos, self.vel = np.zeros(2), np.zeros(2)
                self.goal = np.array([1.0, 0.5])
            def step(self, a):
                self.vel = 0.9 * self.vel + a
                self.pos = np.clip(self.pos + 0.1 * self.vel, -1, 1)
                distance = np.linalg.norm(self.goal - self.pos)  # hot
        """,
        """
        class Ball:
            def __init__(self):
                self.p = self.rng.uniform(-1, 1, size=2)
                self.v = np.zeros((2,))
            def step(self, a):
                away = self.p - self.v
                n = away / np.linalg.norm(away)
                self.v = self.v - 2 * np.dot(self.v, n) * n  # hot
        """,
    ],
    "sleeping": [
        "while not conn.poll():\n    time.sleep(0.002)  # hot",
        "while True:\n    if inbox.empty():\n        time.sleep(0.01)  # hot\n        continue",
    ],
    "batch_drawn_one_by_one": [
        """
        def sample(self, batch_size):
            batch = dict(states=[], actions=[])
            for _ in range(batch_size):  # hot
                episode = random.sample(self.buffer, 1)[0]
                t = np.random.randint(episode.length)
                goal = episode.states[t][:2]
                if np.random.uniform() <= 0.8:
                    goal = episode.states[np.random.randint(t + 1, episode.length)][:2]
                batch["states"].append(np.hstack((episode.states[t], goal)))
                batch["actions"].append(episode.actions[t])
        """,
        "for k in range(64):  # hot\n    i = rng.integers(n)\n    s[k] = old[i][0]\n    a[k] = old[i][1]",
    ],
    "talking_to_processes": [
        "def f(out, d):\n    out.write(d + b'x')  # hot\n    out.drain()",
        "for i in x:\n    sock.sendall(message)  # hot",
    ],
}

SILENT = {
    "held_to_a_clock": [
        """
        def step(self, action):
            self.device.write(action)
            time.sleep(0.02)  # hot
        """,
        """
        def ask(self, prompt):
            wait = self.due - time.time()
            time.sleep(max(wait, 0))  # hot
            return requests.post(self.url, prompt)
        """,
        """
        def step(self, action):
            time.sleep(self.settling)  # hot
            return self.sensor.value
        """,
    ],
    "matrix_for_each_draw": [
        """
        def choose(self, features):
            theta = self.rng.multivariate_normal(self.mean, self.cov, method="cholesky")  # hot
            return (features @ theta).argmax()
        """,
        """
        def population(self):
            return self.rng.multivariate_normal(self.mean, self.cov, size=64)  # hot
        """,
        """
        class World:
            def __init__(self, mean, cov):
                self.goal = np.random.multivariate_normal(mean, cov)  # hot
        """,
        """
        def choose(self, features):
            theta = self.mean + self.factor @ self.rng.standard_normal(self.d)  # hot
            return features @ theta
        """,
    ],
    "list_for_compiled_code": [
        """
        from typing import List
        def sense(self):
            trees = List(self.trees)  # hot
            return cast(self.x, trees)
        """,
        """
        from numba.typed import List
        class Forest:
            def reset(self):
                self.trees = List(self.plant())  # hot
        """,
        """
        @njit
        def cast(x, points):
            return points[0] + x
        def step(x):
            points = np.stack(x)
            return cast(x, points)  # hot
        """,
        """
        @njit
        def cast(x, y):
            return x + y
        def step(x, y):
            out = cast(x, y)  # hot
            return [out]
        """,
    ],
    "tensor_rows_one_by_one": [
        """
        def smooth(x):
            out = torch.empty_like(x)
            for t in range(len(x)):  # hot
                h = 0.9 * h + 0.1 * x[t].clamp(0, 1).mean(0)
                out[t] = (h - h.mean()) / (h.std() + 1e-3)
            return out
        """,
        """
        def shrink(frames):
            for i in range(len(frames)):  # hot
                img = cv2.resize(frames[i], (84, 84))
                img = (img - img.mean()) / (img.std() + 1e-3) * 2.0
                out[i] = img
        """,
        """
        def collect(envs, actions):
            for i in range(len(envs)):  # hot
                obs, reward = envs[i].advance(actions[i])
                obs = (obs - obs.mean()) / (obs.std() + 1e-3) * 0.5
                out[i] = obs
        """,
        """
        def move(points):
            for i in range(n):  # hot
                rows[i] = source[i]
        """,
    ],
    "same_in_a_comprehension": [
        """
        def act(q, state):
            values = q[state]
            best = np.max(values)
            return np.random.choice([a for a, v in enumerate(values) if v == best])  # hot
        """,
        """
        def best_of(rows):
            return [np.max(row) for row in rows]  # hot
        """,
        """
        def clipped(rewards, low):
            return [max(low, r) for r in rewards]  # hot
        """,
        """
        def noise(n, scale):
            return [np.random.normal(scale) for _ in range(n)]  # hot
        """,
    ],
    "frame_rate_limit": [
        """
        class Snake:
            def __init__(self):
                self.clock = pygame.time.Clock()
            def play_step(self, action):
                self.clock.tick()  # hot
        """,
        """
        def step(self, action):
            self.world.tick(0.05)  # hot asleep
        """,
        """
        def step(self, action):
            self.clock.tick(self.dt)  # hot
        """,
        """
        def wait_for_key(self):
            cv2.waitKey(0)  # hot
        """,
    ],
    "read_after_the_loop": [
        # the value of each pass is read in the loop
        "for i in x:\n    kl = (old - net(batch)).mean()  # hot\n    if kl > limit:\n        break",
        # carried from pass to pass
        "for i in x:\n    h = torch.tanh(w @ h)  # hot",
        # has an effect
        "for i in x:\n    obs = env.step(action)  # hot\nprint(obs)",
        # read in the next pass, before it is assigned again
        "for i in x:\n    y = net(last)\n    y.backward()\n    last = torch.relu(batch)  # hot",
        # random numbers: another stream
        "for i in x:\n    noise = torch.randn(64)  # hot\nuse(noise)",
    ],
    "same_every_time": [
        """
        class Node:
            def __init__(self, parent):
                self._parent = parent
                self._visits = 0
            def value(self, c):
                return self._q + c * np.sqrt(self._parent._visits)  # hot
        """,
        "def step(self, a):\n    inverse = np.linalg.inv(self.mass)  # hot",  # who sets it is not known
        "class E:\n    def __init__(self):\n        self.m = np.eye(9)\n    def step(self, a):\n"
        "        self.m[0, 0] = a\n        y = np.linalg.inv(self.m)  # hot",
        "for i in x:\n    m = jacobian(i)\n    y = np.linalg.inv(m)  # hot",
        "for i in x:\n    y = np.exp(i)  # hot",
        "for i in x:\n    z = rng.multivariate_normal(mean, cov, size=50)  # hot",
        "for i in x:\n    buffer.add(obs)\n    y = np.mean(buffer)  # hot",
        "def f(self):\n    for i in x:\n        self.p += 1\n        y = np.exp(self.p)  # hot",
        "def f(self):\n    for i in x:\n        self.move()\n        y = np.exp(self.p)  # hot",
        "def f(a):\n    a[0] = 1\n    return a\nfor i in x:\n    y = f(table)  # hot",
        # written in place, by `out=`, by somebody else, or through a view of the same memory
        "for _ in range(n):\n    np.matmul(w, h, out=k)  # hot\n    np.tanh(k, out=h)",
        "for _ in range(n):\n    y = np.matmul(w, h)  # hot\n    np.tanh(y, out=h)",
        "for _ in range(n):\n    y = np.exp(state)  # hot\n    world.simulator(state)",
        "for i in x:\n    y = np.linalg.inv(A) @ b  # hot\n    A += np.outer(i, i)\n    act(y)",
        "half = state[:2]\nfor _ in range(n):\n    y = np.exp(state)  # hot\n    half += 1",
    ],
    "only_logged": [
        # the loss needs it
        "for i in x:\n    q = torch.relu(net(b))  # hot\n    q.mean().backward()\n    print(q)",
        # decides when to stop
        "for i in x:\n    opt.step()\n    kl = torch.exp(b)  # hot\n    if kl > 1:\n        print(kl)",
        # returned to who knows whom
        "def f(b):\n    for i in x:\n        opt.step()\n        kl = divergence(b)  # hot\n    return kl",
    ],
    "linear_scan": [
        "seen = set()\nfor i in x:\n    new = key not in seen  # hot",
        "for i in x:\n    ok = action in (0, 1)  # hot",
        "for i in x:\n    ok = key in {k for k in wanted}  # hot",
    ],
    "python_builtin_over_an_array": [
        "for i in x:\n    best = max(scores)  # hot",
        "p = np.zeros(9)\nfor i in x:\n    best = p.max()  # hot",
        "p = np.zeros(9)\nfor i in x:\n    best = max(p[0], 1.0)  # hot",
        "p = [0.0] * 9\nfor i in x:\n    best = max(p)  # hot",
    ],
    "recurrent_step_by_step": [
        # acting: the next input depends on the output
        "net = nn.LSTM(8, 64)\nfor t in range(T):  # hot networks\n    o, h = net(o, h)\n    a = o.argmax()",
        "net = nn.LSTM(8, 64)\nfor t in range(T):  # hot networks trains\n    out, h = net(obs[t], h)",
        "net = nn.Linear(8, 64)\nfor t in range(T):  # hot networks\n    h = net(h)",
    ],
    "compressing": [
        "for i in x:\n    obs = np.asarray(frame)  # hot",
        "for i in x:\n    small = frame[::2, ::2]  # hot",
        "for i in x:\n    y = codec(x)  # hot",
    ],
    "reading_files": [
        "for i in x:\n    row = table[i]  # hot",
        "for i in x:\n    model.load(i)  # hot",
        "for i in x:\n    with open('log.csv', 'a') as file:  # hot\n        file.write(row)",
    ],
    "writing_files": [
        "for i in x:\n    kept.append(row)  # hot",
        "for i in x:\n    state = buffer.last()  # hot",
        "for i in x:\n    y = net(saved)  # hot",
    ],
    "independent_draws": [
        "for i in x:\n    y = rng.multivariate_normal(mean, cov, size=n)  # hot",
        "c = np.eye(d)\nfor m in x:\n    y = rng.multivariate_normal(m, c, 9)  # hot\n    c = np.cov(y.T)",
        "for i in x:\n    y = rng.multivariate_normal(m, np.diag(s) + rest, size=n)  # hot",
        "c = np.eye(d)\nfor m in x:\n    y = rng.multivariate_normal(m, c)  # hot\n    c += np.outer(m, m)",
        "cov = np.eye(d)\ncov[0, 1] = 0.5\nfor m in x:\n    y = rng.multivariate_normal(m, cov, 9)  # hot",
        "class CMA:\n    def __init__(self):\n        self.c = np.eye(4)\n    def ask(self):\n"
        "        return self.rng.multivariate_normal(self.m, self.s**2 * self.c, 8)  # hot\n"
        "    def tell(self, x):\n        self.c = 0.9 * self.c + np.outer(x, x)",
    ],
    "decomposing_for_each_draw": [
        "for i in x:\n    y = rng.multivariate_normal(mean, cov, size=n)  # hot",
        "for cov in x:\n    y = rng.multivariate_normal(mean, cov)  # hot",
        "for i in x:\n    y = rng.multivariate_normal(self.mean, cov)  # hot\n    self.mean = y.mean()",
        "for i in x:\n    y = rng.standard_normal(n) @ root  # hot",
    ],
    "permuting_to_draw_a_few": [
        "for i in x:\n    order = rng.permutation(size)  # hot",
        "for i in x:\n    rows = order[:64]  # hot",
        "for i in x:\n    j = rng.integers(0, size, 64)  # hot",
    ],
    "introspection": [
        "for i in x:\n    n = len(objects)  # hot",
        "for i in x:\n    y = memory.info()  # hot",
        "for i in x:\n    y = stack(frames)  # hot",
    ],
    "statistics_of_a_window": [
        "recent = deque(maxlen=100)\nfor i in x:\n    f(np.mean(recent))  # hot",
        "recent = np.zeros(100)\nfor i in x:\n    f(np.mean(recent))  # hot",
        "recent = deque()\nfor i in x:\n    recent.append(r)  # hot",
    ],
    "growing_array": [
        "for i in x:\n    shifted = np.roll(window, 1)  # hot",
        "for i in x:\n    window[:-1] = window[1:]  # hot",
        "for i in x:\n    flat = np.concatenate(parts)  # hot",
    ],
    "checks_in_the_loop": [
        "for i in x:\n    mask = torch.isnan(q)  # hot",
        "for i in x:\n    if done:  # hot\n        reset()",
        "for i in x:\n    inside = box.contains(obs)  # hot",
    ],
    "formatting_tensors": [
        "for i in x:\n    y = net(x)  # hot",
        "for i in x:\n    y = weights.mean()  # hot",
        "for i in x:\n    y = describe(weights)  # hot",
    ],
    "jobs_one_by_one": [
        "for i in x:\n    jobs.append(pool.submit(play, i))  # hot",
        "scores = pool.map(play, seeds)  # hot",
        "for i in x:\n    scores.append(job.result())  # hot",
        "for i in x:\n    y = frame.apply(play)  # hot",
    ],
    "elementwise_loop": [
        """
        def successors(self):
            states = {}
            for i in range(turns):  # hot
                for x in range(width + 1):
                    pos = {"x": x, "y": 0}
                    while not self.hits(pos):
                        pos["y"] += 1
                    states[(x, i)] = self.features(pos)
            return states
        """,
        """
        class Model:
            def insert(self, priority, state):
                heapq.heappush(self.heap, (-priority, state))

        def plan(model, q, state):
            for before, action, reward in model.predecessor(state):  # hot
                priority = abs(reward - q[before[0], before[1], action])
                if priority > 0.1:
                    model.insert(priority, before)
        """,
        """
        def sums(table):
            for key, other in pairs:  # hot
                total += table[key] + table[other]
        """,
        # any amount of work may hide behind a row, a function, or whole arrays
        "for t in range(h):  # hot\n    x[..., n:] = acts[t]\n    x[..., :n] += model(x)\n    c += x[..., 0]",
        "for k in range(n):  # hot\n    if k == skip:\n        start = clock()\n    total += train(q)",
        "for t in range(T):  # hot\n    h = torch.tanh(x[:, t] @ w + h @ u)",
        "for eps in noise:  # hot\n    thetas.append(theta + 0.1 * eps)",
        # entries of a table, each of which needs the ones before
        "for k in ks:  # hot\n    s, t = seen[k]\n    q[s, 0] += 0.1 * (q[t, 0] - q[s, 0])",
        "@njit\ndef g(q, i):\n    pass\nfor i in range(n):  # hot\n    total += g(q, i) * w[i, 0]",
    ],
    "searching_rows": [
        "for i in x:\n    same = (a == b).all()  # hot",
        "for i in x:\n    rows = np.where(done)[0]  # hot",
        "for i in x:\n    row = index[tuple(state)]  # hot",
    ],
    "tree_in_python": [
        "class T:\n    def get(self, i):\n        return self.tree[2 * i + 1]  # hot",
        "def fib(n):\n    return fib(n - 1) + fib(n - 2)  # hot",
        "def search(node):\n    y = search(node.children[0])  # hot",
    ],
    "parameter_statistics": [
        "for i in x:\n    norm = clip_grad_norm_(net.parameters(), 0.5)  # hot",
        "for p, t in zip(q.parameters(), r.parameters()):  # hot\n    t.lerp_(p, 0.01)",
        "for i in x:\n    n = sum(p.numel() for p in net.parameters())  # hot",
    ],
    "matrix_inverse": [
        "for i in x:\n    y = np.linalg.solve(A, b)  # hot",
        "for i in x:\n    y = np.linalg.norm(A)  # hot",
        "for i in x:\n    y = inverse(action)  # hot",
    ],
    "scipy_statistics": [
        "for i in x:\n    y = np.mean(i)  # hot",
        "for i in x:\n    self.stats.update(r)  # hot",
        "for i in x:\n    y = lfilter([1], [1, -g], r)  # hot",
    ],
    "tiny_arrays": [
        # many cars at once, an image, a state whose size is a setting
        "class C:\n    def __init__(self):\n        self.p = np.zeros((n, 2))\n    def step(self, a):\n"
        "        self.p = self.p + a\n        y = self.p * 2\n        z = np.clip(self.p + y, 0, 1)  # hot",
        "class C:\n    def __init__(self):\n        self.p = np.zeros(n)\n    def step(self, a):\n"
        "        self.p = self.p + a\n        y = self.p * 2\n        z = np.clip(self.p + y, 0, 1)  # hot",
        # one such line among other work
        "class C:\n    def __init__(self):\n        self.p = np.zeros(2)\n    def step(self, a):\n"
        "        self.p = self.p + a\n        z = np.fft.fft(self.wave)  # hot",
    ],
    "statistics_of_everything": [
        # emptied, made anew, another list at every pass, a window, set and not added to
        """
        def end_of_episode(self, agent):
            self.write(agent, sum(self.rewards[agent]))  # hot
            self.rewards[agent] = []
        def step(self, agent, reward):
            self.rewards[agent] += [reward]
        """,
        """
        def begin(self):
            self.times = {}
        def end(self, agent):
            self.times[agent] += [self.elapsed]
            self.write(agent, sum(self.times[agent]))  # hot
        """,
        "for row in range(n):\n    table[row].append(r)\n    total = sum(table[row])  # hot",
        "for i in x:\n    last['r'].append(r)\n    last['r'].pop(0)\n    m = np.mean(last['r'])  # hot",
        "for i in x:\n    m = sum(q[state])  # hot\n    q[state] += 0.1",
    ],
    "rows_changed_one_by_one": [
        # tensors of unequal shapes in a list, networks, what each pass needs of the last one
        "ps = list(net.parameters())\nfor i in range(len(ps)):  # hot\n    ps[i].copy_(qs[i])",
        "nets = [q1, q2]\nfor i in range(2):  # hot\n    nets[i].add_(other[i])",
        "x = torch.zeros(9, 4)\nfor i in range(1, 9):  # hot\n    x[i].add_(x[i - 1] * y[i])",
        "x = torch.zeros(9, 4)\nfor i in range(9):  # hot\n    x[i].fill_(0.5)",
        "x = torch.zeros(9, 4)\nfor i in order:  # hot\n    x[i].add_(y[i])",
    ],
    "sleeping": [
        "def step(self, a):\n    time.sleep(self.latency)  # hot",
        "for i in x:\n    event.wait()  # hot",
        "def read(self):\n    sleep(0.001)  # hot",
    ],
    "batch_drawn_one_by_one": [
        # it steps an env, each draw is an array, one list only, what was drawn looks up nothing
        "for _ in x:  # hot\n    a = random.choice(acts)\n    xs.append(env.step(n[a]))\n    ys.append(a)",
        "for _ in range(9):  # hot\n    z = rng.normal(size=99)\n    zs.append(z)\n    ws.append(w[0] + z)",
        "for _ in range(9):  # hot\n    i = rng.integers(n)\n    out.append(memory[i])",
        "for _ in range(9):  # hot\n    r = random.random()\n    xs.append(r)\n    ys.append(r * 2)",
    ],
    "talking_to_processes": [
        "for i in x:\n    file.write(f'{i}')  # hot",
        "for i in x:\n    value = table.get(key)  # hot",
        "for i in x:\n    ring.write(obs)  # hot",
    ],
}


@pytest.mark.parametrize(("name", "source"), [(name, one) for name, some in FIRES.items() for one in some])
def test_a_family_fires(name: str, source: str) -> None:
    one = spot(source)
    found = repeated_work(one) or match(one)
    assert found is not None and found.name == name
    assert 0 < found.saved[0] <= found.saved[1] <= found.saved[2] <= 1


@pytest.mark.parametrize(("name", "source"), [(name, one) for name, some in SILENT.items() for one in some])
def test_a_family_leaves_similar_code_alone(name: str, source: str) -> None:
    one = spot(source)
    found = repeated_work(one) or match(one)
    assert found is None or found.name != name


def test_each_family_has_two_examples_and_three_counter_examples() -> None:
    assert FIRES.keys() == SILENT.keys()
    assert all(len(some) >= 2 for some in FIRES.values()) and all(len(some) >= 3 for some in SILENT.values())


def test_every_idiom_has_an_example() -> None:
    """And every example an idiom: the names that the modules can return are those of the examples."""
    names = set()
    for module in (*idioms.FAMILIES, repetition):
        tree = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and dotted(n.func) == "Match"]
        names |= {ast.literal_eval(call.args[0]) for call in calls}
    assert names == set(MATCHES) | set(FIRES) | (
        names
        & (
            set(MORE)
            | set(NEEDLESS)
            | set(OF_LIBRARIES)
            | {"covariance_matrix", "sums_of_suffixes"}
            | {"statistic_of_a_table"}  # test_expressions.py: it needs samples of parts of a line
        )
    )
