"""The plain path (`turbo=False`): recomputes the enabled transitions of each row from the dense matrices.

It has its own arrays and shares nothing with the compiled path. A step has three parts with their own
regions: firing, the enabled set, the observation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hotloop import profile
from hotloop.rl.envs.batch import NEXT_STEP, SAME_STEP
from hotloop.rl.envs.petri.net import KINDS, LARGEST

if TYPE_CHECKING:
    from hotloop.rl.envs.petri.env import PetriVectorEnv

_enabled_set = profile("env_enabled_set", category="environment")
_fire = profile("env_fire", category="environment")
_observation = profile("env_observation", category="environment")

_NONE = -1
CLOCK, DONE, SCRAPPED, DEAD, DISABLED = range(5)


class PlainRows:
    """The rows of a batch as numpy arrays; the first index is the row. `batch` owns the results."""

    def __init__(self, batch: PetriVectorEnv):
        self.batch, self.masks = batch, batch.masks
        self.net, self.config = net, config = batch.net, batch.config
        rows, count = batch.num_envs, len(net.places)
        self.pre, self.post = net.matrices()
        self.gain = self.post - self.pre
        # A transition needs fewer tokens than this, [places, transitions].
        self.inhibiting = np.full(self.pre.shape, LARGEST + 1)
        self.resetting = np.zeros(self.pre.shape, dtype=np.bool_)
        for transition, (inhibitors, resets) in enumerate(zip(net.inhibitors, net.resets, strict=True)):
            self.resetting[list(resets), transition] = True
            for place, weight in inhibitors:
                self.inhibiting[place, transition] = weight
        self.is_plain = not self.resetting.any() and not any(net.inhibitors)
        self.sizes = np.array(config.sizes_for(net))
        self.slots = config.slots_for(net)
        self.initial = np.array(net.initial)
        self.goal = np.array([place.goal for place in net.places])
        self.holding_s = np.array([place.holding_s for place in net.places])
        self.tracked = np.array([place.is_tracked for place in net.places])
        self.process = np.array([place.kind == "process" for place in net.places])
        self.limited = np.array([place.residence_s is not None for place in net.places])
        self.residence_s = np.array([place.residence_s or 0 for place in net.places])
        self.longest_s = self.holding_s + self.residence_s
        self.stay_share = 1.0 / np.where(self.longest_s > 0, self.longest_s, config.horizon_s)
        self.place_code = (np.arange(count) + 1) / count
        self.kind_code = np.array([(KINDS.index(place.kind) + 1) / len(KINDS) for place in net.places])
        self.positions = np.arange(int(self.sizes.max()))

        shape = (rows, count, len(self.positions))
        self.infos = np.zeros((rows, 5), dtype=np.int32)
        self.marking = np.zeros((rows, count), dtype=np.int32)
        self.usable = np.zeros((rows, count), dtype=np.int32)  # computed with the enabled set
        self.came_s = np.zeros(shape, dtype=np.int32)  # oldest first; only the first `marking` are valid
        self.slot = np.zeros(shape, dtype=np.int32)

    def arrays(self) -> dict[str, NDArray[np.int32]]:
        """Return all arrays that later steps depend on, for checkpoints."""
        names = ("infos", "marking", "came_s", "slot")
        return {f"plain_{name}": getattr(self, name) for name in names}

    def first_bad_row(self) -> int:
        """Return the first row whose action is invalid, or disabled if that is an error; -1 if none is."""
        actions = self.batch.actions
        bad = (actions < 0) | (actions > self.net.wait_action)
        if self.config.on_disabled == "error" and not bad.any():
            bad = ~self.masks[np.arange(len(actions)), actions] & ~self.batch.over
        return int(bad.argmax()) if bad.any() else -1

    def reset_rows(self, rows: list[int]) -> None:
        """Start new episodes."""
        for row in rows:
            self.infos[row] = 0
            self.marking[row] = self.initial
            self.came_s[row] = 0
            self.slot[row] = _NONE
            tracked = (self.positions < self.initial[:, None]) & self.tracked[:, None]
            numbers = np.cumsum(tracked).reshape(tracked.shape) - 1
            self.slot[row][tracked] = np.where(numbers < self.slots, numbers, _NONE)[tracked]
            self.infos[row, DONE] = np.minimum(self.marking[row], self.goal).sum()
        with _enabled_set:
            for row in rows:
                self._update_mask(row)
        with _observation:
            for row in rows:
                self._observe(row)

    def step_rows(self, start: int, stop: int) -> None:
        """Step a slice of the batch with checked actions, and reset rows as the mode says."""
        batch = self.batch
        renewed = [row for row in range(start, stop) if batch.mode == NEXT_STEP and batch.over[row]]
        stepped = [row for row in range(start, stop) if not (batch.mode == NEXT_STEP and batch.over[row])]
        with _fire:
            for row in stepped:
                self._act(row)
        with _enabled_set:
            for row in stepped:
                self._end(row, self._update_mask(row))
        with _observation:
            for row in stepped:
                self._observe(row)
        ended = [row for row in stepped if batch.terminated[row] or batch.truncated[row]]
        if batch.mode == SAME_STEP:
            for row in ended:
                batch.final_observations[row] = batch.observations[row]
                batch.final_masks[row] = self.masks[row]
                batch.final_state[row] = self.infos[row]
                batch.elapsed[row] = 0
            renewed += ended
        else:
            batch.over[ended] = True
        for row in renewed:
            if batch.mode == NEXT_STEP:
                batch.rewards[row], batch.elapsed[row] = 0.0, 0
                batch.terminated[row] = batch.truncated[row] = batch.over[row] = False
        if renewed:
            self.reset_rows(renewed)

    # ---- one row

    def _present(self, row: int) -> NDArray[np.bool_]:
        """Return which token positions are occupied, [places, positions]."""
        present: NDArray[np.bool_] = self.positions < self.marking[row][:, None]
        return present

    def _next_moment_s(self, row: int) -> int | None:
        usable_at = self.came_s[row] + self.holding_s[:, None]
        too_long = np.where(self.limited[:, None], usable_at + self.residence_s[:, None] + 1, usable_at)
        moments = np.concatenate([usable_at[self._present(row)], too_long[self._present(row)]])
        later = moments[moments > self.infos[row, CLOCK]]
        return int(later.min()) if later.size else None

    def _act(self, row: int) -> None:
        """Fire or wait, and add that part of the reward."""
        config, batch, info = self.config, self.batch, self.infos[row]
        action, before_s = int(batch.actions[row]), int(info[CLOCK])
        disabled = not self.masks[row, action]
        processed = 0
        if not disabled and action != self.net.wait_action:
            processed = int(self.pre[self.process, action].sum())
            self._fire_transition(row, action)
        elif self.net.wait_s is not None:
            info[CLOCK] += self.net.wait_s
        else:
            moment_s = self._next_moment_s(row)
            info[CLOCK] = before_s if moment_s is None else moment_s
        info[DISABLED] = disabled
        batch.elapsed[row] += 1

        exposed = self._present(row) & self.limited[:, None]
        usable_at = (self.came_s[row] + self.holding_s[:, None])[exposed]
        scrap_at = (self.came_s[row] + self.longest_s[:, None])[exposed]
        overtime_s = np.maximum(info[CLOCK] - np.maximum(usable_at, before_s), 0).sum()
        scrapped = (info[CLOCK] > scrap_at).sum()
        info[SCRAPPED] = scrapped
        info[DONE] = np.minimum(self.marking[row], self.goal).sum()
        reward = config.processing_reward * processed
        reward -= config.time_penalty_per_s * int(info[CLOCK] - before_s)
        reward -= config.overtime_penalty_per_s * int(overtime_s)
        reward -= config.scrap_penalty * int(scrapped)
        if disabled:
            reward -= config.disabled_penalty
        batch.rewards[row] = reward

    def _fire_transition(self, row: int, transition: int) -> None:
        hand: list[int] = []
        for place in np.flatnonzero(self.pre[:, transition]):
            weight = self.pre[place, transition]
            if self.tracked[place]:
                hand += self.slot[row, place, :weight].tolist()
            self.came_s[row, place] = np.roll(self.came_s[row, place], -weight)
            self.slot[row, place] = np.roll(self.slot[row, place], -weight)
            self.marking[row, place] -= weight
            self.slot[row, place, self.marking[row, place] :] = _NONE
        for place in self.net.resets[transition]:
            self.marking[row, place] = 0
            self.slot[row, place] = _NONE
        self.infos[row, CLOCK] += self.net.transitions[transition].firing_s
        for place in np.flatnonzero(self.post[:, transition]):
            for _ in range(self.post[place, transition]):
                position = self.marking[row, place]
                self.came_s[row, place, position] = self.infos[row, CLOCK]
                if self.tracked[place]:
                    self.slot[row, place, position] = hand.pop(0) if hand else self._free_slot(row)
                self.marking[row, place] += 1

    def _free_slot(self, row: int) -> int:
        free = np.setdiff1d(np.arange(self.slots), self.slot[row])
        return int(free[0]) if free.size else _NONE

    def _update_mask(self, row: int) -> bool:
        """Compute the row's mask from the matrices; return True if the net is dead."""
        usable_at = self.came_s[row] + self.holding_s[:, None]
        is_usable = self._present(row) & (usable_at <= self.infos[row, CLOCK])
        self.usable[row] = is_usable.sum(axis=1)
        has_tokens = (self.usable[row][:, None] >= self.pre).all(axis=0)
        after = self.marking[row][:, None] + self.gain
        if not self.is_plain:
            has_tokens &= (self.marking[row][:, None] < self.inhibiting).all(axis=0)
            after = np.where(self.resetting, self.post, after)
        has_room = (after <= self.sizes[:, None]).all(axis=0)
        self.masks[row, :-1] = has_tokens & has_room
        self.masks[row, -1] = True
        any_enabled = bool(self.masks[row, :-1].any())
        if self.net.wait_s is not None and any_enabled:
            return False
        has_moment = self._next_moment_s(row) is not None
        self.masks[row, -1] = self.net.wait_s is not None or has_moment
        return not has_moment and not any_enabled

    def _end(self, row: int, is_stuck: bool) -> None:
        """Set the row's flags and add the rest of the reward."""
        config, batch, info = self.config, self.batch, self.infos[row]
        finished = self.net.has_goal and bool(info[DONE] == self.goal.sum()) and not info[SCRAPPED]
        dead = is_stuck and not finished and not info[SCRAPPED]
        if finished:
            batch.rewards[row] += config.finish_bonus
        if dead:
            batch.rewards[row] -= config.dead_penalty
        info[DEAD] = dead
        terminated = bool(info[SCRAPPED]) or finished or dead
        late = info[CLOCK] >= config.time_limit_s or batch.elapsed[row] >= config.max_steps
        batch.terminated[row] = terminated
        batch.truncated[row] = late and not terminated
        if terminated or late:
            self.masks[row] = False
            self.masks[row, -1] = True

    def _observe(self, row: int) -> None:
        """Write the row's observation, in the order of `PetriRules.observation`."""
        clock_s, share = int(self.infos[row, CLOCK]), 1.0 / self.config.horizon_s
        marking, seen = self.marking[row], self.batch.observations[row]
        left_s = self.came_s[row] + self.holding_s[:, None] - clock_s
        usable = np.minimum(np.maximum(left_s, 0) * share, 1.0)
        scrap = np.minimum(np.maximum(left_s + self.residence_s[:, None], 0) * share, 1.0)
        scrap[~self.limited] = 1.0
        seen[0] = min(clock_s * (1.0 / self.config.time_limit_s), 1.0)
        of_places = seen[1 : 1 + 4 * len(marking)].reshape(-1, 4)
        of_places[:, 0] = marking * (1.0 / self.sizes)
        of_places[:, 1] = self.usable[row] * (1.0 / self.sizes)
        of_places[:, 2] = np.where(marking > 0, usable[:, 0], 0.0)
        of_places[:, 3] = np.where(marking > 0, scrap[:, 0], 1.0)
        of_slots = seen[1 + 4 * len(marking) :].reshape(-1, 5)
        of_slots[:] = (0.0, 0.0, 0.0, 0.0, 1.0)
        places, positions = np.nonzero(self._present(row) & (self.slot[row] >= 0))
        stayed_s = clock_s - self.came_s[row, places, positions]
        slots = self.slot[row, places, positions]
        of_slots[slots, 0] = self.place_code[places]
        of_slots[slots, 1] = self.kind_code[places]
        of_slots[slots, 2] = np.minimum(stayed_s * self.stay_share[places], 1.0)
        of_slots[slots, 3] = usable[places, positions]
        of_slots[slots, 4] = scrap[places, positions]
