"""One interface to single environments and vector environments, for the actor loop.

After `step(actions)` a group has, first index the environment: `observations` to act on next, `rewards`,
`terminated`, `truncated`, `finals` (final observations, valid where an episode ended), `stepped` (mask of
environments that made a step; None for all) and `begun` (indices of those that began an episode). The next
step may overwrite the arrays.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.collect.protocol import Spaces, Task

Seeds = list[int]
_NONE = np.zeros(0, dtype=np.intp)


class EnvGroup(Protocol):
    """Environments stepped together; the module's docstring describes the arrays."""

    spaces: Spaces
    observations: NDArray[Any]
    rewards: NDArray[Any]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    finals: Any
    stepped: NDArray[np.bool_] | None
    begun: NDArray[np.intp]

    def reset(self, seeds: Seeds) -> None:
        """Begin an episode in every environment."""

    def step(self, actions: NDArray[Any]) -> None:
        """Step every environment, and reset where an episode ended."""

    def info(self, name: str) -> NDArray[np.float32]:
        """This number in the last step's infos, per environment; NaN where absent."""

    def close(self) -> None:
        """Close the environments."""


def make_env_group(task: Task, seeds: Seeds) -> EnvGroup:
    """Create the task's environments; `seeds` has one for each."""
    first = task.make_env(seeds[0])
    if isinstance(first, VectorEnv):
        return VectorEnvGroup(first, task)
    missing = [
        name for name in ("reset", "step", "observation_space", "action_space") if not hasattr(first, name)
    ]
    if missing:
        raise HotloopError(
            f"make_env returned {first!r}, which has no {' and no '.join(missing)}; "
            "it must return a Gymnasium environment or vector environment."
        )
    return SingleEnvGroup([first, *(task.make_env(seed) for seed in seeds[1 : task.n_envs])], task)


def find_spaces(task: Task) -> Spaces:
    """Create the task's environments once to learn their spaces."""
    group = make_env_group(task, list(range(task.n_envs)))
    group.close()
    return group.spaces


class SingleEnvGroup:
    """Gymnasium environments stepped one after the other and reset as soon as an episode ends."""

    def __init__(self, envs: list[Any], task: Task):
        self.envs = envs
        space, actions = envs[0].observation_space, envs[0].action_space
        self.spaces = _spaces(space, actions, len(envs), task)
        shape = (len(envs), *space.shape)
        self.observations: NDArray[Any] = np.zeros(shape, dtype=space.dtype)
        self.finals: NDArray[Any] = np.zeros(shape, dtype=space.dtype)
        self.rewards = np.zeros(len(envs), dtype=np.float64)
        self.terminated = np.zeros(len(envs), dtype=np.bool_)
        self.truncated = np.zeros(len(envs), dtype=np.bool_)
        self.stepped: NDArray[np.bool_] | None = None
        self.begun = _NONE
        self._infos: list[dict[str, Any]] = [{} for _ in envs]
        self._discrete = isinstance(actions, Discrete)

    def reset(self, seeds: Seeds) -> None:
        for at, env in enumerate(self.envs):
            self.observations[at], self._infos[at] = env.reset(seed=seeds[at])
        self.begun = np.arange(len(self.envs))

    def step(self, actions: NDArray[Any]) -> None:
        begun = []
        chosen = actions.tolist() if self._discrete else actions
        for at, env in enumerate(self.envs):
            observation, reward, terminated, truncated, self._infos[at] = env.step(chosen[at])
            self.rewards[at], self.terminated[at], self.truncated[at] = reward, terminated, truncated
            if terminated or truncated:
                self.finals[at] = observation
                observation, _ = env.reset()
                begun.append(at)
            if len(self.envs) == 1:  # read before the next step: no copy needed
                self.observations = np.asarray(observation, dtype=self.observations.dtype)[None]
            else:
                self.observations[at] = observation
        self.begun = np.array(begun, dtype=np.intp) if begun else _NONE

    def info(self, name: str) -> NDArray[np.float32]:
        return np.array([infos.get(name, np.nan) for infos in self._infos], dtype=np.float32)

    def close(self) -> None:
        for env in self.envs:
            env.close()


class VectorEnvGroup:
    """A Gymnasium vector environment with SAME_STEP or NEXT_STEP autoreset."""

    def __init__(self, env: Any, task: Task):
        self.env = env
        mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        if mode == AutoresetMode.DISABLED:
            raise HotloopError(
                "make_env returned a vector env with autoreset disabled, so no second episode would begin; "
                "create it with autoreset_mode=AutoresetMode.SAME_STEP."
            )
        self._same_step = mode == AutoresetMode.SAME_STEP
        count = int(env.num_envs)
        self.spaces = _spaces(env.single_observation_space, env.single_action_space, count, task)
        self.finals: Any = None
        self.stepped: NDArray[np.bool_] | None = None
        self._over = np.zeros(count, dtype=np.bool_)
        self._infos: dict[str, Any] = {}
        self._ended = np.zeros(count, dtype=np.bool_)

    def reset(self, seeds: Seeds) -> None:
        """Pass on the first seed only: a vector env derives one per row."""
        self.observations, self._infos = self.env.reset(seed=seeds[0])
        self.begun = np.arange(self.spaces.n_envs)
        self._over[:] = False

    def step(self, actions: NDArray[Any]) -> None:
        self.observations, self.rewards, self.terminated, self.truncated, self._infos = self.env.step(actions)
        self._ended = self.terminated | self.truncated
        if self._same_step:
            self.begun = np.flatnonzero(self._ended) if self._ended.any() else _NONE
            self.finals = self._infos.get("final_obs")
            return
        self.stepped, self.begun = None, _NONE
        if self._over.any():
            self.stepped, self.begun = ~self._over, np.flatnonzero(self._over)
            self._ended = self._ended & self.stepped
        self.finals = self.observations
        self._over = self._ended.copy()

    def info(self, name: str) -> NDArray[np.float32]:
        found = _numbers(self._infos, name, self.spaces.n_envs)
        if self._same_step and "final_info" in self._infos and self._ended.any():
            last = _numbers(self._infos["final_info"], name, self.spaces.n_envs)
            found = np.where(self._ended, last, found)
        return found

    def close(self) -> None:
        self.env.close()


def _numbers(infos: dict[str, Any], name: str, count: int) -> NDArray[np.float32]:
    if name not in infos:
        return np.full(count, np.nan, dtype=np.float32)
    values = np.asarray(infos[name], dtype=np.float32)
    there = infos.get(f"_{name}")
    return values if there is None else np.where(there, values, np.float32(np.nan))


def _spaces(observation: Any, action: Any, n_envs: int, task: Task) -> Spaces:
    if task.frame_stack > 1 and tuple(observation.shape or ())[:1] != (task.frame_stack,):
        raise HotloopError(
            f"frame_stack={task.frame_stack} does not fit observations of shape {observation.shape}; their "
            "first axis must be the stack. Otherwise use frame_stack=1."
        )
    return Spaces(observation, action, n_envs, task.frame_stack)
