"""Packs a net and its settings into the two arrays that the compiled path reads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.petri.config import PetriConfig
from hotloop.rl.envs.petri.kernels import HEADER, IN_PLACES, PLACE_WIDTH, TRANSITION_WIDTH
from hotloop.rl.envs.petri.net import KINDS, Net

Links = list[tuple[int, int]]


class Program(NamedTuple):
    """Result of `pack`; constants in kernels.py define the order of entries."""

    code: NDArray[np.int32]  # header, places, transitions, lists
    scales: NDArray[np.float64]  # rewards, shares, four numbers for each place
    width: int  # columns of a state row


def pack(net: Net, config: PetriConfig) -> Program:
    """Return the arrays of a net with these settings.

    The lists at the end of `code` are pairs: for each place its takers (transition, tokens taken), growers
    (transition, tokens gained) and those it inhibits (transition, weight), for each transition its arcs
    (place, weight) and the places it resets (place, 0); then the places with a holding time and those with a
    residence limit, single numbers.
    """
    sizes = config.sizes_for(net)
    slots = config.slots_for(net)
    hand = max(sum(min(weight, sizes[place]) for place, weight in arcs) for arcs in net.takes)
    parts = (HEADER, len(net.places), len(net.places), len(net.transitions), slots, slots, hand)
    columns = np.cumsum(parts).tolist()
    in_transitions = IN_PLACES + PLACE_WIDTH * len(net.places)
    lists: list[int] = []
    begin = in_transitions + TRANSITION_WIDTH * len(net.transitions)

    places: list[int] = []
    lacking = [len(arcs) for arcs in net.takes]
    at_tokens = columns[-1]
    for index, place in enumerate(net.places):
        takers, growers, inhibited = _watchers(net, index)
        places += [sizes[index], place.holding_s]
        places += [-1 if place.residence_s is None else place.residence_s]
        places += [place.goal, int(place.is_tracked), place.tokens]
        places += _append(lists, begin, takers, growers, inhibited)
        places += [at_tokens]
        at_tokens += 2 * sizes[index]
        for grower, gain in growers:
            lacking[grower] += gain > sizes[index]
    transitions: list[int] = []
    for index, transition in enumerate(net.transitions):
        resets = [(place, 0) for place in net.resets[index]]
        transitions += _append(lists, begin, net.takes[index], net.puts[index], resets)
        # What a reset place cannot hold although it is empty, it can never hold.
        never = [place for place, weight in net.puts[index] if weight > sizes[place] and (place, 0) in resets]
        from_process = [weight for place, weight in net.takes[index] if net.places[place].kind == "process"]
        transitions += [transition.firing_s, sum(from_process), lacking[index] + len(never)]
    timed = [index for index, place in enumerate(net.places) if place.holding_s]
    limited = [index for index, place in enumerate(net.places) if place.residence_s is not None]
    in_timed = begin + len(lists)
    header = [len(net.places), len(net.transitions), slots, net.wait_s or 0, config.time_limit_s]
    header += [config.max_steps, int(config.on_disabled == "error"), sum(place.goal for place in net.places)]
    header += [in_transitions, in_timed, in_timed + len(timed)]
    header += [in_timed + len(timed), in_timed + len(timed) + len(limited)]
    header += [*columns[:-1], at_tokens]  # the last entry of `columns` is where tokens start
    code = header + places + transitions + lists + timed + limited
    return Program(np.array(code, dtype=np.int32), _scales(net, config, sizes), at_tokens)


def _append(lists: list[int], begin: int, *several: Links | tuple[tuple[int, int], ...]) -> list[int]:
    """Append lists of pairs; return where each starts in `code`, and where the last one ends."""
    edges = [begin + len(lists)]
    for pairs in several:
        for pair in pairs:
            lists += pair
        edges.append(begin + len(lists))
    return edges


def _watchers(net: Net, place: int) -> tuple[Links, Links, Links]:
    """Return the transitions that depend on a place: (transition, taken), (transition, gained), inhibited."""
    takers, growers, inhibited = [], [], []
    for index in range(len(net.transitions)):
        taken, put = dict(net.takes[index]).get(place, 0), dict(net.puts[index]).get(place, 0)
        if taken:
            takers.append((index, taken))
        if put > taken and place not in net.resets[index]:
            growers.append((index, put - taken))
        inhibited += [(index, weight) for row, weight in net.inhibitors[index] if row == place]
    return takers, growers, inhibited


def _scales(net: Net, config: PetriConfig, sizes: list[int]) -> NDArray[np.float64]:
    values = [
        config.processing_reward,
        config.time_penalty_per_s,
        config.overtime_penalty_per_s,
        config.scrap_penalty,
        config.dead_penalty,
        config.disabled_penalty,
        config.finish_bonus,
        1.0 / config.horizon_s,
        1.0 / config.time_limit_s,
    ]
    for index, place in enumerate(net.places):
        longest_s = place.holding_s + (place.residence_s or 0) or config.horizon_s
        kind = (KINDS.index(place.kind) + 1) / len(KINDS)
        values += [1.0 / sizes[index], 1.0 / longest_s, (index + 1) / len(net.places), kind]
    return np.array(values, dtype=np.float64)
