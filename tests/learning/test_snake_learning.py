"""Learning Snake with fixed seeds: length of the snakes after a number of env steps, without exploring."""

from __future__ import annotations

import pytest

from hotloop.rl.workloads.snake import Snake, check_learning, fast_twin

STEPS = 25_600  # 100 of 256 games
WANTED = 15.0  # cells, on 10 x 10


@pytest.mark.parametrize("config", [Snake(variant="fewer"), Snake(variant="fewer", flood_fill="off")])
def test_snakes_get_15_cells_long_with_few_gradient_steps(config: Snake) -> None:
    played = check_learning(config, STEPS)
    assert played.trained_steps == STEPS and played.mean_length >= WANTED, str(played)


def test_without_gradient_steps_nothing_is_learned() -> None:
    played = check_learning(Snake(gradient_steps=0), 2_560)
    assert played.updates == 0 and played.mean_length < 5, str(played)


def test_the_twin_keeps_what_decides_learning() -> None:
    config = Snake(variant="original", gradient_steps=4, flood_fill="every_k", seed=3, n_envs=32)
    twin = fast_twin(config, STEPS)
    assert twin.settings.learner == "fused" and twin.settings.push == "batch"
    assert twin.gradient_steps == 4 and twin.settings.flood_fill == "every_k_compiled"
    assert (twin.seed, twin.n_envs, twin.total_timesteps) == (3, 32, STEPS)
    assert fast_twin(Snake(variant="original"), STEPS).settings.flood_fill == "compiled"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("variant", ["fast", "fewer"])
def test_snakes_get_15_cells_long_with_any_seed(seed: int, variant: str) -> None:
    played = check_learning(Snake(variant=variant, seed=seed), STEPS)  # type: ignore[arg-type]
    assert played.mean_length >= WANTED, str(played)
