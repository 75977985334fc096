"""The Petri environment for one net in plain Python: the reference for the fast paths.

The rules in detail:

1. Every place is a queue. A token that arrives at time a is usable from a + holding_s on. Transitions take
   the oldest tokens, and only usable ones. Initial tokens arrive at 0.
2. Firing removes its input tokens, empties the places that it resets, advances the clock by firing_s and then
   appends its output tokens, which arrive at the new time, to their queues in the order of places. One
   transition fires at a time. An inhibitor arc of weight w disables its transition while the place holds w
   tokens or more, usable or not. Where a transition resets a place, only what it puts there needs room.
3. WAIT advances the clock by wait_s, or until the next token becomes usable or has stayed too long. In this
   second form it is enabled only if there is such a time.
4. A token that stays longer than holding_s + residence_s in a place with a residence limit is scrapped. This
   is checked after the clock has advanced; at exactly the limit a token is still good. In the cluster tool,
   only process chambers have a limit: load port, buffer, robots and finished wafers have none.
5. The processing reward is paid when a token is taken out of a process place: it was usable, hence
   processed, and not scrapped.
6. Overtime is the time that tokens spend in places with a limit after becoming usable, summed over tokens
   and counted within the step.
7. Tokens in places that are not resources (wafers, jobs) have a slot number, by which they are observed. A
   firing passes the numbers of its input tokens, in order, to its output tokens. Additional output tokens get
   the smallest free number, or none (then they are counted but not observed individually). Numbers that are
   not passed on become free, as do those of tokens removed by a reset, which earn no processing reward.
8. Terminated: a token was scrapped; every place has at least its goal; or the net is dead: nothing is
   enabled, no token will become usable and none can be scrapped. Scrapping takes precedence: an episode with
   a scrapped token is not finished. Truncated, if not terminated: the clock has reached time_limit_s, or
   max_steps steps were taken.
9. A disabled action raises an error, or counts as WAIT with a penalty (`on_disabled`). A disabled WAIT
   changes nothing.
10. After the end only WAIT is marked as enabled, so that masks are never empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.petri.config import PetriConfig
from hotloop.rl.envs.petri.net import KINDS, Net

Token = tuple[int, int]  # (arrival time, slot number or -1)


class PetriRules:
    """One net. Public attributes are read-only, and valid after `reset`."""

    def __init__(self, net: Net, config: PetriConfig | None = None):
        self.net = net
        self.config = config or PetriConfig()
        self.sizes = self.config.sizes_for(net)
        self.slots = self.config.slots_for(net)
        self.clock_s = 0
        self.elapsed = 0  # steps in this episode
        self.queues: list[list[Token]] = []  # tokens of each place, oldest first
        self.enabled: list[bool] = []  # for each action, WAIT last
        self.scrapped = 0
        self.done = 0  # tokens that have reached the goal
        self.is_finished = False
        self.is_dead = False
        self.was_disabled = False
        self.is_over = True  # until the first reset

    def reset(self) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start at the initial marking and clock 0; nothing is random."""
        self.clock_s = 0
        self.elapsed = 0
        self.is_over = False
        self.was_disabled = False
        self.queues = [[] for _ in self.net.places]
        for place, of in enumerate(self.net.places):
            for _ in range(of.tokens):
                self.queues[place].append((0, self._free_slot() if of.is_tracked else -1))
        self._update_status()
        return self.observation(), self.info()

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Fire a transition, or WAIT."""
        if self.is_over:
            raise HotloopError("the episode has ended; call reset() before the next step.")
        self.was_disabled = not self.enabled[action]
        if self.was_disabled and self.config.on_disabled == "error":
            raise HotloopError(f"{self.name_of(action)} is not enabled at {self.clock_s} s.")
        before_s = self.clock_s
        processed = 0
        if action == self.net.wait_action or self.was_disabled:
            self.clock_s = self._clock_after_wait()
        else:
            processed = self._fire(action)
        self.elapsed += 1
        self._update_status()

        config = self.config
        reward = config.processing_reward * processed
        reward -= config.time_penalty_per_s * (self.clock_s - before_s)
        reward -= config.overtime_penalty_per_s * self._overtime_since(before_s)
        reward -= config.scrap_penalty * self.scrapped
        if self.was_disabled:
            reward -= config.disabled_penalty
        if self.is_finished:
            reward += config.finish_bonus
        if self.is_dead:
            reward -= config.dead_penalty
        terminated = self.scrapped > 0 or self.is_finished or self.is_dead
        truncated = not terminated and (
            self.clock_s >= config.time_limit_s or self.elapsed >= config.max_steps
        )
        self.is_over = terminated or truncated
        if self.is_over:
            self.enabled = [False] * len(self.net.transitions) + [True]
        return self.observation(), reward, terminated, truncated, self.info()

    def name_of(self, action: int) -> str:
        """Return the name of an action."""
        return (
            "WAIT" if action == self.net.wait_action else f"transition {self.net.transition_names[action]!r}"
        )

    # ---- the net

    def _usable(self, place: int) -> int:
        holding_s = self.net.places[place].holding_s
        return sum(came_s + holding_s <= self.clock_s for came_s, _ in self.queues[place])

    def _is_enabled(self, transition: int, usable: list[int]) -> bool:
        takes = dict(self.net.takes[transition])
        if any(usable[place] < weight for place, weight in takes.items()):
            return False
        if any(len(self.queues[place]) >= weight for place, weight in self.net.inhibitors[transition]):
            return False
        for place, weight in self.net.puts[transition]:
            left = len(self.queues[place]) - takes.get(place, 0)
            if place in self.net.resets[transition]:
                left = 0
            if left + weight > self.sizes[place]:
                return False
        return True

    def _update_status(self) -> None:
        """Update what is enabled, scrapped, finished and dead."""
        places = self.net.places
        usable = [self._usable(place) for place in range(len(places))]
        self.enabled = [self._is_enabled(one, usable) for one in range(len(self.net.transitions))]
        self.scrapped = sum(
            self.clock_s > came_s + of.holding_s + of.residence_s
            for of, queue in zip(places, self.queues, strict=True)
            if of.residence_s is not None
            for came_s, _ in queue
        )
        self.done = sum(min(len(queue), of.goal) for of, queue in zip(places, self.queues, strict=True))
        self.is_finished = (
            self.net.has_goal and self.done == sum(of.goal for of in places) and self.scrapped == 0
        )
        has_moment = self._next_moment_s() is not None
        self.is_dead = not (any(self.enabled) or has_moment or self.is_finished or self.scrapped)
        self.enabled.append(self.net.wait_s is not None or has_moment)

    def _next_moment_s(self) -> int | None:
        """Return the next time at which a token becomes usable or has stayed too long."""
        moments = []
        for of, queue in zip(self.net.places, self.queues, strict=True):
            for came_s, _ in queue:
                moments.append(came_s + of.holding_s)
                if of.residence_s is not None:
                    moments.append(came_s + of.holding_s + of.residence_s + 1)
        return min((moment for moment in moments if moment > self.clock_s), default=None)

    def _clock_after_wait(self) -> int:
        if self.net.wait_s is not None:
            return self.clock_s + self.net.wait_s
        moment_s = self._next_moment_s()
        return self.clock_s if moment_s is None else moment_s

    def _fire(self, transition: int) -> int:
        """Fire an enabled transition; return how many tokens left process places."""
        processed = 0
        slots = []
        for place, weight in self.net.takes[transition]:
            taken, self.queues[place] = self.queues[place][:weight], self.queues[place][weight:]
            slots += [slot for _, slot in taken if self.net.places[place].is_tracked]
            processed += weight if self.net.places[place].kind == "process" else 0
        for place in self.net.resets[transition]:
            self.queues[place] = []
        self.clock_s += self.net.transitions[transition].firing_s
        for place, weight in self.net.puts[transition]:
            for _ in range(weight):
                slot = -1
                if self.net.places[place].is_tracked:
                    slot = slots.pop(0) if slots else self._free_slot()
                self.queues[place].append((self.clock_s, slot))
        return processed

    def _free_slot(self) -> int:
        used = {slot for queue in self.queues for _, slot in queue}
        return next((slot for slot in range(self.slots) if slot not in used), -1)

    def _overtime_since(self, before_s: int) -> int:
        overtime_s = 0
        for of, queue in zip(self.net.places, self.queues, strict=True):
            if of.residence_s is not None:
                for came_s, _ in queue:
                    overtime_s += max(0, self.clock_s - max(before_s, came_s + of.holding_s))
        return overtime_s

    # ---- results

    def info(self) -> dict[str, Any]:
        return {
            "action_mask": np.array(self.enabled, dtype=np.bool_),
            "clock": self.clock_s,
            "wafers_done": self.done,
            "scrapped": self.scrapped,
            "dead": self.is_dead,
            "disabled": self.was_disabled,
        }

    def observation(self) -> NDArray[np.float32]:
        """Return float32 in 0..1: the clock, four values for each place, five for each token slot.

        Clock: fraction of the time limit. Place: tokens and usable tokens as fractions of its size, then
        for its oldest token the time until it is usable and until it is scrapped. Slot: place and kind of
        place (numbered from 1, as fractions; 0: no token), time since arrival as a fraction of the longest
        allowed stay, time until usable and until scrapped. Future times are in units of horizon_s, clipped
        to 1, which also means "never".
        """
        values = [min(self.clock_s * (1.0 / self.config.time_limit_s), 1.0)]
        where: dict[int, tuple[int, int]] = {}
        for place, queue in enumerate(self.queues):
            share = 1.0 / self.sizes[place]
            values += [len(queue) * share, self._usable(place) * share]
            values += self._times(place, queue[0][0]) if queue else [0.0, 1.0]
            where.update({slot: (place, came_s) for came_s, slot in queue})
        for slot in range(self.slots):
            if slot not in where:
                values += [0.0, 0.0, 0.0, 0.0, 1.0]
                continue
            place, came_s = where[slot]
            of = self.net.places[place]
            longest_s = of.holding_s + (of.residence_s or 0) or self.config.horizon_s
            values.append((place + 1) / len(self.queues))
            values.append((KINDS.index(of.kind) + 1) / len(KINDS))
            values.append(min((self.clock_s - came_s) * (1.0 / longest_s), 1.0))
            values += self._times(place, came_s)
        return np.array(values, dtype=np.float32)

    def _times(self, place: int, came_s: int) -> list[float]:
        of = self.net.places[place]
        share = 1.0 / self.config.horizon_s
        usable_in_s = came_s + of.holding_s - self.clock_s
        usable = min(max(usable_in_s, 0) * share, 1.0)
        if of.residence_s is None:
            return [usable, 1.0]
        return [usable, min(max(usable_in_s + of.residence_s, 0) * share, 1.0)]
