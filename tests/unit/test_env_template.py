"""The environment to copy conforms, agrees with its rules, and stays small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotloop.rl.envs import template
from hotloop.rl.envs.template import HEIGHT, MOST_STEPS, CatchRules, CatchVectorEnv
from hotloop.testing.conformance import check_vector_env


def make(num_envs: int, *, autoreset_mode: Any = "NextStep", copy: bool = True, num_threads: int = 1) -> Any:
    return CatchVectorEnv(num_envs, autoreset_mode=autoreset_mode, copy=copy, num_threads=num_threads)


def nearly_perfect(env: Any, infos: dict[str, Any], rng: np.random.Generator) -> Any:
    """Follow the ball, and fumble now and then: games of all lengths, up to the limit."""
    towards = np.sign(env.observations[:, 1] - env.observations[:, 0]).astype(np.int64) + 1
    return np.where(rng.random(env.num_envs) < 0.08, rng.integers(0, 3, env.num_envs), towards)


def test_it_conforms_with_its_twin() -> None:
    report = check_vector_env(
        make,
        make_twin=CatchRules,
        steps=250,
        num_envs=3,
        choose=nearly_perfect,
        max_episode_steps=MOST_STEPS,
    )
    assert not report.not_checked


def test_it_follows_the_rules_for_a_hundred_thousand_steps() -> None:
    env = CatchVectorEnv(50)
    twins = [CatchRules(9 + row) for row in range(50)]
    observations, _ = env.reset(seed=9)
    assert (observations == [twin.reset()[0] for twin in twins]).all()
    rng, over, ends = np.random.default_rng(0), np.zeros(50, dtype=bool), np.zeros(2, dtype=int)
    for _ in range(2_000):
        actions = nearly_perfect(env, {}, rng)
        expected = [
            (*twin.reset(), False, False) if reset else twin.step(action)
            for twin, action, reset in zip(twins, actions, over, strict=True)
        ]
        observations, rewards, terminated, truncated, _ = env.step(actions)
        assert (observations == [one[0] for one in expected]).all()
        assert rewards.tolist() == [
            0.0 if reset else one[1] for one, reset in zip(expected, over, strict=True)
        ]
        assert terminated.tolist() == [one[2] for one in expected]
        assert truncated.tolist() == [one[3] for one in expected]
        over = terminated | truncated
        ends += (terminated.sum(), truncated.sum())
    assert (ends > 50).all()


def test_following_the_ball_catches_it_until_time_is_up() -> None:
    game = CatchRules(0)
    (paddle, column, _), _ = game.reset()
    rewards = []
    for _ in range(MOST_STEPS):
        (paddle, column, _), reward, terminated, truncated, _ = game.step(1 + int(np.sign(column - paddle)))
        rewards.append(reward)
    assert sum(rewards) == MOST_STEPS // HEIGHT
    assert (terminated, truncated) == (False, True)


def test_another_batch_size_compiles_nothing() -> None:
    for num_envs in (1, 3, 64):
        env = CatchVectorEnv(num_envs, autoreset_mode="SameStep")
        env.reset(seed=0)
        env.step(np.ones(num_envs, dtype=np.int64))
    assert len(template.step_rows.signatures) == 1  # type: ignore[attr-defined]


@pytest.mark.long
def test_a_copy_of_the_template_works_and_reports_compilation(tmp_path: Path) -> None:
    source = Path(template.__file__).read_text()
    assert len(source.splitlines()) < 180
    (tmp_path / "my_env.py").write_text(
        source.replace("WIDTH, HEIGHT, MOST_STEPS = 7, 10, 200", "WIDTH, HEIGHT, MOST_STEPS = 5, 4, 50")
    )
    program = (
        "import my_env; env = my_env.CatchVectorEnv(3); env.reset(seed=0); print(env.step([1] * 3)[0][:, 2])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[3. 3. 3.]"
    assert "hotloop: compiling my_env.step_rows for its first use ..." in done.stderr
    again = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert again.stdout == done.stdout
    assert again.stderr == ""
