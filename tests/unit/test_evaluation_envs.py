"""Which envs are there to see how good a policy is: told by the names that the user's code has for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from hotloop.instrument import step_counting


class Env:
    pass


def ignored(env: Env) -> bool:
    """Whether a step of an env in the function that calls this does not count."""
    return step_counting.is_evaluation(env, sys._getframe(1))


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(step_counting, "trains", False)
    for known in ("_named", "_evaluating", "_training"):
        monkeypatch.setattr(step_counting, known, type(getattr(step_counting, known))())
    yield


def train() -> None:
    env = Env()
    assert not ignored(env)


class Agent:
    def __init__(self, env: Env) -> None:
        self.valEnv = env

    def average(self) -> bool:
        return ignored(self.valEnv)


def play(env: Env) -> bool:
    return ignored(env)


def test_an_env_called_after_evaluation_is_none_of_training() -> None:
    train()
    eval_env, env_test = Env(), Env()
    assert ignored(eval_env) and ignored(env_test)


def test_the_caller_or_the_agent_may_have_the_name() -> None:
    train()
    validation_envs = Env()
    assert play(validation_envs)
    assert Agent(Env()).average()


def test_other_envs_are_trained_with() -> None:
    train()
    env, latest_env, contest, evaluator = Env(), Env(), Env(), Env()
    assert not ignored(env) and not ignored(latest_env) and not ignored(contest) and not ignored(evaluator)


def test_an_env_with_a_plain_name_too_is_trained_with() -> None:
    train()
    test_env = env = Env()
    assert not ignored(test_env) and not ignored(env)


def test_the_only_env_is_trained_with_whatever_its_name() -> None:
    test_env = Env()
    assert not ignored(test_env)


def test_a_function_with_evaluation_envs_only_is_known_as_such() -> None:
    test_env = Env()

    def average() -> bool:
        step_counting.is_evaluation_env(test_env, sys._getframe())
        return step_counting.evaluates_only(sys._getframe())

    def both() -> bool:
        step_counting.is_evaluation_env(test_env, sys._getframe())
        other = Env()
        assert not ignored(other)
        return step_counting.evaluates_only(sys._getframe())

    assert not average()  # nothing was trained yet
    train()
    assert average()
    assert not both()
