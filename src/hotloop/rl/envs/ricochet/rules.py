"""Ricochet Robots for one environment in plain Python: the reference for the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.ricochet.board import Position, ahead, image, is_solved, move, symbolic
from hotloop.rl.envs.ricochet.config import RicochetConfig
from hotloop.rl.envs.ricochet.generator import generate
from hotloop.rl.envs.ricochet.render import rgb_image
from hotloop.rl.envs.ricochet.solver import solve_plainly


class Ricochet:
    """One environment without autoreset; all random numbers come from its generator."""

    def __init__(self, config: RicochetConfig, seed: int | None = None):
        self.config = config
        self.rng = np.random.default_rng(seed)
        self.position: Position | None = None
        self.optimal_moves = 0
        self.elapsed = 0

    def reset(
        self, seed: int | None = None, position: Position | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Generate a board, or start from a valid position; without a seed, the random stream continues."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        if position is None:
            self.position, self.optimal_moves = generate(self.rng, self.config)
        else:
            solution = solve_plainly(position)
            self.position, self.optimal_moves = position, -1 if solution is None else len(solution)
        self.elapsed = 0
        return self.observation(), self.info()

    def step(self, action: int) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """Move one robot; action `4 * robots` is the no-op, if enabled. Every step gets `step_reward`."""
        if self.position is None:
            raise HotloopError("step() was called before reset(); call reset(seed=...) first.")
        if not 0 <= action < self.config.actions:
            raise HotloopError(f"invalid action {action}; use 0 to {self.config.actions - 1}.")
        if action < 4 * self.config.robots:
            self.position = move(self.position, action)
        self.elapsed += 1
        terminated = is_solved(self.position)
        truncated = not terminated and self.elapsed >= self.config.max_episode_steps
        reward = self.config.step_reward + (self.config.goal_reward if terminated else 0.0)
        return self.observation(), reward, terminated, truncated, self.info()

    def observation(self) -> NDArray[Any]:
        """Return the observation in the configured mode."""
        assert self.position is not None
        if self.config.obs_mode == "symbolic":
            farther = ahead(self.position, self.config.lookahead)
            return np.concatenate([symbolic(self.position), farther])
        if self.config.obs_mode == "image":
            return image(self.position)
        return rgb_image(self.position)

    def info(self) -> dict[str, Any]:
        """Return the length of a shortest solution from the episode's first position."""
        return {"optimal_moves": self.optimal_moves}
