"""Tasks whose best return is known, as Gymnasium vector environments with either autoreset mode."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class Task(VectorEnv[Any, Any, Any]):
    """Rows with a whole-number state; subclasses say how it begins, moves and looks."""

    length = 10

    def __init__(
        self, num_envs: int, width: int, actions: int, mode: AutoresetMode = AutoresetMode.SAME_STEP
    ):
        self.num_envs = num_envs
        self.width = width
        self.single_observation_space = Box(0.0, 1.0, (width,), dtype=np.float32)
        self.single_action_space = Discrete(actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": mode}
        self.mode = mode
        self.steps_done = np.zeros(num_envs, dtype=np.int64)
        self.place = np.zeros(num_envs, dtype=np.int64)
        self.over = np.zeros(num_envs, dtype=np.bool_)
        self.rng = np.random.default_rng(0)

    def begin(self, rows: np.ndarray) -> None:
        self.place[rows] = 0

    def move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rewards and whether each row's task is done."""
        raise NotImplementedError

    def infos(self) -> dict[str, Any]:
        return {}

    def look(self) -> np.ndarray:
        return np.eye(self.width, dtype=np.float32)[self.place]

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.begin(np.ones(self.num_envs, dtype=np.bool_))
        self.steps_done[:], self.over[:] = 0, False
        return self.look(), self.infos()

    def step(self, actions: Any) -> Any:
        only_reset = self.over.copy()
        kept = self.place.copy()
        rewards, terminated = self.move(np.asarray(actions))
        self.place[only_reset] = kept[only_reset]
        self.steps_done += 1
        truncated = (self.steps_done >= self.length) & ~terminated
        rewards, terminated = np.where(only_reset, 0.0, rewards), terminated & ~only_reset
        truncated &= ~only_reset
        ended = terminated | truncated
        infos: dict[str, Any] = {}
        if self.mode == AutoresetMode.SAME_STEP:
            if ended.any():
                infos["final_obs"] = self.look()
            again = ended
        else:
            again, self.over = only_reset, ended
        self.begin(again)
        self.steps_done[again] = 0
        return self.look(), rewards, terminated, truncated, {**infos, **self.infos()}


class Identity(Task):
    """Name the number shown: return 10 when every answer is right."""

    def __init__(self, num_envs: int, width: int = 4, mode: AutoresetMode = AutoresetMode.SAME_STEP):
        super().__init__(num_envs, width, width, mode)

    def begin(self, rows: np.ndarray) -> None:
        self.place[rows] = self.rng.integers(0, self.width, int(rows.sum()))

    def move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rewards = (actions == self.place).astype(np.float64)
        self.place[:] = self.rng.integers(0, self.width, self.num_envs)
        return rewards, np.zeros(self.num_envs, dtype=np.bool_)


class Corridor(Task):
    """Walk to the right end, the only place with a reward: return 1 after `width` - 1 steps to the right."""

    length = 30

    def __init__(self, num_envs: int, width: int = 6, mode: AutoresetMode = AutoresetMode.SAME_STEP):
        super().__init__(num_envs, width, 2, mode)

    def move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.place = np.clip(self.place + np.where(actions == 1, 1, -1), 0, self.width - 1)
        done = self.place == self.width - 1
        return done.astype(np.float64), done


class MaskedIdentity(Identity):
    """Identity with two wrong answers forbidden; a forbidden answer is an error."""

    def infos(self) -> dict[str, Any]:
        numbers = np.arange(self.width)
        wrong = (numbers[None] - self.place[:, None]) % self.width
        self.allowed = (wrong != 1) & (wrong != 2)
        return {"action_mask": self.allowed, "_action_mask": np.ones(self.num_envs, dtype=np.bool_)}

    def move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert self.allowed[np.arange(self.num_envs), actions][~self.over].all()
        return super().move(actions)


class Endless(Task):
    """Reward 1 for each step, cut after 5: every state is worth 1 / (1 - discount)."""

    length = 5

    def __init__(self, num_envs: int, mode: AutoresetMode = AutoresetMode.SAME_STEP):
        super().__init__(num_envs, 2, 2, mode)

    def move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.ones(self.num_envs), np.zeros(self.num_envs, dtype=np.bool_)
