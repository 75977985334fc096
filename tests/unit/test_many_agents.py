"""Envs with several agents (PettingZoo, RLCard) and envs with `act` instead of `step` (MinAtar)."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from hotloop.instrument.libraries import Instrumentation
from tests.unit import test_instrument_acting as plain
from tests.unit.test_instrument_acting import count, gradient_step, instrumented, network

__all__ = ["instrumented"]
LENGTH, EPISODES = 25, 4


def env_of_two(kind: str) -> Any:
    """The parallel env, or the same as one of turns; its agents live for 25 steps."""
    pettingzoo = pytest.importorskip("pettingzoo")
    utils = pytest.importorskip("pettingzoo.utils")

    class Two(pettingzoo.ParallelEnv):  # type: ignore[misc, name-defined]
        metadata: ClassVar[dict[str, Any]] = {"name": "two", "is_parallelizable": True}
        possible_agents = ("a", "b")
        render_mode = None

        def __init__(self) -> None:
            self.random, self.steps = np.random.default_rng(0), 0

        def observation_space(self, agent: str) -> Any:
            return gymnasium.spaces.Box(0, 1, (4,), np.float32)

        def action_space(self, agent: str) -> Any:
            return gymnasium.spaces.Discrete(3)

        def _seen(self) -> dict[str, Any]:
            return {name: self.random.random(4, dtype=np.float32) for name in self.possible_agents}

        def reset(self, seed: Any = None, options: Any = None) -> Any:
            self.agents, self.steps = list(self.possible_agents), 0
            return self._seen(), {name: {} for name in self.agents}

        def step(self, actions: dict[str, int]) -> Any:
            assert set(actions) == set(self.agents)
            self.steps += 1
            over = dict.fromkeys(self.agents, self.steps == LENGTH)
            rewards = {"a": 1.0, "b": 3.0}
            infos: dict[str, Any] = {name: {} for name in self.agents}
            self.agents = [] if self.steps == LENGTH else self.agents
            return self._seen(), rewards, over, dict.fromkeys(over, False), infos

    if kind == "parallel":
        return Two()
    return utils.wrappers.OrderEnforcingWrapper(utils.conversions.parallel_to_aec(Two()))


def test_parallel_envs_count_a_step_of_all_agents_once(instrumented: Instrumentation) -> None:
    def script() -> int:
        env, acted = env_of_two("parallel"), 0
        nets = {name: network(4, 3) for name in env.possible_agents}
        optimizer = torch.optim.Adam(nets["a"].parameters())
        for _ in range(EPISODES):
            observations, _ = env.reset()
            while env.agents:
                actions = {}
                for name in env.agents:
                    logits = nets[name](torch.from_numpy(observations[name]))
                    actions[name] = int(torch.distributions.Categorical(logits=logits).sample())
                    acted += 1
                observations, *_ = env.step(actions)
            gradient_step(optimizer, nets["a"](torch.rand(16, 4)).mean())
        return acted

    found = count(instrumented, script)
    assert found["env_steps"] == found["env_step"] == EPISODES * LENGTH
    assert found["policy_forward"] == found["expected"] == 2 * EPISODES * LENGTH
    assert found["learner_forward"] == found["updates"] == EPISODES


def test_envs_of_turns_count_the_step_of_each_agent(instrumented: Instrumentation) -> None:
    def script() -> int:
        env, acted = env_of_two("turns"), 0
        nets = {name: network(4, 3) for name in ("a", "b")}
        for _ in range(EPISODES):
            env.reset(seed=1)
            for name in env.agent_iter():
                observation, _, terminated, truncated, _ = env.last()
                action = None
                if not (terminated or truncated):
                    with torch.no_grad():
                        action = int(nets[name](torch.from_numpy(observation)).argmax())
                    acted += 1
                env.step(action)
        return acted

    found = count(instrumented, script)
    # The calls that remove the two agents at the end are no steps.
    assert found["env_steps"] == found["policy_forward"] == found["expected"] == 2 * EPISODES * LENGTH
    assert found["env_step"] == found["env_steps"] + 2 * EPISODES
    assert found["episodes"] == EPISODES and found["return_sum"] == 2 * LENGTH * EPISODES


@pytest.fixture
def importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], ModuleType]]:
    """Writes a package and imports it, as a stand-in for a library."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names: list[str] = []

    def write(name: str, text: str) -> ModuleType:
        *packages, module = name.split(".")
        for depth in range(1, len(packages) + 1):
            folder = tmp_path.joinpath(*packages[:depth])
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").touch()
            names.append(".".join(packages[:depth]))
        tmp_path.joinpath(*packages, module + ".py").write_text(text)
        names.append(name)
        __import__(name)
        return sys.modules[name]

    yield write
    for name in names:
        sys.modules.pop(name, None)


RLCARD = """
import numpy as np
class Env(object):
    moves = 0
    def reset(self):
        self.moves = 0
        return self.state(), 0
    def state(self):
        return {"legal_actions": {0: None, 1: None}, "obs": np.random.rand(4), "raw_obs": {"hand": "SJ"}}
    def step(self, action, raw_action=False):
        self.moves += 1
        return self.state(), self.moves % 2
    def is_over(self):
        return self.moves == 6
    def run(self, is_training=False):
        state, player = self.reset()
        while not self.is_over():
            state, player = self.step(self.agents[player](state, is_training))
"""
TOURNAMENT = "def tournament(env, num):\n    for _ in range(num):\n        env.run(is_training=False)\n"


def test_card_games_count_moves_of_games_with_training(
    instrumented: Instrumentation, importing: Callable[[str, str], ModuleType]
) -> None:
    games = importing("rlcard.envs.env", RLCARD)
    utils = importing("rlcard.utils.utils", TOURNAMENT)

    def script() -> int:
        net, acted = network(4, 2), [0]

        def learns(state: Any, is_training: bool) -> int:
            with torch.no_grad():
                q = net(torch.from_numpy(state["obs"]).float().unsqueeze(0)).numpy()
            acted[0] += is_training
            return int(plain.random.choice(2, p=np.exp(q[0]) / np.exp(q[0]).sum()))

        env = games.Env()
        env.agents = [learns, lambda state, is_training: int(plain.random.integers(2))]
        for game in range(20):
            env.run(is_training=True)
            if game % 5 == 4:
                utils.tournament(env, 3)
        return acted[0]

    found = count(instrumented, script)
    assert (found["env_steps"], found["env_step"]) == (20 * 6, 20 * 6 + 4 * 3 * 6)
    assert found["policy_forward"] == found["expected"] + 4 * 3 * 3  # as in every evaluation region
    assert found["episodes"] == 20


MINATAR = """
import numpy as np
class Environment:
    def __init__(self):
        self.random, self.frames = np.random.RandomState(0), 0
    def act(self, a):
        self.frames += 1
        self.grid = self.random.rand(10, 10, 4) < 0.1
        return float(self.frames % 3 == 0), self.frames % 40 == 0
    def state(self):
        return self.grid
    def reset(self):
        self.grid = np.zeros((10, 10, 4), bool)
"""


def learn_by_act(env: Any, get_state: Callable[[Any], Any]) -> int:
    net = nn.Sequential(nn.Conv2d(4, 2, 3), nn.Flatten(), nn.Linear(128, 6))
    optimizer, acted, seen = torch.optim.Adam(net.parameters()), 0, list[Any]()

    def observe() -> torch.Tensor:
        return torch.tensor(get_state(env)).permute(2, 0, 1).unsqueeze(0).float()

    env.reset()
    state = observe()
    for step in range(120):
        if step < 40 or step % 3 == 0:
            action = torch.tensor([[int(plain.random.integers(6))]])
        else:
            with torch.no_grad():
                action = net(state).max(1)[1].view(1, 1)
            acted += 1
        _, over = env.act(action)
        following = observe()
        seen.append((state, following))
        if step >= 40:
            states, followings = (torch.cat([row[at] for row in seen[-8:]]) for at in (0, 1))
            goal = net(followings).detach().max(1)[0]
            gradient_step(optimizer, (net(states).max(1)[0] - goal).square().mean())
        state = following
        if over:
            env.reset()
            state = observe()
    return acted


def test_minatar_counts_acts(
    instrumented: Instrumentation, importing: Callable[[str, str], ModuleType]
) -> None:
    env = importing("minatar.environment", MINATAR).Environment()
    found = count(instrumented, lambda: learn_by_act(env, lambda env: env.state()))
    assert (found["env_steps"], found["env_step"], found["episodes"]) == (120, 120, 3)
    assert found["return_sum"] == 40
    assert found["policy_forward"] == found["expected"] and found["learner_forward"] == 160


class Grid:
    """As MinAtar's envs, written by hand."""

    def __init__(self) -> None:
        self.frames, self.grid = 0, np.zeros((10, 10, 4), bool)

    def act(self, action: Any) -> tuple[float, bool]:
        self.frames += 1
        self.grid = plain.random.random((10, 10, 4)) < 0.1
        for _ in range(3000):  # shorter steps are not recorded
            pass
        return float(self.frames % 3 == 0), self.frames % 40 == 0

    def get_state(self) -> Any:
        return self.grid

    def reset(self) -> None:
        self.grid = np.zeros((10, 10, 4), bool)


AGENT = """
class Agent:
    def __init__(self):
        self.calls = 0
    def reset(self):
        self.calls = 0
    def act(self, observation):
        self.calls += 1
        return 1, self.calls % 3 == 0  # the action, and whether it was random
    def state(self, layer):
        return layer
class Schedule(Agent):
    def state(self):
        return 0
    def act(self, observation):
        return [1.0], True
"""


def test_plain_envs_with_act_count(
    instrumented: Instrumentation, importing: Callable[[str, str], ModuleType]
) -> None:
    source = "from tests.unit.test_many_agents import np, plain, Any\n" + textwrap.dedent(
        inspect.getsource(Grid)
    )
    env = importing("grid_by_hand", source).Grid()
    found = count(instrumented, lambda: learn_by_act(env, lambda env: env.get_state()))
    assert (found["env_steps"], found["episodes"], found["return_sum"]) == (120, 3, 40)
    assert found["env_step"] >= 110  # the first are looked at
    assert found["policy_forward"] == found["expected"] and found["learner_forward"] == 160


def test_agents_that_act_are_no_envs(
    instrumented: Instrumentation, importing: Callable[[str, str], ModuleType]
) -> None:
    module = importing("agents_by_hand", AGENT)

    def script() -> None:
        for agent in (module.Agent(), module.Schedule()):
            for _ in range(20):
                agent.act(0)

    found = count(instrumented, script)
    assert not found["env_steps"] and "env_step" not in found
