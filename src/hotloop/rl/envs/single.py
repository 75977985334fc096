"""`gymnasium.Env` as a batch of one, so that every environment has only one implementation."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.batch import BatchedEnv


class SingleEnv(gymnasium.Env[Any, Any]):
    """A single environment; `batch` has one row and `autoreset_mode=AutoresetMode.DISABLED`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, batch: BatchedEnv):
        self.batch = batch
        self.observation_space = batch.single_observation_space
        self.action_space = batch.single_action_space
        self.render_mode = batch.render_mode
        self._action: NDArray[Any] = np.zeros_like(batch.actions)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start an episode; without a seed, the random stream continues."""
        super().reset(seed=seed)
        observations, infos = self.batch.reset(seed=None if seed is None else [seed], options=options)
        return observations[0], _first_row(infos)

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise HotloopError(f"action {action!r} is not in {self.action_space}; nothing was stepped.")
        self._action[0] = action
        observations, rewards, terminated, truncated, infos = self.batch.step(self._action)
        return observations[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), _first_row(infos)

    def render(self) -> NDArray[np.uint8] | None:  # type: ignore[override,unused-ignore]
        """Return an RGB image, uint8 [height, width, 3], or None if `render_mode` is None."""
        frames = self.batch.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        self.batch.close()


def _first_row(infos: dict[str, Any]) -> dict[str, Any]:
    """Convert vector infos of one row to the infos of a single env, with scalars as Python numbers."""
    found = {}
    for name, values in infos.items():
        if not name.startswith("_") and infos.get(f"_{name}", [True])[0]:
            value = values[0]
            found[name] = value.item() if isinstance(value, np.generic) else value
    return found
