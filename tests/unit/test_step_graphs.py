"""Policy gradients that keep a graph for every step, and code that only looks similar."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotloop.analysis.advice.run_view import view_run
from hotloop.analysis.advice.step_graphs import graphs_step_by_step
from hotloop.analysis.explain import explain_without_advice
from hotloop.analysis.findings import Recommendation
from hotloop.capture.samples import FunctionSource
from hotloop.testing.captures import Spec, make_capture
from tests.unit.test_hot_lines import capture_with, path

ACTOR_CRITIC = """\
def select_action(state):
    probs, value = model(torch.from_numpy(state).float())
    m = Categorical(probs)
    action = m.sample()
    model.saved.append((m.log_prob(action), value))
    return action.item()
def finish_episode():
    saved = model.saved
    losses = []
    for (log_prob, value), R in zip(saved, returns()):
        losses.append(-log_prob * (R - value.item()))
    optimizer.zero_grad()
    torch.stack(losses).sum().backward()
    optimizer.step()
"""
REINFORCE = """\
def train(env, policy, optimizer):
    for episode in range(1000):
        log_probs, rewards = [], []
        while not done:
            action, log_prob = policy.act(obs)
            obs, reward, done, _, _ = env.step(action)
            log_probs.append(log_prob)
        loss = -(torch.stack(log_probs) * returns(rewards)).sum()
        loss.backward()
        optimizer.step()
"""


def advice(source: str, steps_per_update: int = 50, backward: float = 4.0) -> Recommendation | None:
    act = (("train.py", "train", 1), 5)
    paths = [
        path(act, called="torch.nn.modules.module.Module._wrapped_call_impl"),
        path((("train.py", "train", 1), 9), called="torch._tensor.Tensor.backward"),
    ]
    capture = capture_with(paths, [10 - backward, backward])
    steps, updates = 20_000, 20_000 // steps_per_update
    counted = make_capture({"env_step": Spec(steps, 20_000)}, env_steps=steps, updates=updates)
    process = capture.processes[0]
    sources = (FunctionSource("train.py", "train", 1, source),)
    process = replace(process, threads=counted.processes[0].threads, sources=sources)
    capture = replace(counted, processes=(process,))
    run = view_run(capture, explain_without_advice(capture))
    assert run is not None
    return graphs_step_by_step(run)


POLICY = """\
def act(self, obs):
    probs = self.net(torch.from_numpy(obs).float())
    m = Categorical(probs)
    action = m.sample()
    return action.item(), m.log_prob(action)
"""
ADDED_UP = REINFORCE.replace(
    "        loss = -(torch.stack(log_probs) * returns(rewards)).sum()\n",
    "        loss = 0\n        for p, R in zip(log_probs, returns(rewards)):\n            loss += -p * R\n",
)


@pytest.mark.parametrize("source", [ACTOR_CRITIC, REINFORCE + POLICY, ADDED_UP + POLICY])
def test_graphs_of_single_steps_are_named(source: str) -> None:
    found = advice(source)
    assert found is not None and found.safety == "rounding"
    assert (
        found.site == f"train.py:{next(n for n, row in enumerate(source.splitlines(), 1) if 'append' in row)}"
    )
    assert found.gain is not None and found.gain.low > 1.2 and found.gain.value > 1.5


@pytest.mark.parametrize(
    "source",
    [
        # plain numbers are kept, and computed again for the loss: Spinning Up
        REINFORCE.replace("log_probs.append(log_prob)", "log_probs.append(action.item())"),
        # without gradients
        REINFORCE.replace(
            "    log_probs, rewards", "    with torch.no_grad(): v = value(obs)\n        log_probs, rewards"
        ),
        # a recurrent policy needs the steps in turn; dropout would draw again
        REINFORCE + "class Policy(nn.Module):\n    def __init__(self):\n        self.rnn = nn.LSTM(4, 8)\n",
        REINFORCE
        + "class Policy(nn.Module):\n    def __init__(self):\n        self.drop = nn.Dropout(0.1)\n",
        # what the env returns, whatever type it has
        REINFORCE.replace("log_probs.append(log_prob)", "log_probs.append(obs)"),
        REINFORCE.replace("log_probs.append(log_prob)", "log_probs.append(action)"),
        # kept for the log
        REINFORCE.replace("torch.stack(log_probs) *", "log_prob_of(batch) *"),
        # kept without their graphs
        REINFORCE.replace("torch.stack(log_probs) *", "torch.stack(log_probs).detach() *"),
    ],
)
def test_similar_code_is_left_alone(source: str) -> None:
    assert advice(source + POLICY) is None


@pytest.mark.parametrize("values", ["q(obs)", "policy.value(obs)"])
def test_only_log_probabilities_are_known_to_be_kept_for_a_loss(values: str) -> None:
    assert advice(REINFORCE.replace("policy.act(obs)", f"0, {values}")) is None


def test_few_steps_for_each_update_or_a_cheap_backward_pass_are_left_alone() -> None:
    assert advice(REINFORCE + POLICY, steps_per_update=5) is None  # A2C
    assert advice(REINFORCE + POLICY, backward=0.5) is None
