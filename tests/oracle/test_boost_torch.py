"""`hotloop boost` for plain torch: MLPs, Adam, clipping and distributions against torch's own code."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Normal
from torch.nn.utils.prune import random_unstructured
from torch.utils.checkpoint import checkpoint

from hotloop.boost import active, adam, distributions, install, layouts, mlp, tensor_kernels, torch_patches
from hotloop.boost import mlp_kernels as kernels
from hotloop.boost.bootstrap import BoostPatch

FUNCTIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU}


@pytest.fixture(autouse=True)
def boosted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Boost at the first call, and forget everything afterwards."""
    monkeypatch.setattr(mlp, "PATIENCE", 0)
    monkeypatch.setattr(adam, "PATIENCE", 1)
    monkeypatch.setattr(Distribution, "_validate_args", True)  # torch.compile and TorchRL switch it off
    torch.manual_seed(0)
    install.install()
    assert install.current is not None
    assert install.current.torch is not None
    install.current.torch.load()
    yield
    install.remove()
    active.history.clear()


def make(*sizes: int, function: Any = nn.Tanh, last: bool = False) -> nn.Sequential:
    parts: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        parts += [nn.Linear(inputs, outputs), function()]
    return nn.Sequential(*(parts if last else parts[:-1]))


def plainly(function: Callable[[], Any]) -> Any:
    """What torch's own code gives."""
    active.is_paused = True
    try:
        return function()
    finally:
        active.is_paused = False


def record(kind: str = "module") -> active.Record:
    return next(one for one in active.history if one.kind == kind)


def gradients(net: nn.Module, x: Tensor, through: Tensor) -> list[Tensor]:
    """Outputs and gradients of input and parameters."""
    for one in (x, *net.parameters()):
        one.grad = None
    out = net(x)
    out.backward(through)
    return [out.detach(), *(one.grad.clone() for one in (x, *net.parameters()) if one.grad is not None)]


def same(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


# ---- the same numbers


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("batch", [1, 3, 16, kernels.CHUNK, 2 * kernels.CHUNK + 5])
def test_passes_are_torchs(name: str, batch: int) -> None:
    net = make(5, 24, 17, 3, function=FUNCTIONS[name])
    x, through = torch.randn(batch, 5, requires_grad=True), torch.randn(batch, 3)
    ours = gradients(net, x, through)
    with torch.no_grad():
        acted = net(x)
    same(ours, plainly(lambda: gradients(net, x, through)))
    same([acted], plainly(lambda: [net(x).detach()]))
    assert record().gradient_steps == 1
    assert record().calls == 2


def test_other_shapes_are_torchs() -> None:
    for net in (make(4, 8, 2, last=True), nn.Sequential(make(4, 8, 6, last=True), nn.Linear(6, 3))):
        for shape in ((4,), (2, 3, 4), (7, 4)):
            x = torch.randn(shape, requires_grad=True)
            through = torch.randn_like(net(x))
            same(gradients(net, x, through), plainly(lambda: gradients(net, x, through)))  # noqa: B023
        across = torch.randn(4, 6).t().requires_grad_()  # rows are not contiguous
        through = torch.randn_like(net(across))
        same(gradients(net, across, through), plainly(lambda: gradients(net, across, through)))  # noqa: B023
    assert all(not one.left for one in active.history)


def test_gradients_only_where_they_are_wanted() -> None:
    net = make(4, 8, 2)
    net[0].weight.requires_grad_(False)
    x, through = torch.randn(5, 4), torch.randn(5, 2)
    same(gradients(net, x, through), plainly(lambda: gradients(net, x, through)))
    assert net[0].weight.grad is None
    net.requires_grad_(False)
    x.requires_grad_()
    same(gradients(net, x, through), plainly(lambda: gradients(net, x, through)))
    x.requires_grad_(False)
    assert not net(x).requires_grad


def test_gradients_add_up_and_graphs_can_be_kept() -> None:
    net, x = make(4, 8, 2), torch.randn(5, 4)

    def run() -> list[Tensor]:
        net.zero_grad()
        loss = net(x).square().sum() + net(2 * x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return [one.grad.clone() for one in net.parameters() if one.grad is not None]

    same(run(), plainly(run))


def test_second_derivatives_are_torchs() -> None:
    net, x = make(4, 8, 1), torch.randn(5, 4, requires_grad=True)

    def run() -> list[Tensor]:
        net.zero_grad()
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
        return [slope.detach(), *(one.grad.clone() for one in net.parameters() if one.grad is not None)]

    same(run(), plainly(run))


def test_batches_of_gradients_are_torchs() -> None:
    net, x = make(4, 8, 3), torch.randn(5, 4)
    logits = torch.randn(5, 3, requires_grad=True)

    def run() -> list[Tensor]:
        torch.manual_seed(2)
        out, parameters = net(x), list(net.parameters())
        found = torch.autograd.grad(out, parameters, torch.randn(6, 5, 3), is_grads_batched=True)
        entropy = Categorical(logits=logits).entropy()
        return [*found, *torch.autograd.grad(entropy, logits, torch.randn(6, 5), is_grads_batched=True)]

    same(run(), plainly(run))
    assert record().calls == 1


@pytest.mark.parametrize("calls_before", [0, 1])
def test_checkpoints_may_begin_before_kernels_take_over(
    monkeypatch: pytest.MonkeyPatch, calls_before: int
) -> None:
    """A forward pass by torch that is made again by kernels saves other tensors, which torch refuses."""
    monkeypatch.setattr(mlp, "PATIENCE", 2)
    net = make(4, 8, 2)
    for _ in range(calls_before):
        net(torch.randn(5, 4))
    for _ in range(4):
        x = torch.randn(5, 4)

        def run(x: Tensor = x) -> list[Tensor]:
            net.zero_grad()
            out = checkpoint(lambda x: Categorical(logits=net(x)).entropy(), x, use_reentrant=False)
            out.sum().backward()
            return [one.grad.clone() for one in net.parameters() if one.grad is not None]

        same(run(), plainly(run))
    net(x)
    assert record().calls == 1


def test_shared_parameters_get_the_sum_of_their_gradients() -> None:
    layer = nn.Linear(6, 6)
    net = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(6, 2))
    x, through = torch.randn(5, 6), torch.randn(5, 2)
    same(gradients(net, x, through), plainly(lambda: gradients(net, x, through)))
    assert record().gradient_steps == 1


def test_writing_to_what_is_needed_is_noticed_as_always() -> None:
    net, x = make(4, 8, 8, 2, last=True), torch.randn(5, 4)
    for index in (0, 2, 4):
        errors = []
        for is_plain in (False, True):

            def run(index: int = index) -> None:
                out = net(x)
                with torch.no_grad():
                    net[index].weight.mul_(1.0)
                out.sum().backward()

            try:
                plainly(run) if is_plain else run()
                errors.append("")
            except RuntimeError as error:
                errors.append(str(error)[:60])
        assert errors[0] == errors[1]
    out = net(x)
    with torch.no_grad():
        out.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nan_goes_where_it_goes_in_torch(name: str) -> None:
    """Wherever torch has NaN, in outputs, gradients and weights, and nowhere else."""
    start = make(4, 8, 8, 2, function=FUNCTIONS[name])

    def run() -> list[Tensor]:
        torch.manual_seed(3)
        net = copy.deepcopy(start)
        optimizer, found = torch.optim.Adam(net.parameters()), []
        for step in range(12):
            x = torch.randn(5, 4)
            if step == 9:
                x[0, 1] = float("nan")
            optimizer.zero_grad()
            out = net(x)
            out.square().sum().backward()
            grads = [one.grad.clone() for one in net.parameters() if one.grad is not None]
            optimizer.step()
            found += [out.detach(), *grads]
        return [*found, *(one.detach() for one in net.parameters())]

    for ours, theirs in zip(run(), plainly(run), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_steps_with_nan_leave_nan() -> None:
    def run() -> list[Tensor]:
        parameter = nn.Parameter(torch.ones(40))
        optimizer = torch.optim.Adam([parameter])
        for step in range(8):
            parameter.grad = torch.ones(40)
            parameter.grad[3] = float("nan") if step == 6 else 1.0
            optimizer.step()
        return [parameter.detach(), *optimizer.state[parameter].values()]

    for ours, theirs in zip(run(), plainly(run), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)
    assert record("optimizer").gradient_steps >= 6


# ---- changes behind our back


def change_data(net: Any) -> None:
    net[2].weight.data *= 0.5


def change_storage(net: nn.Sequential) -> None:
    net[2].weight.data = net[2].weight.data.clone() + 0.1


def change_strides(net: nn.Sequential) -> None:
    net[2].weight.data = net[2].weight.data.t()


def change_parameter(net: nn.Sequential) -> None:
    net[2].bias = nn.Parameter(torch.ones(8))


def change_layer(net: nn.Sequential) -> None:
    net[1] = nn.GELU()


def add_layer(net: nn.Sequential) -> None:
    net.append(nn.Tanh())


def add_hook(net: nn.Sequential) -> None:
    net[1].register_forward_hook(lambda _module, _inputs, out: out * 2.0)


def add_method(net: nn.Sequential) -> None:
    net[1].forward = lambda x: x * 2.0


def load(net: nn.Sequential) -> None:
    net.load_state_dict(make(4, 8, 8, 2).state_dict())


def load_anew(net: nn.Sequential) -> None:
    net.load_state_dict(make(4, 8, 8, 2).state_dict(), assign=True)


def prune(net: nn.Sequential) -> None:
    random_unstructured(net[2], "weight", amount=0.5)


def parametrize(net: nn.Sequential) -> None:
    nn.utils.parametrizations.weight_norm(net[2])


@pytest.mark.parametrize(
    "change",
    [
        change_data, change_storage, change_strides, change_parameter, change_layer, add_layer, add_hook,
        add_method, load, load_anew, prune, parametrize,
    ],
)  # fmt: skip
def test_changes_behind_our_back_are_followed(change: Any) -> None:
    net, x = make(4, 8, 8, 2), torch.randn(5, 4)
    through = torch.randn(5, 2)
    gradients(net, x, through)
    assert record().gradient_steps == 1
    change(net)
    for _ in range(2):
        same(gradients(net, x, through), plainly(lambda: gradients(net, x, through)))


@pytest.mark.parametrize("has_guards", [False, True])
def test_layouts_are_those_of_the_slow_twin(monkeypatch: pytest.MonkeyPatch, has_guards: bool) -> None:
    """With torch's own function and without, the same tensors are accepted."""
    monkeypatch.setattr(layouts, "_guards_kind", layouts.guards_of_torch() if has_guards else None)
    net = make(4, 8, 8, 2)
    net(torch.randn(5, 4))
    chain = mlp._known[id(net)]
    assert isinstance(chain, mlp.Chain)
    assert chain._layouts.are_same(chain.parameters) is has_guards
    good = chain.plain_parameters()
    weight = net[2].weight
    kept = weight.data
    changes = [
        (kept.t(), False), (kept.double(), False), (kept[:, :4], False), (kept.flatten(), False),
        (kept.clone(), True), (kept.half(), False), (torch.empty(8, 16)[:, ::2], False), (kept, True),
    ]  # fmt: skip
    for value, is_right in changes:
        weight.data = value
        for _ in range(2):
            assert (chain.plain_parameters() is not None) is is_right
            assert chain.are_plain(chain.parameters) is is_right
    assert good is not None
    last = chain.plain_parameters()
    assert last is not None and np.array_equal(last, good)
    assert not chain._layouts.are_same(chain.parameters[1:])


def test_torchs_own_function_for_layouts_is_known() -> None:
    """Where it is not, boost is slower and nothing else."""
    assert layouts.guards_of_torch() is not None


@pytest.mark.parametrize("width", [3, 6])
def test_another_width_after_the_network_was_boosted(width: int) -> None:
    net = make(4, 8, 2)
    net(torch.randn(6, 4))
    net[0] = nn.Linear(width, 8)
    before = record().calls
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        net(torch.randn(6, 4))
    x = torch.randn(6, width)
    same([net(x)], [plainly(lambda: net(x))])
    assert sum(one.calls for one in active.history if one.kind == "module") == before + 1


def test_parameters_in_another_order_are_boosted_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `remove_weight_norm` leaves them; deciding anew at every call would be slow."""
    net, x = make(4, 8, 2), torch.randn(5, 4)
    net[0]._parameters["weight"] = net[0]._parameters.pop("weight")
    assert list(net[0]._parameters) == ["bias", "weight"]
    net(x)
    monkeypatch.setattr(mlp, "decide", lambda _: pytest.fail("decided again"))
    same([net(x)], [plainly(lambda: net(x))])
    assert record().calls == 2


def test_other_precisions_and_back() -> None:
    net, x = make(4, 8, 2), torch.randn(5, 4)
    net(x)
    net.double()
    assert net(x.double()).dtype is torch.float64
    net.float()
    same([net(x)], [plainly(lambda: net(x))])


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_another_default_type_is_left_to_torch(default: torch.dtype) -> None:
    net, x, through = make(4, 8, 2), torch.randn(33, 4), torch.randn(33, 2)
    theirs = plainly(lambda: gradients(net, x, through))
    begun = net(x)  # by kernels
    torch.set_default_dtype(default)
    try:
        with torch.no_grad():
            acted = net(x)
        ours = gradients(net, x, through)
        net.zero_grad()
        begun.backward(through)
        grads = [parameter.grad for parameter in net.parameters()]
    finally:
        torch.set_default_dtype(torch.float32)
    same(ours, theirs)
    same([acted, *grads], theirs)
    assert record().calls == 1 and record().gradient_steps == 0


def test_hooks_on_the_module_and_on_tensors_run() -> None:
    net, x = make(4, 8, 2), torch.randn(5, 4)
    calls: list[str] = []
    net.register_forward_hook(lambda *_: calls.append("forward"))
    net.register_full_backward_hook(lambda *_: calls.append("backward"))
    net[0].weight.register_hook(lambda _: calls.append("tensor"))
    net[0].weight.register_post_accumulate_grad_hook(lambda _: calls.append("accumulated"))
    net(x).sum().backward()
    assert sorted(calls) == ["accumulated", "backward", "forward", "tensor"]
    assert record().gradient_steps == 1


def test_copies_and_pickles_are_torchs() -> None:
    net, x = make(4, 8, 2), torch.randn(5, 4)
    expected = net(x)
    same([copy.deepcopy(net)(x), pickle.loads(pickle.dumps(net))(x)], [expected, expected])
    file, plain = io.BytesIO(), io.BytesIO()
    torch.save(net, file)
    plainly(lambda: torch.save(net, plain))
    assert file.getvalue() == plain.getvalue()
    assert list(net.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_threads_do_not_mix() -> None:
    net = make(4, 32, 32, 2)
    inputs = [torch.randn(64, 4) for _ in range(4)]
    expected = [plainly(lambda: net(x).detach()) for x in inputs]  # noqa: B023
    net(inputs[0])
    wrong: list[float] = []

    def run(index: int) -> None:
        for _ in range(50):
            out = net(inputs[index])
            out.sum().backward()
            wrong.append(float((out - expected[index]).abs().max()))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(wrong) == 200
    assert max(wrong) < 1e-5


def test_what_torch_does_besides_is_left_to_torch() -> None:
    net, x = make(4, 8, 2), torch.randn(5, 4)
    net(x)
    before = record().calls
    mapped = torch.func.vmap(net)(x)
    jacobian = torch.func.jacrev(net)(x[0])
    replaced = torch.func.functional_call(net, {"0.bias": torch.ones(8)}, (x,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = net(x)
    traced = torch.jit.trace(net, x)
    scripted = torch.jit.script(net)
    assert record().calls == before
    assert half.dtype is torch.bfloat16
    assert jacobian.shape == (2, 4)
    expected = plainly(lambda: net(x))
    same([mapped, traced(x), scripted(x)], [expected] * 3)
    assert not torch.allclose(replaced, expected)
    same([net(x)], [expected])
    with torch.inference_mode():
        assert net(x).is_inference()


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)), "it has a LayerNorm"),
        (nn.Sequential(nn.Linear(4, 8, bias=False), nn.Linear(8, 2)), "Linear layer without bias"),
        (nn.Sequential(nn.Linear(4, 8), nn.Tanh()), "fewer than two Linear layers"),
        (nn.Sequential(nn.Linear(4, 8), nn.ELU(0.5), nn.Linear(8, 2)), "an ELU with alpha=0.5"),
        (nn.Sequential(nn.Tanh(), nn.Linear(4, 8), nn.Linear(8, 2)), "a Tanh that does not follow"),
    ],
)
def test_other_networks_are_left_to_torch(
    net: nn.Sequential, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        net(torch.randn(5, 4))
    assert capsys.readouterr().err.count("Sequential runs unboosted: ") == 1
    assert reason in str(record().reason)


def test_a_subclass_that_adds_to_forward_is_boosted() -> None:
    class Joined(nn.Sequential):
        def forward(self, *inputs: Tensor) -> Tensor:
            return super().forward(torch.cat(inputs, -1))

    net = Joined(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    parts = torch.randn(6, 3), torch.randn(6, 2)
    same([net(*parts)], [plainly(lambda: net(*parts))])
    assert record().calls == 1


def test_batches_that_do_not_pay_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    net, threads = make(4, 8, 2), torch.get_num_threads()
    monkeypatch.setattr(mlp, "MOST_MULTIPLICATIONS", 48 * 60)
    monkeypatch.setattr(mlp, "MOST_ON_THREADS", 48 * 30)
    monkeypatch.setattr(mlp, "MOST_FOR_FEW", 40)
    try:
        torch.set_num_threads(1)
        for batch in (7, 8, 60, 61):
            net(torch.randn(batch, 4))
        assert record().calls == 2
        torch.set_num_threads(2)
        for batch in (30, 31):
            net(torch.randn(batch, 4))
    finally:
        torch.set_num_threads(threads)
    assert record().calls == 3
    assert sorted(record().left.values()) == [1, 2]


# ---- audits


def test_wrong_outputs_keep_torchs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    correct = mlp.Chain.forward

    def forward(self: mlp.Chain, *args: Any) -> Any:
        out, work, slopes = correct(self, *args)
        return out + 0.01, work, slopes

    monkeypatch.setattr(mlp.Chain, "forward", forward)
    net, x = make(4, 8, 2), torch.randn(5, 4)
    through = torch.randn(5, 2)
    same(gradients(net, x, through), plainly(lambda: gradients(net, x, through)))
    assert record().audits.failed == 1
    assert capsys.readouterr().err.count("continues unboosted: an audit failed: outputs differ") == 1


def test_wrong_gradients_keep_torchs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    correct = mlp.Chain.backward

    def backward(self: mlp.Chain, *args: Any) -> Any:
        found = correct(self, *args)
        return [found[0], found[1] * 1.05, *found[2:]]

    monkeypatch.setattr(mlp.Chain, "backward", backward)
    net, x = make(4, 8, 2), torch.randn(5, 4)
    through = torch.randn(5, 2)
    for _ in range(2):
        same(gradients(net, x, through), plainly(lambda: gradients(net, x, through)))
    assert record().audits.failed == 1
    assert capsys.readouterr().err.count("continues unboosted: an audit failed: gradients differ") == 1


def test_a_wrong_step_keeps_torchs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    correct = adam.run
    monkeypatch.setattr(adam, "run", lambda table, words: correct(table, words | {"lr": words["lr"] * 1.1}))
    same(trained(False, torch.optim.Adam), trained(True, torch.optim.Adam))
    assert capsys.readouterr().err.count("continues unboosted: an audit failed: weights differ") == 1


# ---- optimizers


def trained(is_plain: bool, cls: Any, clips: bool = True, **words: Any) -> list[Tensor]:
    """Weights and state after some steps with changing learning rates and a parameter without gradient."""

    def run() -> list[Tensor]:
        torch.manual_seed(1)
        net, unused = make(4, 8, 2), nn.Parameter(torch.ones(3))
        optimizer = cls([*net.parameters(), unused], lr=1e-2, **words)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 10)
        x, target, norms = torch.randn(16, 4), torch.randn(16, 2), []
        for step in range(8):
            optimizer.zero_grad()
            loss = (net(x) - target).square().mean()
            if step == 5:
                loss = loss + unused.sum()
            loss.backward()
            if clips:
                norms.append(nn.utils.clip_grad_norm_(net.parameters(), 0.1))
            optimizer.step()
            schedule.step()
        state = [value for one in optimizer.state.values() for value in one.values()]
        grads = [one.grad for one in net.parameters() if one.grad is not None]
        return [*(one.detach() for one in net.parameters()), unused.detach(), *state, *grads, *norms]

    found: list[Tensor] = plainly(run) if is_plain else run()
    return found


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (torch.optim.Adam, {}),
        (torch.optim.Adam, {"weight_decay": 0.1, "betas": (0.8, 0.99), "eps": 1e-5}),
        (torch.optim.AdamW, {"weight_decay": 0.1}),
    ],
)
def test_steps_are_torchs(cls: Any, words: dict[str, Any]) -> None:
    same(trained(False, cls, **words), trained(True, cls, **words), 1e-4)
    assert record("optimizer").gradient_steps >= 6
    assert record("optimizer").reason is None
    assert record("function").calls >= 6


def clipped(parameters: list[nn.Parameter], *args: Any, **words: Any) -> list[Tensor]:
    """The norm, the gradients and how often they were changed."""
    total = nn.utils.clip_grad_norm_(parameters, *args, **words)
    grads = [one.grad.clone() for one in parameters if one.grad is not None]
    return [total.clone(), *grads]


def test_clipping_at_once_is_clipping_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """And both are torch's, whatever the gradients: below and above the limit, missing, not finite."""
    net = make(4, 8, 2)
    parameters = list(net.parameters())
    optimizer = torch.optim.Adam(parameters)

    def fill(scale: float = 1.0) -> None:
        torch.manual_seed(4)
        for one in parameters:
            one.grad = torch.randn_like(one) * scale

    for _ in range(5):
        fill()
        optimizer.step()
        nn.utils.clip_grad_norm_(parameters, 0.5)
    made: list[bool] = []
    correct = adam.Clipping._at_once

    def at_once(self: adam.Clipping, *args: Any) -> Tensor | None:
        found = correct(self, *args)
        made.append(found is not None)
        return found

    def missing() -> None:
        fill()
        parameters[1].grad = None

    def infinite() -> None:
        fill()
        parameters[0].grad.view(-1)[3] = float("inf")

    def strided() -> None:
        fill()
        parameters[2].grad = torch.randn(8, 2).t()

    cases: list[tuple[Callable[[], None], tuple[Any, ...], dict[str, Any], bool]] = [
        (fill, (0.5,), {}, True),
        (lambda: fill(1e-3), (0.5,), {}, True),
        (fill, (), {"max_norm": 1}, True),
        (fill, (float("inf"),), {}, True),
        (fill, (-1.0,), {}, True),
        (missing, (0.5,), {}, True),
        (infinite, (0.5,), {}, False),
        (strided, (0.5,), {}, False),
        (fill, (0.5, 1.0), {}, False),
        (fill, (0.5,), {"norm_type": float("inf")}, False),
        (fill, (0.5,), {"error_if_nonfinite": True}, False),
        (fill, (torch.tensor(0.5),), {}, False),
    ]
    for begin, args, words, is_at_once in cases:
        results = []
        for function in (at_once, lambda *_: None):
            monkeypatch.setattr(adam.Clipping, "_at_once", function)
            for audits in (adam.clip_record().audits, adam.clip_record().acting_audits):
                audits._next = 9  # audits go through the halves
            begin()
            results.append(clipped(parameters, *args, **words))
        begin()
        results.append(plainly(lambda: clipped(parameters, *args, **words)))  # noqa: B023
        assert made.pop() is is_at_once, (args, words)
        for ours, halves, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, halves, rtol=0, atol=0, equal_nan=True)
            torch.testing.assert_close(ours, theirs, equal_nan=True)
    fill()
    version = parameters[0].grad._version
    nn.utils.clip_grad_norm_(parameters, 0.5)
    assert parameters[0].grad._version == version + 1


def test_replaced_halves_of_clipping_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter])
    for _ in range(5):
        parameter.grad = torch.ones(3)
        optimizer.step()
        nn.utils.clip_grad_norm_([parameter], 0.5)
    monkeypatch.setattr(torch.nn.utils.clip_grad, "_get_total_norm", lambda *_: torch.tensor(4.0))
    assert float(nn.utils.clip_grad_norm_([parameter], 0.5)) == 4.0


@pytest.mark.parametrize("has_guards", [False, True])
def test_changes_between_steps_are_followed(monkeypatch: pytest.MonkeyPatch, has_guards: bool) -> None:
    """Tensors of the state and gradients of other kinds, settings that are tensors, and back again."""
    monkeypatch.setattr(layouts, "_guards_kind", layouts.guards_of_torch() if has_guards else None)

    def run() -> list[Tensor]:
        torch.manual_seed(2)
        parameters = [nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))]
        optimizer = torch.optim.Adam(parameters, lr=0.01)
        first = parameters[0]

        def step(count: int = 2) -> None:
            for _ in range(count):
                for one in parameters:
                    one.grad = torch.randn_like(one)
                optimizer.step()

        step(4)
        optimizer.state[first]["exp_avg"] = optimizer.state[first]["exp_avg"].t().contiguous().t()
        step()
        optimizer.state[first]["exp_avg"] = optimizer.state[first]["exp_avg"].contiguous()
        step()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        step()
        first.data = first.data.t()
        step()
        first.data = first.data.t()
        optimizer.param_groups[0]["lr"] = torch.tensor(0.01)
        optimizer.param_groups[0]["foreach"] = False
        step()
        optimizer.param_groups[0]["lr"] = 0.02
        optimizer.param_groups[0]["foreach"] = None
        step()
        for one in parameters:
            one.grad = torch.randn_like(one).t() if one.dim() == 2 else torch.randn_like(one)
        optimizer.step()
        optimizer.param_groups[0]["weight_decay"] = 0.1
        optimizer.param_groups[0]["amsgrad"] = False
        step()
        parameters[1].grad = None
        first.grad = torch.ones(4, 4)
        optimizer.step()
        optimizer.param_groups[0]["maximize"] = True
        step()
        return [*(one.detach() for one in parameters), *optimizer.state[first].values()]

    same(run(), plainly(run), 1e-4)
    assert record("optimizer").gradient_steps == 12


def test_a_step_counts_as_a_change_of_its_tensors() -> None:
    net, x = make(4, 8, 2), torch.randn(5, 4)
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(8):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
    assert record("optimizer").gradient_steps >= 4
    out = net(x).sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"amsgrad": True}, "amsgrad=True"),
        ({"maximize": True}, "maximize=True"),
        ({"fused": True}, "fused=True"),
        ({"lr": torch.tensor(1e-3)}, "lr is a Tensor"),
        ({"eps": 0.0}, "eps is 0"),
    ],
)
def test_other_settings_are_left_to_torch(words: dict[str, Any], reason: str) -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter], **words)
    for _ in range(4):
        parameter.grad = torch.ones(3)
        optimizer.step()
    assert reason in str(record("optimizer").reason)


def test_optimizers_and_networks_of_stable_baselines3_are_left_alone() -> None:
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=16, n_epochs=2, device="cpu")
    active.is_paused = False
    observations = np.zeros((1, 4), dtype=np.float32)
    for _ in range(12):
        model.policy(torch.from_numpy(observations))
        model.policy.optimizer.zero_grad()
        model.policy.predict_values(torch.from_numpy(observations)).sum().backward()
        model.policy.optimizer.step()
    assert [one.kind for one in active.history if one.kind != "function"] == []


def test_the_optimizer_of_an_entropy_coefficient_is_left_alone() -> None:
    """Otherwise audits of SAC would compare with a kernel, not with torch."""
    from stable_baselines3 import SAC

    model = SAC("MlpPolicy", "Pendulum-v1", policy_kwargs={"net_arch": [4]}, device="cpu")
    for _ in range(6):
        model.log_ent_coef.grad = torch.ones(1)
        model.ent_coef_optimizer.step()
    assert [one.kind for one in active.history if one.kind != "function"] == []


# ---- with the rest of hotloop


def test_boost_is_a_patch_that_can_be_switched() -> None:
    net, x, patch = make(4, 8, 2), torch.randn(5, 4), BoostPatch()
    patch.undo()
    net(x)
    assert patch.skip_reason() is None
    calls = []
    for switch in (patch.undo, patch.apply, patch.undo):
        switch()
        net(x)
        calls.append(record().calls)
    patch.apply()
    assert calls == [0, 1, 1]


def test_nothing_is_imported_before_a_module_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    install.remove()
    install.install()
    assert install.current is not None
    assert install.current.torch is not None
    loaded: list[bool] = []
    monkeypatch.setattr(install.current.torch, "load", lambda: loaded.append(True))
    net, x = make(4, 8, 2), torch.randn(5, 4)
    for _ in range(torch_patches.FORWARD_CALLS - 1):
        net(x)
    assert not loaded
    net(x)
    assert loaded


@pytest.mark.long
def test_compiled_by_torch_is_left_to_torch() -> None:
    net, x = make(4, 8, 2), torch.randn(5, 4)
    optimizer = torch.optim.Adam(net.parameters())

    def update() -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    compiled = torch.compile(update, backend="eager")
    for _ in range(6):
        compiled()
    with torch.no_grad():
        same([torch.compile(net, backend="eager")(x)], [plainly(lambda: net(x))])
    assert all(one.calls == 0 and one.gradient_steps == 0 for one in active.history if one.kind == "module")


# ---- distributions


def test_samples_are_torchs() -> None:
    logits = torch.randn(6, 5)
    logits[0, :3] = float("-inf")

    def run() -> list[Tensor]:
        torch.manual_seed(3)
        found = []
        for given in (logits, logits[1]):
            choice = Categorical(logits=given)
            for _ in range(4):
                sample = choice.sample()
                found += [sample, choice.log_prob(sample), choice.entropy(), choice.probs, choice.logits]
            found += [choice.sample((2,)), choice.log_prob(choice.sample((2,)))]
        normal = Normal(logits[1:], torch.rand(5, 5) + 0.1)
        sample = normal.sample()
        return [*found, sample, normal.log_prob(sample), normal.entropy(), torch.rand(1)]

    ours, theirs = run(), plainly(run)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype is other.dtype
        torch.testing.assert_close(mine, other)
    assert record("function").audits.passed >= 3


def test_gradients_of_distributions_are_torchs() -> None:
    logits, actions = torch.randn(6, 5, requires_grad=True), torch.randint(0, 5, (6,))

    def run() -> list[Tensor]:
        logits.grad = None
        choice = Categorical(logits=logits)
        (choice.log_prob(actions.float()).sum() + choice.entropy().square().sum()).backward()
        assert logits.grad is not None
        return [logits.grad.clone()]

    same(run(), plainly(run))


@pytest.mark.parametrize("lowest", [-50.0, -1e8, -3e38, float("-inf")])
@pytest.mark.parametrize("shape", [(3,), (1,), (6, 5), (2, 3, 4), (130, 2)])
def test_entropies_are_torchs(shape: tuple[int, ...], lowest: float) -> None:
    logits = 3 * torch.randn(shape)
    if logits.numel() > 1:
        logits.view(-1)[1] = lowest
    through = torch.randn(shape[:-1])
    distributions.record().audits._next = 99  # an audited sample is torch's, which keeps probabilities

    def run() -> list[Tensor]:
        found: list[Tensor] = []
        for given in (logits, logits.clone().requires_grad_()):
            for touched in ("", "probs", "sample"):  # probabilities known before, with a graph and without
                torch.manual_seed(1)
                choice = Categorical(logits=given)
                if touched == "probs":
                    assert choice.probs.requires_grad is given.requires_grad
                elif touched:
                    choice.sample()
                entropy = choice.entropy()
                assert entropy.requires_grad is given.requires_grad
                found += [entropy.detach(), choice.probs.detach()]
                if given.requires_grad:
                    (entropy * through).sum().backward(retain_graph=True)
                    (2 * entropy).sum().backward()
                    assert given.grad is not None
                    found.append(given.grad.clone())
        return found

    for ours, theirs in zip(run(), plainly(run), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)
    if logits.numel():
        is_left = lowest < -1e30 and logits.numel() > 1  # torch's gradients overflow, and so they do boosted
        about = next(one for one in active.history if one.name == "Categorical.entropy")
        assert about.reason is None and about.acting_audits.passed == 3
        assert about.gradient_steps == (0 if is_left else 4)


def test_second_derivatives_of_entropies_are_torchs() -> None:
    logits = torch.randn(6, 5, requires_grad=True)

    def run() -> list[Tensor]:
        (slope,) = torch.autograd.grad(Categorical(logits=logits).entropy().sum(), logits, create_graph=True)
        (second,) = torch.autograd.grad(slope.square().sum(), logits)
        return [slope.detach(), second]

    same(run(), plainly(run))


def test_an_entropy_of_other_probabilities_is_torchs() -> None:
    choice = Categorical(logits=torch.randn(6, 5))
    choice.probs = torch.full((6, 5), 0.2)
    same([choice.entropy()], [plainly(choice.entropy)])
    assert not any(one.reason for one in active.history)


@pytest.mark.parametrize("has_gradient", [False, True])
def test_wrong_entropies_keep_torchs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_gradient: bool
) -> None:
    logits = torch.randn(6, 5)

    def run() -> list[Tensor]:
        given = logits.clone().requires_grad_(has_gradient)
        found = Categorical(logits=given).entropy()
        return [found.detach(), *(torch.autograd.grad(found.sum(), given) if has_gradient else ())]

    correct = tensor_kernels.entropy_gradient if has_gradient else tensor_kernels.entropy
    name = "entropy_gradient" if has_gradient else "entropy"
    monkeypatch.setattr(tensor_kernels, name, lambda a, b, *rest: correct(b, b, *rest) if rest[-1] else None)
    for _ in range(2):
        same(run(), plainly(run))
    assert capsys.readouterr().err.count("continues unboosted: an audit failed") == 1


def test_log_probs_without_gradients_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(6, 5)
    logits[2, 3] = float("-inf")
    for given, value in (
        (logits, torch.randint(0, 5, (6,))),
        (logits[0], torch.tensor(4)),
        (logits.t().contiguous().t(), torch.randint(0, 5, (12,))[::2]),
        (logits, torch.randint(0, 5, (6,)).float()),
        (logits, torch.randint(0, 5, (6,), dtype=torch.int32)),
        (logits.requires_grad_(), torch.full((6,), 3)),
    ):
        for checks in (None, True, False):
            choice = Categorical(logits=given, validate_args=checks)
            ours, theirs = choice.log_prob(value), plainly(lambda: choice.log_prob(value))  # noqa: B023
            assert torch.equal(ours, theirs) and ours.requires_grad is given.requires_grad


def test_wrong_log_probs_keep_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    choice, value = Categorical(logits=torch.randn(6, 5)), torch.zeros(6, dtype=torch.int64)
    monkeypatch.setattr(tensor_kernels, "pick", lambda *_: True)
    for _ in range(2):
        assert torch.equal(choice.log_prob(value), plainly(lambda: choice.log_prob(value)))
    assert "a log probability differs" in str(distributions.record().reason)


def test_invalid_arguments_raise_torchs_errors() -> None:
    nan = torch.full((2, 3), float("nan"))
    good = Categorical(logits=torch.zeros(2, 3))
    attempts: list[Callable[[], Any]] = [
        lambda: Categorical(logits=nan),
        lambda: Categorical(logits=torch.tensor(1.0)),
        lambda: Categorical(),
        lambda: good.log_prob(torch.tensor([0, 3])),
        lambda: good.log_prob(torch.tensor([0, -1])),
        lambda: good.log_prob(torch.tensor([0.5, 1.0])),
        lambda: good.log_prob(torch.tensor([0, 1, 2])),
        lambda: Categorical(logits=nan, validate_args=False).sample(),
        lambda: Normal(nan, 1.0),
        lambda: Normal(torch.zeros(2), torch.tensor([1.0, 0.0])),
        lambda: Normal(torch.zeros(2), torch.ones(2)).log_prob(nan[0, :2]),
    ]
    for attempt in attempts:
        errors = []
        for is_plain in (False, True):
            with pytest.raises((ValueError, RuntimeError)) as error:
                plainly(attempt) if is_plain else attempt()
            errors.append((type(error.value), str(error.value)))
        assert errors[0] == errors[1]


# ---- TorchRL


@pytest.mark.long
def test_networks_and_about_torchrl_are_boosted_inside_its_modules() -> None:
    """What docs/boost.md says was found: MLP, TensorDictModule, ProbabilisticActor, ClipPPOLoss, Adam."""
    pytest.importorskip("torchrl")
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss

    def run() -> list[Tensor]:
        torch.manual_seed(0)
        net = MLP(in_features=4, out_features=3, num_cells=[16, 16], activation_class=nn.Tanh)
        critic = MLP(in_features=4, out_features=1, num_cells=[16, 16], activation_class=nn.Tanh)
        actor = ProbabilisticActor(
            TensorDictModule(net, in_keys=["observation"], out_keys=["logits"]),
            in_keys=["logits"],
            distribution_class=Categorical,
            return_log_prob=True,
        )
        value = ValueOperator(critic, in_keys=["observation"])
        loss = ClipPPOLoss(actor, value)
        adam = torch.optim.Adam(loss.parameters(), lr=1e-2)
        for _ in range(12):
            data = actor(TensorDict({"observation": torch.randn(32, 4)}, batch_size=[32]))
            data["advantage"], data["value_target"] = torch.randn(32, 1), torch.randn(32, 1)
            found = loss(data.detach())
            adam.zero_grad()
            (found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]).backward()
            nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
            adam.step()
        return [one.detach().clone() for one in loss.parameters()] + [torch.rand(1)]

    ours, theirs = run(), plainly(run)
    assert record("module").calls > 0
    assert record("optimizer").gradient_steps > 0
    assert torch.equal(ours[-1], theirs[-1])
    for mine, other in zip(ours[:-1], theirs[:-1], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)
