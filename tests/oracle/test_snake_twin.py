"""Snake compiled against Snake in plain Python: every observation, reward, flag and info, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.rl.envs.snake.config import SnakeConfig
from hotloop.rl.envs.snake.env import SnakeVectorEnv
from hotloop.rl.envs.snake.rules import SnakeRules, next_cell

SAME_STEP, NEXT_STEP = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP


def choose(twin: SnakeRules, rng: np.random.Generator) -> int:
    """Now and then any action, else one that lives and goes to the food: snakes grow and get tangled."""
    count = twin.config.action_count
    if rng.random() < 0.2:
        return int(rng.integers(count))
    best, best_distance = 0, 1000
    for action in range(count):
        direction = action if count == 4 else (twin.heading + (0, 3, 1)[action]) % 4
        cell = next_cell(twin.body[0], direction)
        if not twin.blocks(cell):
            food = twin.food or cell
            distance = abs(cell[0] - food[0]) + abs(cell[1] - food[1])
            if distance < best_distance:
                best, best_distance = action, distance
    return best


class Pairs:
    """Batches with the same seed, and one twin for each of their rows."""

    def __init__(self, envs: list[SnakeVectorEnv], config: SnakeConfig, seed: int):
        self.envs, self.mode = envs, envs[0].autoreset_mode
        self.rng = np.random.default_rng(seed)
        self.twins = [SnakeRules(config, seed + row) for row in range(envs[0].num_envs)]
        self.over = [False] * len(self.twins)
        self.longest = 0
        seen = [env.reset(seed=seed) for env in envs]
        expected = [twin.reset() for twin in self.twins]
        for observations, infos in seen:
            same(observations, [observation for observation, _ in expected])
            same_lengths(infos, [info for _, info in expected])

    def step(self) -> None:
        """One step of every batch and every twin, which must agree."""
        actions = [choose(twin, self.rng) for twin in self.twins]
        results = [env.step(np.array(actions)) for env in self.envs]
        expected, finals = [], {}
        for row, twin in enumerate(self.twins):
            if self.over[row]:
                observation, info = twin.reset()
                reward, terminated, truncated, self.over[row] = 0.0, False, False, False
            else:
                observation, reward, terminated, truncated, info = twin.step(actions[row])
                self.longest = max(self.longest, info["length"])
                if (terminated or truncated) and self.mode == SAME_STEP:
                    finals[row] = observation, info
                    observation, info = twin.reset()
                self.over[row] = (terminated or truncated) and self.mode == NEXT_STEP
            expected.append((observation, reward, terminated, truncated, info))
        columns = list(zip(*expected, strict=True))
        for *arrays, infos in results:
            same(arrays[0], columns[0])
            for array, column in zip(arrays[1:], columns[1:4], strict=True):
                assert array.tolist() == list(column)
            same_lengths(infos, columns[4])
            assert np.flatnonzero(infos.get("_final_obs", [])).tolist() == list(finals)
            for row, (observation, info) in finals.items():
                same(infos["final_obs"][row], observation)
                assert infos["final_info"]["_length"][row]
                assert infos["final_info"]["length"][row] == info["length"]


def same(seen: Any, expected: Any) -> None:
    assert seen.dtype == expected[0].dtype
    assert np.array_equal(seen, expected), f"{seen}\n{expected}"


def same_lengths(infos: Any, expected: Any) -> None:
    assert infos["length"].tolist() == [info["length"] for info in expected]
    assert infos["_length"].all()


def follow(steps: int, modes: list[str], rows: int = 40, seed: int = 0, **given: Any) -> Pairs:
    """Step batches with these flood fills side by side with one set of twins."""
    mode, split = given.pop("mode", SAME_STEP), given.pop("split_regions", False)
    twin_mode: Any = "python" if "python" in modes or "compiled" in modes else modes[0]
    pairs = Pairs(
        [
            SnakeVectorEnv(rows, flood_fill=one, autoreset_mode=mode, split_regions=split, **given)
            for one in modes
        ],
        SnakeConfig(flood_fill=twin_mode, **given),
        seed,
    )
    for _ in range(steps // rows):
        pairs.step()
    return pairs


@pytest.mark.parametrize("observation", ["features", "planes", "planes5", "grid"])
@pytest.mark.parametrize("steps", [20_000, pytest.param(50_000, marks=pytest.mark.long)])
def test_steps_agree_in_every_observation(observation: str, steps: int) -> None:
    pairs = follow(steps, ["off"], observation=observation, size=6, distance_shaping=0.25)
    assert pairs.longest >= 15
    follow(steps, ["off"], observation=observation, mode=NEXT_STEP, actions="absolute", max_episode_steps=50)


@given(
    size=st.integers(4, 13),
    seed=st.integers(0, 2**40),
    rows=st.integers(1, 5),
    actions=st.sampled_from(["relative", "absolute"]),
    observation=st.sampled_from(["features", "planes", "planes5", "grid"]),
    flood=st.sampled_from(["off", "compiled", "cached", "every_k", "every_k_compiled"]),
    mode=st.sampled_from([SAME_STEP, NEXT_STEP]),
    tail_blocks=st.booleans(),
    limit=st.integers(1, 60),
    shaping=st.floats(-1, 1),
    every=st.integers(1, 5),
)
@settings(max_examples=40, derandomize=True, deadline=None)
def test_any_settings_agree(
    size: int,
    seed: int,
    rows: int,
    actions: str,
    observation: str,
    flood: str,
    mode: AutoresetMode,
    tail_blocks: bool,
    limit: int,
    shaping: float,
    every: int,
) -> None:
    follow(
        60 * rows,
        [flood if observation == "features" else "off"],
        rows=rows,
        seed=seed,
        size=size,
        actions=actions,
        observation=observation,
        mode=mode,
        tail_blocks=tail_blocks,
        max_episode_steps=limit,
        distance_shaping=shaping,
        flood_every=every,
    )


def test_the_largest_board_agrees() -> None:
    """64 columns: a row of the board fills its word."""
    follow(60, ["compiled"], rows=2, size=64)
    for observation in ("grid", "planes5"):
        follow(200, ["off"], rows=2, size=64, observation=observation)


@pytest.mark.long
@pytest.mark.parametrize("size", [4, 7, 10])
def test_a_million_steps_agree(size: int) -> None:
    for observation in ("features", "planes", "planes5", "grid"):
        follow(250_000, ["off"], size=size, observation=observation, seed=7)
    follow(30_000, ["compiled", "cached", "python"], size=size, seed=7)
    follow(30_000, ["every_k"], size=size, seed=7, tail_blocks=True)
