"""The plain Petri path, numpy and dense matrices, against the compiled one."""

from __future__ import annotations

import numpy as np
import pytest

from hotloop.rl.envs.petri.cluster_tool import cluster_tool
from hotloop.rl.envs.petri.config import PetriConfig
from hotloop.rl.envs.petri.env import PetriVectorEnv
from tests.oracle.test_petri_twins import NOISE, noisy_expert


@pytest.mark.parametrize("steps", [8_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_steps_of_the_tool_agree_with_the_compiled_path(steps: int) -> None:
    net, config = cluster_tool(3), PetriConfig(time_limit_s=890)
    rows = 4 * len(NOISE)
    plain, turbo = (
        PetriVectorEnv(rows, net=net, config=config, turbo=turbo, autoreset_mode="SameStep", copy=False)
        for turbo in (False, True)
    )
    for env in (plain, turbo):
        _, infos = env.reset(seed=0)
    rng = np.random.default_rng(1)
    for step in range(steps // rows):
        actions = noisy_expert(turbo, infos, rng)
        *expected, infos = turbo.step(actions)
        *seen, plain_infos = plain.step(actions)
        for what, one, other in zip(("seen", "reward", "ends", "cut"), seen, expected, strict=True):
            assert np.array_equal(one, other), (step, what)
        assert plain_infos.keys() == infos.keys()
        ended = infos.pop("_final_obs", np.zeros(rows, dtype=np.bool_))
        for name, values in infos.items():
            if name == "final_info":
                for key, finals in values.items():
                    assert np.array_equal(finals[ended], plain_infos[name][key][ended]), (step, key)
            elif name == "final_obs":
                assert np.array_equal(values[ended], plain_infos[name][ended])
            else:
                assert np.array_equal(values, plain_infos[name]), (step, name)
