"""Collecting rollouts with compiled acting: `OnPolicyAlgorithm.collect_rollouts`, statement by statement.

The loop stays Python, since environments and callbacks are the user's: the same calls in the same order, with
the same local variables for callbacks. The policy's forward pass, sampling and advantages are kernels; the
random numbers come from torch's own generator, drawn as torch's distributions draw them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from hotloop import profile
from hotloop.boost import on_policy_kernels as kernels

_acting = profile("boosted_act", "policy")
_advantages = profile("advantage")
VALUE_TOLERANCE = 1e-4  # of values, actions and log probabilities, relative to 1 + their size


class Actor:
    """Runs a policy for a fixed number of environments."""

    def __init__(self, networks: Any, observations: Any, action_space: Any, rows: int):
        self.networks, self.observations = networks, observations
        self.rows, self.space = rows, action_space
        outputs = self.networks.outputs
        self.is_gaussian = isinstance(action_space, spaces.Box)
        self.shape = (-1, *action_space.shape)
        heads = [outputs] if self.is_gaussian else self.networks.state.heads.tolist()
        self._noise = torch.zeros(rows * outputs)
        self._flat_noise = self._noise.numpy()
        ends = np.cumsum([rows * size for size in heads]).tolist()
        # One tensor for each distribution, of the shape that torch gives to its draw.
        self._draws = [
            self._noise[end - rows * size : end].view(rows, size)
            for end, size in zip(ends, heads, strict=True)
        ]
        self._no_masks = np.zeros((0, outputs), dtype=np.bool_)
        self._no_choices = np.zeros((rows, 0), dtype=np.int64)
        self._no_actions = np.zeros((rows, 0), dtype=np.float32)

    def act(
        self, observations: NDArray[Any], masks: NDArray[np.bool_] | None = None, deterministic: bool = False
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.float32]]:
        """New arrays: actions [rows, ...], values [rows, 1] and log probabilities [rows]."""
        rows = self.rows
        if not deterministic:
            for draw in self._draws:
                if self.is_gaussian:
                    draw.normal_()
                else:
                    draw.exponential_()
        values = np.empty((rows, 1), dtype=np.float32)
        log_probs = np.empty(rows, dtype=np.float32)
        choices, actions = self._no_choices, self._no_actions
        if self.is_gaussian:
            actions = np.empty((rows, self.networks.outputs), dtype=np.float32)
        else:
            choices = np.empty((rows, self.networks.state.heads.size), dtype=np.int64)
        with _acting:
            kernels.act(
                self.networks.state,
                self.observations.rows(observations),
                self._flat_noise,
                self._no_masks if masks is None else masks,
                deterministic,
                choices,
                actions,
                log_probs,
                values.reshape(-1),
            )
        return (actions if self.is_gaussian else choices).reshape(self.shape), values, log_probs

    def values(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """The critic's values [rows, 1], a new array; a callback may have changed the weights meanwhile."""
        self.networks.follow_weights()
        found = np.empty((self.observations.count(observations), 1), dtype=np.float32)
        kernels.predict_values(self.networks.state, self.observations.rows(observations), found.reshape(-1))
        return found

    def audited(
        self, policy: Any, observations: NDArray[Any], masks: NDArray[np.bool_] | None = None
    ) -> tuple[tuple[NDArray[Any], NDArray[np.float32], NDArray[np.float32]], str | None]:
        """`act`, and what is wrong with it, or None: the library's policy gets the same random numbers.

        When something is wrong, the library's answer is returned and its random numbers are the ones drawn.
        """
        before = torch.get_rng_state()
        found = self.act(observations, masks)
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        theirs = self.library_act(policy, observations, masks)
        if not torch.equal(torch.get_rng_state(), after):
            return theirs, "the library's policy draws other random numbers"
        wrong = compare_actions(found[0], theirs[0], self.is_gaussian)
        for name, ours, other in zip(("values", "log probabilities"), found[1:], theirs[1:], strict=True):
            # Where the library took another action, its probability says nothing about ours.
            same = np.all((found[0] == theirs[0]).reshape(self.rows, -1), axis=1) | self.is_gaussian
            differs = _difference(ours.reshape(-1)[same], other.reshape(-1)[same])
            if wrong is None and differs > VALUE_TOLERANCE:
                wrong = f"{name} of the policy differ by {differs:.2g} (allowed {VALUE_TOLERANCE:g})"
        return (found, None) if wrong is None else (theirs, wrong)

    def library_act(
        self, policy: Any, observations: NDArray[Any], masks: NDArray[np.bool_] | None
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.float32]]:
        """What the library's policy gives, in the same form."""
        words = {} if masks is None else {"action_masks": masks}
        with torch.no_grad():
            actions, values, log_probs = policy(torch.as_tensor(observations), **words)
        return actions.numpy(), values.numpy(), log_probs.numpy()


def compare_actions(ours: NDArray[Any], theirs: NDArray[Any], is_continuous: bool) -> str | None:
    """What is wrong with actions, or None.

    The library may take another action where two have the same score up to rounding. Such ties are so rare
    that two at once are an error.
    """
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"actions are {ours.dtype}{ours.shape}, the library's {theirs.dtype}{theirs.shape}"
    if not is_continuous:
        others = int(np.sum(ours != theirs))
        return None if others <= 1 else f"{others} of {ours.size} actions differ"
    differs = _difference(ours.reshape(-1), theirs.reshape(-1))
    return (
        None
        if differs <= VALUE_TOLERANCE
        else f"actions differ by {differs:.2g} (allowed {VALUE_TOLERANCE:g})"
    )


def _difference(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Largest difference relative to 1 + size; infinite where only one of them is finite."""
    if not np.array_equal(np.isfinite(ours), np.isfinite(theirs)):
        return float("inf")
    known = np.isfinite(theirs)
    return float(np.max(np.abs(ours - theirs)[known] / (1.0 + np.abs(theirs[known])), initial=0.0))


def add(
    buffer: Any,
    obs: Any,
    action: Any,
    reward: Any,
    episode_start: Any,
    value: torch.Tensor,
    log_prob: torch.Tensor,
) -> None:
    """`RolloutBuffer.add` without its copies: assigning to a row copies already."""
    at = buffer.pos
    buffer.observations[at] = obs.reshape(buffer.observations.shape[1:])
    buffer.actions[at] = action.reshape((buffer.n_envs, buffer.action_dim))
    buffer.rewards[at] = reward
    buffer.episode_starts[at] = episode_start
    buffer.values[at] = value.numpy().reshape(-1)
    buffer.log_probs[at] = log_prob.numpy()
    buffer.pos = at + 1
    if buffer.pos == buffer.buffer_size:
        buffer.full = True


def compute_returns_and_advantage(buffer: Any, last_values: NDArray[np.float32], dones: NDArray[Any]) -> None:
    """`RolloutBuffer.compute_returns_and_advantage`, bit for bit."""
    with _advantages:
        kernels.advantages(
            buffer.rewards,
            buffer.values,
            buffer.episode_starts,
            last_values.reshape(-1),
            dones.astype(np.float32),
            np.float32(buffer.gamma),
            np.float32(buffer.gamma * buffer.gae_lambda),
            buffer.advantages,
        )
        buffer.returns = buffer.advantages + buffer.values


def collect_rollouts(
    self: Any,
    env: Any,
    callback: Any,
    rollout_buffer: Any,
    n_rollout_steps: int,
    use_masking: bool = True,
    *,
    _learner: Any,
) -> bool:
    """What `collect_rollouts` does; names of local variables are the library's.

    `use_masking` is for MaskablePPO, whose loop is the same but for the masks, the clipping of actions, which
    are never continuous there, and the last `update_locals`.
    """
    assert self._last_obs is not None, "No previous observation was provided"
    _learner.set_training_mode(False)
    _actor = _learner.actor(self, env.num_envs)
    n_steps = 0
    action_masks = _masks = None
    rollout_buffer.reset()
    _is_maskable = hasattr(rollout_buffer, "action_masks")
    if _is_maskable and use_masking:
        from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported

        if not is_masking_supported(env):
            raise ValueError(
                "Environment does not support action masking. Consider using ActionMasker wrapper"
            )
    callback.on_rollout_start()
    _is_box, _is_discrete = (isinstance(self.action_space, kind) for kind in (spaces.Box, spaces.Discrete))
    while n_steps < n_rollout_steps:
        obs_tensor = torch.as_tensor(self._last_obs)
        if _is_maskable and use_masking:
            action_masks = get_action_masks(env)
            _masks = np.ascontiguousarray(action_masks.reshape(env.num_envs, -1), dtype=np.bool_)
        actions, values, log_probs = _learner.act(self, _actor, self._last_obs, _masks)
        values, log_probs = torch.from_numpy(values), torch.from_numpy(log_probs)
        clipped_actions = actions
        if _is_box:
            clipped_actions = np.clip(actions, self.action_space.low, self.action_space.high)
        new_obs, rewards, dones, infos = env.step(clipped_actions)
        self.num_timesteps += env.num_envs
        callback.update_locals(locals())
        if not callback.on_step():
            return False
        self._update_info_buffer(infos, dones)
        n_steps += 1
        if _is_discrete:
            actions = actions.reshape(-1, 1)
        for idx, done in enumerate(dones):
            if (
                done
                and infos[idx].get("terminal_observation") is not None
                and infos[idx].get("TimeLimit.truncated", False)
            ):
                terminal_obs = self.policy.obs_to_tensor(infos[idx]["terminal_observation"])[0]
                terminal_value = torch.from_numpy(_learner.values(self, _actor, terminal_obs.numpy())[0])
                rewards[idx] += self.gamma * terminal_value
        if action_masks is not None:
            rollout_buffer.action_masks[rollout_buffer.pos] = action_masks.reshape(env.num_envs, -1)
        add(rollout_buffer, self._last_obs, actions, rewards, self._last_episode_starts, values, log_probs)
        self._last_obs = new_obs
        self._last_episode_starts = dones
    values = torch.from_numpy(_learner.values(self, _actor, new_obs))
    compute_returns_and_advantage(rollout_buffer, values.numpy(), dones)
    if not _is_maskable:
        callback.update_locals(locals())
    callback.on_rollout_end()
    return True
