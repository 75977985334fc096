"""Snake is learnt with fixed seeds: how long the snakes get, after so many env steps, without exploring."""

from __future__ import annotations

import pytest

from hotloop.rl.workloads.snake import Snake
from hotloop.rl.workloads.snake_play import fast_twin, learn_and_play

STEPS = 25_600  # 100 of 256 games
WANTED = 15.0  # cells, on 10 x 10


@pytest.mark.parametrize("config", [Snake(variant="fewer"), Snake(variant="fewer", flood_fill="off")])
def test_snakes_get_15_cells_long_with_few_updates(config: Snake) -> None:
    played = learn_and_play(config, STEPS)
    assert played.trained_steps == STEPS and played.mean_length >= WANTED, played.says


def test_without_training_nothing_is_learnt() -> None:
    played = learn_and_play(Snake(training="skipped"), 2_560)
    assert played.updates == 0 and played.mean_length < 5, played.says


def test_the_twin_keeps_what_learning_hangs_on() -> None:
    config = Snake(variant="original", updates="4", flood_fill="every_k", seed=3, envs=32)
    twin = fast_twin(config, STEPS)
    assert twin.switches.learner == "fused" and twin.switches.push == "batch"
    assert twin.switches.updates == "4" and twin.switches.flood_fill == "every_k_compiled"
    assert (twin.seed, twin.envs, twin.steps) == (3, 32, STEPS)
    assert fast_twin(Snake(variant="original"), STEPS).switches.flood_fill == "compiled"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("variant", ["fast", "fewer"])
def test_snakes_get_15_cells_long_with_any_seed(seed: int, variant: str) -> None:
    played = learn_and_play(Snake(variant=variant, seed=seed), STEPS)  # type: ignore[arg-type]
    assert played.mean_length >= WANTED, played.says
