"""`hotloop/Petri-v0`: timed Petri nets as environments, by default a cluster tool."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.batch import SAME_STEP, BatchedEnv
from hotloop.rl.envs.petri import kernels
from hotloop.rl.envs.petri.cluster_tool import cluster_tool
from hotloop.rl.envs.petri.config import PetriConfig
from hotloop.rl.envs.petri.net import Net
from hotloop.rl.envs.petri.plain import PlainRows
from hotloop.rl.envs.petri.program import pack
from hotloop.rl.envs.petri.render import draw
from hotloop.rl.envs.single import SingleEnv

_NUMBERS = {"clock": kernels.CLOCK, "wafers_done": kernels.DONE, "scrapped": kernels.SCRAPPED}
_FLAGS = {"dead": kernels.DEAD, "disabled": kernels.WAS_DISABLED}
_ROW_MASKS = tuple(f"_{name}" for name in ("action_mask", *_NUMBERS, *_FLAGS))
_LOWEST_BYTE = 0 if sys.byteorder == "little" else 3


class PetriVectorEnv(BatchedEnv):
    """Many copies of one net. Actions: fire transition 0 .. T - 1, or T = WAIT.

    `net` defaults to the cluster tool with `wafers` wafers. `turbo=True` steps the batch in one compiled
    call that updates the set of enabled transitions; `turbo=False` recomputes it row by row from the dense
    matrices with numpy. Both give the same trajectories, observations, masks and infos.

    Observations float32 [num_envs, 1 + 4 places + 5 slots] in 0..1, see `PetriRules.observation`. Infos:
    `action_mask` bool [num_envs, T + 1], `clock` (s), `wafers_done`, `scrapped`, `dead`, `disabled` (the
    chosen action was not enabled), each with its `_name` row mask.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        net: Net | None = None,
        wafers: int | None = None,
        config: PetriConfig | None = None,
        turbo: bool = True,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        num_threads: int = 1,
        copy: bool = True,
        render_mode: str | None = None,
    ):
        if not isinstance(turbo, bool):
            raise HotloopError(f"turbo={turbo!r} is not a bool; use True (compiled) or False (numpy).")
        self.net = _chosen_net(net, wafers)
        self.config = PetriConfig() if config is None else config
        self.turbo = turbo
        super().__init__(
            num_envs,
            gymnasium.spaces.Box(0.0, 1.0, (self.config.observation_size(self.net),), np.float32),
            gymnasium.spaces.Discrete(len(self.net.transitions) + 1),
            autoreset_mode=autoreset_mode,
            num_threads=num_threads,
            copy=copy,
            render_mode=render_mode,
        )
        self._every_row = np.ones(num_envs, dtype=np.bool_)
        self.masks = np.zeros((num_envs, len(self.net.transitions) + 1), dtype=np.bool_)
        finals = num_envs if self.mode == SAME_STEP else 1
        self.final_masks = np.zeros((finals, self.masks.shape[1]), dtype=np.bool_)
        self.final_state = np.zeros((finals, kernels.INFOS), dtype=np.int32)
        if turbo:
            self.program = pack(self.net, self.config)
            self.state = np.zeros((num_envs, self.program.width), dtype=np.int32)
        else:
            self.plain = PlainRows(self)
            self.state = self.plain.infos
        self._views = _views(self.masks, self.state)
        self._final_views = _views(self.final_masks, self.final_state)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild the views: a copy has its own arrays."""
        self.__dict__.update(state)
        self._views = _views(self.masks, self.state)
        self._final_views = _views(self.final_masks, self.final_state)

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the enabled actions as a new array, bool [num_envs, T + 1]."""
        return self.masks.copy()

    def tokens_of(self, row: int) -> list[list[tuple[int, int]]]:
        """Return the tokens of one row by place, oldest first, as (arrival time in s, slot or -1)."""
        places = range(len(self.net.places))
        if not self.turbo:
            of = self.plain
            came_s, slots, counts = of.came_s[row].tolist(), of.slot[row].tolist(), of.marking[row]
            return [list(zip(came_s[p], slots[p], strict=True))[: counts[p]] for p in places]
        values, code = self.state[row].tolist(), self.program.code
        found = []
        for place in places:
            at = code[kernels.IN_PLACES + place * kernels.PLACE_WIDTH + kernels.AT_TOKENS]
            end = at + 2 * values[code[kernels.AT_MARKING] + place]
            found.append(list(zip(values[at:end:2], values[at + 1 : end : 2], strict=True)))
        return found

    # ---- methods that BatchedEnv calls

    def _step_threads(self) -> int:
        # A step changes masks, so all actions are checked before any thread starts.
        self._refuse(self._first_bad_row())
        return super()._step_threads()

    def _step_rows(self, start: int, stop: int) -> int:
        check = self.num_threads == 1
        if not self.turbo:
            self._refuse(self._first_bad_row() if check else -1)
            self.plain.step_rows(start, stop)
            return -1
        bad = kernels.step_rows(
            self.program.code,
            self.program.scales,
            self.state,
            self.masks,
            self.observations,
            self.rewards,
            self.terminated,
            self.truncated,
            self.over,
            self.elapsed,
            self.actions,
            self.final_observations,
            self.final_masks,
            self.final_state,
            start,
            stop,
            self.mode,
            check,
        )
        self._refuse(bad)
        return -1

    def _first_bad_row(self) -> int:
        if not self.turbo:
            return self.plain.first_bad_row()
        return kernels.first_bad_row(self.program.code, self.masks, self.over, self.actions, 0, self.num_envs)

    def _refuse(self, row: int) -> None:
        if row < 0:
            return
        action = int(self.actions[row])
        if not 0 <= action <= self.net.wait_action:
            raise HotloopError(
                f"action {action} of row {row} is not in {self.single_action_space}; nothing was stepped."
            )
        name = "WAIT" if action == self.net.wait_action else self.net.transition_names[action]
        raise HotloopError(
            f"action {action} ({name}) of row {row} is not enabled and nothing was stepped; choose where "
            "infos['action_mask'] is True, or create the environment with PetriConfig(on_disabled='wait')."
        )

    def _reset_rows(self, rows: NDArray[np.bool_]) -> None:
        if self.turbo:
            kernels.reset_rows(
                self.program.code, self.program.scales, self.state, self.masks, self.observations, rows
            )
        else:
            self.plain.reset_rows(np.flatnonzero(rows).tolist())

    def _step_infos(self) -> dict[str, Any]:
        return self._handed_out(self._views, self._every_row)

    def _final_infos(self) -> dict[str, Any]:
        return self._handed_out(self._final_views, self.terminated | self.truncated)

    def _handed_out(self, views: dict[str, NDArray[Any]], rows: NDArray[np.bool_]) -> dict[str, Any]:
        """Return infos as views or copies, with the valid rows under each `_name`."""
        infos = {name: view.copy() for name, view in views.items()} if self.copy else dict(views)
        return infos | dict.fromkeys(_ROW_MASKS, rows.copy() if self.copy else rows)

    def _state_arrays(self) -> dict[str, NDArray[Any]]:
        own = {"masks": self.masks}
        if self.turbo:
            return {**super()._state_arrays(), **own, "state": self.state}
        return {**super()._state_arrays(), **own, **self.plain.arrays()}

    def _render_row(self, row: int) -> NDArray[np.uint8]:
        return draw(self.net, self.tokens_of(row), int(self.state[row, kernels.CLOCK]))


class PetriEnv(SingleEnv):
    """One net; see `PetriVectorEnv`. sb3-contrib's MaskablePPO calls `action_masks()`."""

    def __init__(
        self,
        *,
        net: Net | None = None,
        wafers: int | None = None,
        config: PetriConfig | None = None,
        turbo: bool = True,
        render_mode: str | None = None,
    ):
        batch = PetriVectorEnv(
            1,
            net=net,
            wafers=wafers,
            config=config,
            turbo=turbo,
            autoreset_mode=AutoresetMode.DISABLED,
            render_mode=render_mode,
        )
        super().__init__(batch)
        self.net, self.config = batch.net, batch.config

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the enabled actions as a new array, bool [T + 1]."""
        masks: NDArray[np.bool_] = self.batch.masks[0].copy()  # type: ignore[attr-defined]
        return masks


def _views(masks: NDArray[np.bool_], state: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
    """Return the infos as views; a flag is the lowest byte of its integer, 0 or 1."""
    views: dict[str, NDArray[Any]] = {"action_mask": masks}
    views |= {name: state[:, column] for name, column in _NUMBERS.items()}
    for name, column in _FLAGS.items():
        views[name] = state[:, column : column + 1].view(np.bool_)[:, _LOWEST_BYTE]
    return views


def _chosen_net(net: Net | None, wafers: int | None) -> Net:
    if net is None:
        return cluster_tool() if wafers is None else cluster_tool(wafers)
    if wafers is not None:
        raise HotloopError(
            f"wafers={wafers} applies to the cluster tool only, but net was passed, too; "
            "pass one of them, e.g. net=cluster_tool(wafers)."
        )
    return net
