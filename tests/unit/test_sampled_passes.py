"""A few backward passes are looked at closely: gradients nobody uses, steps that a loss leaves out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hotloop.instrument import sampled_passes, update_counting
from hotloop.instrument.sampled_passes import SampledPasses
from hotloop.instrument.unused_gradients import _Graph
from hotloop.measure.profiler import default

torch = pytest.importorskip("torch")
nn = torch.nn
STEPS = 24  # three windows: from the 10th, the 20th backward pass
Step = Callable[[int], Any]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[SampledPasses]:
    monkeypatch.setattr(sampled_passes, "MOST_SHARE", 1e9)  # looking takes long beside such small networks
    monkeypatch.setattr(update_counting, "_optimizers", {})
    update_counting.begin_training()
    default.start()
    torch.manual_seed(3)
    one = SampledPasses()
    before = torch.autograd.backward, nn.Linear.forward
    yield one
    one.close()
    assert (torch.autograd.backward, nn.Linear.forward) == before
    default.stop()


def step(optimizer: Any) -> None:
    optimizer.step()
    update_counting.count_step(optimizer, None)


def run(passes: SampledPasses, loss_of: Step, after: Step) -> None:
    for number in range(STEPS):
        loss_of(number).backward()
        after(number)
        passes.passed()


def optimizer_of(*modules: Any) -> Any:
    return torch.optim.SGD([p for module in modules for p in module.parameters()], lr=0.01)


def unused(passes: SampledPasses) -> list[Any]:
    found: list[Any] = passes.gradients.facts()["gradients"]["unused"]
    return found


class Net(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.encoder(x))


# -- gradients ---------------------------------------------------------------------------------------------


def test_an_encoder_that_no_optimizer_gets_is_found_and_timed(passes: SampledPasses) -> None:
    net = Net()
    optimizer = optimizer_of(net.head)

    def after(number: int) -> None:
        step(optimizer)
        net.zero_grad()

    run(passes, lambda n: net(torch.randn(4, 6)).square().mean(), after)
    (found,) = unused(passes)
    assert found["modules"] == ["net.encoder"] and not found["changes"]
    assert found["passes"] == found["of_passes"] == 6
    assert found["of_elements"] - found["elements"] == 18
    assert found["needless_ns"] > 0 and found["weights_ns"] > 0  # the latter where encoder and head meet
    assert found["total_ns"] > found["needless_ns"] + found["weights_ns"]
    assert found["frames"][-1][0].endswith("test_sampled_passes.py")


def test_a_frozen_network_behind_a_trained_one_needs_the_gradient_of_its_input(passes: SampledPasses) -> None:
    net, judge = Net(), Net()
    optimizer = optimizer_of(net)

    def after(number: int) -> None:
        step(optimizer)
        optimizer.zero_grad()

    run(passes, lambda n: judge(torch.cat([net(torch.randn(4, 6))] * 3, 1)).sum(), after)
    (found,) = unused(passes)
    assert found["modules"] == ["judge"] and found["weights_ns"] > 0
    loss = judge(torch.cat([net(torch.randn(4, 6))] * 3, 1)).sum()
    graph = _Graph([loss.grad_fn])
    needless, mixed = graph.sort_nodes({id(p) for p in judge.parameters()})
    assert {type(node).__name__ for node in needless} == {"TBackward0"}
    assert [type(node).__name__ for node in mixed] == ["AddmmBackward0"] * 3


def test_a_target_network_changes_but_nobody_clears_its_gradients(passes: SampledPasses) -> None:
    net = Net()
    target = copy.deepcopy(net)
    optimizer = optimizer_of(net)

    def after(number: int) -> None:
        step(optimizer)
        optimizer.zero_grad()
        target.load_state_dict(net.state_dict())

    run(passes, lambda n: (net(torch.randn(4, 6)) - target(torch.randn(4, 6))).square().mean(), after)
    (found,) = unused(passes)
    assert found["modules"] == ["target"] and found["changes"]


def test_what_is_trained_without_an_optimizer_is_left_alone(passes: SampledPasses) -> None:
    net, other = Net(), Net()
    optimizer = optimizer_of(net)

    def after(number: int) -> None:
        step(optimizer)
        optimizer.zero_grad()
        for parameter in other.parameters():
            parameter.data -= 0.01 * parameter.grad
            parameter.grad = None

    run(passes, lambda n: (net(torch.randn(4, 6)) - other(torch.randn(4, 6))).square().mean(), after)
    assert unused(passes) == []


def test_an_optimizer_that_is_made_anew_each_time_trains(passes: SampledPasses) -> None:
    net, other = Net(), Net()
    optimizer = optimizer_of(other)

    def after(number: int) -> None:
        step(optimizer)
        new = optimizer_of(net)
        step(new)
        new.zero_grad()
        optimizer.zero_grad()

    run(passes, lambda n: (net(torch.randn(4, 6)) - other(torch.randn(4, 6))).square().mean(), after)
    assert unused(passes) == []


def test_an_optimizer_that_has_not_stepped_yet_will(passes: SampledPasses) -> None:
    net, other = Net(), Net()
    optimizer, delayed = optimizer_of(net), optimizer_of(other)
    update_counting.note_optimizer(delayed)
    run(
        passes, lambda n: (net(torch.randn(4, 6)) - other(torch.randn(4, 6))).sum(), lambda n: step(optimizer)
    )
    assert unused(passes) == []


def test_nothing_is_said_where_parameters_are_frozen_or_without_gradients(passes: SampledPasses) -> None:
    net, judge = Net(), Net().requires_grad_(False)
    net.encoder[0].requires_grad_(False)
    optimizer = optimizer_of(net)

    def loss(number: int) -> Any:
        with torch.no_grad():
            aim = judge(torch.randn(4, 6))
        return (net(torch.randn(4, 6)) - aim).square().mean() + judge(
            net(torch.randn(4, 6)).repeat(1, 3)
        ).sum()

    def after(number: int) -> None:
        step(optimizer)
        optimizer.zero_grad()

    run(passes, loss, after)
    assert unused(passes) == [] and passes.gradients.facts()["gradients"]["passes"] == 6


def test_a_tensor_that_is_no_parameter_is_wanted(passes: SampledPasses) -> None:
    net, judge = Net(), Net()
    optimizer = optimizer_of(net)
    noise = torch.zeros(4, 6, requires_grad=True)

    def after(number: int) -> None:
        step(optimizer)
        optimizer.zero_grad()

    run(passes, lambda n: (judge(torch.randn(4, 6) + noise) + net(torch.randn(4, 6))).sum(), after)
    (found,) = unused(passes)  # the weights of `judge`, not the way through it
    loss = (judge(torch.randn(4, 6) + noise) + net(torch.randn(4, 6))).sum()
    needless, _ = _Graph([loss.grad_fn]).sort_nodes({id(p) for p in judge.parameters()})
    assert found["modules"] == ["judge"] and {type(node).__name__ for node in needless} == {"TBackward0"}


def test_passes_that_name_what_they_want_are_not_looked_at(passes: SampledPasses) -> None:
    net = Net()
    optimizer = optimizer_of(net.head)
    for _ in range(STEPS):
        net(torch.randn(4, 6)).sum().backward(inputs=list(net.head.parameters()))
        step(optimizer)
        passes.passed()
    assert passes.gradients.facts()["gradients"] == {
        "passes": 0,
        "windows": 2,
        "unused": [],
        "known": [],
        "readers": [],
    }


# -- positions ---------------------------------------------------------------------------------------------


def positions(passes: SampledPasses) -> dict[str, Any]:
    found = passes.positions.facts().get("positions", [])
    return {f"{one['kind']} {'' if one['gradients'] else 'without'}".strip(): one for one in found}


def masked(rows: Any, length: int) -> Any:
    lengths = torch.tensor([length, length // 2])
    return (torch.arange(rows.shape[1]) < lengths[:, None]).float()


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_steps_beyond_the_longest_sequence_are_padding(passes: SampledPasses, kind: str) -> None:
    memory, head = getattr(nn, kind)(3, 5, batch_first=True), nn.Linear(5, 2)
    target = copy.deepcopy(memory)
    optimizer = optimizer_of(memory, head)

    def loss(number: int) -> Any:
        mask = masked(torch.zeros(2, 20), 10 + number % 2)
        x = torch.randn(2, 20, 3) * mask[:, :, None]
        with torch.no_grad():
            target(x)
        return (head(memory(x)[0]).sum(2).square() * mask).sum() / mask.sum()

    run(passes, loss, lambda n: step(optimizer))
    found = positions(passes)
    assert set(found) == {kind, "Linear", f"{kind} without"}
    for one in found.values():
        assert one["first"] == [0, 0] and one["last"] == [10, 11] and one["calls"] == 6
        assert one["used"] == pytest.approx(63 / 120) and not one["state_is_used"]
    assert found[kind]["own_used"] == pytest.approx(46.5 / 120)


def test_time_may_be_the_first_axis(passes: SampledPasses) -> None:
    memory = nn.LSTM(3, 5)
    optimizer = optimizer_of(memory)

    def loss(number: int) -> Any:
        out, (hidden, _) = memory(torch.randn(20, 2, 3))
        return out[:15].sum() + (hidden.sum() if number % 5 == 0 else 0)

    run(passes, loss, lambda n: step(optimizer))
    (found,) = positions(passes).values()
    assert found["last"] == [15, 15] and found["sequences"] == 2 and found["steps"] == 20
    assert found["state_is_used"]  # the last state depends on every step


def test_what_every_step_is_needed_for_is_no_padding(passes: SampledPasses) -> None:
    memory, tokens = nn.LSTM(4, 5, batch_first=True), nn.Embedding(9, 4)
    optimizer = optimizer_of(memory, tokens)

    def loss(number: int) -> Any:  # remember a word through blanks, as in a copy task
        words = torch.zeros(2, 16, dtype=torch.long)
        words[:, :3] = torch.randint(1, 9, (2, 3))
        return memory(tokens(words))[0][:, -3:].square().sum()

    run(passes, loss, lambda n: step(optimizer))
    found = positions(passes)
    assert set(found) == {"LSTM"} and found["LSTM"]["last"] == [16, 16]


def test_a_slice_of_the_results_of_a_layer_is_seen(passes: SampledPasses) -> None:
    body, head = nn.Linear(3, 5), nn.Linear(5, 7)
    optimizer = optimizer_of(body, head)

    def loss(number: int) -> Any:
        hidden = body(torch.randn(2, 12, 3))
        return head(hidden + hidden.mean(1, keepdim=True)).log_softmax(-1)[:, 8:].sum()

    run(passes, loss, lambda n: step(optimizer))
    (found,) = positions(passes).values()
    assert found["first"] == [8, 8] and found["last"] == [12, 12] and found["windows"] == 2


def test_small_or_odd_inputs_are_passed_over(passes: SampledPasses) -> None:
    net, memory = Net(), nn.GRU(3, 4, batch_first=True, bidirectional=True)
    optimizer = optimizer_of(net, memory)

    def loss(number: int) -> Any:
        packed = nn.utils.rnn.pack_sequence([torch.randn(9, 3), torch.randn(8, 3)])
        out = memory(packed)[0].data.sum() + memory(torch.randn(2, 9, 3))[0][:, :4].sum()
        return net(torch.randn(4, 6)).sum() + net(torch.randn(2, 4, 6))[:, :1].sum() + out

    run(passes, loss, lambda n: step(optimizer))
    assert positions(passes) == {}


def test_windows_open_at_growing_distances_and_stop(
    passes: SampledPasses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled_passes, "MOST_WINDOWS", 3)
    seen = []
    for number in range(1, 200):
        passes.passed()
        if passes._is_open:
            seen.append(number + 1)
    assert seen == [10, 11, 12, 21, 22, 23, 44, 45, 46]


def test_looking_waits_until_it_is_cheap(passes: SampledPasses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_passes, "MOST_SHARE", 0.0)
    passes._spent_ns = 1
    for _ in range(100):
        passes.passed()
        assert not passes._is_open
