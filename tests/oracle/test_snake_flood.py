"""Every flood fill agrees with the plain rules: Python, cached, every k-th step, compiled."""

from __future__ import annotations

import pytest
from gymnasium.vector import AutoresetMode

from hotloop.rl.envs.snake import flood
from tests.oracle.test_snake_twin import NEXT_STEP, SAME_STEP, follow


@pytest.mark.parametrize("steps", [30_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_steps_agree_in_every_way_to_flood(steps: int) -> None:
    pairs = follow(steps, ["compiled", "cached", "python"], rows=100, size=4)
    assert pairs.longest >= 12
    follow(5_000, ["compiled"], size=7)


@pytest.mark.parametrize("steps", [10_000, pytest.param(50_000, marks=pytest.mark.long)])
def test_steps_agree_when_the_flood_is_every_kth_step(steps: int) -> None:
    both = ["every_k", "every_k_compiled"]
    follow(steps, both, size=6, max_episode_steps=90)
    follow(steps, both, size=4, max_episode_steps=90, mode=NEXT_STEP, tail_blocks=True)


@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP])
@pytest.mark.parametrize("tail_blocks", [False, True])
def test_both_tail_rules_agree_on_the_default_board(tail_blocks: bool, mode: AutoresetMode) -> None:
    follow(1_500, ["compiled", "cached"], rows=15, tail_blocks=tail_blocks, mode=mode)


def test_a_step_in_parts_gives_the_same() -> None:
    for observation in ("planes5", "grid"):
        follow(4_000, ["off"], size=5, observation=observation, split_regions=True)
    for mode in (SAME_STEP, NEXT_STEP):
        follow(2_000, ["compiled"], size=5, split_regions=True, mode=mode)


def test_a_full_memory_starts_over_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flood, "_REMEMBERED", 7)
    pairs = follow(2_000, ["cached"], rows=20, size=5)
    known = pairs.envs[0]._row_flood._known
    assert known is not None
    assert 1 <= len(known) <= 7
