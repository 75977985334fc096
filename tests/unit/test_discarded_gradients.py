"""Gradients that are zeroed unread are found in losses that go through another optimizer's network."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import pytest

from hotloop.analysis.advice.discarded_gradients import discarded_gradients, find_discarded
from hotloop.analysis.advice.untrained_gradients import untrained_gradients
from hotloop.analysis.findings import Recommendation
from hotloop.analysis.source_names import names_in
from tests.unit.test_hot_lines import capture_with, path, run_of, with_source

TWO_OPTIMIZERS = """
pi_opt = torch.optim.Adam(pi.parameters(), lr=1e-3)
q_opt = torch.optim.Adam({critics}, lr=1e-3)
{before}
for batch in replay:
    with torch.no_grad():
        y = batch.r + 0.99 * q_target(batch.o2, pi_target(batch.o2))
    q_loss = ((q(batch.o, batch.a) - y) ** 2).mean()
    {q_zero}
    q_loss.backward()
    q_opt.step()
    {after_q}
    a = pi(batch.o)
    value = q(batch.o, a)
    pi_loss = -value.mean()
    pi_opt.zero_grad()
    {backward}
    {steps}
"""
PLAIN = {
    "critics": "q.parameters()",
    "before": "pass",
    "q_zero": "q_opt.zero_grad()",
    "after_q": "pass",
    "backward": "pi_loss.backward()",
    "steps": "pi_opt.step()",
}
AGENT = """
class Agent:
    def __init__(self):
        self.actor, self.critic = Actor(8, 2), TwinCritic(8, 2)
        self.actor_optimizer = Adam(self.actor.parameters(), lr=3e-4)
        self.critic_optimizer = Adam(params=self.critic.parameters())

    def update_critic(self, obs, action, target):
        q1, q2 = self.critic(obs, action)
        loss = F.mse_loss(q1, target) + F.mse_loss(q2, target)
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()

    def policy_loss(self, obs):
        action, logp = self.actor.sample(obs)
        return (0.2 * logp - torch.min(*self.critic(obs, action))).mean()

    def update_actor(self, obs):
        loss = self.policy_loss(obs)
        self.actor_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.actor_optimizer.step()
"""
OPTIMIZER_INSIDE = """
class CriticNetwork(nn.Module):
    def __init__(self, lr):
        self.fc = nn.Linear(4, 64)
        self.optimizer = optim.Adam(self.parameters(), lr=lr)

class Agent:
    def learn(self, states, actions, target):
        self.critic.optimizer.zero_grad()
        critic_loss = F.mse_loss(target, self.critic.forward(states, actions))
        critic_loss.backward()
        self.critic.optimizer.step()
        self.actor.optimizer.zero_grad()
        actor_loss = -self.critic.forward(states, self.actor.forward(states))
        actor_loss = T.mean(actor_loss)
        actor_loss.backward()
        self.actor.optimizer.step()
"""


def found_in(source: str) -> list[tuple[list[str], list[str]]]:
    tree = ast.parse(source)
    scopes: list[ast.Module | ast.FunctionDef] = [tree]
    scopes += [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    return [
        (sorted(one.used), sorted(one.unused))
        for scope in scopes
        for one in find_discarded(names_in([tree]), scope)
    ]


def plain(**changes: str) -> str:
    return TWO_OPTIMIZERS.format(**PLAIN | changes)


@pytest.mark.parametrize(
    ("source", "used", "unused"),
    [
        (plain(), "pi", "q"),
        (plain(critics="itertools.chain(q.parameters(), v.parameters())"), "pi", "q"),
        (plain(q_zero="q.zero_grad()"), "pi", "q"),
        # the target network is frozen, which is no matter of this pass
        (plain(before="for p in q_target.parameters():\n    p.requires_grad = False"), "pi", "q"),
        (plain(backward="scaler.scale(pi_loss).backward()", steps="scaler.step(pi_opt)"), "pi", "q"),
        (AGENT, "self.actor", "self.critic"),
        (OPTIMIZER_INSIDE, "self.actor", "self.critic"),
    ],
)
def test_gradients_that_are_zeroed_unread_are_found(source: str, used: str, unused: str) -> None:
    assert found_in(source) == [([used], [unused])]


@pytest.mark.parametrize(
    "source",
    [
        plain(after_q="q.requires_grad_(False)"),
        plain(after_q="for p in q.parameters():\n        p.requires_grad = False"),
        plain(before="critic_params = list(q.parameters())", after_q="freeze(critic_params)"),
        plain(backward="pi_loss.backward(inputs=list(pi.parameters()))"),
        # one optimizer for both: these gradients are used
        plain(critics="[*q.parameters(), *pi.parameters()]", steps="q_opt.step()"),
        # nobody zeroes them: they are added to those of the next critic loss
        plain(q_zero="pass", after_q="q_opt.zero_grad()"),
        plain(steps="pi_opt.step()\n    q_opt.step()"),
        # another optimizer, of parameters that are not known, is stepped as well
        plain(before="alpha_opt = Adam([log_alpha])", steps="pi_opt.step()\n    alpha_opt.step()"),
        # the loss stops at the critic
        plain(after_q="pass").replace("-value.mean()", "-(pi.log_prob(a) * value.detach()).mean()"),
        plain().replace(
            "    value = q(batch.o, a)", "    with torch.no_grad():\n        value = q(batch.o, a)"
        ),
        # both are made of one encoder
        plain(before="enc = Encoder()\npi = Actor(enc)\nq = Critic(enc)\nz = enc(batch.o)"),
        AGENT.replace("    def policy_loss", "    @torch.no_grad()\n    def policy_loss"),
        OPTIMIZER_INSIDE.replace("        self.critic.optimizer.zero_grad()\n", ""),
    ],
)
def test_gradients_that_are_used_or_never_computed_are_left_alone(source: str) -> None:
    assert found_in(source) == []


def test_a_forward_pass_of_two_losses_must_not_be_frozen() -> None:
    tree = ast.parse(plain())
    (apart,) = find_discarded(names_in([tree]), tree)
    both = ast.parse(
        plain(after_q="pass")
        .replace("q_loss = ((q(batch.o, batch.a) - y) ** 2).mean()", "value = q(batch.o, pi(batch.o))")
        .replace("q_loss.backward()", "((value - y) ** 2).mean().backward(retain_graph=True)")
        .replace("    value = q(batch.o, a)\n", "")
    )
    together = [one for one in find_discarded(names_in([both]), both) if one.unused == {"q"}]
    assert [one.shared for one in together] == [True] and not apart.shared


def test_the_saving_is_that_of_the_pass_through_the_critic() -> None:
    source = plain().removeprefix("\n")
    rows = {text.strip(): row for row, text in enumerate(source.splitlines(), 1)}
    main = ("train.py", "<module>", 1)
    layer = "torch.nn.modules.module.Module._wrapped_call_impl"
    paths = [
        path((main, rows["pi_loss.backward()"]), called="torch._tensor.Tensor.backward"),
        path((main, rows["a = pi(batch.o)"]), called=layer),
        path((main, rows["value = q(batch.o, a)"]), called=layer),
        path((main, rows["q_opt.step()"]), called="torch.optim.adam.Adam.step"),
    ]

    def advice(weights: list[float]) -> list[float]:
        capture = with_source(capture_with(paths, weights), ("train.py", "<module>", 1, source))
        return [one.gain.value for one in discarded_gradients(run_of(capture)) if one.gain is not None]

    (mostly_critic,) = advice([4, 0.2, 2, 3])
    (mostly_actor,) = advice([4, 1, 1, 3])
    assert mostly_critic > mostly_actor > 1.05
    assert advice([0.5, 0.5, 1, 8]) == []


def test_the_gradients_that_are_used_stay_the_same() -> None:
    torch = pytest.importorskip("torch")

    def actor_gradients(limited: bool) -> list[bytes]:
        torch.manual_seed(0)
        actor = torch.nn.Sequential(torch.nn.Linear(5, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
        critic = torch.nn.Sequential(torch.nn.Linear(7, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        obs = torch.randn(16, 5)
        loss = -critic(torch.cat([obs, actor(obs)], 1)).mean()
        loss.backward(inputs=list(actor.parameters()) if limited else None)
        assert (critic[0].weight.grad is None) is limited
        return [p.grad.numpy().tobytes() for p in actor.parameters()]

    assert actor_gradients(True) == actor_gradients(False)


# -- what recordings saw ---------------------------------------------------------------------------------

SCRIPT = """\
import torch
def minimise(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
for batch in replay:
    minimise(critic_loss(batch), q_opt)
    minimise(actor_loss(batch), pi_opt)
{log}
"""
MAIN, MINIMISE = ("train.py", "<module>", 1), ("train.py", "minimise", 2)
OF_CRITIC, OF_ACTOR = ([["train.py", 1, row], ["train.py", 2, 4]] for row in (7, 8))
SEEN = {
    "frames": OF_ACTOR,
    "passes": 6,
    "of_passes": 6,
    "elements": 60,
    "of_elements": 100,
    "modules": [],
    "total_ns": 1000,
    "needless_ns": 20,
    "weights_ns": 800,
    "changes": False,
    "attention": False,
    "discarded": ["agent.critic"],
    "wanted": ["agent.actor"],
    "partly_frozen": False,
    "keeps_graph": False,
    "folds": False,
}


def seen(log: str = "", readers: tuple[Any, ...] = (), **changes: Any) -> list[Recommendation]:
    """What is said of a run in which the actor's passes took 40 % and the critic's 20 %."""
    backward = "torch._tensor.Tensor.backward"
    paths = [
        path((MAIN, 8), (MINIMISE, 4), called=backward),
        path((MAIN, 7), (MINIMISE, 4), called=backward),
        path((MAIN, 6)),
    ]
    capture = with_source(capture_with(paths, [4, 2, 4]), ("train.py", "<module>", 1, SCRIPT.format(log=log)))
    known = [OF_CRITIC, OF_ACTOR]
    unused = [SEEN | changes]
    gradients = {"passes": 18, "windows": 6, "unused": unused, "known": known, "readers": [*readers]}
    entry = {"pid": capture.processes[0].pid, "gradients": gradients}
    run = run_of(replace(capture, facts={**capture.facts, "libraries": [entry]}))
    assert untrained_gradients(run) == []  # one advice for one pass
    return discarded_gradients(run)


def test_what_a_recording_saw_has_a_measured_gain() -> None:
    (one,) = seen()
    assert one.site == "train.py:8"  # a helper runs both passes
    assert one.gain is not None
    assert one.gain.value == pytest.approx(1 / (1 - 0.4 * (0.02 * 1.05 + 0.8 * 0.57)), rel=0.01)
    assert one.gain.low < one.gain.value < one.gain.high
    assert "agent.critic.requires_grad_(False) before the forward pass" in one.advice
    assert "inputs=[*agent.actor.parameters()]" in one.advice and one.safety == "safe"


def test_a_pass_that_was_not_timed_is_estimated_by_its_parameters() -> None:
    (one,) = seen(total_ns=0, needless_ns=0, weights_ns=0)
    assert one.gain is not None and one.gain.value == pytest.approx(1 / (1 - 0.4 * 0.6 * 0.45), rel=0.01)


@pytest.mark.parametrize("change", ["keeps_graph", "partly_frozen", "folds", "attention"])
def test_networks_are_not_frozen_where_that_may_change_something(change: str) -> None:
    changes: dict[str, Any] = {change: True}
    (one,) = seen(**changes)
    assert "requires_grad_" not in one.advice and one.advice.startswith("Write .backward(inputs=")


def test_parameters_without_a_name_are_not_forgotten() -> None:
    (one,) = seen(keeps_graph=True, wanted=[])
    assert "inputs=...) with all parameters that are stepped after it" in one.advice


def test_what_nobody_trains_is_frozen_in_the_same_advice() -> None:
    (one,) = seen(modules=["agent.judge"])
    assert "Freeze agent.judge once, before training" in one.advice


@pytest.mark.parametrize("log", ["    norms.append(p.grad.norm())", "    g = [p.grad for p in params]"])
def test_a_log_of_gradients_that_no_window_saw_forbids_it(log: str) -> None:
    assert seen(log) == []
    assert len(seen(log, readers=(("train.py", 9),))) == 1  # seen, and it read others


@pytest.mark.parametrize(
    "log",
    [
        "    p.grad = None",
        "    if p.grad is not None: p.grad.zero_()",
        "    p.grad.data.zero_()",
        "    torch.autograd.grad(loss, x)",
    ],
)
def test_clearing_is_no_reading(log: str) -> None:
    assert len(seen(log)) == 1


def test_little_is_not_worth_saying() -> None:
    assert seen(weights_ns=100) == []


def test_what_was_seen_decides_and_not_the_source() -> None:
    source = plain().removeprefix("\n")
    rows = {text.strip(): row for row, text in enumerate(source.splitlines(), 1)}
    row = rows["pi_loss.backward()"]
    paths = [path((MAIN, row), called="torch._tensor.Tensor.backward"), path((MAIN, 6))]
    capture = with_source(capture_with(paths, [6, 4]), ("train.py", "<module>", 1, source))
    assert len(discarded_gradients(run_of(capture))) == 1
    gradients = {"passes": 9, "windows": 3, "unused": [], "known": [[["train.py", 1, row]]]}
    entry = {"pid": capture.processes[0].pid, "gradients": gradients}
    run = run_of(replace(capture, facts={**capture.facts, "libraries": [entry]}))
    assert discarded_gradients(run) == []
