"""The settings of the Petri environment: what is rewarded, when an episode is cut, what is observed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.petri.net import LARGEST, Net

OnDisabled = Literal["wait", "error"]

# One number for the clock, then so many for each place and for each token slot.
PLACE_FEATURES = 4
TOKEN_FEATURES = 5
_MOST_TOKENS = 100_000


@dataclass(frozen=True, slots=True)
class PetriConfig:
    """Settings; penalties are given as positive numbers and subtracted."""

    time_limit_s: int = 5_000  # truncated once the clock has come so far
    max_steps: int = 10_000  # truncated after so many steps; matters where firing takes no time
    processing_reward: float = 1.0  # for each token taken out of a process place
    time_penalty_per_s: float = 0.001  # for each second the clock moves
    overtime_penalty_per_s: float = 0.02  # for each second and token beyond its processing time
    scrap_penalty: float = 10.0  # for each token that stayed too long
    dead_penalty: float = 10.0  # when nothing can ever happen again
    disabled_penalty: float = 0.1  # for choosing an action that is not enabled
    finish_bonus: float = 10.0  # when every place has reached its goal
    on_disabled: OnDisabled = "wait"  # what choosing such an action does: WAIT instead, or an error
    horizon_s: int = 60  # times to come are observed in units of this, cut at 1
    token_slots: int | None = None  # tokens observed one by one; None: as many as there are at the start
    token_limit: int | None = None  # capacity of places that have none; None: 64 or the initial tokens

    def __post_init__(self) -> None:
        for name in ("time_limit_s", "max_steps", "horizon_s", "token_slots", "token_limit"):
            value = getattr(self, name)
            if value is None and name.startswith("token"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
                raise HotloopError(
                    f"{name}={value!r} is not allowed; give a whole number from 1 to {LARGEST:,}."
                )
        for name in _REWARDS:
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                raise HotloopError(f"{name}={value!r} is not allowed; give a finite number.")
        if self.on_disabled not in get_args(OnDisabled):
            raise HotloopError(f"on_disabled={self.on_disabled!r} is not known; use 'wait' or 'error'.")

    def slots_for(self, net: Net) -> int:
        """How many tokens are observed one by one."""
        at_start = sum(place.tokens for place in net.places if place.is_tracked)
        return max(1, at_start) if self.token_slots is None else self.token_slots

    def sizes_for(self, net: Net) -> list[int]:
        """The most tokens each place holds in the environment: its capacity, or the token limit."""
        limit = max(64, *net.initial, *(place.goal for place in net.places))
        if self.token_limit is not None:
            limit = self.token_limit
        for place in net.places:
            if place.capacity is None and max(place.tokens, place.goal) > limit:
                raise HotloopError(
                    f"token_limit={limit} is too small: place {place.name!r} begins with {place.tokens} "
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
