"""The compiled path: the set of enabled transitions is updated, not recomputed; a batch is one call.

Each transition has a count of its unmet conditions (a place with too few usable tokens or too little room)
and is enabled if the count is 0. When the tokens of a place change, only the transitions that depend on it
are updated. `reset_row` and `step_row` may be called from other kernels.

The net is one integer array, `code`, and one float array, `scales` (see program.py); a row is one line of
`state`. There are few arrays because passing one costs more than a step of a small net: with the same data in
nineteen arrays, a step took 5.6 us instead of 0.5 us.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.batch import NEXT_STEP, SAME_STEP
from hotloop.rl.envs.compiled import kernel

# Header of `code`: sizes of the net, limits, and offsets of the blocks in `code` and in a state row.
PLACES, TRANSITIONS, SLOTS, WAIT, TIME_LIMIT, MAX_STEPS, STRICT, ALL_GOALS = range(8)
IN_TRANSITIONS, IN_TIMED, TIMED_END, IN_LIMITED, LIMITED_END = range(8, 13)
AT_MARKING, AT_USABLE, AT_LACKING, AT_SLOT_PLACE, AT_SLOT_CAME, AT_HAND, WIDTH = range(13, 20)
IN_PLACES = 20
# A place; lists are ranges of `code` (first, last + 1), tokens a column of a state row.
SIZE, HOLDING, RESIDENCE, GOAL, TRACKED, TOKENS, TAKERS, GROWERS, INHIBITED, INHIBITED_END = range(10)
AT_TOKENS = 10
PLACE_WIDTH = 11
# A transition. LACKING: unmet conditions if all places are empty.
TAKES, PUTS, RESETS, RESETS_END, FIRING, PROCESSED, LACKING = range(7)
TRANSITION_WIDTH = 7
# `scales`: the rewards, then four numbers for each place.
PROCESSING, TIME, OVERTIME, SCRAP, DEAD_END, DISABLED, FINISH, HORIZON_SHARE, LIMIT_SHARE = range(9)
OF_PLACES = 9
SHARE, STAY_SHARE, PLACE_CODE, KIND_CODE = range(4)
SCALE_WIDTH = 4
# A state row: infos, then counts that avoid a search. EXPOSED: tokens with a residence limit.
CLOCK, DONE, SCRAPPED, DEAD, WAS_DISABLED = range(5)
INFOS = 5
HELD, NEXT_USABLE, EXPOSED, ENABLED = range(5, 9)
HEADER = 9
NEVER = 2**31 - 1

Code = NDArray[np.int32]
Scales = NDArray[np.float64]
State = NDArray[np.int32]  # [rows, WIDTH]
Masks = NDArray[np.bool_]  # [rows, transitions + 1]
Seen = NDArray[np.float32]  # observations, [rows, 1 + 4 places + 5 slots]
Flags = NDArray[np.bool_]  # [rows]


@kernel
def _note(code: Code, state: State, masks: Masks, row: int, transition: int, held: bool, holds: bool) -> None:
    """Update a transition's count and mask after one of its conditions changed from `held` to `holds`."""
    if held == holds:
        return
    at = code[AT_LACKING] + transition
    if holds:
        state[row, at] -= 1
        if state[row, at] == 0:
            masks[row, transition] = True
            state[row, ENABLED] += 1
    else:
        if state[row, at] == 0:
            masks[row, transition] = False
            state[row, ENABLED] -= 1
        state[row, at] += 1


@kernel
def _set_marking(code: Code, state: State, masks: Masks, row: int, place: int, count: int) -> None:
    of, at = IN_PLACES + place * PLACE_WIDTH, code[AT_MARKING] + place
    before = state[row, at]
    state[row, at] = count
    goal, size = code[of + GOAL], code[of + SIZE]
    state[row, DONE] += min(count, goal) - min(before, goal)
    if code[of + RESIDENCE] >= 0:
        state[row, EXPOSED] += count - before
    for link in range(code[of + GROWERS], code[of + INHIBITED], 2):
        gain = code[link + 1]
        _note(code, state, masks, row, code[link], before + gain <= size, count + gain <= size)
    for link in range(code[of + INHIBITED], code[of + INHIBITED_END], 2):
        _note(code, state, masks, row, code[link], before < code[link + 1], count < code[link + 1])


@kernel
def _set_usable(code: Code, state: State, masks: Masks, row: int, place: int, count: int) -> None:
    of, at = IN_PLACES + place * PLACE_WIDTH, code[AT_USABLE] + place
    before = state[row, at]
    state[row, at] = count
    for link in range(code[of + TAKERS], code[of + GROWERS], 2):
        weight = code[link + 1]
        _note(code, state, masks, row, code[link], before >= weight, count >= weight)


@kernel
def _free_slot(code: Code, state: State, row: int) -> int:
    at = code[AT_SLOT_PLACE]
    for slot in range(code[SLOTS]):
        if state[row, at + slot] < 0:
            return slot
    return -1


@kernel
def _put(
    code: Code, state: State, masks: Masks, row: int, place: int, weight: int, given: int, hand: int
) -> int:
    """Add tokens now; tracked ones take slots from the hand, from `given` on. Return the next one."""
    of = IN_PLACES + place * PLACE_WIDTH
    count, clock_s = state[row, code[AT_MARKING] + place], state[row, CLOCK]
    for position in range(count, count + weight):
        slot = -1
        if code[of + TRACKED]:
            if given < hand:
                slot = state[row, code[AT_HAND] + given]
                given += 1
            else:
                slot = _free_slot(code, state, row)
        at = code[of + AT_TOKENS] + 2 * position
        state[row, at], state[row, at + 1] = clock_s, slot
        if slot >= 0:
            state[row, code[AT_SLOT_PLACE] + slot] = place
            state[row, code[AT_SLOT_CAME] + slot] = clock_s
    _set_marking(code, state, masks, row, place, count + weight)
    if code[of + HOLDING] == 0:
        _set_usable(code, state, masks, row, place, count + weight)
    else:
        state[row, HELD] += weight
        state[row, NEXT_USABLE] = min(state[row, NEXT_USABLE], clock_s + code[of + HOLDING])
    return given


@kernel
def _take(code: Code, state: State, masks: Masks, row: int, place: int, weight: int, hand: int) -> int:
    """Remove the oldest tokens; slots of tracked ones go to the hand. Return the hand's size."""
    of = IN_PLACES + place * PLACE_WIDTH
    count, at = state[row, code[AT_MARKING] + place], code[of + AT_TOKENS]
    if code[of + TRACKED]:
        for position in range(weight):
            slot = state[row, at + 2 * position + 1]
            state[row, code[AT_HAND] + hand] = slot
            hand += 1
            if slot >= 0:
                state[row, code[AT_SLOT_PLACE] + slot] = -1
    for column in range(at, at + 2 * (count - weight)):
        state[row, column] = state[row, column + 2 * weight]
    _set_usable(code, state, masks, row, place, state[row, code[AT_USABLE] + place] - weight)
    _set_marking(code, state, masks, row, place, count - weight)
    return hand


@kernel
def _clear(code: Code, state: State, masks: Masks, row: int, place: int) -> None:
    """Remove all tokens of a place; the caller moves the clock next, which finds the next time again."""
    of = IN_PLACES + place * PLACE_WIDTH
    count, usable = state[row, code[AT_MARKING] + place], state[row, code[AT_USABLE] + place]
    for position in range(count):
        slot = state[row, code[of + AT_TOKENS] + 2 * position + 1]
        if slot >= 0:
            state[row, code[AT_SLOT_PLACE] + slot] = -1
    if usable < count:
        state[row, HELD] -= count - usable
        state[row, NEXT_USABLE] = 0
    _set_usable(code, state, masks, row, place, 0)
    _set_marking(code, state, masks, row, place, 0)


@kernel
def _move_clock(code: Code, state: State, masks: Masks, row: int, to_s: int) -> None:
    """Set the clock; tokens become usable after their holding time."""
    state[row, CLOCK] = to_s
    if state[row, NEXT_USABLE] > to_s:
        return
    next_s = NEVER
    for link in range(code[IN_TIMED], code[TIMED_END]):
        place = code[link]
        of = IN_PLACES + place * PLACE_WIDTH
        count, before = state[row, code[AT_MARKING] + place], state[row, code[AT_USABLE] + place]
        came, usable = code[of + AT_TOKENS], before
        while usable < count and state[row, came + 2 * usable] + code[of + HOLDING] <= to_s:
            usable += 1
        if usable > before:
            state[row, HELD] -= usable - before
            _set_usable(code, state, masks, row, place, usable)
        if usable < count:
            next_s = min(next_s, state[row, came + 2 * usable] + code[of + HOLDING])
    state[row, NEXT_USABLE] = next_s


@kernel
def _clock_after_wait(code: Code, state: State, row: int) -> int:
    clock_s, next_s = state[row, CLOCK], state[row, NEXT_USABLE]
    if code[WAIT] > 0:
        return int(clock_s + code[WAIT])
    for link in range(code[IN_LIMITED], code[LIMITED_END]):
        place = code[link]
        if state[row, code[AT_MARKING] + place] > 0:
            of = IN_PLACES + place * PLACE_WIDTH
            stay_s = code[of + HOLDING] + code[of + RESIDENCE]
            next_s = min(next_s, state[row, code[of + AT_TOKENS]] + stay_s + 1)
    return int(clock_s if next_s == NEVER else next_s)


@kernel
def _fire(code: Code, state: State, masks: Masks, row: int, transition: int) -> None:
    of = code[IN_TRANSITIONS] + transition * TRANSITION_WIDTH
    hand, given = 0, 0
    for link in range(code[of + TAKES], code[of + PUTS], 2):
        hand = _take(code, state, masks, row, code[link], code[link + 1], hand)
    for link in range(code[of + RESETS], code[of + RESETS_END], 2):
        _clear(code, state, masks, row, code[link])
    _move_clock(code, state, masks, row, state[row, CLOCK] + code[of + FIRING])
    for link in range(code[of + PUTS], code[of + RESETS], 2):
        given = _put(code, state, masks, row, code[link], code[link + 1], given, hand)


@kernel
def _overtime(code: Code, state: State, row: int, before_s: int) -> int:
    """Return the seconds of overtime since `before_s` over all tokens; also count scrapped tokens."""
    overtime_s, scrapped = 0, 0
    clock_s = state[row, CLOCK]
    if state[row, EXPOSED] > 0:
        for link in range(code[IN_LIMITED], code[LIMITED_END]):
            place = code[link]
            of = IN_PLACES + place * PLACE_WIDTH
            for position in range(state[row, code[AT_MARKING] + place]):
                usable_s = state[row, code[of + AT_TOKENS] + 2 * position] + code[of + HOLDING]
                overtime_s += max(0, clock_s - max(before_s, usable_s))
                if clock_s > usable_s + code[of + RESIDENCE]:
                    scrapped += 1
    state[row, SCRAPPED] = scrapped
    return overtime_s


@kernel
def _observe(code: Code, scales: Scales, state: State, seen: Seen, row: int) -> None:
    """Write the row's observation, in the order of `PetriRules.observation`."""
    clock_s, share = state[row, CLOCK], scales[HORIZON_SHARE]
    seen[row, 0] = min(clock_s * scales[LIMIT_SHARE], 1.0)
    at = 1
    for place in range(code[PLACES]):
        of, scale = IN_PLACES + place * PLACE_WIDTH, OF_PLACES + place * SCALE_WIDTH
        count = state[row, code[AT_MARKING] + place]
        usable, scrap = 0.0, 1.0
        if count > 0:
            left_s = state[row, code[of + AT_TOKENS]] + code[of + HOLDING] - clock_s
            usable = min(max(left_s, 0) * share, 1.0)
            if code[of + RESIDENCE] >= 0:
                scrap = min(max(left_s + code[of + RESIDENCE], 0) * share, 1.0)
        seen[row, at] = count * scales[scale + SHARE]
        seen[row, at + 1] = state[row, code[AT_USABLE] + place] * scales[scale + SHARE]
        seen[row, at + 2] = usable
        seen[row, at + 3] = scrap
        at += 4
    for slot in range(code[SLOTS]):
        place = state[row, code[AT_SLOT_PLACE] + slot]
        seen[row, at + 4] = 1.0
        if place < 0:
            for feature in range(4):
                seen[row, at + feature] = 0.0
        else:
            of, scale = IN_PLACES + place * PLACE_WIDTH, OF_PLACES + place * SCALE_WIDTH
            stayed_s = clock_s - state[row, code[AT_SLOT_CAME] + slot]
            left_s = code[of + HOLDING] - stayed_s
            seen[row, at] = scales[scale + PLACE_CODE]
            seen[row, at + 1] = scales[scale + KIND_CODE]
            seen[row, at + 2] = min(stayed_s * scales[scale + STAY_SHARE], 1.0)
            seen[row, at + 3] = min(max(left_s, 0) * share, 1.0)
            if code[of + RESIDENCE] >= 0:
                seen[row, at + 4] = min(max(left_s + code[of + RESIDENCE], 0) * share, 1.0)
        at += 5


@kernel
def reset_row(code: Code, scales: Scales, state: State, masks: Masks, seen: Seen, row: int) -> None:
    """Reset a row to the initial marking at clock 0; write mask and observation."""
    transitions = code[TRANSITIONS]
    for column in range(code[WIDTH]):
        state[row, column] = 0
    for column in range(code[AT_SLOT_PLACE], code[AT_SLOT_CAME]):
        state[row, column] = -1
    state[row, NEXT_USABLE] = NEVER
    for transition in range(transitions):
        lacking = code[code[IN_TRANSITIONS] + transition * TRANSITION_WIDTH + LACKING]
        state[row, code[AT_LACKING] + transition] = lacking
        masks[row, transition] = lacking == 0
        state[row, ENABLED] += lacking == 0
    for place in range(code[PLACES]):
        tokens = code[IN_PLACES + place * PLACE_WIDTH + TOKENS]
        if tokens > 0:
            _put(code, state, masks, row, place, tokens, 0, 0)
    masks[row, transitions] = code[WAIT] > 0 or state[row, HELD] > 0 or state[row, EXPOSED] > 0
    _observe(code, scales, state, seen, row)


@kernel
def step_row(
    code: Code,
    scales: Scales,
    state: State,
    masks: Masks,
    seen: Seen,
    rewards: NDArray[np.float64],
    terminated: Flags,
    truncated: Flags,
    elapsed: NDArray[np.int32],
    row: int,
    action: int,
) -> bool:
    """Step one row without reset; write reward, flags, mask, observation. Return True at an episode's end."""
    wait, before_s, processed = code[TRANSITIONS], state[row, CLOCK], 0
    disabled = not masks[row, action]
    if disabled or action == wait:
        _move_clock(code, state, masks, row, _clock_after_wait(code, state, row))
    else:
        processed = code[code[IN_TRANSITIONS] + action * TRANSITION_WIDTH + PROCESSED]
        _fire(code, state, masks, row, action)
    elapsed[row] += 1

    overtime_s = _overtime(code, state, row, before_s)
    clock_s, scrapped = state[row, CLOCK], state[row, SCRAPPED]
    finished = code[ALL_GOALS] > 0 and state[row, DONE] == code[ALL_GOALS] and scrapped == 0
    has_moment = state[row, HELD] > 0 or state[row, EXPOSED] > 0
    dead = state[row, ENABLED] == 0 and not has_moment and not finished and scrapped == 0
    reward = scales[PROCESSING] * processed
    reward -= scales[TIME] * (clock_s - before_s)
    reward -= scales[OVERTIME] * overtime_s
    reward -= scales[SCRAP] * scrapped
    if disabled:
        reward -= scales[DISABLED]
    if finished:
        reward += scales[FINISH]
    if dead:
        reward -= scales[DEAD_END]

    ends = scrapped > 0 or finished or dead
    late = clock_s >= code[TIME_LIMIT] or elapsed[row] >= code[MAX_STEPS]
    state[row, DEAD], state[row, WAS_DISABLED] = dead, disabled
    rewards[row], terminated[row], truncated[row] = reward, ends, late and not ends
    masks[row, wait] = code[WAIT] > 0 or has_moment
    if ends or late:
        for transition in range(wait):
            masks[row, transition] = False
        masks[row, wait] = True
    _observe(code, scales, state, seen, row)
    return bool(ends or late)


@kernel
def first_bad_row(
    code: Code, masks: Masks, over: Flags, actions: NDArray[np.int64], start: int, stop: int
) -> int:
    """Return the first row whose action is invalid, or disabled if that is an error; -1 if there is none."""
    for row in range(start, stop):
        action = actions[row]
        if action < 0 or action > code[TRANSITIONS]:
            return row
        if code[STRICT] and not over[row] and not masks[row, action]:
            return row
    return -1


@kernel
def step_rows(
    code: Code,
    scales: Scales,
    state: State,
    masks: Masks,
    seen: Seen,
    rewards: NDArray[np.float64],
    terminated: Flags,
    truncated: Flags,
    over: Flags,
    elapsed: NDArray[np.int32],
    actions: NDArray[np.int64],
    final_seen: Seen,
    final_masks: Masks,
    final_infos: State,
    start: int,
    stop: int,
    mode: int,
    check: bool,
) -> int:
    """Step a slice of the batch and reset rows as the mode says; with `check`, check its actions first.

    Returns the first row with an invalid action, with nothing changed, or -1.
    """
    if check:
        bad = first_bad_row(code, masks, over, actions, start, stop)
        if bad >= 0:
            return bad
    for row in range(start, stop):
        if mode == NEXT_STEP and over[row]:
            reset_row(code, scales, state, masks, seen, row)
            rewards[row], terminated[row], truncated[row] = 0.0, False, False
            over[row], elapsed[row] = False, 0
        elif step_row(
            code, scales, state, masks, seen, rewards, terminated, truncated, elapsed, row, actions[row]
        ):
            if mode == SAME_STEP:
                final_seen[row] = seen[row]
                final_masks[row] = masks[row]
                final_infos[row] = state[row, :INFOS]
                reset_row(code, scales, state, masks, seen, row)
                elapsed[row] = 0
            else:
                over[row] = True
    return -1


@kernel
def reset_rows(
    code: Code, scales: Scales, state: State, masks: Masks, seen: Seen, chosen: NDArray[np.bool_]
) -> None:
    """Start an episode in the marked rows."""
    for row in range(len(chosen)):
        if chosen[row]:
            reset_row(code, scales, state, masks, seen, row)
