"""CartPole against its rules in plain Python and against Gymnasium's own, to the last bit."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import hotloop.rl.envs
from hotloop._util.errors import HotloopError
from hotloop.rl.envs.cartpole import kernels
from hotloop.rl.envs.cartpole.env import CartPoleEnv, CartPoleVectorEnv
from hotloop.rl.envs.cartpole.render import HEIGHT, WIDTH
from hotloop.rl.envs.cartpole.rules import CartPoleRules
from hotloop.testing.conformance import check_vector_env
from hotloop.testing.trajectories import same

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]


def balancing(observations: Any, rng: np.random.Generator, share: float) -> Any:
    """Actions that keep the pole up for hundreds of steps, a share of them random."""
    good = (3 * observations[:, 2] + observations[:, 3] + 0.05 * observations[:, 1] > 0).astype(np.int64)
    return np.where(rng.random(len(good)) < share, rng.integers(0, 2, len(good)), good)


def follow(rules: list[CartPoleRules], env: CartPoleVectorEnv, seed: int, steps: int, share: float) -> int:
    """Step the batch and the rules side by side; the number of episodes that ended."""
    rng = np.random.default_rng(seed)
    observations, _ = env.reset(seed=seed)
    for row, one in enumerate(rules):
        one.rng = np.random.default_rng(seed + row)
        assert observations[row].tolist() == one.reset()[0].tolist()
    over, ends = [False] * len(rules), 0
    for _ in range(steps):
        actions = balancing(observations, rng, share)
        observations, rewards, terminated, truncated, infos = env.step(actions)
        for row, one in enumerate(rules):
            if over[row]:
                expected = (one.reset()[0], 0.0, False, False)
                over[row] = False
            else:
                expected = one.step(actions[row])[:4]
                over[row] = expected[2] or expected[3]
                ends += over[row]
                if over[row] and env.autoreset_mode == AutoresetMode.SAME_STEP:
                    assert infos["final_obs"][row].tolist() == expected[0].tolist()
                    expected, over[row] = (one.reset()[0], *expected[1:]), False
            assert observations[row].tolist() == expected[0].tolist()
            assert (rewards[row], terminated[row], truncated[row]) == expected[1:]
    return ends


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    num_envs=st.integers(1, 9),
    seed=st.integers(0, 2**40),
    limit=st.sampled_from([1, 7, 500]),
    sutton_barto=st.booleans(),
)
def test_every_row_follows_the_rules(
    mode: AutoresetMode, num_envs: int, seed: int, limit: int, sutton_barto: bool
) -> None:
    options: dict[str, Any] = {"max_episode_steps": limit, "sutton_barto_reward": sutton_barto}
    rules = [CartPoleRules(np.random.default_rng(0), **options) for _ in range(num_envs)]
    env = CartPoleVectorEnv(num_envs, autoreset_mode=mode, **options)
    ends = follow(rules, env, seed, 12_000 // num_envs, share=0.5)
    assert ends > 10


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sutton_barto", [False, True])
def test_every_row_is_gymnasiums_cartpole(mode: AutoresetMode, sutton_barto: bool) -> None:
    """50,000 steps each: random pushes for short episodes, then balancing up to the limit of 500."""
    compare_with_gymnasium(mode, sutton_barto, num_envs=25, steps=2_000)


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_every_row_is_gymnasiums_cartpole_for_a_million_steps(mode: AutoresetMode) -> None:
    compare_with_gymnasium(mode, False, num_envs=50, steps=20_000)


def compare_with_gymnasium(mode: AutoresetMode, sutton_barto: bool, num_envs: int, steps: int) -> None:
    ours = CartPoleVectorEnv(num_envs, autoreset_mode=mode, sutton_barto_reward=sutton_barto)
    make = [lambda: gymnasium.make("CartPole-v1", sutton_barto_reward=sutton_barto)] * num_envs
    theirs = SyncVectorEnv(make, autoreset_mode=mode)
    rng = np.random.default_rng(1)
    assert same(ours.reset(seed=123), theirs.reset(seed=123))
    observations = ours.observations
    counts = {"terminated": 0, "truncated": 0}
    for step in range(steps):
        actions = balancing(observations, rng, share=1.0 if step < steps // 4 else 0.1)
        one, other = ours.step(actions), theirs.step(actions)
        assert same(one, other), step
        observations = one[0]
        counts["terminated"] += int(one[2].sum())
        counts["truncated"] += int(one[3].sum())
    assert counts["terminated"] > num_envs
    assert counts["truncated"] > num_envs
    theirs.close()


def test_the_rules_are_gymnasiums_too() -> None:
    theirs, ours = gymnasium.make("CartPole-v1"), CartPoleRules(np.random.default_rng(8))
    assert same(theirs.reset(seed=8), ours.reset())
    rng = np.random.default_rng(0)
    for _ in range(5_000):
        action = int(rng.integers(0, 2))
        one, other = theirs.step(action), ours.step(action)
        assert same(one, other)
        if one[2] or one[3]:
            assert same(theirs.reset(), ours.reset())


def test_the_compilers_sine_and_cosine_are_numpys() -> None:
    """Why the numbers can agree to the last bit at all: one mathematical library behind both."""
    angles = np.random.default_rng(0).uniform(-0.5, 0.5, 100_000)
    state = np.zeros((kernels.COLUMNS, angles.size))
    state[kernels.ANGLE] = angles
    kernels.push(state, np.zeros(angles.size, dtype=np.int64), 0, angles.size)
    assert (state[kernels.SINE] == np.sin(angles)).all()
    assert (state[kernels.COSINE] == np.cos(angles)).all()
    assert state[kernels.SINE, 0] == math.sin(angles[0])


def test_reset_bounds_are_gymnasiums() -> None:
    options = {"low": -0.2, "high": 0.1}
    ours, theirs = CartPoleVectorEnv(3), SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3)
    assert same(ours.reset(seed=1, options=options)[0], theirs.reset(seed=1, options=options)[0])
    assert same(ours.reset()[0], theirs.reset()[0])  # the usual bounds again
    for wrong in ({"low": 1.0}, {"low": "a"}, {"high": np.nan}):
        with pytest.raises(HotloopError, match="are invalid; pass two numbers"):
            ours.reset(options=wrong)
    assert same(ours.reset()[0], theirs.reset()[0])
    theirs.close()


def test_it_conforms() -> None:
    report = check_vector_env(
        CartPoleVectorEnv, make_twin=lambda seed: CartPoleRules(np.random.default_rng(seed)), steps=120
    )
    assert set(report.not_checked) == {"time_limit"}  # random play never lasts 500 steps


def test_another_batch_size_or_mode_compiles_nothing() -> None:
    def compiled() -> tuple[int, int]:
        return len(kernels.step_batch.signatures), len(kernels.reset_rows.signatures)  # type: ignore[attr-defined]

    def steps(num_envs: int, mode: str) -> None:
        env = CartPoleVectorEnv(num_envs, autoreset_mode=mode, sutton_barto_reward=num_envs == 5)
        env.reset(seed=0)
        env.step(np.zeros(num_envs, dtype=np.int64))

    steps(2, "NextStep")
    before = compiled()  # fused rollouts may have compiled a signature of their own
    for num_envs, mode in ((1, "NextStep"), (5, "SameStep"), (64, "Disabled")):
        steps(num_envs, mode)
    assert compiled() == before


def test_a_copy_of_the_environment_steps_its_own_arrays() -> None:
    env = CartPoleVectorEnv(4)
    env.reset(seed=0)
    for copied in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        before = env.state.copy()
        copied.step(np.ones(4, dtype=np.int64))
        assert (env.state == before).all()
        assert (copied.state != before).any()


def test_bad_actions_change_nothing() -> None:
    env, other = CartPoleVectorEnv(3), CartPoleVectorEnv(3)
    env.reset(seed=0)
    other.reset(seed=0)
    for wrong in ([0, 1, 2], [0, -1, 0], [4, 1, 1]):
        with pytest.raises(HotloopError, match="is not in Discrete"):
            env.step(wrong)
    assert same(env.step([0, 1, 0]), other.step([0, 1, 0]))
    with pytest.raises(HotloopError, match="max_episode_steps=0"):
        CartPoleVectorEnv(3, max_episode_steps=0)


def test_checkers_of_gymnasium_and_stable_baselines3_pass() -> None:
    from stable_baselines3.common.env_checker import check_env as check_for_sb3

    check_env(CartPoleEnv(render_mode="rgb_array"), skip_render_check=True)
    check_for_sb3(CartPoleEnv(render_mode="rgb_array"))


def test_it_runs_in_the_worker_processes_of_others() -> None:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    rng = np.random.default_rng(0)
    ours, theirs = CartPoleVectorEnv(2), AsyncVectorEnv([CartPoleEnv] * 2)
    assert same(ours.reset(seed=3), theirs.reset(seed=3))
    for _ in range(60):
        actions = rng.integers(0, 2, 2)
        assert same(ours.step(actions), theirs.step(actions))
    theirs.close()
    workers = SubprocVecEnv([CartPoleEnv] * 2, start_method="fork")
    workers.seed(3)
    assert same(workers.reset(), ours.reset(seed=3)[0])
    assert same(workers.step(np.array([0, 1]))[0], ours.step(np.array([0, 1]))[0])
    workers.close()


def test_it_is_made_by_name() -> None:
    assert "hotloop/CartPole-v0" in gymnasium.registry
    hotloop.rl.envs.register_envs()  # again: no warning, nothing changed
    one = gymnasium.make("hotloop/CartPole-v0", sutton_barto_reward=True)
    assert isinstance(one.unwrapped, CartPoleEnv)
    many = gymnasium.make_vec("hotloop/CartPole-v0", num_envs=5, autoreset_mode="SameStep")
    assert isinstance(many.unwrapped, CartPoleVectorEnv)
    assert many.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    one.close()
    many.close()


def test_pictures() -> None:
    env = CartPoleVectorEnv(2, render_mode="rgb_array")
    env.reset(seed=0)
    env.state[kernels.POSITION] = (-1.0, 1.0)
    left, right = env.render() or ()
    assert left.shape == (HEIGHT, WIDTH, 3)
    assert left.dtype == np.uint8
    changed = np.abs(left.astype(int) - right).sum(axis=(0, 2))
    assert changed[: WIDTH // 2].any()  # a cart on the left in one, on the right in the other
    assert changed[WIDTH // 2 :].any()
    assert CartPoleVectorEnv(1).render() is None
