"""The compiled Petri environment against the rules in plain Python, state by state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hotloop.rl.envs.petri.cluster_tool import cluster_tool
from hotloop.rl.envs.petri.config import PetriConfig
from hotloop.rl.envs.petri.env import PetriVectorEnv
from hotloop.rl.envs.petri.expert import expert_action
from hotloop.rl.envs.petri.rules import PetriRules
from hotloop.testing.conformance import check_vector_env

WAFERS = 3
# How often a row does something at random instead of what the expert does: all of the tool is visited.
NOISE = (0.0, 0.02, 0.1, 0.3, 1.0)


def noisy_expert(env: PetriVectorEnv, infos: dict[str, Any], rng: np.random.Generator) -> NDArray[np.int64]:
    actions = np.zeros(env.num_envs, dtype=np.int64)
    for row in range(env.num_envs):
        mask = infos["action_mask"][row]
        if rng.random() < NOISE[row % len(NOISE)]:
            actions[row] = rng.choice(np.flatnonzero(mask))
        else:
            clock_s = int(infos["clock"][row])
            actions[row] = expert_action(env.net, env.tokens_of(row), clock_s, mask)
    return actions


def same_steps(turbo: bool, steps: int) -> dict[str, int]:
    """Steps of five rows against five twins; how often each ending was seen."""
    net, config = cluster_tool(WAFERS), PetriConfig(time_limit_s=890)
    env = PetriVectorEnv(len(NOISE), net=net, config=config, turbo=turbo)
    twins = [PetriRules(net, config) for _ in NOISE]
    observations, infos = env.reset(seed=0)
    for row, twin in enumerate(twins):
        seen, info = twin.reset()
        assert np.array_equal(observations[row], seen)
        assert all(np.array_equal(infos[name][row], value) for name, value in info.items())
    rng = np.random.default_rng(0)
    endings = {"finished": 0, "scrapped": 0, "truncated": 0}
    for step in range(steps // len(NOISE)):
        actions = noisy_expert(env, infos, rng)
        observations, rewards, terminated, truncated, infos = env.step(actions)
        for row, twin in enumerate(twins):
            if twin.is_over:
                seen, info = twin.reset()
                reward, ends, cut = 0.0, False, False
            else:
                seen, reward, ends, cut, info = twin.step(int(actions[row]))
                endings["finished"] += twin.is_finished
                endings["scrapped"] += twin.scrapped > 0
                endings["truncated"] += cut
            assert np.array_equal(observations[row], seen), (
                step,
                row,
                np.flatnonzero(observations[row] != seen),
            )
            assert (rewards[row], terminated[row], truncated[row]) == (reward, ends, cut), (step, row)
            for name, value in info.items():
                assert np.array_equal(infos[name][row], value), (step, row, name)
    return endings


def test_steps_of_the_tool_agree_with_the_rules() -> None:
    endings = same_steps(turbo=True, steps=20_000)
    assert all(count > 4 for count in endings.values()), endings


@pytest.mark.long
@pytest.mark.parametrize("turbo", [True, False])
def test_many_steps_of_the_tool_agree_with_the_rules(turbo: bool) -> None:
    assert all(same_steps(turbo, steps=200_000).values())


@pytest.mark.parametrize("turbo", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_vector_environment_keeps_to_gymnasiums_rules(turbo: bool) -> None:
    def make(
        num_envs: int, autoreset_mode: str = "NextStep", num_threads: int = 1, copy: bool = True
    ) -> PetriVectorEnv:
        return PetriVectorEnv(
            num_envs, wafers=2, turbo=turbo, autoreset_mode=autoreset_mode, num_threads=num_threads, copy=copy
        )

    report = check_vector_env(
        make,
        make_twin=lambda seed: PetriRules(cluster_tool(2)),
        steps=120 if turbo else 60,
        skip=("different_seeds",),  # nothing in a net is random
    )
    print(report)
    assert "twin" in report.checked
