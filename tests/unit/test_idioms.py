"""Slow idioms are recognised in source, and code that only looks similar is left alone."""

from __future__ import annotations

import ast
import textwrap

import pytest

from hotloop.analysis.advice.idioms import Match, match
from hotloop.analysis.hot_statements import Spot, _statements
from hotloop.analysis.source_names import names_in
from hotloop.instrument.trial_patches import NAMES

MATCHES = {
    "deep_copy": "for i in x:\n    s = copy.deepcopy(state)  # hot",
    "pickling": "for i in x:\n    blob = pickle.loads(pickle.dumps(batch))  # hot",
    "json_text": "while True:\n    conn.send(json.dumps({'obs': obs.tolist()}))  # hot",
    "weights_copied": "for i in x:\n    target.load_state_dict(net.state_dict())  # hot",
    "growing_array": "for i in x:\n    history = np.append(history, loss)  # hot",
    "pop_from_the_front": "for i in x:\n    buffer.pop(0)  # hot",
    "linear_scan": "visited = []\nfor i in x:\n    new = state not in visited  # hot",
    "sorting_each_time": "for i in x:\n    best = sorted(population, key=score)[:10]  # hot",
    "statistics_of_everything": "for i in x:\n    returns.append(r)\n    m = np.mean(returns)  # hot",
    "tensor_of_a_list": "for i in x:\n    obs = torch.tensor([b[0] for b in batch])  # hot",
    "indices_one_by_one": "for i in x:\n    j = [k for k, d in enumerate(dones) if d == 0]  # hot",
    "stack_of_items": "for i in x:\n    obs = np.stack([b.obs for b in batch])  # hot",
    "sampling_from_a_container": "for i in x:\n    batch = random.sample(memory, 64)  # hot",
    "indexing_a_deque": "memory = deque()\nfor i in x:\n    batch = [memory[j] for j in js]  # hot",
    "storage_of_objects": "b = Replay(ListStorage(9))\nfor i in x:\n    y = b.sample()  # hot torchrl",
    "sampling_with_probabilities": "for i in x:\n    j = np.random.choice(n, 64, p=p / p.sum())  # hot",
    "choice_of_indices": "for i in x:\n    j = rng.choice(n, 64, replace=False)  # hot",
    "elementwise_loop": "def f(r):\n    for t in reversed(range(n)):  # hot\n        a[t] = r[t] + a[t + 1]",
    "computing_in_comprehensions": "for i in x:\n    d = min([math.sqrt((a - b) ** 2) for b in w])  # hot",
    "numpy_vectorize": "for i in x:\n    y = np.apply_along_axis(f, 1, z)  # hot",
    "plotting": "for i in x:\n    plt.savefig('curve.png')  # hot",
    "rendering": "for i in x:\n    frames.append(env.render())  # hot",
    "printing": "for i in x:\n    print(i, reward, flush=True)  # hot",
    "writing_files": "for i in x:\n    torch.save(net, 'last.pt')  # hot",
    "metrics_each_step": "for i in x:\n    writer.add_scalar('loss', loss.item(), i)  # hot",
    "reading_scalars": "for i in x:\n    losses.append(loss.item())  # hot",
    "dataframes": "for i in x:\n    df.loc[len(df)] = [i, reward]  # hot",
    "optimizer_each_time": "for i in x:\n    opt = torch.optim.Adam(net.parameters())  # hot",
    "distributions": "for i in x:\n    a = Categorical(logits=net(o)).sample()  # hot",
    "environments_each_time": "for i in x:\n    env = gym.make('CartPole-v1')  # hot",
    "data_loader": "for i in x:\n    loader = DataLoader(data, batch_size=64)  # hot",
    "pools_each_time": "for i in x:\n    with_pool = Pool(4)  # hot",
    "sleeping": "while queue.empty():\n    time.sleep(0.01)  # hot",
    "busy_waiting": "for i in x:\n    while inbox.empty():  # hot\n        pass",
    "talking_to_processes": "for i in x:\n    conn.send(('step', action))  # hot",
    "waiting_for_others": "inbox = Queue(1)\nfor i in x:\n    batch = inbox.get()  # hot asleep",
    "waiting_for_a_lock": "lock = Lock()\nfor i in x:\n    with lock:  # hot asleep\n        n += 1",
    "made_each_time": "def act(o):\n    self.policy.eval()  # hot",
    "parameters_one_by_one": "for p, t in zip(q.parameters(), r.parameters()):  # hot\n    t.lerp_(p, 0.01)",
    "network_in_a_loop": "for name in agents:  # hot networks\n    acts[name] = net(obs[name]).argmax()",
    "double_precision": "for i in x:\n    h = torch.zeros(64, dtype=torch.float64)  # hot",
    "back_and_forth": "for i in x:\n    a = torch.from_numpy(f(torch.as_tensor(o).numpy()))  # hot",
    "state_as_text": "for i in x:\n    q = table[str(state)]  # hot",
    "garbage": "for i in x:\n    gc.collect()  # hot",
}

LEAVE_ALONE = [
    "out = []\nfor i in range(0, len(x), size):  # hot\n    out.append(net(x[i : i + size]) + 1)",
    "for i in x:\n    obs, r, terminated, truncated, info = env.step(action)  # hot",
    "for i in x:\n    loss.backward()  # hot",
    "for i in x:\n    optimizer.step()  # hot",
    "for i in x:\n    logits = net(obs)  # hot",
    "for i in x:\n    y = rewards + gamma * (1 - done) * q.max(1).values  # hot",
    "for i in x:\n    obs = buffer.obs[indices]  # hot",
    "for i in x:\n    out[n] = np.concatenate(parts)  # hot",
    "for i in x:\n    item = queue.pop()  # hot",
    "for step in range(n):  # hot\n    obs, r, te, tr, _ = env.step(policy(obs))\n    total = total + r",
    "opt = torch.optim.Adam(net.parameters())  # hot",
    "env = gym.make('CartPole-v1')  # hot",
    "for i in x:\n    self.optim.step()  # hot",
    "for i in x:\n    a = net(torch.from_numpy(o)).argmax(1).numpy()  # hot",
    "for i in x:\n    j = rng.integers(0, size, 64)  # hot",
    "for i in x:\n    h = math.log(x) + torch.log(p)  # hot",
    # the same words about other things
    "visited = set()\nfor i in x:\n    new = state not in visited  # hot",
    "table = {}\nfor i in x:\n    if key in table:  # hot\n        n += 1",
    "for i in x:\n    if key in table:  # hot\n        n += 1",
    "table = {}\nfor i in x:\n    table.pop(0)  # hot",
    "while time.monotonic() < until:  # hot\n    pass",
    "queue = deque()\nfor i in x:\n    del queue[0]  # hot",
    "for i in x:\n    del batch, obs  # hot",
    "for i in x:\n    logp = probs.log()  # hot",
    "for i in x:\n    stats.record(step, td)  # hot",
    "for i in x:\n    ring.write(obs)  # hot",
    "for i in x:\n    a = random.choice(actions)  # hot",
    "rng = random.Random(3)\nfor i in x:\n    a = rng.choice(self.legal())  # hot",
    "def play():\n    rewards = []\n    rewards.append(r)\n    total = np.sum(rewards)  # hot",
    "recent = deque(maxlen=100)\nfor i in x:\n    recent.append(r)\n    m = np.mean(recent)  # hot",
    "for i in x:\n    if i % 100 == 0:  # hot\n        print(i)",
    "for i in x:\n    with torch.no_grad():  # hot\n        print(i)",
    "for t in range(n):  # hot networks\n    h = cell(obs[t], h)",
    "for t in range(n):  # hot networks\n    o, r = model(torch.cat([o, a]))",
    "for i in x:\n    idx = torch.arange(len(batch))  # hot",
    "def f(x):\n    y = F.softmax(net(x), 1)[torch.arange(64), a]  # hot",
    "while running:  # hot\n    step()",
    "lock = Lock()\nfor i in x:\n    with lock:  # hot\n        n += 1",
    "for i in x:\n    rows = table.tolist()  # hot",
    "for i in x:\n    o, a = (torch.from_numpy(mem[k][idx]) for k in ('o', 'a'))  # hot",
    "for i in x:\n    o, a = (np.tanh(mem[k]) for k in ('o', 'a'))  # hot",
    "for _ in range(n):  # hot\n    h = np.tanh(w @ h)",
    "for w in layers[:-1]:  # hot\n    h = h @ w\n    np.maximum(h, 0.0, out=h)",
    "for i in range(n):  # hot\n    if i % 200 == 0:\n        print(f'{i + 1}')\n    steps += learn(batch)",
    "for i in range(n):  # hot trains\n    steps += learn(batch[i])",
    "for i in x:\n    y = b.sample()  # hot torchrl",
    "for i in x:\n    trainer.train()  # hot trainer",
    "for i in x:\n    j = [k for k, s in enumerate(nexts) if s is not None]  # hot",
    # layers
    "for i, (block, past) in enumerate(zip(self.h, pasts)):  # hot\n"
    "    x, present = block(x, past, mask[i])[:2]\n    seen = seen + (x,)\n"
    "    for k, v in self.device_map.items():\n        if i == v[-1] and 'cuda:' + str(k) != last:\n"
    "            x = x.to('cuda:' + str(k + 1))",
    "for i in range(n):  # hot\n    x = layers[i](x)\n    if done[i]:\n        total = total + 1",
    # the numbers of one observation
    "def observe(self):\n    o = [self.x, self.y, self.vx]\n    o = np.array(o) / 10  # hot\n    return o",
    "def observe(self):\n    return np.array([self.x, self.y, -self.vx, 0.5])  # hot",
    # frames that the agent gets
    "def observe(self):\n    return cv2.resize(self.env.render(), self.size)  # hot",
    "for i in x:\n    frame = env.render()  # hot\n    frames.append(frame)\n    a = net(frame)",
    "for i in x:\n    self.pixels.append(env.render())  # hot",
    "for i in x:\n    self.frame = env.render()  # hot\n    a = net(self.frame)",
]


SAMPLED = {
    "torchrl": "torchrl.data.replay_buffers.ReplayBuffer.sample",
    "printed": "torch._tensor_str._str",
    "trainer": "pufferlib.pufferl.PuffeRL.train",
    "loader": "torch.utils.data.dataloader._BaseDataLoaderIter.__next__",
}


def spot(source: str) -> Spot:
    """The statement at the line with `# hot`; more words after it say what was sampled there."""
    source = textwrap.dedent(source)
    tree = ast.parse(source)
    line = next(n for n, text in enumerate(source.splitlines(), 1) if "# hot" in text)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    functions = [function for function in functions if function.lineno <= line]
    functions = [function for function in functions if line <= (function.end_lineno or 0)]
    scope = functions[0] if functions else tree
    found = [(n, loops) for n, loops in _statements(scope) if n.lineno == line]
    node, loops = found[-1 if "# hot loader" in source else 0]  # of a loop over batches, its head
    text, _, sampled = source.splitlines()[line - 1].partition("# hot")
    return Spot(
        file="train.py",
        function=functions[0].name if functions else "<module>",
        line=line,
        node=node,
        loops=loops,
        scope=scope,
        text=text.strip(),
        paths=(),
        share=0.3,
        called=(SAMPLED[sampled.split()[0]],) if sampled.strip() and sampled.split()[0] in SAMPLED else (),
        names=names_in([tree]),
        asleep=0.9 if "asleep" in sampled else 0.0,
        calls_networks="networks" in sampled,
        trains="trains" in sampled,
    )


@pytest.mark.parametrize("name", MATCHES)
def test_a_slow_idiom_is_recognised(name: str) -> None:
    found = match(spot(MATCHES[name]))
    assert found is not None and found.name == name
    least, likely, most = found.saved
    assert 0 < least <= likely <= most <= 1
    assert found.why.endswith(".") and found.remedy.endswith(".") and not found.title.endswith(".")


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("for i in x:\n    step(i)\n    time.sleep(0.5)  # hot", "Leave out the sleep"),
        (
            "for i in x:\n    if not q:\n        time.sleep(0.5)  # hot",
            "Wait for the event instead of sleeping",
        ),
        ("while not q:\n    time.sleep(0.5)  # hot", "Wait for the event instead of sleeping"),
    ],
)
def test_a_sleep_that_waits_for_nothing_is_told_from_polling(source: str, title: str) -> None:
    found = match(spot(source))
    assert found is not None and found.name == "sleeping" and found.title == title


def test_distributions_are_provable_by_a_patch_that_exists() -> None:
    found = match(spot(MATCHES["distributions"]))
    assert found is not None and found.patch == "validation" and found.patch in NAMES


def test_frames_that_are_only_written_need_not_be_drawn() -> None:
    written = "for i in x:\n    frame = env.render()  # hot\n    video.write(frame)"
    found = match(spot(written))
    assert found is not None and found.name == "rendering"


def test_one_draw_needs_no_sum_tree() -> None:
    for size in ("", "1, ", "size=None, "):
        found = match(spot(f"for i in x:\n    a = np.random.choice(4, {size}p=p[s])  # hot"))
        assert found is not None and found.title == "Draw from a cumulative sum" and found.effort == "minutes"


@pytest.mark.parametrize("source", LEAVE_ALONE)
def test_ordinary_training_code_is_left_alone(source: str) -> None:
    assert match(spot(source)) is None


def test_items_of_a_buffer_asked_for_one_by_one_take_the_time_of_its_library_along() -> None:
    one_by_one = match(spot("for i in x:\n    batch = torch.stack([buffer[i] for i in rows])  # hot"))
    assert one_by_one is not None and "torchrl.data" in one_by_one.library_calls
    converted = match(spot("for i in x:\n    batch = torch.stack([net(s) for s in states])  # hot"))
    assert converted is None or not converted.library_calls


def test_results_of_ray_that_are_used_later_may_change_learning() -> None:
    found = match(spot("for i in x:\n    rows = ray.get([a.sample.remote(w) for a in actors])  # hot asleep"))
    assert found is not None and found.name == "waiting_for_others" and found.safety == "semantic"
    assert "Ray's workers" in found.title and not found.chills


def match_of(source: str) -> Match:
    found = match(spot(source))
    assert found is not None
    return found


def test_array_expressions_save_less_of_a_loop_over_plain_floats() -> None:
    floats = """
    def near(self):
        points = self.pos.tolist()
        for i, (x, y) in enumerate(points):  # hot
            for j, (u, v) in enumerate(points):
                d = math.sqrt((x - u) * (x - u) + (y - v) * (y - v))
                if d < 0.5:
                    count += 1
    """
    elements = """
    def near(self):
        for i in range(self.n):  # hot
            for j in range(self.n):
                d = math.sqrt((self.x[i, 0] - self.x[j, 0]) ** 2)
    """
    table = """
    def best(self, s):
        self.values = {}
        for a in range(self.n):  # hot
            if valid[a]:
                score = self.values[(s, a)] + self.prior[a] * total
                if score > top:
                    top = score
    """
    found = match(spot(table))
    assert found is not None and found.saved == match_of(floats).saved
    tensors = """
    def returns(rewards):
        values = torch.zeros(9)
        for t in reversed(range(9)):  # hot
            total = values[t] + 0.99 * total
    """
    likely = []
    for source in (floats, elements, tensors):
        found = match(spot(source))
        assert found is not None and found.name == "elementwise_loop"
        likely.append(found.saved[1])
    assert likely == sorted(likely) and likely[0] < 0.7 < likely[1] < likely[2]
