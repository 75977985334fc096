"""Gradients that are cleared before anybody steps or reads them are found, however a script does that."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hotloop.instrument import process_facts, sampled_passes, update_counting
from hotloop.instrument.sampled_passes import SampledPasses
from hotloop.measure.profiler import default

torch = pytest.importorskip("torch")
nn = torch.nn
UPDATES = 34  # of two or three passes


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[SampledPasses]:
    monkeypatch.setattr(sampled_passes, "MOST_SHARE", 1e9)  # looking takes long beside such small networks
    monkeypatch.setattr(update_counting, "_optimizers", {})
    monkeypatch.setattr(process_facts, "is_boosted", False)  # by another test in this process
    update_counting.begin_training()
    default.start()
    torch.manual_seed(3)
    one = SampledPasses()
    backward = torch.Tensor.backward

    def counted(*args: Any, **words: Any) -> None:
        backward(*args, **words)
        one.passed()

    monkeypatch.setattr(torch.Tensor, "backward", counted)
    yield one
    one.close()
    assert "grad" not in vars(nn.Parameter) and "_grad" not in vars(nn.Parameter)
    assert not sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks
    default.stop()


def network(inputs: int, outputs: int) -> Any:
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))


def adam(*modules: Any) -> Any:
    made = torch.optim.Adam([p for module in modules for p in module.parameters()], lr=0.01)
    update_counting.note_optimizer(made)
    return made


def found(passes: SampledPasses) -> list[Any]:
    passes.close()
    unused: list[Any] = passes.gradients.facts()["gradients"]["unused"]
    return unused


class Agent:
    """An actor and a critic, each with its optimizer."""

    def __init__(self) -> None:
        self.actor, self.critic = network(4, 2), network(6, 1)
        self.actor_optimizer, self.critic_optimizer = adam(self.actor), adam(self.critic)

    def learn_critic(self, clear: Callable[[], None] | None = None) -> None:
        loss = (self.critic(torch.randn(8, 6)) - torch.randn(8, 1)).square().mean()
        (clear or self.critic_optimizer.zero_grad)()
        loss.backward()
        self.critic_optimizer.step()

    def actor_loss(self) -> Any:
        obs = torch.randn(8, 4)
        return -self.critic(torch.cat([obs, self.actor(obs)], 1)).mean()

    def learn_actor(self, **words: Any) -> None:
        self.actor_optimizer.zero_grad()
        self.actor_loss().backward(**words)
        self.actor_optimizer.step()


def by_none(agent: Agent) -> None:
    for parameter in agent.critic.parameters():
        parameter.grad = None


def by_zeros(agent: Agent) -> None:
    for parameter in agent.critic.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()


def by_data(agent: Agent) -> None:
    for parameter in agent.critic.parameters():
        if parameter.grad is not None:
            parameter.grad.data.zero_()


def by_new_zeros(agent: Agent) -> None:
    agent.critic_optimizer.zero_grad(set_to_none=False)


def by_module(agent: Agent) -> None:
    agent.critic.zero_grad()


@pytest.mark.parametrize("clear", [None, by_none, by_zeros, by_data, by_new_zeros, by_module])
def test_a_critics_gradients_of_the_actors_loss_are_discarded(
    passes: SampledPasses, clear: Callable[[Agent], None] | None
) -> None:
    agent = Agent()
    for _ in range(UPDATES):
        agent.learn_critic(None if clear is None else lambda: clear(agent))
        agent.learn_actor()
    (one,) = found(passes)
    assert one["discarded"] == ["self.critic"] and one["wanted"] == ["self.actor"]
    assert one["modules"] == [] and not one["partly_frozen"] and not one["keeps_graph"]
    assert one["passes"] == one["of_passes"] > 2 and one["total_ns"] > one["weights_ns"] > 0
    assert one["elements"] == sum(p.numel() for p in agent.critic.parameters())
    learn = Agent.learn_actor.__code__  # the last frame is the one of `counted`
    assert one["frames"][-2][:2] == [learn.co_filename, learn.co_firstlineno]
    facts = passes.gradients.facts()["gradients"]
    assert one["frames"] in facts["known"] and len(facts["known"]) == 2


def test_imagined_steps_of_a_world_model_are_seen_through(passes: SampledPasses) -> None:
    cell, reward, actor = nn.GRUCell(2, 4), network(4, 1), network(4, 2)
    model_optimizer, actor_optimizer = adam(cell, reward), adam(actor)
    for _ in range(UPDATES):
        state = torch.zeros(8, 4)
        for _ in range(3):
            state = cell(torch.randn(8, 2), state)
        model_optimizer.zero_grad()
        (reward(state) - 1).square().mean().backward()
        model_optimizer.step()
        state = state.detach()
        for _ in range(3):
            state = cell(actor(state), state)
        actor_optimizer.zero_grad()
        (-reward(state).mean()).backward()
        actor_optimizer.step()
    (one,) = found(passes)
    assert one["discarded"] == ["cell", "reward"] and one["wanted"] == ["actor"]


def test_each_of_several_agents_is_seen(passes: SampledPasses) -> None:
    agents = [Agent() for _ in range(3)]
    for _ in range(UPDATES):
        for agent in agents:
            agent.learn_critic()
            agent.learn_actor()
    (one,) = found(passes)
    assert one["discarded"] == ["self.critic"] and one["passes"] == one["of_passes"]


def test_a_generators_loss_goes_through_the_discriminator(passes: SampledPasses) -> None:
    generator, discriminator = network(3, 6), network(6, 1)
    g_optimizer, d_optimizer = adam(generator), adam(discriminator)
    for _ in range(UPDATES):
        fake = generator(torch.randn(8, 3))
        d_optimizer.zero_grad()
        real = torch.randn(8, 6).requires_grad_(True)
        score = discriminator(real)
        (slope,) = torch.autograd.grad(score.sum(), real, create_graph=True)
        (
            discriminator(fake.detach()).mean() - score.mean() + (slope.norm(dim=1) - 1).square().mean()
        ).backward()
        d_optimizer.step()
        g_optimizer.zero_grad()
        (-discriminator(fake).mean()).backward()
        g_optimizer.step()
    (one,) = found(passes)  # not the penalty, which needs the graph behind the slope
    assert one["discarded"] == ["discriminator"] and one["wanted"] == ["generator"]


def test_a_graph_that_another_pass_needs_is_said(passes: SampledPasses) -> None:
    agent = Agent()
    for _ in range(UPDATES):
        obs = torch.randn(8, 4)
        value = agent.critic(torch.cat([obs, agent.actor(obs)], 1))
        agent.critic_optimizer.zero_grad()
        (value - 1).square().mean().backward(retain_graph=True, inputs=list(agent.critic.parameters()))
        agent.actor_optimizer.zero_grad()
        (-value.mean()).backward(retain_graph=True)
        agent.actor_optimizer.step()
        agent.learn_critic()
    (one,) = found(passes)
    assert one["discarded"] == ["agent.critic"] and one["keeps_graph"]


def test_parts_that_are_frozen_anyway_are_said(passes: SampledPasses) -> None:
    agent = Agent()
    agent.critic[0].bias.requires_grad_(False)
    for _ in range(UPDATES):
        agent.learn_critic()
        agent.learn_actor()
    (one,) = found(passes)
    assert one["discarded"] == ["self.critic"] and one["partly_frozen"]


def test_clipping_for_the_own_step_does_not_hide_what_is_discarded(passes: SampledPasses) -> None:
    agent = Agent()
    for _ in range(UPDATES):
        agent.critic_optimizer.zero_grad()
        agent.critic(torch.randn(8, 6)).square().mean().backward()
        nn.utils.clip_grad_norm_(agent.critic.parameters(), 1.0)
        agent.critic_optimizer.step()
        agent.actor_optimizer.zero_grad()
        agent.actor_loss().backward()
        nn.utils.clip_grad_norm_(agent.actor.parameters(), 1.0)
        agent.actor_optimizer.step()
    (one,) = found(passes)
    assert one["discarded"] == ["agent.critic"] and one["wanted"] == ["agent.actor"]


# -- what is used --------------------------------------------------------------------------------------


def clipped(agent: Agent, at: int) -> None:
    agent.learn_actor()
    nn.utils.clip_grad_norm_(agent.critic.parameters(), 1e9)


def norms(agent: Agent, at: int) -> None:
    agent.learn_actor()
    sum(p.grad.norm() for p in agent.critic.parameters() if p.grad is not None)


def copied(agent: Agent, at: int) -> None:
    agent.learn_actor()
    [p._grad.clone() for p in agent.critic.parameters()]


def by_name(agent: Agent, at: int) -> None:
    agent.learn_actor()
    [getattr(p, "grad") + 0 for p in agent.critic.parameters()]  # noqa: B009


def stepped(agent: Agent, at: int) -> None:
    agent.learn_actor()
    agent.critic_optimizer.step()


def stepped_at_times(agent: Agent, at: int) -> None:
    agent.learn_actor()
    if at % 2 == 1:
        agent.critic_optimizer.step()


def named(agent: Agent, at: int) -> None:
    agent.learn_actor(inputs=list(agent.actor.parameters()))


def frozen(agent: Agent, at: int) -> None:
    agent.critic.requires_grad_(False)
    agent.learn_actor()
    agent.critic.requires_grad_(True)


def higher(agent: Agent, at: int) -> None:
    agent.learn_actor(create_graph=True)


def replaced(agent: Agent, at: int) -> None:
    agent.learn_actor()
    for parameter in agent.critic.parameters():
        parameter.grad = torch.zeros_like(parameter)


def hooked(agent: Agent, at: int) -> None:
    if at == 0:
        for parameter in agent.critic.parameters():
            parameter.register_hook(lambda gradient: None)
    agent.learn_actor()


@pytest.mark.filterwarnings("ignore:Using backward() with create_graph")
@pytest.mark.parametrize(
    "learn_actor",
    [clipped, norms, copied, by_name, stepped, stepped_at_times, named, frozen, higher, replaced, hooked],
)
def test_gradients_that_somebody_uses_are_left_alone(
    passes: SampledPasses, learn_actor: Callable[[Agent, int], None]
) -> None:
    agent = Agent()
    for at in range(UPDATES):
        agent.learn_critic()
        learn_actor(agent, at)
    assert found(passes) == []


def test_gradients_that_wait_for_the_next_pass_are_used(passes: SampledPasses) -> None:
    """A critic that clears behind its step also learns from the actor's loss: wrong, but so it is."""
    agent = Agent()
    for _ in range(UPDATES):
        agent.learn_critic(lambda: None)
        agent.critic_optimizer.zero_grad()
        agent.learn_actor()
    assert found(passes) == []


def test_adding_up_over_passes_is_no_discarding(passes: SampledPasses) -> None:
    agent = Agent()
    for at in range(3 * UPDATES):
        (agent.critic(torch.randn(8, 6)) - 1).square().mean().backward()
        if at % 4 == 3:
            agent.critic_optimizer.step()
            agent.critic_optimizer.zero_grad()
    assert found(passes) == []


def test_a_shared_trunk_with_two_optimizers_is_used(passes: SampledPasses) -> None:
    trunk, policy, value = network(4, 8), nn.Linear(8, 2), nn.Linear(8, 1)
    first, second = adam(trunk, policy), adam(value)
    for _ in range(3 * UPDATES):
        hidden = trunk(torch.randn(8, 4))
        first.zero_grad()
        second.zero_grad()
        (policy(hidden).mean() + value(hidden).square().mean()).backward()
        first.step()
        second.step()
    assert found(passes) == []


def test_steps_that_come_rarely_need_their_gradients(passes: SampledPasses) -> None:
    """One loss for both, and the actor steps so seldom that no window sees it."""
    agent = Agent()
    for at in range(1, 3 * UPDATES):
        agent.actor_optimizer.zero_grad()
        agent.critic_optimizer.zero_grad()
        (agent.actor_loss() + agent.critic(torch.randn(8, 6)).square().mean()).backward()
        agent.critic_optimizer.step()
        if at % 70 == 0:
            agent.actor_optimizer.step()
    assert found(passes) == []


def test_gradients_of_single_tasks_are_read(passes: SampledPasses) -> None:
    """As in PCGrad: a pass for each task, cleared each time, and a sum of them for the step."""
    net = network(4, 2)
    optimizer = adam(net)
    for _ in range(UPDATES):
        tasks = []
        for task in range(2):
            optimizer.zero_grad()
            net(torch.randn(8, 4))[:, task].square().mean().backward()
            tasks.append([p.grad.clone() for p in net.parameters()])
        for parameter, one, other in zip(net.parameters(), *tasks, strict=True):
            parameter.grad = one + other
        optimizer.step()
    assert found(passes) == []


def test_inner_loops_of_meta_learning_use_theirs(passes: SampledPasses) -> None:
    net = network(4, 1)
    optimizer = adam(net)
    for _ in range(UPDATES):
        fast = copy.deepcopy(net)
        inner = torch.optim.SGD(fast.parameters(), lr=0.1)
        update_counting.note_optimizer(inner)
        for _ in range(2):
            inner.zero_grad()
            fast(torch.randn(8, 4)).square().mean().backward()
            inner.step()
        inner.zero_grad()
        fast(torch.randn(8, 4)).square().mean().backward()
        for parameter, learnt in zip(net.parameters(), fast.parameters(), strict=True):
            parameter.grad = learnt.grad
        optimizer.step()
    assert found(passes) == []


class ClearingAdam(torch.optim.Adam):  # type: ignore[misc, name-defined]
    def step(self, closure: Any = None) -> None:
        super().step(closure)
        self.zero_grad()


def test_an_optimizer_that_clears_in_its_step_has_stepped(passes: SampledPasses) -> None:
    agent = Agent()
    agent.critic_optimizer = ClearingAdam(agent.critic.parameters())
    update_counting.note_optimizer(agent.critic_optimizer)
    for _ in range(UPDATES):
        agent.learn_critic(lambda: None)
        agent.learn_actor()
        agent.critic_optimizer.step()
    assert found(passes) == []


def test_a_closure_clears_and_fills_within_the_step(passes: SampledPasses) -> None:
    net = network(4, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)
    update_counting.note_optimizer(optimizer)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = net(torch.randn(8, 4)).square().mean()
        loss.backward()
        return loss

    for _ in range(UPDATES):
        optimizer.step(closure)
    assert found(passes) == []


def test_what_is_watched_stays_the_same(passes: SampledPasses) -> None:
    parameter: Any = nn.Parameter(torch.ones(3))
    passes.gradients.fates.begin()
    assert [parameter.grad, parameter._grad] == [None, None]
    parameter.sum().backward()
    assert parameter.grad is parameter._grad and torch.equal(parameter.grad, torch.ones(3))
    parameter.grad = torch.zeros(3)
    assert torch.equal(parameter.grad, torch.zeros(3))
    with pytest.raises(TypeError):
        parameter.grad = 1
    del parameter.grad
    assert parameter.grad is None
    passes.gradients.fates.end()


def same_numbers(change: str) -> list[Any]:
    """What an agent has learnt after some updates, with the remedies that reports name."""
    torch.manual_seed(5)
    agent = Agent()
    for _, _ in itertools.product(range(5), range(2)):
        agent.learn_critic()
        if change == "freeze":
            frozen(agent, 0)
        elif change == "inputs":
            named(agent, 0)
        else:
            agent.learn_actor()
    return [p.detach().clone() for p in (*agent.actor.parameters(), *agent.critic.parameters())]


@pytest.mark.parametrize("change", ["freeze", "inputs"])
def test_the_remedies_change_no_bit(change: str) -> None:
    for before, after in zip(same_numbers(""), same_numbers(change), strict=True):
        assert torch.equal(before, after)
