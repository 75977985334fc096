"""`hotloop/Mario-v0`: the emulator of gym-super-mario-bros 7.4 as a Gymnasium environment.

That package speaks the API of old gym and stumbles over numpy 2: it multiplies bytes of the ROM's header and
of the machine's memory, which no longer grow into larger numbers. Nothing of it is edited here: a ROM whose
header is read as plain numbers and a memory that gives plain numbers are handed to it while a game is made.
Its registry (which needs the vanished `numpy.bool8`) is not used. The ROM comes with that package; none is
kept here.
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
from hotloop.rl.envs.chain import HEIGHT, WIDTH, Chain, checked_chain

# Buttons: right 128, left 64, B 2, A 1; the actions of the platformer in the same order.
BUTTONS = (0, 128, 128 | 1, 128 | 2, 128 | 2 | 1, 1, 64)
WORLDS, STAGES = 8, 4
ROMS = ("vanilla", "downsample", "pixel", "rectangle")
DEATH_REWARD, MOST_REWARD = -15, 15
INFOS = ("x_pos", "y_pos", "coins", "score", "time", "life", "flag_get", "status")
FRAMES_PER_S = 60


class Memory:
    """The machine's memory, read as plain Python numbers."""

    def __init__(self, cells: NDArray[np.uint8]):
        self.cells = cells

    def __getitem__(self, address: int | slice) -> Any:
        """One cell as an int, or a list of them."""
        found = self.cells[address]
        return found.tolist() if isinstance(found, np.ndarray) else int(found)

    def __setitem__(self, address: int, value: int) -> None:
        self.cells[address] = value


@functools.cache
def _game_class() -> type[Any]:
    """The package's game, fit for numpy 2; made when the first one is asked for."""
    with contextlib.redirect_stderr(io.StringIO()):  # old gym prints that it is old
        require_extra("gym_super_mario_bros", "mario")
        nes: Any = require_extra("nes_py.nes_env", "mario")
        games: Any = require_extra("gym_super_mario_bros.smb_env", "mario")

    class Rom(nes.ROM):  # type: ignore[misc]
        """A ROM whose sizes do not overflow."""

        @property
        def header(self) -> NDArray[np.int64]:
            """The first 16 bytes as numbers that can be multiplied."""
            header: NDArray[np.int64] = self.raw_data[:16].astype(np.int64)
            return header

    class Game(games.SuperMarioBrosEnv):  # type: ignore[misc]
        """One stage."""

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
            """The infos, of a reset too."""
            return {name: value for name, value in self._get_info().items() if name in INFOS}

    return Game


class MarioEnv(gymnasium.Env[NDArray[np.uint8], int]):
    """One stage of Super Mario Bros.

    Observation, actions, reward and infos are those of `hotloop/Platformer-v0`: uint8 [stack, size, size] as
    `chain` says (None: frames uint8 [240, 256, 3]); nothing, right, right + A, right + B, right + A + B, A,
    left; progress in pixels + change of the clock - 15 on death, clipped to +-15 in each frame; `x_pos`,
    `y_pos`, `coins`, `score`, `time`, `life`, `flag_get`, `status`. The game draws no random numbers.
    `max_episode_steps` truncates.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": FRAMES_PER_S}  # noqa: RUF012

    def __init__(
        self,
        *,
        world: int = 1,
        stage: int = 1,
        rom: str = "vanilla",
        chain: Chain | None = Chain(),  # noqa: B008 - frozen
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
    ):
        self.world, self.stage, self.rom = world, stage, rom
        self.chain, self.max_episode_steps, self.render_mode = (
            checked_chain(chain),
            max_episode_steps,
            render_mode,
        )
        self._check()
        self._game: Any = _game_class()(rom, (world, stage))
        shape = (HEIGHT, WIDTH, 3) if chain is None else chain.shape
        self.observation_space = Box(0, 255, shape, np.uint8)
        self.action_space = Discrete(len(BUTTONS))  # type: ignore[assignment]
        self.metadata = {**self.metadata, "render_fps": FRAMES_PER_S // (1 if chain is None else chain.skip)}
        self._elapsed = 0
        self._over = True
        self._stack: Any = None
        if chain is not None:
            from hotloop.rl.envs.chain_kernels import CompiledChain

            self._stack = CompiledChain(chain)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin the stage anew."""
        super().reset(seed=seed)
        frame = self._game.reset()
        self._elapsed, self._over = 0, False
        seen = frame.copy() if self._stack is None else self._stack.begin(frame)
        return seen, self._game.facts()

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Hold the buttons of an action for the frames of a step, or until the episode ends."""
        if self._over:
            raise HotloopError("step() without an episode: it has ended or not begun; call reset() first.")
        if not self.action_space.contains(action):
            raise HotloopError(f"action {action!r} is not in {self.action_space}.")
        reward, terminated = 0.0, False
        for _ in range(1 if self.chain is None else self.chain.skip):
            frame, gained, terminated, _ = self._game.step(BUTTONS[int(action)])
            reward += float(gained)
            if terminated:
                break
        self._elapsed += 1
        limit = self.max_episode_steps
        truncated = not terminated and limit is not None and self._elapsed >= limit
        self._over = bool(terminated or truncated)
        seen = frame.copy() if self._stack is None else self._stack.push(frame)
        return seen, reward, bool(terminated), truncated, self._game.facts()

    def render(self) -> NDArray[np.uint8] | None:  # type: ignore[override,unused-ignore]
        """The screen, uint8 [240, 256, 3], or None without a render mode."""
        return None if self.render_mode is None else np.ascontiguousarray(self._game.screen)

    def close(self) -> None:
        """End the emulator."""
        if self._game is not None:
            self._game.close()
            self._game = None

    def _check(self) -> None:
        for name, value, most in (("world", self.world, WORLDS), ("stage", self.stage, STAGES)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise HotloopError(f"{name}={value!r} does not exist; give a whole number from 1 to {most}.")
        if self.rom not in ROMS:
            raise HotloopError(f"rom={self.rom!r} is not known; use {', '.join(map(repr, ROMS))}.")
        limit: Any = self.max_episode_steps
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise HotloopError(
                f"max_episode_steps={limit!r} is not a number of steps; "
                "give a whole number of at least 1, or None for no limit but the clock."
            )
        if self.render_mode not in (None, "rgb_array"):
            raise HotloopError(f"render_mode={self.render_mode!r} is not known; use None or 'rgb_array'.")
