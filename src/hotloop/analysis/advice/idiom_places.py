"""Places of known slow idioms in hot lines, and the samples that would go away with each."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.advice import (  # noqa: F401  (they register idioms)
    data_layout,
    jobs_and_connections,
    repeated_rows,
    stored_once,
    unread_results,
    whole_for_a_part,
)
from hotloop.analysis.advice.backward_shares import backward_shares
from hotloop.analysis.advice.idioms import Match, match
from hotloop.analysis.advice.idioms.callbacks import in_a_callback
from hotloop.analysis.advice.recomputed import recomputed
from hotloop.analysis.advice.repeated_work import repeated_work
from hotloop.analysis.advice.user_code import is_part_of_idiom
from hotloop.analysis.hot_statements import LOOP_OF_TRAINING, LOOPS, Spot, spots
from hotloop.analysis.line_samples import LineSamples, waits
from hotloop.analysis.source_names import dotted
from hotloop.capture.samples import SampledPath

LEAST_SHARE = 0.01  # of training, for one place; places of one idiom in one function are added up
# Idioms about a choice that a script makes once, such as the format of its messages: one change for all
ACROSS_FUNCTIONS = frozenset(
    {"json_text", "pickling", "tiny_arrays", "dataframes", "state_as_text", "distributions", "tree_in_python"}
)


@dataclass(frozen=True)
class IdiomPlaces:
    """An idiom, and its places in one function or file."""

    match: Match
    places: tuple[Spot, ...]
    lines: LineSamples
    outside: frozenset[int] = frozenset()  # samples of the places that ran other expressions
    without: frozenset[int] = frozenset()  # samples that a more specific idiom explains

    @cached_property
    def paths(self) -> frozenset[int]:
        """Samples that go away with its places, without calls into frameworks that only share their lines."""
        found = {number for spot in self.places for number in spot.paths}
        for spot in self.places:
            found |= _goes_away(self.lines, spot, self.match)
            if self.match.helpers:
                found |= self.lines.helping_at(spot.paths)
        passes = frozenset(
            self.lines.paths_where(
                lambda path: (
                    (self.match.optimizer and path.called.startswith("torch.optim."))
                    or (
                        path.called.startswith(self.match.also_called or "?")
                        and (self.match.waits or not waits(path))
                    )
                )
            )
        )
        return passes | frozenset(
            number
            for number in found - self.outside - self.without
            if is_part_of_idiom(self.lines.paths[number], self.match.library_calls)
            and (self.match.waits or not waits(self.lines.paths[number]))
        )

    @cached_property
    def backward(self) -> NDArray[np.float64]:
        """The part of each path that is the backward pass of its samples, [paths]; zeros if that stays."""
        if not self.match.backward:
            return np.zeros(len(self.lines.paths))
        return backward_shares(self.lines, self.paths)

    @cached_property
    def claimed(self) -> frozenset[int]:
        """Its samples, with those of backward passes that are mostly its own."""
        return self.paths | frozenset(np.flatnonzero(self.backward > 0.5).tolist())

    @cached_property
    def share(self) -> float:
        """Of training, with its part of backward passes."""
        passes = np.flatnonzero(self.backward)
        return self.lines.share_of(self.paths) + sum(
            float(self.backward[number]) * self.lines.share_of([int(number)]) for number in passes
        )

    @property
    def is_loop(self) -> bool:
        return isinstance(self.places[0].node, LOOPS)

    @property
    def expected(self) -> float:
        """Share of training that is likely to be saved."""
        return self.share * self.match.saved[1]


def explained_by_idioms(lines: LineSamples) -> set[int]:
    """Samples that some idiom explains."""
    return {number for found in find_idioms(lines) for number in found.claimed}


def find_idioms(lines: LineSamples) -> list[IdiomPlaces]:
    """Places of the same idiom in the same function (or file) belong together; largest saving first."""
    groups: _Groups = {}
    for spot in spots(lines, LEAST_SHARE):
        found = in_a_callback(spot, repeated_work(spot) or recomputed(spot) or match(spot))
        if found is not None:
            function = "" if found.name in ACROSS_FUNCTIONS else spot.function
            groups.setdefault((found.name, spot.file, function), []).append((found, spot))
    groups = _with_waits_for_locks(groups)
    result = [
        IdiomPlaces(places[0][0], tuple(spot for _, spot in places), lines, _outside(places, lines))
        for places in groups.values()
    ]
    result = [_without_more_specific(one, result) if one.is_loop else one for one in result]
    result = [_without_slow_hooks(one, result) for one in result]
    return sorted(result, key=lambda f: -f.expected)


def _outside(places: list[tuple[Match, Spot]], lines: LineSamples) -> frozenset[int]:
    """Samples of statements that ran another expression than the one an idiom is about."""
    found: set[int] = set()
    for one, spot in places:
        if one.part is None:
            continue
        found |= spot.outside(one.part)
        named = {dotted(n.func).rpartition(".")[2] for n in ast.walk(one.part) if isinstance(n, ast.Call)}
        if named & set(spot.names.functions):  # what other functions of the statement do is not its matter
            others = {name.rpartition(".")[2] for name, _ in spot.calls()} - named
            found |= {n for n in spot.below if _next_function(lines.paths[n], spot) in others}
    return frozenset(found)


_Groups = dict[tuple[str, str, str], list[tuple[Match, Spot]]]


def _with_waits_for_locks(groups: _Groups) -> _Groups:
    """Waiting for a lock belongs to the slow code that is run while it is held, where that is known."""
    result: _Groups = {}
    for key, places in groups.items():
        name, file, function = key
        for found, spot in places:
            inside = (
                [
                    other
                    for other, theirs in groups.items()
                    if other[1:] == (file, function)
                    and other[0] != name
                    and any(one.line in _body_of(spot) for _, one in theirs)
                ]
                if name == "waiting_for_a_lock"
                else []
            )
            if inside:
                result.setdefault(inside[0], []).append((replace(groups[inside[0]][0][0], waits=True), spot))
            else:
                result.setdefault(key, []).append((found, spot))
    # The slow code comes first: it names the idiom and the line.
    return {key: sorted(places, key=lambda place: place[1].asleep >= 0.6) for key, places in result.items()}


def _body_of(spot: Spot) -> range:
    """Lines of the `with` statement that begins where the spot is."""
    for node in ast.walk(spot.scope):
        if isinstance(node, ast.With) and node.lineno == spot.line:
            return range(node.lineno + 1, (node.end_lineno or node.lineno) + 1)
    return range(0)


def _without_more_specific(loop: IdiomPlaces, others: list[IdiomPlaces]) -> IdiomPlaces:
    """A loop whose time is mostly that of one statement in it is not the point: the statement is."""
    whole = loop.lines.share_of(loop.paths)
    functions = {(spot.file, spot.function) for spot in loop.places}
    for other in others:
        # A statement elsewhere may run the whole loop: what it calls is not in the loop.
        places = {(spot.file, spot.function) for spot in other.places}
        theirs = other.paths if places <= functions else {n for spot in other.places for n in spot.paths}
        inside = frozenset(theirs & loop.paths)
        if not other.is_loop and inside and loop.lines.share_of(inside) > whole / 2:
            loop = replace(loop, without=loop.without | inside)
    return loop


def _without_slow_hooks(found: IdiomPlaces, others: list[IdiomPlaces]) -> IdiomPlaces:
    """A user's function that a library calls is its own matter where it is known to be slow itself."""
    if found.match.takes != "hooks":
        return found
    hooks = frozenset(n for spot in found.places for n in _goes_away(found.lines, spot, found.match))
    if not hooks:
        return found
    inside = {spot.function for spot in found.places}
    for other in others:
        slow = other.paths & hooks
        deeper = not {spot.function for spot in other.places} & inside
        if deeper and slow and found.lines.share_of(slow) > found.lines.share_of(hooks) / 2:
            found = replace(found, without=found.without | slow)
    return found


def _goes_away(lines: LineSamples, spot: Spot, match: Match) -> set[int]:
    """Samples of other functions of the user that run only because of the idiom."""
    if match.takes == "own" or not spot.below or lines.share_of(spot.below) > LOOP_OF_TRAINING:
        return set()
    if match.takes == "all":
        return set(spot.below)
    # A module or another object that the statement calls has functions of these names.
    named = {name.rpartition(".")[2] for name, _ in spot.calls()} | {"forward", "__call__"}
    return {number for number in spot.below if _next_function(lines.paths[number], spot) not in named}


def _next_function(path: SampledPath, spot: Spot) -> str:
    """The user's function that the spot called, in the end."""
    for frame, below in pairwise(path.frames):
        if frame.file == spot.file and frame.function == spot.function:
            return below.function.rpartition(".")[2]
    return ""
