"""Rollouts of any Gymnasium vector environment, stepped from Python; nothing per env is done in Python.

Both ways of autoreset are understood: rows that are only a reset (next-step mode) are marked as not valid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from hotloop import profile
from hotloop.rl.buffers.rollout import RolloutBuffer
from hotloop.rl.train.make_envs import RolloutState, action_masks

if TYPE_CHECKING:
    from hotloop.rl.train.learners import Learner

_step = profile("env_step")
_policy = profile("policy_forward")
_store = profile("replay_push")


def collect(
    learner: Learner, envs: Any, buffer: RolloutBuffer, position: RolloutState, uniforms: NDArray[np.float32]
) -> None:
    """Fill the buffer with `steps` steps of every env, actions drawn by `uniforms` [steps, envs]."""
    position.episodes.count[0] = 0
    returns, lengths = position.episodes.running_returns, position.episodes.running_lengths
    first_action = int(envs.single_action_space.start)
    same_step = position.autoreset == AutoresetMode.SAME_STEP
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
                np.logical_not(position.only_reset, out=buffer.valid[step])
                returns += rewards * buffer.valid[step]
                lengths += buffer.valid[step]
                position.only_reset[:] = ended
        if position.masks is not None:
            position.masks = action_masks(infos)
        if ended.any():
            position.episodes.finish(ended)
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
