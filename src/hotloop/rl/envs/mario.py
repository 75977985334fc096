"""`hotloop/Mario-v0`: the emulator of gym-super-mario-bros 7.4 as a Gymnasium environment.

The package uses the old gym API and breaks with numpy 2, where arithmetic on uint8 values from the ROM header
and the console's memory overflows instead of widening. The package is not edited: subclasses give it a ROM
header and a memory that read as wider integers, and its ROM class is swapped only while a game is built. Its
registry, which needs the removed `numpy.bool8`, is not used. The ROM ships with the package; this repository
contains none.
"""

from __future__ import annotations

import contextlib
import functools
import io
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop._util.extras import require_extra
from hotloop.rl.envs.frame_preprocessing import (
    HEIGHT,
    WIDTH,
    FramePreprocessing,
    check_max_episode_steps,
    check_preprocessing,
)
from hotloop.rl.envs.frame_preprocessing_kernels import CompiledPreprocessor

# Buttons: right 128, left 64, B 2, A 1. Same actions in the same order as the platformer.
BUTTONS = (0, 128, 128 | 1, 128 | 2, 128 | 2 | 1, 1, 64)
WORLDS, STAGES = 8, 4
ROMS = ("vanilla", "downsample", "pixel", "rectangle")
DEATH_REWARD, MOST_REWARD = -15, 15
INFOS = ("x_pos", "y_pos", "coins", "score", "time", "life", "flag_get", "status")
FRAMES_PER_S = 60


class Memory:
    """The console's memory, read as Python ints."""

    def __init__(self, cells: NDArray[np.uint8]):
        self.cells = cells

    def __getitem__(self, address: int | slice) -> Any:
        """Return one cell as an int, or a slice as a list of ints."""
        found = self.cells[address]
        return found.tolist() if isinstance(found, np.ndarray) else int(found)

    def __setitem__(self, address: int, value: int) -> None:
        self.cells[address] = value


@functools.cache
def _game_class() -> type[Any]:
    """Return the package's game class, adapted to numpy 2; created on first use."""
    with contextlib.redirect_stderr(io.StringIO()):  # gym prints a deprecation notice
        require_extra("gym_super_mario_bros", "mario")
        nes: Any = require_extra("nes_py.nes_env", "mario")
        games: Any = require_extra("gym_super_mario_bros.smb_env", "mario")

    class Rom(nes.ROM):  # type: ignore[misc]
        """A ROM whose section sizes do not overflow."""

        @property
        def header(self) -> NDArray[np.int64]:
            """The first 16 bytes, widened so that products fit."""
            header: NDArray[np.int64] = self.raw_data[:16].astype(np.int64)
            return header

    class Game(games.SuperMarioBrosEnv):  # type: ignore[misc]
        """One stage of the game."""

        def __init__(self, rom_mode: str, target: tuple[int, int]):
            original, nes.ROM = nes.ROM, Rom
            try:
                super().__init__(rom_mode=rom_mode, lost_levels=False, target=target)
            finally:
                nes.ROM = original

        def _ram_buffer(self) -> Memory:
            return Memory(super()._ram_buffer())

        @property
        def _left_x_position(self) -> int:
            return int(self.ram[0x86] - self.ram[0x071C]) % 256

        @property
        def _death_penalty(self) -> int:
            return DEATH_REWARD if self._is_dying or self._is_dead else 0

        def facts(self) -> dict[str, Any]:
            """Return the infos; works after a reset, too."""
            return {name: value for name, value in self._get_info().items() if name in INFOS}

    return Game


class MarioEnv(gymnasium.Env[NDArray[np.uint8], int]):
    """One stage of Super Mario Bros.

    Observations, actions, rewards and infos are those of `hotloop/Platformer-v0`:

    - observation: uint8 [stack, size, size] as `preprocessing` says; with None, RGB uint8 [240, 256, 3]
    - actions: nothing, right, right + A, right + B, right + A + B, A, left
    - reward per frame: progress in pixels + change of the clock - 15 on death, clipped to +-15
    - infos: `x_pos`, `y_pos`, `coins`, `score`, `time`, `life`, `flag_get`, `status`

    The game is deterministic: seeds have no effect. Episodes are truncated after `max_episode_steps` steps.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": FRAMES_PER_S}  # noqa: RUF012

    def __init__(
        self,
        *,
        world: int = 1,
        stage: int = 1,
        rom: str = "vanilla",
        preprocessing: FramePreprocessing | None = FramePreprocessing(),  # noqa: B008 - frozen
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
    ):
        self.world, self.stage, self.rom = world, stage, rom
        self.preprocessing, self.max_episode_steps, self.render_mode = (
            check_preprocessing(preprocessing),
            max_episode_steps,
            render_mode,
        )
        self._check()
        self._game: Any = _game_class()(rom, (world, stage))
        shape = (HEIGHT, WIDTH, 3) if preprocessing is None else preprocessing.shape
        self.observation_space = Box(0, 255, shape, np.uint8)
        self.action_space = Discrete(len(BUTTONS))  # type: ignore[assignment]
        self.metadata = {
            **self.metadata,
            "render_fps": FRAMES_PER_S // (1 if preprocessing is None else preprocessing.skip),
        }
        self._elapsed = 0
        self._over = True
        self._stack: Any = None
        if preprocessing is not None:
            self._stack = CompiledPreprocessor(preprocessing)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Restart the stage."""
        super().reset(seed=seed)
        frame = self._game.reset()
        self._elapsed, self._over = 0, False
        seen = frame.copy() if self._stack is None else self._stack.begin(frame)
        return seen, self._game.facts()

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Hold the action's buttons for `skip` frames or until the episode ends."""
        if self._over:
            raise HotloopError("step() was called with no episode running; call reset() first.")
        if not self.action_space.contains(action):
            raise HotloopError(
                f"action {action!r} is not in {self.action_space}; "
                f"use an integer from 0 to {len(BUTTONS) - 1}."
            )
        reward, terminated = 0.0, False
        for _ in range(1 if self.preprocessing is None else self.preprocessing.skip):
            frame, gained, terminated, _ = self._game.step(BUTTONS[int(action)])
            reward += float(gained)
            if terminated:
                break
        self._elapsed += 1
        limit = self.max_episode_steps
        truncated = not terminated and limit is not None and self._elapsed >= limit
        self._over = bool(terminated or truncated)
        jump_down = bool(BUTTONS[int(action)] & 1)
        seen = frame.copy() if self._stack is None else self._stack.push(frame, jump_down)
        return seen, reward, bool(terminated), truncated, self._game.facts()

    def render(self) -> NDArray[np.uint8] | None:  # type: ignore[override,unused-ignore]
        """Return the screen, uint8 [240, 256, 3], or None if `render_mode` is None."""
        return None if self.render_mode is None else np.ascontiguousarray(self._game.screen)

    def close(self) -> None:
        """Shut the emulator down."""
        if self._game is not None:
            self._game.close()
            self._game = None

    def _check(self) -> None:
        for name, value, most in (("world", self.world, WORLDS), ("stage", self.stage, STAGES)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise HotloopError(f"{name}={value!r} does not exist; use a whole number from 1 to {most}.")
        if self.rom not in ROMS:
            raise HotloopError(f"unknown rom={self.rom!r}; use {', '.join(map(repr, ROMS))}.")
        check_max_episode_steps(self.max_episode_steps)
        if self.render_mode not in (None, "rgb_array"):
            raise HotloopError(f"unknown render_mode={self.render_mode!r}; use None or 'rgb_array'.")
