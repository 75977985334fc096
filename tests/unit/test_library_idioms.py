"""What people write around training libraries: callbacks, wrappers, solvers, event loops, shared memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotloop.analysis.advice import idiom_places  # noqa: F401  (it registers idioms)
from hotloop.analysis.advice.idioms import Match, match
from hotloop.analysis.advice.idioms.callbacks import in_a_callback
from hotloop.analysis.advice.recomputed import recomputed
from hotloop.analysis.advice.repeated_work import repeated_work
from hotloop.analysis.hot_statements import Spot
from tests.unit.test_idioms import spot

Example = tuple[str, str]  # source, the library function that was sampled there

FIRES: dict[str, list[Example]] = {
    "work_in_a_callback": [
        (
            """
            class Trace(BaseCallback):
                def _on_step(self):
                    value = self.model.policy.predict_values(self.locals["new_obs"])  # hot
                    self.values.append(value)
            """,
            "stable_baselines3.common.policies.ActorCriticPolicy.predict_values",
        ),
        (
            """
            class Entropy(BaseCallback):
                def _on_step(self):
                    h = self.model.policy.get_distribution(self.obs).entropy()  # hot
            """,
            "torch.distributions.categorical.Categorical.__init__",
        ),
        (
            """
            class Probe(L.Callback):
                def on_train_batch_end(self, trainer, module, outputs, batch, i):
                    self.sharpness = largest_eigenvalue(module, batch)  # hot
            """,
            "torch.autograd.grad",
        ),
    ],
    "asking_environments": [
        ("def _on_step(self):\n    level = self.training_env.get_attr('level')  # hot", ""),
        ("for t in x:\n    env.env_method('set_difficulty', t)  # hot", ""),
    ],
    "rollout_for_a_number": [
        (
            "for data in collector:\n    s = env.rollout(500, p)['next', 'reward'].sum().item()  # hot",
            "torchrl.envs.common.EnvBase.rollout",
        ),
        (
            "def score(env, p):\n    return float(env.rollout(200, p)['next', 'reward'].mean())  # hot",
            "torchrl.envs.common.EnvBase.rollout",
        ),
    ],
    "prepared_for_one_query": [
        (
            """
            class Room(gym.Env):
                def reset(self):
                    self.walls = self.rng.uniform(size=(400, 2))
                def step(self, action):
                    distance, _ = cKDTree(self.walls).query(self.position)  # hot
            """,
            "",
        ),
        (
            """
            class Smooth(gym.ActionWrapper):
                def action(self, action):
                    b, a = butter(4, 0.2)  # hot
                    return self.filtered(b, a, action)
            """,
            "",
        ),
    ],
    "solver_for_each_step": [
        (
            "def step(self, a):\n    s = solve_ivp(self.rhs, (0, self.dt), self.y)  # hot",
            "scipy.integrate._ivp.ivp.solve_ivp",
        ),
        (
            "for t in range(n):\n    y = odeint(rhs, y, [0, 0.02])[-1]  # hot",
            "scipy.integrate._odepack_py.odeint",
        ),
    ],
    "resizing_slowly": [
        (
            "def observation(self, f):\n    return np.asarray(Image.fromarray(f).resize((84, 84)))  # hot",
            "PIL.Image.Image.resize",
        ),
        (
            "def observation(self, f):\n    return resize(rgb2gray(f), (84, 84))  # hot",
            "skimage.transform._warps.resize",
        ),
    ],
    "tensordicts_one_by_one": [
        (
            "def f(b):\n    for t in range(n):\n        step = b[t]  # hot",
            "tensordict._td.TensorDict.__getitem__",
        ),
        (
            "for data in c:\n    rows = [td.to_dict() for td in data]  # hot",
            "tensordict._td.TensorDict.to_dict",
        ),
    ],
    "loop_for_each_call": [
        ("def step(self, a):\n    return asyncio.run(self.client.step(a))  # hot", "asyncio.runners.run"),
        ("for t in x:\n    y = asyncio.run(ask(t))  # hot", "asyncio.runners.run"),
    ],
    "blocking_in_a_coroutine": [
        ("async def step(self, a):\n    time.sleep(0.01)  # hot asleep", ""),
        (
            "async def step(self, a):\n    x = self.pipe.recv()  # hot asleep",
            "multiprocessing.connection.recv",
        ),
    ],
    "shared_by_elements": [
        (
            "for t in x:\n    for i in range(n):\n        w[i] = shared[i]  # hot",
            "multiprocessing.sharedctypes.SynchronizedArray.__getitem__",
        ),
        (
            "for t in x:\n    w = shared[:]  # hot",
            "multiprocessing.sharedctypes.SynchronizedArray.__getslice__",
        ),
    ],
    "bytes_one_by_one": [
        (
            "def line(s):\n    while not d.endswith(b'x'):\n        d += s.recv(1)  # hot",
            "socket.socket.recv",
        ),
        ("while True:\n    c = port.read(1)  # hot", ""),
    ],
    "statistics_of_everything": [
        (
            """
            class Smooth(gym.Wrapper):
                def step(self, action):
                    self.rewards.append(r)
                    r = savgol_filter(self.rewards, 11, 3)[-1]  # hot
            """,
            "scipy.signal._savitzky_golay.savgol_filter",
        ),
        (
            "for e in x:\n    returns.append(r)\n    log(np.convolve(returns, window)[-1])  # hot",
            "numpy.convolve",
        ),
    ],
    "statistics_of_a_window": [
        (
            """
            class Novelty(gym.Wrapper):
                def __init__(self, env, size=5000):
                    self.memory = deque(maxlen=size)
                def step(self, action):
                    bank = np.stack(self.memory)  # hot
                    self.memory.append(observation)
            """,
            "numpy.stack",
        ),
    ],
    "pools_each_time": [
        (
            """
            def main():
                for t in range(n):
                    workers = [Thread(target=e.step) for e in envs]
                    for w in workers:
                        w.start()  # hot
                    for w in workers:
                        w.join()
            """,
            "threading.Thread.start",
        ),
        (
            "for e in x:\n    p = ctx.Process(target=play)\n    p.start()\n    p.join()  # hot",
            "multiprocessing.process.BaseProcess.join",
        ),
    ],
    "jobs_one_by_one": [
        (
            "for c in population:\n    job = pool.apply_async(f, (c,))\n    scores.append(job.get())  # hot",
            "multiprocessing.pool.ApplyResult.get",
        ),
    ],
    "jobs_too_small": [
        (
            """
            pool = ProcessPoolExecutor(2)
            for g in x:
                jobs = [pool.submit(play, w) for w in population]
                scores = [job.result() for job in jobs]  # hot
            """,
            "concurrent.futures._base.Future.result",
        ),
        (
            """
            def advance(cart, a):
                cart.x += 0.1 * a
                return cart.x
            async def collect(carts):
                for cart in carts:
                    x = await asyncio.to_thread(advance, cart, 1)  # hot
            """,
            "asyncio.threads.to_thread",
        ),
    ],
    "made_each_time": [
        (
            """
            class Reach(gym.Env):
                @property
                def observation_space(self):
                    return spaces.Box(-1, 1, (6,))  # hot
            """,
            "gymnasium.spaces.box.Box.__init__",
        ),
        ("def read(n):\n    block = SharedMemory(name=n)  # hot", ""),
    ],
    "plotting": [
        (
            "def _on_rollout_end(self):\n    sns.heatmap(self.visits, ax=self.ax)  # hot",
            "seaborn.matrix.heatmap",
        ),
    ],
    "reading_files": [
        (
            "def reset(self):\n    self.opponent = PPO.load(self.path)  # hot",
            "stable_baselines3.common.base_class.BaseAlgorithm.load",
        ),
        (
            "def reset(self):\n    self.model = mujoco.MjModel.from_xml_path('arm.xml')  # hot",
            "mujoco._structs.MjModel.from_xml_path",
        ),
    ],
    "weights_copied": [
        (
            "def _on_step(self):\n    self.old.set_parameters(self.model.get_parameters())  # hot",
            "stable_baselines3.common.base_class.BaseAlgorithm.get_parameters",
        ),
    ],
    "sleeping": [("def _on_step(self):\n    time.sleep(0.001)  # hot asleep", "")],
    "connection_each_time": [
        (
            "def ask(x):\n    context = zmq.Context()  # hot\n    s = context.socket(3)\n    s.connect(a)",
            "",
        ),
    ],
}

SILENT: dict[str, list[Example]] = {
    "printing": [
        ("def main():\n    print(asyncio.run(train()))  # hot", "asyncio.runners.run"),
        ("def main():\n    print(sum(pool.map(play, seeds)))  # hot", "multiprocessing.pool.Pool.map"),
    ],
    "work_in_a_callback": [
        ("def _on_step(self):\n    return super()._on_step()  # hot", ""),
        ("def _on_training_end(self):\n    self.table = finish(self.rows)  # hot", ""),
        ("def step(self, a):\n    x = self.model.policy.predict_values(o)  # hot", ""),
        # it learns: no matter of doing it less often
        (
            """
            class Novelty(BaseCallback):
                def _on_step(self):
                    self.learn_novelty(self.locals["new_obs"])  # hot
                def learn_novelty(self, obs):
                    self.error(obs).backward()
                    self.optimizer.step()
            """,
            "torch._tensor.Tensor.backward",
        ),
        (
            """
            class Agent(L.LightningModule):
                def on_train_batch_start(self, batch, i):
                    self.play(8)  # hot
                def play(self, n):
                    for _ in range(n):
                        self.replay.push(*self.env.step(self.act()))
            """,
            "gymnasium.core.Wrapper.step",
        ),
    ],
    "asking_environments": [
        ("def f(env):\n    x = getattr(env, 'level')  # hot", ""),
        ("for t in x:\n    env.step_async(a)  # hot", ""),
    ],
    "rollout_for_a_number": [
        ("for i in x:\n    data = env.rollout(500, policy)  # hot", "torchrl.envs.common.EnvBase.rollout"),
        ("for i in x:\n    r = worker.rollout(w).mean()  # hot", ""),
    ],
    "prepared_for_one_query": [
        # moving data: the tree is new because the points are
        (
            """
            class Flock(gym.Env):
                def step(self, action):
                    self.positions = self.positions + action
                    near = cKDTree(self.positions).query_pairs(0.1)  # hot
            """,
            "",
        ),
        ("def reset(self):\n    self.tree = cKDTree(self.walls)  # hot", ""),
        ("def nearest(points):\n    tree = cKDTree(points)  # hot", ""),
    ],
    "solver_for_each_step": [
        ("trajectory = solve_ivp(rhs, (0, 100), y0)  # hot", "scipy.integrate._ivp.ivp.solve_ivp"),
        ("def step(self, a):\n    y = solve_ivp(self.y, a)  # hot", ""),
    ],
    "resizing_slowly": [
        ("def observation(self, f):\n    return cv2.resize(f, (84, 84))  # hot", "cv2.resize"),
        ("def f(a):\n    a.resize((84, 84))  # hot", "numpy.ndarray.resize"),
        ("def observation(self, f):\n    return self.env.render()  # hot", "PIL.Image.Image.resize"),
    ],
    "tensordicts_one_by_one": [
        ("for i in x:\n    batch = data[indices]  # hot", "tensordict._td.TensorDict.__getitem__"),
        ("for i in x:\n    r = batch['next', 'reward']  # hot", "tensordict._td.TensorDict.get"),
    ],
    "loop_for_each_call": [
        ("asyncio.run(main())  # hot", "asyncio.runners.run"),
        ("def main():\n    asyncio.run(serve())  # hot", "asyncio.runners.run"),
    ],
    "blocking_in_a_coroutine": [
        ("async def step(self, a):\n    await asyncio.sleep(0.01)  # hot asleep", ""),
        ("async def step(self, a):\n    x = await self.socket.recv()  # hot asleep", ""),
        ("def step(self, a):\n    time.sleep(0.01)  # hot asleep", ""),
    ],
    "shared_by_elements": [("for t in x:\n    w = view[:]  # hot", "numpy.copy")],
    "bytes_one_by_one": [
        ("while True:\n    data += s.recv(65536)  # hot", "socket.socket.recv"),
        ("def head(s):\n    n = s.recv(4)  # hot", "socket.socket.recv"),
    ],
    "statistics_of_everything": [
        # one episode, which begins anew
        (
            """
            def play():
                rewards = []
                for t in range(n):
                    rewards.append(r)
                returns = lfilter([1], [1, -0.99], rewards)  # hot
            """,
            "scipy.signal._signaltools.lfilter",
        ),
        (
            """
            def collect(self):
                for t in range(n):
                    self.rows.append(row)
                batch = np.vstack(self.rows)  # hot
            """,
            "numpy.vstack",
        ),
        # one of many is drawn
        ("def f(self):\n    self.known.append(s)\n    s = rng.choice(self.known)  # hot", "numpy.choice"),
    ],
    "statistics_of_a_window": [
        (
            """
            class Stack(gym.Wrapper):
                def __init__(self, env, k=4):
                    self.frames = deque([], maxlen=k)
                def observation(self, frame):
                    self.frames.append(frame)
                    return np.stack(self.frames)  # hot
            """,
            "numpy.stack",
        ),
        (
            """
            class Recent(BaseCallback):
                def __init__(self):
                    self.recent = deque(maxlen=100)
                def _on_step(self):
                    self.mean = np.mean(self.recent)  # hot
            """,
            "numpy.mean",
        ),
    ],
    "pools_each_time": [
        (
            "def main():\n    for i in range(4):\n        w = Process(target=f)\n        w.start()  # hot",
            "multiprocessing.process.BaseProcess.start",
        ),
        ("for w in workers:\n    w.join()  # hot", "multiprocessing.process.BaseProcess.join"),
    ],
    "jobs_one_by_one": [
        (
            "jobs = [pool.submit(f, c) for c in x]\nfor job in jobs:\n    s.append(job.result())  # hot",
            "concurrent.futures._base.Future.result",
        ),
    ],
    "jobs_too_small": [
        # a blocking request is what threads are for
        (
            """
            def ask(url):
                return requests.get(url).json()
            async def collect(urls):
                for url in urls:
                    x = await asyncio.to_thread(ask, url)  # hot
            """,
            "asyncio.threads.to_thread",
        ),
        ("pool = ProcessPoolExecutor(2)\nfor g in x:\n    s = [j.result() for j in jobs]  # hot asleep", ""),
    ],
    "made_each_time": [
        ("def __init__(self):\n    self.space = spaces.Box(-1, 1, (6,))  # hot", "gymnasium.spaces.box.Box"),
        ("def f():\n    b = Box(x)  # hot", "shapes.Box"),
    ],
}


def found_at(example: Example) -> Match | None:
    source, called = example
    one: Spot = spot(source)
    one = replace(one, called=(called,) if called else ())
    return in_a_callback(one, repeated_work(one) or recomputed(one) or match(one))


@pytest.mark.parametrize(("name", "example"), [(name, one) for name, some in FIRES.items() for one in some])
def test_an_idiom_of_library_code_fires(name: str, example: Example) -> None:
    found = found_at(example)
    assert found is not None and found.name == name
    assert 0 < found.saved[0] <= found.saved[1] <= found.saved[2] <= 1


@pytest.mark.parametrize(("name", "example"), [(name, one) for name, some in SILENT.items() for one in some])
def test_an_idiom_of_library_code_leaves_similar_code_alone(name: str, example: Example) -> None:
    found = found_at(example)
    assert found is None or found.name != name


def test_a_sure_idiom_in_a_callback_keeps_its_own_words() -> None:
    example = ("class A(BaseCallback):\n    def _on_step(self):\n        self.model.save('last')  # hot", "")
    found = found_at(example)
    assert found is not None and found.name == "writing_files"


def test_tiny_jobs_for_threads_of_asyncio_take_the_time_of_the_event_loop_along() -> None:
    found = found_at(FIRES["jobs_too_small"][1])
    assert found is not None and found.also_called == ("asyncio.",) and found.waits


def test_evaluating_in_a_callback_may_take_more_than_other_work() -> None:
    plays = found_at(("def _on_step(self):\n    a, _ = self.model.predict(o)  # hot", ""))
    other = found_at(("def _on_step(self):\n    a = self.model.policy.extract(o)  # hot", ""))
    assert plays is not None and other is not None and plays.least > other.least > 0
