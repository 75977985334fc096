"""Acting calls of agents whose networks get new observations for other reasons, too, or in unusual order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from hotloop.instrument import action_flow
from hotloop.instrument.libraries import Instrumentation
from tests.unit import test_instrument_acting as plain
from tests.unit.test_instrument_acting import count, gradient_step, instrumented, network, without_env

__all__ = ["instrumented", "without_env"]
F = nn.functional
STEPS, STARTS = 200, 120
Priority = Callable[[Any, Any, Any, Any, Any, float], float]


class Prioritised:
    """A loop that asks for the priority of each new transition, and acts at random most of the time."""

    def __init__(self, outputs: int = 2, atoms: int = 1):
        self.online, self.target = network(4, outputs * atoms), network(4, outputs * atoms)
        self.outputs, self.atoms = outputs, atoms
        self.optimizer = torch.optim.Adam(self.online.parameters())
        self.rows: list[tuple[Any, ...]] = []
        self.priorities = np.zeros(STEPS)
        self.acted = 0

    def values(self, net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Of quantiles or of a distribution, if there are several atoms."""
        found: torch.Tensor = net(x)
        if self.atoms == 1:
            return found
        return found.view(len(x), self.outputs, self.atoms).softmax(2).mean(2)

    def get_action(self, state: Any, epsilon: float) -> int:
        if plain.random.random() <= epsilon:
            return int(plain.random.integers(self.outputs))
        self.acted += 1
        q = self.values(self.online, torch.from_numpy(state).float())
        _, action = torch.max(q, 1)
        return int(action)

    def with_gradients(self, state: Any, action: int, reward: float, following: Any, end: bool) -> float:
        goal = self.values(self.online, torch.FloatTensor(state)).data
        before = goal[0][action].clone()
        after = self.values(self.target, torch.FloatTensor(following)).data
        goal[0][action] = reward if end else reward + 0.99 * torch.max(after)
        return float(abs(before - goal[0][action]))

    @torch.no_grad()
    def double(self, state: Any, action: int, reward: float, following: Any, end: bool) -> float:
        """The best action of the new state leaves torch, too."""
        best = int(self.values(self.online, torch.FloatTensor(following)).argmax())
        after = self.values(self.target, torch.FloatTensor(following))[0, best]
        before = self.values(self.online, torch.FloatTensor(state))[0, action]
        return abs((reward + 0.99 * after * (not end) - before).item())

    @torch.no_grad()
    def in_numpy(self, state: Any, action: int, reward: float, following: Any, end: bool) -> float:
        after = self.values(self.target, torch.FloatTensor(following)).numpy()
        before = self.values(self.online, torch.FloatTensor(state)).numpy()
        return float(abs(reward + 0.99 * after.max() * (not end) - before[0, action]))

    def of_two(self, state: Any, action: int, reward: float, following: Any, end: bool) -> float:
        both = torch.FloatTensor(np.concatenate([state, following]))
        with torch.no_grad():
            q, after = self.values(self.online, both), self.values(self.target, both)
        return float((reward + 0.99 * after[1].max() - q[0, action]).abs())

    def learn(self) -> None:
        batch = [self.rows[i] for i in plain.random.integers(len(self.rows), size=16)]
        states, followings = (torch.FloatTensor(np.vstack([row[at] for row in batch])) for at in (0, 3))
        with torch.no_grad():
            goal = self.values(self.target, followings).max(1).values
        chosen = self.values(self.online, states).gather(1, torch.tensor([[row[1]] for row in batch]))
        self.priorities[:16] = (chosen.squeeze(1) - goal).abs().detach().numpy()
        gradient_step(self.optimizer, F.mse_loss(chosen.squeeze(1), goal))

    def run(self, priority: Callable[..., float], epsilon: Callable[[int], float], n_step: int = 1) -> int:
        env = gymnasium.make("CartPole-v1")
        waiting: list[tuple[Any, ...]] = []
        state = env.reset(seed=0)[0].reshape(1, 4)
        for step in range(STEPS):
            action = self.get_action(state, epsilon(step))
            following, reward, terminated, truncated, _ = env.step(action)
            following = following.reshape(1, 4)
            waiting.append((state, action, float(reward)))
            if len(waiting) == n_step:
                first = waiting.pop(0)
                self.priorities[step] = priority(*first, following, terminated)
                self.rows.append((*first, following))
            if step >= STARTS:
                self.learn()
            state = following
            if terminated or truncated:
                state = env.reset()[0].reshape(1, 4)
                waiting.clear()
        return self.acted


def rare(step: int) -> float:
    return 1 - step / STEPS / 2


def never_random(step: int) -> float:
    return -1.0


@pytest.mark.parametrize("epsilon", [rare, never_random])
@pytest.mark.parametrize("priority", ["with_gradients", "double", "in_numpy", "of_two"])
def test_priorities_of_new_transitions(
    instrumented: Instrumentation, priority: str, epsilon: Callable[[int], float]
) -> None:
    def script() -> int:
        agent = Prioritised()
        return agent.run(getattr(agent, priority), epsilon)

    found = count(instrumented, script)
    assert found["policy_forward"] == found["expected"] > 20
    assert "policy_rest" not in found and found["updates"] == STEPS - STARTS


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("atoms", [5, 9], ids=["c51", "qr-dqn"])
def test_distributions_with_priorities_of_n_steps(
    instrumented: Instrumentation, atoms: int, n_step: int
) -> None:
    def script() -> int:
        agent = Prioritised(outputs=2, atoms=atoms)
        return agent.run(agent.with_gradients, rare, n_step)

    found = count(instrumented, script)
    assert found["policy_forward"] == found["expected"] > 20


def test_priorities_before_the_next_action(instrumented: Instrumentation) -> None:
    """At the top of the loop, for the step of the round before."""

    def script() -> int:
        agent, env, acted = Prioritised(), gymnasium.make("CartPole-v1"), 0
        state, last = env.reset(seed=0)[0], None
        for _ in range(STEPS):
            observation = torch.as_tensor(state)
            if last is not None:
                with torch.no_grad():
                    error = 1 + agent.target(observation).max() - agent.online(last)[0]
                agent.priorities[0] = error.item()
            if plain.random.random() < 0.7:
                action = int(plain.random.integers(2))
            else:
                action = int(agent.online(observation).argmax())
                acted += 1
            last = observation
            state, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                state, last = env.reset()[0], None
        return acted

    found = count(instrumented, script)
    # Until the first action of the network nothing tells that the others are no actions.
    assert found["expected"] <= found["policy_forward"] <= found["expected"] + 8
    assert found["policy_value"] + found["learner_forward"] > STEPS


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_sarsa_chooses_the_next_action_behind_the_step(instrumented: Instrumentation, epsilon: float) -> None:
    def script() -> int:
        net, env, acted = network(4, 2), gymnasium.make("CartPole-v1"), 0
        optimizer = torch.optim.Adam(net.parameters())

        def act(state: Any) -> tuple[int, int]:
            if plain.random.random() < epsilon:
                return int(plain.random.integers(2)), 0
            with torch.no_grad():
                return int(net(torch.as_tensor(state)).argmax()), 1

        state, _ = env.reset(seed=0)
        action, acted = act(state)
        for _ in range(STEPS):
            following, reward, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                following, _ = env.reset()
            then, by_network = act(following)
            acted += by_network
            both = net(torch.as_tensor(np.stack([state, following])))
            gradient_step(optimizer, (float(reward) + both[1, then].detach() - both[0, action]) ** 2)
            state, action = following, then
        return acted

    found = count(instrumented, script)
    # Until three of its results became actions, it may be called for a priority.
    assert found["expected"] - 3 <= found["policy_forward"] <= found["expected"]


class World(nn.Module):
    """Encoder, recurrent model, representation and actor, as agents with a world model have them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.recurrent = network(3, 6), nn.GRUCell(5, 7)
        self.represent, self.actor = network(13, 4), network(11, 1)

    def forward(self, *args: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("normalised", [False, True])
def test_agents_that_encode_observations_behind_the_step(
    instrumented: Instrumentation, normalised: bool
) -> None:
    def prepared(observation: Any) -> torch.Tensor:
        values = torch.from_numpy(observation).float()
        return (values / 3 - 0.2 if normalised else values).reshape(1, -1)

    def script() -> int:
        world, env, acted = World(), gymnasium.make("Pendulum-v1", max_episode_steps=25), 0
        optimizer = torch.optim.Adam(world.parameters())

        @torch.no_grad()
        def interact() -> int:
            posterior, hidden, action = torch.zeros(1, 4), torch.zeros(1, 7), torch.zeros(1, 1)
            embedded, done, steps = world.encoder(prepared(env.reset(seed=steps_so_far)[0])), False, 0
            while not done:
                hidden = world.recurrent(torch.cat([posterior, action], 1), hidden)
                posterior = world.represent(torch.cat([embedded, hidden], 1))
                action = world.actor(torch.cat([posterior, hidden], 1)).detach()
                observation, _, terminated, truncated, _ = env.step(action.cpu().numpy()[0] * 2)
                embedded = world.encoder(prepared(observation))
                done, steps = terminated or truncated, steps + 1
            return steps

        steps_so_far = 0
        for _ in range(8):
            acted += interact()
            steps_so_far = acted
            for _ in range(3):
                hidden, posterior = torch.zeros(8, 7), torch.zeros(8, 4)
                embedded = world.encoder(torch.rand(5, 8, 3))
                for at in range(5):
                    hidden = world.recurrent(torch.cat([posterior, torch.rand(8, 1)], 1), hidden)
                    posterior = world.represent(torch.cat([embedded[at], hidden], 1))
                gradient_step(optimizer, world.actor(torch.cat([posterior, hidden], 1)).square().mean())
        return acted

    found = count(instrumented, script)
    assert found["env_steps"] == found["expected"] == 200
    # The first call of a kind behind the step cannot be told from that for a priority; the last
    # observation of an episode is encoded, and no action follows.
    assert abs(found["policy_forward"] - found["expected"]) <= (3 if normalised else 10)
    assert found["learner_forward"] <= 8 * 3 * 12 + 8


def test_agents_that_act_from_a_replayed_hidden_state(instrumented: Instrumentation) -> None:
    """R2D2: hidden states are burnt in from replay, and priorities are those of whole sequences."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
            hidden, state = self.lstm(x, state)
            return self.head(hidden), state

    def script() -> int:
        online, target, acted = Recurrent(), Recurrent(), 0
        optimizer = torch.optim.Adam(online.parameters())
        env, sequence = gymnasium.make("CartPole-v1"), list[Any]()
        replay: list[tuple[Any, Any, float]] = []
        observation, _ = env.reset(seed=0)
        state = (torch.zeros(1, 1, 8), torch.zeros(1, 1, 8))
        stored = state
        for step in range(STEPS):
            with torch.no_grad():  # the state goes on, whatever is done
                q, state = online(torch.as_tensor(observation).view(1, 1, 4), state)
            acted += 1
            action = int(q.argmax()) if plain.random.random() > 0.8 else int(plain.random.integers(2))
            observation, _, terminated, truncated, _ = env.step(action)
            sequence.append(torch.as_tensor(observation))
            if len(sequence) == 10:
                rows = torch.stack(sequence).unsqueeze(0)
                with torch.no_grad():
                    error = (online(rows, stored)[0] - target(rows, stored)[0]).abs().max(2).values
                replay.append((rows, stored, float(0.9 * error.max() + 0.1 * error.mean())))
                sequence, stored = [], state
            if step > 60 and step % 4 == 0:
                rows, hidden, _ = replay[int(plain.random.integers(len(replay)))]
                with torch.no_grad():
                    _, hidden = online(rows[:, :4], hidden)
                    goal, _ = target(rows[:, 4:], hidden)
                gradient_step(optimizer, F.mse_loss(online(rows[:, 4:], hidden)[0], goal))
            if terminated or truncated:
                observation, _ = env.reset()
                state = (torch.zeros(1, 1, 8), torch.zeros(1, 1, 8))
        return acted

    found = count(instrumented, script)
    assert found["policy_forward"] == found["env_steps"] == found["expected"]


class Team(gymnasium.Env[Any, Any]):
    """Three agents, each with an observation and an action of its own."""

    names = ("a", "b", "c")

    def _observe(self) -> dict[str, Any]:
        return {name: plain.random.random(4).astype(np.float32) for name in self.names}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._observe(), {}

    def step(self, action: dict[str, int]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert set(action) == set(self.names)
        return self._observe(), 1.0, False, False, {}


@pytest.mark.parametrize("how", ["loop", "lines"])
def test_several_agents_each_with_a_network(instrumented: Instrumentation, how: str) -> None:
    def script() -> int:
        actors = {name: network(4, 2) for name in Team.names}
        critics = {name: network(12 + 6, 1) for name in Team.names}
        both = {name: nn.ModuleList([actors[name], critics[name]]) for name in Team.names}
        optimizers = {name: torch.optim.Adam(both[name].parameters()) for name in Team.names}
        env, acted, rows = Team(), 0, list[Any]()
        observations, _ = env.reset()

        def act(name: str) -> int:
            logits = actors[name](torch.from_numpy(observations[name]).unsqueeze(0))
            return int(F.gumbel_softmax(logits, hard=True).squeeze(0).argmax().item())

        for step in range(STEPS):
            if step < 50:
                actions = {name: int(plain.random.integers(2)) for name in Team.names}
            elif how == "loop":
                actions = {name: act(name) for name in Team.names}
            else:
                first = act("a")
                second = act("b")
                actions = {"a": first, "b": second, "c": act("c")}
            acted += 3 * (step >= 50)
            observations, *_ = env.step(actions)
            rows.append(observations)
            if step >= 50 and step % 10 == 0:
                batch = [rows[i] for i in plain.random.integers(len(rows), size=8)]
                seen = {n: torch.as_tensor(np.stack([row[n] for row in batch])) for n in Team.names}
                for name in Team.names:
                    chosen = [F.gumbel_softmax(actors[n](seen[n]), hard=True) for n in Team.names]
                    value = critics[name](torch.cat([*seen.values(), *chosen], 1))
                    gradient_step(optimizers[name], -value.mean())
        return acted

    found = count(instrumented, script)
    # That there are several agents shows at their first step.
    assert found["policy_forward"] == 450 - 2 * (how == "lines") and found["expected"] == 450
    assert found["learner_forward"] == 15 * 3 * 4


@pytest.mark.usefixtures("without_env")
@pytest.mark.parametrize("reads", [False, True], ids=["offline", "envs in other processes"])
def test_an_env_that_is_made_and_not_stepped(
    instrumented: Instrumentation, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    """For its spaces, or for an evaluation at the end."""
    monkeypatch.setattr("hotloop.instrument.step_counting._has_unused_env", None)
    env = gymnasium.make("CartPole-v1")

    def script() -> None:
        online, target = network(4, 2), network(4, 2)
        optimizer = torch.optim.Adam(online.parameters())
        for _ in range(60):
            with torch.no_grad():
                goal = target(torch.rand(16, 4)).max(1).values
                if reads:
                    goal.numpy()
            if not reads:
                gradient_step(optimizer, (online(torch.rand(16, 4)).max(1).values - goal).square().mean())

    found = count(instrumented, script)
    env.close()
    if reads:
        assert (found["policy_forward"], found["learner_forward"]) == (59, 1)
    else:
        assert found["learner_forward"] == 120 and "policy_forward" not in found


def test_nothing_stays_replaced(instrumented: Instrumentation) -> None:
    action_flow.reset()
    before = {name: getattr(torch.Tensor, name) for name in action_flow.READS}
    agent = Prioritised()
    count(instrumented, lambda: agent.run(agent.in_numpy, rare))
    action_flow.reset()
    assert {name: getattr(torch.Tensor, name) for name in action_flow.READS} == before
