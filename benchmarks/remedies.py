"""How much of a slow idiom's time do its remedies leave? The assumptions in advice/idioms come from here.

    python benchmarks/remedies.py

For each idiom a typical piece of code and its remedy, least CPU time of a few repetitions; the last column is
the time of the remedy over that of the idiom.
"""

from __future__ import annotations

import collections
import copy
import json
import math
import random
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, Normal

from hotloop.machine.facts import cpu_name

CHANCE = np.random.default_rng(0)


def seconds(run: Callable[[], Any], repetitions: int = 5, least_s: float = 0.0125) -> float:
    """Least CPU time of one call."""
    calls, spent = 1, 0.0
    while spent < least_s:
        calls *= 2
        spent = _time(run, calls)
    return min(_time(run, calls) for _ in range(repetitions)) / calls


def _time(run: Callable[[], Any], calls: int) -> float:
    began = time.thread_time()
    for _ in range(calls):
        run()
    return time.thread_time() - began


def show(what: str, idiom: Callable[[], Any], remedy: Callable[[], Any]) -> None:
    slow, fast = seconds(idiom), seconds(remedy)
    print(f"| {what} | {1e6 * slow:,.1f} | {1e6 * fast:,.1f} | {fast / slow:.3f} |", flush=True)


def pairs_of_agents(count: int) -> None:
    place = CHANCE.random((count, 2))

    def floats() -> None:
        points = place.tolist()
        for i, (x, y) in enumerate(points):
            east = north = 0.0
            near = 0
            for j, (u, v) in enumerate(points):
                if i == j:
                    continue
                dx, dy = u - x, v - y
                if math.sqrt(dx * dx + dy * dy) < 0.5:
                    east, north, near = east + dx, north + dy, near + 1

    def elements() -> None:
        for i in range(count):
            near = 0
            for j in range(count):
                if i == j:
                    continue
                dx, dy = place[j, 0] - place[i, 0], place[j, 1] - place[i, 1]
                if math.sqrt(dx * dx + dy * dy) < 0.5:
                    near += 1

    def arrays() -> None:
        offset = place[None] - place[:, None]
        distance = np.sqrt((offset**2).sum(-1))
        np.fill_diagonal(distance, np.inf)
        seen = distance < 0.5
        _ = (offset * seen[..., None]).sum(1) / np.maximum(seen.sum(1), 1)[:, None]

    show(f"pairs of {count} agents, plain floats: whole arrays", floats, arrays)
    show(f"pairs of {count} agents, elements of an array: whole arrays", elements, arrays)


def returns() -> None:
    rewards = torch.randn(128, 8)

    def elements() -> None:
        for env in range(8):
            total: Any = 0.0
            for t in reversed(range(128)):
                total = rewards[t, env] + 0.99 * total

    def rows() -> None:
        total: Any = 0.0
        for t in reversed(range(128)):
            total = rewards[t] + 0.99 * total

    def floats() -> None:
        for column in rewards.T.tolist():
            total = 0.0
            for reward in reversed(column):
                total = reward + 0.99 * total

    show("returns over elements of a tensor: over rows", elements, rows)
    show("returns over elements of a tensor: over floats", elements, floats)


def batches(rows: int, width: int) -> None:
    items = [CHANCE.random(width).astype(np.float32) for _ in range(rows)]
    stored, drawn = np.stack(items), CHANCE.integers(0, rows, rows)
    shape = f"{rows} x {width}"
    show(
        f"torch.tensor of a list, {shape}: index an array",
        lambda: torch.tensor(items),
        lambda: torch.from_numpy(stored[drawn]),
    )
    show(
        f"torch.tensor of a list, {shape}: of np.array",
        lambda: torch.tensor(items),
        lambda: torch.from_numpy(np.array(items)),
    )
    show(
        f"np.stack of items, {shape}: index an array",
        lambda: np.stack(list(items)),
        lambda: stored[drawn],
    )


def networks() -> None:
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    for count in (4, 8, 16, 64):
        rows = torch.randn(count, 8)

        @torch.no_grad()
        def one_by_one(rows: torch.Tensor = rows) -> None:
            for row in rows:
                net(row)

        @torch.no_grad()
        def at_once(rows: torch.Tensor = rows) -> None:
            net(rows)

        show(f"a network for each of {count} rows: once", one_by_one, at_once)
    lstm = nn.LSTM(16, 64)
    for length in (16, 64):
        sequence = torch.randn(length, 8, 16)

        def stepwise(sequence: torch.Tensor = sequence) -> None:
            state, out = None, []
            for row in sequence.split(1):
                value, state = lstm(row, state)
                out.append(value)
            torch.cat(out).sum().backward()

        def whole(sequence: torch.Tensor = sequence) -> None:
            lstm(sequence)[0].sum().backward()

        show(f"an LSTM step by step, {length} steps, with backward: the whole sequence", stepwise, whole)


def distributions() -> None:
    logits, mean, spread = torch.randn(1, 4), torch.randn(1, 3), torch.ones(1, 3)

    def categorical(validate: bool) -> None:
        made = Categorical(logits=logits, validate_args=validate)
        made.log_prob(made.sample())
        made.entropy()

    def normal(validate: bool) -> None:
        made = Normal(mean, spread, validate_args=validate)
        made.log_prob(made.sample()).sum(-1)

    show(
        "Categorical, sample, log_prob, entropy: no validation",
        lambda: categorical(True),
        lambda: categorical(False),
    )
    show("Normal, sample, log_prob: no validation", lambda: normal(True), lambda: normal(False))


def others() -> None:
    memory = collections.deque((CHANCE.random(4) for _ in range(20_000)), maxlen=20_000)
    table = CHANCE.random((20_000, 4))
    show(
        "random.sample of 64 from a deque of 20,000: draw indices, two arrays",
        lambda: random.sample(memory, 64),
        lambda: (table[CHANCE.integers(0, 20_000, 64)], table[CHANCE.integers(0, 20_000, 64)]),
    )
    board, moves = np.zeros((8, 8)), [(i, i) for i in range(20)]
    state = {"board": board, "moves": moves, "scores": {"a": [1, 2, 3]}}
    show(
        "deepcopy of a small state: copies",
        lambda: copy.deepcopy(state),
        lambda: (board.copy(), list(moves), {"a": [1, 2, 3]}),
    )
    net = [p.detach() for p in nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))).parameters()]
    target = [p.clone() for p in net]

    def one_by_one() -> None:
        for p, t in zip(net, target, strict=True):
            t.mul_(0.995).add_(0.005 * p)

    show(
        "soft update of 6 tensors one by one: foreach",
        one_by_one,
        lambda: torch._foreach_lerp_(target, net, 0.005),
    )
    numbers = CHANCE.random(8).tolist()
    show(
        "JSON there and back, 8 numbers: bytes",
        lambda: json.loads(json.dumps({"obs": numbers})),
        lambda: np.frombuffer(np.asarray(numbers).tobytes()),
    )


def ensembles(members: int, width: int = 64, rows: int = 64) -> None:
    """Forward, backward and Adam of critics one by one, and of stacked weights."""
    inputs, target = torch.randn(rows, 4), torch.randn(rows)
    sizes = ((4, width), (width, width), (width, 1))
    critics = nn.ModuleList(
        nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
        for _ in range(members)
    )
    single = torch.optim.Adam(critics.parameters())
    weights = [nn.Parameter(torch.randn(members, i, o) / i) for i, o in sizes]
    biases = [nn.Parameter(torch.zeros(members, 1, o)) for _, o in sizes]
    stacked = torch.optim.Adam([*weights, *biases])

    def one_by_one() -> None:
        values = torch.stack([critic(inputs).squeeze(-1) for critic in critics])
        single.zero_grad()
        ((values - target) ** 2).mean(-1).sum().backward()
        single.step()

    def at_once() -> None:
        hidden = inputs.expand(members, rows, 4)
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            hidden = torch.baddbmm(bias, hidden, weight)
            hidden = hidden.relu() if layer < 2 else hidden
        stacked.zero_grad()
        ((hidden.squeeze(-1) - target) ** 2).mean(-1).sum().backward()
        stacked.step()

    show(f"{members} critics one by one, with backward and Adam: stacked", one_by_one, at_once)


def draws(count: int, size: int | None) -> None:
    chance = CHANCE.random(count)
    chance /= chance.sum()
    show(
        f"choice(p=...) of {size or 1} from {count}: searchsorted of a cumulative sum",
        lambda: CHANCE.choice(count, size=size, p=chance),
        lambda: chance.cumsum().searchsorted(CHANCE.random(size)),
    )


def independent_draws(width: int, rows: int) -> None:
    mean, std = np.zeros(width), np.ones(width)
    show(
        f"multivariate_normal with diag(std**2), {rows} x {width}: standard normal numbers",
        lambda: CHANCE.multivariate_normal(mean, np.diag(std**2), size=rows),
        lambda: mean + std * CHANCE.standard_normal((rows, width)),
    )


def inverses(size: int) -> None:
    matrix = np.eye(size)
    inverse, x = np.linalg.inv(matrix), CHANCE.random(size)

    def updated() -> Any:
        y = inverse @ x
        return inverse - np.outer(y, y) / (1.0 + x @ y)

    show(
        f"inverse of {size} x {size}: Sherman-Morrison",
        lambda: np.linalg.inv(matrix + np.outer(x, x)),
        updated,
    )


def rows_one_by_one() -> None:
    a, b = CHANCE.random((64, 6)), CHANCE.random((64, 6))

    def one_by_one() -> Any:
        rewards = []
        for x, y in zip(a, b, strict=True):
            rewards.append(0.0 if np.array_equal(x, y) else -np.mean(np.abs(x - y) > 0.5))
        return np.array(rewards)

    show(
        "64 rows reduced one by one: with an axis",
        one_by_one,
        lambda: np.where((a == b).all(-1), 0.0, -np.mean(np.abs(a - b) > 0.5, axis=-1)),
    )


def rows_in_place(rows: int, width: int) -> None:
    """Adds to each row of a tensor at places of its own, as categorical DQN projects its targets."""
    places, mass = torch.randint(0, width, (rows, width)).float(), torch.rand(rows, width)

    def one_by_one() -> None:
        target = torch.zeros(rows, width)
        for i in range(rows):
            target[i].index_add_(0, places[i].long(), mass[i])

    def at_once() -> None:
        torch.zeros(rows, width).scatter_add_(1, places.long(), mass)

    show(f"adding to the {rows} rows of {width:,} numbers: one call", one_by_one, at_once)


def target_network(width: int) -> None:
    """The loss of DQN with gradients of a target network that nobody trains, and without."""
    states, next_states = torch.randn(64, 4), torch.randn(64, 4)
    actions, rewards = torch.randint(0, 2, (64, 1)), torch.randn(64, 1)
    net, target = (nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2)) for _ in range(2))
    frozen = copy.deepcopy(target).requires_grad_(False)

    def loss(of: nn.Module) -> torch.Tensor:
        best = of(next_states).max(1, keepdim=True).values
        return ((net(states).gather(1, actions) - rewards - 0.98 * best) ** 2).mean()

    def learn(of: nn.Module) -> None:
        net.zero_grad()
        loss(of).backward()

    what = f"gradients of a target network ({width} units): requires_grad_(False)"
    show(f"{what}, loss alone", lambda: loss(target), lambda: loss(frozen))
    show(f"{what}, loss and backward pass", lambda: learn(target), lambda: learn(frozen))


def backward_with_anomaly_detection(width: int, rows: int) -> None:
    net = nn.Sequential(
        nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )
    batch = torch.randn(rows, 16)
    graphs = []
    for wanted in (True, False):
        with torch.autograd.set_detect_anomaly(wanted):
            graphs.append(net(batch).pow(2).mean())
    slow, fast = graphs

    def passed(graph: torch.Tensor, wanted: bool) -> Callable[[], None]:
        def run() -> None:
            with torch.autograd.set_detect_anomaly(wanted):
                graph.backward(retain_graph=True)

        return run

    show(
        f"backward pass with anomaly detection ({width} units, {rows} rows): without",
        passed(slow, True),
        passed(fast, False),
    )


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    print(cpu_name())
    print("| idiom: remedy | idiom, us | remedy, us | left |")
    print("| --- | ---: | ---: | ---: |")
    for count in (20, 120):
        pairs_of_agents(count)
    returns()
    for rows, width in ((64, 4), (256, 4), (32, 84 * 84)):
        batches(rows, width)
    networks()
    distributions()
    others()
    for members in (2, 5, 10):
        ensembles(members)
    draws(4, None)
    draws(20_000, 64)
    for width, rows in ((2, 1), (6, 64), (50, 64), (200, 100)):
        independent_draws(width, rows)
    for size in (12, 32, 64):
        inverses(size)
    rows_one_by_one()
    for width in (64, 128, 256):
        target_network(width)
    for width, rows in ((64, 64), (256, 64), (256, 256)):
        backward_with_anomaly_detection(width, rows)
    for rows, width in ((32, 51), (128, 51), (32, 84 * 84)):
        rows_in_place(rows, width)


if __name__ == "__main__":
    main()
