"""Vector environments as our trainers use them: made by name, followed from rollout to rollout, evaluated."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from hotloop import profile
from hotloop._util.errors import HotloopError
from hotloop.rl.envs import ENVIRONMENTS
from hotloop.rl.envs.batch import BatchedEnv
from hotloop.rl.nonfinite import NonFiniteCheck

_reset = profile("env_reset")
_evaluate = profile("evaluate")
_compile = profile("compile_kernels", "other")


def make_envs(name: str, n_envs: int, **settings: Any) -> Any:
    """A vector of `n_envs` environments that reset in the step that ends an episode.

    `name` is one of ours (`CartPole`, or `hotloop/CartPole-v0`), made with `copy=False`, so the next step
    overwrites their arrays; or any Gymnasium id, which runs in this process (`SyncVectorEnv`). `settings`
    go to the environment.
    """
    own = name.removeprefix("hotloop/").removesuffix("-v0")
    if own in ENVIRONMENTS:
        folder, prefix = ENVIRONMENTS[own]
        module = importlib.import_module(f"hotloop.rl.envs.{folder}.env")
        make = getattr(module, f"{prefix}VectorEnv")
        return make(n_envs, autoreset_mode=AutoresetMode.SAME_STEP, copy=False, **settings)
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as unknown:
        raise HotloopError(
            f"env={name!r} is unknown ({unknown}); use one of {', '.join(ENVIRONMENTS)} or a Gymnasium id."
        ) from unknown
    return SyncVectorEnv(
        [lambda: gymnasium.make(name, **settings)] * n_envs,
        copy=False,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )


def compile_kernels(envs: Any) -> Any:
    """Reset and step the envs once, so that compilation has its own region; returns the envs."""
    with _compile:
        envs.reset(seed=0)
        envs.step(np.zeros_like(envs.action_space.sample()))
    return envs


class EpisodeLog(NamedTuple):
    """Running and finished episodes since the log was cleared, in arrays that kernels can write."""

    running_returns: NDArray[np.float64]  # [envs]
    running_lengths: NDArray[np.int64]  # [envs]
    returns: NDArray[np.float64]  # of the finished episodes, the first `count`
    lengths: NDArray[np.int64]
    count: NDArray[np.int64]  # type: ignore[assignment]  # [1]

    @classmethod
    def empty(cls, n_envs: int, most_finished: int) -> EpisodeLog:
        return cls(
            np.zeros(n_envs),
            np.zeros(n_envs, dtype=np.int64),
            np.zeros(most_finished),
            np.zeros(most_finished, dtype=np.int64),
            np.zeros(1, dtype=np.int64),
        )

    def finished(self) -> tuple[list[float], list[int]]:
        """Returns and lengths of the finished episodes."""
        count = int(self.count[0])
        return self.returns[:count].tolist(), self.lengths[:count].tolist()

    def finish(self, rows: NDArray[np.bool_]) -> None:
        """Move the running episodes of these envs to the finished ones."""
        first, last = int(self.count[0]), int(self.count[0]) + int(rows.sum())
        self.returns[first:last] = self.running_returns[rows]
        self.lengths[first:last] = self.running_lengths[rows]
        self.running_returns[rows] = 0.0
        self.running_lengths[rows] = 0
        self.count[0] = last


class RolloutState:
    """Where vector envs stand between two steps: last observations, action masks, episodes under way.

    `most_finished` bounds the number of episodes that can finish before `episodes` is cleared. `nonfinite`
    is for trainers to check what the envs return.
    """

    def __init__(self, envs: Any, seed: int, most_finished: int, nonfinite: NonFiniteCheck | None = None):
        self.autoreset = envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        if self.autoreset == AutoresetMode.DISABLED:
            raise HotloopError(
                "These envs have autoreset disabled, so finished episodes would never restart; make them "
                "with autoreset_mode=AutoresetMode.SAME_STEP."
            )
        self.envs = envs
        self.only_reset = np.zeros(int(envs.num_envs), dtype=np.bool_)
        """Envs whose next step is only a reset (next-step autoreset)."""
        self.episodes = EpisodeLog.empty(int(envs.num_envs), most_finished)
        with _reset:
            self.observations, infos = envs.reset(seed=seed)
        self.masks = action_masks(infos)
        self.nonfinite = nonfinite or NonFiniteCheck()
        self.nonfinite.step(self.observations)

    @property
    def same_step(self) -> bool:
        """Whether an episode's end and the next reset happen in one step."""
        return bool(self.autoreset == AutoresetMode.SAME_STEP)

    @property
    def can_restore(self) -> bool:
        """Whether the state of the envs is part of a checkpoint."""
        return isinstance(self.envs, BatchedEnv)

    def count_step(self, rewards: NDArray[Any], ended: NDArray[np.bool_]) -> int:
        """Add one vector step to the running episodes; returns the env steps taken, resets not counted."""
        stepped = ~self.only_reset
        self.episodes.running_returns[:] += rewards * stepped
        self.episodes.running_lengths[:] += stepped
        if not self.same_step:
            ended = ended & stepped
            self.only_reset[:] = ended
        if ended.any():
            self.episodes.finish(ended)
        return int(stepped.sum())

    def final_observations(self, infos: dict[str, Any], ended: NDArray[np.bool_]) -> NDArray[Any] | None:
        """Last observations of the episodes that ended in this step; the other rows are undefined.

        None when none ended, and with next-step autoreset, where the step's own observations are the last.
        """
        if not (self.same_step and ended.any()):
            return None
        given: NDArray[Any] = infos["final_obs"]
        if given.dtype != object:
            return given
        finals: NDArray[Any] = np.zeros_like(self.observations)  # SyncVectorEnv gives a list of arrays
        for row in np.flatnonzero(ended):
            finals[row] = given[row]
        return finals

    def arrays(self) -> dict[str, NDArray[Any]]:
        """For a checkpoint: all that the next rollout depends on, env states included where possible."""
        found = {
            "over": self.only_reset.copy(),
            "running_returns": self.episodes.running_returns.copy(),
            "running_lengths": self.episodes.running_lengths.copy(),
        }
        if isinstance(self.envs, BatchedEnv):
            found |= {f"envs.{name}": array for name, array in self.envs.save_state().items()}
        return found

    def env_axes(self) -> dict[str, int]:
        """For those of `arrays()` whose first axis is not the env: which one is."""
        axes = self.envs.row_axes if isinstance(self.envs, BatchedEnv) else {}
        return {f"envs.{name}": axis for name, axis in axes.items()}

    def load(self, arrays: dict[str, NDArray[Any]], seed: int) -> bool:
        """Continue from `arrays`; envs that cannot be restored start new episodes from `seed`.

        Returns whether they were restored.
        """
        if isinstance(self.envs, BatchedEnv):
            prefix = "envs."
            self.envs.load_state(
                {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
            )
            self.observations = self.envs.observations
            self.masks = action_masks(self.envs._step_infos())
            self.only_reset[:] = arrays["over"]
            self.episodes.running_returns[:] = arrays["running_returns"]
            self.episodes.running_lengths[:] = arrays["running_lengths"]
            return True
        print(
            "hotloop: these environments cannot be restored, so the resumed run starts new episodes; "
            "its numbers differ from those of an uninterrupted run.",
            file=sys.stderr,
        )
        self.observations, infos = self.envs.reset(seed=seed)
        self.masks = action_masks(infos)
        return False


def action_masks(infos: dict[str, Any]) -> NDArray[np.bool_] | None:
    """Allowed actions [envs, actions] from the infos of a vector env; None without `action_mask`."""
    given = infos.get("action_mask")
    if given is None:
        return None
    if given.dtype == object:  # a list of arrays, as SyncVectorEnv collects them
        given = np.stack(list(given))
    return np.ascontiguousarray(given, dtype=np.bool_)


def evaluate_policy(
    act: Callable[[NDArray[Any], NDArray[np.bool_] | None], NDArray[Any]],
    envs: Any,
    n_eval_episodes: int,
    seed: int | None,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns and lengths of whole episodes played by `act(observations, masks)`; the envs stay open.

    Each env plays its share from a fresh reset, so that short episodes are not counted more often than
    long ones. Works with every autoreset mode but DISABLED.
    """
    n_envs = int(envs.num_envs)
    left = np.full(n_envs, n_eval_episodes // n_envs)
    left[: n_eval_episodes % n_envs] += 1
    returns: list[float] = []
    lengths: list[int] = []
    with _evaluate:
        observations, infos = envs.reset(seed=seed)
        running, length = np.zeros(n_envs), np.zeros(n_envs, dtype=np.int64)
        only_reset = np.zeros(n_envs, dtype=np.bool_)
        next_step = getattr(envs.metadata.get("autoreset_mode"), "value", "NextStep") == "NextStep"
        while left.any():
            observations, rewards, terminated, truncated, infos = envs.step(
                act(observations, infos.get("action_mask"))
            )
            stepped = ~only_reset
            running += rewards * stepped
            length += stepped
            ended = (terminated | truncated) & stepped
            for row in np.flatnonzero(ended):
                if left[row] > 0:
                    left[row] -= 1
                    returns.append(float(running[row]))
                    lengths.append(int(length[row]))
                running[row], length[row] = 0.0, 0
            only_reset = ended.copy() if next_step else only_reset
    return np.array(returns), np.array(lengths, dtype=np.int64)
