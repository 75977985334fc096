"""A small environment and helpers for the tests of `hotloop boost`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_vec_env

from hotloop.boost import active
from hotloop.boost.audit import Audits
from hotloop.boost.install import install, remove

BOX = spaces.Box(-1.0, 1.0, (5,), np.float32)
ACTIONS: dict[str, Any] = {
    "discrete": spaces.Discrete(4),
    "multi-discrete": spaces.MultiDiscrete([3, 2, 4]),
    "box": spaces.Box(-2.0, 2.0, (3,), np.float32),
    "box-1": spaces.Box(-2.0, 2.0, (1,), np.float32),
    "box-2d": spaces.Box(-0.5, 0.5, (2, 2), np.float32),
}


class Toy(gym.Env[Any, Any]):
    """Random observations; the reward depends on the action; ends at random or after 25 steps."""

    def __init__(self, actions: Any, observations: Any = BOX):
        self.action_space, self.observation_space = actions, observations
        self._random, self._steps = np.random.default_rng(0), 0

    def _observe(self) -> Any:
        if isinstance(self.observation_space, spaces.Discrete):
            return int(self._random.integers(self.observation_space.n))
        return self._random.uniform(-1.0, 1.0, self.observation_space.shape).astype(
            self.observation_space.dtype
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        reward = float(np.sum(action)) * 0.1 + float(self._random.normal())
        return self._observe(), reward, bool(self._random.random() < 0.02), self._steps >= 25, {}

    def action_masks(self) -> NDArray[np.bool_]:
        space: Any = self.action_space
        sizes = [space.n] if isinstance(space, spaces.Discrete) else list(space.nvec)
        return np.concatenate([np.r_[True, self._random.random(size - 1) < 0.6] for size in sizes])


def make_model(
    cls: Any, actions: str = "discrete", observations: Any = BOX, n_envs: int = 2, **words: Any
) -> Any:
    """A model of that class on `Toy`, small and seeded."""
    envs = make_vec_env(lambda: Toy(ACTIONS[actions], observations), n_envs=n_envs)
    words.setdefault("policy_kwargs", {"net_arch": [16, 16]})
    return cls(words.pop("policy", "MlpPolicy"), envs, seed=1, device="cpu", **words)


def replace_moments(optimizer: Any) -> None:
    """Other tensors in the same dictionaries, as after `state[weight]["exp_avg"] = ...`."""
    for state in optimizer.state.values():
        for name, value in state.items():
            state[name] = value * 0.5 if name.startswith("exp_avg") else value.clone()


STATE_CHANGES: dict[str, Callable[[Any], None]] = {
    "cleared": lambda optimizer: optimizer.state.clear(),
    "replaced": replace_moments,
}


class NoAudits(Audits):
    """For tests that call a learner alone."""

    def due(self, gradient_steps: int) -> int | None:
        del gradient_steps
        return None


@contextmanager
def boosting() -> Iterator[None]:
    """Boost Stable-Baselines3 for a while."""
    install()
    try:
        yield
    finally:
        remove()
        active.history.clear()


class Result:
    """What a model is after training, for comparisons."""

    def __init__(self, model: Any):
        self.model = model
        self.weights = {name: value.clone().numpy() for name, value in model.policy.state_dict().items()}
        self.optimizer = {
            (optimizer, index, name): value.clone().numpy()
            for optimizer in model._get_torch_save_params()[0]
            if optimizer.endswith("optimizer")
            for index, found in operator.attrgetter(optimizer)(model).state_dict()["state"].items()
            for name, value in found.items()
        }
        for name in model._get_torch_save_params()[1]:
            self.weights[name] = operator.attrgetter(name)(model).detach().clone().numpy()
        self.grads = {
            name: None if parameter.grad is None else parameter.grad.clone().numpy()
            for name, parameter in model.policy.named_parameters()
        }
        self.logged = dict(model.logger.name_to_value)
        self.random = (float(np.random.random()), torch.rand(1).item())  # noqa: NPY002
        self.counters = (model._n_updates, model.num_timesteps)


def learn(
    make: Callable[[], Any], steps: int, is_boosted: bool, then: Callable[[Any], Any] | None = None
) -> Result:
    """Make a model, train it, and do `then` with it."""
    if not is_boosted:
        model = make()
        model.learn(steps)
        if then is not None:
            model = then(model) or model
        return Result(model)
    with boosting():
        model = make()
        model.learn(steps)
        if then is not None:
            model = then(model) or model
        found = active.boosted(model)
        assert found is not None
        assert found.learner is not None, found.record.reason
        assert found.record.gradient_steps > 0
        return Result(model)


def assert_same(results: Iterable[Result]) -> None:
    """Same random numbers, counters and logged keys; weights, moments and logged values up to rounding."""
    ours, theirs = results
    assert ours.random == theirs.random
    assert ours.counters == theirs.counters
    assert ours.logged.keys() == theirs.logged.keys()
    for key, value in theirs.logged.items():
        if not key.startswith("time/"):
            assert type(ours.logged[key]) is type(value), key
            np.testing.assert_allclose(ours.logged[key], value, rtol=2e-3, atol=2e-4, err_msg=key)
    for mine, others in ((ours.weights, theirs.weights), (ours.optimizer, theirs.optimizer)):
        assert mine.keys() == others.keys()
        for name, value in others.items():
            assert mine[name].dtype == value.dtype
            np.testing.assert_allclose(mine[name], value, rtol=1e-3, atol=2e-5, err_msg=str(name))
    for name, value in theirs.grads.items():
        mine_now: Any = ours.grads[name]
        if "critic" in name and "target" not in name:
            continue  # the library's have the actor loss's gradient, too
        assert (value is None) == (mine_now is None)
        if value is not None:
            np.testing.assert_allclose(mine_now, value, rtol=1e-2, atol=1e-4, err_msg=name)
