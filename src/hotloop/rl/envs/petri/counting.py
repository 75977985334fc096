"""Counts the reachable markings of a net, ignoring time, to check the firing rule against published counts.

Markings are stored in one array and found through a hash table. The search is breadth-first, so the array
is in order of discovery. `count_states_plainly` does the same with a set of tuples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.compiled import kernel
from hotloop.rl.envs.petri.net import Net

_MOST_TOKENS = 65_535  # a marking has 16 bits per place

_DONE, _FULL, _BOUND, _TOO_MANY = range(4)
# Entries of `numbers`, the state of a search.
_FOUND, _NEXT, _FIRINGS, _DEAD, _IN_PLACE, _PER_MARKING = range(6)


@dataclass(frozen=True, slots=True)
class StateSpace:
    """Result of counting; lower bounds unless `is_complete`."""

    markings: int  # reachable markings
    firings: int  # pairs of a reachable marking and a transition enabled in it
    deadlocks: int  # markings with nothing enabled
    max_in_place: int  # most tokens in one place
    max_per_marking: int  # most tokens in one marking
    is_complete: bool  # False if stopped at the bound

    def __str__(self) -> str:
        if self.is_complete:
            counted = ((self.markings, "marking"), (self.firings, "firing"), (self.deadlocks, "deadlock"))
            return ", ".join(f"{number:,} {what}{'s' * (number != 1)}" for number, what in counted)
        return (
            f"stopped at the bound of {self.markings:,} markings; there are more. "
            "Raise `bound` to go on, or give unbounded places a capacity."
        )


def count_states(net: Net, *, bound: int = 10_000_000) -> StateSpace:
    """Explore all markings reachable from the initial one, at most `bound` of them.

    Memory: about 2 bytes x places + 8 bytes per marking, half as much again while growing.
    """
    _check(net, bound)
    arcs, edges = _sparse(net)
    capacities = np.array([place.capacity or _MOST_TOKENS for place in net.places], dtype=np.int64)
    limited = np.array([place.capacity is not None for place in net.places])
    room = min(bound, 1 << 14)
    markings = np.zeros((room, len(net.places)), dtype=np.uint16)
    table = np.full(4 * (1 << 14), -1, dtype=np.int32)
    markings[0] = net.initial
    numbers = np.array([1, 0, 0, 0, max(net.initial), sum(net.initial)], dtype=np.int64)
    _rehash(markings, table, 1)
    scratch = np.zeros(len(net.places), dtype=np.uint16)
    while True:
        end = _explore(arcs, edges, capacities, limited, markings, table, numbers, scratch, bound)
        if end != _FULL:
            break
        room = min(bound, 2 * room)
        larger = np.zeros((room, len(net.places)), dtype=np.uint16)
        larger[: len(markings)] = markings
        markings = larger
        table = np.full(2 * len(table), -1, dtype=np.int32)
        _rehash(markings, table, int(numbers[_FOUND]))
    if end == _TOO_MANY:
        raise HotloopError(
            f"net {net.name!r} reaches more than {_MOST_TOKENS:,} tokens in a place, so its markings may "
            "be infinite in number; give unbounded places a capacity or lower the bound."
        )
    return _result(numbers, is_complete=end == _DONE)


def count_states_plainly(net: Net, *, bound: int = 10_000_000) -> StateSpace:
    """`count_states` in plain Python: the reference, about a hundred times slower."""
    _check(net, bound)
    seen = {net.initial}
    order = [net.initial]
    numbers = np.array([1, 0, 0, 0, max(net.initial), sum(net.initial)], dtype=np.int64)
    for marking in order:  # grows during the loop
        enabled = 0
        every = zip(net.takes, net.puts, net.inhibitors, net.resets, strict=True)
        for takes, puts, inhibitors, resets in every:
            if any(marking[place] < weight for place, weight in takes):
                continue
            if any(marking[place] >= weight for place, weight in inhibitors):
                continue
            after = list(marking)
            for place, weight in takes:
                after[place] -= weight
            for place in resets:
                after[place] = 0
            for place, weight in puts:
                after[place] += weight
            limits = [(after[index], place.capacity) for index, place in enumerate(net.places)]
            if any(capacity is not None and tokens > capacity for tokens, capacity in limits):
                continue
            enabled += 1
            numbers[_FIRINGS] += 1
            if tuple(after) not in seen:
                if len(seen) == bound:
                    return _result(numbers, is_complete=False)
                seen.add(tuple(after))
                order.append(tuple(after))
                numbers[_FOUND] += 1
                numbers[_IN_PLACE] = max(numbers[_IN_PLACE], *after)
                numbers[_PER_MARKING] = max(numbers[_PER_MARKING], sum(after))
        numbers[_DEAD] += enabled == 0
    return _result(numbers, is_complete=True)


def _check(net: Net, bound: int) -> None:
    if isinstance(bound, bool) or not isinstance(bound, int) or not 1 <= bound <= 2**30:
        raise HotloopError(f"bound={bound!r} is not allowed; use a whole number from 1 to {2**30:,}.")
    if max(net.initial) > _MOST_TOKENS:
        raise HotloopError(
            f"a place of net {net.name!r} starts with {max(net.initial):,} tokens; "
            f"counting supports at most {_MOST_TOKENS:,}."
        )


def _result(numbers: NDArray[np.int64], *, is_complete: bool) -> StateSpace:
    found = numbers.tolist()
    return StateSpace(
        found[_FOUND], found[_FIRINGS], found[_DEAD], found[_IN_PLACE], found[_PER_MARKING], is_complete
    )


def _sparse(net: Net) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a row for each place of each transition, and where each transition's rows start.

    A row is place, tokens taken, tokens put, tokens that inhibit, and 0 if the place is reset, else 1.
    """
    rows: list[tuple[int, int, int, int, int]] = []
    edges = [0]
    for takes, puts, inhibitors, resets in zip(net.takes, net.puts, net.inhibitors, net.resets, strict=True):
        taken, put, inhibiting = dict(takes), dict(puts), dict(inhibitors)
        for place in sorted({*taken, *put, *inhibiting, *resets}):
            limit = inhibiting.get(place, _MOST_TOKENS + 1)
            rows.append((place, taken.get(place, 0), put.get(place, 0), limit, int(place not in resets)))
        edges.append(len(rows))
    return np.array(rows, dtype=np.int64).reshape(-1, 5), np.array(edges, dtype=np.int64)


@kernel
def _slot_of(markings: NDArray[np.uint16], table: NDArray[np.int32], wanted: NDArray[np.uint16]) -> int:
    """Return the slot of a marking in the table, or the empty slot where it belongs."""
    mixed = np.uint64(14695981039346656037)
    for tokens in wanted:
        mixed = (mixed ^ np.uint64(tokens)) * np.uint64(1099511628211)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    last = len(table) - 1
    slot = int(np.int64(mixed & np.uint64(last)))
    while True:
        index = table[slot]
        if index < 0:
            return slot
        same = True
        for place in range(len(wanted)):
            if markings[index, place] != wanted[place]:
                same = False
                break
        if same:
            return slot
        slot = (slot + 1) & last


@kernel
def _rehash(markings: NDArray[np.uint16], table: NDArray[np.int32], count: int) -> None:
    """Insert the first `count` markings into an empty table whose length is a power of two."""
    for index in range(count):
        table[_slot_of(markings, table, markings[index])] = index


@kernel
def _explore(
    arcs: NDArray[np.int64],
    edges: NDArray[np.int64],
    capacities: NDArray[np.int64],
    limited: NDArray[np.bool_],
    markings: NDArray[np.uint16],
    table: NDArray[np.int32],
    numbers: NDArray[np.int64],
    scratch: NDArray[np.uint16],
    bound: int,
) -> int:
    """Continue the search until it is done, out of room, at its bound or beyond 16 bits.

    A marking whose successors may not all fit is left to the next call, so that nothing is counted twice.
    """
    transitions = len(edges) - 1
    while numbers[_NEXT] < numbers[_FOUND]:
        if numbers[_FOUND] + transitions > len(markings) and len(markings) < bound:
            return _FULL
        here = numbers[_NEXT]
        enabled = 0
        for transition in range(transitions):
            fires = True
            for arc in range(edges[transition], edges[transition + 1]):
                tokens = np.int64(markings[here, arcs[arc, 0]])
                after = (tokens - arcs[arc, 1]) * arcs[arc, 4] + arcs[arc, 2]
                if (
                    tokens < arcs[arc, 1]
                    or tokens >= arcs[arc, 3]
                    or (limited[arcs[arc, 0]] and after > capacities[arcs[arc, 0]])
                ):
                    fires = False
                    break
            if not fires:
                continue
            enabled += 1
            numbers[_FIRINGS] += 1
            scratch[:] = markings[here]
            for arc in range(edges[transition], edges[transition + 1]):
                tokens = np.int64(scratch[arcs[arc, 0]])
                after = (tokens - arcs[arc, 1]) * arcs[arc, 4] + arcs[arc, 2]
                if after > _MOST_TOKENS:
                    return _TOO_MANY
                scratch[arcs[arc, 0]] = after
            slot = _slot_of(markings, table, scratch)
            if table[slot] >= 0:
                continue
            found = numbers[_FOUND]
            if found == bound:
                return _BOUND
            markings[found] = scratch
            table[slot] = found
            numbers[_FOUND] = found + 1
            total = 0
            for tokens in scratch:
                total += int(np.int64(tokens))
                numbers[_IN_PLACE] = max(numbers[_IN_PLACE], np.int64(tokens))
            numbers[_PER_MARKING] = max(numbers[_PER_MARKING], total)
        if enabled == 0:
            numbers[_DEAD] += 1
        numbers[_NEXT] = here + 1
    return _DONE
