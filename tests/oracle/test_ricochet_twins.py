"""Ricochet compiled against Ricochet in plain Python: steps, boards, solutions, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.rl.envs.ricochet import board
from hotloop.rl.envs.ricochet.config import RicochetConfig
from hotloop.rl.envs.ricochet.env import RicochetVectorEnv
from hotloop.rl.envs.ricochet.generator import draw_position, generate
from hotloop.rl.envs.ricochet.rules import Ricochet
from hotloop.rl.envs.ricochet.solver import solve, solve_plainly

SAME_STEP, NEXT_STEP = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP
MODES = ("symbolic", "image")


class Pairs:
    """A batch for each observation mode, all with the same seed, and one twin for each row."""

    def __init__(self, rows: int, seed: int, mode: AutoresetMode, **setup: Any):
        self.mode = mode
        self.envs = {
            name: RicochetVectorEnv(rows, obs_mode=name, autoreset_mode=mode, **setup) for name in MODES
        }
        config = RicochetConfig(obs_mode="symbolic", **setup)
        self.twins = [Ricochet(config, seed + row) for row in range(rows)]
        self.over = [False] * rows
        self.rng = np.random.default_rng(seed)
        self.ended = [0, 0]
        expected = [self.views(twin, twin.reset()[0]) for twin in self.twins]
        for name, env in self.envs.items():
            observations, infos = env.reset(seed=seed)
            for row, twin in enumerate(self.twins):
                self.same(observations[row], expected[row][name])
                assert infos["optimal_moves"][row] == twin.optimal_moves

    @staticmethod
    def views(twin: Ricochet, observation: Any) -> dict[str, Any]:
        assert twin.position is not None
        return {"symbolic": observation, "image": board.image(twin.position)}

    @staticmethod
    def same(seen: Any, expected: Any) -> None:
        assert seen.dtype == expected.dtype
        assert np.array_equal(seen, expected)

    def step(self) -> None:
        actions = self.rng.integers(self.twins[0].config.actions, size=len(self.twins))
        results = {name: env.step(actions) for name, env in self.envs.items()}
        for row, twin in enumerate(self.twins):
            reward, terminated, truncated, final = 0.0, False, False, None
            if self.over[row]:
                observation, info = twin.reset()
                self.over[row] = False
            else:
                observation, reward, terminated, truncated, info = twin.step(int(actions[row]))
                self.ended[0] += terminated
                self.ended[1] += truncated
                if terminated or truncated:
                    if self.mode == SAME_STEP:
                        final = self.views(twin, observation), info
                        observation, info = twin.reset()
                    else:
                        self.over[row] = True
            expected = self.views(twin, observation)
            for name, (observations, rewards, terminations, truncations, infos) in results.items():
                self.same(observations[row], expected[name])
                assert rewards[row] == reward
                assert (terminations[row], truncations[row]) == (terminated, truncated)
                assert infos["optimal_moves"][row] == info["optimal_moves"]
                if final is not None:
                    assert infos["_final_obs"][row]
                    self.same(infos["final_obs"][row], final[0][name])
                    assert infos["final_info"]["optimal_moves"][row] == final[1]["optimal_moves"]


@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP])
@pytest.mark.parametrize("steps", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_steps_are_the_same_in_both_autoreset_modes(mode: AutoresetMode, steps: int) -> None:
    pairs = Pairs(50, 7, mode, robots=2, max_solution_moves=2, noop=True)
    for _ in range(steps):
        pairs.step()
    assert min(pairs.ended) > 20


@given(
    size=st.integers(7, 16),
    robots=st.integers(1, 5),
    moves=st.integers(1, 3),
    limit=st.integers(1, 60),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=8, deadline=None, derandomize=True)
def test_any_size_and_seed_agree(size: int, robots: int, moves: int, limit: int, seed: int) -> None:
    setup: dict[str, Any] = {
        "board_size": size,
        "robots": robots,
        "max_solution_moves": moves,
        "max_episode_steps": limit,
    }
    pairs = Pairs(3, seed, SAME_STEP, step_reward=-0.25, goal_reward=3.5, **setup)
    for _ in range(40):
        pairs.step()


@pytest.mark.parametrize("lookahead", [1, 2])
@pytest.mark.parametrize(("size", "robots"), [(7, 1), (8, 4), pytest.param(16, 5, marks=pytest.mark.long)])
def test_looking_ahead_sees_the_same(lookahead: int, size: int, robots: int) -> None:
    setup: dict[str, Any] = {
        "board_size": size,
        "robots": robots,
        "max_solution_moves": 2,
        "max_episode_steps": 9,
    }
    config = RicochetConfig(obs_mode="symbolic", lookahead=lookahead, **setup)
    envs = RicochetVectorEnv(8, obs_mode="symbolic", lookahead=lookahead, autoreset_mode=SAME_STEP, **setup)
    twins = [Ricochet(config, 5 + row) for row in range(8)]
    seen, rng = envs.reset(seed=5)[0], np.random.default_rng(size)
    ended = 0
    expected = [twin.reset()[0] for twin in twins]
    for _ in range(30):
        assert np.array_equal(seen, np.stack(expected))
        actions = rng.integers(config.actions, size=8)
        seen, _, _, _, infos = envs.step(actions)
        for row, twin in enumerate(twins):
            expected[row], _, terminated, truncated, _ = twin.step(int(actions[row]))
            if terminated or truncated:
                ended += 1
                assert np.array_equal(infos["final_obs"][row], expected[row])
                expected[row] = twin.reset()[0]
    assert ended > 20


@pytest.mark.long
@pytest.mark.parametrize("size", [8, 11, 16])
def test_a_million_steps_are_the_same(size: int) -> None:
    pairs = Pairs(100, size, SAME_STEP, board_size=size, robots=4, max_solution_moves=3)
    for _ in range(3400):
        pairs.step()


@given(st.integers(7, 16), st.integers(1, 3), st.integers(1, 4), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_both_generators_draw_the_same_boards(size: int, robots: int, moves: int, seed: int) -> None:
    setup: dict[str, Any] = {
        "board_size": size,
        "robots": robots,
        "max_solution_moves": moves,
        "obs_mode": "symbolic",
    }
    env, rng = RicochetVectorEnv(1, **setup), np.random.default_rng(seed)
    for first_seed in (seed, None):  # the second board shows that both streams went on to the same place
        _, infos = env.reset(seed=first_seed)
        assert (env.position(0), infos["optimal_moves"][0]) == generate(rng, RicochetConfig(**setup))


@given(
    size=st.integers(7, 16),
    robots=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    must_turn=st.booleans(),
    limit=st.integers(0, 5),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_both_solvers_find_the_same_solution(
    size: int, robots: int, seed: int, must_turn: bool, limit: int
) -> None:
    config = RicochetConfig(board_size=size, robots=robots)
    position = draw_position(np.random.default_rng(seed), config)
    if position is not None:
        found = solve(position, limit, must_turn=must_turn)
        assert found == solve_plainly(position, limit, must_turn=must_turn)


def test_both_solvers_agree_when_there_is_no_solution_at_all() -> None:
    unsolvable = 0
    for seed in range(40):
        position = draw_position(np.random.default_rng(seed), RicochetConfig(board_size=7, robots=1))
        assert position is not None
        found = solve(position)
        assert found == solve_plainly(position)
        unsolvable += found is None
    assert 0 < unsolvable < 40


@pytest.mark.long
def test_both_solvers_agree_on_deep_boards() -> None:
    for seed in range(30):
        config = RicochetConfig(board_size=8 + seed % 9, robots=4)
        position = draw_position(np.random.default_rng(seed), config)
        if position is not None:
            assert solve(position, 8) == solve_plainly(position, 8)
