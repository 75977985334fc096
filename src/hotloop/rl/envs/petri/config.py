"""Settings of the Petri environment: rewards, truncation, observations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.petri.net import LARGEST, Net

OnDisabled = Literal["wait", "error"]

# Observation values: one for the clock, then these for each place and each token slot.
PLACE_FEATURES = 4
TOKEN_FEATURES = 5
_MOST_TOKENS = 100_000


@dataclass(frozen=True, slots=True)
class PetriConfig:
    """Settings. Penalties are positive numbers that are subtracted."""

    time_limit_s: int = 5_000  # truncate when the clock reaches this
    max_steps: int = 10_000  # truncate after this many steps; matters if firing takes no time
    processing_reward: float = 1.0  # per token taken out of a process place
    time_penalty_per_s: float = 0.001  # per second that the clock advances
    overtime_penalty_per_s: float = 0.02  # per second and token beyond its processing time
    scrap_penalty: float = 10.0  # per token that stayed too long
    dead_penalty: float = 10.0  # when the net is dead
    disabled_penalty: float = 0.1  # for choosing a disabled action
    finish_bonus: float = 10.0  # when every place has reached its goal
    on_disabled: OnDisabled = "wait"  # what a disabled action does: WAIT instead, or raise
    horizon_s: int = 60  # future times are observed in units of this, clipped to 1
    token_slots: int | None = None  # tokens observed individually; None: the initial number
    token_limit: int | None = None  # capacity of places without one; None: 64 or the initial tokens

    def __post_init__(self) -> None:
        for name in ("time_limit_s", "max_steps", "horizon_s", "token_slots", "token_limit"):
            value = getattr(self, name)
            if value is None and name.startswith("token"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
                raise HotloopError(
                    f"{name}={value!r} is not allowed; use a whole number from 1 to {LARGEST:,}."
                )
        for name in _REWARDS:
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                raise HotloopError(f"{name}={value!r} is not allowed; use a finite number.")
        if self.on_disabled not in get_args(OnDisabled):
            raise HotloopError(f"unknown on_disabled={self.on_disabled!r}; use 'wait' or 'error'.")

    def slots_for(self, net: Net) -> int:
        """Return the number of tokens observed individually."""
        at_start = sum(place.tokens for place in net.places if place.is_tracked)
        return max(1, at_start) if self.token_slots is None else self.token_slots

    def sizes_for(self, net: Net) -> list[int]:
        """Return the most tokens in each place: its capacity, or the token limit."""
        limit = max(64, *net.initial, *(place.goal for place in net.places))
        if self.token_limit is not None:
            limit = self.token_limit
        for place in net.places:
            if place.capacity is None and max(place.tokens, place.goal) > limit:
                raise HotloopError(
                    f"token_limit={limit} is too small: place {place.name!r} starts with {place.tokens} "
                    f"tokens and has goal {place.goal}; raise token_limit."
                )
        sizes = [limit if place.capacity is None else place.capacity for place in net.places]
        if sum(sizes) > _MOST_TOKENS:
            raise HotloopError(
                f"the places of net {net.name!r} may hold {sum(sizes):,} tokens together; there is "
                f"room for {_MOST_TOKENS:,}: lower capacities or token_limit (now {limit:,})."
            )
        return sizes

    def observation_size(self, net: Net) -> int:
        """Length of the observation vector."""
        return 1 + PLACE_FEATURES * len(net.places) + TOKEN_FEATURES * self.slots_for(net)


_REWARDS = (
    "processing_reward",
    "time_penalty_per_s",
    "overtime_penalty_per_s",
    "scrap_penalty",
    "dead_penalty",
    "disabled_penalty",
    "finish_bonus",
)
