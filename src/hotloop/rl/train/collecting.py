"""Rollouts of any Gymnasium vector environment, stepped from Python; nothing per env is done in Python.

Both ways of autoreset are understood: rows that are only a reset (next-step mode) are marked as not valid.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from hotloop import profile
from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.rollout import RolloutBuffer
from hotloop.rl.envs.batch import BatchedEnv
from hotloop.rl.train.fused.rollout import Episodes

if TYPE_CHECKING:
    from hotloop.rl.train.learners import Learner

_step = profile("env_step")
_reset = profile("env_reset")
_policy = profile("policy_forward")
_store = profile("replay_push")


class Position:
    """Where the environments stand between two rollouts, and the episodes that run.

    `most_ended`: how many episodes can end in one rollout, which is its number of steps.
    """

    def __init__(self, envs: Any, seed: int, most_ended: int):
        self.mode = envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        if self.mode == AutoresetMode.DISABLED:
            raise HotloopError(
                "these envs have autoreset disabled, so nobody would begin new episodes; make them with "
                "autoreset_mode=AutoresetMode.SAME_STEP."
            )
        self.envs = envs
        rows = int(envs.num_envs)
        self.over = np.zeros(rows, dtype=np.bool_)
        self.episodes = Episodes(
            np.zeros(rows),
            np.zeros(rows, dtype=np.int64),
            np.zeros(most_ended),
            np.zeros(most_ended, dtype=np.int64),
            np.zeros(1, dtype=np.int64),
        )
        with _reset:
            self.observations, infos = envs.reset(seed=seed)
        self.masks: NDArray[np.bool_] | None = _masks(infos)

    def ended(self, rows: NDArray[np.bool_]) -> None:
        """Note the episodes that end in these rows."""
        episodes = self.episodes
        first, last = int(episodes.count[0]), int(episodes.count[0]) + int(rows.sum())
        episodes.returns[first:last] = episodes.running_returns[rows]
        episodes.lengths[first:last] = episodes.running_lengths[rows]
        episodes.running_returns[rows] = 0.0
        episodes.running_lengths[rows] = 0
        episodes.count[0] = last

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything that decides how the next rollout begins, as far as the environments can be saved."""
        found = {
            "over": self.over.copy(),
            "running_returns": self.episodes.running_returns.copy(),
            "running_lengths": self.episodes.running_lengths.copy(),
        }
        if isinstance(self.envs, BatchedEnv):
            found |= {f"envs.{name}": array for name, array in self.envs.save_state().items()}
        return found

    def load(self, arrays: dict[str, NDArray[Any]], seed: int) -> None:
        """Go on where `arrays` was called; environments that cannot be saved begin new episodes."""
        if isinstance(self.envs, BatchedEnv):
            prefix = "envs."
            self.envs.load_state(
                {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
            )
            self.observations = self.envs.observations
            self.masks = _masks(self.envs._step_infos())
            self.over[:] = arrays["over"]
            self.episodes.running_returns[:] = arrays["running_returns"]
            self.episodes.running_lengths[:] = arrays["running_lengths"]
            return
        print(
            "hotloop: these environments cannot be saved, so the resumed run begins new episodes; "
            "its numbers differ from those of an uninterrupted run.",
            file=sys.stderr,
        )
        self.observations, infos = self.envs.reset(seed=seed)
        self.masks = _masks(infos)


def collect(
    learner: Learner, envs: Any, buffer: RolloutBuffer, position: Position, uniforms: NDArray[np.float32]
) -> None:
    """Fill the buffer with `steps` steps of every env, actions drawn by `uniforms` [steps, envs]."""
    position.episodes.count[0] = 0
    returns, lengths = position.episodes.running_returns, position.episodes.running_lengths
    first_action = int(envs.single_action_space.start)
    same_step = position.mode == AutoresetMode.SAME_STEP
    buffer.observations[0] = position.observations
    for step in range(buffer.steps):
        masks = None
        if position.masks is not None:
            buffer.masks[step] = position.masks
            masks = buffer.masks[step]
        actions = buffer.actions[step]
        with _policy:
            learner.act(
                buffer.observations[step], masks, uniforms[step], actions, buffer.log_probabilities[step]
            )
        with _step:
            observations, rewards, terminated, truncated, infos = envs.step(
                actions + first_action if first_action else actions
            )
        with _store:
            buffer.observations[step + 1] = observations
            buffer.rewards[step] = rewards
            buffer.terminated[step] = terminated
            buffer.truncated[step] = truncated
            buffer.final_values[step] = 0.0
            ended = terminated | truncated
            if same_step:
                returns += rewards
                lengths += 1
            else:
                np.logical_not(position.over, out=buffer.valid[step])
                returns += rewards * buffer.valid[step]
                lengths += buffer.valid[step]
                position.over[:] = ended
        if position.masks is not None:
            position.masks = _masks(infos)
        if ended.any():
            position.ended(ended)
            cut = truncated & ~terminated
            if same_step and cut.any():
                rows = np.flatnonzero(cut)
                finals = np.stack([infos["final_obs"][row] for row in rows])
                with _policy:
                    buffer.final_values[step, rows] = learner.values(
                        finals.astype(buffer.observations.dtype, copy=False)
                    )
    position.observations = observations
    with _policy:
        whole = buffer.observations.reshape(-1, *buffer.observations.shape[2:])
        buffer.values[:] = learner.values(whole).reshape(buffer.values.shape)
    if not same_step:
        # The observation after a truncated step is still that of the old episode.
        np.copyto(buffer.final_values, buffer.values[1:], where=buffer.truncated)


def _masks(infos: dict[str, Any]) -> NDArray[np.bool_] | None:
    """The allowed actions [envs, actions] of Gymnasium's vector infos, or None."""
    given = infos.get("action_mask")
    if given is None:
        return None
    if given.dtype == object:  # a list of arrays, as SyncVectorEnv gathers them
        given = np.stack(list(given))
    return np.ascontiguousarray(given, dtype=np.bool_)
