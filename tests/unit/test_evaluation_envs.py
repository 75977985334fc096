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


def test_a_test_of_an_agent_is_an_evaluation_and_a_test_of_an_env_is_not() -> None:
    train()

    def test(actor: object, env: Env) -> bool:
        return ignored(env)

    def test_of_envs() -> bool:
        def test(env: Env) -> bool:
            return ignored(env)

        return test(Env())

    assert test(None, Env())
    assert not test_of_envs()


def evaluate(env: Env) -> bool:
    return ignored(env)


def test_after_gradients_without_any_env_an_evaluation_is_none_of_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_counting, "total_steps", lambda: 0)
    step_counting.went_backward()  # offline RL, cloning
    env = Env()
    assert evaluate(env) and not ignored(env)


def test_evaluating_is_training_where_envs_were_stepped_before_the_first_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = Env()
    assert not evaluate(env)  # an evolution strategy, or a population that also learns by gradients
    monkeypatch.setattr(step_counting, "total_steps", lambda: 200)
    step_counting.went_backward()
    assert not evaluate(env)


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
